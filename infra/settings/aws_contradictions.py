"""What does not go together in the settings of an AWS cluster.

Most of it AWS would take and never do: machines that never join, EFA that NCCL never uses, pools that never grow. Each
rule names all values that led to it (`by`), so that nothing is concluded from a value that is wrong by itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from infra.catalog.instance_types import InstanceType, instance_type
from infra.catalog.known_bad import bad_versions, conditions_of
from infra.catalog.ranges import numbers
from infra.catalog.versions import versions
from infra.settings.aws import Aws, AwsNodePool
from infra.settings.aws_values import moment
from infra.settings.mistakes import Contradiction, Location, removing, setting
from infra.settings.sections import Settings
from infra.wiring.interfaces import interfaces_of
from infra.wiring.placement import RESERVED
from infra.wiring.scheduling import SYSTEM_POOL

SHARED_QUEUE = "shared"
"""The queue of all pools that no queue has for itself."""

ADDRESSES_PER_MACHINE = 16
"""The least that a machine takes of its subnet: its own address, and those of the pods that every machine has. The VPC
CNI, left to itself, takes all addresses of an interface at once: 15 to 50."""
_ADDRESSES_OF_AWS = 5  # of each subnet: network, router, DNS, one reserved, broadcast

_NETWORK: Location = ("aws", "network")
_SYSTEM: Location = ("aws", "systemPool")
_STORAGE: Location = ("aws", "storage")


def in_aws(settings: Settings, aws: Aws) -> Iterator[Contradiction]:
    """All contradictions in the settings of an AWS cluster, in the order of the sections."""
    yield from _without_effect(settings, aws)
    yield from _key(aws)
    yield from _network(aws)
    yield from _access(aws)
    if doubled := _repeated(aws.logs.types):
        yield _once(("aws", "logs", "types"), doubled)
    yield from _system_pool(settings, aws)
    yield from _pool_names(aws)
    for index, pool in enumerate(aws.node_pools):
        at: Location = ("aws", "nodePools", index)
        yield from _types(aws, pool, at)
        yield from _zone(aws, pool, at)
        yield from _capacity(pool, at)
        yield from _placement(pool, at)
        yield from _counts(pool, at)
    yield from _room(aws)
    yield from _storage(aws)
    if doubled := _repeated(aws.registry.repositories):
        yield _once(("aws", "registry", "repositories"), doubled)
    yield from _queues(aws)


def _without_effect(settings: Settings, aws: Aws) -> Iterator[Contradiction]:
    if "access_mode" in settings.checkpoints.model_fields_set:
        where: Location = ("checkpoints", "accessMode")
        yield Contradiction(where, "has no meaning with target aws: EFS and Lustre are always shared", removing(*where))
    if "size" in settings.checkpoints.model_fields_set and aws.storage.checkpoints == "lustre":
        where = ("checkpoints", "size")
        what = "has no meaning with checkpoints on Lustre: aws.storage.lustre.capacityGib is their size"
        yield Contradiction(where, what, removing(*where), by=(where, (*_STORAGE, "checkpoints")))


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
        subnets = list(network.private_subnets.values())
        if doubled := _repeated(subnets):
            yield Contradiction(where, f"name the subnet {doubled} twice: a subnet lies in one zone", by=by)
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
    if doubled := _repeated(zones):
        yield _once(where, doubled)
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
        if doubled := _repeated(arns):
            yield _once(("aws", "access", key), doubled)
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
    if doubled := _repeated(pool.types):
        yield _once(where, doubled)
    if pool.max < pool.min:
        limits: tuple[Location, ...] = ((*_SYSTEM, "max"), (*_SYSTEM, "min"))
        what = f"is {pool.max}, less than min ({pool.min})"
        yield Contradiction(limits[0], what, setting(limits[0], pool.min), limits)
    elif pool.max < settings.etcd.members:
        places: tuple[Location, ...] = ((*_SYSTEM, "max"), ("etcd", "members"))
        what = f"is {pool.max}: etcd has {settings.etcd.members} members, each on a machine of its own"
        yield Contradiction(places[0], what, setting(places[0], settings.etcd.members), places)


def _pool_names(aws: Aws) -> Iterator[Contradiction]:
    names = [pool.name for pool in aws.node_pools]
    for index, name in enumerate(names):
        where: Location = ("aws", "nodePools", index, "name")
        if earlier := [number for number in range(index) if names[number] == name]:
            by: tuple[Location, ...] = (("aws", "nodePools", earlier[-1], "name"), where)
            yield Contradiction(where, f"two pools are named {name!r}", by=by)
        if name == SYSTEM_POOL:
            yield Contradiction(where, f"{SYSTEM_POOL!r} is the name of aws.systemPool; choose another", by=(where,))


def _types(aws: Aws, pool: AwsNodePool, at: Location) -> Iterator[Contradiction]:
    """What the hardware of the pool's types says."""
    types = [instance_type(name) for name in pool.types]
    where: Location = (*at, "types")
    if doubled := _repeated(pool.types):
        yield _once(where, doubled)
    if without := [each.name for each in types if not each.has_gpu]:
        what = f"{', '.join(without)}: no GPU; machines without GPUs are those of aws.systemPool"
        yield Contradiction(where, what, by=(where,))
        return
    features: dict[str, list[int | str]] = {
        "number of GPUs": [each.gpus for each in types],
        "architecture": [each.architecture for each in types],
    }
    for feature, values in features.items():
        if len(set(values)) > 1:
            yield _mixed(where, feature, types, values)
    yield from _efa(pool, types, at)
    first = types[0]
    smaller = [each.name for each in types if each.vcpus < first.vcpus or each.memory_mib < first.memory_mib]
    if smaller:
        what = (
            f"{', '.join(smaller)}: fewer CPUs or less memory than {first.name}, the first one, with which the"
            " autoscaler reckons: pods that fit it would never start on the others. Put the smallest first"
        )
        yield Contradiction(where, what, by=(where,))
    for each in types:
        if pool.capacity not in each.capacities:
            capacity: Location = (*at, "capacity")
            what = f"{each.name} is not sold as {pool.capacity}; it is as {', '.join(each.capacities)}"
            yield Contradiction(capacity, what, setting(capacity, each.capacities[0]), (capacity, where))
    if len({each.architecture for each in types}) == 1:
        yield from _software(aws, pool, types, at)


def _efa(pool: AwsNodePool, types: Sequence[InstanceType], at: Location) -> Iterator[Contradiction]:
    if not pool.efa:
        return
    where: Location = (*at, "efa")
    by: tuple[Location, ...] = (where, (*at, "types"))
    if without := [each.name for each in types if not each.efa]:
        what = f"{', '.join(without)}: no EFA in {'this type' if len(without) == 1 else 'these types'}"
        yield Contradiction(where, what, setting(where, "false"), by)
        return
    counts = [each.efa for each in types]
    if len(set(counts)) > 1:
        yield _mixed((*at, "types"), "number of EFA interfaces", types, counts, where)
    elif len({interfaces_of(each, efa=True) for each in types}) > 1:
        what = "lay out their EFA interfaces differently, and one launch template serves all: give each its own pool"
        yield Contradiction((*at, "types"), what, by=by)


def _software(aws: Aws, pool: AwsNodePool, types: Sequence[InstanceType], at: Location) -> Iterator[Contradiction]:
    """What the version lock gives to the pool's machines."""
    kubernetes = aws.kubernetes_version or versions().default_kubernetes
    image = versions().ami(kubernetes, pool.operating_system, types[0].architecture, gpu=True)
    driver = image.driver or "0"
    system: Location = (*at, "operatingSystem")
    by: tuple[Location, ...] = ((*at, "types"), system, ("aws", "kubernetesVersion"))
    floor = versions().driver_floor(aws.cuda)
    if numbers(driver) < numbers(floor):
        what = f"is {aws.cuda!r}, which needs driver {floor}; the image of pool {pool.name!r} has {driver}"
        yield Contradiction(("aws", "cuda"), what, by=(*by, ("aws", "cuda")))
    for each in types:
        if each.minimum_driver and numbers(driver) < numbers(each.minimum_driver):
            what = (
                f"{each.name} needs driver {each.minimum_driver}; the {pool.operating_system} image has {driver}:"
                " its GPUs would not be seen. Choose another type"
            )
            yield Contradiction((*at, "types"), what, by=by)
    parts = {
        "nvidia-driver": driver,
        "vpc-cni": versions().addon("vpc-cni", kubernetes),
        "nvidia-device-plugin": _version_of_image("nvidia-device-plugin"),
        "kubernetes": kubernetes,
    }
    if pool.operating_system == "al2023":
        parts["al2023-release"] = image.release_version.rpartition("-")[2]
    efa = pool.efa and all(each.efa for each in types)
    if efa:
        parts["efa-device-plugin"] = _version_of_image("efa-device-plugin")
    for component, version in parts.items():
        holds = {condition for each in types for condition in _conditions(each, kubernetes, efa=efa)}
        for bad in bad_versions(component, version, holds):
            what = f"{component} {version} is known to fail here: {bad.effect}; {bad.reason} ({bad.link})"
            yield Contradiction((*at, "types"), what, by=(*by, (*at, "efa")))


def _conditions(machine: InstanceType, kubernetes: str, *, efa: bool) -> set[str]:
    holds = set(conditions_of(machine, efa=efa))
    if "grace-efa" in holds:
        holds.add("grace-efa-no-override")  # the images of EKS do not set it, nor does our user data
    if numbers(kubernetes) <= (1, 35):
        holds.add("kernel-6-12")
    return holds


def _version_of_image(name: str) -> str:
    """The tag of an image in the lock."""
    return versions().image(name).partition("@")[0].rpartition(":")[2]


def _zone(aws: Aws, pool: AwsNodePool, at: Location) -> Iterator[Contradiction]:
    where: Location = (*at, "zone")
    zones = _zones(aws)
    if pool.zone is None:
        if reason := _needs_zone(pool):
            key, why = reason
            fix = setting(where, zones[0] if zones else f"{aws.region}a")
            yield Contradiction(where, f"is missing: {why}", fix, (where, (*at, key)))
    elif pool.zone not in zones and zones:
        key = "privateSubnets" if aws.network.vpc_id else "zones"
        what = f"is {pool.zone!r}, which is not among network.{key}: {', '.join(zones)}"
        yield Contradiction(where, what, setting(where, zones[0]), (where, (*_NETWORK, key), (*_NETWORK, "vpcId")))


def _needs_zone(pool: AwsNodePool) -> tuple[str, str] | None:
    """The key that makes a pool need a zone, and why."""
    if pool.efa:
        return "efa", "EFA traffic is not routed, so the machines of a pool with EFA stand in one zone"
    if pool.capacity in RESERVED:
        return "capacity", "a reservation is for one zone"
    if pool.placement == "existing":
        return "placement", "a cluster placement group lies in one zone"
    return None


def _capacity(pool: AwsNodePool, at: Location) -> Iterator[Contradiction]:
    where: Location = (*at, "reservation")
    by: tuple[Location, ...] = ((*at, "capacity"), where)
    if pool.capacity not in RESERVED:
        if pool.reservation is not None:
            what = f"has no meaning with capacity {pool.capacity}: reserved machines are odcr or capacity-block"
            yield Contradiction(where, what, removing(*where), by)
        return
    if len(set(pool.types)) > 1:
        what = f"name {len(set(pool.types))} types; a reservation is for one"
        yield Contradiction((*at, "types"), what, by=(by[0], (*at, "types")))
    if pool.reservation is None:
        fix = setting((*where, "id"), "cr-0123456789abcdef0")
        yield Contradiction(where, f"is missing: capacity {pool.capacity} needs at least its `id`", fix, by)
    moments = {} if pool.reservation is None else {"start": pool.reservation.start, "end": pool.reservation.end}
    for key, given in moments.items():
        place: Location = (*where, key)
        if pool.capacity == "capacity-block" and given is None:
            what = "is missing: a capacity block has dates, and before and after them there are no machines"
            yield Contradiction(place, what, setting(place, "2027-01-31T11:30:00Z"), (by[0], place))
        elif pool.capacity == "odcr" and given is not None:
            yield Contradiction(place, "has no meaning with capacity odcr", removing(*place), (by[0], place))
    start, end = moments.get("start"), moments.get("end")
    if start and end and moment(end) <= moment(start):
        places: tuple[Location, ...] = ((*where, "end"), (*where, "start"))
        yield Contradiction(places[0], f"is not after start ({start})", by=places)
    if pool.capacity == "capacity-block" and pool.min:
        place = (*at, "min")
        what = f"is {pool.min}: before a capacity block begins and after it ends there are no machines"
        yield Contradiction(place, what, setting(place, 0), (by[0], place))


def _placement(pool: AwsNodePool, at: Location) -> Iterator[Contradiction]:
    where: Location = (*at, "placementGroup")
    mode: Location = (*at, "placement")
    by: tuple[Location, ...] = (mode, where)
    if pool.capacity in RESERVED and (pool.placement == "existing" or pool.placement_group):
        place = mode if pool.placement == "existing" else where
        what = "a forced placement group breaks a reservation, whose machines have their place already"
        yield Contradiction(place, what, removing(*place), (*by, (*at, "capacity")))
    elif pool.placement == "existing" and pool.placement_group is None:
        yield Contradiction(where, "is missing: placement existing takes it", setting(where, "NAME"), by)
    elif pool.placement_group is not None and pool.placement != "existing":
        what = f"has no meaning with placement {pool.placement}; only with existing"
        yield Contradiction(where, what, setting(mode, "existing"), by)


def _counts(pool: AwsNodePool, at: Location) -> Iterator[Contradiction]:
    limits: tuple[Location, ...] = ((*at, "max"), (*at, "min"))
    if pool.max < pool.min:
        what = f"is {pool.max}, less than min ({pool.min})"
        yield Contradiction(limits[0], what, setting(limits[0], pool.min), limits)
    if pool.repair.max_parallel is not None and not pool.repair.enabled:
        where: Location = (*at, "repair", "maxParallel")
        what = "has no meaning while repair is not enabled"
        yield Contradiction(where, what, removing(*where), (where, (*at, "repair", "enabled")))


def _room(aws: Aws) -> Iterator[Contradiction]:
    """Whether the machines find addresses in the stack's own VPC; the size of existing subnets is not known here."""
    zones = sorted(set(aws.network.zones))
    if aws.network.vpc_id or not zones:
        return
    # An eighth of the VPC for each zone, see infra/wiring/network.py.
    subnet = ipaddress.IPv4Network(aws.network.cidr).num_addresses // 8 - _ADDRESSES_OF_AWS
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
        zones = _zones(aws)
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
    zones = _zones(aws)
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


def _zones(aws: Aws) -> list[str]:
    """The zones in which the stack has subnets."""
    return sorted(aws.network.private_subnets if aws.network.vpc_id else set(aws.network.zones))


def _mixed(
    where: Location, feature: str, types: Sequence[InstanceType], values: Sequence[int | str], *by: Location
) -> Contradiction:
    named = ", ".join(f"{each.name} ({value})" for each, value in zip(types, values, strict=True))
    what = f"differ in their {feature}: {named}; one launch template and one kind of job serve them. Split the pool"
    return Contradiction(where, what, by=(where, *by))


def _once(where: Location, value: object) -> Contradiction:
    return Contradiction(where, f"name {value} twice", by=(where,))


def _repeated(values: Sequence[str]) -> str | None:
    """A value that is there more than once."""
    return next((value for index, value in enumerate(values) if value in values[:index]), None)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
