"""Exit codes of workers and of the launcher, and what each means for whoever starts them again.

| code | name        | meaning                                                     | start it again?              |
| ---- | ----------- | ----------------------------------------------------------- | ---------------------------- |
| 0    | FINISHED    | the job is finished                                         | no                           |
| 1    | FAILED      | the script or the launcher failed                           | yes, within the budget       |
| 64   | USAGE       | wrong options; the same command fails again                 | no                           |
| 75   | PREEMPTED   | stopped at a step whose checkpoint is safe                  | yes, free of charge          |
| 78   | DO_NOT_RESTART | trying again is pointless, says the script, or the check of the image at the start | no |
| 143  | TERMINATED  | ended by SIGTERM (128 + 15), without word of a checkpoint   | yes                          |

With torch's own rendezvous (c10d, static) the launcher is not told what its workers saved: 143 stands there for 75 too.

64, 75 and 78 are EX_USAGE, EX_TEMPFAIL and EX_CONFIG of sysexits.h.
"""

from collections.abc import Iterable
from typing import Final

FINISHED: Final = 0
FAILED: Final = 1
USAGE: Final = 64
PREEMPTED: Final = 75
DO_NOT_RESTART: Final = 78

# A worker that ends with one of these is not started again.
FINAL: Final = frozenset({USAGE, DO_NOT_RESTART})


def decisive(codes: Iterable[int]) -> int:
    """The code that counts when several workers of a node have failed, given in the order of their failures.

    The agent ends those that are left, and sees the failures of one second in any order: so one that says more than
    "failed" goes before those that do not.
    """
    given = list(codes)
    final = [code for code in given if code in FINAL]
    return final[0] if final else PREEMPTED if PREEMPTED in given else given[0]


def of_signal(signal_number: int) -> int:
    """The exit code by which shells and the kubelet know a process that a signal ended."""
    return 128 + signal_number
