"""From progress lines to a history. Lines come from many workers in any order, may come twice, and may be anybody's.

The names and fields are those of `training.metrics.progress`. Fields that are missing or of another kind make a line a
stranger's: a user's script may print what it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.history.model import (
    Checkpoint,
    Evaluation,
    JobHistory,
    Notice,
    Recovery,
    Resources,
    Resume,
    Step,
    World,
)
from infra.jobs import Progress, parse_progress

if TYPE_CHECKING:
    from infra.jobs import Jobs, LogLine

_START: Final = '{"trainyard"'
_END_OF_TIME: Final = 253_402_300_800.0  # the year 10000, which no clock of a worker says

_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Step(_Line):
    step: _Count
    loss: float | None = None
    world_size: _Count | None = None
    generation: _Count = 0
    samples: _Count | None = None
    samples_per_second: _Seconds | None = None
    seconds: dict[str, _Seconds] = {}


class _Resume(_Line):
    step: _Count
    generation: _Count = 0
    world_size: _Count | None = None
    checkpoint: str = ""
    loader_workers: _Count | None = None


class _Rendezvous(_Line):
    generation: _Count
    world_size: _Count


class _Recovery(_Line):
    began: _Seconds
    total: _Seconds
    cause: str
    outcome: str
    generation: _Count | None = None
    world_size: _Count | None = None
    node: str = ""
    detail: str = ""
    step: _Count | None = None
    steps_lost: _Count | None = None
    seconds: dict[str, _Seconds] = {}


class _Checkpoint(_Line):
    step: _Count
    seconds: _Seconds
    path: str = ""
    at_notice: bool = False


class _Evaluation(_Line):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    step: _Count

    def figures(self) -> dict[str, float]:
        """What was measured; other fields are none of ours."""
        extra = self.model_extra or {}
        return {
            name: float(value)
            for name, value in extra.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


class _Notice(_Line):
    message: str


class _Resources(_Line):
    cpu_seconds: _Seconds
    memory_bytes: _Count
    memory_peak_bytes: _Count
    shm_peak_bytes: _Count
    shm_size_bytes: _Count
    workers: Annotated[int, Field(ge=1)]
    throttled_seconds: _Seconds | None = None
    oom_kills: _Count | None = None


class Reader:
    """Gathers progress lines of one job.

    Args:
        job: its name.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._known: set[tuple[str, str, float, str]] = set()
        self._told: list[Progress] = []
        self._strangers = 0
        self._made: JobHistory | None = None

    def add(self, event: Progress) -> None:
        """Take a line; the same line a second time changes nothing."""
        if not 0 <= event.time < _END_OF_TIME:
            self._strangers += 1
            self._made = None
            return
        identity = (event.pod, event.event, event.time, repr(event.fields))
        if identity not in self._known:
            self._known.add(identity)
            self._told.append(event)
            self._made = None

    def history(self) -> JobHistory:
        """What is known by now."""
        if self._made is None:
            self._made = _history(self._job, self._told, self._strangers)
        return self._made


def history(job: str, events: Iterable[Progress]) -> JobHistory:
    """The history of a job from its progress lines.

    Args:
        job: its name.
        events: of all its workers, in any order.
    """
    reader = Reader(job)
    for event in events:
        reader.add(event)
    return reader.history()


def progress_in(source: str, lines: Iterable[str]) -> Iterator[Progress]:
    """The progress lines of a log that somebody has kept, as `trainyard logs` or `kubectl logs` prints it.

    Args:
        source: stands for the worker's name, where a line has none before it.
        lines: of the log; what stands before the line's beginning is passed over.
    """
    for line in lines:
        begin = line.find(_START)
        if begin < 0:
            continue
        prefix, bar, _ = line[:begin].partition(" | ")
        pod = prefix.split()[0] if bar and prefix.split() else source
        if event := parse_progress(pod, line[begin:].rstrip()):
            yield event


def events_of(jobs: Jobs, job: str) -> Iterator[Progress]:
    """The progress lines in the logs of the workers of a job that are there.

    Raises:
        JobError: there is no such job, or the API server does not answer.
    """
    jobs.existing(job)
    yield from told_in(jobs.logs(job))


def told_in(logs: Iterable[Iterable[LogLine]]) -> Iterator[Progress]:
    """The progress lines in logs of workers."""
    for log in logs:
        for line in log:
            if event := parse_progress(line.pod, line.text):
                yield event


def _history(job: str, told: list[Progress], strangers: int) -> JobHistory:
    steps, worlds, resumes = list[Step](), list[World](), list[Resume]()
    recoveries, checkpoints, evaluations = dict[object, Recovery](), list[Checkpoint](), list[Evaluation]()
    notices, resources = list[Notice](), list[Resources]()
    finished: Evaluation | None = None
    for event in sorted(told, key=lambda event: event.time):
        kind, time, fields = event.event, event.time, event.fields
        try:
            if kind == "step":
                line = _Step(**fields)
                steps.append(Step(time=time, **_plain(line)))
                worlds += _world(time, line.generation, line.world_size)
            elif kind == "resume":
                begin = _Resume(**fields)
                resumes.append(Resume(time=time, **_plain(begin, "world_size")))
                worlds += _world(time, begin.generation, begin.world_size)
            elif kind == "rendezvous":
                met = _Rendezvous(**fields)
                worlds += _world(time, met.generation, met.world_size)
            elif kind == "recovery":
                record = Recovery(**_plain(_Recovery(**fields)))
                key = (record.outcome, record.generation) if record.generation is not None else (event.pod, time)
                if key not in recoveries or _weight(record) > _weight(recoveries[key]):
                    recoveries[key] = record
            elif kind == "checkpoint":
                checkpoints.append(Checkpoint(time=time, **_plain(_Checkpoint(**fields))))
            elif kind in ("evaluation", "finished"):
                found = _Evaluation(**fields)
                result = Evaluation(time=time, step=found.step, figures=found.figures())
                if kind == "finished":
                    finished = result
                else:
                    evaluations.append(result)
            elif kind == "notice":
                notices.append(Notice(time=time, pod=event.pod, message=_Notice(**fields).message))
            elif kind == "resources":
                resources.append(Resources(time=time, pod=event.pod, **_plain(_Resources(**fields))))
        except (ValidationError, TypeError):
            strangers += 1
    return JobHistory(
        job=job,
        steps=tuple(steps),
        worlds=_changes(worlds),
        resumes=tuple(resumes),
        recoveries=tuple(sorted(recoveries.values(), key=lambda record: record.began)),
        checkpoints=tuple(checkpoints),
        evaluations=tuple(evaluations),
        notices=tuple(notices),
        resources=tuple(resources),
        finished=finished,
        last_told=max((event.time for event in told), default=None),
        strangers=strangers,
    )


def _plain(line: _Line, *without: str) -> Mapping[str, Any]:
    return line.model_dump(exclude=set(without))


def _world(time: float, generation: int, size: int | None) -> list[World]:
    return [] if size is None else [World(time=time, generation=generation, size=size)]


def _changes(told: list[World]) -> tuple[World, ...]:
    """Each world once, from its first line on; a late line of an earlier one is no way back."""
    found: list[World] = []
    for world in told:
        if (
            not found
            or world.generation > found[-1].generation
            or (world.generation == found[-1].generation and world.size != found[-1].size)
        ):
            found.append(world)
    return tuple(found)


def _weight(record: Recovery) -> tuple[bool, float]:
    """Which of the launchers' records of one world tells what the job has lost; a newcomer's start is no loss."""
    return record.is_disturbance, record.total
