"""What holds for all tests."""

import signal

# A shell starts what runs in the background (`make test &`, many CI systems) with SIGINT ignored, and so would be all
# programs that tests start and interrupt. A handler of ours is not inherited: they begin with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)
