"""From a snapshot to what is wrong: pure, causes before what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from infra.diagnose.finding import Finding
from infra.diagnose.kinds import KINDS, in_order
from infra.diagnose.snapshot import JobView, Object, Snapshot
from infra.jobs import LogLine
from infra.waiting import Waiting
from infra.wiring.naming import SYSTEM_NAMESPACE
from infra.wiring.scheduling import EFA_RESOURCE
from training.controller.rbac import DEPLOYMENT_NAME
from training.controller.records import KNOWN_NOTICES
from training.diagnose import causes
from training.diagnose.logs import Line
from training.diagnose.nccl import transport

ETCD: Final = "etcd"
LEASE_SILENCE: Final = 30.0
"""Seconds: a leader renews every two, and another takes over after 15."""
LEAST_SILENCE: Final = 60.0
"""Seconds without a step that are no hang yet, however quick the steps were."""
MANY_STEPS: Final = 20
"""So many times the usual time of a step is a hang."""
MISSING_FOR: Final = 60.0
"""Seconds for which a worker may be on its way."""
RECENT: Final = 600.0
"""Seconds for which a disturbance is worth a note."""
SLOW_SHARE: Final = 0.5
"""Of a step's time."""
_EVIDENCE: Final = 5
_NO_LABELS: Final = ("didn't match Pod's node affinity/selector", "no node has the labels of the worker's nodeSelector")
"""By which the scheduler, and the controller before it (training/controller/capacity.py), say so."""
_PRESSURE: Final = ("MemoryPressure", "DiskPressure", "PIDPressure")


def findings(snapshot: Snapshot) -> list[Finding]:
    """What is wrong; empty: nothing is known to be."""
    found = [*_control(snapshot), *_nodes(snapshot)]
    for job in snapshot.jobs:
        found += _of_job(job, snapshot)
    return in_order(found)


def _make(code: str, about: str, evidence: Iterable[str], command: str | None) -> Finding:
    return KINDS[code].finding(code, about, tuple(evidence)[:_EVIDENCE], command)


# --- the stack ------------------------------------------------------------------------------------------------------


def _control(snapshot: Snapshot) -> Iterator[Finding]:
    pods = f"kubectl -n {SYSTEM_NAMESPACE} get pods"
    controllers = [pod for pod in snapshot.system_pods if _name(pod).startswith(f"{DEPLOYMENT_NAME}-")]
    about = f"deployment/{DEPLOYMENT_NAME}"
    if not any(_is_ready(pod) for pod in controllers):
        yield _make("controller-down", about, _states(controllers, "there is no pod of it"), pods)
    elif (silence := _lease_silence(snapshot)) is None:
        yield _make("controller-down", about, ("nobody holds its Lease",), pods)
    elif silence > LEASE_SILENCE:
        logs = f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{DEPLOYMENT_NAME}"
        yield _make("controller-down", about, (f"its Lease was renewed last {silence:.0f} s ago",), logs)
    stores = [pod for pod in snapshot.system_pods if _name(pod).startswith(f"{ETCD}-")]
    if not any(_is_ready(pod) for pod in stores):
        yield _make("etcd-down", f"statefulset/{ETCD}", _states(stores, "there is no pod of it"), pods)


def _lease_silence(snapshot: Snapshot) -> float | None:
    spec = (snapshot.lease or {}).get("spec") or {}
    renewed = spec.get("renewTime")
    if not spec.get("holderIdentity") or renewed is None:
        return None
    return snapshot.now - _seconds(renewed)


def _nodes(snapshot: Snapshot) -> Iterator[Finding]:
    for node in snapshot.nodes:
        name, conditions = _name(node), _conditions(node)
        about, look = f"node/{name}", f"kubectl describe node {name}"
        ready = conditions.get("Ready", {})
        if ready.get("status") != "True":
            yield _make("node-not-ready", about, (_told("Ready", ready),), look)
        pressed = [kind for kind in _PRESSURE if conditions.get(kind, {}).get("status") == "True"]
        if pressed:
            yield _make("node-pressure", about, (_told(kind, conditions[kind]) for kind in pressed), look)
        if notice := KNOWN_NOTICES.of(node):
            workers = [_name(pod) for job in snapshot.jobs for pod in job.pods if _node(pod) == name]
            evidence = (f"{notice} stands on it", *([f"workers on it: {', '.join(workers)}"] if workers else []))
            yield _make("notice", about, evidence, look)


# --- a job ----------------------------------------------------------------------------------------------------------


def _of_job(job: JobView, snapshot: Snapshot) -> Iterator[Finding]:
    conditions = _conditions(job.manifest)
    if conditions.get("Succeeded", {}).get("status") == "True":
        return
    about = f"job/{job.name}"
    if (failed := conditions.get("Failed", {})).get("status") == "True":
        yield from _failure(job, about, str(failed.get("message", "")))
        return
    for waiting in job.waiting:
        yield _make(_code(waiting), about, _waiting_evidence(waiting), waiting.next)
        if waiting.cause == "crash":
            yield from _of_logs(job, about)
    yield from _killed(job, about)
    yield from _efa(job, snapshot, about)
    if not job.waiting:
        yield from _progress(job, snapshot, about)


def _code(waiting: Waiting) -> str:
    if waiting.cause == "capacity" and "Insufficient" not in waiting.message:
        if "untolerated taint" in waiting.message:
            return "untolerated-taint"
        if any(words in waiting.message for words in _NO_LABELS):
            return "no-such-machine"
    return waiting.cause


def _waiting_evidence(waiting: Waiting) -> tuple[str, ...]:
    return (waiting.message, *([f"waiting: {', '.join(waiting.workers)}"] if waiting.workers else []))


def _failure(job: JobView, about: str, message: str) -> Iterator[Finding]:
    logs = job.commands.trainyard("logs")
    killed = list(_killed(job, about))
    told = list(_of_logs(job, about, message))
    yield from [*killed, *told]
    if not killed and not told:
        last = [f"{line.pod}: {line.text}" for log in job.logs for line in log[-3:]]
        yield _make("failed", about, (message, *last), logs)


def _of_logs(job: JobView, about: str, message: str = "") -> Iterator[Finding]:
    """The cause by the logs, and with it the controller's own words."""
    diagnosis = causes.diagnose([line for log in job.logs for line in _lines(log)])
    verdict = diagnosis.verdict
    if verdict.cause is causes.UNKNOWN:
        return
    evidence = [f"{one.line.file}: {one.told}" for one in verdict.evidence]
    yield _make(verdict.cause.name, about, [*evidence, *([message] if message else [])], job.commands.trainyard("logs"))


def _lines(log: Iterable[LogLine]) -> Iterator[Line]:
    for number, line in enumerate(log, 1):
        yield Line(line.pod, number, line.text, _seconds(line.moment + "Z") if line.moment else None)


def _killed(job: JobView, about: str) -> Iterator[Finding]:
    """Workers that the kernel ended for their memory, by what the kubelet says."""
    found = []
    for pod in job.pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                ended = state.get("terminated") or {}
                if ended.get("reason") == "OOMKilled":
                    found.append(f"{_name(pod)}: container {container['name']} ended by OOMKilled")
    if found:
        yield _make("host-memory", about, dict.fromkeys(found), job.commands.trainyard("describe"))


def _efa(job: JobView, snapshot: Snapshot, about: str) -> Iterator[Finding]:
    machines = {_name(node) for node in snapshot.nodes if _amount(node, EFA_RESOURCE) > 0}
    on_them = [pod for pod in job.pods if _node(pod) in machines]
    if len(on_them) < 2:  # one machine needs no network
        return
    without = [_name(pod) for pod in on_them if not _asks_for(pod, EFA_RESOURCE)]
    template = "trainyard template"
    if without:
        yield _make(
            "efa-not-requested", about, (f"{name} has no {EFA_RESOURCE} in its limits" for name in without), template
        )
        return
    chosen = transport([line.text for log in job.logs for line in log])
    if chosen.kind == "sockets":
        yield _make("efa-not-used", about, chosen.text().splitlines(), job.commands.trainyard("logs"))


def _progress(job: JobView, snapshot: Snapshot, about: str) -> Iterator[Finding]:
    history, logs = job.history, job.commands.trainyard("logs", "--tail", "50")
    away = _missing(job, snapshot)
    if away:
        yield _make("workers-missing", about, away, job.commands.trainyard("describe"))
    if history.finished is not None or (latest := history.latest) is None:
        return
    silence = snapshot.now - (history.last_told or latest.time)
    usual = _usual_step(job)
    if usual is not None and silence > max(LEAST_SILENCE, MANY_STEPS * usual):
        ready = [_name(pod) for pod in job.pods if _is_ready(pod)]
        evidence = (
            f"the last line of any worker is {silence:.0f} s old; a step takes {usual:.2f} s",
            f"step {latest.step}, world of {latest.world_size}; ready: {', '.join(ready) or 'none'}",
        )
        yield _make("hang", about, evidence, logs)
        yield from _of_logs(job, about)
        return
    parts = _shares(job)
    waits, saves = parts.get("data", 0.0), parts.get("checkpoint", 0.0)
    slow = [save for save in history.checkpoints[-3:] if save.seconds >= causes.SLOW_SAVE]
    if saves > SLOW_SHARE:
        yield _make("slow-saves", about, (f"checkpoints take {saves:.0%} of the time",), logs)
    elif slow:
        told = (f"the checkpoint of step {save.step} took {save.seconds:.0f} s" for save in slow)
        yield _make("slow-storage", about, told, logs)
    if waits > SLOW_SHARE:
        yield _make("data-bound", about, (f"waiting for data takes {waits:.0%} of the time",), logs)
    recent = [one for one in history.disturbances if snapshot.now - one.began - one.total < RECENT]
    if recent:
        told = (
            f"{one.cause}: {one.detail or one.node or 'a worker'}; trained again after {one.total:.1f} s"
            for one in recent
        )
        yield _make("disturbed", about, told, job.commands.trainyard("describe"))


def _missing(job: JobView, snapshot: Snapshot) -> list[str]:
    """Workers that are not there although nothing is known to be in their way."""
    status = job.manifest.get("status") or {}
    wanted, ready = status.get("desiredReplicas") or 0, status.get("readyReplicas") or 0
    if ready >= wanted:
        return []
    waiting = [pod for pod in job.pods if not _is_ready(pod)]
    started = [_seconds(pod["metadata"]["creationTimestamp"]) for pod in waiting]
    changed = [_seconds(c["lastTransitionTime"]) for c in status.get("conditions") or () if c.get("lastTransitionTime")]
    if snapshot.now - max([*started, *changed], default=snapshot.now) < MISSING_FOR:
        return []
    return [f"{ready} of {wanted} workers are ready", *_states(waiting, "the others have no pod")]


def _usual_step(job: JobView) -> float | None:
    steps = job.history.steps[-50:]
    times = [
        (later.time - earlier.time) / (later.step - earlier.step)
        for earlier, later in pairwise(steps)
        if later.step > earlier.step and later.generation == earlier.generation
    ]
    return statistics.median(times) if times else None


def _shares(job: JobView) -> dict[str, float]:
    """Of the latest steps: which part of their time went where."""
    sums: dict[str, float] = {}
    for step in job.history.steps[-20:]:
        for part, seconds in step.seconds.items():
            sums[part] = sums.get(part, 0.0) + seconds
    whole = sum(sums.values())
    return {part: seconds / whole for part, seconds in sums.items()} if whole > 1.0 else {}


# --- objects of Kubernetes ------------------------------------------------------------------------------------------


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _node(pod: Object) -> str | None:
    return (pod.get("spec") or {}).get("nodeName")


def _conditions(found: Object) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in (found.get("status") or {}).get("conditions") or ()}


def _is_ready(pod: Object) -> bool:
    going = pod["metadata"].get("deletionTimestamp")
    return not going and _conditions(pod).get("Ready", {}).get("status") == "True"


def _states(pods: Iterable[Object], none: str) -> tuple[str, ...]:
    return tuple(_state(pod) for pod in pods) or (none,)


def _state(pod: Object) -> str:
    status = pod.get("status") or {}
    going = ", being deleted" if pod["metadata"].get("deletionTimestamp") else ""
    why = [
        f"{reason}" + (f": {' '.join(str(about.get('message')).split())}" if about.get("message") else "")
        for container in status.get("containerStatuses") or ()
        for about in (container.get("state") or {}).values()
        if about and (reason := about.get("reason"))
    ]
    return f"{_name(pod)}: {status.get('phase', 'Pending')}, not ready{going}" + (f" ({'; '.join(why)})" if why else "")


def _told(kind: str, condition: Mapping[str, Any]) -> str:
    said = " ".join(str(condition.get("message", "")).split())
    return f"{kind}={condition.get('status', 'unknown')}" + (f": {said}" if said else "")


def _amount(node: Object, resource: str) -> int:
    return int(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))


def _asks_for(pod: Object, resource: str) -> bool:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return any(resource in ((one.get("resources") or {}).get("limits") or {}) for one in containers)


def _seconds(moment: str | datetime) -> float:
    """Unix seconds of a time as the API server writes it."""
    if isinstance(moment, datetime):
        return moment.timestamp()
    head, _, fraction = moment.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{head}+00:00").timestamp() + float(f"0.{fraction or 0}")
