"""What the processes of this node use of processors and memory: a progress line `resources` of each launcher.

| field             | is                                                                                          |
| ----------------- | ------------------------------------------------------------------------------------------- |
| cpu_seconds       | processor time of the launcher and everything below it, so far                              |
| memory_bytes      | that the kernel cannot take back: private memory, and files in memory such as in /dev/shm   |
| memory_peak_bytes | the most of all samples so far                                                              |
| memory_source     | `cgroup`: as the pod's limit counts; `processes`: summed, with what forked ones share counted |
|                   | for each, so rather too much                                                                |
| shm_bytes         | of /dev/shm in use; shm_peak_bytes: the most so far; shm_size_bytes: all there is           |
| workers           | ranks of this node                                                                          |
| throttled_seconds | how long the limit of processors has held processes back; only with a cgroup                |
| oom_kills         | processes that the kernel ended at the limit of memory; only with a cgroup                  |

A file that is only cached is not counted: the kernel gives such memory back when it is wanted, and a job that reads
much data fills whatever there is. `trainyard recommend` makes requests and limits out of these figures.

A sample is taken every five seconds, a line written every thirty and at the end: what comes and goes in between is not
seen, so figures of memory are a lower bound of the true peak.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from training.metrics import progress

EVENT: Final = "resources"
SAMPLE: Final = timedelta(seconds=5)
TELL: Final = timedelta(seconds=30)

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # of a second, in /proc
_CGROUP: Final = Path("/sys/fs/cgroup")  # version 2, the container's own
_SHM: Final = Path("/dev/shm")  # noqa: S108  (nothing is written)


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    ticks: int
    """Of itself and of all its children that have ended."""


class Sampler:
    """Looks at the processes below one, and tells what they use.

    Args:
        root: the launcher; None: this process.
        emit: writes the progress line.
        clock: monotonic seconds.
        proc: where the kernel tells of processes.
        cgroup: where it tells of the container's group.
        shm: files in memory that processes share.
    """

    def __init__(
        self,
        root: int | None = None,
        *,
        emit: Callable[..., None] = progress.emit,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
        cgroup: Path = _CGROUP,
        shm: Path = _SHM,
    ) -> None:
        self._root = os.getpid() if root is None else root
        self._emit, self._clock = emit, clock
        self._proc, self._shm = proc, shm
        self._cgroup = cgroup if self._is_ours(cgroup) else None
        self._sampled = self._told = float("-inf")
        self._cpu = 0.0
        self._memory = self._memory_peak = self._shm_peak = 0

    def look(self, workers: int) -> None:
        """Take a sample and write a line, each if it is due; may be called as often as one likes.

        Args:
            workers: ranks of this node.
        """
        now = self._clock()
        if now - self._sampled < SAMPLE.total_seconds():
            return
        if self._sampled == float("-inf"):
            self._told = now  # the first line when there is something to tell
        self._sampled = now
        self._sample()
        if now - self._told >= TELL.total_seconds():
            self._told = now
            self._tell(workers)

    def end(self, workers: int) -> None:
        """The last line; none where there never was a sample.

        Args:
            workers: ranks that this node had.
        """
        if self._sampled == float("-inf"):
            return
        self._sample()
        self._tell(workers)

    def _sample(self) -> None:
        processes = list(self._tree())
        self._cpu = max(self._cpu, sum(process.ticks for process in processes) / _TICKS)
        used, _ = self._shared()
        self._memory = self._of_cgroup() if self._cgroup else self._of_processes(processes) + used
        self._memory_peak = max(self._memory_peak, self._memory)
        self._shm_peak = max(self._shm_peak, used)

    def _tell(self, workers: int) -> None:
        used, size = self._shared()
        self._emit(
            EVENT,
            cpu_seconds=round(self._cpu, 2),
            memory_bytes=self._memory,
            memory_peak_bytes=self._memory_peak,
            memory_source="cgroup" if self._cgroup else "processes",
            shm_bytes=used,
            shm_peak_bytes=self._shm_peak,
            shm_size_bytes=size,
            workers=workers,
            **self._held_back(),
        )

    def _tree(self) -> Iterator[_Process]:
        """The root and everything below it."""
        every = {process.pid: process for process in self._processes()}
        below: dict[int, list[_Process]] = {}
        for process in every.values():
            below.setdefault(process.parent, []).append(process)
        left = [every[self._root]] if self._root in every else []
        while left:
            process = left.pop()
            yield process
            left += below.get(process.pid, [])

    def _processes(self) -> Iterator[_Process]:
        for folder in self._proc.iterdir():
            if not folder.name.isdecimal():
                continue
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # The name may hold blanks and brackets; what follows the last bracket is numbers.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                # Fields 4 and 14 to 17 of proc_pid_stat(5).
                yield _Process(int(folder.name), int(fields[1]), sum(map(int, fields[11:15])))

    def _of_processes(self, processes: list[_Process]) -> int:
        """Private memory in bytes."""
        total = 0
        for process in processes:
            with contextlib.suppress(OSError):
                for line in (self._proc / str(process.pid) / "status").read_text(errors="replace").splitlines():
                    if line.startswith("RssAnon:"):
                        total += int(line.split()[1]) * 1024
        return total

    def _shared(self) -> tuple[int, int]:
        """Bytes in use and in all of /dev/shm; nothing where there is none."""
        try:
            found = os.statvfs(self._shm)
        except OSError:
            return 0, 0
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize

    def _is_ours(self, cgroup: Path) -> bool:
        """Whether the group that is seen holds this node's processes and no others."""
        try:
            members = {int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()}
            there = (cgroup / "memory.current").exists()  # not in the root group
        except (OSError, ValueError):
            return False
        ours = {process.pid for process in self._tree()} | {1}
        return there and self._root in members and members <= ours

    def _of_cgroup(self) -> int:
        assert self._cgroup  # noqa: S101
        figures = _figures(self._cgroup / "memory.stat")
        return figures.get("anon", 0) + figures.get("shmem", 0)

    def _held_back(self) -> dict[str, float]:
        """What limits have done to the processes."""
        if self._cgroup is None:
            return {}
        cpu, memory = _figures(self._cgroup / "cpu.stat"), _figures(self._cgroup / "memory.events")
        told: dict[str, float] = {}
        if "throttled_usec" in cpu:
            told["throttled_seconds"] = round(cpu["throttled_usec"] / 1e6, 2)
        if "oom_kill" in memory:
            told["oom_kills"] = memory["oom_kill"]
        return told


def _figures(path: Path) -> dict[str, int]:
    """A file of the kernel with a name and a number on each line; empty where it cannot be read."""
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except (OSError, ValueError):
        return {}
