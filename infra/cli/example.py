"""The example job of the repository, as the commands submit it."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from infra.clusters import CHECKOUT

if TYPE_CHECKING:
    from infra.jobs import Jobs

FILE = CHECKOUT / "training/examples/digits.yaml"
NAME = "digits"
TIMEOUT = timedelta(minutes=10)


def submit(jobs: Jobs, name: str = NAME) -> None:
    """Submit the example under a name, in the namespace of the stack, with a checkpoint folder of that name.

    Args:
        jobs: where to.
        name: a name that was used before goes on from the checkpoints of that run.
    """
    import yaml  # noqa: PLC0415

    job = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    job["metadata"] = {"name": name}
    (container,) = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    option = "--checkpoints="
    container["args"] = [f"{option}/checkpoints/{name}" if a.startswith(option) else a for a in container["args"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.yaml")
        path.write_text(yaml.safe_dump(job), encoding="utf-8")
        jobs.submit(path)


def submit_another(jobs: Jobs) -> str:
    """Submit the example under the next free name, so that it trains from the beginning; the name."""
    taken = {job["job"] for job in jobs.summaries()}
    number = 2
    while f"{NAME}-{number}" in taken:
        number += 1
    submit(jobs, f"{NAME}-{number}")
    return f"{NAME}-{number}"
