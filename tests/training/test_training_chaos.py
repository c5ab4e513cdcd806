"""A few random faults, always the same, on a real job; `make bench-chaos` does it for longer."""

import contextlib
import warnings
from pathlib import Path

import namespaces
import pytest
from accidents import Chaos, Plan

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

SEED = 11
# A machine that stands still for minutes must not decide a test; a hang would be for good.
HANG = 240.0


@pytest.mark.parametrize("program", ["careful_ddp.py", "elastic_ddp.py"])
def test_no_fault_stops_a_job_or_makes_two_of_it(tmp_path: Path, program: str) -> None:
    plan = Plan(seed=SEED, num_faults=7, program=program, hang=HANG, missed=8)
    if reason := namespaces.why_not():
        warnings.warn(f"LEFT OUT: partitions; {reason}", stacklevel=1)
    with contextlib.nullcontext() if reason else namespaces.network() as network:
        chaos = Chaos(tmp_path, plan, network)
        report = chaos.run()
    assert report.problems == [], "\n".join([*report.log, chaos.job.tail()])
    assert report.num_steps > plan.num_faults
    assert report.num_worlds > 1
