"""Everything that was looked at as one archive to hand to somebody else: objects, events, logs, settings, no secrets.

Values of environment variables are left out altogether, whatever they are called; what looks like a credential
elsewhere, in objects and in lines of logs, is replaced by `infra.report.secrets`. Secrets and ConfigMaps are not read.
"""

from __future__ import annotations

import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from infra.diagnose.finding import Finding
from infra.diagnose.snapshot import JobView, Snapshot
from infra.report.secrets import SECRET, scrub, scrub_text

if TYPE_CHECKING:
    from infra.jobs import LogLine

_MODE: Final = 0o600


def contents(snapshot: Snapshot, found: Sequence[Finding], settings: Mapping[str, Any]) -> dict[str, str]:
    """The files of a bundle: their names, and their text without secrets.

    Args:
        snapshot: what was looked at.
        found: what is wrong with it.
        settings: of the stack, as plain data.
    """
    files = {
        "findings.json": _document([finding.document() for finding in found]),
        "versions.json": _document(_versions(snapshot)),
        "settings.json": _document(settings),
        "nodes.json": _document(snapshot.nodes),
        "system/pods.json": _document(snapshot.system_pods),
        "system/lease.json": _document(snapshot.lease),
    }
    for job in snapshot.jobs:
        files |= _of_job(job)
    return files


def archive(files: Mapping[str, str], snapshot: Snapshot) -> bytes:
    """A `.tar.gz` of files, in a folder that is named after the stack; readable by its owner alone once unpacked."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as packed:
        for name, text in files.items():
            content = text.encode(errors="replace")
            member = tarfile.TarInfo(f"trainyard-{snapshot.stack}/{name}")
            member.size, member.mtime, member.mode = len(content), int(snapshot.now), _MODE
            packed.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _of_job(job: JobView) -> dict[str, str]:
    folder = f"jobs/{job.name}"
    files = {
        f"{folder}/job.json": _document(job.manifest),
        f"{folder}/pods.json": _document(job.pods),
        f"{folder}/events.json": _document(job.events),
    }
    for log in job.logs:
        if log:
            files[f"{folder}/logs/{log[0].pod}.log"] = _log(log)
    return files


def _versions(snapshot: Snapshot) -> dict[str, Any]:
    """Of this program and its host; those of the cluster's machines as each kubelet tells them."""
    machines = [((node.get("status") or {}).get("nodeInfo") or {}) for node in snapshot.nodes]
    told = ("kubeletVersion", "containerRuntimeVersion", "kernelVersion", "osImage", "architecture")
    return {
        "trainyard": version("trainyard"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "machines": {key: sorted({str(one[key]) for one in machines if key in one}) for key in told},
    }


def _document(value: Any) -> str:
    plain = json.loads(json.dumps(value, default=_plain))
    return json.dumps(scrub(_without_values(plain)), indent=2, ensure_ascii=False) + "\n"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _without_values(value: Any) -> Any:
    """An object without the values of environment variables, and without who has written which field."""
    if isinstance(value, list):
        return [_without_values(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _names_of(inside) if name == "env" and isinstance(inside, list) else _without_values(inside)
        for name, inside in value.items()
        if name != "managedFields"
    }


def _names_of(variables: list[Any]) -> list[Any]:
    return [
        {**variable, "value": SECRET} if isinstance(variable, dict) and "value" in variable else variable
        for variable in variables
    ]


def _log(lines: Iterable[LogLine]) -> str:
    """As a whole first, as a private key has several lines; then line by line, as a line of JSON is looked into."""
    whole = scrub_text("".join(f"{line.time} {line.text}\n" for line in lines))
    parts = (line.partition(" ") for line in whole.splitlines())
    return "".join(f"{time} {scrub_text(text)}\n" for time, _, text in parts)
