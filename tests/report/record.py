"""Records the engine's events that the snapshots of reports are made from: `.venv/bin/python tests/report/record.py`.

Five previews of the stack dev, rehearsed, with the real engine: nothing is made up. What reports do not look at is left
out, and what would differ with each recording or each computer. `stack.jsonl` has what stays as it is; the other files
name it and hold what differs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.cli.console import Steps
from infra.cli.policies import with_policies
from infra.cli.workspace import PREVIEWING, RehearsedWorkspace
from infra.errors import TrainyardError
from infra.rehearsal.tools import project_folder

FOLDER = Path(__file__).parent / "recorded"
_STATE = ("type", "urn", "custom", "id", "parent", "inputs", "protect", "provider")
_STEP = ("op", "urn", "type", "keys", "diffs", "detailedDiff")
_OUTPUTS = ("arn", "id", "region")
_UNREAD = {"kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition": ("spec",)}


def edited(text: str, *edits: tuple[str, str]) -> str:
    """A stack file with changes that must all be possible."""
    for old, new in edits:
        text, found = re.subn(old, new, text, count=1)
        assert found, f"{old} is not in the stack file"
    return text


def previews(write: Callable[[str, list[Mapping[str, Any]]], None]) -> None:
    """Run them, and hand over the events of each."""
    workspace = with_policies(RehearsedWorkspace.open("dev"), none=False, others=None)
    steps = Steps()
    workspace.build_engines(steps)
    rehearsal = workspace.rehearsal(steps)

    def record(name: str) -> None:
        events: list[Mapping[str, Any]] = []
        engine = dataclasses.replace(workspace.engine(PREVIEWING), on_event=events.append)
        with steps.step(name):
            try:
                engine.run("preview", steps.note)
            except TrainyardError as error:
                steps.say(str(error))
        write(name, events)

    rehearsal.up(workspace.region)
    try:
        workspace.write_project()
        record("first")
        with steps.step("up"):
            dataclasses.replace(workspace.engine(), packs=()).run("up", steps.note)
        record("stack")
        file = project_folder(workspace.state) / "Pulumi.dev.yaml"
        as_it_was = file.read_text()
        for name, edits in {
            "resized": [(r"max: 4\b", "max: 6")],
            "subnet": [("us-east-2b", "us-east-2c")],
            "policy": [(r"max: 4\b", "max: 40")],
            "failed": [(r"max: 4\b", "max: 6"), (r"min: 0\b", "min: 1")],
        }.items():
            file.write_text(edited(as_it_was, *edits))
            record(name)
    finally:
        rehearsal.down()


def stripped(events: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events that a report is made from, with what it looks at."""
    rules: set[str] = set()
    for event in events:
        if started := event.get("resourcePreEvent"):
            step = started["metadata"]
            kept = {name: step[name] for name in _STEP if step.get(name)}
            for side in ("old", "new"):
                if step[side]:
                    kept[side] = _state(step[side])
            if step["op"] == "same":
                del kept["new"]  # the same as `old`
            yield {"resourcePreEvent": {"metadata": kept}}
        elif told := event.get("diagnosticEvent"):
            if told["severity"] != "debug":
                yield {"diagnosticEvent": {name: told[name] for name in ("message", "severity", "urn") if name in told}}
        elif result := event.get("policyEvent"):
            yield {"policyEvent": result}
        elif judged := event.get("policyAnalyzeSummaryEvent") or event.get("policyAnalyzeStackSummaryEvent"):
            rules.update([*judged.get("passed", ()), *judged.get("failed", ())])
        elif end := event.get("summaryEvent"):
            packs = {name.split("|")[0]: version for name, version in (end.get("PolicyPacks") or {}).items()}
            yield {"policyAnalyzeStackSummaryEvent": {"passed": sorted(rules)}}
            yield {"summaryEvent": {**end, "durationSeconds": 20, "PolicyPacks": packs}}


def _state(state: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: state[name] for name in _STATE if state.get(name) not in (None, "", False)}
    unread = _UNREAD.get(state["type"], ())
    kept["inputs"] = {name: _shortened(name, value) for name, value in state["inputs"].items() if name not in unread}
    kept["outputs"] = {name: state["outputs"][name] for name in _OUTPUTS if name in (state.get("outputs") or {})}
    return kept


def _shortened(name: str, value: Any) -> Any:
    return "left out" if name in {"userData", "kubeconfig"} and isinstance(value, str) else value


def urn_of(event: Mapping[str, Any]) -> str:
    """The resource that a step is about."""
    return str(event.get("resourcePreEvent", {}).get("metadata", {}).get("urn", ""))


def main() -> None:
    """Write the files."""
    recorded: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["TRAINYARD_STATE_DIR"] = str(Path(temporary, "state"))
        previews(lambda name, events: recorded.__setitem__(name, list(stripped(events))))
    FOLDER.mkdir(exist_ok=True)
    same = {
        json.dumps(event, sort_keys=True, ensure_ascii=False): urn
        for event in recorded["stack"]
        if (urn := urn_of(event))
    }
    for name, events in recorded.items():
        lines = [json.dumps(event, sort_keys=True, ensure_ascii=False) for event in events]
        if name not in {"stack", "first"}:
            urns = [same[line] for line in lines if line in same]
            lines = [json.dumps({"same": urns}), *(line for line in lines if line not in same)]
        text = "".join(f"{line}\n" for line in lines)
        assert temporary not in text
        (FOLDER / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
