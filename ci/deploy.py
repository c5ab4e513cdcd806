"""Bring up what somebody has approved of, and nothing else.

    python -m ci.deploy plan prod --out reports          # looks; the report is what is approved of
    python -m ci.deploy up prod --approved reports       # changes; after the approval

`plan` leaves a report and its fingerprint: the hash of every step and value in it, secrets as "[secret]". `up` looks
again, ends where anything differs from what was approved (the cloud, or the record, has changed since), and holds the
engine to what it has just planned, once there is something to lose. The engine's plan holds the stack's secrets, if
encrypted, so it is made and used by one process on one machine, in a folder that only it can read, and never leaves it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.failures import StepError, end
from ci.preview import Wanted, preview
from ci.stacks import ROOT, stacks

if TYPE_CHECKING:
    from infra.cli.workspace import Workspace

_FORM = "trainyard-plan/1"


def fingerprint(document: Mapping[str, Any]) -> str:
    """What a report says of a change, as a hash: what is done, to what, and with which values.

    Args:
        document: the report (`trainyard preview --json`).
    """
    steps = [
        {name: step[name] for name in ("urn", "op", "type", "properties", "protected")} for step in document["steps"]
    ]
    steps.sort(key=lambda step: (step["urn"], step["op"]))
    said = {"form": _FORM, "stack": document["stack"], "project": document["project"], "steps": steps}
    text = json.dumps(said, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plan(stack: str, out: Path) -> int:
    """Look, and leave what can be approved of.

    Raises:
        StepError: there is no such stack on AWS.
    """
    about = next((one for one in stacks(ROOT, "aws") if one["stack"] == stack), None)
    if about is None:
        raise StepError(f"there is no Pulumi.{stack}.yaml of target aws")
    (result,) = preview(Wanted([about], out, on="account", jobs=1))
    print(result.log)
    if result.code or result.document is None:
        print(f"{stack} is refused, or cannot be looked at: see {out / stack}.md")
        return 1
    left = {"stack": stack, "commit": os.environ.get("GITHUB_SHA", ""), "fingerprint": fingerprint(result.document)}
    (out / f"{stack}.fingerprint.json").write_text(json.dumps(left, indent=2) + "\n", encoding="utf-8")
    return 0


def approved_of(stack: str, folder: Path) -> str:
    """The fingerprint that was approved of.

    Raises:
        StepError: there is none, or it is of something else.
    """
    file = folder / f"{stack}.fingerprint.json"
    try:
        left = json.loads(file.read_text(encoding="utf-8"))
        found, commit = str(left["fingerprint"]), left["commit"]
        if left["stack"] != stack:
            raise StepError(f"{file} is of stack {left['stack']}, not of {stack}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StepError(f"there is no approved plan of {stack} in {folder}: run `ci.deploy plan {stack}`") from error
    here = os.environ.get("GITHUB_SHA", "")
    if commit != here:
        raise StepError(f"the plan is of commit {commit or '(none)'}, and this is {here or '(none)'}: plan again")
    return found


def bring_up(workspace: Workspace, approved: str) -> None:
    """Look again, compare, and do what was planned.

    Raises:
        StepError: it is not what was approved of.
        TrainyardError: the engine fails, or policies are broken.
    """
    from infra.cli.console import Steps  # noqa: PLC0415
    from infra.cli.workspace import MUTATING, PREVIEWING  # noqa: PLC0415
    from infra.engine import EngineRunError  # noqa: PLC0415

    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="ty-") as folder:  # readable for its owner only
        planned = Path(folder) / "plan.json"
        now = look(workspace, PREVIEWING, planned)
        if now.fingerprint != approved:
            raise StepError(
                f"what `up` would do to {workspace.stack} is not what was approved of: its record or the cloud has"
                " changed since. Nothing was done. Run this workflow again, and look at the new plan"
            )
        with steps.step(f"stack {workspace.stack}, as planned"):
            # Before a chart has brought its kinds, the Kubernetes provider does not know which of them have namespaces,
            # and plans what it will not do: a plan of a first creation breaks in the middle. Nothing is there to lose.
            held = None if now.first else planned
            try:
                summary = workspace.engine(MUTATING).run("up", steps.note, plan=held)
            except EngineRunError as error:
                if "violates plan" not in str(error):
                    raise
                raise StepError(
                    f"{error}\nThe engine wanted more than it had planned, and was stopped; what was done until then is"
                    " recorded. Run this workflow again: the new plan says what is left, and is to be approved of"
                ) from error
            steps.note(summary.sentence(done=True))


@dataclass(frozen=True)
class Look:
    """What `up` would do now."""

    fingerprint: str
    first: bool
    """Everything is new: the stack is created."""


def look(workspace: Workspace, process: str, planned: Path | None = None) -> Look:
    """What `up` would do now; the engine's plan of it goes to a file."""
    import dataclasses  # noqa: PLC0415
    from datetime import UTC, datetime  # noqa: PLC0415

    from infra.report.document import document  # noqa: PLC0415
    from infra.report.model import build  # noqa: PLC0415
    from infra.report.preview import from_events  # noqa: PLC0415

    events: list[Mapping[str, Any]] = []
    dataclasses.replace(workspace, on_event=events.append).engine(process).run("preview", plan=planned)
    report = build(from_events(events, stack=workspace.stack), today=datetime.now(UTC).date())
    if report.fails():
        raise StepError(f"{workspace.stack}: " + "; ".join(one.sentence for one in report.failures))
    found = document(report)
    return Look(fingerprint(found), first=set(found["changes"]) <= {"create", "read"})


def up(stack: str, folder: Path) -> int:
    """Do what was approved of.

    Raises:
        StepError: with what is wrong.
    """
    from infra.cli import policies  # noqa: PLC0415
    from infra.cli.console import Steps  # noqa: PLC0415
    from infra.cli.workspace import Workspace  # noqa: PLC0415
    from infra.errors import TrainyardError  # noqa: PLC0415

    approved = approved_of(stack, folder)
    try:
        workspace = policies.with_policies(Workspace.open(stack), none=False, others=None)
        workspace.require_outside_rehearsal()
        workspace.require_credentials()
        workspace.require_images()
        steps = Steps()
        with workspace.changing(steps, wait=True):
            workspace.build_engines(steps)
            bring_up(workspace, approved)
    except TrainyardError as error:
        raise StepError(str(error)) from error
    return 0


def main() -> int:
    """One of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plan", "up"))
    parser.add_argument("stack", help="a stack on AWS")
    parser.add_argument("--out", type=Path, default=ROOT / "build/plan", metavar="FOLDER", help="plan: for the report")
    parser.add_argument("--approved", type=Path, default=ROOT / "build/plan", metavar="FOLDER", help="up: of the plan")
    options = parser.parse_args()
    return plan(options.stack, options.out) if options.what == "plan" else up(options.stack, options.approved)


if __name__ == "__main__":
    end(main)
