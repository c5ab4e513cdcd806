"""What `diagnose` looks at: one look at a stack, taken at once, as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from infra.history import JobHistory, history, told_in
from infra.jobs import LogLine
from infra.waiting import Commands, Waiting, explain
from infra.wiring.naming import SYSTEM_NAMESPACE
from training.controller.rbac import LEASE_NAME

if TYPE_CHECKING:
    from infra.jobs import Jobs

Object = Mapping[str, Any]

LAST_LINES = 5000
"""Lines that are read of each worker's log, from its end."""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job, its workers, and what was said of them."""

    manifest: Object
    pods: Sequence[Object]
    events: Sequence[Object]
    logs: Sequence[Sequence[LogLine]]
    """The end of each worker's log."""
    commands: Commands

    @property
    def name(self) -> str:
        """Of the job."""
        return str(self.manifest["metadata"]["name"])

    @cached_property
    def waiting(self) -> list[Waiting]:
        """Why its workers do not run."""
        return explain(self.manifest, self.pods, self.events, self.commands)

    @cached_property
    def history(self) -> JobHistory:
        """What its workers told."""
        return history(self.name, told_in(self.logs))


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A stack at one moment."""

    stack: str
    namespace: str
    now: float
    """Unix seconds, by the clock of who looks."""
    nodes: Sequence[Object]
    system_pods: Sequence[Object]
    """Those of etcd and the controller, among others."""
    lease: Object | None
    """By which a controller leads; None: there is none."""
    jobs: Sequence[JobView]


def gather(
    jobs: Jobs,
    stack: str,
    commands: Callable[[str], Commands],
    job: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Snapshot:
    """Look once.

    Args:
        jobs: where the jobs are.
        stack: its name.
        commands: how commands on a job are spelled.
        job: only this one; None: all of the stack.
        say: told what is being read.

    Raises:
        JobError: there is no such job, or the API server does not answer.
    """
    manifests = [jobs.existing(job)] if job is not None else jobs.all()
    say("nodes and the stack's own pods")
    nodes = [node.to_dict() for node in jobs.nodes()]
    system_pods = [pod.to_dict() for pod in jobs.pods(SYSTEM_NAMESPACE, {}, "the stack's own pods")]
    lease = jobs.lease(SYSTEM_NAMESPACE, LEASE_NAME)
    views = []
    for manifest in manifests:
        name = str(manifest["metadata"]["name"])
        say(f"job {name}")
        views.append(
            JobView(
                manifest=dict(manifest),
                pods=[pod.to_dict() for pod in jobs.workers(name)],
                events=[event.to_dict() for event in jobs.events(name)],
                logs=jobs.logs(name, last=LAST_LINES),
                commands=commands(name),
            )
        )
    return Snapshot(
        stack=stack,
        namespace=jobs.namespace,
        now=time.time(),
        nodes=nodes,
        system_pods=system_pods,
        lease=lease.to_dict() if lease is not None else None,
        jobs=views,
    )
