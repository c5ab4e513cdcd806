"""Fixtures `cluster`, a real control plane for a test session, and `controller`, one for a test module.

Test modules name this one in `pytest_plugins`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_api_server import (
    NODE,
    Cluster,
    ControllerProcess,
    control_plane,
    end,
    eventually,
    start_controller,
)

from training.controller.rbac import LEASE_NAME


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with the ElasticJob API, the controller's rights bound to its user, and one node."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as made:
        made.node(NODE, gpus=4)
        yield made


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[ControllerProcess]:
    """One controller for the tests of a module; it finds no lease of an earlier one."""
    cluster.admin.delete(f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{LEASE_NAME}")
    made = start_controller(cluster)
    try:
        eventually("the controller leads", lambda: made.leading)
        yield made
    finally:
        assert end(made.process) == 0, made.log.read_text()
        assert "Traceback" not in made.log.read_text(), made.log.read_text()
