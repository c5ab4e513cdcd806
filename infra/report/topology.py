"""A picture of a stack, drawn from its resources: network, cluster, pools, storage, and what runs in the cluster.

`drawing` decides what is shown; `mermaid` and `dot` only write it down. Nothing of a name reaches the syntax of either:
ids are made here, and labels are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from infra.report.escape import plain
from infra.report.inputs import mapping, text
from infra.report.pools import Pool, pools
from infra.report.preview import UNKNOWN, Resource

MOST_OF_A_KIND = 12
"""Pools, workloads of a namespace, zones: of more, the rest is one box that says how many."""
_LONG = 48
"""Characters of a line in a box."""

Shape = Literal["box", "round", "store"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Box:
    """One box."""

    id: str
    lines: tuple[str, ...]
    shape: Shape = "box"


@dataclass(frozen=True)
class Arrow:
    """One arrow between two boxes."""

    start: str
    end: str
    label: str = ""
    dashed: bool = False


@dataclass
class Group:
    """A frame with boxes and frames in it."""

    id: str
    title: str
    boxes: list[Box] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def walk(self) -> Iterator[Group]:
        """This frame and all in it."""
        yield self
        for group in self.groups:
            yield from group.walk()


@dataclass(frozen=True)
class Drawing:
    """What is drawn."""

    boxes: Sequence[Box]
    """Those outside every frame."""
    groups: Sequence[Group]
    arrows: Sequence[Arrow]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see."""
        return not self.boxes and not any(group.boxes for one in self.groups for group in one.walk())


def mermaid(resources: Iterable[Resource]) -> str:
    """The picture as a Mermaid flowchart."""
    found = drawing(resources)
    lines = ["flowchart LR", *(f"  {_mermaid_box(box)}" for box in found.boxes)]
    for group in found.groups:
        lines += [f"  {line}" for line in _mermaid_group(group)]
    if found.empty:
        lines.append('  n0["nothing to draw: no resources"]')
    for arrow in found.arrows:
        link = "-.->" if arrow.dashed else "-->"
        label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
        lines.append(f"  {arrow.start} {link}{label} {arrow.end}")
    return "\n".join(lines) + "\n"


def dot(resources: Iterable[Resource]) -> str:
    """The picture in the language of Graphviz."""
    found = drawing(resources)
    lines = [
        "digraph stack {",
        "  rankdir=LR;",
        '  graph [fontname="sans-serif", fontsize=11, compound=true];',
        '  node [fontname="sans-serif", fontsize=10, shape=box];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    lines += [f"  {_dot_box(box)}" for box in found.boxes]
    for group in found.groups:
        lines += [f"  {line}" for line in _dot_group(group)]
    if found.empty:
        lines.append('  n0 [label="nothing to draw: no resources"];')
    for arrow in found.arrows:
        styles = [f'label="{_dot_text(arrow.label)}"'] if arrow.label else []
        styles += ["style=dashed"] if arrow.dashed else []
        style = f" [{', '.join(styles)}]" if styles else ""
        lines.append(f"  {arrow.start} -> {arrow.end}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def drawing(resources: Iterable[Resource]) -> Drawing:
    """What is drawn of a stack's resources."""
    return _Artist(list(resources)).drawing()


# --- what is shown --------------------------------------------------------------------------------------------------

_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Release", "CronJob")
_OUTSIDE = {
    "aws:s3/bucket:Bucket": "S3 bucket",
    "aws:ecr/repository:Repository": "ECR",
    "aws:kms/key:Key": "KMS key",
    "aws:cloudwatch/logGroup:LogGroup": "CloudWatch logs",
    "aws:budgets/budget:Budget": "budget",
}


class _Artist:
    def __init__(self, resources: list[Resource]) -> None:
        # The engine's order is another one each time, the picture is not.
        self._resources = sorted(resources, key=lambda one: (one.type, one.name, one.urn))
        self._pools = pools(resources)
        self._pool_boxes: dict[str, str] = {}
        self._arrows: list[Arrow] = []
        self._count = 0

    def drawing(self) -> Drawing:
        clusters = self._clusters()
        frames = [self._network(), self._machines(), self._storage(), *self._inside(), self._around()]
        for pool in dict.fromkeys(self._pool_boxes.values()):
            self._arrows += [Arrow(clusters[0].id, pool)] if clusters else []
        groups = [group for group in frames if any(one.boxes for one in group.walk())]
        return Drawing(clusters, groups, self._arrows)

    def _of(self, kind: str) -> list[Resource]:
        return [one for one in self._resources if one.type == kind]

    def _id(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def _box(self, *lines: str, shape: Shape = "box") -> Box:
        return Box(self._id(), tuple(line for line in lines if line), shape)

    def _group(self, title: str) -> Group:
        self._count += 1
        return Group(f"g{self._count}", title)

    def _clusters(self) -> list[Box]:
        made = []
        for one in self._of("aws:eks/cluster:Cluster"):
            version = text(one.inputs.get("version"))
            access = mapping(one.inputs.get("vpcConfig"))
            public = "API public" if access.get("endpointPublicAccess") is True else "API private"
            name = text(one.inputs.get("name")) or one.name
            made.append(self._box(name, f"EKS {version}".strip(), public, shape="round"))
        return made

    def _network(self) -> Group:
        vpcs = self._of("aws:ec2/vpc:Vpc")
        addresses = " ".join(text(one.inputs.get("cidrBlock")) for one in vpcs)
        frame = self._group(f"VPC {addresses}".strip() if vpcs else "network")
        zones: dict[str, list[str]] = {}
        for one in self._of("aws:ec2/subnet:Subnet"):
            tags = mapping(one.inputs.get("tags"))
            kind = "public" if "kubernetes.io/role/elb" in tags else "private"
            zone = text(one.inputs.get("availabilityZone")) or "zone not known yet"
            zones.setdefault(zone, []).append(f"{kind} {text(one.inputs.get('cidrBlock'))}".strip())
        for zone, subnets in _few(sorted(zones.items())):
            frame.boxes.append(self._box(zone, *_few(sorted(subnets, reverse=True), 4)))
        if hidden := len(zones) - MOST_OF_A_KIND:
            frame.boxes += [self._box(f"and {hidden} more zones")] if hidden > 0 else []
        gateways = self._of("aws:ec2/natGateway:NatGateway")
        if gateways:
            frame.boxes.append(self._box(_counted(len(gateways), "NAT gateway"), "way out"))
        endpoints = [
            one
            for one in self._of("aws:ec2/vpcEndpoint:VpcEndpoint")
            if text(one.inputs.get("vpcEndpointType")) == "Interface"
        ]
        if endpoints:
            frame.boxes.append(self._box(_counted(len(endpoints), "interface endpoint")))
        return frame

    def _machines(self) -> Group:
        frame = self._group("node pools")
        for pool in self._pools[:MOST_OF_A_KIND]:
            box = self._box(*_pool_lines(pool))
            frame.boxes.append(box)
            self._pool_boxes[pool.name] = box.id
        if rest := self._pools[MOST_OF_A_KIND:]:
            known = [pool.maximum for pool in rest]
            most = sum(one or 0 for one in known)
            machines = f"up to {most} machines" if None not in known else "machines not known yet"
            box = self._box(f"and {len(rest)} more pools", machines)
            frame.boxes.append(box)
            self._pool_boxes |= {pool.name: box.id for pool in rest}
        return frame

    def _storage(self) -> Group:
        frame = self._group("file systems")
        for one in self._of("aws:fsx/lustreFileSystem:LustreFileSystem"):
            size, speed = one.inputs.get("storageCapacity"), one.inputs.get("perUnitStorageThroughput")
            box = self._box(
                "Lustre" if one.name == "lustre" else f"Lustre {one.name}",
                f"{size:.0f} GiB" if isinstance(size, int | float) else "",
                f"{speed:.0f} MB/s per TiB" if isinstance(speed, int | float) else "",
                shape="store",
            )
            frame.boxes.append(box)
        for one in self._of("aws:efs/fileSystem:FileSystem"):
            name = "EFS" if one.name == "efs" else f"EFS {one.name}"
            frame.boxes.append(self._box(name, text(one.inputs.get("throughputMode")), shape="store"))
        with_gpus = [self._pool_boxes[pool.name] for pool in self._pools if pool.gpus and pool.name in self._pool_boxes]
        for pool in dict.fromkeys(with_gpus):
            self._arrows += [Arrow(pool, box.id, dashed=True) for box in frame.boxes[:2]]
        return frame

    def _inside(self) -> Iterator[Group]:
        spaces: dict[str, list[Resource]] = {}
        for one in self._resources:
            if one.type.startswith("kubernetes:") and one.kind in _WORKLOADS:
                spaces.setdefault(_space(one), []).append(one)
        frame = self._group("in the cluster")
        named = sorted(spaces.items())
        for space, workloads in named[:MOST_OF_A_KIND]:
            inner = self._group(space)
            ordered = sorted(workloads, key=lambda one: (_WORKLOADS.index(one.kind), one.name))
            for one in ordered[:MOST_OF_A_KIND]:
                box = self._box(one.name, _workload(one))
                inner.boxes.append(box)
                if pool := self._home(one):
                    self._arrows.append(Arrow(box.id, pool, dashed=True))
            if hidden := ordered[MOST_OF_A_KIND:]:
                inner.boxes.append(self._box(f"and {len(hidden)} more workloads"))
            frame.groups.append(inner)
        if rest := named[MOST_OF_A_KIND:]:
            count = sum(len(workloads) for _, workloads in rest)
            frame.boxes.append(self._box(f"and {_counted(len(rest), 'more namespace')}", _counted(count, "workload")))
        yield frame

    def _home(self, one: Resource) -> str:
        """The box of the pool that a workload asks for by its label."""
        pod = mapping(mapping(mapping(one.inputs.get("spec")).get("template")).get("spec"))
        values = mapping(mapping(one.inputs.get("values")).get("controllerManager"))
        selector = mapping(pod.get("nodeSelector")) or mapping(values.get("nodeSelector"))
        return self._pool_boxes.get(text(selector.get("trainyard.dev/pool")), "")

    def _around(self) -> Group:
        frame = self._group("beside the cluster")
        for kind, name in _OUTSIDE.items():
            found = self._of(kind)
            if not found:
                continue
            one = found[0]
            told = text(one.inputs.get("bucket")) or text(one.inputs.get("name"))
            store: Shape = "store" if name in {"S3 bucket", "ECR"} else "box"
            what = name if len(found) == 1 else f"{name} x {len(found)}"
            frame.boxes.append(self._box(what, told if len(found) == 1 else "", shape=store))
        return frame


def _pool_lines(pool: Pool) -> list[str]:
    counts = ["?" if one is None else str(one) for one in (pool.minimum, pool.maximum)]
    machines = counts[0] if counts[0] == counts[1] else f"{counts[0]}-{counts[1]}"
    lines = [pool.name, f"{machines} x {' or '.join(_few(pool.types, 3)) or 'type not known'}", pool.capacity]
    if pool.gpus and pool.machine:
        efa = f", {pool.efa} EFA" if pool.efa else ""
        lines.append(f"{pool.gpus} {pool.machine.gpu} each{efa}")
    return lines


def _space(one: Resource) -> str:
    named = mapping(one.inputs.get("metadata")).get("namespace", one.inputs.get("namespace"))
    if named is UNKNOWN:
        return "namespaces that are made as well"
    return f"namespace {text(named) or 'default'}"


def _workload(one: Resource) -> str:
    if one.kind == "Release":
        chart = text(one.inputs.get("chart")).rstrip("/").rsplit("/", 1)[-1]
        return f"chart {chart} {text(one.inputs.get('version'))}".strip()
    replicas: Any = mapping(one.inputs.get("spec")).get("replicas")
    return f"{one.kind} x {replicas:.0f}" if isinstance(replicas, int | float) else one.kind


def _few(found: Sequence[_T], most: int = MOST_OF_A_KIND) -> Sequence[_T]:
    return found[:most]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- how it is written ------------------------------------------------------------------------------------------------

_MERMAID = {"box": ('["', '"]'), "round": ('(["', '"])'), "store": ('[("', '")]')}
_MERMAID_SIGNS = re.compile(r"""["'#&<>`%{}$\\|;~*_\[\]]|:(?=fa-)""")
_DOT = {"box": "box", "round": "oval", "store": "cylinder"}


def _mermaid_text(line: str) -> str:
    """A label: whatever means something to Mermaid, HTML or Markdown is a numbered entity."""
    return _MERMAID_SIGNS.sub(lambda sign: f"#{ord(sign[0])};", plain(line, _LONG))


def _mermaid_box(box: Box) -> str:
    begin, end = _MERMAID[box.shape]
    return f"{box.id}{begin}{'<br/>'.join(map(_mermaid_text, box.lines))}{end}"


def _mermaid_group(group: Group) -> Iterator[str]:
    yield f'subgraph {group.id}["{_mermaid_text(group.title)}"]'
    for box in group.boxes:
        yield f"  {_mermaid_box(box)}"
    for inner in group.groups:
        for line in _mermaid_group(inner):
            yield f"  {line}"
    yield "end"


def _dot_text(line: str) -> str:
    return plain(line, _LONG).replace("\\", "\\\\").replace('"', '\\"')


def _dot_box(box: Box) -> str:
    label = "\\n".join(map(_dot_text, box.lines))
    return f'{box.id} [label="{label}", shape={_DOT[box.shape]}];'


def _dot_group(group: Group) -> Iterator[str]:
    yield f"subgraph cluster_{group.id} {{"
    yield f'  label="{_dot_text(group.title)}";'
    for box in group.boxes:
        yield f"  {_dot_box(box)}"
    for inner in group.groups:
        for line in _dot_group(inner):
            yield f"  {line}"
    yield "}"
