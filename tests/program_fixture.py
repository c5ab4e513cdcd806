"""Fixture `program`: runs the Pulumi program on a configuration; test modules name this module in `pytest_plugins`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pulumi.runtime.config import set_all_config
from recorded_program import Program, run


@pytest.fixture(autouse=True)
def _event_loop() -> None:
    """Pulumi's SDK takes the thread's event loop; a test before this one may have left none."""
    asyncio.set_event_loop(asyncio.new_event_loop())


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Runs the program on a configuration; the kubeconfig of the local cluster is there."""
    (tmp_path / "kubeconfig").write_text("{}")
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield run
    set_all_config({})
