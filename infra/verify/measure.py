"""The all-reduce over a pool's machines: an ElasticJob made by the same code as training jobs, which is removed again.

The same code, so that what is measured is what training gets: a benchmark with a wiring of its own proves that the
machines can, not that jobs do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from infra.jobs import JOB_LABEL, JobError, name_of, parse_progress
from infra.verify.expected import Expected, Machines
from infra.wiring.script_job import local_job
from infra.wiring.topology import HOSTNAME_LABEL

if TYPE_CHECKING:
    from infra.jobs import Jobs
    from infra.settings import NodePool, Settings
    from infra.settings.aws import AwsNodePool

SIZES = (8, 2**20, 16 * 2**20, 64 * 2**20)
"""Bytes of the all-reduces; `trainyard verify` adds those for which the catalogue has a floor."""
STAND_IN = (
    "stand-in: pods are processes of this computer, GPUs are numbers, and messages go by gloo; that the parts find each"
    " other was checked, nothing about a fabric"
)
_HOST = "TRAINYARD_FABRIC_HOST"  # training.diagnose.fabric
_SLOW_LEAST_LOCAL = 0.5  # seconds: processes of one computer wait for each other's processors
_LEFT_FOR = 600  # seconds until a job goes whose command was killed before it could remove it
_GONE = timedelta(seconds=180)


@dataclass(frozen=True)
class Group:
    """Machines that a job of one kind of worker can span."""

    name: str
    machines: tuple[Machines, ...]
    pools: tuple[NodePool | AwsNodePool, ...]
    local: bool

    @property
    def gpus(self) -> int:
        """Of one machine."""
        return self.machines[0].gpus

    @property
    def most(self) -> int:
        """Machines that it may have."""
        return sum(machines.most for machines in self.machines)

    @property
    def least(self) -> int:
        """Machines that it must have."""
        return sum(machines.least for machines in self.machines)

    def ranks(self, nodes: int) -> int:
        """Processes on so many machines."""
        return nodes * max(1, self.gpus)

    @property
    def efa(self) -> bool:
        """Whether the machines have EFA."""
        return any(machines.efa for machines in self.machines)


@dataclass(frozen=True)
class Measurement:
    """What a job has told."""

    job: str
    nodes: int
    """Workers that it had, one a machine."""
    report: Mapping[str, Any] | None
    """As `python -m training diagnose fabric --json` writes it; None: it did not come to that."""
    dead: tuple[tuple[int, str], ...]
    """Ranks that did not answer, with their nodes."""
    trouble: str
    """Why there is no report; empty where there is one."""
    waiting: tuple[str, ...] = ()
    """Workers that did not run, a sentence each."""


def groups(settings: Settings, wanted: Expected) -> list[Group]:
    """Over which machines jobs run: on AWS each GPU pool, locally all pools with the same number of GPUs."""
    machines = {each.pool: each for each in wanted.machines}
    if settings.aws is not None:
        return [Group(pool.name, (machines[pool.name],), (pool,), local=False) for pool in settings.aws.node_pools]
    if settings.target != "local":
        return []
    there = [pool for pool in settings.node_pools if pool.nodes]
    chosen = [pool for pool in there if pool.gpus_per_node] or there
    by_gpus: dict[int, list[NodePool]] = {}
    for pool in chosen:
        by_gpus.setdefault(pool.gpus_per_node, []).append(pool)
    return [
        Group("+".join(pool.name for pool in pools), tuple(machines[pool.name] for pool in pools), tuple(pools), True)
        for pools in by_gpus.values()
    ]


def check_job(
    group: Group,
    *,
    nodes: int,
    image: str,
    namespace: str,
    rdzv_endpoint: str,
    queue: str | None = None,
    sizes: Sequence[int] = SIZES,
    patience: timedelta = timedelta(seconds=60),
    timeout: timedelta = timedelta(minutes=15),
) -> dict[str, Any]:
    """The manifest of the job.

    Args:
        group: where it runs.
        nodes: how many machines, one worker each.
        image: Training image.
        namespace: The jobs' namespace.
        rdzv_endpoint: `host:port` of etcd.
        queue: The LocalQueue of Kueue by which it is admitted.
        sizes: Bytes of the all-reduces.
        patience: After which a silent rank is dead.
        timeout: After which it ends by itself.

    Raises:
        WiringError: there are fewer machines than that.
    """
    from infra.wiring.job_resources import standard_job  # noqa: PLC0415

    arguments = [
        "-m",
        "training.diagnose.fabric",
        "--json",
        f"--patience={patience.total_seconds():g}",
        f"--sizes={','.join(map(str, sizes))}",
    ]
    common: dict[str, Any] = {
        "name": f"check-{secrets.token_hex(3)}",
        "image": image,
        "namespace": namespace,
        "rdzv_endpoint": rdzv_endpoint,
        "workers_min": nodes,
        "workers_max": nodes,
    }
    if group.local:
        arguments.append(f"--slow-least={_SLOW_LEAST_LOCAL}")
        made = local_job(group.pools, arguments=arguments, **common)  # type: ignore[arg-type]
    else:
        made = standard_job(group.pools[0], arguments=arguments, queue=queue, **common)  # type: ignore[arg-type]
    spec = made["spec"]
    spec |= {
        "ttlSecondsAfterFinished": _LEFT_FOR,
        "activeDeadlineSeconds": int(timeout.total_seconds()),
        "backoffLimit": 0,
    }
    pod = spec["replicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["env"].append({"name": _HOST, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    if not group.gpus:  # nothing else keeps two workers from one machine
        term = {"topologyKey": HOSTNAME_LABEL, "labelSelector": {"matchLabels": {JOB_LABEL: common["name"]}}}
        apart = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        pod.setdefault("affinity", {})["podAntiAffinity"] = apart
    return made


def measure(
    jobs: Jobs, job: dict[str, Any], timeout: timedelta, tell: Callable[[str, str], None] = lambda *_: None
) -> Measurement:
    """Run the job to its end, and remove it whatever happens: also on Ctrl-C.

    Args:
        jobs: of the stack.
        job: its manifest.
        timeout: give up after so long.
        tell: given the job's name and each new state of it.

    Raises:
        JobError: the API server refuses the job, or it could not be removed.
    """
    name, nodes = str(job["metadata"]["name"]), int(job["spec"]["maxReplicas"])
    try:
        jobs.create(job)
        trouble, waiting = "", tuple[str, ...]()
        try:
            end = jobs.wait(name, timeout, lambda sentence: tell(name, sentence))
            if end.type == "Failed":
                trouble = end.message
        except JobError as error:
            trouble, waiting = str(error), tuple(_not_running(jobs, name))
        events = [
            event
            for lines in jobs.logs(name)
            for line in lines
            if (event := parse_progress(line.pod, line.text)) is not None
        ]
    finally:
        _remove(jobs, name)
    report = next((event.fields for event in events if event.event == "fabric"), None)
    dead = {
        (int(one["rank"]), str(one["host"]))
        for event in events
        if event.event == "fabric-dead"
        for one in event.fields["dead"]
    }
    said = next((str(event.fields["message"]) for event in events if event.event == "fabric-dead"), "")
    if report is None:
        trouble = said or trouble or "the job ended without a report"
    return Measurement(name, nodes, report, tuple(sorted(dead)), "" if report else trouble, waiting)


def _not_running(jobs: Jobs, name: str) -> list[str]:
    """The workers that do not run, each with its node as far as it has one."""
    found = []
    for pod in jobs.workers(name):
        ready = (
            any(c.type == "Ready" and c.status == "True" for c in (pod.status.conditions or [])) if pod.status else 0
        )
        if not ready:
            where = f" on node {pod.spec.nodeName}" if pod.spec and pod.spec.nodeName else " has no node"
            found.append(f"{name_of(pod)}{where}: {pod.status.phase if pod.status else 'unknown'}")
    return sorted(found)


def _remove(jobs: Jobs, name: str) -> None:
    """Delete the job; who is interrupted while it is deleted tries once more, since a pool is held by it."""
    try:
        jobs.delete(name)
    except (KeyboardInterrupt, SystemExit):
        jobs.delete(name)
        raise
    jobs.wait_gone(name, _GONE)
