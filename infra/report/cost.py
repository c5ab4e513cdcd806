"""What the resources of a stack cost, from the price table: per part, per hour and per month, and what is not known.

Only resources are looked at: what will really be created. A price that the table does not have is None and makes a sum
say "at least"; it is never taken for nothing. Money is reckoned in Decimal and rounded only where it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

from infra.catalog.prices import Price, PriceTable, ServicePrice, old_prices, price_table
from infra.report.inputs import (
    NODE_GROUP,
    Template,
    mapping,
    number,
    pool_names,
    region_of,
    template_of,
    text,
    types_of,
)
from infra.report.preview import UNKNOWN, Resource

HOURS_OF_MONTH = Decimal(730)
"""365 days by 24 hours by 12 months: the month of AWS's own calculator."""
DEFAULT_UTILISATION = Decimal("0.5")
"""Share of the time in which pools run all the machines that they may have; in the rest they run the fewest."""
_GP3_FREE = {"iops": 3000, "throughput": 125}
"""What a gp3 volume has without extra pay."""

UNCONFIRMED = "?"
"""Behind a figure for which no price list of AWS was seen."""

Capacity = Literal["on-demand", "spot", "capacity-block"]
Kind = Literal["pool", "disks", "control plane", "network", "storage", "key"]


@dataclass(frozen=True)
class Usd:
    """US dollars, or a range of them where zones or several types differ."""

    low: Decimal
    high: Decimal

    def __add__(self, other: Usd) -> Usd:
        return Usd(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Usd) -> Usd:
        return Usd(self.low - other.low, self.high - other.high)

    def __mul__(self, factor: Decimal | int) -> Usd:
        return Usd(self.low * factor, self.high * factor)

    def __truediv__(self, divisor: Decimal | int) -> Usd:
        return Usd(self.low / divisor, self.high / divisor)

    @classmethod
    def exactly(cls, usd: Decimal) -> Usd:
        """One figure."""
        return cls(usd, usd)

    @classmethod
    def spanning(cls, figures: Sequence[Decimal]) -> Usd:
        """From the smallest to the largest figure."""
        return cls(min(figures), max(figures))

    def shown(self, places: int = 2) -> str:
        """`12.30`, `9.10-12.30`."""
        low, high = sorted((self.low, self.high))
        first, last = _rounded(low, places), _rounded(high, places)
        return first if first == last else f"{first}-{last}"

    def signed(self) -> str:
        """Of a difference: `+12.30`, `-0.83 to -0.56`."""
        low, high = sorted((self.low, self.high))
        first, last = _rounded(low, 2, "+"), _rounded(high, 2, "+")
        return first if first == last else f"{first} to {last}"


def _rounded(amount: Decimal, places: int, sign: str = "") -> str:
    """With thousands; half a cent is one, as on a bill, and not now nothing and now one."""
    rounded = amount.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    return f"{rounded + 0:{sign if rounded else ''},f}"  # no sign of nothing


NOTHING = Usd(Decimal(0), Decimal(0))


@dataclass(frozen=True)
class Total:
    """A sum, with the parts that it cannot have in it."""

    usd: Usd
    without: tuple[str, ...] = ()
    """Parts whose price is not known."""
    all_unknown: bool = False
    """No part of it is known."""

    def shown(self, places: int = 2) -> str:
        """`12.30`; with unknown parts `>= 12.30, without gpu-block`; `unknown` where nothing is known."""
        if self.all_unknown:
            return "unknown"
        if not self.without:
            return self.usd.shown(places)
        return f">= {Usd.exactly(self.usd.low).shown(places)}, without {', '.join(self.without)}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that is paid for."""

    name: str
    """`gpu-spot`, `NAT gateways`."""
    kind: Kind
    reckoned: str
    """How: `3 x 0.045 USD/h`."""
    at_min: Usd | None
    """USD for one hour, with the fewest machines; None: not known."""
    at_max: Usd | None
    """USD for one hour, with the most machines."""
    month: Usd | None
    """USD for a month at the declared utilisation."""
    as_of: date | None = None
    """When the price held."""
    source: str = ""
    unconfirmed: bool = False
    """No price list of AWS was seen for it."""
    note: str = ""

    @property
    def mark(self) -> str:
        """What stands behind its figures."""
        return UNCONFIRMED if self.unconfirmed else ""


@dataclass(frozen=True, kw_only=True)
class Pool(Part):
    """The machines of one node group, without their disks."""

    types: tuple[str, ...]
    capacity: Capacity
    minimum: int | None
    maximum: int | None
    gpus: int | None
    """GPUs of one machine; None where the types differ or the catalogue does not know them."""
    each: Usd | None
    """USD for one hour of one machine."""
    per_gpu_hour: Usd | None
    on_demand: Usd | None
    """USD for one hour of one machine on demand, to compare with."""
    spot: Usd | None
    """Range of spot prices over zones and types, USD for one hour of one machine."""


@dataclass(frozen=True)
class NotCounted:
    """Something that costs money and has no figure here."""

    what: str
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a stack costs."""

    pools: tuple[Pool, ...]
    fixed: tuple[Part, ...]
    """Everything else that has a price, disks of machines included."""
    not_counted: tuple[NotCounted, ...]
    region: str | None
    utilisation: Decimal

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, pools first."""
        return (*self.pools, *self.fixed)

    @property
    def at_min(self) -> Total:
        """USD for one hour with the fewest machines."""
        return _sum((part.name, part.at_min) for part in self.parts)

    @property
    def at_max(self) -> Total:
        """USD for one hour with the most machines."""
        return _sum((part.name, part.at_max) for part in self.parts)

    @property
    def month(self) -> Total:
        """USD for a month at the declared utilisation."""
        return _sum((part.name, part.month) for part in self.parts)

    @property
    def gpus_at_max(self) -> int | None:
        """GPUs with the most machines; None where a pool does not tell."""
        counts = [(pool.gpus, pool.maximum) for pool in self.pools]
        if any(gpus is None or most is None for gpus, most in counts):
            return None
        return sum((gpus or 0) * (most or 0) for gpus, most in counts)

    @property
    def per_gpu_hour(self) -> Total | None:
        """USD for one GPU and hour with the most machines, everything included; None without GPUs."""
        if not (gpus := self.gpus_at_max):
            return None
        total = self.at_max
        # GPUs of a pool without a price would make those of the others look cheap.
        unknown = total.all_unknown or any(pool.gpus and pool.at_max is None for pool in self.pools)
        return Total(total.usd / gpus, total.without, unknown)

    @property
    def dates(self) -> tuple[date, ...]:
        """Days at which the prices held, oldest first."""
        return tuple(sorted({part.as_of for part in self.parts if part.as_of}))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts without a price."""
        return tuple(part.name for part in self.parts if part.at_max is None or part.at_min is None)

    def stale(self, today: date) -> str | None:
        """What to say of prices that are old by now; None where none is."""
        return old_prices([part.as_of for part in self.parts if part.as_of], today, self.region)


@dataclass(frozen=True)
class Change:
    """How one part differs."""

    name: str
    before: Part | None
    after: Part | None

    @property
    def at_max(self) -> Usd | None:
        """Difference of the hour with the most machines; None where a side is not known."""
        old = self.before.at_max if self.before else NOTHING
        new = self.after.at_max if self.after else NOTHING
        return None if old is None or new is None else new - old

    @property
    def month(self) -> Usd | None:
        """Difference of the month; None where a side is not known."""
        old = self.before.month if self.before else NOTHING
        new = self.after.month if self.after else NOTHING
        return None if old is None or new is None else new - old

    @property
    def mark(self) -> str:
        """What stands behind the difference: that of the side that is worth less."""
        return max(part.mark for part in (self.before, self.after) if part)


@dataclass(frozen=True)
class Delta:
    """What a change of the stack costs: after less before, each sum of the same kind."""

    before: Cost
    after: Cost
    changes: tuple[Change, ...]
    """Parts that come, go or cost something else."""

    @property
    def at_min(self) -> Total:
        """Difference of the hour with the fewest machines."""
        return _less(self.after.at_min, self.before.at_min)

    @property
    def at_max(self) -> Total:
        """Difference of the hour with the most machines."""
        return _less(self.after.at_max, self.before.at_max)

    @property
    def month(self) -> Total:
        """Difference of the month."""
        return _less(self.after.month, self.before.month)


def cost(
    resources: Iterable[Resource],
    *,
    prices: PriceTable | None = None,
    utilisation: Decimal = DEFAULT_UTILISATION,
) -> Cost:
    """Reckon what resources cost.

    Args:
        resources: of one stack, as `Preview.after` has them.
        prices: absent: those of the catalogue.
        utilisation: share of the time, 0 to 1, in which pools run the most machines.

    Raises:
        ValueError: the utilisation is no share.
    """
    if utilisation.is_nan() or not 0 <= utilisation <= 1:
        raise ValueError(f"utilisation is a share of the time, from 0 to 1, and not {utilisation}")
    ordered = sorted(resources, key=lambda one: (one.type, one.name, one.urn))  # the engine's order varies
    reckoning = _Reckoning(ordered, prices or price_table(), utilisation)
    pools, fixed, not_counted = reckoning.pools(), reckoning.fixed(), reckoning.not_counted()
    return Cost(tuple(pools), tuple(fixed), tuple(not_counted), reckoning.region, utilisation)


def delta(before: Cost, after: Cost) -> Delta:
    """What a change costs; both sides reckoned with the same prices and utilisation."""
    old = {(part.kind, part.name): part for part in before.parts}
    new = {(part.kind, part.name): part for part in after.parts}
    changes = [
        Change(key[1], old.get(key), new.get(key))
        for key in dict.fromkeys([*new, *old])
        if old.get(key) != new.get(key)
    ]
    return Delta(before, after, tuple(changes))


def document(found: Cost) -> dict[str, Any]:
    """The whole of it as plain data; money as text, null where it is not known."""

    def usd(amount: Usd | None) -> dict[str, str] | None:
        return None if amount is None else figures(amount)

    def total(one: Total | None) -> dict[str, Any] | None:
        if one is None or one.all_unknown:
            return None if one is None else {"usd": None, "without": list(one.without)}
        return {"usd": usd(one.usd), "without": list(one.without)}

    def part(one: Part) -> dict[str, Any]:
        common = {
            "name": one.name,
            "kind": one.kind,
            "reckoned": one.reckoned,
            "usd_per_hour_at_min": usd(one.at_min),
            "usd_per_hour_at_max": usd(one.at_max),
            "usd_per_month": usd(one.month),
            "as_of": str(one.as_of) if one.as_of else None,
            "source": one.source,
            "unconfirmed": one.unconfirmed,
            "note": one.note,
        }
        if not isinstance(one, Pool):
            return common
        return common | {
            "types": list(one.types),
            "capacity": one.capacity,
            "min": one.minimum,
            "max": one.maximum,
            "gpus": one.gpus,
            "usd_per_hour_each": usd(one.each),
            "usd_per_gpu_hour": usd(one.per_gpu_hour),
            "usd_per_hour_on_demand": usd(one.on_demand),
            "usd_per_hour_spot": usd(one.spot),
        }

    return {
        "region": found.region,
        "utilisation": f"{found.utilisation:f}",
        "hours_of_month": int(HOURS_OF_MONTH),
        "prices_of": [str(day) for day in found.dates],
        "usd_per_hour_at_min": total(found.at_min),
        "usd_per_hour_at_max": total(found.at_max),
        "usd_per_month": total(found.month),
        "gpus_at_max": found.gpus_at_max,
        "usd_per_gpu_hour": total(found.per_gpu_hour),
        "pools": [part(one) for one in found.pools],
        "fixed": [part(one) for one in found.fixed],
        "not_counted": [{"what": one.what, "reason": one.reason} for one in found.not_counted],
    }


def figures(amount: Usd) -> dict[str, str]:
    """An amount as text, as exact as anybody needs: a millionth of a dollar."""
    millionth = Decimal("0.000001")
    return {name: f"{one.quantize(millionth).normalize():f}" for name, one in vars(amount).items()}


def _sum(amounts: Iterable[tuple[str, Usd | None]]) -> Total:
    usd, without, known = NOTHING, [], 0
    for name, amount in amounts:
        if amount is None:
            without.append(name)
        else:
            usd, known = usd + amount, known + 1
    return Total(usd, tuple(without), all_unknown=bool(without) and not known)


def _less(after: Total, before: Total) -> Total:
    without = tuple(dict.fromkeys((*after.without, *before.without)))
    return Total(after.usd - before.usd, without, after.all_unknown or before.all_unknown)


@dataclass
class _Reckoning:
    """Goes through the resources of one stack."""

    resources: list[Resource]
    prices: PriceTable
    utilisation: Decimal
    uncounted: dict[str, NotCounted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.region = region_of(self.resources)
        self.names = pool_names(self.resources)

    def of(self, kind: str) -> list[Resource]:
        """Resources of a type."""
        return [one for one in self.resources if one.type == kind]

    # --- machines -----------------------------------------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        return sorted((self._pool(one) for one in self.of(NODE_GROUP)), key=_gpus_first)

    def _pool(self, group: Resource) -> Pool:
        from infra.catalog.instance_types import instance_types  # noqa: PLC0415 - a large table

        template = template_of(group, self.resources)
        types = types_of(group, template)
        scaling = mapping(group.inputs.get("scalingConfig"))
        low, high = number(scaling.get("minSize")), number(scaling.get("maxSize"))
        capacity = _capacity(group)
        region = region_of([group], self.resources) or self.region
        known = [(name, self.prices.machine(name, region)) for name in types]
        each, day = _each(known, capacity)
        on_demand = _spanned([one.usd_per_hour if one else None for _, one in known])
        spot = _spanned([figure for _, one in known for figure in ((one.spot_low, one.spot_high) if one else (None,))])
        kinds = {instance_types()[name].gpus if name in instance_types() else None for name in types}
        gpus = kinds.pop() if len(kinds) == 1 else None
        # A block is paid for in advance, whatever runs in it: as many machines as the pool may have.
        paid = (high if capacity == "capacity-block" else low), high
        at_min, at_max = (None if each is None or count is None else each * count for count in paid)
        return Pool(
            name=self.names[group.urn],
            kind="pool",
            reckoned=f"{_counts(low, high)} x {' or '.join(types) or 'unknown type'}, {capacity}",
            at_min=at_min,
            at_max=at_max,
            month=self._month(at_min, at_max),
            as_of=day,
            source="; ".join(dict.fromkeys(one.source for _, one in known if one)) if each else "",
            unconfirmed=any(one.unconfirmed for _, one in known if one),
            note=_note(types, capacity, each, on_demand, region, (low, high)),
            types=types,
            capacity=capacity,
            minimum=low,
            maximum=high,
            gpus=gpus,
            each=each,
            per_gpu_hour=each / gpus if each and gpus else None,
            on_demand=on_demand,
            spot=spot,
        )

    def _month(self, at_min: Usd | None, at_max: Usd | None) -> Usd | None:
        if at_min is None or at_max is None:
            return None
        return (at_min + (at_max - at_min) * self.utilisation) * HOURS_OF_MONTH

    # --- everything else ----------------------------------------------------------------------------------------------

    def fixed(self) -> list[Part]:
        found: list[Part | None] = [
            *self._disks(),
            *self._control_planes(),
            self._hourly("NAT gateways", "nat-gateway", self.of("aws:ec2/natGateway:NatGateway")),
            self._hourly("public addresses", "public-ipv4", self.of("aws:ec2/eip:Eip")),
            self._endpoints(),
            *(self._lustre(one) for one in self.of("aws:fsx/lustreFileSystem:LustreFileSystem")),
            *self._volumes(),
            self._keys(),
        ]
        return [part for part in found if part is not None]

    def _disks(self) -> Iterator[Part]:
        """Root and other disks of the machines, which come and go with them."""
        for group in sorted(self.of(NODE_GROUP), key=lambda one: self.names[one.urn]):
            scaling = mapping(group.inputs.get("scalingConfig"))
            low, high = number(scaling.get("minSize")), number(scaling.get("maxSize"))
            template = template_of(group, self.resources)
            name = f"disks of {self.names[group.urn]}"
            sizes = _disk_sizes(group, template)
            if sizes is None:
                self._uncounted(name, "their size is the machine image's own, or not known yet")
                continue
            if any(kind != "gp3" or extra for _, kind, extra in sizes):
                self._uncounted(name, "the price table has only gp3 volumes without extra IOPS and throughput")
                continue
            gib = sum(size for size, _, _ in sizes)
            price = self.prices.service("ebs-gp3", region_of([group], self.resources) or self.region)
            each = None if price is None else Usd.exactly(price.usd * gib / HOURS_OF_MONTH)
            at_min, at_max = (None if each is None or count is None else each * count for count in (low, high))
            yield self._part(
                name,
                "disks",
                f"{_counts(low, high)} x {gib} GiB gp3",
                price,
                at_min,
                at_max,
                self._month(at_min, at_max),
            )

    def _control_planes(self) -> Iterator[Part]:
        from infra.catalog.ranges import numbers  # noqa: PLC0415
        from infra.catalog.versions import versions  # noqa: PLC0415

        oldest = numbers(versions().kubernetes[0])
        for cluster in self.of("aws:eks/cluster:Cluster"):
            minor = text(cluster.inputs.get("version"))
            extended = bool(minor) and minor[0].isdigit() and numbers(minor) < oldest
            service = "eks-extended-support" if extended else "eks-control-plane"
            note = f"Kubernetes {minor} is in extended support, which costs more" if extended else ""
            name = text(cluster.inputs.get("name")) or cluster.name
            yield self._per_hour(f"control plane {name}", "control plane", service, 1, "1 cluster", note)

    def _hourly(self, name: str, service: str, found: Sequence[Resource]) -> Part | None:
        return self._per_hour(name, "network", service, len(found), str(len(found))) if found else None

    def _endpoints(self) -> Part | None:
        found = [
            one
            for one in self.of("aws:ec2/vpcEndpoint:VpcEndpoint")
            if one.inputs.get("vpcEndpointType") == "Interface"
        ]
        if not found:
            return None
        subnets = [one.inputs.get("subnetIds") for one in found]  # ids of new ones are unknown, their number is not
        zones = sum(len(one) for one in subnets if isinstance(one, list | tuple))
        told = all(isinstance(one, list | tuple) for one in subnets)
        reckoned = f"{len(found)} endpoints, {zones} zones in all" if told else f"{len(found)} endpoints"
        return self._per_hour("interface endpoints", "network", "interface-endpoint", zones if told else None, reckoned)

    def _lustre(self, system: Resource) -> Part:
        gib = number(system.inputs.get("storageCapacity"))
        kind = text(system.inputs.get("deploymentType")).lower().replace("_", "-")
        throughput = number(system.inputs.get("perUnitStorageThroughput"))
        service = "fsx-lustre-" + "-".join(filter(None, [kind or "unknown", str(throughput) if throughput else ""]))
        ssd = system.inputs.get("storageType") in (None, "SSD")
        price = self.prices.service(service, self.region) if ssd else None
        month = None if price is None or gib is None else Usd.exactly(price.usd * gib)
        each = f" at {throughput} MB/s per TiB" if throughput else ""
        hour = None if month is None else month / HOURS_OF_MONTH
        note = "without backups" if number(system.inputs.get("automaticBackupRetentionDays")) else ""
        size = "? GiB" if gib is None else f"{gib} GiB"
        return self._part(
            "Lustre" if system.name == "lustre" else f"Lustre {system.name}",
            "storage",
            f"{size} {kind}{each}",
            price,
            hour,
            hour,
            month,
            note=note,
        )

    def _volumes(self) -> Iterator[Part]:
        """Volumes of pods that stand in the program: those of StatefulSets, and claims of block storage."""
        classes = {_metadata(one).get("name"): one for one in self.resources if one.kind == "StorageClass"}
        for one in self.resources:
            if one.kind == "StatefulSet":
                spec = mapping(one.inputs.get("spec"))
                claims, count = spec.get("volumeClaimTemplates"), number(spec.get("replicas", 1))
            elif one.kind == "PersistentVolumeClaim":
                claims, count = [one.inputs], 1
            else:
                continue
            for claim in claims if isinstance(claims, list) else ():
                if not isinstance(claim, Mapping):
                    continue
                if mapping(claim.get("spec")).get("storageClassName") is UNKNOWN:
                    self._uncounted(f"volumes of {one.name}", "their storage class is not known before `up`")
                elif _is_block(claim, classes):
                    yield self._volume(one, claim, count)

    def _volume(self, owner: Resource, claim: Mapping[str, Any], count: int | None) -> Part:
        gib = _requested_gib(claim)
        price = self.prices.service("ebs-gp3", self.region)
        month = None if price is None or gib is None or count is None else Usd.exactly(price.usd * gib * count)
        hour = None if month is None else month / HOURS_OF_MONTH
        shown = "?" if gib is None else f"{gib.normalize():f}"
        reckoned = f"{'?' if count is None else count} x {shown} GiB gp3"
        return self._part(f"volumes of {owner.name}", "storage", reckoned, price, hour, hour, month)

    def _keys(self) -> Part | None:
        found = self.of("aws:kms/key:Key")
        if not found:
            return None
        price = self.prices.service("kms-key", self.region)
        month = None if price is None else Usd.exactly(price.usd * len(found))
        hour = None if month is None else month / HOURS_OF_MONTH
        return self._part("KMS keys", "key", str(len(found)), price, hour, hour, month, note="without requests")

    def _per_hour(self, name: str, kind: Kind, service: str, count: int | None, reckoned: str, note: str = "") -> Part:
        price = self.prices.service(service, self.region)
        hour = None if price is None or count is None else Usd.exactly(price.usd * count)
        return self._part(
            name, kind, reckoned, price, hour, hour, None if hour is None else hour * HOURS_OF_MONTH, note=note
        )

    def _part(
        self,
        name: str,
        kind: Kind,
        reckoned: str,
        price: ServicePrice | None,
        at_min: Usd | None,
        at_max: Usd | None,
        month: Usd | None,
        note: str = "",
    ) -> Part:
        unit = f" x {price.usd:f} USD per {price.per}" if price else ""
        absent = "" if price else f"no price of it in {self.region or 'an unknown region'} in the table"
        return Part(
            name=name,
            kind=kind,
            reckoned=reckoned + unit,
            at_min=at_min,
            at_max=at_max,
            month=month,
            as_of=price.as_of if price else None,
            source=price.source if price else "",
            unconfirmed=bool(price and price.unconfirmed),
            note="; ".join(filter(None, [note, absent])),
        )

    # --- without a figure ---------------------------------------------------------------------------------------------

    def _uncounted(self, what: str, reason: str) -> None:
        self.uncounted.setdefault(what, NotCounted(what, reason))

    def not_counted(self) -> list[NotCounted]:
        kinds: dict[str, int] = {}
        for one in self.resources:
            if one.type.startswith("aws:") and one.custom:
                kinds[one.type] = kinds.get(one.type, 0) + 1
            elif one.kind == "Service" and _is_load_balancer(one):
                self._uncounted(f"load balancer of {one.name}", "by the hour and by traffic")
        for kind, count in sorted(kinds.items()):
            if kind in _COUNTED or kind in _FREE or kind.startswith("aws:iam/"):
                continue
            what, reason = _BY_USE.get(kind, (kind, "the price table does not know this type"))
            self._uncounted(f"{what} ({count})" if count > 1 else what, reason)
        if kinds:
            self._uncounted("data transfer", "between zones, to the internet, through NAT gateways and endpoints")
            self._uncounted("support, tax and discounts", "depend on the account")
        return list(self.uncounted.values())


_COUNTED = frozenset(
    {
        NODE_GROUP,
        "aws:eks/cluster:Cluster",
        "aws:ec2/natGateway:NatGateway",
        "aws:ec2/eip:Eip",
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        "aws:kms/key:Key",
    }
)
_BY_USE = {
    "aws:s3/bucket:Bucket": ("S3 bucket", "by what is stored and by requests"),
    "aws:efs/fileSystem:FileSystem": ("EFS file system", "by what is stored and by what is read and written"),
    "aws:ecr/repository:Repository": ("ECR repository", "by what is stored"),
    "aws:cloudwatch/logGroup:LogGroup": ("CloudWatch log group", "by what is written and kept"),
    "aws:ec2/flowLog:FlowLog": ("VPC flow log", "by what is written"),
}
_FREE = frozenset(
    f"aws:{name.partition('/')[0]}/{name.partition('/')[2][0].lower()}{name.partition('/')[2][1:]}:{name.partition('/')[2]}"
    for name in (
        "budgets/Budget",
        "ec2/DefaultSecurityGroup",
        "ec2/InternetGateway",
        "ec2/LaunchTemplate",
        "ec2/PlacementGroup",
        "ec2/Route",
        "ec2/RouteTable",
        "ec2/RouteTableAssociation",
        "ec2/SecurityGroup",
        "ec2/SecurityGroupRule",
        "ec2/Subnet",
        "ec2/Vpc",
        "ec2/VpcEndpointRouteTableAssociation",
        "vpc/SecurityGroupEgressRule",
        "vpc/SecurityGroupIngressRule",
        "ecr/LifecyclePolicy",
        "ecr/RepositoryPolicy",
        "efs/AccessPoint",
        "efs/FileSystemPolicy",
        "efs/MountTarget",
        "eks/AccessEntry",
        "eks/AccessPolicyAssociation",
        "eks/Addon",
        "eks/PodIdentityAssociation",
        "kms/Alias",
        "s3/BucketLifecycleConfiguration",
        "s3/BucketOwnershipControls",
        "s3/BucketPolicy",
        "s3/BucketPublicAccessBlock",
        "s3/BucketServerSideEncryptionConfiguration",
        "s3/BucketVersioning",
        "autoscaling/Tag",
    )
)
"""Types that cost nothing themselves: rules, rights and addresses of what is counted elsewhere. Budgets without actions
are free, add-ons run on the pools."""


def _gpus_first(pool: Pool) -> tuple[bool, str]:
    return (pool.gpus == 0, pool.name)


def _capacity(group: Resource) -> Capacity:
    match group.inputs.get("capacityType"):
        case "SPOT":
            return "spot"
        case "CAPACITY_BLOCK":
            return "capacity-block"
    return "on-demand"


def _each(known: Sequence[tuple[str, Price | None]], capacity: Capacity) -> tuple[Usd | None, date | None]:
    """Price of one machine and its oldest date; None unless every type has one: the cloud chooses among them."""
    figures: list[Decimal | None] = []
    days: list[date] = []
    for _, one in known:
        if one is None:
            return None, None
        if capacity == "spot":
            figures += [one.spot_low, one.spot_high]
            days.append(one.spot_as_of or one.as_of)
        elif capacity == "capacity-block":
            figures.append(one.capacity_block)
            days.append(one.block_as_of or one.as_of)
        else:
            figures.append(one.usd_per_hour)
            days.append(one.as_of)
    spanned = _spanned(figures)
    return spanned, min(days) if days and spanned else None


def _spanned(figures: Sequence[Decimal | None]) -> Usd | None:
    known = [figure for figure in figures if figure is not None]
    return Usd.spanning(known) if known and len(known) == len(figures) else None


def _note(
    types: Sequence[str],
    capacity: Capacity,
    each: Usd | None,
    on_demand: Usd | None,
    region: str | None,
    counts: tuple[int | None, int | None],
) -> str:
    said = []
    if None in counts:
        said.append("how many machines is not known before `up`")
    if each is None and types:
        of = {"spot": "spot price", "capacity-block": "price of a capacity block", "on-demand": "price"}[capacity]
        compare = f"; on demand {on_demand.shown()} USD/h each" if on_demand and capacity != "on-demand" else ""
        said.append(f"no {of} of {' or '.join(types)} in {region or 'an unknown region'} in the table{compare}")
    elif each is None:
        said.append("the type of the machines is not known")
    if capacity == "capacity-block":
        said.append("paid in advance, whatever runs")
    return "; ".join(said)


def _counts(low: int | None, high: int | None) -> str:
    shown = ["?" if one is None else str(one) for one in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]}-{shown[1]}"


def _disk_sizes(group: Resource, template: Template | None) -> list[tuple[int, str, bool]] | None:
    """Size in GiB, kind, and whether more than the free performance is asked for, of each disk of a machine."""
    if template is None:
        if "launchTemplate" in group.inputs:
            return None
        return [(number(group.inputs.get("diskSize", 20)) or 20, "gp3", False)]
    found = []
    for disk in template.disks:
        size = number(disk.get("volumeSize"))
        if size is None:
            return None
        extra = any((number(disk.get(name)) or 0) > free for name, free in _GP3_FREE.items())
        found.append((size, text(disk.get("volumeType")) or "gp2", extra))
    return found or None


def _metadata(one: Resource) -> Mapping[str, Any]:
    return mapping(one.inputs.get("metadata"))


def _is_block(claim: Mapping[str, Any], classes: Mapping[Any, Resource]) -> bool:
    """Whether a claim gets a volume of EBS made for it: not one that is there already, nor a file system."""
    spec = mapping(claim.get("spec"))
    wanted = spec.get("storageClassName")
    if spec.get("volumeName") is not None or wanted == "":  # a named volume, whose name may not be known yet
        return False
    default = next((one for one in classes.values() if _is_default(one)), None)
    chosen = default if wanted is None else classes.get(wanted)
    return chosen is not None and chosen.inputs.get("provisioner") == "ebs.csi.aws.com"


def _is_default(one: Resource) -> bool:
    annotations = mapping(_metadata(one).get("annotations"))
    return str(annotations.get("storageclass.kubernetes.io/is-default-class")).lower() == "true"


_SUFFIXES = {
    "Ki": Decimal(1) / 2**20,
    "Mi": Decimal(1) / 2**10,
    "Gi": Decimal(1),
    "Ti": Decimal(2**10),
    "Pi": Decimal(2**20),
    "M": Decimal(10**6) / 2**30,
    "G": Decimal(10**9) / 2**30,
    "T": Decimal(10**12) / 2**30,
    "": Decimal(1) / 2**30,
}


def _requested_gib(claim: Mapping[str, Any]) -> Decimal | None:
    wanted = str(mapping(mapping(mapping(claim.get("spec")).get("resources")).get("requests")).get("storage"))
    try:
        digits = wanted.rstrip("KMGTPi")
        return Decimal(digits) * _SUFFIXES[wanted[len(digits) :]]
    except (KeyError, ArithmeticError):
        return None


def _is_load_balancer(one: Resource) -> bool:
    return mapping(one.inputs.get("spec")).get("type") == "LoadBalancer"
