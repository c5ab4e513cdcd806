"""Whatever can be known to be wrong in an AWS stack before AWS is asked is said at once, with key, line and remedy."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml

from images.matrix import Matrix, matrix
from infra.catalog.versions import Ami, Versions
from infra.clusters import CHECKOUT
from infra.settings import Settings, SettingsError, from_engine, read_stack_file

Config = dict[str, Any]

SMALL: Config = {
    "target": "aws",
    "images": {"controller": "registry.example/controller:1", "etcd": "registry.example/etcd:1"},
    "aws": {
        "region": "us-east-2",
        "network": {"zones": ["us-east-2a", "us-east-2b"]},
        "nodePools": [
            {"name": "gpu", "types": ["g6.xlarge"]},
            {"name": "efa", "types": ["p5.48xlarge"], "efa": True, "zone": "us-east-2a"},
        ],
    },
}
"""An AWS stack without a mistake; pool 0 has no EFA, pool 1 has."""
SUBNETS = {"us-east-2a": "subnet-0123456789abcdef0", "us-east-2b": "subnet-0123456789abcdef1"}
EXISTING: Config = {"vpcId": "vpc-0123456789abcdef0", "privateSubnets": SUBNETS}
WHEN: Config = {"id": "cr-0123456789abcdef0", "start": "2027-01-11T11:30:00Z", "end": "2027-01-25T11:30:00Z"}
BLOCK: Config = {
    "name": "block",
    "types": ["p5.48xlarge"],
    "capacity": "capacity-block",
    "zone": "us-east-2a",
    "reservation": WHEN,
}
ODCR = BLOCK | {"capacity": "odcr", "reservation": {"id": "cr-0123456789abcdef0"}}
LUSTRE = {"zone": "us-east-2a"}
ROLE = "arn:aws:iam::111122223333:role/ml"
KEY = "arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
REMOVED: Any = object()

ACCESS, LOGS, NETWORK = ("aws", "access"), ("aws", "logs"), ("aws", "network")
POOL, EFA_POOL, POOLS = ("aws", "nodePools", 0), ("aws", "nodePools", 1), ("aws", "nodePools")
STORAGE, SYSTEM = ("aws", "storage"), ("aws", "systemPool")


@dataclass(frozen=True)
class Case:
    """One change to a right stack, and what is said about it."""

    at: tuple[str | int, ...]
    value: Any
    key: str
    """Where the mistake is, below `trainyard:`."""
    sentence: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence[:40]}"


def changed(at: tuple[str | int, ...], value: Any) -> Config:
    config = copy.deepcopy(SMALL)
    place: Any = config
    for part in at[:-1]:
        place = place.setdefault(part, {}) if isinstance(part, str) else place[part]
    if value is REMOVED:
        del place[at[-1]]
    else:
        place[at[-1]] = copy.deepcopy(value)
    return config


def mistakes_in_file(folder: Path, config: Config) -> str:
    path = folder / "Pulumi.dev.yaml"
    values = {f"trainyard:{key}": value for key, value in config.items()}
    path.write_text(yaml.safe_dump({"config": values}, sort_keys=False))
    with pytest.raises(SettingsError) as caught:
        read_stack_file(path, "dev")
    return str(caught.value)


def told(config: Config) -> dict[str, str]:
    """A configuration as the engine hands it over."""
    return {f"trainyard:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}


def settings_of(config: Config) -> Settings:
    return from_engine(told(config), "dev")


VALUES = [
    Case(("aws", "region"), "us-eats-2", "aws.region", "is no region of AWS; did you mean 'us-east-2'?", "us-east-2"),
    Case(("aws", "region"), "aws-global", "aws.region", "is no region of AWS"),
    Case(("aws", "region"), REMOVED, "aws.region", "is missing", "trainyard:aws.region us-east-2"),
    Case(("aws", "kubernetesVersion"), "1.29", "aws.kubernetesVersion", "is not in the version lock; tested: 1.34"),
    Case(("aws", "kubernetesVersion"), 1.36, "aws.kubernetesVersion", "is 1.36: must be text; in quotes"),
    Case(("aws", "cuda"), "13.0", "aws.cuda", "unknown key", "config rm --path trainyard:aws.cuda"),
    Case(("images", "torch"), "2.51", "images.torch", "is no torch of the matrix; nearest: 2.15", "images.torch 2.15"),
    Case(("images", "torch"), 2.15, "images.torch", "is 2.15: must be text; in quotes", "images.torch 2.15"),
    Case(("aws", "kmsKeyArn"), "alias/x", "aws.kmsKeyArn", "must be the ARN of a KMS key (not of an alias)"),
    Case(("aws", "clusterName"), "Prod", "aws.clusterName", "must be a Kubernetes name"),
    Case(("aws", "protect"), "yes", "aws.protect", "must be true or false, without quotes", "aws.protect false"),
    Case(("aws", "tags"), {"aws:x": "y"}, "aws.tags.aws:x", "is no key for this mapping: tags that begin with 'aws:'",
         "pulumi config rm --path trainyard:aws.tags.aws:x"),
    Case(("aws", "tags"), {"trainyard.dev/stack": "x"}, 'aws.tags["trainyard.dev/stack"]', "the budget counts by them"),
    Case(("aws", "tags"), {"kubernetes.io/cluster/x": "owned"}, 'aws.tags["kubernetes.io/cluster/x"]',
         "takes what carries them for its own"),
    Case(("aws", "tags"), {"Name": "x"}, "aws.tags.Name", "each resource has a Name of its own"),
    Case(("aws", "tags"), {f"t{n}": "x" for n in range(41)}, "aws.tags", "has 41 entries: must have at most 40"),
    Case(("aws", "tags"), {"a.b": "?"}, 'aws.tags["a.b"]', "is '?': must be letters, digits, spaces"),
    Case(("aws", "tags"), ["x"], "aws.tags", "is a list: must be a mapping"),
    Case((*NETWORK, "cidr"), "10.0.0.0", "aws.network.cidr", "is '10.0.0.0': must be from /16", "10.0.0.0/16"),
    Case((*NETWORK, "cidr"), "here", "aws.network.cidr", "must be IPv4 addresses with a prefix length", "10.0.0.0/16"),
    Case((*NETWORK, "cidr"), "10.0.1.0/16", "aws.network.cidr", "has bits set behind its prefix", "cidr 10.0.0.0/16"),
    Case((*NETWORK, "cidr"), "8.8.0.0/16", "aws.network.cidr", "must be private addresses, within one of 10.0.0.0/8"),
    Case((*NETWORK, "cidr"), "10.0.0.0/8", "aws.network.cidr", "must be from /16 (the largest that AWS makes)"),
    Case((*NETWORK, "cidr"), "10.0.0.0/24", "aws.network.cidr", "smaller ones leave a zone too few", "10.0.0.0/16"),
    Case((*NETWORK, "zones", 0), "us-east-2-lax-1a", "aws.network.zones[0]", "local zones and zone ids (use2-az1)"),
    Case((*NETWORK, "natGateways"), "one", "aws.network.natGateways", "allowed: none, single, one-per-zone",
         "natGateways none"),
    Case(NETWORK, EXISTING | {"vpcId": "vpc"}, "aws.network.vpcId", "must be the id of a VPC"),
    Case(NETWORK, EXISTING | {"privateSubnets": SUBNETS | {"us-east-2c": "net"}},
         "aws.network.privateSubnets.us-east-2c", "must be the id of a subnet"),
    Case(("aws", "endpoint", "publicCidrs"), ["0.0.0.0/0"], "aws.endpoint.publicCidrs[0]", "to the whole internet"),
    Case(("aws", "endpoint", "publicCidrs"), ["128.0.0.0/1"], "aws.endpoint.publicCidrs[0]", "or a good part of it"),
    Case(("aws", "endpoint", "publicCidrs"), ["10.1.0.0/16"], "aws.endpoint.publicCidrs[0]", "EKS refuses it"),
    Case(("aws", "endpoint", "publicCidrs"), ["1.2.3.4/24"], "aws.endpoint.publicCidrs[0]", "the block is 1.2.3.0/24",
         "publicCidrs[0]' 1.2.3.0/24"),
    Case(("aws", "endpoint", "publicCidrs"), [f"203.0.{n}.0/24" for n in range(41)], "aws.endpoint.publicCidrs",
         "has 41 entries: must have at most 40"),
    Case((*ACCESS, "administrators"), ["admin"], "aws.access.administrators[0]", "must be the ARN of an IAM role"),
    Case((*ACCESS, "administrators"), ["arn:aws:sts::111122223333:assumed-role/ml/me"],
         "aws.access.administrators[0]", "is a session of a role; EKS wants the role itself", ROLE),
    Case((*LOGS, "retentionDays"), 31, "aws.logs.retentionDays", "the next longer one is 60 days", "retentionDays 60"),
    Case((*LOGS, "retentionDays"), 4000, "aws.logs.retentionDays", "no time that CloudWatch can keep logs for",
         "retentionDays 3653"),
    Case((*LOGS, "types"), ["api", "adit"], "aws.logs.types[1]", "allowed: api, audit", "types[1]' audit"),
    Case((*POOL, "types", 0), "p5.48xl", "aws.nodePools[0].types[0]", "nearest: p5.48xlarge", "types[0]' p5.48xlarge"),
    Case((*POOL, "types", 0), "p3dn.24xlarge", "aws.nodePools[0].types[0]", "V100 is too old for CUDA 13", "g6.xlarge"),
    Case((*POOL, "types", 0), "quantum", "aws.nodePools[0].types[0]", "`trainyard gpus` shows all"),
    Case((*POOL, "types"), [], "aws.nodePools[0].types", "has 0 entries: must have at least 1"),
    Case((*POOL, "types"), REMOVED, "aws.nodePools[0].types", "is missing", "nodePools[0].types[0]' g6.xlarge"),
    Case((*POOL, "type"), "g6.xlarge", "aws.nodePools[0].type", "unknown key; did you mean 'types'?"),
    Case((*POOL, "capacity"), "reserved", "aws.nodePools[0].capacity", "allowed: on-demand, spot, odcr, capacity-"),
    Case(POOL, "g6.xlarge", "aws.nodePools[0]", "must be a mapping"),
    Case(POOL, ODCR | {"reservation": {"id": "mine"}}, "aws.nodePools[0].reservation.id", "as in cr-0123456789abcdef"),
    Case(POOL, BLOCK | {"reservation": WHEN | {"start": "2027-01-11"}},
         "aws.nodePools[0].reservation.start", "must be a time in UTC, in quotes", "2027-01-31T11:30:00Z"),
    Case(POOL, BLOCK | {"reservation": WHEN | {"end": "2027-02-30T11:30:00Z"}},
         "aws.nodePools[0].reservation.end", "must be a time in UTC"),
    Case((*STORAGE, "lustre"), LUSTRE | {"capacityGib": 5000}, "aws.storage.lustre.capacityGib",
         "1200, 2400, then steps of 2400; the next larger one is 7200", "capacityGib 7200"),
    Case((*STORAGE, "lustre"), LUSTRE | {"capacityGib": 600}, "aws.storage.lustre.capacityGib", "larger one is 1200"),
    Case((*STORAGE, "lustre"), LUSTRE | {"throughput": 300}, "aws.storage.lustre.throughput",
         "allowed: 125, 250, 500, 1000"),
    Case((*STORAGE, "lustre"), {}, "aws.storage.lustre.zone", "is missing", "lustre.zone us-east-2a"),
    Case(("aws", "registry", "repositories"), ["Train"], "aws.registry.repositories[0]", "a name that ECR takes"),
    Case(("aws", "budget"), {"monthlyUsd": 9}, "aws.budget.emails", "is missing", "emails[0]' ml-platform@example.com"),
    Case(("aws", "budget"), {"monthlyUsd": 9, "emails": []}, "aws.budget.emails", "has 0 entries"),
    Case(("aws", "budget"), {"monthlyUsd": 9, "emails": ["me"]}, "aws.budget.emails[0]", "must be a mail address"),
    Case(("aws", "queues", "dedicated"), {"Team": ["gpu"]}, "aws.queues.dedicated.Team", "is no key for this mapping"),
    Case(("aws", "queues", "dedicated"), {"team": "gpu"}, "aws.queues.dedicated.team", "must be a list"),
    Case(("aws", "queues", "dedicated"), {"team": []}, "aws.queues.dedicated.team", "has 0 entries"),
]  # fmt: skip
"""Values that are wrong by themselves."""

COMBINATIONS = [
    # what other targets read, and what AWS brings itself
    Case(("nodePools",), [{"name": "x"}], "nodePools", "has no meaning with target aws: see aws.nodePools"),
    Case(("local",), {"apiServerPort": 6443}, "local", "has no meaning with target aws", "rm --path trainyard:local"),
    Case(("kubeconfig",), {"path": "k"}, "kubeconfig", "has no meaning with target aws"),
    Case(("target",), "local", "aws", "has no meaning with target local", "config rm --path trainyard:aws"),
    Case(("aws",), REMOVED, "aws", "target aws needs it: at least `region`", "trainyard:aws.region us-east-2"),
    Case(("etcd", "storageClass"), "fast", "etcd.storageClass", "has no meaning with target aws: it brings its own"),
    Case(("checkpoints", "storageClass"), "nfs", "checkpoints.storageClass", "has no meaning with target aws"),
    Case(("checkpoints", "accessMode"), "ReadWriteMany", "checkpoints.accessMode", "EFS and Lustre are always shared"),
    # keys and network
    Case(("aws", "kmsKeyArn"), KEY, "aws.kmsKeyArn", "is a key of us-west-2; the stack is in us-east-2"),
    Case((*NETWORK, "zones"), ["us-east-2a", "us-west-2b"], "aws.network.zones", "us-west-2b is not in the region us-"),
    Case((*NETWORK, "zones"), ["us-east-2a", "us-east-2b", "us-east-2a"], "aws.network.zones", "name us-east-2a twice"),
    Case((*NETWORK, "zones"), ["us-east-2a"], "aws.network.zones", "name 1 zone: EKS wants 2",
         "'trainyard:aws.network.zones[1]' us-east-2b"),
    Case((*NETWORK, "zones"), REMOVED, "aws.network.zones", "name 0 zones", "zones[0]' us-east-2a"),
    Case((*NETWORK, "zones"), [f"us-east-2{z}" for z in "abcd"], "aws.network.zones", "name 4 zones: 3 are enough"),
    Case((*NETWORK, "privateSubnets"), SUBNETS, "aws.network.privateSubnets",
         "has no meaning without vpcId"),
    Case(NETWORK, EXISTING | {"cidr": "10.0.0.0/16"}, "aws.network.cidr", "has no meaning with vpcId"),
    Case(NETWORK, EXISTING | {"zones": ["us-east-2a"]}, "aws.network.zones", "has no meaning with vpcId"),
    Case(NETWORK, EXISTING | {"natGateways": "none"}, "aws.network.natGateways", "has no meaning with vpcId"),
    Case(NETWORK, EXISTING | {"endpoints": False}, "aws.network.endpoints", "has no meaning with vpcId"),
    Case(NETWORK, EXISTING | {"flowLogs": False}, "aws.network.flowLogs", "has no meaning with vpcId"),
    Case(NETWORK, {"vpcId": EXISTING["vpcId"], "privateSubnets": {"us-east-2a": "subnet-0123456789abcdef0"}},
         "aws.network.privateSubnets", "name 1 zone: EKS wants 2"),
    Case(NETWORK, {"vpcId": EXISTING["vpcId"], "privateSubnets": {f"us-east-2{z}": "subnet-01234567" for z in "ab"}},
         "aws.network.privateSubnets", "name subnet-01234567 twice"),
    Case(NETWORK, SMALL["aws"]["network"] | {"natGateways": "none", "endpoints": False}, "aws.network.endpoints",
         "leave the machines without any way out", "endpoints true"),
    Case(EFA_POOL, {"name": "efa", "types": ["p5.48xlarge"], "efa": True, "zone": "us-east-2a", "max": 600},
         "aws.network.cidr", "leaves us-east-2a 8187 addresses, for 511 machines; its pools may grow to 600"),
    Case(POOLS, [{"name": name, "types": ["g6.xlarge"], "max": 600} for name in "ab"], "aws.network.cidr",
         "has addresses for 1022 machines in 2 zones; the pools may grow to 1204"),
    # access and logs
    Case((*ACCESS, "administrators"), [ROLE, ROLE], "aws.access.administrators", f"name {ROLE} twice"),
    Case(ACCESS, {"administrators": [ROLE], "researchers": [ROLE]}, "aws.access.researchers[0]",
         "is an administrator already", "config rm --path 'trainyard:aws.access.researchers[0]'"),
    Case((*LOGS, "types"), ["api", "api"], "aws.logs.types", "name api twice"),
    # the pool of the stack's own parts
    Case((*SYSTEM, "types"), ["g6.xlarge"], "aws.systemPool.types", "g6.xlarge: machines with GPUs belong to aws.node"),
    Case((*SYSTEM, "types"), ["m7i.large", "m7i.xlarge"], "aws.systemPool.types", "of different sizes: m7i.large ("),
    Case((*SYSTEM, "types"), ["m7i.large", "m7g.large"], "aws.systemPool.types", "m7g.large (arm64, 2 CPUs, 8 GiB)"),
    Case((*SYSTEM, "types"), ["m7i.large", "m7i.large"], "aws.systemPool.types", "name m7i.large twice"),
    Case(SYSTEM, {"min": 5}, "aws.systemPool.max", "is 4, less than min (5)", "systemPool.max 5"),
    Case(SYSTEM, {"min": 2}, "aws.systemPool.min", "is 2: etcd has 3 members, each on a machine", "systemPool.min 3"),
    # GPU pools: names and types
    Case(("aws",), SMALL["aws"] | {"clusterName": "c" * 40, "nodePools": [{"name": "p" * 23, "types": ["g6.xlarge"]}]},
         "aws.nodePools[0].name", "is too long: the node group of pool 'ppppp"),
    Case((*POOL, "name"), "efa", "aws.nodePools[1].name", "two pools are named 'efa'"),
    Case((*POOL, "name"), "system", "aws.nodePools[0].name", "'system' is the name of aws.systemPool"),
    Case((*POOL, "types"), ["g6.xlarge", "g6.xlarge"], "aws.nodePools[0].types", "name g6.xlarge twice"),
    Case((*POOL, "types"), ["m7i.large"], "aws.nodePools[0].types", "m7i.large: no GPU"),
    Case((*POOL, "types"), ["g6.xlarge", "g6.12xlarge"], "aws.nodePools[0].types",
         "differ in their number of GPUs: g6.xlarge (1), g6.12xlarge (4)"),
    Case((*POOL, "types"), ["g6.2xlarge", "g6.xlarge"], "aws.nodePools[0].types", "Put the smallest first"),
    Case((*POOL, "types"), ["g7.2xlarge"], "aws.nodePools[0].types", "g7.2xlarge needs driver 595"),
    Case(POOL, BLOCK | {"types": ["g6.xlarge"]}, "aws.nodePools[0].capacity", "g6.xlarge is not sold as capacity-block",
         "capacity' on-demand"),
    Case((*POOL, "types"), ["p6e-gb200.36xlarge"], "aws.nodePools[0].capacity", "not sold as on-demand; it is as cap"),
    # EFA
    Case((*EFA_POOL, "types"), ["g6.xlarge"], "aws.nodePools[1].efa", "g6.xlarge: no EFA in this type", "efa' false"),
    Case((*EFA_POOL, "types"), ["p5en.48xlarge", "p5.48xlarge"], "aws.nodePools[1].types",
         "differ in their number of EFA interfaces: p5en.48xlarge (16), p5.48xlarge (32)"),
    Case((*EFA_POOL, "types"), ["p5en.48xlarge", "p6-b300.48xlarge"], "aws.nodePools[1].types",
         "lay out their EFA interfaces differently"),
    Case((*EFA_POOL, "zone"), REMOVED, "aws.nodePools[1].zone", "is missing: EFA traffic is not routed", "us-east-2a"),
    Case((*EFA_POOL, "zone"), "us-east-2c", "aws.nodePools[1].zone", "not among network.zones: us-east-2a, us-east-2b"),
    Case(POOL, BLOCK | {"types": ["p6e-gb200.36xlarge"], "efa": True}, "aws.nodePools[0].types",
         "nvidia-driver 580.159.03 is known to fail here: NCCL falls back to sockets"),
    # reservations
    Case((*POOL, "reservation"), ODCR["reservation"], "aws.nodePools[0].reservation",
         "has no meaning with capacity on-demand", "rm --path 'trainyard:aws.nodePools[0].reservation'"),
    Case(POOL, ODCR | {"capacity": "spot"}, "aws.nodePools[0].reservation", "has no meaning with capacity spot"),
    Case(POOL, ODCR | {"reservation": None}, "aws.nodePools[0].reservation", "capacity odcr needs at least its `id`"),
    Case(POOL, BLOCK | {"reservation": None}, "aws.nodePools[0].reservation", "capacity capacity-block needs at least"),
    Case(POOL, ODCR | {"types": ["p5.48xlarge", "p5e.48xlarge"]}, "aws.nodePools[0].types", "a reservation is for one"),
    Case(POOL, ODCR | {"zone": None}, "aws.nodePools[0].zone", "is missing: a reservation is for one zone"),
    Case(POOL, BLOCK | {"reservation": WHEN | {"end": None}},
         "aws.nodePools[0].reservation.end", "is missing: a capacity block has dates"),
    Case(POOL, BLOCK | {"reservation": WHEN | {"start": None}},
         "aws.nodePools[0].reservation.start", "is missing: a capacity block has dates"),
    Case(POOL, BLOCK | {"reservation": WHEN | {"end": "2027-01-01T11:30:00Z"}},
         "aws.nodePools[0].reservation.end", "is not after start (2027-01-11T11:30:00Z)"),
    Case(POOL, ODCR | {"reservation": {"id": "cr-01234567", "end": "2027-01-01T11:30:00Z"}},
         "aws.nodePools[0].reservation.end", "has no meaning with capacity odcr"),
    Case(POOL, BLOCK | {"min": 1}, "aws.nodePools[0].min", "is 1: before a capacity block begins", "min' 0"),
    # placement groups
    Case(POOL, ODCR | {"placement": "existing", "placementGroup": "pg"}, "aws.nodePools[0].placement",
         "a forced placement group breaks a reservation"),
    Case(POOL, BLOCK | {"placementGroup": "pg"}, "aws.nodePools[0].placementGroup", "breaks a reservation"),
    Case((*EFA_POOL, "placement"), "existing", "aws.nodePools[1].placementGroup", "is missing: placement existing"),
    Case((*EFA_POOL, "placementGroup"), "pg", "aws.nodePools[1].placementGroup", "has no meaning with placement auto",
         "config set --path 'trainyard:aws.nodePools[1].placement' existing"),
    Case(POOL, {"name": "g", "types": ["g6.xlarge"], "placement": "existing", "placementGroup": "pg"},
         "aws.nodePools[0].zone", "is missing: a cluster placement group lies in one zone"),
    # sizes and repair
    Case((*POOL, "min"), 9, "aws.nodePools[0].max", "is 4, less than min (9)", "max' 9"),
    Case((*POOL, "repair"), {"enabled": False, "maxParallel": 1}, "aws.nodePools[0].repair.maxParallel",
         "has no meaning while repair is not enabled"),
    # storage
    Case(STORAGE, {"efs": False}, "aws.storage.checkpoints", "is efs, and aws.storage.efs is off", "storage.efs true"),
    Case(STORAGE, {"checkpoints": "lustre"}, "aws.storage.checkpoints", "there is no aws.storage.lustre",
         "storage.lustre.zone us-east-2a"),
    Case(STORAGE, {"expireAfterDays": 30}, "aws.storage.expireAfterDays", "is 30, not after archiveAfterDays (30)",
         "expireAfterDays 31"),
    Case((*STORAGE, "lustre"), LUSTRE | {"deployment": "scratch-2", "throughput": 250}, "aws.storage.lustre.throughput",
         "has no meaning with scratch-2"),
    Case((*STORAGE, "lustre"), {"zone": "us-east-2c"}, "aws.storage.lustre.zone", "not among the zones of the network"),
    # names that must be there once, queues
    Case(("aws", "registry", "repositories"), ["a", "a"], "aws.registry.repositories", "name a twice"),
    Case(("aws", "queues"), {"enabled": False, "dedicated": {"t": ["gpu"]}}, "aws.queues.dedicated",
         "has no meaning while queues are not enabled"),
    Case(("aws", "queues", "dedicated"), {"shared": ["gpu"]}, "aws.queues.dedicated.shared", "choose another name"),
    Case(("aws", "queues", "dedicated"), {"t": ["cpu"]}, "aws.queues.dedicated.t[0]",
         "no pool is named 'cpu'; pools are gpu, efa"),
    Case(("aws", "queues", "dedicated"), {"t": ["gpu"], "u": ["gpu"]}, "aws.queues.dedicated.u[0]",
         "pool 'gpu' is dedicated to t already"),
]  # fmt: skip
"""Values that are right one by one and wrong together."""


def test_the_stack_that_the_cases_change_is_right() -> None:
    assert settings_of(SMALL).aws is not None
    for pool in (BLOCK, ODCR):
        settings_of(changed(POOL, pool))
    settings_of(changed(NETWORK, EXISTING))


@pytest.mark.parametrize("case", [*VALUES, *COMBINATIONS], ids=str)
def test_one_mistake_is_told_as_one_with_line_and_fix(tmp_path: Path, case: Case) -> None:
    message = mistakes_in_file(tmp_path, changed(case.at, case.value))
    assert "1 mistake;" in message, message
    where, _, what = message.splitlines()[1].strip().partition(": ")
    key, _, line = where.partition(" (line ")
    assert key == f"trainyard:{case.key}"
    assert case.sentence in what
    if case.key.partition(".")[0] in ("aws", "images") and case.at != ("aws",):
        assert int(line.rstrip(")")) > 1
    fix = message.splitlines()[2].strip()
    assert case.fix in fix
    assert fix.startswith(("fix: pulumi config set --path ", "fix: pulumi config rm --path ", "fix: edit trainyard:"))


@pytest.mark.parametrize("case", COMBINATIONS, ids=str)
def test_the_program_says_the_same_of_what_the_engine_hands_over(case: Case) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(changed(case.at, case.value))
    assert case.sentence in str(caught.value)


def with_image(
    monkeypatch: pytest.MonkeyPatch, *, driver: str = "580.159.03", release: str = "1.36.2-20260714"
) -> None:
    """The version lock with other machine images."""
    image = Ami("AL2023_x86_64_NVIDIA", release, driver)
    monkeypatch.setattr(Versions, "ami", lambda *_, **__: image)


def test_a_driver_too_old_for_the_cuda_of_torch_is_refused_with_the_torch_that_runs_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_image(monkeypatch, driver="570.26")
    message = mistakes_in_file(tmp_path, changed(("images", "torch"), "2.15"))
    assert (
        "trainyard:images.torch (line 6): is 2.15, whose images cannot run everywhere. On pool gpu, efa: the machine's"
        " driver" in message
    )
    assert "570.26 is older than 580.65.06, which CUDA 13.2 needs" in message
    assert "Torch 2.9 runs on all pools" in message
    assert "fix: pulumi config set --path trainyard:images.torch 2.9 -s dev" in message
    assert settings_of(changed(("images", "torch"), "2.9")).aws
    assert "trainyard:images.torch (line 3): is 2.15, whose images" in mistakes_in_file(tmp_path, SMALL), "the newest"


def test_gpus_for_which_torch_has_no_code_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_hopper = {"sm": {"amd64": ("sm_90",), "arm64": ("sm_90",)}}
    rows = [
        row.model_copy(update={"torch": row.torch.model_copy(update=only_hopper)}) if row.torch else row
        for row in matrix().rows
    ]
    monkeypatch.setattr("infra.wiring.images.matrix", lambda: Matrix(rows=tuple(rows)))
    message = mistakes_in_file(tmp_path, SMALL)
    assert "1 mistake;" in message, "the pool of H100 is not concerned"
    assert (
        "cannot run everywhere. On pool gpu: no code of this torch (sm_90) runs on GPUs of compute capability 8.9"
        in message
    )
    assert "No torch of the matrix runs on all pools (`trainyard images matrix`): choose other types" in message


def test_grace_machines_need_a_torch_with_cuda_for_arm(tmp_path: Path) -> None:
    grace = {"name": "grace", "types": ["p6e-gb200.36xlarge"]}
    config = changed(POOL, grace)
    config["images"]["torch"] = "2.9"
    message = mistakes_in_file(tmp_path, config)
    assert "cannot run everywhere. On pool grace: " in message
    assert "arm64" in message


def test_known_bad_versions_of_the_lock_are_refused_where_they_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Versions, "image", lambda _, name: f"registry.example/{name}:v0.19.1@sha256:0")
    message = mistakes_in_file(tmp_path, SMALL)
    assert "1 mistake;" in message, "the pool without EFA is not concerned"
    assert "nvidia-device-plugin v0.19.1 is known to fail here: pods with EFA" in message
    assert "trainyard:aws.nodePools[1].types (line " in message
    assert "https://github.com/NVIDIA/k8s-device-plugin/issues/1692" in message


def test_a_bad_release_of_the_machine_image_is_refused_with_the_kubernetes_that_it_fails_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_image(monkeypatch, release="1.35.6-20261003")
    message = mistakes_in_file(tmp_path, changed(("aws", "kubernetesVersion"), "1.35"))
    assert "al2023-release 20261003 is known to fail here: some machines panic" in message
    assert settings_of(changed(("aws", "kubernetesVersion"), "1.36")).aws


def test_the_size_of_a_volume_on_lustre_is_that_of_lustre(tmp_path: Path) -> None:
    config = changed(STORAGE, {"checkpoints": "lustre", "lustre": LUSTRE}) | {"checkpoints": {"size": "10Gi"}}
    message = mistakes_in_file(tmp_path, config)
    assert "trainyard:checkpoints.size" in message
    assert "has no meaning with checkpoints on Lustre: aws.storage.lustre.capacityGib" in message


def test_a_stack_with_a_long_name_needs_a_name_for_its_cluster() -> None:
    stack = "the-quarterly-review-of-everything"
    with pytest.raises(SettingsError, match=r"aws.clusterName: is missing: the cluster of stack 'the-q") as caught:
        from_engine(told(SMALL), stack)
    assert f"fix: pulumi config set --path trainyard:aws.clusterName NAME -s {stack}" in str(caught.value)
    assert from_engine(told(changed(("aws", "clusterName"), "review")), stack).aws


def test_lustre_stands_where_gpus_are(tmp_path: Path) -> None:
    config = changed(POOLS, [SMALL["aws"]["nodePools"][1]])
    config["aws"]["storage"] = {"lustre": {"zone": "us-east-2b"}}
    message = mistakes_in_file(tmp_path, config)
    assert "lustre.zone (line 20): is 'us-east-2b', where no GPU pool is: theirs are us-east-2a" in message


def test_what_combines_is_said_beside_what_is_wrong_by_itself_and_nothing_follows_from_that(tmp_path: Path) -> None:
    config = changed(POOLS, [
        {"name": "a", "types": ["p5.48xl"], "efa": True, "zoen": "us-east-2a"},  # neither EFA nor zone is judged
        {"name": "a", "types": ["g6.xlarge", "g6.12xlarge"], "min": 9, "max": "many"},
        {"name": "c", "capacity": "spot", "reservation": {"id": "cr-01234567"}},
        "gpu",
    ])  # fmt: skip
    config["aws"]["queues"] = {"dedicated": {"t": ["x"]}}
    message = mistakes_in_file(tmp_path, config)
    assert "two pools are named 'a'" in message
    assert "differ in their number of GPUs" in message
    assert "trainyard:aws.nodePools[2].types (line 2" in message
    assert "has no meaning with capacity spot" in message
    assert "8 mistakes;" in message, message


def test_numbers_of_the_engine_may_be_text_anywhere_in_the_tree() -> None:
    config = changed(SYSTEM, {"min": "3", "max": "5"})
    config["etcd"] = {"members": "3", "secure": "false"}
    settings = settings_of(config)
    assert settings.aws is not None
    assert (settings.aws.system_pool.min, settings.etcd.members, settings.etcd.secure) == (3, 3, False)


def test_etcd_is_three_secured_members_on_aws_unless_told_otherwise() -> None:
    assert (settings_of(SMALL).etcd.members, settings_of(SMALL).etcd.secure) == (3, True)
    single = settings_of(SMALL | {"etcd": {"members": 1}}).etcd
    assert (single.members, single.secure, single.storage) == (1, True, "1Gi")
    local = from_engine({"trainyard:target": "local"}, "dev").etcd
    assert (local.members, local.secure) == (1, False)


def test_a_pool_knows_its_gpus_from_the_catalogue() -> None:
    settings = settings_of(SMALL)
    assert settings.aws is not None
    assert [pool.gpus_per_node for pool in settings.aws.node_pools] == [1, 8]


def test_stacks_of_other_targets_do_not_read_the_catalogue() -> None:
    program = (
        "import sys; from infra.settings import from_engine; from_engine({'trainyard:target': 'local'}, 'dev');"
        " print([name for name in sys.modules if name.startswith(('infra.catalog', 'botocore', 'boto3'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.strip() == "[]"


def test_every_sentence_has_a_case_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place that can say something about an AWS stack says it in one of the cases above."""
    rooms = sorted((CHECKOUT / "infra/settings").glob("aws_*.py"))
    cases = [changed(case.at, case.value) for case in (*VALUES, *COMBINATIONS)]
    cases.append(changed(STORAGE, {"checkpoints": "lustre", "lustre": LUSTRE}) | {"checkpoints": {"size": "10Gi"}})
    cases.append(changed(POOLS, [SMALL["aws"]["nodePools"][1]]))
    cases[-1]["aws"]["storage"] = {"lustre": {"zone": "us-east-2b"}}
    with lines_run(*rooms) as run:
        for config in cases:
            with pytest.raises(SettingsError):
                settings_of(config)
        with pytest.raises(SettingsError):
            from_engine(told(SMALL), "the-quarterly-review-of-everything")
        with_image(monkeypatch, driver="570.26")
        with pytest.raises(SettingsError):
            settings_of(SMALL)
    unsaid = [f"{room.name}:{line}" for room in rooms for line in sentences(room) if (str(room), line) not in run]
    assert unsaid == []


def sentences(path: Path) -> list[int]:
    """Lines on which a contradiction is told or a value refused."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Yield | ast.Raise)
    ]


@contextmanager
def lines_run(*files: Path) -> Iterator[set[tuple[str, int]]]:
    """The lines of some files that run meanwhile."""
    names, seen = {str(path) for path in files}, set[tuple[str, int]]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in names:
            return None
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)
