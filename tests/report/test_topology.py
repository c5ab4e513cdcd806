"""The picture of a stack: everything important is in it, and no name can break out of a label."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_stacks import pool, provider, resource

from infra.report.preview import UNKNOWN, Resource
from infra.report.topology import MOST_OF_A_KIND, dot, drawing, mermaid

pytest_plugins = ["report_stacks_fixture"]

ID = r"n\d+"
LABEL = r'"[^"\n]*"'
BOX = re.compile(rf"{ID}(?:\[{LABEL}\]|\(\[{LABEL}\]\)|\[\({LABEL}\)\])")
ARROW = re.compile(rf"({ID}) (?:-->|-\.->)(?:\|{LABEL}\|)? ({ID})")
SUBGRAPH = re.compile(rf"subgraph g\d+\[{LABEL}\]")
ENTITY = re.compile(r"#\d+;")
DOT_LABEL = r'"(?:[^"\\\n]|\\.)*"'
DOT_LINE = re.compile(
    rf"(?:digraph stack \{{|\}}|rankdir=LR;|(?:graph|node|edge) \[.*\];|subgraph cluster_g\d+ \{{|label={DOT_LABEL};"
    rf"|{ID} \[label={DOT_LABEL}(?:, shape=\w+)?\];|{ID} -> {ID}(?: \[style=dashed\])?;)"
)

HOSTILE = [
    'x"]; click n1 "javascript:alert(1)"',
    "end",
    "</div><script>alert(1)</script>",
    "%%{init: {'theme':'x'}}%%",
    "```\n## heading",
    "`**bold**`",
    "#quot;#35;",
    "a|b{c}d[e](f)",
    "@somebody fa:fa-bomb $$x$$",
    "\u202eturned\u200b",
    "\x1b[31mred\x00",
    "数据-ßå",
    "x" * 500,
    "a\\",
    "A --> B",
    "---\ntitle: x\n---",
]


def assert_is_mermaid(written: str) -> None:
    """Every line is one of the four kinds that are written, frames are closed, arrows lead from box to box."""
    first, *lines = written.splitlines()
    assert first == "flowchart LR"
    depth, boxes, arrows = 0, set[str](), list[tuple[str, str]]()
    for line in map(str.strip, lines):
        if SUBGRAPH.fullmatch(line):
            depth += 1
        elif line == "end":
            depth -= 1
            assert depth >= 0
        elif arrow := ARROW.fullmatch(line):
            arrows.append((arrow[1], arrow[2]))
        else:
            assert BOX.fullmatch(line), line
            boxes.add(line.split("[")[0].split("(")[0])
        for label in re.findall(LABEL, line):
            bare = ENTITY.sub("", label[1:-1].replace("<br/>", ""))
            assert not re.search(r"""[<>&#"`%{}$\\|;]""", bare), label
    assert depth == 0
    assert all(start in boxes and end in boxes for start, end in arrows)


def assert_is_dot(written: str) -> None:
    for line in map(str.strip, written.splitlines()):
        assert DOT_LINE.fullmatch(line), line
    bare = re.sub(DOT_LABEL, "", written)
    assert bare.count("{") == bare.count("}")


def test_the_example_stacks_are_drawn(
    dev_resources: tuple[Resource, ...], prod_resources: tuple[Resource, ...]
) -> None:
    for resources in (dev_resources, prod_resources):
        assert_is_mermaid(mermaid(resources))
        assert_is_dot(dot(resources))


def test_what_matters_is_in_the_picture(prod_resources: tuple[Resource, ...]) -> None:
    shown = mermaid(prod_resources)
    for told in (
        "trainyard-prod<br/>EKS 1.36",
        "VPC 10.64.0.0/16",
        "us-east-2b<br/>public",
        "3 NAT gateways",
        "8 interface endpoints",
        "gpu-block<br/>0-8 x p5.48xlarge<br/>capacity-block<br/>8 H100 each, 32 EFA",
        "system<br/>3-6 x m7i.xlarge or m6i.xlarge<br/>on-demand",
        "Lustre<br/>9600 GiB<br/>500 MB/s per TiB",
        "namespace trainyard-system",
        "etcd<br/>StatefulSet x 3",
        "chart kueue 0.19.3",
        "S3 bucket<br/>trainyard-prod-123456789012",
    ):
        assert told in shown, told


def test_arrows_lead_from_the_cluster_to_its_pools_and_from_gpus_to_their_data(
    prod_resources: tuple[Resource, ...],
) -> None:
    found = drawing(prod_resources)
    names = {box.id: box.lines[0] for box in found.boxes}
    names |= {box.id: box.lines[0] for one in found.groups for group in one.walk() for box in group.boxes}
    arrows = {(names[one.start], names[one.end]) for one in found.arrows}
    assert {("trainyard-prod", "gpu-block"), ("trainyard-prod", "system")} <= arrows
    assert {("gpu-block", "Lustre"), ("gpu-spot", "EFS")} <= arrows
    assert ("etcd", "system") in arrows
    assert ("system", "Lustre") not in arrows


def test_the_same_resources_give_the_same_picture_in_whatever_order_they_come(
    prod_resources: tuple[Resource, ...],
) -> None:
    assert mermaid(prod_resources) == mermaid(tuple(reversed(prod_resources)))
    assert dot(prod_resources) == dot(tuple(reversed(prod_resources)))


def named(hostile: str) -> list[Resource]:
    labels = {"trainyard.dev/pool": hostile}
    metadata = {"metadata": {"namespace": hostile}}
    return [
        provider(),
        resource("aws:eks/cluster:Cluster", hostile, {"name": hostile, "version": hostile}),
        resource("aws:ec2/vpc:Vpc", hostile, {"cidrBlock": hostile}),
        resource("aws:ec2/subnet:Subnet", hostile, {"cidrBlock": hostile, "availabilityZone": hostile}),
        resource("aws:s3/bucket:Bucket", hostile, {"bucket": hostile}),
        resource("aws:fsx/lustreFileSystem:LustreFileSystem", hostile, {"storageCapacity": 1200.0}),
        resource("kubernetes:apps/v1:Deployment", hostile, metadata),
        resource("kubernetes:helm.sh/v3:Release", hostile, {"chart": hostile, "version": hostile, **metadata}),
        *pool("gpu", hostile, labels=labels),
    ]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_name_breaks_out_of_its_label(hostile: str) -> None:
    assert_is_mermaid(mermaid(named(hostile)))
    assert_is_dot(dot(named(hostile)))


@given(st.text())
def test_no_text_at_all_breaks_out_of_its_label(text: str) -> None:
    assert_is_mermaid(mermaid(named(text)))
    assert_is_dot(dot(named(text)))


def test_a_large_stack_is_drawn_in_groups() -> None:
    many = [one for index in range(400) for one in pool(f"pool-{index:03}", "p5.48xlarge", high=2.0)]
    many += [
        resource("kubernetes:apps/v1:Deployment", f"app-{index}", {"metadata": {"namespace": f"team-{index % 40}"}})
        for index in range(1000)
    ]
    many += [
        resource("aws:ec2/subnet:Subnet", f"s{i}", {"availabilityZone": f"us-east-2{i}", "cidrBlock": "10.0.0.0/24"})
        for i in range(100)
    ]
    shown = mermaid(many)
    assert_is_mermaid(shown)
    assert len(shown) < 20_000
    assert f"and {400 - MOST_OF_A_KIND} more pools<br/>up to {2 * (400 - MOST_OF_A_KIND)} machines" in shown
    assert f"and {100 - MOST_OF_A_KIND} more zones" in shown
    assert "more workloads" in shown
    assert "more namespaces" in shown


def test_what_is_not_known_yet_is_said_to_be_so() -> None:
    template, group = pool("gpu", "g6.xlarge")
    unknown = replace(group, inputs={"instanceTypes": UNKNOWN, "scalingConfig": UNKNOWN, "nodeGroupName": "gpu"})
    subnet = resource("aws:ec2/subnet:Subnet", "s", {"availabilityZone": UNKNOWN, "cidrBlock": UNKNOWN})
    lustre = resource("aws:fsx/lustreFileSystem:LustreFileSystem", "data", {"storageCapacity": UNKNOWN})
    app = resource("kubernetes:apps/v1:Deployment", "app", {"metadata": {"namespace": UNKNOWN}})
    shown = mermaid([template, unknown, subnet, lustre, app])
    assert_is_mermaid(shown)
    assert "gpu<br/>? x type not known" in shown
    assert "zone not known yet" in shown
    assert "namespaces that are made as well" in shown


def test_nothing_is_a_picture_too() -> None:
    assert_is_mermaid(mermaid([]))
    assert_is_dot(dot([]))
    assert "nothing to draw" in mermaid([])
