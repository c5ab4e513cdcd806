"""Where each engine comes from, for `trainyard doctor` and `trainyard engines list`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.local.engines.catalogue import CATALOGUE, EVERY_ENGINE
from infra.local.engines.discovery import search


@dataclass(frozen=True)
class DoctorRow:
    """One engine as it stands.

    Attributes:
        origin: `PATH`, `plugin`, `cache`, or `missing`.
        version: that serves, or that a build would give.
        remedy: what to install to skip the build; empty where it comes from PATH or the user's plugins.
        build_seconds: what building it takes on two cores with empty caches; 0 where nothing has to be built.
        passed_over: candidates on PATH that do not fit, each with the reason.
    """

    name: str
    purpose: str
    origin: str
    version: str
    path: Path | None
    remedy: str
    build_seconds: int
    passed_over: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"path": str(self.path) if self.path else None}


def doctor_rows() -> list[DoctorRow]:
    """One row per engine; costs milliseconds."""
    return [_row(name) for name in EVERY_ENGINE]


def _row(name: str) -> DoctorRow:
    spec = CATALOGUE.get(name)
    found = search(name)
    engine = found.engine
    passed_over = tuple(found.passed_over)
    purpose = spec.purpose if spec else "lets Pulumi run Python programs; comes with Pulumi, released or built"
    remedy = spec.remedy if spec else ""
    if engine:
        remedy = remedy if engine.origin == "cache" else ""
        return DoctorRow(name, purpose, engine.origin, engine.version, engine.path, remedy, 0, passed_over)
    seconds = spec.seconds if spec else 0
    return DoctorRow(name, purpose, "missing", spec.version if spec else "", None, remedy, seconds, passed_over)
