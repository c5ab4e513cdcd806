"""Workers that torch's agent takes for subprocesses, forked from the template (`training.launch.template`).

Not everything can be forked: a command that is not Python, NUMA binding, and an interpreter that is not ours take
torch's own way. `TRAINYARD_START=spawn` chooses that way for all. `TRAINYARD_PRELOAD=module,module` names more modules
to import before workers are forked (default: numpy).
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.multiprocessing.subprocess_handler.handlers import get_subprocess_handler

from training.launch.control import ControlLine
from training.launch.environment import CONTROL, PRELOAD
from training.launch.template import Job, Template

logger = logging.getLogger(__name__)

# Where a worker finds its line to the launcher (`training.launch.control`).
_CONTROL_DESCRIPTOR: Final = 3
# What the first DDP constructor imports, and with it half of torch; what saving and loading import; and the hooks.
MODULES: Final = (
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "training.launch.elastic",
)


def modules() -> list[str]:
    """What the template imports."""
    more = os.environ.get(PRELOAD, "numpy").split(",")
    return [*MODULES, *(name.strip() for name in more if name.strip())]


class ForkedProcess:
    """A worker of the template, with the part of `subprocess.Popen` that torch's agent uses."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template = template
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._template.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        limit = timedelta(seconds=timeout) if timeout is not None else timedelta(days=365)
        if self.returncode is None:
            self.returncode = self._template.status(self.pid, limit)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode


class ForkedHandler(SubprocessHandler):
    """torch's handle on one worker, with the process coming from the template."""

    # The only ones of this process; torch's constructor starts the worker, so they cannot be arguments.
    template: Template
    has_control: bool
    control: ControlLine

    def __init__(self, *, stdout: str | None, stderr: str | None, **options: Any) -> None:
        self._files = (stdout, stderr)
        super().__init__(stdout=None, stderr=None, **options)

    def _popen(self, args: Sequence[str], env: dict[str, str]) -> Any:
        _, *rest = args  # the interpreter: ours
        # Not truncated: a worker that takes another's place writes behind it.
        self._stdout, self._stderr = (Path(file).open("a") if file else None for file in self._files)  # noqa: SIM115
        stdout = self._stdout.fileno() if self._stdout else sys.stdout.fileno()
        stderr = self._stderr.fileno() if self._stderr else sys.stderr.fileno()
        if not self.has_control:
            return ForkedProcess(self.template, self.template.start(job_of(rest, env), stdout, stderr))
        ours, theirs = socket.socketpair()
        self.control = ControlLine(ours)
        with theirs:
            job = job_of(rest, {**env, CONTROL: str(_CONTROL_DESCRIPTOR)})
            pid = self.template.start(job, stdout, stderr, control=theirs.fileno())
        return ForkedProcess(self.template, pid)

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the worker's process group; one that has ended in the meantime is fine."""
        with contextlib.suppress(ProcessLookupError):
            super().close(death_sig)


def job_of(args: Sequence[str], environment: Mapping[str, str]) -> Job:
    """The job of `python -u [-m] program args...`, as torch puts the command together."""
    rest = list(args)
    is_module = False
    while rest and rest[0] in {"-u", "-m"}:
        is_module = is_module or rest.pop(0) == "-m"
    return Job(
        program=rest[0],
        is_module=is_module,
        args=tuple(rest[1:]),
        environment=environment,
        directory=str(Path.cwd()),
    )


def factory(template: Template, *, has_control: bool) -> Callable[..., SubprocessHandler]:
    """A replacement for torch's `get_subprocess_handler`: forks Python workers, leaves the rest to torch.

    Args:
        template: what they are forked from.
        has_control: whether workers get a line to the launcher. Only our agent has the other end: with torch's own, a
            worker that lets go of its world would wait for the next one for ever.
    """

    def start(entrypoint: str, args: tuple[Any, ...], **options: Any) -> SubprocessHandler:
        bound = options.get("numa_options") is not None
        if entrypoint != sys.executable or bound or not template.alive:
            return get_subprocess_handler(entrypoint=entrypoint, args=args, **options)
        try:
            return ForkedHandler(
                entrypoint=entrypoint,
                args=args,
                env=options["env"],
                stdout=options["stdout"],
                stderr=options["stderr"],
                local_rank_id=options["local_rank_id"],
                numa_options=None,
            )
        except ChildProcessError as error:
            logger.warning("%s; starting workers as fresh interpreters from now on", error)
            return get_subprocess_handler(entrypoint=entrypoint, args=args, **options)

    ForkedHandler.template, ForkedHandler.has_control = template, has_control
    return start
