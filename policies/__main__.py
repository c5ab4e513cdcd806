"""Serves the rules to the engine: `pulumi preview --policy-pack policies`."""

import sys
from pathlib import Path

# The engine puts this folder and the program's first, and the rules import `policies` and `infra.catalog`.
sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from policies.pack import serve  # noqa: E402

serve()
