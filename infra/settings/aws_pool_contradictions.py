"""What does not go together in the settings of a GPU pool: its types, EFA, zone, capacity and placement.

Most of it AWS would take and never do: machines that never join, EFA that NCCL never uses, pools that never grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from images.errors import MatrixError
from infra.catalog.instance_types import InstanceType, instance_type
from infra.catalog.known_bad import bad_versions, conditions_of
from infra.catalog.ranges import numbers
from infra.catalog.versions import versions
from infra.settings.aws import Aws, AwsNodePool
from infra.settings.aws_values import moment
from infra.settings.mistakes import Contradiction, Location, removing, repeated, setting
from infra.wiring.images import driver_of, fitting_torch, torch_of, why_not
from infra.wiring.interfaces import interfaces_of
from infra.wiring.placement import RESERVED
from infra.wiring.scheduling import SYSTEM_POOL

_NETWORK: Location = ("aws", "network")


def in_pools(aws: Aws, torch: str | None) -> Iterator[Contradiction]:
    """All contradictions in and between the GPU pools, and with the torch of their training images."""
    yield from _names(aws)
    for index, pool in enumerate(aws.node_pools):
        at: Location = ("aws", "nodePools", index)
        yield from _types(aws, pool, at)
        yield from _zone(aws, pool, at)
        yield from _capacity(pool, at)
        yield from _placement(pool, at)
        yield from _counts(pool, at)
    yield from _images(aws, torch)


def _names(aws: Aws) -> Iterator[Contradiction]:
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
    yield from repeated(where, pool.types)
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
    by = _of_software(at)
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


def _images(aws: Aws, torch: str | None) -> Iterator[Contradiction]:
    """What the training images ask of the pools' machines: driver, GPUs, architecture."""
    where: Location = ("images", "torch")
    pools: dict[str, list[str]] = {}  # by what stands against the image there
    by: list[Location] = [where]
    for index, pool in enumerate(aws.node_pools):
        machines = [instance_type(name) for name in pool.types]
        if not all(each.has_gpu for each in machines) or len({each.architecture for each in machines}) > 1:
            continue  # said already
        try:
            reasons = why_not(pool, torch, driver=driver_of(aws, pool))
        except MatrixError as error:
            reasons = [str(error)]
        if reasons:
            at: Location = ("aws", "nodePools", index)
            pools.setdefault("; ".join(reasons), []).append(pool.name)
            by += [*_of_software(at), (*at, "efa")]
    if not pools:
        return
    against = ". ".join(f"On pool {', '.join(names)}: {reasons}" for reasons, names in pools.items())
    fitting = fitting_torch(aws)
    instead = (
        f"Torch {fitting} runs on all pools"
        if fitting
        else "No torch of the matrix runs on all pools (`trainyard images matrix`): choose other types"
    )
    what = f"is {torch_of(torch)}, whose images cannot run everywhere. {against}. {instead}"
    yield Contradiction(where, what, setting(where, fitting) if fitting else None, tuple(by))


def _of_software(at: Location) -> tuple[Location, ...]:
    """The values that decide what software a pool's machines have."""
    return ((*at, "types"), (*at, "operatingSystem"), ("aws", "kubernetesVersion"))


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
    zones = aws.network.own_zones
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


def _mixed(
    where: Location, feature: str, types: Sequence[InstanceType], values: Sequence[int | str], *by: Location
) -> Contradiction:
    named = ", ".join(f"{each.name} ({value})" for each, value in zip(types, values, strict=True))
    what = f"differ in their {feature}: {named}; one launch template and one kind of job serve them. Split the pool"
    return Contradiction(where, what, by=(where, *by))
