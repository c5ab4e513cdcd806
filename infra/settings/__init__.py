"""Stack settings: the only code that reads stack configuration.

`Pulumi.<stack>.yaml` -> `Settings`, one frozen tree. Whatever is wrong in a stack file is reported in one go: for each
mistake its key path and line, what is wrong, what would be right, and the command that fixes it.

Two doors lead here: the command reads the file before it starts anything (`read_stack_file`), and the Pulumi program
takes the same values from the engine (`from_engine`), so that `pulumi up` without the command is checked alike.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
import yaml
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from infra.errors import TrainyardError
from infra.settings.aws import Aws
from infra.settings.base import FROM_TEXT, Name, Section, Size, Switch, Whole, Words
from infra.wiring.naming import TAKEN_NAMESPACES
from infra.wiring.scheduling import taints_of

PROJECT = "trainyard"

Target = Literal["local", "kubeconfig", "aws"]
Capacity = Literal["on-demand", "spot"]
AccessMode = Literal["ReadWriteMany", "ReadWriteOnce"]

LOCAL_NODES_MAX = 250
"""Nodes of the local cluster: the third part of 127.A.number.0, see infra/local/nodes."""

YAML_MISTAKES = (
    yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError,
)  # fmt: skip
"""What reading a YAML text may raise; PyYAML lets through what its constructors of dates and numbers raise."""

# Pulumi's own keys of a stack file (`ProjectStack` in Pulumi's sdk/go/common/workspace).
_PULUMI_KEYS = ("config", "encryptedkey", "encryptionsalt", "environment", "secretsprovider")


class SettingsError(TrainyardError):
    """A stack's settings cannot be used; the message lists every mistake with the command that fixes it."""

    exit_code = 2


def _free_namespace(value: str) -> str:
    if value in TAKEN_NAMESPACES:
        raise ValueError(
            f"must be a namespace of the jobs' own: the stack makes it, and {', '.join(TAKEN_NAMESPACES)}"
            " are there already or Trainyard's own"
        )
    return value


class NodePool(Section):
    """Machines of one kind."""

    name: Name
    """Also the value of the node label `trainyard.dev/pool`."""
    nodes: Annotated[int, Field(ge=0, le=100), Whole] = 1
    """How many machines the pool has; all pools together at most 250."""
    gpus_per_node: Annotated[int, Field(ge=0, le=16), Whole] = 0
    """GPUs of one machine, offered as `nvidia.com/gpu`. On the local target they are numbers, not devices."""
    cpus_per_node: Annotated[int, Field(ge=1, le=1024), Whole] | None = None
    """CPUs offered to pods; absent: what the machine has."""
    memory_per_node: Size | None = None
    """Memory offered to pods; absent: what the machine has."""
    capacity: Capacity = "on-demand"
    """`spot` machines carry a taint that only workloads which survive a reclaim tolerate."""


class Etcd(Section):
    """The rendezvous store of the training jobs (not the store of the API server)."""

    storage: Size = "1Gi"
    """Size of its volume."""
    storage_class: Words | None = None
    """StorageClass of its volume; absent: the cluster's default. Not for `target: local`, which brings its own."""
    members: Annotated[Literal[1, 3], Whole] = 1
    """How many; three keep the rendezvous through the loss of a machine. Absent: 3 with `target: aws`, else 1."""
    secure: Switch = False
    """TLS, and certificates of the clients as authentication. Absent: true with `target: aws`, else false."""


class Checkpoints(Section):
    """The shared volume that jobs mount at /checkpoints."""

    size: Size = "10Gi"
    """Size of the volume; on the local target it is not enforced."""
    storage_class: Words | None = None
    """StorageClass of the volume; absent: the cluster's default. Not for `target: local`, which brings its own."""
    access_mode: AccessMode = "ReadWriteMany"
    """`ReadWriteMany` lets workers on all nodes mount it, and needs a class that offers it (NFS, EFS, …). The default
    classes of kind, k3d and minikube do not: there `ReadWriteOnce` keeps all workers of a job on one node."""


class Controller(Section):
    """The ElasticJob controller."""

    replicas: Annotated[int, Field(ge=1, le=3), Whole] = 1
    """More than one: the others stand by, elected by a Lease."""


class Local(Section):
    """Only for `target: local`."""

    api_server_port: Annotated[int, Field(ge=1024, le=65535), Whole] | None = None
    """A fixed port for the API server; absent: a free one is chosen and kept."""


class Kubeconfig(Section):
    """Only for `target: kubeconfig`: a cluster that exists already (kind, k3d, minikube, any)."""

    path: Words
    """Path of the kubeconfig file; `~` is expanded, a relative path begins at the folder of Pulumi.yaml."""
    context: Words | None = None
    """Context in that file; absent: its current one."""


class Images(Section):
    """What the stack's own pods run.

    The local target takes them from its image table. Any other cluster pulls them, so there both must be named.
    """

    controller: Words = "trainyard/controller:local"
    """Runs the ElasticJob controller."""
    etcd: Words = "trainyard/etcd:local"
    """Runs etcd."""


def _pools_of(earlier: dict[str, Any]) -> tuple[NodePool, ...]:
    return (NodePool(name="system"),) if earlier.get("target") == "local" else ()


class Settings(Section):
    """Everything that a stack file can say."""

    target: Target
    """Where the cluster is: `local` (this computer), `kubeconfig` (one that exists), `aws` (an EKS cluster, which the
    stack makes)."""
    namespace: Annotated[Name, AfterValidator(_free_namespace)] = "training"
    """Namespace of the training jobs; the stack makes it."""
    node_pools: tuple[NodePool, ...] = Field(default_factory=_pools_of)
    """Only for `target: local`: the machines, one kubelet each; absent: one pool `system` of one machine. A pool
    without GPUs that is not spot takes etcd and the controller."""
    etcd: Etcd = Field(default=Etcd(), validate_default=True)
    """The rendezvous store of the training jobs (not the store of the API server)."""
    checkpoints: Checkpoints = Checkpoints()
    """The shared volume that jobs mount at /checkpoints."""
    controller: Controller = Controller()
    """The ElasticJob controller."""
    images: Images = Images()
    """What the stack's own pods run; both must be named with `target: kubeconfig`."""
    local: Local | None = None
    """Only for `target: local`."""
    kubeconfig: Kubeconfig | None = None
    """Only for `target: kubeconfig`."""
    aws: Aws | None = None
    """Only for `target: aws`."""

    @field_validator("etcd")
    @classmethod
    def _etcd_of_the_target(cls, etcd: Etcd, info: ValidationInfo) -> Etcd:
        if info.data.get("target") != "aws":
            return etcd
        usual: dict[str, Any] = {"members": 3, "secure": True}
        return etcd.model_copy(update={k: v for k, v in usual.items() if k not in etcd.model_fields_set})


_Location = tuple[str | int, ...]
"""Where a value stands: `("nodePools", 1, "capacity")`."""


@dataclass(frozen=True)
class _Mistake:
    key: str
    what: str
    fix: str
    line: int | None = None


@dataclass(frozen=True)
class _Contradiction:
    """Settings that are right one by one and wrong together."""

    at: _Location
    what: str
    fix: str | None = None
    """None: edit the file by hand."""
    by: tuple[_Location, ...] = (("target",),)
    """The values that led to this; where one of them is wrong itself, that is what is said."""


def parse(
    values: Mapping[str, Any],
    *,
    stack: str,
    source: str,
    lines: Mapping[str, int] | None = None,
    text: bool = False,
) -> Settings:
    """Check the configuration of a stack.

    Args:
        values: configuration by full key (`trainyard:target`), structured values already decoded.
        stack: the stack's name, for the commands in the message.
        source: where the values came from, for the message.
        lines: line of each key path in `source`, where known.
        text: numbers may come as text.

    Raises:
        SettingsError: with all mistakes at once.
    """
    settings, mistakes = _check(values, stack, lines or {}, text=text)
    if settings is None or mistakes:
        raise SettingsError(_report(mistakes, source))
    return settings


def read_stack_file(path: Path, stack: str) -> Settings:
    """Read and check `Pulumi.<stack>.yaml`.

    Raises:
        SettingsError: the file is missing, is not YAML, or has mistakes (all of them are listed).
    """
    try:
        written = path.read_text(encoding="utf-8")
    except OSError as error:
        known = sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in path.parent.glob("Pulumi.*.yaml"))
        raise SettingsError(
            f"stack {stack!r} cannot be read: {path}: {error.strerror}. Stacks here: {', '.join(known) or 'none'}."
            " Name one with `-s`, or run this in the folder that holds Pulumi.yaml."
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SettingsError(
            f"{path} is not UTF-8 text (line {line} holds another encoding's character). Save it as UTF-8:"
            f" iconv -f latin1 -t utf-8 {shlex.quote(str(path))}"
        ) from None
    places = _Places()
    try:
        places.add(yaml.compose(written, Loader=yaml.SafeLoader))
        document = {} if places.unreadable else yaml.safe_load(written) or {}
    except YAML_MISTAKES as error:
        raise SettingsError(f"{path} is not YAML: {error}. Mend the file at that place.") from None
    if places.unreadable:
        raise SettingsError(f"{path}, {'; '.join(places.unreadable)}. Nothing was changed.")
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(config, dict | None):
        raise SettingsError(f"{path}: must be a mapping with a mapping `config` in it, as in Pulumi.local.yaml")
    lines = {key.removeprefix("config."): line for key, line in places.lines.items()}
    mistakes = [*_foreign_keys(document, lines), *places.mistakes(stack)]
    settings, more = _check(_with_text_keys(config or {}), stack, lines, text=False)
    if settings is None or mistakes or more:
        raise SettingsError(_report(mistakes + more, str(path)))
    return settings


def from_engine(config: Mapping[str, Any], stack: str) -> Settings:
    """Check the values that the engine hands to the program: structured ones arrive as JSON text, the rest as text.

    Raises:
        SettingsError: with all mistakes at once.
    """
    values = {key: _decode(value) for key, value in config.items()}
    return parse(values, stack=stack, source=f"Pulumi.{stack}.yaml", text=True)


def _decode(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # a text that happens to begin so: its key says whether that may be
    return value


def _check(
    values: Mapping[str, Any], stack: str, lines: Mapping[str, int], *, text: bool
) -> tuple[Settings | None, list[_Mistake]]:
    """The settings, if every single value is right, and all mistakes."""
    prefix = f"{PROJECT}:"
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    mistakes = [mistake for key in values if (mistake := _wrong_prefix(key, lines))]
    wrong: list[_Location] = []
    settings, draft = None, None
    try:
        draft = settings = _validated(own, text=text)
    except pydantic.ValidationError as error:
        # A default that depends on a value that is wrong is no mistake of its own.
        problems = [p for p in error.errors(include_url=False) if p["type"] != "default_factory_not_called"]
        mistakes += [_explain(problem, stack, lines) for problem in problems]
        wrong = [tuple(problem["loc"]) for problem in problems]
        draft = _draft(own, wrong, text=text)
    for found in _contradictions(draft) if draft else ():
        if not any(_touches(place, bad) for place in found.by for bad in wrong):
            key = _key_path(found.at)
            fix = f"{found.fix} -s {stack}" if found.fix else f"edit {key} in Pulumi.{stack}.yaml"
            mistakes.append(_Mistake(key, found.what, fix, _line(lines, key)))
    return settings, mistakes


def _validated(own: Mapping[str, Any], *, text: bool) -> Settings:
    return Settings.model_validate(own, by_alias=True, by_name=False, context=FROM_TEXT if text else None)


def _draft(own: Mapping[str, Any], wrong: list[_Location], *, text: bool) -> Settings | None:
    """The settings as they would be without their wrong values, so that the others can be held against each other."""
    values: Any = copy.deepcopy(dict(own))
    for *outer, last in wrong:
        parent = values
        for part in outer:
            parent = parent[part] if isinstance(part, int) else parent.get(part, {})
        if isinstance(last, int):
            parent[last] = {"name": f"pool-{last}"}
        elif last in _REQUIRED:
            parent[last] = f"pool-{outer[-1]}" if last == "name" else _EXAMPLES[last]
        else:
            parent.pop(last, None)
    try:
        return _validated(values, text=text)
    except pydantic.ValidationError:
        return None


def _touches(place: _Location, bad: _Location) -> bool:
    """Whether a wrong value is at a place, around it or in it."""
    shared = min(len(place), len(bad))
    return place[:shared] == bad[:shared]


def _contradictions(settings: Settings) -> Iterator[_Contradiction]:
    """What does not go together in settings whose values are right one by one."""
    pools = settings.node_pools
    for index, pool in enumerate(pools):
        first = next(number for number, other in enumerate(pools) if other.name == pool.name)
        if first < index:
            names: tuple[_Location, ...] = (("nodePools", first, "name"), ("nodePools", index, "name"))
            yield _Contradiction(names[1], f"two pools are named {pool.name!r}", by=names)
    yield from _not_for_local(settings) if settings.target == "local" else _not_for_kubeconfig(settings)


def _not_for_local(settings: Settings) -> Iterator[_Contradiction]:
    if settings.kubeconfig is not None:
        yield _Contradiction(("kubeconfig",), "has no meaning with target local", _remove("kubeconfig"))
    classes = {"etcd": settings.etcd.storage_class, "checkpoints": settings.checkpoints.storage_class}
    for section, storage_class in classes.items():
        if storage_class is not None:
            where = (section, "storageClass")
            yield _Contradiction(where, "has no meaning with target local: it brings its own", _remove(*where))
    # A wrong value counts as its default here, which makes room and a home: nothing is said that it could refute.
    if not any(pool.nodes and not taints_of(pool) for pool in settings.node_pools):
        what = "one pool with a node must have neither GPUs nor capacity spot: etcd and the controller run there"
        yield _Contradiction(("nodePools",), what)
    if (total := sum(pool.nodes for pool in settings.node_pools)) > LOCAL_NODES_MAX:
        yield _Contradiction(("nodePools",), f"ask for {total} nodes; the local target has room for {LOCAL_NODES_MAX}")


def _not_for_kubeconfig(settings: Settings) -> Iterator[_Contradiction]:
    if settings.local is not None:
        yield _Contradiction(("local",), "has no meaning with target kubeconfig", _remove("local"))
    if "node_pools" in settings.model_fields_set:
        what = "has no meaning with target kubeconfig: the machines of that cluster are there already"
        yield _Contradiction(("nodePools",), what, _remove("nodePools"))
    if settings.kubeconfig is None:
        fix = f"pulumi config set --path {PROJECT}:kubeconfig.path '~/.kube/config'"
        by: tuple[_Location, ...] = (("target",), ("kubeconfig",))
        yield _Contradiction(("kubeconfig",), "target kubeconfig needs it: at least its `path`", fix, by)
    for image in ("controller", "etcd"):
        if image not in settings.images.model_fields_set:
            where = ("images", image)
            what = (
                "is missing: with target kubeconfig the cluster pulls it, and the default is only in the image table"
                " of the local target"
            )
            fix = f"pulumi config set --path {_key_path(where)} REGISTRY/{image}:TAG"
            yield _Contradiction(where, what, fix, (("target",), where))


def _remove(*location: str | int) -> str:
    return f"pulumi config rm --path {shlex.quote(_key_path(location))}"


def _wrong_prefix(key: str, lines: Mapping[str, int]) -> _Mistake | None:
    """A key of this project whose first part is missing or mistyped; None for good keys and those of providers."""
    prefix, colon, rest = key.partition(":")
    if not colon:
        what = f"has no namespace; keys of this project begin with '{PROJECT}:'"
        return _Mistake(key, what, f"rename it to {PROJECT}:{key}", _line(lines, key))
    if prefix != PROJECT and difflib.get_close_matches(prefix, [PROJECT], cutoff=0.7):
        what = f"is not read: did you mean '{PROJECT}:{rest}'?"
        return _Mistake(key, what, f"rename it to {PROJECT}:{rest}", _line(lines, key))
    return None


def _foreign_keys(document: Mapping[Any, Any], lines: Mapping[str, int]) -> list[_Mistake]:
    """Keys beside `config` that Pulumi does not know, and would pass over in silence."""
    mistakes = []
    for key in document:
        if not isinstance(key, str) or key in _PULUMI_KEYS:
            continue  # a key that is no text is reported as such
        close = difflib.get_close_matches(key, _PULUMI_KEYS, n=1)
        if key.startswith(f"{PROJECT}:"):
            what, fix = "stands beside `config`, not in it", "indent it below `config:`"
        elif close:
            what, fix = f"unknown key; did you mean {close[0]!r}?", f"rename it to {close[0]}"
        else:
            what, fix = f"unknown key; Pulumi knows here: {', '.join(_PULUMI_KEYS)}", "remove it"
        mistakes.append(_Mistake(key, what, fix, lines.get(key)))
    return mistakes


def _explain(problem: Any, stack: str, lines: Mapping[str, int]) -> _Mistake:
    """Turn one pydantic error into a sentence with a remedy."""
    location = tuple(problem["loc"])
    key = _key_path(location)
    given, context = problem.get("input"), problem.get("ctx", {})
    setter = f"pulumi config set --path {shlex.quote(key)}"
    kind = problem["type"]
    if kind == "extra_forbidden":
        siblings = _keys_at(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), siblings, n=1, cutoff=0.5)
        known = f"did you mean {close[0]!r}?" if close else f"known keys here: {', '.join(sorted(siblings))}"
        what, fix = f"unknown key; {known}", f"pulumi config rm --path {shlex.quote(key)} -s {stack}"
    elif kind == "missing":
        what, fix = "is missing", f"{setter} {_example(location)} -s {stack}"
    elif isinstance(given, dict) and set(given) == {"secure"}:
        what, fix = "is encrypted; no setting of a stack is a secret", f"{setter} {_example(location)} -s {stack}"
    elif kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ").replace("'", "")
        options = [option.strip() for option in allowed.split(",")]
        close = difflib.get_close_matches(str(given), options, n=1, cutoff=0.4)
        what = f"is {_shown(given)}; allowed: {', '.join(options)}"
        fix = f"{setter} {(close or options)[0]} -s {stack}"
    elif kind in _SHAPES:
        what, fix = f"is {_shown(given)}: must be {_SHAPES[kind]}", f"edit {key} in Pulumi.{stack}.yaml"
    else:
        reason = {
            "string_type": "must be text; in quotes if YAML takes it for something else",
            "greater_than_equal": f"must be at least {context.get('ge')}",
            "less_than_equal": f"must be at most {context.get('le')}",
        }.get(kind, problem["msg"].removeprefix("Value error, "))
        reason = reason[0].lower() + reason[1:]
        what, fix = f"is {_shown(given)}: {reason}", f"{setter} {_example(location)} -s {stack}"
    return _Mistake(key, what, fix, _line(lines, key))


_SHAPES = {
    "model_type": "a mapping (indented lines of `key: value`)",
    "tuple_type": "a list (lines that begin with `- `)",
}


def _shown(value: Any) -> str:
    """A value as the user wrote it, roughly."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _key_path(location: _Location) -> str:
    """`("nodePools", 1, "capacity")` -> `trainyard:nodePools[1].capacity`, as `pulumi config set --path` takes it."""
    return f"{PROJECT}:{_dotted(location)}"


def _dotted(location: _Location) -> str:
    text = str(location[0])
    for part in location[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text


def _section_at(location: _Location) -> type[Section] | None:
    """The model that describes the mapping at a location; None where there is none."""
    section: type[Section] | None = Settings
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for f in section.model_fields.values() if f.alias == part), None) if section else None
        section = _section_in(field.annotation) if field else None
    return section


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


def _keys_at(location: _Location) -> list[str]:
    section = _section_at(location)
    return [str(field.alias) for field in section.model_fields.values()] if section else []


_REQUIRED = ("target", "name", "path")
# A value to show in the remedy of a key, where no default serves.
_EXAMPLES = {
    "target": "local",
    "name": "gpu-spot",
    "path": "~/.kube/config",
    "size": "10Gi",
    "memoryPerNode": "16Gi",
    "cpusPerNode": "4",
    "apiServerPort": "6443",
}


def _example(location: _Location) -> str:
    section = _section_at(location[:-1])
    field = next((f for f in section.model_fields.values() if f.alias == location[-1]), None) if section else None
    if str(location[-1]) in _EXAMPLES or field is None:
        return _EXAMPLES.get(str(location[-1]), "VALUE")
    return str(field.default) if isinstance(field.default, int | str) else "VALUE"


def _line(lines: Mapping[str, int], key: str) -> int | None:
    """The line of a key; of the nearest enclosing one where the key itself is not in the file."""
    while key not in lines:
        shorter = re.sub(r"(\[\d+\]|\.[^.\[\]]+)$", "", key)
        if shorter == key:
            return None
        key = shorter
    return lines[key]


class _Places:
    """Where the keys of a YAML document stand, and which of them are wrong as keys."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        """Line (from 1) of each key path; of what several aliases name, of the first path to it."""
        self.unreadable: list[str] = []
        """What is YAML by its form and yet no document: a sentence each."""
        self._not_text: list[tuple[str, int]] = []
        self._twice: list[tuple[str, int, int]] = []
        self._open: set[int] = set()
        self._seen: set[int] = set()

    def add(self, node: Any, path: _Location = ()) -> None:
        """Take up a composed node and all that is in it."""
        if id(node) in self._open:
            self.unreadable.append(
                f"line {node.start_mark.line + 1}: an alias (*name) stands inside what it names; write it out"
            )
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                where, line = (*path, str(key.value)), key.start_mark.line + 1
                if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                    self._not_text.append((_dotted(where), line))
                elif _dotted(where) in self.lines and key.tag.endswith(":str"):
                    self._twice.append((_dotted(where), self.lines[_dotted(where)], line))
                self.lines[_dotted(where)] = line
                self.add(value, where)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.lines[_dotted((*path, index))] = value.start_mark.line + 1
                self.add(value, (*path, index))
        elif isinstance(node, yaml.ScalarNode):
            try:
                yaml.SafeLoader("").construct_object(node)
            except YAML_MISTAKES:
                kind = node.tag.rsplit(":", 1)[-1]
                self.unreadable.append(
                    f"line {node.start_mark.line + 1}: {node.value!r} is no {kind}; put it in quotes if it is text"
                )
        self._open.remove(id(node))

    def mistakes(self, stack: str) -> list[_Mistake]:
        """Keys that are no text, and keys that are given twice."""
        edit = f"edit line {{}} of Pulumi.{stack}.yaml"
        found = [
            _Mistake(key.removeprefix("config."), "is no text; keys are text", edit.format(line), line)
            for key, line in self._not_text
        ]
        found += [
            _Mistake(key.removeprefix("config."), f"is given twice, first in line {first}", edit.format(line), line)
            for key, first, line in self._twice
        ]
        return found


def _with_text_keys(value: Any, done: dict[int, Any] | None = None) -> Any:
    """A decoded document without the keys that are no text: they are reported by themselves."""
    done = {} if done is None else done  # what several aliases name is taken once
    if id(value) not in done:
        if isinstance(value, dict):
            kept = {key: _with_text_keys(inner, done) for key, inner in value.items() if isinstance(key, str)}
            done[id(value)] = kept
        elif isinstance(value, list):
            done[id(value)] = [_with_text_keys(inner, done) for inner in value]
        else:
            return value
    return done[id(value)]


def _report(mistakes: list[_Mistake], source: str) -> str:
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    rows = [f"{source}: {count}; nothing was changed."]
    for mistake in mistakes:
        where = f" (line {mistake.line})" if mistake.line else ""
        rows += [f"  {mistake.key}{where}: {mistake.what}", f"    fix: {mistake.fix}"]
    return "\n".join(rows)
