"""Stack settings: the only code that reads stack configuration.

`Pulumi.<stack>.yaml` -> `Settings`, one frozen tree. Whatever is wrong in a stack file is reported in one go: for each
mistake its key path and line, what is wrong, what would be right, and the command that fixes it.

Two doors lead here: the command reads the file before it starts anything (`read_stack_file`), and the Pulumi program
takes the same values from the engine (`from_engine`), so that `pulumi up` without the command is checked alike.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from infra.errors import TrainyardError

PROJECT = "trainyard"

Target = Literal["local", "kubeconfig"]
Capacity = Literal["on-demand", "spot"]

# What Kubernetes takes as an object name (RFC 1123 label).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# The subset of Kubernetes quantities that makes sense for storage and memory.
_SIZE = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti)")


class SettingsError(TrainyardError):
    """A stack's settings cannot be used; the message lists every mistake with the command that fixes it."""

    exit_code = 2


def _name(value: str) -> str:
    if len(value) > 40 or not _NAME.fullmatch(value):
        raise ValueError(
            "must be a Kubernetes name: lower-case letters, digits and '-', beginning and ending with a letter or"
            " digit, at most 40 long"
        )
    return value


def _size(value: str) -> str:
    if not _SIZE.fullmatch(value):
        raise ValueError("must be a whole number with a unit Ki, Mi, Gi or Ti, for example 10Gi")
    return value


Name = Annotated[str, AfterValidator(_name)]
Size = Annotated[str, AfterValidator(_size)]


class _Section(BaseModel):
    """A mapping of the stack file: keys in camelCase, unknown keys refused, values of exactly the stated type."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        use_attribute_docstrings=True,  # the reference page is made of them
    )


class NodePool(_Section):
    """Machines of one kind."""

    name: Name
    """Also the value of the node label `trainyard.dev/pool`."""
    nodes: Annotated[int, Field(ge=0, le=100)] = 1
    """How many machines the pool has."""
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs of one machine, offered as `nvidia.com/gpu`. On the local target they are numbers, not devices."""
    cpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPUs offered to pods; absent: what the machine has."""
    memory_per_node: Size | None = None
    """Memory offered to pods; absent: what the machine has."""
    capacity: Capacity = "on-demand"
    """`spot` machines carry a taint that only workloads which survive a reclaim tolerate."""


class Etcd(_Section):
    """The rendezvous store of the training jobs (not the store of the API server)."""

    storage: Size = "1Gi"
    """Size of its volume."""


class Checkpoints(_Section):
    """The shared volume that jobs mount at /checkpoints."""

    size: Size = "10Gi"
    """Size of the volume; on the local target it is not enforced."""


class Controller(_Section):
    """The ElasticJob controller."""

    replicas: Annotated[int, Field(ge=1, le=3)] = 1
    """More than one: the others stand by, elected by a Lease."""


class Local(_Section):
    """Only for `target: local`."""

    api_server_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """A fixed port for the API server; absent: a free one is chosen and kept."""


class Kubeconfig(_Section):
    """Only for `target: kubeconfig`: a cluster that exists already (kind, k3d, minikube, any)."""

    path: str
    """Path of the kubeconfig file; `~` is expanded."""
    context: str | None = None
    """Context in that file; absent: its current one."""
    storage_class: str | None = None
    """StorageClass of the volumes; absent: the cluster's default."""


class Images(_Section):
    """What the stack's own pods run. The local target takes them from its image table, other targets pull them."""

    controller: str = "trainyard/controller:local"
    """Runs the ElasticJob controller."""
    etcd: str = "trainyard/etcd:local"
    """Runs etcd."""


class Settings(_Section):
    """Everything that a stack file can say."""

    target: Target
    """Where the cluster is: `local` (this computer) or `kubeconfig` (one that exists)."""
    namespace: Name = "training"
    """Namespace of the training jobs."""
    node_pools: tuple[NodePool, ...] = (NodePool(name="system"),)
    """The machines; on the local target one kubelet each. One pool without GPUs takes etcd and the controller."""
    etcd: Etcd = Etcd()
    """The rendezvous store of the training jobs (not the store of the API server)."""
    checkpoints: Checkpoints = Checkpoints()
    """The shared volume that jobs mount at /checkpoints."""
    controller: Controller = Controller()
    """The ElasticJob controller."""
    images: Images = Images()
    """What the stack's own pods run."""
    local: Local | None = None
    """Only for `target: local`."""
    kubeconfig: Kubeconfig | None = None
    """Only for `target: kubeconfig`."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Settings:
        problems: list[str] = []
        names = [pool.name for pool in self.node_pools]
        problems += [
            f"nodePools: two pools are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})
        ]
        if self.target == "kubeconfig" and self.kubeconfig is None:
            problems.append("kubeconfig: target kubeconfig needs it: at least its `path`")
        if self.target != "kubeconfig" and self.kubeconfig is not None:
            problems.append(f"kubeconfig: has no meaning with target {self.target}")
        if self.target != "local" and self.local is not None:
            problems.append(f"local: has no meaning with target {self.target}")
        if self.target == "local" and not any(pool.nodes and not pool.gpus_per_node for pool in self.node_pools):
            problems.append("nodePools: one pool without GPUs must have a node: etcd and the controller run there")
        if problems:
            raise ValueError("\n".join(problems))
        return self


@dataclass(frozen=True)
class _Mistake:
    key: str
    what: str
    fix: str
    line: int | None = None


def parse(values: Mapping[str, Any], *, stack: str, source: str, lines: Mapping[str, int] | None = None) -> Settings:
    """Check the configuration of a stack.

    Args:
        values: configuration by full key (`trainyard:target`), structured values already decoded.
        stack: the stack's name, for the commands in the message.
        source: where the values came from, for the message.
        lines: line of each key path in `source`, where known.

    Raises:
        SettingsError: with all mistakes at once.
    """
    prefix = f"{PROJECT}:"
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    strangers = [key for key in values if ":" not in key]
    mistakes = [
        _Mistake(
            key,
            "has no namespace; keys of this project begin with 'trainyard:'",
            f"rename it to {prefix}{key}",
            _line(lines, key),
        )
        for key in strangers
    ]
    settings = None
    try:
        settings = Settings.model_validate(own)
    except pydantic.ValidationError as error:
        for problem in error.errors(include_url=False):
            mistakes += _explain(problem, stack, lines)
    if settings is None or mistakes:
        raise SettingsError(_report(mistakes, source))
    return settings


def read_stack_file(path: Path, stack: str) -> Settings:
    """Read and check `Pulumi.<stack>.yaml`.

    Raises:
        SettingsError: the file is missing, is not YAML, or has mistakes (all of them are listed).
    """
    import yaml  # noqa: PLC0415 - the command's --help does not pay for it

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in path.parent.glob("Pulumi.*.yaml"))
        raise SettingsError(
            f"stack {stack!r} cannot be read: {path}: {error.strerror}. Stacks here: {', '.join(known) or 'none'}."
            " Name one with `-s`, or run this in the folder that holds Pulumi.yaml."
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML: {error}. Mend the file at that place.") from None
    if not isinstance(document, dict) or not isinstance(document.get("config", {}), dict):
        raise SettingsError(f"{path}: must be a mapping with a mapping `config` in it, as in Pulumi.local.yaml")
    lines: dict[str, int] = {}
    if root is not None:
        _collect_lines(root, (), lines)
    config = document.get("config") or {}
    return parse(config, stack=stack, source=str(path), lines={k.removeprefix("config."): n for k, n in lines.items()})


def from_engine(config: Mapping[str, Any], stack: str) -> Settings:
    """Check the values that the engine hands to the program: structured ones arrive as JSON text, the rest as text.

    Raises:
        SettingsError: with all mistakes at once.
    """
    return parse({key: _decode(value) for key, value in config.items()}, stack=stack, source=f"Pulumi.{stack}.yaml")


def _decode(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        return json.loads(value)
    return value


def _explain(problem: Any, stack: str, lines: Mapping[str, int] | None) -> list[_Mistake]:
    """Turn one pydantic error into sentences with a remedy."""
    location = tuple(part for part in problem["loc"] if part != "function-after")
    if not location:  # raised by a check over several keys: one line a problem, "key: sentence"
        whole = []
        for text in str(problem["ctx"]["error"]).splitlines():
            key, _, what = text.partition(": ")
            full = f"{PROJECT}:{key}"
            whole.append(_Mistake(full, what, f"edit {full} in Pulumi.{stack}.yaml", _line(lines, full)))
        return whole
    key = _key_path(location)
    given = problem.get("input")
    setter = f"pulumi config set --path {shlex.quote(key)}"
    kind = problem["type"]
    if kind == "extra_forbidden":
        siblings = _keys_at(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), siblings, n=1, cutoff=0.5)
        known = f"did you mean {close[0]!r}?" if close else f"known keys here: {', '.join(sorted(siblings))}"
        what, fix = f"unknown key; {known}", f"pulumi config rm --path {shlex.quote(key)} -s {stack}"
    elif kind == "missing":
        what, fix = "is missing", f"{setter} {_example(location)} -s {stack}"
    elif kind == "literal_error":
        allowed = problem["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        options = [option.strip() for option in allowed.split(",")]
        close = difflib.get_close_matches(str(given), options, n=1, cutoff=0.4)
        what = f"is {given!r}; allowed: {', '.join(options)}"
        fix = f"{setter} {(close or options)[0]} -s {stack}"
    else:
        reason = problem["msg"].removeprefix("Value error, ")
        shown = "a structure" if isinstance(given, dict | list) else repr(given)
        what, fix = f"is {shown}: {reason[0].lower() + reason[1:]}", f"{setter} {_example(location)} -s {stack}"
    return [_Mistake(key, what, fix, _line(lines, key))]


def _key_path(location: tuple[Any, ...]) -> str:
    """`("nodePools", 1, "capacity")` -> `trainyard:nodePools[1].capacity`, as `pulumi config set --path` takes it."""
    path = f"{PROJECT}:{location[0]}"
    for part in location[1:]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _section_at(location: tuple[Any, ...]) -> type[_Section] | None:
    """The model that describes the mapping at a location; None where there is none."""
    section: type[_Section] | None = Settings
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for f in section.model_fields.values() if f.alias == part), None) if section else None
        section = _section_in(field.annotation) if field else None
    return section


def _section_in(annotation: Any) -> type[_Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, _Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    section = _section_at(location)
    return [str(field.alias) for field in section.model_fields.values()] if section else []


# A value to show in the remedy of a key, where no default serves.
_EXAMPLES = {"target": "local", "name": "gpu-spot", "path": "~/.kube/config", "size": "10Gi", "memoryPerNode": "16Gi"}


def _example(location: tuple[Any, ...]) -> str:
    section = _section_at(location[:-1])
    field = next((f for f in section.model_fields.values() if f.alias == location[-1]), None) if section else None
    if str(location[-1]) in _EXAMPLES or field is None:
        return _EXAMPLES.get(str(location[-1]), "VALUE")
    return str(field.default) if isinstance(field.default, int | str) else "VALUE"


def _line(lines: Mapping[str, int] | None, key: str) -> int | None:
    """The line of a key; of the nearest enclosing one where the key itself is not in the file."""
    while lines:
        if key in lines:
            return lines[key]
        shorter = re.sub(r"(\[\d+\]|\.[^.\[\]]+)$", "", key)
        if shorter == key:
            return None
        key = shorter
    return None


def _collect_lines(node: Any, path: tuple[Any, ...], lines: dict[str, int]) -> None:
    """Line (from 1) of each key path in a composed YAML document."""
    import yaml  # noqa: PLC0415

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = (*path, str(key.value))
            lines[_dotted(where)] = key.start_mark.line + 1
            _collect_lines(value, where, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            where = (*path, index)
            lines[_dotted(where)] = value.start_mark.line + 1
            _collect_lines(value, where, lines)


def _dotted(path: tuple[Any, ...]) -> str:
    text = str(path[0])
    for part in path[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text


def _report(mistakes: list[_Mistake], source: str) -> str:
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    rows = [f"{source}: {count}; nothing was changed."]
    for mistake in mistakes:
        where = f" (line {mistake.line})" if mistake.line else ""
        rows += [f"  {mistake.key}{where}: {mistake.what}", f"    fix: {mistake.fix}"]
    return "\n".join(rows)
