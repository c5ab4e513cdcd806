"""What a simulation is told of a job: one YAML file, whose mistakes are all reported in one go.

Times of recovery and of checkpoints have the figures that the benchmarks measured (docs/benchmarks.md): on CPUs, with
small models. On GPUs, NCCL and a large model take longer: use those of your own jobs
(`python -m training.metrics.goodput`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from infra.errors import UsageError

Seconds = Annotated[float, Field(ge=0, le=86_400 * 30, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, arbitrary_types_allowed=False
    )


class Checkpoints(_Section):
    """When checkpoints are made, and what each costs."""

    every_steps: int = Field(default=500, ge=1, description="Steps between two checkpoints.")
    stall_seconds: Seconds = Field(default=0.0075, description="How long training stands still for one.")
    save_seconds: Seconds = Field(
        default=2.75, description="From its step until it is complete: what a last one needs."
    )


class Recovery(_Section):
    """How long training stands still, in seconds, from what happened to the next step."""

    notice: Seconds = Field(default=0.16, description="Machines leave after a notice.")
    death: Seconds = Field(default=0.21, description="Machines die without one.")
    join: Seconds = Field(default=0.25, description="Machines join those that train.")
    start: Seconds = Field(default=9.0, description="All begin, or begin again from a checkpoint.")


class Pool(_Section):
    """Spot machines of one kind."""

    name: str = Field(default="", max_length=60, description="What it is called; absent: type, or trace.")
    trace: str = Field(description="File with its availability.")
    type: str | None = Field(default=None, description="Instance type, whose prices the catalogue has.")
    spot_usd_per_hour: Decimal | None = Field(default=None, ge=0, description="Instead of the catalogue's range.")
    speed: float = Field(default=1.0, gt=0, le=1000, description="Of a step, against machines of speed 1.")


class Parameters(_Section):
    """A job, the machines that it may have, and what faults cost it."""

    steps: int = Field(ge=1, le=10**12, description="Steps until the job is done.")
    step_seconds: float = Field(gt=0, le=86_400, allow_inf_nan=False, description="One step, with `stepWorkers`.")
    between_seconds: Seconds = Field(
        default=0.0, description="Of each step, what is not useful: waiting for samples, logging."
    )
    step_workers: int | None = Field(
        default=None, ge=1, description="Workers with which it was measured; absent: the most."
    )
    scaling: float = Field(
        1.0, ge=0, le=1, description="Share of a step that is divided among the workers; the global batch is the same."
    )
    min_workers: int = Field(default=1, ge=1, description="Fewest machines with which it trains.")
    max_workers: int = Field(ge=1, le=100_000, description="Most machines.")
    on_demand_floor: int | None = Field(
        None, ge=1, description="Machines on demand in the policy with a floor; absent: `minWorkers`."
    )
    notice_seconds: Seconds = Field(
        default=120.0, description="How long before its end a machine is told; 0: it is not."
    )
    node_start_seconds: Seconds = Field(default=180.0, description="From a request until a machine can join.")
    node_starts: str | None = Field(default=None, description="File with measured starts, used in turn.")
    checkpoints: Checkpoints = Checkpoints()
    recovery: Recovery = Recovery()
    pools: tuple[Pool, ...] = Field(default=(), description="Spot machines, those to be taken first in front.")
    region: str = Field(default="us-east-2", description="Where prices are of.")
    on_demand_type: str | None = Field(default=None, description="Type on demand; absent: that of the first pool.")
    on_demand_usd_per_hour: Decimal | None = Field(default=None, ge=0, description="Instead of the catalogue's price.")
    most_days: float = Field(default=365.0, gt=0, le=3650, description="A job that is not done by then is given up.")

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        wrong = []
        if self.min_workers > self.max_workers:
            wrong.append(f"minWorkers ({self.min_workers}) is more than maxWorkers ({self.max_workers})")
        if self.on_demand_floor is not None and self.on_demand_floor > self.max_workers:
            wrong.append(f"onDemandFloor ({self.on_demand_floor}) is more than maxWorkers ({self.max_workers})")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def load(file: Path | None, settings: Sequence[str] = (), **given: Any) -> Parameters:
    """The parameters of a file, with what was said on the command line in their place.

    Args:
        file: YAML; None: only what is given.
        settings: `KEY=VALUE`, keys with dots: `recovery.join=2`.
        given: top-level keys by their names in the file; None is not given.

    Raises:
        UsageError: the file cannot be read, or with every mistake in the parameters.
    """
    document: dict[str, Any] = {}
    if file is not None:
        try:
            read = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        except yaml.YAMLError as error:
            raise UsageError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
        if not isinstance(read, dict):
            raise UsageError(f"{file} is no mapping of parameters, as `steps: 1000`")
        document = read
    wrong = [one for setting in settings if (one := _put(document, setting))]
    document |= {key: value for key, value in given.items() if value is not None}
    found: Parameters | None = None
    try:
        found = Parameters.model_validate(document)
    except ValidationError as error:
        wrong += [_told(dict(mistake)) for mistake in error.errors()]
    if wrong or found is None:
        where = f"{file}: " if file else ""
        listed = "".join(f"\n  {line}" for line in wrong)
        raise UsageError(f"{where}{len(wrong)} of the parameters cannot be used:{listed}\n{_HELP}")
    return found


_HELP = "Keys and their meaning: docs/how-to/simulate.md. On the command line: --set steps=10000 --set recovery.join=2"


def _put(document: dict[str, Any], setting: str) -> str | None:
    """Put one `KEY=VALUE` into the document; returns what is wrong with it."""
    key, equals, value = setting.partition("=")
    *above, last = key.split(".")
    if not equals or not all((*above, last)):
        return f"--set {setting}: is not KEY=VALUE"
    place = document
    for part in above:
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):
            return f"--set {setting}: {part} has no keys"
        place = inner
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        return f"--set {setting}: the value is no YAML"
    return None


def _told(mistake: Mapping[str, Any]) -> str:
    """`recovery.join: should be greater than or equal to 0, and not -1`."""
    where = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "missing":
        return f"{where}: is missing"
    if mistake["type"] == "extra_forbidden":
        return f"{where}: there is no such key"
    what = mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{where}: {what}, and not {str(mistake['input'])[:60]!r}" if where else what
