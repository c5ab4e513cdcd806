"""`trainyard diagram`: a picture of a stack, drawn from its resources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.console import print_json, stderr
from infra.cli.files import write

FORMATS = {"mermaid": (".mmd", ".mermaid"), "dot": (".dot", ".gv"), "svg": (".svg",), "png": (".png",)}
_TIMEOUT = 120  # seconds; Graphviz takes one


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(diagram)


def diagram(
    stack: options.Stack = "local",
    form: Annotated[
        str | None,
        typer.Option("--format", help="mermaid, dot, svg or png. Absent: by the file's ending, else mermaid."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there.")] = None,
    json: options.Json = False,
) -> None:
    """Draw a stack: network, cluster, node pools, storage, and what runs in it; without an account.

    Mermaid is text that GitHub and GitLab show as a picture. SVG and PNG are made by Graphviz, where it is installed.

    Example: [bold]trainyard diagram -s prod[/bold], [bold]trainyard diagram -s prod -o prod.svg[/bold]
    """
    from infra.cli.workspace import Workspace  # noqa: PLC0415
    from infra.report import topology  # noqa: PLC0415
    from infra.report.program import resources_of  # noqa: PLC0415

    wanted = _format(form, output, json=json)
    graphviz = _graphviz(wanted) if wanted in {"svg", "png"} else ""
    Workspace.open(stack)  # all mistakes of the stack file at once, before anything is run
    resources = resources_of(stack)
    if wanted == "mermaid":
        drawn = topology.mermaid(resources).encode()
    elif wanted == "dot":
        drawn = topology.dot(resources).encode()
    else:
        drawn = _drawn(graphviz, wanted, topology.dot(resources))
    if output is not None:
        write(output, drawn)
        stderr().print(f"Written: {output}", markup=False)
    if json:
        inside = None if output or wanted == "png" else drawn.decode()
        print_json({"stack": stack, "format": wanted, "file": str(output) if output else None, "diagram": inside})
    elif output is None:
        sys.stdout.buffer.write(drawn)
        sys.stdout.flush()


def _format(form: str | None, output: Path | None, *, json: bool) -> str:
    from infra.errors import UsageError  # noqa: PLC0415

    endings = {ending: name for name, known in FORMATS.items() for ending in known}
    wanted = form or (endings.get(output.suffix.lower(), "mermaid") if output else "mermaid")
    if wanted not in FORMATS:
        raise UsageError(f"--format is {wanted!r}: there are {', '.join(FORMATS)}")
    if wanted == "png" and output is None and (json or sys.stdout.isatty()):
        raise UsageError("a PNG is no text for a terminal or a document: name a file with -o")
    return wanted


def _graphviz(wanted: str) -> str:
    from infra.errors import TrainyardError  # noqa: PLC0415

    if found := shutil.which("dot"):
        return found
    raise TrainyardError(
        f"{wanted.upper()} is drawn by Graphviz, whose program `dot` is not on PATH: install the package `graphviz`"
        " (apt install graphviz, dnf install graphviz, brew install graphviz), or take --format mermaid, which needs"
        " nothing"
    )


def _drawn(graphviz: str, wanted: str, written: str) -> bytes:
    from infra.errors import TrainyardError  # noqa: PLC0415

    try:
        done = subprocess.run(
            [graphviz, f"-T{wanted}"], input=written.encode(), capture_output=True, check=False, timeout=_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TrainyardError(f"Graphviz could not draw it: {error}. `--format dot` writes what it was given") from None
    if done.returncode != 0 or not done.stdout:
        said = done.stderr.decode(errors="replace").strip() or f"it ended with code {done.returncode}"
        raise TrainyardError(f"Graphviz could not draw it: {said}. `--format dot` writes what it was given")
    return done.stdout
