"""Process 1 of a container: signals are heard from the first moment, and nobody stays a zombie.

The kernel gives process 1 two peculiarities: signals without a handler do nothing to it, and every orphan becomes its
child. A launcher that is process 1 (`exec python -m training ...` in a container) therefore forks at once, before any
slow import: the child is the launcher, an ordinary process, and process 1 only passes signals on and collects what
ends. Who runs `docker run --init` or a shared process namespace has another process 1, and none of this happens.
"""

import contextlib
import os
import signal
from collections.abc import Set
from typing import Final

# Faults of this process itself: not to be passed on, and not to be blocked.
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS})
# si_code of a signal that a process has sent is 0 or less (sigaction(2)). The kernel's own, those of a terminal, have
# reached the launcher as well, which is in the same process group.
_SENT_BY_A_PROCESS: Final = 0


def stand_in_front() -> None:
    """Return in a child process. This process serves as process 1 until that ends, and ends with the child's code."""
    heard = {number for number in signal.valid_signals() if number not in _FAULTS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_serve(child, heard))


def _serve(child: int, heard: Set[int]) -> int:
    """Pass signals on and collect what ends, until `child` does; returns the exit code as shells say it."""
    while True:
        came = signal.sigwaitinfo(heard)
        if came.si_signo == signal.SIGCHLD:
            if (code := _collect(child)) is not None:
                return code
        elif came.si_code <= _SENT_BY_A_PROCESS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, came.si_signo)


def _collect(child: int) -> int | None:
    """Collect all that have ended; the exit code of `child`, if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                ended = os.waitstatus_to_exitcode(status)
                code = 128 - ended if ended < 0 else ended
    return code
