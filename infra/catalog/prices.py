"""What machines and services cost, each with date and source. An offline table: old prices are said to be old."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

from infra.catalog.tables import table

STALE_AFTER = timedelta(days=90)
"""AWS changes prices of GPU machines a few times a year; older figures are shown with a warning."""


@dataclass(frozen=True)
class Price:
    """Prices of one instance type in one region, USD for one hour of the whole machine."""

    type: str
    region: str
    usd_per_hour: Decimal | None
    """On demand; None where the type is not sold so, or no figure is known."""
    spot_low: Decimal | None
    spot_high: Decimal | None
    """Range over the region's zones."""
    capacity_block: Decimal | None
    """Of an hour in a capacity block."""
    as_of: date
    """When the price on demand held; where there is none, the others."""
    source: str
    """Where they come from, with links."""
    unconfirmed: bool
    """No price list of AWS was seen for it."""
    spot_as_of: date | None = None
    """When the range of spot prices held."""
    block_as_of: date | None = None
    """When the price in a capacity block held."""

    def age(self, today: date) -> timedelta:
        """How old the figures are."""
        return today - self.as_of

    def is_stale(self, today: date) -> bool:
        """Whether they are too old to be shown without a warning."""
        return self.age(today) > STALE_AFTER


@dataclass(frozen=True)
class ServicePrice:
    """What one unit of a service costs in one region."""

    name: str
    """`nat-gateway`."""
    usd: Decimal
    per: Literal["hour", "GiB-month", "month"]
    as_of: date
    source: str
    unconfirmed: bool
    """No price list of AWS was seen for it."""


@dataclass(frozen=True)
class PriceTable:
    """All prices that a stack is reckoned with."""

    machines: Mapping[tuple[str, str], Price]
    """By type and region."""
    services: Mapping[tuple[str, str], ServicePrice]
    """By name and region; region `*`: all."""

    def machine(self, type_name: str, region: str | None) -> Price | None:
        """Prices of an instance type in a region; None where the table has none."""
        return self.machines.get((type_name, region)) if region else None

    def service(self, name: str, region: str | None) -> ServicePrice | None:
        """The price of a service in a region; None where the table has none."""
        return (self.services.get((name, region)) if region else None) or self.services.get((name, EVERYWHERE))


EVERYWHERE = "*"
"""The region of prices that are the same in all commercial regions."""


@functools.cache
def price_table() -> PriceTable:
    """The prices of the catalogue."""
    services = {
        (name, region): _service(name, row, usd)
        for name, row in table("prices")["service"].items()
        for region, usd in row["usd"].items()
    }
    return PriceTable(prices(), MappingProxyType(services))


@functools.cache
def prices() -> Mapping[tuple[str, str], Price]:
    """All prices by type and region."""
    return MappingProxyType(
        {
            (name, region): _price(name, region, row)
            for region, rows in table("prices")["price"].items()
            for name, row in rows.items()
        }
    )


def price(type_name: str, region: str) -> Price | None:
    """Prices of a type in a region; None where the table has none."""
    return prices().get((type_name, region))


def regions() -> tuple[str, ...]:
    """Regions that the table has prices of."""
    return tuple(table("prices")["price"])


def stale_warning(shown: Iterable[Price], today: date) -> str | None:
    """What to say beside prices that are older than `STALE_AFTER`; None where none is."""
    figures = list(shown)
    return old_prices([one.as_of for one in figures], today, next((one.region for one in figures), None))


def old_prices(days: Sequence[date], today: date, region: str | None) -> str | None:
    """What to say of prices that held at these days, of one region; None where none is older than `STALE_AFTER`."""
    old = [day for day in days if today - day > STALE_AFTER]
    if not old:
        return None
    number = f"All {len(old)}" if len(old) == len(days) else f"{len(old)} of {len(days)}"
    told = "prices are" if len(old) > 1 else "price is" if len(days) == 1 else "prices is"
    return (
        f"{'The only' if len(days) == 1 else number} {told} older than {STALE_AFTER.days} days,"
        f" {'the oldest ' if len(set(old)) > 1 else ''}of {min(old)}."
        f" `trainyard gpus --refresh --region {region or 'R'}` compares those of machines with AWS's."
    )


def _price(name: str, region: str, row: Mapping[str, Any]) -> Price:
    spot = row.get("spot", (None, None))
    keys = dict.fromkeys(row[key] for key in ("from", "spot_from", "block_from") if key in row)
    named = table("prices")["source"]
    sources = [named[key] for key in keys]
    return Price(
        type=name,
        region=region,
        usd_per_hour=_decimal(row.get("on_demand")),
        spot_low=_decimal(spot[0]),
        spot_high=_decimal(spot[1]),
        capacity_block=_decimal(row.get("capacity_block")),
        as_of=sources[0]["as_of"],
        source="; ".join(f"{source['text']} ({source['link']})" for source in sources),
        unconfirmed=row.get("unconfirmed", False),
        spot_as_of=named[row["spot_from"]]["as_of"] if "spot_from" in row else None,
        block_as_of=named[row["block_from"]]["as_of"] if "block_from" in row else None,
    )


def _service(name: str, row: Mapping[str, Any], usd: str) -> ServicePrice:
    source = table("prices")["source"][row["from"]]
    return ServicePrice(
        name=name,
        usd=Decimal(usd),
        per=row["per"],
        as_of=source["as_of"],
        source=f"{source['text']} ({source['link']})",
        unconfirmed=row.get("unconfirmed", False),
    )


def _decimal(figure: str | None) -> Decimal | None:
    return None if figure is None else Decimal(figure)
