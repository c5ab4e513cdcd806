"""`trainyard gpus`: the GPU machines of the catalogue, what they cost, and where AWS says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import console
from infra.cli.options import Json

if TYPE_CHECKING:
    from infra.catalog.account import Difference, Findings
    from infra.catalog.instance_types import InstanceType
    from infra.catalog.prices import Price

UNCONFIRMED = "?"
"""Behind a value that neither EC2's own description nor a document of AWS confirms."""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(gpus)


def gpus(
    type_name: Annotated[
        str | None, typer.Argument(metavar="[TYPE]", help="An instance type: show everything that is known of it.")
    ] = None,
    efa: Annotated[bool, typer.Option("--efa", help="Only types that have EFA.")] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only types with this GPU: H100, L40S, …")] = None,
    capacity: Annotated[
        str | None, typer.Option("--capacity", help="Only types sold so: on-demand, spot, odcr, capacity-block.")
    ] = None,
    region: Annotated[str, typer.Option("--region", help="Prices of this region.")] = "us-east-1",
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Compare with AWS, with your credentials; changes nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the GPU instance types: GPUs, EFA, network cards, capacity and price; or show one of them.

    Example: [bold]trainyard gpus --gpu H100[/bold], [bold]trainyard gpus p5en.48xlarge[/bold],
    [bold]trainyard gpus --refresh --region us-east-2[/bold]
    """
    machines = _wanted(type_name, efa=efa, gpu=gpu, capacity=capacity)
    if refresh:
        _refresh(machines, region, as_json=as_json)
    elif as_json:
        document = [_document(machine, region) for machine in machines]
        console.print_json(document[0] if type_name else {"region": region, "types": document})
    elif type_name:
        _show(machines[0], region)
    else:
        _list(machines, region)


def _wanted(type_name: str | None, *, efa: bool, gpu: str | None, capacity: str | None) -> list[InstanceType]:
    from infra.catalog.instance_types import instance_type, instance_types  # noqa: PLC0415
    from infra.errors import UsageError  # noqa: PLC0415

    if type_name is not None:
        if efa or gpu or capacity:
            raise UsageError("one type and filters were given: leave the filters out, or the type.")
        return [instance_type(type_name)]
    found = [
        machine
        for machine in instance_types().values()
        if machine.has_gpu
        and (not efa or machine.efa)
        and (gpu is None or gpu.lower() in str(machine.gpu).lower())
        and (capacity is None or capacity in machine.capacities)
    ]
    if not found:
        kinds = ", ".join(dict.fromkeys(str(one.gpu) for one in instance_types().values() if one.has_gpu))
        raise UsageError(
            f"no GPU type of the catalogue is like that. GPUs: {kinds}. Capacities: on-demand, spot, odcr, "
            "capacity-block."
        )
    return found


def _list(machines: list[InstanceType], region: str) -> None:
    from infra.catalog.prices import price  # noqa: PLC0415

    found = [(machine, price(machine.name, region)) for machine in machines]
    columns = _columns(found)
    left_out = _leave_out(columns, console.stdout().width)
    table = console.table(*columns)
    for cells in zip(*columns.values(), strict=True):
        console.row(table, *cells)
    console.show(table)
    if left_out:
        console.stderr().print(f"No room here for: {', '.join(left_out)}. `--json` has everything.", markup=False)
    _legend(machines, [cost for _, cost in found if cost is not None], region)


def _columns(found: list[tuple[InstanceType, Price | None]]) -> dict[str, list[str]]:
    """The table by columns."""
    columns: dict[str, list[str]] = {}
    for machine, cost in found:
        marked = _Marked(machine)
        hour, per_gpu, spot, as_of = _costs(machine, cost)
        cells = {
            "type": machine.name,
            "GPUs": f"{machine.gpus} {machine.gpu}{marked('gpu', 'gpus')}",
            "GiB each": f"{machine.gpu_memory_mib / 1024:.0f}{marked('gpu_memory_mib')}",
            "CPUs": f"{machine.vcpus}{marked('vcpus')}",
            "GiB": f"{machine.memory_mib // 1024}{marked('memory_mib')}",
            "EFA/cards": f"{machine.efa or '-'}{marked('efa')}/{len(machine.cards)}{marked('cards')}",
            "NVMe GB": f"{machine.nvme_gb or '-'}{marked('nvme_gb')}",
            "sold": _sold(machine),
            "USD/h": hour,
            "USD/GPU-h": per_gpu,
            "spot": spot,
            "of": as_of,
        }
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
    return columns


def _leave_out(columns: dict[str, list[str]], width: int) -> list[str]:
    """Take away columns, the least important first, until the table fits: half a number is a wrong number."""
    left_out = []
    for name in ("NVMe GB", "GiB", "CPUs", "of", "spot", "sold", "GiB each", "USD/GPU-h"):
        needed = sum(max(map(len, [header, *cells])) + 3 for header, cells in columns.items())
        if needed <= width:
            break
        del columns[name]
        left_out.append(name)
    return left_out


def _sold(machine: InstanceType) -> str:
    """Short: what is sold on demand can be reserved as well, so `odcr` says nothing here."""
    return ", ".join(name.removeprefix("capacity-") for name in machine.capacities if name != "odcr")


def _costs(machine: InstanceType, cost: Price | None) -> tuple[str, str, str, str]:
    if cost is None:
        return "-", "-", "-", ""
    hour = cost.usd_per_hour if cost.usd_per_hour is not None else cost.capacity_block
    sign = UNCONFIRMED if cost.unconfirmed else ""
    block = " block" if cost.usd_per_hour is None and cost.capacity_block is not None else ""
    spot = "-" if cost.spot_low is None else _range(cost.spot_low, cost.spot_high)
    if hour is None:
        return "-", "-", spot, str(cost.as_of)
    per_gpu = f"{hour / machine.gpus:.2f}{sign}" if machine.gpus else "-"
    return f"{hour:.2f}{sign}{block}", per_gpu, spot, str(cost.as_of)


def _range(low: Decimal | None, high: Decimal | None) -> str:
    return f"{low}" if low == high else f"{low}-{high}"


def _legend(machines: Iterable[InstanceType], costs: list[Price], region: str) -> None:
    from infra.catalog.prices import regions, stale_warning  # noqa: PLC0415

    said = console.stderr()
    if any(machine.unconfirmed for machine in machines) or any(cost.unconfirmed for cost in costs):
        said.print(
            f"{UNCONFIRMED} behind a value: not confirmed by EC2's own description or a document of AWS.", markup=False
        )
    if not costs:
        said.print(
            f"No prices of {region} in the table, which has {', '.join(regions())}; "
            f"`trainyard gpus --refresh --region {region}` shows AWS's.",
            markup=False,
        )
        return
    said.print(f"Prices of {region}, Linux, USD; `trainyard gpus TYPE` names their sources.", markup=False)
    if warning := stale_warning(costs, datetime.now(UTC).date()):
        said.print(f"Old: {warning}", markup=False)


def _show(machine: InstanceType, region: str) -> None:
    from infra.catalog.prices import price  # noqa: PLC0415

    cost = price(machine.name, region)
    table = console.table("what", "found")
    marked = _Marked(machine)
    rows: list[tuple[str, object]] = [
        ("type", machine.name),
        ("architecture", machine.architecture),
        ("CPUs", f"{machine.vcpus}{marked('vcpus')}"),
        ("memory", f"{machine.memory_mib // 1024} GiB{marked('memory_mib')}"),
        ("pods", f"{machine.max_pods}{marked('ipv4_per_interface')} by IP addresses"),
        ("NVMe", f"{machine.nvme_gb} GB{marked('nvme_gb')}" if machine.nvme_gb else "none"),
        ("sold", ", ".join(machine.capacities)),
    ]
    if machine.has_gpu:
        rows[2:2] = [
            ("GPUs", f"{machine.gpus} {machine.gpu}{marked('gpu', 'gpus')}"),
            ("memory of a GPU", f"{machine.gpu_memory_mib} MiB{marked('gpu_memory_mib')}"),
            ("compute capability", machine.compute_capability),
            ("oldest driver", f"{machine.minimum_driver}{marked('minimum_driver')}; {_lock_driver(machine)}"),
            ("accelerator label", machine.accelerator_label),
        ]
    rows += [
        ("EFA", f"{machine.efa}{marked('efa')} interfaces at most" if machine.efa else "none"),
        ("network cards", f"{len(machine.cards)}{marked('cards')}"),
        ("topology labels", f"{machine.topology_layers}{marked('topology_layers')} layers"),
        *_price_rows(machine, cost),
        ("source", machine.source),
    ]
    for name, value in rows:
        console.row(table, name, value)
    console.show(table)
    for wanted in (False, True) if machine.efa else (False,):
        console.stdout().print(f"Interfaces {'with' if wanted else 'without'} EFA:", markup=False)
        layout = console.table("cards", "device index", "kind")
        for cells in _layout_rows(machine, efa=wanted):
            console.row(layout, *cells)
        console.show(layout)
    _legend([machine], [cost] if cost else [], region)


def _price_rows(machine: InstanceType, cost: Price | None) -> list[tuple[str, object]]:
    if cost is None:
        return []
    rows: list[tuple[str, object]] = []
    hour, per_gpu, spot, _ = _costs(machine, cost)
    if cost.usd_per_hour is not None:
        rows.append(("on demand", f"{hour} USD/h" + (f", {per_gpu} USD/GPU-h" if machine.gpus else "")))
    if cost.capacity_block is not None:
        rows.append(("capacity block", f"{cost.capacity_block} USD/h"))
    if cost.spot_low is not None:
        rows.append(("spot", f"{spot} USD/h"))
    return [*rows, ("prices of", f"{cost.as_of}, {cost.region}"), ("their source", cost.source)]


def _lock_driver(machine: InstanceType) -> str:
    """What the locked AL2023 image brings, beside what the GPU needs."""
    from infra.catalog.ranges import in_range  # noqa: PLC0415
    from infra.catalog.versions import versions  # noqa: PLC0415

    lock = versions()
    driver = lock.ami(lock.default_kubernetes, "al2023", machine.architecture, gpu=True).driver
    enough = in_range(str(driver), f">={machine.minimum_driver}")
    return f"the AL2023 image has {driver}" + ("" if enough else ", too old: it needs an image of your own")


def _layout(machine: InstanceType, *, efa: bool) -> list[dict[str, Any]]:
    from infra.wiring.interfaces import interfaces_of  # noqa: PLC0415

    return [
        {"card": one.card, "device_index": one.device_index, "kind": one.kind}
        for one in interfaces_of(machine, efa=efa)
    ]


def _layout_rows(machine: InstanceType, *, efa: bool) -> list[tuple[str, str, str]]:
    """The layout with neighbouring cards of the same kind in one row: 32 rows say no more than three."""
    rows: list[tuple[list[int], int, str]] = []
    for one in _layout(machine, efa=efa):
        cards, index, kind = rows[-1] if rows else ([], -1, "")
        if (one["device_index"], one["kind"]) == (index, kind) and cards[-1] + 1 == one["card"]:
            cards.append(one["card"])
        else:
            rows.append(([one["card"]], one["device_index"], one["kind"]))
    return [
        (f"{cards[0]}" if len(cards) == 1 else f"{cards[0]}-{cards[-1]}", str(index), kind)
        for cards, index, kind in rows
    ]


def _document(machine: InstanceType, region: str) -> dict[str, Any]:
    from infra.catalog.prices import price  # noqa: PLC0415

    cost = price(machine.name, region)
    return {
        "type": machine.name,
        "family": machine.family,
        "architecture": machine.architecture,
        "vcpus": machine.vcpus,
        "memory_mib": machine.memory_mib,
        "gpu": machine.gpu,
        "gpus": machine.gpus,
        "gpu_memory_mib": machine.gpu_memory_mib,
        "compute_capability": machine.compute_capability,
        "minimum_driver": machine.minimum_driver,
        "accelerator_label": machine.accelerator_label,
        "efa": machine.efa,
        "cards": [{"interfaces": card.interfaces, "efa": card.efa} for card in machine.cards],
        "interfaces": _layout(machine, efa=bool(machine.efa)),
        "nvme_gb": machine.nvme_gb,
        "max_pods": machine.max_pods,
        "topology_layers": machine.topology_layers,
        "capacities": machine.capacities,
        "unconfirmed": machine.unconfirmed,
        "source": machine.source,
        "price": None if cost is None else _price_document(cost, machine),
    }


def _price_document(cost: Price, machine: InstanceType) -> dict[str, Any]:
    per_gpu = None
    if machine.gpus and cost.usd_per_hour is not None:
        per_gpu = round(float(cost.usd_per_hour / machine.gpus), 4)
    return {
        "region": cost.region,
        "usd_per_hour": _numbers(cost.usd_per_hour),
        "usd_per_gpu_hour": per_gpu,
        "spot_low": _numbers(cost.spot_low),
        "spot_high": _numbers(cost.spot_high),
        "capacity_block": _numbers(cost.capacity_block),
        "as_of": str(cost.as_of),
        "stale": cost.is_stale(datetime.now(UTC).date()),
        "unconfirmed": cost.unconfirmed,
        "source": cost.source,
    }


def _refresh(machines: list[InstanceType], region: str, *, as_json: bool) -> None:
    from infra.catalog.account import clients, compare  # noqa: PLC0415
    from infra.cli.workspace import in_rehearsal  # noqa: PLC0415
    from infra.errors import UsageError  # noqa: PLC0415

    if in_rehearsal():
        raise UsageError("this shell has the variables of a rehearsal, whose stand-in knows no facts: open a new shell")
    steps = console.Steps()
    with steps.step(f"ask AWS about {console.counted(len(machines), 'type')} in {region}"):
        found = compare(machines, region, clients(region))
    if as_json:
        console.print_json(_findings_document(found))
        return
    if found.differences:
        table = console.table("type", "what", "catalogue", "AWS", "message")
        for one in found.differences:
            console.row(table, one.type, one.field, _shown(one.catalogue), _shown(one.aws), one.reason)
        console.show(table)
    said = console.stderr()
    compared = console.counted(len(found.compared), "type")
    different = console.counted(len(found.differences), "difference")
    said.print(f"{compared} compared, {different}; nothing was changed.")
    if found.not_offered:
        said.print(f"Not in {region}: {', '.join(found.not_offered)}", markup=False)
    if found.differences:
        said.print("What AWS says belongs into infra/catalog/instance_types.toml and prices.toml, with its date.")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " ".join(_shown(part) for part in value)
    return str(value)


def _findings_document(found: Findings) -> dict[str, Any]:
    def difference(one: Difference) -> dict[str, Any]:
        return {
            "type": one.type,
            "field": one.field,
            "catalogue": _numbers(one.catalogue),
            "aws": _numbers(one.aws),
            "reason": one.reason,
        }

    return {
        "region": found.region,
        "compared": found.compared,
        "not_offered": found.not_offered,
        "differences": [difference(one) for one in found.differences],
    }


def _numbers(value: object) -> object:
    """A value for JSON, prices as numbers."""
    if isinstance(value, tuple):
        return [_numbers(part) for part in value]
    return float(value) if isinstance(value, Decimal) else value


class _Marked:
    """Marks values of a machine that nothing confirms."""

    def __init__(self, machine: InstanceType) -> None:
        self._unconfirmed = machine.unconfirmed

    def __call__(self, *fields: str) -> str:
        return UNCONFIRMED if any(field in self._unconfirmed for field in fields) else ""
