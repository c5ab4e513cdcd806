"""Kueue's Go module, fetched as the engines are: its definitions, and the manifests of its webhooks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from infra.local.engines.catalogue import MODULES


def kueue_module() -> Path:
    """The folder of the module in the version that is pinned beside those of the engines."""
    fetched = subprocess.run(
        ["go", "mod", "download", "-json", "sigs.k8s.io/kueue"],
        cwd=MODULES / "kueue",
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    return Path(json.loads(fetched.stdout)["Dir"])
