"""EC2's own description of instance types (DescribeInstanceTypes), as moto bundles it."""

from __future__ import annotations

import functools
import gzip
import json
from importlib import resources
from typing import Any


@functools.cache
def described_by_ec2() -> dict[str, Any]:
    """All descriptions by type; read as a file, since importing moto's part of EC2 takes seconds."""
    packed = resources.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    descriptions: dict[str, Any] = json.loads(gzip.decompress(packed))
    return descriptions
