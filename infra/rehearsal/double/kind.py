"""What the double has to know of one resource type; subclasses live in the module of their AWS service.

A kind says which AWS calls its inputs become (`requests`); the server validates these before anything is made.
`create`, `read`, `update` and `delete` make them through `Aws`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from infra.errors import TrainyardError
from infra.rehearsal.double.validation import mistakes
from infra.rehearsal.double.values import UNKNOWN

if TYPE_CHECKING:
    from infra.rehearsal.double.aws import Aws


@dataclass(frozen=True)
class Call:
    """One request to AWS."""

    service: str
    """As botocore names it: `ec2`, `eks`, …"""
    operation: str
    """As the API names it: `CreateVpc`."""
    params: Mapping[str, Any]
    """The request. Members that are None are left out."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Pulumi's name of a member where it is not just the camelCase of AWS's: `{"LaunchTemplateData": ""}`."""

    def given(self, **params: Any) -> Call:
        """The same call with more or other parameters: ids that were unknown before."""
        return replace(self, params={**self.params, **params})


@dataclass(frozen=True)
class Made:
    """A resource that now exists."""

    id: str
    outputs: Mapping[str, Any]
    """What AWS computed, in Pulumi's names; laid over the inputs."""


@dataclass(frozen=True)
class Failure:
    """Something in the inputs that AWS, or the double, refuses."""

    path: str
    """The property's path as Pulumi writes it, e.g. `networkInterfaces[1].deviceIndex`; empty: the whole resource."""
    reason: str
    """A sentence: what is wrong and what would be right."""


class Kind(abc.ABC):
    """One Pulumi resource type.

    Inputs and outputs are plain values with Pulumi's camelCase names; in Check and in a preview any of them may be
    `UNKNOWN`. Every input that the program gives must be read by `requests` or `rules`, or be one of `for_provider`:
    one that isn't is refused with a sentence, so that no setting is dropped in silence.
    """

    token: ClassVar[str]
    """E.g. `aws:ec2/vpc:Vpc`."""
    replace_on: ClassVar[frozenset[str]] = frozenset()
    """Inputs whose change needs a new resource, by name or path without indices: `vpcId`, `vpcConfig.subnetIds`."""
    delete_first: ClassVar[bool] = False
    """Whether a replacement must wait until the old one is gone, beside the case that both have the same name."""
    computed: ClassVar[frozenset[str]] = frozenset()
    """Outputs that nobody knows before the resource is made, by name or path: `vpcConfig.clusterSecurityGroupId`."""
    recomputed: ClassVar[frozenset[str]] = frozenset()
    """Outputs that an update in place changes: a preview of one does not know them."""
    for_provider: ClassVar[frozenset[str]] = frozenset()
    """Inputs that tell AWS's provider how to delete or update, and never reach AWS: `forceDestroy`."""
    tagged: ClassVar[bool] = True
    """Whether it has `tags` and `tagsAll`; the provider's default tags are merged into them."""

    @abc.abstractmethod
    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """The calls that create it. An id that an earlier call of the list gives is `UNKNOWN`."""

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002
        """What AWS enforces beyond its models; may look at what exists already through `aws`."""
        return ()

    def replaces(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:  # noqa: ARG002
        """Inputs, named as in `replace_on`, whose change needs a new resource this time: a size that becomes less."""
        return ()

    def changes(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[Failure]:  # noqa: ARG002
        """What AWS refuses to change in place, from old to new inputs; not asked where a change replaces."""
        return ()

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: ARG002
        """Outputs that follow from the inputs (an ARN with the name in it), also in a preview."""
        return {}

    @abc.abstractmethod
    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:
        """Make it.

        Args:
            aws: the way to AWS's stand-in.
            name: the resource's name in the Pulumi program.
            inputs: all known.
        """

    @abc.abstractmethod
    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002
        """What AWS shows of it, in the form of inputs and outputs, to be laid over `state`; None: it is gone."""

    def update(
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Change it in place from the state `old` to the inputs `new`; returns outputs to lay over both."""
        raise NotImplementedError(
            f"the rehearsal cannot change {self.token} in place: write `update`, or name the input in `replace_on`"
        )

    @abc.abstractmethod
    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """Remove it; one that is gone already is no error."""


@contextmanager
def whole_or_gone(kind: Kind, aws: Aws, id: str, inputs: Mapping[str, Any]) -> Iterator[None]:  # noqa: A002
    """While more is said of a resource that was just made: if that fails, it is removed again.

    Pulumi learns of a resource when all of it is made. One that it never learnt of would be in the way of the next
    attempt, and would be left when the stack is removed.
    """
    try:
        yield
    except BaseException:
        with suppress(TrainyardError):  # why it could not be made whole is what is told
            kind.delete(aws, id, inputs)
        raise


def only(**members: Any) -> dict[str, Any]:
    """The members that are there: AWS's requests have no null."""
    return {name: value for name, value in members.items() if value is not None}


def each(values: Any, change: Any) -> Any:
    """`change` of each item of a list; an absent list stays None, an unknown one `UNKNOWN`."""
    return values if values is None or values is UNKNOWN else [change(value) for value in values]


def failures(kind: Kind, inputs: Mapping[str, Any], aws: Aws) -> list[Failure]:
    """All that is wrong with a resource's inputs, in one go."""
    watched = Watched(inputs)
    found: list[Failure] = []
    for call in kind.requests(watched):
        given = {name: value for name, value in call.params.items() if value is not None}
        for mistake in mistakes(call.service, call.operation, given):
            place = property_path(mistake.path, inputs, call.names)
            found.append(Failure(place, f"AWS would refuse this: {mistake.reason} ({call.service}:{call.operation})"))
    found += [Failure(f.path, f"AWS would refuse this: {f.reason}") for f in kind.rules(watched, aws)]
    for path in watched.unread():
        if not path.startswith("__") and path not in kind.for_provider:  # `__…` are the engine's own marks
            where = f"{type(kind).__module__.replace('.', '/')}.py"
            found.append(Failure(path, f"the rehearsal does not know this property: add it to {kind.token} in {where}"))
    return list(dict.fromkeys(found))


def property_path(path: tuple[str | int, ...], inputs: Any, names: Mapping[str, str]) -> str:
    """Pulumi's path of a member of an AWS request, as far as it can be told: to the deepest property that is there.

    AWS nests where Pulumi does not and names lists in another number: a part that has no counterpart is skipped.
    """
    written, here = "", inputs
    for part in path:
        if isinstance(part, int):
            if isinstance(here, list | tuple) and part < len(here):
                written, here = f"{written}[{part}]", here[part]
            continue
        if not isinstance(here, Mapping):
            continue
        lower = part[:1].lower() + part[1:]
        for candidate in (names.get(part), part, lower, f"{lower}s", lower.removesuffix("s")):
            if candidate and candidate in here:
                written, here = f"{written}.{candidate}" if written else candidate, here[candidate]
                break
    return written


class Watched(Mapping[str, Any]):
    """Inputs that remember what was looked at, at any depth."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {key: _watch(value) for key, value in values.items()}
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unread(self) -> list[str]:
        """Paths of the members that nobody has looked at."""
        found = []
        for key, value in self._values.items():
            if key not in self._read:
                found.append(key)
            else:
                found += [f"{key}{rest}" for rest in _unread_below(value)]
        return found


def _watch(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Watched(value)
    return [_watch(item) for item in value] if isinstance(value, list | tuple) else value


def _unread_below(value: Any) -> Iterator[str]:
    if isinstance(value, Watched):
        yield from (f".{path}" for path in value.unread())
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from (f"[{index}]{path}" for path in _unread_below(item))
