"""From a job's history to requests and limits: each figure with its evidence, and nothing without enough of it.

What is too small ends a worker (memory), makes it wait (processors, loaders) or breaks its loaders (/dev/shm); what is
large keeps other pods off the machine. A figure between the two is left alone: a change of a job costs a restart.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, Literal

from lightkube.utils.quantity import parse_quantity

from infra.history.model import JobHistory, Resources, Step
from infra.jobs import WORKER_CONTAINER

MIB: Final = 1024 * 1024

# --- how much evidence is enough --------------------------------------------------------------------------------------

LEAST_STEPS: Final = 50
"""The allocators of torch and of the loaders have reached their sizes after tens of steps."""
LEAST_TIME: Final = timedelta(minutes=2)
"""Four lines of resources: below that one busy moment is most of what was seen."""
WARM_UP: Final = 10
"""Lines of steps at the beginning of a world that say nothing of loaders: these have just started."""

# --- what is right --------------------------------------------------------------------------------------------------

MEMORY_HEADROOM: Final = 1.2
"""Limit over the peak. Samples are five seconds apart and miss short peaks, as when a checkpoint is gathered."""
MEMORY_RIGHT: Final = (1.1, 1.6)
"""Limits over the peak that are left alone."""
AFTER_OOM: Final = 1.5
"""At the limit a peak is cut off: how much more was wanted is not known, so the limit grows by half."""
STILL_GROWS: Final = 1.05
"""Peak over that of the first three quarters of the time: more, and it has not come to rest."""
CPU_HEADROOM: Final = 1.15
"""Request over what all but the busiest twentieth of the half minutes used."""
CPU_RIGHT: Final = (1.0, 1.6)
"""Requests over that which are left alone; and half a processor on either side."""
BUSY_SHARE: Final = 0.95
THROTTLED: Final = 0.05
"""Share of the time in which the limit held processes back: more, and steps wait for it, on all ranks."""
SHM_FULL: Final = 0.8
"""Share of /dev/shm: a loader that finds it full ends with a bus error."""
SHM_HEADROOM: Final = 2.0
"""What is not used costs nothing, and a larger batch or one more loader uses more at once."""
DATA_SHARE: Final = 0.05
"""Of a step that waits for data: below, even perfect loading makes a step at most a twentieth faster."""
LOADER_HEADROOM: Final = 1.25
"""Samples differ in how long they take to load."""
MOST_LOADERS: Final = 16
"""For each rank. Beyond, memory and start-up grow and loading itself is what should be made cheaper."""

_LOADER_OPTION: Final = re.compile(r"(--(?:num|loader|data|dataloader)[-_]workers)(?:=(\d+))?")

State = Literal["change", "keep", "unknown"]


@dataclass(frozen=True)
class Change:
    """One place in the job's YAML, or in its script."""

    path: str
    """`spec.replicaSpecs.Worker…resources.limits.memory`"""
    before: str | None
    """The line as it is; None where there is none."""
    after: str
    """The line, or lines, that belong there."""


@dataclass(frozen=True)
class Finding:
    """What is to be said of one resource."""

    resource: str
    """`memory`, `cpu`, `shm`, `loader workers`"""
    state: State
    summary: str
    evidence: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class Advice:
    """What a job should ask for."""

    findings: tuple[Finding, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """All lines to change."""
        return tuple(change for finding in self.findings for change in finding.changes)


def advise(history: JobHistory, job: Mapping[str, Any]) -> Advice:
    """Recommendations for a job's workers.

    Args:
        history: what the job has told.
        job: the ElasticJob, as the API server has it.
    """
    worker = _Worker.of(job)
    seen = _Seen.of(history)
    return Advice((_memory(seen, worker), _cpu(seen, worker), _shm(seen, worker), _loaders(history, worker)))


@dataclass(frozen=True)
class _Worker:
    """The container of a worker in the job's YAML, and where that stands."""

    container: Mapping[str, Any]
    pod: Mapping[str, Any]
    at: str
    """Path of the pod's spec."""

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> _Worker:
        replicas = (job.get("spec") or {}).get("replicaSpecs") or {}
        name = "Worker" if "Worker" in replicas else next(iter(replicas), "Worker")
        pod = ((replicas.get(name) or {}).get("template") or {}).get("spec") or {}
        containers = pod.get("containers") or [{}]
        chosen = next((each for each in containers if each.get("name") == WORKER_CONTAINER), containers[0])
        return cls(chosen, pod, f"spec.replicaSpecs.{name}.template.spec")

    @property
    def container_at(self) -> str:
        return f"{self.at}.containers[{self.container.get('name', WORKER_CONTAINER)}]"

    def asks(self, kind: str, resource: str) -> str | None:
        """A request or a limit as it is written; a request that is not there is the limit, as in Kubernetes."""
        resources = self.container.get("resources") or {}
        found = (resources.get(kind) or {}).get(resource)
        if found is None and kind == "requests":
            found = (resources.get("limits") or {}).get(resource)
        return None if found is None else str(found)

    def is_written(self, kind: str, resource: str) -> bool:
        return resource in ((self.container.get("resources") or {}).get(kind) or {})

    def line(self, kind: str, resource: str, wanted: str) -> Change:
        before = self.asks(kind, resource) if self.is_written(kind, resource) else None
        return Change(
            f"{self.container_at}.resources.{kind}.{resource}",
            None if before is None else f"{resource}: {_quoted(before)}",
            f"{resource}: {_quoted(wanted)}",
        )


@dataclass(frozen=True)
class _Seen:
    """What `resources` lines say, over all pods."""

    lines: tuple[Resources, ...]
    steps: int
    span: timedelta
    """The longest time over which one pod has told."""
    cores: tuple[float, ...]
    """Used in each interval between two lines of a pod in which steps were made; sorted."""
    throttled: float | None
    """Share of the time, of the pod that was held back most; None where the kernel does not tell."""

    @classmethod
    def of(cls, history: JobHistory) -> _Seen:
        by_pod: dict[str, list[Resources]] = defaultdict(list)
        for line in history.resources:
            by_pod[line.pod].append(line)
        spans = [lines[-1].time - lines[0].time for lines in by_pod.values()]
        times = [step.time for step in history.steps]
        cores: list[float] = []
        held: list[float] = []
        for lines in by_pod.values():
            for earlier, later in pairwise(lines):
                seconds = later.time - earlier.time
                used = later.cpu_seconds - earlier.cpu_seconds
                # Less than before: the pod's launcher was started anew. A line at once after another says nothing.
                if used < 0 or seconds < 1 or not any(earlier.time < time <= later.time for time in times):
                    continue
                cores.append(used / seconds)
                if later.throttled_seconds is not None and earlier.throttled_seconds is not None:
                    held.append(max(0.0, later.throttled_seconds - earlier.throttled_seconds) / seconds)
        return cls(
            lines=history.resources,
            steps=len({step.step for step in history.steps}) and history.curve[-1].step - history.curve[0].step + 1,
            span=timedelta(seconds=max(spans, default=0.0)),
            cores=tuple(sorted(cores)),
            throttled=max(held, default=None),
        )

    def lacks(self) -> str | None:
        """Why there is not enough evidence; None where there is."""
        if not self.lines:
            return (
                "no worker has told what it uses: the image is of an older version, the workers' logs are gone, or the"
                " job has run for less than half a minute"
            )
        if self.steps < LEAST_STEPS:
            return f"{self.steps} steps are known, {LEAST_STEPS} are needed"
        if self.span < LEAST_TIME:
            told, needed = self.span.total_seconds(), LEAST_TIME.total_seconds()
            return f"workers have told for {told:.0f} s, {needed:.0f} s are needed"
        return None


def _memory(seen: _Seen, worker: _Worker) -> Finding:
    """Limit and request are the same: memory that was promised to others as well ends somebody's process."""
    limit = _bytes(worker.asks("limits", "memory"))
    killed = max((line.oom_kills or 0 for line in seen.lines), default=0)
    peak = max((line.memory_peak_bytes for line in seen.lines), default=0)
    evidence = [f"the most in use in any of {_counted(len(seen.lines), 'line')}: {_shown(peak)}"]
    if killed and limit:
        wanted = _rounded_up(max(limit * AFTER_OOM, peak * MEMORY_HEADROOM))
        evidence = [f"the kernel has ended {_counted(killed, 'process', 'processes')} at the limit {_shown(limit)}"]
        return _changed("memory", f"{_shown(wanted)} for each worker", evidence, _memory_lines(worker, wanted))
    if lacking := seen.lacks():
        return Finding("memory", "unknown", lacking)
    if (growth := _growth(seen.lines)) > STILL_GROWS:
        return Finding(
            "memory",
            "unknown",
            f"it still grows, by {growth - 1:.0%} in the last quarter of the time; look again later. If it never stops,"
            " the script keeps what it should let go (a loss tensor in a list is the usual one)",
            tuple(evidence),
        )
    wanted = _rounded_up(peak * MEMORY_HEADROOM)
    evidence.append(f"and {MEMORY_HEADROOM - 1:.0%} more, as samples miss short peaks")
    if limit is None:
        return _changed(
            "memory",
            f"{_shown(wanted)} for each worker; it has no limit, so that the machine's other pods pay for a leak",
            evidence,
            _memory_lines(worker, wanted),
        )
    ratio = limit / peak if peak else math.inf
    low, high = MEMORY_RIGHT
    if low <= ratio <= high or wanted == limit:
        return Finding("memory", "keep", f"{_shown(limit)} is right: {ratio:.1f} times the peak", tuple(evidence))
    word = "too little" if ratio < low else "more than needed"
    evidence.append(f"the limit is {_shown(limit)}, {ratio:.1f} times the peak")
    return _changed(
        "memory",
        f"{_shown(wanted)} for each worker: {_shown(limit)} is {word}",
        evidence,
        _memory_lines(worker, wanted),
    )


def _memory_lines(worker: _Worker, wanted: int) -> list[Change]:
    return [worker.line(kind, "memory", _quantity(wanted)) for kind in ("requests", "limits")]


def _growth(lines: Sequence[Resources]) -> float:
    """Peak over the peak of the first three quarters of the time, of the pod that grew most; 1 where it rests."""
    by_pod: dict[str, list[Resources]] = defaultdict(list)
    for line in lines:
        by_pod[line.pod].append(line)
    found = 1.0
    for own in by_pod.values():
        late = own[0].time + 0.75 * (own[-1].time - own[0].time)
        early = max((line.memory_peak_bytes for line in own if line.time <= late), default=0)
        if early and own[-1].time - own[0].time >= LEAST_TIME.total_seconds():
            found = max(found, own[-1].memory_peak_bytes / early)
    return found


def _cpu(seen: _Seen, worker: _Worker) -> Finding:
    if lacking := seen.lacks():
        return Finding("cpu", "unknown", lacking)
    if len(seen.cores) < LEAST_TIME / timedelta(minutes=1):
        return Finding("cpu", "unknown", "no half minute between two lines of a worker had steps in it")
    busy = seen.cores[math.ceil(BUSY_SHARE * len(seen.cores)) - 1]
    mean = sum(seen.cores) / len(seen.cores)
    intervals = _counted(len(seen.cores), "interval")
    evidence = [f"used in {intervals} with steps: {mean:.2f} processors on average, {busy:.2f} at most in 19 of 20"]
    request = _cores(worker.asks("requests", "cpu"))
    limit = _cores(worker.asks("limits", "cpu"))
    if seen.throttled is not None and seen.throttled > THROTTLED and limit is not None:
        wanted = _rounded_cores(max(limit * AFTER_OOM, busy * CPU_HEADROOM))
        evidence.append(f"the limit {limit:g} held processes back for {seen.throttled:.0%} of the time")
        return _changed(
            "cpu",
            f"{wanted:g} for each worker: steps wait for the limit, on all ranks. Or no limit at all",
            evidence,
            [worker.line(kind, "cpu", f"{wanted:g}") for kind in ("requests", "limits")],
        )
    wanted = _rounded_cores(busy * CPU_HEADROOM)
    lines = [worker.line("requests", "cpu", f"{wanted:g}")]
    if limit is not None and limit < wanted:
        lines.append(worker.line("limits", "cpu", f"{wanted:g}"))
    evidence.append(f"and {CPU_HEADROOM - 1:.0%} more")
    if request is None:
        return _changed("cpu", f"{wanted:g} for each worker; it asks for none, so others may crowd it", evidence, lines)
    low, high = CPU_RIGHT
    if low * busy - 0.5 <= request <= high * busy + 0.5 or request == wanted:
        return Finding("cpu", "keep", f"{request:g} is right", tuple(evidence))
    word = "too little" if request < busy else "more than needed"
    return _changed("cpu", f"{wanted:g} for each worker: {request:g} is {word}", evidence, lines)


def _shm(seen: _Seen, worker: _Worker) -> Finding:
    known = [line for line in seen.lines if line.shm_size_bytes]
    if not known:
        return Finding("shm", "unknown", seen.lacks() or "no worker has told of /dev/shm")
    fullest = max(known, key=lambda line: line.shm_peak_bytes / line.shm_size_bytes)
    share = fullest.shm_peak_bytes / fullest.shm_size_bytes
    evidence = [f"at most {_shown(fullest.shm_peak_bytes)} of {_shown(fullest.shm_size_bytes)} were in use"]
    if share <= SHM_FULL:  # that it was too small would show at once; that it is enough takes its time
        if lacking := seen.lacks():
            return Finding("shm", "unknown", lacking, tuple(evidence))
        return Finding("shm", "keep", f"{_shown(fullest.shm_size_bytes)} is enough", tuple(evidence))
    wanted = _rounded_up(max(fullest.shm_peak_bytes, fullest.shm_size_bytes) * SHM_HEADROOM, 64 * MIB)
    evidence.append("what is full ends a loader with a bus error; what is not used costs nothing")
    return _changed("shm", f"{_shown(wanted)} for each worker", evidence, _shm_lines(worker, wanted))


def _shm_lines(worker: _Worker, wanted: int) -> list[Change]:
    """A volume in memory at /dev/shm; without one the container runtime gives 64 MiB."""
    mounts = worker.container.get("volumeMounts") or []
    name = next((str(mount.get("name")) for mount in mounts if mount.get("mountPath") == "/dev/shm"), None)  # noqa: S108
    volume = (
        next((each for each in worker.pod.get("volumes") or [] if each.get("name") == name), None) if name else None
    )
    size = f"sizeLimit: {_quantity(wanted)}"
    if volume is not None and "emptyDir" in volume:
        before = (volume["emptyDir"] or {}).get("sizeLimit")
        at = f"{worker.at}.volumes[{name}].emptyDir"
        return [Change(f"{at}.sizeLimit", None if before is None else f"sizeLimit: {before}", size)]
    return [
        Change(f"{worker.at}.volumes", None, f"- {{name: shm, emptyDir: {{medium: Memory, {size}}}}}"),
        Change(f"{worker.container_at}.volumeMounts", None, "- {name: shm, mountPath: /dev/shm}"),
    ]


def _loaders(history: JobHistory, worker: _Worker) -> Finding:
    what = "loader workers"
    lines = list(_warm(history))
    if not history.is_split:
        return Finding(
            what,
            "unknown",
            "no step tells where its time goes: only scripts that use training.loop do (docs/how-to/loop.md)",
        )
    if not lines or lines[-1].step - lines[0].step + 1 < LEAST_STEPS:
        number = lines[-1].step - lines[0].step + 1 if lines else 0
        return Finding(what, "unknown", f"{number} steps after warm-up are known, {LEAST_STEPS} are needed")
    now = next((begin.loader_workers for begin in reversed(history.resumes) if begin.loader_workers is not None), None)
    if now is None:
        return Finding(what, "unknown", "how many there are is not known: the image is of an older version")
    data = sum(line.seconds.get("data", 0.0) for line in lines)
    work = sum(line.seconds.get(part, 0.0) for line in lines for part in ("forward", "backward", "sync", "optimizer"))
    share = data / (data + work) if data + work else 0.0
    evidence = [f"steps {lines[0].step} to {lines[-1].step} waited for data for {share:.1%} of their time, with {now}"]
    if share <= DATA_SHARE:
        return Finding(what, "keep", f"{now} for each rank are enough", tuple(evidence))
    # Where the rank loads itself, a step's samples take `data` seconds; where others do, all of these are always busy.
    needed = math.inf if not work else (data / work if now == 0 else now * (data + work) / work)
    wanted = min(MOST_LOADERS, math.ceil(needed * LOADER_HEADROOM) if math.isfinite(needed) else MOST_LOADERS)
    if now and wanted <= now:
        return Finding(
            what,
            "keep",
            f"more than {now} for each rank would not help: loading is dearer than training. Make it cheaper: data that"
            " is decoded once, faster storage",
            tuple(evidence),
        )
    if math.isfinite(needed):
        evidence.append(f"to load as fast as the rank computes takes {needed:.1f}")
    evidence.append("if the share does not fall with it, storage is what they wait for; each takes up to one processor")
    return _changed(what, f"{wanted} for each rank instead of {now}", evidence, [_loader_line(worker, wanted)])


def _warm(history: JobHistory) -> Iterator[Step]:
    """Lines of steps of the newest world with enough of them, without its first ones."""
    generations = [world.generation for world in reversed(history.worlds)] or [0]
    best: list[Step] = []
    for generation in generations:
        own = [step for step in history.steps if step.generation == generation and step.seconds][WARM_UP:]
        if len(own) > len(best):
            best = own
        if own and own[-1].step - own[0].step + 1 >= LEAST_STEPS:
            return iter(own)
    return iter(best)


def _loader_line(worker: _Worker, wanted: int) -> Change:
    """Where the number stands: in the container's arguments, or else in the script."""
    for key in ("args", "command"):
        words = [str(word) for word in worker.container.get(key) or []]
        for index, word in enumerate(words):
            if not (found := _LOADER_OPTION.fullmatch(word)):
                continue
            at = f"{worker.container_at}.{key}"
            if found[2] is not None:
                return Change(f"{at}[{index}]", f"- {word}", f"- {found[1]}={wanted}")
            if index + 1 < len(words) and words[index + 1].isdecimal():
                return Change(f"{at}[{index + 1}]", f'- "{words[index + 1]}"', f'- "{wanted}"')
    return Change("the script", None, f"loop.setup(..., num_workers={wanted})")


def _changed(resource: str, summary: str, evidence: Sequence[str], changes: Sequence[Change]) -> Finding:
    return Finding(resource, "change", summary, tuple(evidence), tuple(changes))


def _bytes(quantity: str | None) -> int | None:
    return None if quantity is None else int(parse_quantity(quantity) or 0)


def _cores(quantity: str | None) -> float | None:
    return None if quantity is None else float(parse_quantity(quantity) or 0)


def _rounded_up(size: float, unit: int = 256 * MIB) -> int:
    """A size that one would write: a multiple of `unit`."""
    return math.ceil(size / unit) * unit


def _rounded_cores(cores: float) -> float:
    """Tenths below one processor, halves below eight, whole ones above."""
    unit = 0.1 if cores < 1 else 0.5 if cores < 8 else 1.0
    return max(0.1, round(math.ceil(round(cores / unit, 6)) * unit, 1))


def _quantity(size: int) -> str:
    return f"{size // (1024 * MIB)}Gi" if size % (1024 * MIB) == 0 else f"{size // MIB}Mi"


def _shown(size: float) -> str:
    return f"{size / (1024 * MIB):.1f} GiB" if size >= 1024 * MIB else f"{size / MIB:.0f} MiB"


def _quoted(quantity: str) -> str:
    """As it has to be written in YAML: a bare number is no text."""
    return f'"{quantity}"' if re.fullmatch(r"[\d.]+", quantity) else quantity


def _counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
