"""Is the cloud still as a stack has made it? Looks, and changes nothing, not even the engine's record.

    python -m ci.drift prod --out reports

Writes prod.md where something has drifted, and prod.clean where nothing has. Both end with 0, since the look went well;
`ci.issue` tells people. Without the one and the other the look has failed.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.failures import StepError, end
from ci.issue import CLEAN
from ci.stacks import NAME, ROOT

if TYPE_CHECKING:
    from infra.cli.workspace import Workspace
    from infra.report.preview import Preview


def look(workspace: Workspace) -> Preview:
    """What has become of the stack's resources."""
    from infra.cli.workspace import PREVIEWING  # noqa: PLC0415
    from infra.report.preview import from_events  # noqa: PLC0415

    events: list[Mapping[str, Any]] = []
    dataclasses.replace(workspace, on_event=events.append).engine(PREVIEWING).run("drift")
    return from_events(events, stack=workspace.stack)


def drifted(found: Preview) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """What is not as it was left: what became of it, type, name, and which properties.

    Raises:
        StepError: the record is empty, which is no good news.
    """
    if not found.steps:
        raise StepError(
            f"the engine's record of stack {found.stack} has nothing in it: either it was never brought up, or"
            " PULUMI_BACKEND_URL (TRAINYARD_BACKEND) does not lead to its record"
        )
    result = []
    for step in found.steps:
        resource = step.new or step.old
        if resource is None or not step.changes:
            continue
        became = "gone" if step.op == "delete" else "changed"
        result.append((became, resource.type, resource.name, step.diffs or tuple(step.detailed)))
    return sorted(result, key=lambda one: (one[0] != "gone", *one[1:3]))


def report(stack: str, found: list[tuple[str, str, str, tuple[str, ...]]]) -> str:
    """The text of the issue; names may be anybody's, and are shown as they are."""
    from infra.report.escape import code  # noqa: PLC0415

    lines = [
        f"The cloud is not as stack {code(stack)} has made it.",
        "",
        "| became | resource | name | properties |",
        "| --- | --- | --- | --- |",
    ]
    for became, kind, name, properties in found[:200]:
        shown = ", ".join(code(one) for one in properties[:12]) + (" …" if len(properties) > 12 else "")
        lines.append(f"| {'**gone**' if became == 'gone' else became} | {code(kind)} | {code(name)} | {shown} |")
    if len(found) > 200:
        lines.append(f"| … | {len(found) - 200} more | | |")
    lines += [
        "",
        "Somebody, or a controller, has changed it beside the program. What is wanted goes into the stack file or the",
        f"program; what is not, `trainyard up -s {stack}` puts back after `pulumi refresh -s {stack}`. Preview both.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Look and write."""
    from infra.cli.console import Steps  # noqa: PLC0415
    from infra.cli.workspace import Workspace  # noqa: PLC0415
    from infra.errors import TrainyardError  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stack", help="a stack on AWS")
    parser.add_argument("--out", type=Path, default=ROOT / "build/drift", metavar="FOLDER", help="for the report")
    options = parser.parse_args()
    if not NAME.fullmatch(options.stack):
        raise StepError(f"{options.stack!r} is no name of a stack")
    try:
        workspace = Workspace.open(options.stack)
        if workspace.is_local:
            raise StepError(f"stack {options.stack} is not one on AWS: its cluster is this computer's")
        workspace.require_outside_rehearsal()
        workspace.require_credentials()
        workspace.build_engines(Steps())
        found = drifted(look(workspace))
    except TrainyardError as error:
        raise StepError(str(error)) from error
    write(options.stack, found, options.out)
    return 0


def write(stack: str, found: list[tuple[str, str, str, tuple[str, ...]]], out: Path) -> None:
    """Leave the report, or the word that there is nothing to report."""
    out.mkdir(parents=True, exist_ok=True)
    said, clean = out / f"{stack}.md", out / f"{stack}.{CLEAN}"
    said.unlink(missing_ok=True)
    clean.unlink(missing_ok=True)
    if found:
        said.write_text(report(stack, found), encoding="utf-8")
    else:
        clean.write_text("nothing has drifted\n", encoding="utf-8")
    print(f"{stack}: {len(found)} drifted")


if __name__ == "__main__":
    end(main)
