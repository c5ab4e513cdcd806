"""What all tests share."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A verdict must not depend on how long the computer took for an example, which may stand still for seconds.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts what runs in the background (`make test &`, many CI systems) with SIGINT ignored, and so would be all
# programs that tests start and interrupt. A handler of ours is not inherited: they begin with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)


# CI systems force colours on; tests read what programs print, and escape codes would stand between the words.
for forces_colours in ("CI", "FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS"):
    os.environ.pop(forces_colours, None)

# A proxy is for what is outside; what tests ask is on this computer.
if {"http_proxy", "all_proxy"} & {name.lower() for name in os.environ}:
    for name in ("no_proxy", "NO_PROXY"):
        if os.environ.get(name) != "*":
            os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary folder with a short path: sockets need that, and pytest's own are long."""
    folder = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
