"""Fixtures `dev_resources` and `prod_resources`: what a preview of the example stacks of AWS has after the change."""

from __future__ import annotations

import pytest
from recorded_program import run_stack_file
from report_stacks import resources_of

from infra.report.preview import Resource


@pytest.fixture(scope="session")
def dev_resources() -> tuple[Resource, ...]:
    """Cheap spot machines, nothing protected."""
    return resources_of(run_stack_file("dev"))


@pytest.fixture(scope="session")
def prod_resources() -> tuple[Resource, ...]:
    """A capacity block and spot machines with EFA, everything protected."""
    return resources_of(run_stack_file("prod"))
