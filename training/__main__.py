"""`python -m training`: the launcher (`training.launch.main`), `checkpoints` (`training.checkpoint.main`), `diagnose`.

Signals first: what is imported below takes a tenth of a second, and torch takes seconds.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from training.launch import process_one


def main() -> NoReturn:
    """Run what the command line asks for and exit with its code (the launcher's: `training.launch.exit_codes`)."""
    if os.getpid() == 1:
        process_one.stand_in_front()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit_at_once)

    if sys.argv[1:2] == ["checkpoints"]:
        from training.checkpoint.main import run as checkpoints  # noqa: PLC0415

        sys.exit(checkpoints(sys.argv[2:]))
    if sys.argv[1:2] == ["diagnose"]:
        from training.diagnose.__main__ import main as diagnose  # noqa: PLC0415
        from training.launch.template import exit_quickly as end  # noqa: PLC0415

        end(diagnose(sys.argv[2:]))
    from training.launch.main import run  # noqa: PLC0415
    from training.launch.template import exit_quickly  # noqa: PLC0415

    exit_quickly(run())


def _exit_at_once(number: int, _: FrameType | None) -> None:
    """Until there are workers there is nothing to end and nobody to tell."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
