"""Decisions are plain Python: no engine, no cloud and no terminal behind them."""

from __future__ import annotations

import subprocess
import sys

from infra.clusters import CHECKOUT

IMPORTS_ALL = """
import importlib, pkgutil, sys, infra.wiring
for module in pkgutil.iter_modules(infra.wiring.__path__):
    importlib.import_module(f"infra.wiring.{module.name}")
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_wiring_needs_neither_pulumi_nor_an_sdk() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTS_ALL], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    loaded = set(ran.stdout.split())
    assert "infra" in loaded
    assert loaded & {"pulumi", "pulumi_aws", "pulumi_kubernetes", "boto3", "botocore", "typer", "rich"} == set()
