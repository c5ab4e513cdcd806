"""Exit codes of workers and of the launcher, and what each means for whoever starts them again.

| code | name        | meaning                                                     | start it again?              |
| ---- | ----------- | ----------------------------------------------------------- | ---------------------------- |
| 0    | FINISHED    | the job is finished                                         | no                           |
| 1    | FAILED      | the script or the launcher failed                           | yes, within the budget       |
| 64   | USAGE       | wrong options; the same command fails again                 | no                           |
| 75   | PREEMPTED   | stopped at a step whose checkpoint is safe                  | yes, free of charge          |
| 78   | DO_NOT_RESTART | pointless to try again, as script or check says, or three tries without a new step | no |
| 143  | TERMINATED  | ended by SIGTERM (128 + 15), without word of a checkpoint   | yes                          |

With torch's own rendezvous (c10d, static) the launcher is not told what its workers saved: 143 stands there for 75 too.

64, 75 and 78 are EX_USAGE, EX_TEMPFAIL and EX_CONFIG of sysexits.h.

Which codes of a worker are final is a default: `--restart-on` and `--no-restart-on` change it (`Rules`).
"""

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

FINISHED: Final = 0
FAILED: Final = 1
USAGE: Final = 64
PREEMPTED: Final = 75
DO_NOT_RESTART: Final = 78

# A worker that ends with one of these is not started again, unless --restart-on says otherwise.
FINAL: Final = frozenset({USAGE, DO_NOT_RESTART})


@dataclass(frozen=True)
class Rules:
    """After which exit codes of a worker the job goes on.

    Attributes:
        restart: codes after which workers start again, within the budget, whatever else is said.
        final: more codes, after which they never do.
    """

    restart: frozenset[int] = frozenset()
    final: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, restart: str, final: str) -> "Rules":
        """Read two lists as users write them: `3,10-12,SIGSEGV`.

        Raises:
            ValueError: an entry is no exit code, no range and no signal.
        """
        return cls(restart=_codes(restart), final=_codes(final))

    def is_final(self, code: int) -> bool:
        """Whether a worker that has ended with `code` (negative: by that signal) is not started again."""
        code = _as_shells_say(code)
        return code not in self.restart and (code in FINAL or code in self.final)

    def decisive(self, codes: Iterable[int]) -> int:
        """The code that counts when several workers of a node have failed, given in the order of their failures.

        The agent ends those that are left, and sees the failures of one second in any order: so one that says more than
        "failed" goes before those that do not.
        """
        given = list(codes)
        # The agent ends siblings of a failed worker by signals, which say nothing unless they came first.
        final = [code for code in given if self.is_final(code) and (code >= 0 or code == given[0])]
        return final[0] if final else PREEMPTED if PREEMPTED in given else given[0]

    def of_failure(self, codes: Collection[int], *, is_stuck: bool = False) -> int:
        """The launcher's own exit code when its workers have failed with these codes for the last time.

        Args:
            codes: of the workers, in the order of their failures.
            is_stuck: whether they have failed again and again without a new step.
        """
        code = self.decisive(codes)
        if code in FINAL and self.is_final(code):
            return code
        return DO_NOT_RESTART if is_stuck or self.is_final(code) else FAILED


def _codes(text: str) -> frozenset[int]:
    codes: set[int] = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = entry.partition("-")
        last = last if dash else first
        if entry.upper() in signal.Signals.__members__:
            codes.add(of_signal(signal.Signals[entry.upper()]))
        elif first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 255:
            codes.update(range(int(first), int(last) + 1))
        else:
            raise ValueError(f"'{entry}' is no exit code (1 to 255), no range (10-12) and no signal (SIGSEGV)")
    return frozenset(codes)


def _as_shells_say(code: int) -> int:
    return of_signal(-code) if code < 0 else code


def of_signal(signal_number: int) -> int:
    """The exit code by which shells and the kubelet know a process that a signal ended."""
    return 128 + signal_number
