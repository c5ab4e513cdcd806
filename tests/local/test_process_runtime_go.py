"""The process runtime's own checks: format, vet, and its Go tests, as root (where we are) and as an ordinary user."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "infra/local/process_runtime"

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


def run(module: Path, *command: str, **variables: str) -> str:
    environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"} | variables
    done = subprocess.run(
        command, cwd=module, env=environment, capture_output=True, text=True, check=False, timeout=880
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_the_sources_are_formatted() -> None:
    assert run(RUNTIME, "gofmt", "-l", ".") == ""


@pytest.mark.parametrize("module", [RUNTIME, RUNTIME / "critest"], ids=["runtime", "critest"])
def test_vet_finds_nothing(module: Path) -> None:
    run(module, "go", "vet", "./...")


def test_the_go_tests_pass() -> None:
    # The race detector needs a C compiler; without one the tests still run.
    if shutil.which("gcc"):
        run(RUNTIME, "go", "test", "-race", "./...", CGO_ENABLED="1", GORACE="atexit_sleep_ms=0")
    else:
        run(RUNTIME, "go", "test", "./...")
