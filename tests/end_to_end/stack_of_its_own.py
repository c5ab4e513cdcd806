"""A stack with a state folder and an image store of its own, driven by the command as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.local.engines.cache import engines_directory

TRAINYARD = Path(sys.executable).with_name("trainyard")


class Stack:
    """The stack, and what a user does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.cache.mkdir()
        (self.cache / "engines").symlink_to(engines_directory())
        self.environment = {
            **os.environ,
            "TRAINYARD_STATE_DIR": str(folder / "state"),
            "TRAINYARD_CACHE_DIR": str(self.cache),
        }

    def run(self, *arguments: str | Path, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [TRAINYARD, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.run(*arguments, "--json")[0])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = f'eval "$({TRAINYARD} env)"; kubectl "$@"'
        done = subprocess.run(
            ["bash", "-c", command, "kubectl", *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def logs(self, pod: str) -> str:
        """What a pod of the jobs' namespace has printed so far."""
        with contextlib.suppress(AssertionError):  # it has not started yet
            return self.kubectl("logs", "-n", "training", pod)
        return ""

    def submit(self, job: dict[str, Any], *options: str) -> Any:
        path = self.folder / f"{job['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(job))
        return self.json("submit", path, *options)["jobs"][0]


def eventually(what: str, condition: Callable[[], Any], seconds: float = 240) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.5)
    return found


@contextlib.contextmanager
def local_stack() -> Iterator[Stack]:
    """A stack that is not up yet, and gone without a trace at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ty-", dir="/tmp"))
    made = Stack(folder)
    try:
        yield made
    finally:
        made.run("down", "--yes", "--state")
        shutil.rmtree(folder)
