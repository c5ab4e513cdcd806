"""What does not go together in the settings of an AWS cluster; its GPU pools have aws_pool_contradictions.py.

Each rule names all values that led to it (`by`), so that nothing is concluded from a value that is wrong by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.catalog.instance_types import instance_type
from infra.settings.aws import Aws
from infra.settings.aws_pool_contradictions import in_pools
from infra.settings.mistakes import Contradiction, Location, removing, repeated, setting
from infra.settings.sections import Settings
from infra.wiring.errors import WiringError
from infra.wiring.naming import SHARED_QUEUE, cluster_name, node_group_name
from infra.wiring.network import addresses_per_zone

ADDRESSES_PER_MACHINE = 16
"""The least that a machine takes of its subnet: its own address, and those of the pods that every machine has. The VPC
CNI, left to itself, takes all addresses of an interface at once: 15 to 50."""

_NETWORK: Location = ("aws", "network")
_SYSTEM: Location = ("aws", "systemPool")
_STORAGE: Location = ("aws", "storage")


def in_aws(settings: Settings, aws: Aws, stack: str) -> Iterator[Contradiction]:
    """All contradictions in the settings of an AWS cluster, in the order of the sections."""
    yield from _without_effect(settings, aws)
    yield from _long_names(settings, aws, stack)
    yield from _key(aws)
    yield from _network(aws)
    yield from _access(aws)
    yield from repeated(("aws", "logs", "types"), aws.logs.types)
    yield from _system_pool(settings, aws)
    yield from in_pools(aws, settings.images.torch)
    yield from _room(aws)
    yield from _storage(aws)
    yield from repeated(("aws", "registry", "repositories"), aws.registry.repositories)
    yield from _queues(aws)


def _without_effect(settings: Settings, aws: Aws) -> Iterator[Contradiction]:
    if "access_mode" in settings.checkpoints.model_fields_set:
        where: Location = ("checkpoints", "accessMode")
        yield Contradiction(where, "has no meaning with target aws: EFS and Lustre are always shared", removing(*where))
    if "size" in settings.checkpoints.model_fields_set and aws.storage.checkpoints == "lustre":
        where = ("checkpoints", "size")
        what = "has no meaning with checkpoints on Lustre: aws.storage.lustre.capacityGib is their size"
        yield Contradiction(where, what, removing(*where), by=(where, (*_STORAGE, "checkpoints")))


def _long_names(settings: Settings, aws: Aws, stack: str) -> Iterator[Contradiction]:
    """Names that AWS would refuse: they are made of the cluster's, which may be made of the stack's."""
    where: Location = ("aws", "clusterName")
    try:
        cluster = cluster_name(settings, stack)
    except WiringError as error:
        yield Contradiction(where, f"is missing: {error}", setting(where, "NAME"), (where,))
        return
    for index, pool in enumerate(aws.node_pools):
        place: Location = ("aws", "nodePools", index, "name")
        try:
            node_group_name(cluster, pool.name)
        except WiringError as error:
            yield Contradiction(place, f"is too long: {error}", by=(place, where))


def _key(aws: Aws) -> Iterator[Contradiction]:
    if aws.kms_key_arn and (region := aws.kms_key_arn.split(":")[3]) != aws.region:
        where: Location = ("aws", "kmsKeyArn")
        what = f"is a key of {region}; the stack is in {aws.region}, and keys do not leave their region"
        yield Contradiction(where, what, by=(where, ("aws", "region")))


def _network(aws: Aws) -> Iterator[Contradiction]:
    network = aws.network
    key = "privateSubnets" if network.vpc_id else "zones"
    where: Location = (*_NETWORK, key)
    zones = list(network.private_subnets) if network.vpc_id else list(network.zones)
    by: tuple[Location, ...] = (where, (*_NETWORK, "vpcId"))
    if network.vpc_id:
        for field, name in {
            "cidr": "cidr", "zones": "zones", "nat_gateways": "natGateways",
            "endpoints": "endpoints", "flow_logs": "flowLogs",
        }.items():  # fmt: skip
            if field in network.model_fields_set:
                what = "has no meaning with vpcId: that VPC is there already, with what its owner gave it"
                yield Contradiction((*_NETWORK, name), what, removing(*_NETWORK, name), by[1:])
        yield from repeated(where, list(network.private_subnets.values()))
    elif network.private_subnets:
        what = "has no meaning without vpcId: the stack makes the subnets of its own VPC"
        yield Contradiction((*_NETWORK, "privateSubnets"), what, removing(*_NETWORK, "privateSubnets"), by[1:])
    if not network.vpc_id and network.nat_gateways == "none" and not network.endpoints:
        what = "leave the machines without any way out: give them natGateways, or endpoints"
        both: tuple[Location, ...] = ((*_NETWORK, "natGateways"), (*_NETWORK, "endpoints"))
        yield Contradiction(both[1], what, setting(both[1], "true"), (*both, by[1]))
    foreign = [zone for zone in zones if zone[:-1] != aws.region]
    if foreign:
        what = f"{', '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} not in the region {aws.region}"
        yield Contradiction(where, what, by=(*by, ("aws", "region")))
    yield from repeated(where, zones)
    if len(set(zones)) < 2:
        example = next(zone for letter in "ab" if (zone := f"{aws.region}{letter}") not in zones)
        what = f"name {_count(len(set(zones)), 'zone')}: EKS wants 2 at least for its control plane"
        yield Contradiction(where, what, None if network.vpc_id else setting((*where, len(zones)), example), by)
    elif len(set(zones)) > 3:
        what = f"name {len(set(zones))} zones: 3 are enough for any quorum, each more costs endpoints and gateways"
        yield Contradiction(where, what, by=by)


def _access(aws: Aws) -> Iterator[Contradiction]:
    lists = {"administrators": aws.access.administrators, "researchers": aws.access.researchers}
    for key, arns in lists.items():
        yield from repeated(("aws", "access", key), arns)
    for index, arn in enumerate(aws.access.researchers):
        if arn in aws.access.administrators:
            where: Location = ("aws", "access", "researchers", index)
            what = f"{arn} is an administrator already; EKS has one access entry for each role"
            yield Contradiction(where, what, removing(*where), (where, ("aws", "access", "administrators")))


def _system_pool(settings: Settings, aws: Aws) -> Iterator[Contradiction]:
    pool, types = aws.system_pool, [instance_type(name) for name in aws.system_pool.types]
    where: Location = (*_SYSTEM, "types")
    if with_gpu := [each.name for each in types if each.has_gpu]:
        what = f"{', '.join(with_gpu)}: machines with GPUs belong to aws.nodePools; here run etcd and the controller"
        yield Contradiction(where, what, setting((*where, 0), "m7i.large"), (where,))
    sizes = {(each.architecture, each.vcpus, each.memory_mib) for each in types}
    if len(sizes) > 1:
        named = ", ".join(
            f"{each.name} ({each.architecture}, {each.vcpus} CPUs, {each.memory_mib // 1024} GiB)" for each in types
        )
        yield Contradiction(where, f"are of different sizes: {named}; the autoscaler takes them for equal", by=(where,))
    yield from repeated(where, pool.types)
    if pool.max < pool.min:
        limits: tuple[Location, ...] = ((*_SYSTEM, "max"), (*_SYSTEM, "min"))
        what = f"is {pool.max}, less than min ({pool.min})"
        yield Contradiction(limits[0], what, setting(limits[0], pool.min), limits)
    elif pool.min < settings.etcd.members:
        places: tuple[Location, ...] = ((*_SYSTEM, "min"), ("etcd", "members"))
        what = f"is {pool.min}: etcd has {settings.etcd.members} members, each on a machine of its own"
        yield Contradiction(places[0], what, setting(places[0], settings.etcd.members), places)


def _room(aws: Aws) -> Iterator[Contradiction]:
    """Whether the machines find addresses in the stack's own VPC; the size of existing subnets is not known here."""
    zones = sorted(set(aws.network.zones))
    if aws.network.vpc_id or not zones:
        return
    subnet = addresses_per_zone(aws.network.cidr)
    room = dict.fromkeys(zones, subnet // ADDRESSES_PER_MACHINE)
    pools = [(pool.zone, pool.max) for pool in aws.node_pools] + [(None, aws.system_pool.max)]
    by: tuple[Location, ...] = (("aws", "nodePools"), (*_SYSTEM, "max"), (*_NETWORK, "cidr"), (*_NETWORK, "zones"))
    where: Location = (*_NETWORK, "cidr")
    for zone in zones:
        wanted = sum(count for place, count in pools if place == zone)
        if wanted > room[zone]:
            what = (
                f"leaves {zone} {subnet} addresses, for {room[zone]} machines; its pools may grow to {wanted}. Take"
                " a larger network, or lower their max"
            )
            yield Contradiction(where, what, by=by)
    everywhere = sum(count for _, count in pools)
    if everywhere > sum(room.values()):
        what = (
            f"has addresses for {sum(room.values())} machines in {_count(len(zones), 'zone')}; the pools may grow to"
            f" {everywhere}. Take a larger network, or lower their max"
        )
        yield Contradiction(where, what, by=by)


def _storage(aws: Aws) -> Iterator[Contradiction]:
    storage = aws.storage
    where: Location = (*_STORAGE, "checkpoints")
    if storage.checkpoints == "efs" and not storage.efs:
        what = "is efs, and aws.storage.efs is off: nothing would hold the checkpoints"
        yield Contradiction(where, what, setting((*_STORAGE, "efs"), "true"), (where, (*_STORAGE, "efs")))
    if storage.checkpoints == "lustre" and storage.lustre is None:
        zones = aws.network.own_zones
        fix = setting((*_STORAGE, "lustre", "zone"), zones[0] if zones else f"{aws.region}a")
        what = "is lustre, and there is no aws.storage.lustre"
        yield Contradiction(where, what, fix, (where, (*_STORAGE, "lustre")))
    if storage.expire_after_days is not None and storage.expire_after_days <= storage.archive_after_days:
        places: tuple[Location, ...] = ((*_STORAGE, "expireAfterDays"), (*_STORAGE, "archiveAfterDays"))
        what = f"is {storage.expire_after_days}, not after archiveAfterDays ({storage.archive_after_days})"
        yield Contradiction(places[0], what, setting(places[0], storage.archive_after_days + 1), places)
    if storage.lustre is not None:
        yield from _lustre(aws, storage.lustre.zone)


def _lustre(aws: Aws, zone: str) -> Iterator[Contradiction]:
    lustre = aws.storage.lustre
    if lustre and lustre.deployment == "scratch-2" and "throughput" in lustre.model_fields_set:
        where: Location = (*_STORAGE, "lustre", "throughput")
        what = "has no meaning with scratch-2, which has 200 MB/s for each TiB"
        yield Contradiction(where, what, removing(*where), (where, (*_STORAGE, "lustre", "deployment")))
    where = (*_STORAGE, "lustre", "zone")
    zones = aws.network.own_zones
    if zones and zone not in zones:
        what = f"is {zone!r}, which is not among the zones of the network: {', '.join(zones)}"
        by: tuple[Location, ...] = (where, (*_NETWORK, "zones"), (*_NETWORK, "privateSubnets"), (*_NETWORK, "vpcId"))
        yield Contradiction(where, what, setting(where, zones[0]), by)
    elif aws.node_pools and all(pool.zone not in (None, zone) for pool in aws.node_pools):
        of_pools = sorted({pool.zone for pool in aws.node_pools if pool.zone})
        what = f"is {zone!r}, where no GPU pool is: theirs are {', '.join(of_pools)}; traffic between zones costs"
        yield Contradiction(where, what, setting(where, of_pools[0]), (where, ("aws", "nodePools")))


def _queues(aws: Aws) -> Iterator[Contradiction]:
    where: Location = ("aws", "queues", "dedicated")
    if aws.queues.dedicated and not aws.queues.enabled:
        what = "has no meaning while queues are not enabled"
        yield Contradiction(where, what, removing(*where), (where, ("aws", "queues", "enabled")))
    known = [pool.name for pool in aws.node_pools]
    owner: dict[str, str] = {}
    for queue, pools in aws.queues.dedicated.items():
        if queue == SHARED_QUEUE:
            what = f"{SHARED_QUEUE!r} is the queue of the pools that no queue has for itself; choose another name"
            yield Contradiction((*where, queue), what, by=((*where, queue),))
        for index, name in enumerate(pools):
            place: Location = (*where, queue, index)
            if name not in known:
                names = f"pools are {', '.join(known)}" if known else "there are no GPU pools"
                yield Contradiction(place, f"no pool is named {name!r}; {names}", by=(place, ("aws", "nodePools")))
            elif name in owner:
                what = f"pool {name!r} is dedicated to {owner[name]} already; it can be dedicated once"
                yield Contradiction(place, what, removing(*place), (where,))
            owner.setdefault(name, queue)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
