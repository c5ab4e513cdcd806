"""Fixture `program`: runs the Pulumi program on a configuration; test modules name this module in `pytest_plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_program import Program, run


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Runs the program on a configuration; the kubeconfig of the local cluster is there."""
    (tmp_path / "kubeconfig").write_text("{}")
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path))
    return run
