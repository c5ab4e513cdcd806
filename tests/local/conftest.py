"""What the tests of the local cluster share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary folder with a short path: sockets need that, and pytest's own are long."""
    folder = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
