"""Fixtures `dev` and `prod`: what the program asks for with the example stack files of AWS, run once for a session."""

from __future__ import annotations

import pytest
from recorded_program import Recorded, run_stack_file


@pytest.fixture(scope="session")
def dev() -> Recorded:
    """Cheap spot machines, nothing protected."""
    return run_stack_file("dev")


@pytest.fixture(scope="session")
def prod() -> Recorded:
    """A capacity block and spot machines with EFA, everything protected."""
    return run_stack_file("prod")
