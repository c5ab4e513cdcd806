"""`trainyard images matrix`: which images there are, what each one needs, and which one a machine should run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import console
from infra.cli.options import Json

if TYPE_CHECKING:
    from images.matrix import BaseImage, Row
    from images.selection import Wish

_UNCONFIRMED = "?"
"""Behind a value that no document we read confirms."""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(matrix)


def matrix(
    name: Annotated[
        str | None, typer.Argument(metavar="[ROW]", help="An image: show its parts, their sources and the rules.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="Only images of this kind: cpu, cuda, efa, infiniband, ngc.")
    ] = None,
    torch: Annotated[str | None, typer.Option("--torch", help="Only images with this torch: 2.15 or 2.15.0.")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Only images for this GPU (H100) or instance type (p5.48xlarge).")
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Only images for amd64 or arm64.")] = None,
    driver: Annotated[
        str | None, typer.Option("--driver", help="Only images that this NVIDIA driver can run: 580.159.03.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the images that can be built: torch, CUDA, NCCL, fabric, architectures, oldest driver; or show one of them.

    Example: [bold]trainyard images matrix --gpu p5.48xlarge[/bold],
    [bold]trainyard images matrix --driver 570.133.20[/bold], [bold]trainyard images matrix efa[/bold]
    """
    from images.matrix import matrix as load  # noqa: PLC0415
    from infra.errors import UsageError  # noqa: PLC0415

    filters = [variant, torch, gpu, arch, driver]
    if name is not None:
        if any(one is not None for one in filters):
            raise UsageError("one image and filters were given: leave the filters out, or the image.")
        _show(load().row(name), as_json=as_json)
    elif any(one is not None for one in filters):
        wish, has_efa = _wish(variant, torch, gpu, arch, driver)
        _filter(wish, has_efa=has_efa, as_json=as_json)
    elif as_json:
        console.print_json([_document(row) for row in load().rows])
    else:
        _list(load().rows)


def _wish(
    variant: str | None, torch: str | None, gpu: str | None, arch: str | None, driver: str | None
) -> tuple[Wish, bool]:
    """What the filters ask for, and whether the machine has EFA; all that is wrong with them in one go."""
    from typing import cast, get_args  # noqa: PLC0415

    from images.matrix import Architecture, Variant  # noqa: PLC0415
    from images.selection import Wish  # noqa: PLC0415
    from infra.errors import TrainyardError, UsageError  # noqa: PLC0415

    mistakes = []
    for option, value, known in (
        ("--variant", variant, get_args(Variant)),
        ("--arch", arch, (*get_args(Architecture), "x86_64", "aarch64")),
    ):
        if value is not None and value not in known:
            mistakes.append(f"{option} {value}: take one of {', '.join(known)}")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(arch or "", arch)
    capability, own, has_efa = None, None, False
    if gpu is not None:
        try:
            capability, own, has_efa = _machine(gpu)
        except TrainyardError as error:
            mistakes.append(f"--gpu {gpu}: {error}")
    if architecture is not None and own is not None and architecture != own:
        mistakes.append(f"--gpu {gpu} is a machine of {own}, --arch is {architecture}: leave one of them out")
    if mistakes:
        raise UsageError("\n".join(mistakes))
    wish = Wish(
        torch=torch,
        variant=cast(Variant | None, variant),
        architecture=cast(Architecture | None, architecture or own),
        driver=driver,
        compute_capability=capability,
    )
    return wish, has_efa


def _machine(gpu: str) -> tuple[str, str | None, bool]:
    """Compute capability of a GPU or of the GPUs of an instance type, the type's architecture, whether it has EFA."""
    from infra.catalog.instance_types import gpus, instance_type  # noqa: PLC0415
    from infra.errors import UsageError  # noqa: PLC0415

    if "." in gpu:
        machine = instance_type(gpu)
        if machine.compute_capability is None:
            raise UsageError(f"{gpu} has no GPU; `trainyard gpus` shows the types that have.")
        return machine.compute_capability, "arm64" if machine.architecture == "arm64" else "amd64", bool(machine.efa)
    known = {name.lower(): one for name, one in gpus().items()}
    if gpu.lower() not in known:
        raise UsageError(f"the catalogue has no such GPU; it has {', '.join(gpus())}.")
    return known[gpu.lower()].compute_capability, None, False


def _filter(wish: Wish, *, has_efa: bool, as_json: bool) -> None:
    """The images that fit, which of them to take, and why the others do not fit."""
    from dataclasses import replace  # noqa: PLC0415

    from images.matrix import matrix as load  # noqa: PLC0415
    from images.selection import select, sentences  # noqa: PLC0415

    found = load()
    # Raises where nothing fits, with all reasons.
    best = select(found, replace(wish, variant="efa") if has_efa and wish.variant is None else wish)
    take = best.name if wish.has_gpu or wish.variant is not None else None
    wanted = [row for row in found.rows if row.kind == "training" and _chosen(row, wish)]
    against = {row: sentences(row, wish) for row in wanted}
    fitting = [row for row in wanted if not against[row]]
    left_out = {row.name: reasons for row, reasons in against.items() if reasons}
    if as_json:
        console.print_json({"take": take, "images": [_document(row) for row in fitting], "left_out": left_out})
        return
    _list(fitting)
    said = console.stderr()
    if take is not None:
        fabric = " for this machine with EFA" if has_efa and wish.variant is None else ""
        said.print(f"Take {take}: the newest torch that fits{fabric}.", markup=False)
    by_reason: dict[str, list[str]] = {}
    for row, reasons in left_out.items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(row)
    for reason, rows in by_reason.items():
        said.print(f"Left out: {', '.join(rows)}: {reason}.", markup=False)


def _chosen(row: Row, wish: Wish) -> bool:
    """Whether the choices of a wish, and what it says of a machine at all, mean this image."""
    if wish.variant is not None and row.variant != wish.variant:
        return False
    if wish.variant is None and wish.has_gpu and row.cuda is None:
        return False
    if wish.torch is None:
        return True
    return row.torch is not None and not row.torch.bundled and wish.torch in (row.torch.version, row.torch.minor)


def _list(rows: tuple[Row, ...] | list[Row]) -> None:
    table = console.table("image", "torch", "CUDA", "NCCL", "fabric", "architectures", "oldest driver", "pinned")
    for row in rows:
        torch = row.torch if row.kind == "training" else None
        console.row(
            table,
            row.name,
            f"{torch.version}{_UNCONFIRMED if 'version' in torch.unconfirmed else ''}" if torch else "-",
            row.cuda or "-",
            row.nccl or "-",
            _fabric(row),
            " ".join(row.architectures),
            row.minimum_driver or "-",
            "no" if row.unpinned else "yes",
        )
    console.show(table)
    aliases = [f"{alias} is {row.name}" for row in rows for alias in row.aliases]
    said = console.stderr()
    if aliases:
        said.print(f"Short names: {', '.join(aliases)}.", markup=False)
    if any(row.unpinned for row in rows):
        said.print("Not pinned: a part without digest or sum, `trainyard images matrix ROW` says which.", markup=False)


def _fabric(row: Row) -> str:
    if row.efa is not None:
        return f"EFA {row.efa.version}"
    if row.variant == "ngc":
        return "EFA, InfiniBand (NGC's)"
    if row.variant == "infiniband":
        return f"InfiniBand {row.fabric.get('rdma-core', '')}".rstrip()
    return "-"


def _show(row: Row, *, as_json: bool) -> None:
    from images.rules import RULES  # noqa: PLC0415

    if as_json:
        rules = [
            {"id": rule.id, "sentence": rule.sentence, "reason": rule.reason, "source": rule.source} for rule in RULES
        ]
        console.print_json({**_document(row), "rules": rules})
        return
    table = console.table("what", "found")
    for name, value in _facts(row):
        console.row(table, name, value)
    console.show(table)
    console.stdout().print("Rules that this image keeps:", markup=False)
    kept = console.table("rule", "message", "because of")
    for rule in RULES:
        console.row(kept, rule.id, f"{rule.sentence} Otherwise: {rule.reason}.", rule.source)
    console.show(kept)


def _facts(row: Row) -> list[tuple[str, object]]:
    """All that is known of an image, top down as it is built."""
    facts: list[tuple[str, object]] = [
        ("image", row.name),
        *([("also called", ", ".join(row.aliases))] if row.aliases else []),
        ("kind", row.kind if row.variant is None else f"{row.kind}, {row.variant}"),
        ("architectures", ", ".join(row.architectures)),
        *_base_facts("base", row.base),
        *(_base_facts("compiled by", row.builder) if row.builder else []),
        *(_base_facts("base where something is compiled", row.compiled_base) if row.compiled_base else []),
        ("Python", row.python),
    ]
    torch = row.torch
    if torch is not None:
        marked = {field.partition(".")[0] for field in torch.unconfirmed}

        def mark(field: str) -> str:
            return _UNCONFIRMED if field in marked else ""

        facts += [
            ("torch" if row.kind == "training" else "as torch", f"{torch.version}{mark('version')}"),
            ("CUDA of its wheels", f"{torch.cuda_patch}{mark('cuda_patch')}"),
            ("NCCL", f"{torch.nccl}{mark('nccl')}"),
            ("cuDNN", f"{torch.cudnn}{mark('cudnn')}"),
            ("triton", f"{torch.triton}{mark('triton')}" if torch.triton else "a build of its own"),
            *((f"GPU code, {name}", f"{' '.join(codes)}{mark('sm')}") for name, codes in row.sm.items()),
            ("its source", f"{torch.source} ({torch.checked})"),
        ]
    if row.minimum_driver is not None:
        facts.append(("oldest driver", f"{row.minimum_driver} (infra/catalog/versions.toml)"))
    if row.efa is not None:
        facts += [
            ("EFA installer", row.efa.version),
            ("libfabric", row.efa.libfabric),
            ("NCCL plugin", f"aws-ofi-nccl {row.efa.plugin}, for NCCL {row.efa.nccl_min} or newer"),
            *((f"its file, {name}", _plugin_file(row, name)) for name in row.architectures),
            ("its source", f"{row.efa.source} ({row.efa.checked})"),
        ]
    if row.nccl_tests is not None:
        facts.append(("nccl-tests", f"{row.nccl_tests.version}, {row.nccl_tests.source} ({row.nccl_tests.checked})"))
    facts += [(part, version) for part, version in row.fabric.items()]
    facts += [
        *([("packages", ", ".join(row.apt))] if row.apt else []),
        *([("lock", f"images/locks/{row.lock}")] if row.lock else []),
        *([("left out of it", ", ".join(row.leave_out))] if row.leave_out else []),
        *(("not pinned", reason) for reason in row.unpinned),
        *([("note", row.note)] if row.note else []),
    ]
    return facts


def _plugin_file(row: Row, architecture: Any) -> str:
    unsure = row.efa is not None and "plugin_files" in row.efa.unconfirmed
    return f"{row.plugin_file(architecture)}{_UNCONFIRMED if unsure else ''}"


def _base_facts(what: str, base: BaseImage) -> list[tuple[str, object]]:
    return [
        (what, base.reference),
        ("its digest", base.digest or "-"),
        ("its source", f"{base.source} ({base.checked})"),
    ]


def _document(row: Row) -> dict[str, Any]:
    """A row for JSON: its parts as they are in the file, and what follows from them."""
    document: dict[str, Any] = row.model_dump(mode="json")
    torch = document["torch"]
    if row.kind != "training":
        document["torch"] = None
    document.update(
        python=row.python,
        nccl=row.nccl,
        cudnn=torch["cudnn"] if torch and row.cuda else None,
        plugin=row.plugin,
        sm={name: list(codes) for name, codes in row.sm.items()},
        unpinned=list(row.unpinned),
    )
    return document
