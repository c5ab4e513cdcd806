"""What `top` shows, gathered: the jobs, their workers, their histories, GPUs, events. No drawing here.

Job states and events are asked for at each look, progress lines are followed in the background. While the API server is
away the last state stays, with the time since when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra.history import JobHistory, Reader, events_of
from infra.jobs import ApiServerAwayError, JobError, Jobs, LogLine, Logs, ended, last_seen, name_of, parse_progress

GPU = "nvidia.com/gpu"
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Worker:
    """One worker pod."""

    name: str
    state: str
    node: str
    gpus: int
    ready: bool


@dataclass(frozen=True)
class JobState:
    """One job."""

    name: str
    state: str
    message: str
    ready: int
    desired: int
    generation: int
    is_live: bool
    workers: tuple[Worker, ...]
    history: JobHistory

    @property
    def gpus(self) -> int:
        """GPUs that its workers hold."""
        return sum(worker.gpus for worker in self.workers)


@dataclass(frozen=True)
class Happening:
    """One event of Kubernetes about a job."""

    time: float
    job: str
    object: str
    reason: str
    message: str
    is_warning: bool


@dataclass(frozen=True)
class Node:
    """A machine with GPUs."""

    name: str
    gpus: int
    used: int
    ready: bool


@dataclass(frozen=True)
class Screen:
    """All that is shown at one moment."""

    namespace: str
    time: float
    """Unix seconds, of this computer."""
    jobs: tuple[JobState, ...] = ()
    nodes: tuple[Node, ...] | None = None
    """None: the user may not list nodes."""
    events: tuple[Happening, ...] = ()
    away_since: float | None = None
    """Since when the API server does not answer."""
    away: str = ""
    """What was said of it."""

    @property
    def live(self) -> tuple[JobState, ...]:
        """Jobs that have not ended."""
        return tuple(job for job in self.jobs if job.is_live)


@dataclass
class _Followed:
    reader: Reader
    logs: Logs | None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Watcher:
    """Looks at the jobs of a stack again and again.

    Args:
        jobs: where they are.
        only: one job; None: all.
        clock: Unix seconds.
    """

    def __init__(self, jobs: Jobs, only: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self._jobs, self._only, self._clock = jobs, only, clock
        self._followed: dict[str, _Followed] = {}
        self._last = Screen(jobs.namespace, clock())

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        for followed in self._followed.values():
            if followed.logs is not None:
                followed.logs.stop()

    def look(self) -> Screen:
        """The state now; the last one with `away_since` where the API server does not answer.

        Raises:
            JobError: it refuses, or there is no such job.
        """
        now = self._clock()
        try:
            jobs = tuple(self._job(job) for job in self._all())
            self._last = Screen(self._jobs.namespace, now, jobs, self._nodes(), self._events(jobs))
        except ApiServerAwayError as error:
            since = self._last.away_since or now
            self._last = Screen(
                self._jobs.namespace,
                now,
                tuple(self._with_new_history(job) for job in self._last.jobs),
                self._last.nodes,
                self._last.events,
                since,
                str(error),
            )
        return self._last

    def once(self) -> Screen:
        """The state now, with the whole of what the workers have told; nothing is followed.

        Raises:
            JobError: the API server does not answer or refuses, or there is no such job.
        """
        now = self._clock()
        every = list(self._all())
        for job in every:
            name = name_of(job)
            reader = Reader(name)
            for event in events_of(self._jobs, name) if self._is_shown(job) else ():
                reader.add(event)
            self._followed[name] = _Followed(reader, None)
        jobs = tuple(self._job(job) for job in every)
        return Screen(self._jobs.namespace, now, jobs, self._nodes(), self._events(jobs))

    def _all(self) -> list[Any]:
        return [self._jobs.existing(self._only)] if self._only else self._jobs.all()

    def _is_shown(self, job: Any) -> bool:
        """Whether its lines are read: those of an ended job only where it was asked for."""
        return self._only is not None or ended(job) is None

    def _job(self, job: Any) -> JobState:
        name = name_of(job)
        status: Mapping[str, Any] = job.status or {}
        conditions = self._jobs.conditions_of(job)
        is_live = ended(job) is None
        pods = self._jobs.workers(name) if self._is_shown(job) else []
        return JobState(
            name=name,
            state=str(status.get("phase") or (conditions[-1].type if conditions else "Submitted")),
            message=conditions[-1].message if conditions else "",
            ready=int(status.get("readyReplicas") or 0),
            desired=int(status.get("desiredReplicas") or 0),
            generation=int(status.get("generation") or 0),
            is_live=is_live,
            workers=tuple(_worker(pod) for pod in sorted(pods, key=name_of)),
            history=self._history(name, follow=self._is_shown(job)),
        )

    def _history(self, name: str, *, follow: bool) -> JobHistory:
        if name not in self._followed:
            if not follow:
                return JobHistory(job=name)
            followed = _Followed(Reader(name), None)

            def take(line: LogLine) -> None:
                if event := parse_progress(line.pod, line.text):
                    with followed.lock:
                        followed.reader.add(event)

            followed.logs = Logs(self._jobs, name, take)
            self._followed[name] = followed
        followed = self._followed[name]
        with followed.lock:
            return followed.reader.history()

    def _with_new_history(self, job: JobState) -> JobState:
        return replace(job, history=self._history(job.name, follow=False))

    def _events(self, jobs: tuple[JobState, ...]) -> tuple[Happening, ...]:
        found = []
        for job in jobs:
            if not (job.is_live or self._only):
                continue
            found += [
                Happening(
                    last_seen(event).timestamp(),
                    job.name,
                    str(event.involvedObject.name or ""),
                    str(event.reason or ""),
                    " ".join((event.message or "").split()),
                    event.type == "Warning",
                )
                for event in self._jobs.events(job.name)
            ]
        return tuple(sorted(found, key=lambda event: event.time))

    def _nodes(self) -> tuple[Node, ...] | None:
        return gpu_nodes(self._jobs)


def gpu_nodes(jobs: Jobs) -> tuple[Node, ...] | None:
    """Machines with GPUs and how many of these the jobs' namespace holds; None where the user may not look.

    Raises:
        ApiServerAwayError: the API server does not answer.
    """
    try:
        nodes = jobs.nodes()
    except ApiServerAwayError:
        raise
    except JobError:  # not allowed to this user, who sees the jobs all the same
        return None
    pods = jobs.pods(jobs.namespace, {}, "the pods of the jobs' namespace")
    used: dict[str, int] = {}
    for pod in pods:
        if pod.spec and pod.spec.nodeName and (pod.status is None or pod.status.phase not in _OVER):
            used[pod.spec.nodeName] = used.get(pod.spec.nodeName, 0) + _gpus(pod)
    found = []
    for node in nodes:
        name = str(node.metadata.name) if node.metadata else ""
        count = int((node.status.allocatable or {}).get(GPU, 0)) if node.status else 0
        conditions = (node.status.conditions or []) if node.status else []
        ready = any(each.type == "Ready" and each.status == "True" for each in conditions)
        if count:
            found.append(Node(name, count, used.get(name, 0), ready))
    return tuple(sorted(found, key=lambda node: node.name))


def _worker(pod: Any) -> Worker:
    status = pod.status
    containers = (status.containerStatuses or []) if status else []
    ending = pod.metadata is not None and pod.metadata.deletionTimestamp is not None
    state = "Terminating" if ending else str((status.phase if status else None) or "Pending")
    return Worker(
        name=name_of(pod),
        state=state,
        node=str((pod.spec.nodeName if pod.spec else None) or ""),
        gpus=0 if state in _OVER else _gpus(pod),
        ready=bool(containers) and all(container.ready for container in containers),
    )


def _gpus(pod: Any) -> int:
    containers = pod.spec.containers if pod.spec else []
    return sum(
        int((each.resources.limits or {}).get(GPU, 0))
        for each in containers
        if each.resources and each.resources.limits
    )
