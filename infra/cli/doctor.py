"""`doctor`: can this computer do it, and if not, what would help."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass

import typer

from infra.cli import options
from infra.cli.console import print_json, stdout, table

MEMORY_NEEDED_GIB = 6  # the whole local stack with the example job takes about 3
DISK_NEEDED_GIB = 14  # environment 6, Go modules and build cache 6, engines 1, state 1


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(doctor)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    found: str
    remedy: str = ""
    """What to do; empty where nothing is wrong."""


def doctor(json: options.Json = False) -> None:
    """Look at this computer: tools, engines, memory, disk, namespaces. Exit code 1 if something is missing.

    Example: [bold]trainyard doctor --json[/bold]
    """
    findings = [*_machine(), *_engines()]
    healthy = all(finding.ok for finding in findings)
    if json:
        print_json({"healthy": healthy, "findings": [finding.__dict__ for finding in findings]})
    else:
        shown = table("", "what", "found", "remedy")
        for finding in findings:
            mark = "[green]✓[/green]" if finding.ok else "[red]✗[/red]"
            shown.add_row(mark, finding.what, finding.found, finding.remedy)
        stdout().print(shown)
    if not healthy:
        raise typer.Exit(1)


def _machine() -> list[Finding]:
    import psutil  # noqa: PLC0415

    memory = psutil.virtual_memory().total / 2**30
    home = os.path.expanduser("~")  # noqa: PTH111 - may not exist; Path.home() is the same call
    disk = shutil.disk_usage(home if os.path.isdir(home) else "/").free / 2**30  # noqa: PTH112
    linux = sys.platform == "linux"
    return [
        Finding(
            "system",
            linux,
            f"{platform.system()} {platform.release()}",
            "" if linux else "the local cluster needs Linux; use target kubeconfig with kind, k3d or any cluster",
        ),
        Finding("python", True, platform.python_version()),
        Finding("processors", True, str(os.cpu_count())),
        Finding(
            "memory",
            memory >= MEMORY_NEEDED_GIB,
            f"{memory:.0f} GiB",
            "" if memory >= MEMORY_NEEDED_GIB else f"the local stack wants {MEMORY_NEEDED_GIB} GiB",
        ),
        Finding(
            "disk",
            disk >= DISK_NEEDED_GIB,
            f"{disk:.0f} GiB free",
            "" if disk >= DISK_NEEDED_GIB else f"a first set-up wants {DISK_NEEDED_GIB} GiB",
        ),
    ]


def _engines() -> list[Finding]:
    from infra.local.engines.doctor import doctor_rows  # noqa: PLC0415

    return [
        Finding(
            row.name,
            row.origin != "missing",
            f"{row.version} ({row.origin})" if row.origin != "missing" else "missing",
            f"trainyard engines build, or {row.remedy}" if row.origin == "missing" else "",
        )
        for row in doctor_rows()
    ]
