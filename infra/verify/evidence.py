"""The evidence of a run of `trainyard verify`: what was held against what, and what came of it, as JSON and Markdown.

It is also the record that `trainyard drift` compares with later.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.errors import TrainyardError
from infra.verify.expected import Expected
from infra.verify.measure import Measurement
from infra.verify.result import Result, passed
from infra.verify.snapshot import Snapshot, name_of, record_of

SCHEMA = 1
FOLDER = Path("build/verify")
"""Below the folder of Pulumi.yaml."""
_LOCKS = ("infra/catalog/*.toml", "requirements/*.txt", "images.{stack}.toml")
_ESCAPED = str.maketrans({"|": "\\|", "\n": " ", "<": "&lt;", ">": "&gt;", "`": "'"})


class EvidenceError(TrainyardError):
    """There is no evidence, or it cannot be used."""


@dataclass(frozen=True)
class Evidence:
    """All that is written down."""

    stack: str
    time: datetime
    wanted: Expected
    seen: Snapshot
    results: Sequence[Result]
    measurements: Sequence[Measurement]
    hashes: Mapping[str, str]
    commit: str | None
    """Of the checkout, with `+changes` where files differ from it; None: it is no checkout."""
    stand_in: str = ""
    """What the cluster is not, in words; empty: it is real."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        drivers = {
            host: machine.get("driver")
            for made in self.measurements
            for host, machine in ((made.report or {}).get("machines") or {}).items()
        }
        return {
            "schema": SCHEMA,
            "stack": self.stack,
            "time": self.time.isoformat(timespec="seconds"),
            "passed": passed(self.results),
            "stand_in": self.stand_in,
            "commit": self.commit,
            "hashes": dict(self.hashes),
            "versions": {"kubernetes": self.seen.version, **self.versions},
            "results": [result.as_json() for result in self.results],
            "measurements": [asdict(made) for made in self.measurements],
            "nodes": {name_of(node): record_of(node, drivers.get(name_of(node))) for node in self.seen.nodes},
        }

    def markdown(self) -> str:
        """For people, ready for a pull request."""
        verdict = "passed" if passed(self.results) else "not passed"
        lines = [f"# Stack {_cell(self.stack)}: {verdict}", "", f"{self.time:%Y-%m-%d %H:%M:%S} UTC"]
        if self.stand_in:
            lines += ["", f"**{_cell(self.stand_in)}**"]
        lines += ["", "| phase | check | verdict | coverage | |", "| --- | --- | --- | --- | --- |"]
        for result in self.results:
            cells = (result.phase, result.check, result.verdict, result.coverage, result.message)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        findings = [finding for result in self.results for finding in result.findings]
        if findings:
            lines += ["", "## What is wrong", ""]
        for finding in findings:
            lines.append(f"- **{_cell(finding.title)}**. {_cell(finding.remedy)}")
            lines += [f"  - {_cell(each)}" for each in finding.evidence if each]
            if finding.command:
                lines.append(f"  - `{_cell(finding.command)}`")
        lines += ["", "## Of what", "", "| | |", "| --- | --- |"]
        about = {"commit": self.commit or "no checkout", "Kubernetes": self.seen.version, **self.versions}
        lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in about.items()]
        lines += [f"| {_cell(name)} | `{digest}` |" for name, digest in self.hashes.items()]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files, for their owner's eyes: they name machines; where they are.

        Raises:
            EvidenceError: they cannot be written.
        """
        stem = folder / f"{self.stack}-{self.time:%Y%m%dT%H%M%SZ}"
        paths = stem.with_suffix(".json"), stem.with_suffix(".md")
        texts = json.dumps(self.document(), indent=2) + "\n", self.markdown()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in zip(paths, texts, strict=True):
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    file.write(text)
        except OSError as error:
            raise EvidenceError(f"the evidence cannot be written to {folder}: {error.strerror}") from None
        return paths


def _cell(value: object) -> str:
    """Names and messages come from the cluster: no table and no markup is made of them."""
    return str(value).translate(_ESCAPED)


def hashes_of(checkout: Path, stack: str) -> dict[str, str]:
    """SHA-256 of the stack's file and of every lock and table that says what it must be; absent files are left out."""
    patterns = (f"Pulumi.{stack}.yaml", *(lock.format(stack=stack) for lock in _LOCKS))
    files = sorted({path for pattern in patterns for path in checkout.glob(pattern)})
    return {str(path.relative_to(checkout)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def commit_of(checkout: Path) -> str | None:
    """The commit of a checkout; None: it is none, or there is no git."""
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def now() -> datetime:
    """For the evidence."""
    return datetime.now(UTC)


def latest(folder: Path, stack: str) -> Path:
    """The newest evidence of a stack.

    Raises:
        EvidenceError: there is none.
    """
    found = sorted(path for path in folder.glob(f"{stack}-*.json") if path.stem.removeprefix(f"{stack}-")[:8].isdigit())
    if not found:
        raise EvidenceError(
            f"nothing was recorded of stack {stack} in {folder}: run trainyard verify -s {stack} first, or name a file:"
            " --baseline"
        )
    return found[-1]


def read(path: Path, stack: str) -> dict[str, Any]:
    """The evidence of a file.

    Raises:
        EvidenceError: it is none, or another stack's.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path} cannot be read: {error}") from None
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("nodes"), dict)
    ):
        raise EvidenceError(f"{path} is no evidence of trainyard verify (schema {SCHEMA})")
    if document.get("stack") != stack:
        raise EvidenceError(f"{path} is evidence of stack {document.get('stack')}, not of {stack}")
    return document
