"""The file of a workflow: what prepares, trains and evaluates, and when the model may be published.

    name: digits
    prepare:
      - [python, -m, training.examples.digits_data, --output, $(RUN_FOLDER)/digits.npz]
    train: digits_job.yaml
    evaluate:
      - [python, -m, training.examples.digits_evaluate, --model, $(RUN_FOLDER)/model/model.safetensors]
    publish:
      to: $(VOLUME)/models/digits
      metric: accuracy
      limit: 0.95

`$(RUN)`, `$(RUN_FOLDER)` and `$(VOLUME)` are replaced, in the commands as in the arguments of the job's workers, where
Kubernetes itself does it: the same folder has another path there.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from infra.settings import YAML_MISTAKES
from infra.workflow.errors import DefinitionError

Command = Annotated[tuple[str, ...], Field(min_length=1)]
JOB_NAME_LENGTH = 51
"""Of an ElasticJob, whose workers' names are longer (docs/reference/elasticjob.md)."""
NAME_LENGTH = 30
"""Of a workflow, so that the name of a run fits behind it."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RUN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class Gate(BaseModel):
    """When a model may become the current one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False, populate_by_name=True
    )

    metric: Annotated[str, Field(min_length=1)]
    """Which figure of `metrics.json` decides."""
    mode: Literal["max", "min"] = "max"
    """`max`: more is better, as of an accuracy; `min`: less is, as of a loss."""
    limit: float
    """The model must be at least as good."""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    """By how much it may be worse than the current model; 0: not at all."""

    def refusal(self, value: float, current: float | None) -> str | None:
        """Why a model must not become the current one; None: it may.

        Args:
            value: its figure.
            current: that of the current model; None: there is none yet, or it was not measured by this metric.
        """
        sign = 1 if self.mode == "max" else -1
        word = "least" if self.mode == "max" else "most"
        if not math.isfinite(value) or sign * value < sign * self.limit:
            return f"{self.metric} is {value:g}, and must be at {word} {self.limit:g} (publish.limit)"
        if current is not None and sign * value < sign * current - self.tolerance:
            return (
                f"{self.metric} is {value:g}, and that of the current model {current:g}: worse by more than"
                f" {self.tolerance:g} (publish.tolerance)"
            )
        return None


class Publish(Gate):
    """Where models are published, and when they become the current one."""

    to: Annotated[str, Field(min_length=1)]
    """A folder, or a URL: `s3://bucket/models/digits`."""


class Definition(BaseModel):
    """A workflow. It is handed to its steps as JSON, with the job in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(max_length=NAME_LENGTH)]
    """Of the workflow, and of its jobs with the run's behind it."""
    prepare: tuple[Command, ...] = ()
    """Commands that make what the job reads; none: the job needs nothing."""
    train: dict[str, Any]
    """The ElasticJob. In the file: the path of its manifest."""
    evaluate: Annotated[tuple[Command, ...], Field(min_length=1)]
    """Commands that write `$(RUN_FOLDER)/metrics.json` and the files of the model, `$(RUN_FOLDER)/model/…`."""
    publish: Publish
    """Where models go, and the gate before it."""

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be lower-case letters, digits and '-', beginning with a letter")
        return value

    def to_json(self) -> str:
        """The definition as text, the same for the same definition."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """Names the definition, whatever its file looks like."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def job_name(self, run: str) -> str:
        """Name of the ElasticJob of a run.

        Raises:
            DefinitionError: the run has no name that an ElasticJob could have.
        """
        name = f"{self.name}-{run}"
        if not _RUN.fullmatch(run) or len(name) > JOB_NAME_LENGTH:
            most = JOB_NAME_LENGTH - len(self.name) - 1
            raise DefinitionError(
                f"a run of {self.name} cannot be called {run!r}: lower-case letters, digits and '-', at most {most}"
            )
        return name


def read(path: Path) -> Definition:
    """The workflow in a file, with the job that it names.

    Raises:
        DefinitionError: with all mistakes of the file, or what is wrong with the job's.
    """
    document = _document(path)
    mistakes: list[str] = []
    named = document.get("train")
    if isinstance(named, str):
        try:
            document["train"] = _job(path.parent / named)
        except DefinitionError as error:
            mistakes.append(f"train: {error}")
            document["train"] = {}
    elif named is not None:
        mistakes.append("train: must be the path of an ElasticJob's manifest, from this file's folder")
        document["train"] = {}
    try:
        made = Definition.model_validate(document)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            where = ".".join(map(str, problem["loc"]))
            mistakes.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    if mistakes:
        raise DefinitionError(f"{path} cannot be used:\n" + "\n".join(f"  {mistake}" for mistake in mistakes))
    return made


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DefinitionError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DefinitionError(f"{path} is not UTF-8 text") from None
    except YAML_MISTAKES as error:
        raise DefinitionError(f"{path} is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise DefinitionError(f"{path} holds no workflow: it must begin with `name:`")
    return document


def _job(path: Path) -> dict[str, Any]:
    document = _document(path)
    container = _worker(document)
    if document.get("kind") != "ElasticJob" or container is None:
        raise DefinitionError(f"{path} holds no ElasticJob with a container elasticjob-worker")
    return document


def _worker(job: Any) -> dict[str, Any] | None:
    """The container of a job's workers, in place; None: there is none."""
    try:
        containers = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        return next((each for each in containers if each["name"] == "elasticjob-worker"), None)
    except (LookupError, TypeError):
        return None


def job_of_run(definition: Definition, run: str, variables: dict[str, str]) -> dict[str, Any]:
    """The manifest of a run's job: its name, and variables that the arguments of its workers may use.

    Args:
        definition: the workflow.
        run: name of the run.
        variables: for the workers' environment; Kubernetes puts them in for `$(NAME)` in arguments.

    Raises:
        DefinitionError: the run has no name that an ElasticJob could have.
    """
    job: dict[str, Any] = json.loads(json.dumps(definition.train))
    job["metadata"] = {**(job.get("metadata") or {}), "name": definition.job_name(run)}
    container = _worker(job)
    assert container is not None  # noqa: S101 - asked when the file was read
    own = [each for each in container.get("env") or () if each.get("name") not in variables]
    # First, for only variables that stand before may be used in others.
    container["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *own]
    return job


def replaced(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` replaced as Kubernetes does it: names that are not known stay, `$$(NAME)` is the text `$(NAME)`."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda found: "$" if found[1] is None else variables.get(found[1], found[0]),
        text,
    )
