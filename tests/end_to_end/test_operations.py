"""The day after `up`: the commands that look at a stack and at its jobs, on one local stack.

Each test leaves the stack as it found it: up, with a healthy job that trains.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from stack_of_its_own import Stack, eventually, local_stack

from infra.clusters import CHECKOUT

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900), pytest.mark.xdist_group("operations")]

HEALTHY = "healthy"
"""A job that trains all the time."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The stack with one job that trains for longer than all tests take."""
    with local_stack() as made:
        made.json("up")
        job = yaml.safe_load((CHECKOUT / "training/examples/digits.yaml").read_text())
        job["metadata"] = {"name": HEALTHY}
        worker = job["spec"]["replicaSpecs"]["Worker"]
        worker["replicas"] = 1
        (container,) = worker["template"]["spec"]["containers"]
        changed = {"--epochs": "10000", "--checkpoints": f"/checkpoints/{HEALTHY}", "--step-seconds": "0.2"}
        kept = [argument for argument in container["args"] if argument.split("=")[0] not in changed]
        container["args"] = kept + [f"{option}={value}" for option, value in changed.items()]
        made.submit(job)
        eventually("it trains", lambda: '"trainyard": "step"' in made.logs(f"{HEALTHY}-worker-0"))
        yield made


def test_the_healthy_job_is_listed_as_running(stack: Stack) -> None:
    """Without which the tests below would say nothing."""
    jobs = {job["job"]: job for job in stack.json("jobs")["jobs"]}
    assert jobs[HEALTHY]["state"] == "Running"
