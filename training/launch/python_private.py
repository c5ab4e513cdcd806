"""Every private name of the standard library that the launcher uses, in one place, each with the reason.

`tests/training/test_training_torch_private.py` checks that they are there.
"""

import atexit
import threading

# What the interpreter calls at its end, in this order. Programs rely on them: the first lets executors finish their
# queues and awaits threads (an idle executor's threads only end when told), the second runs `atexit` functions.
end_threads = threading._shutdown  # type: ignore[attr-defined]  # noqa: SLF001
run_exit_functions = atexit._run_exitfuncs  # noqa: SLF001
