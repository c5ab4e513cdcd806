"""Nodes as the local cloud completes them."""

from typing import Any

from infra.local.cloud.machines import UNINITIALIZED, object_patch, status_patch

MACHINE = {
    "name": "gpu-1",
    "address": "127.77.2.1",
    "labels": {"trainyard.dev/pool": "gpu", "node.kubernetes.io/instance-type": "g5.xlarge"},
    "resources": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "4"},
}


def registered(**status: Any) -> dict[str, Any]:
    """A Node as a kubelet registers it."""
    return {
        "metadata": {"name": "gpu-1", "resourceVersion": "7", "labels": {"trainyard.dev/pool": "gpu"}},
        "spec": {
            "taints": [
                {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"},
                {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
            ]
        },
        "status": {
            "addresses": [{"type": "Hostname", "address": "gpu-1"}],
            "capacity": {"cpu": "2", "memory": "4Gi"},
            "allocatable": {"cpu": "2", "memory": "4Gi"},
            **status,
        },
    }


def complete() -> dict[str, Any]:
    """The same Node when all is done."""
    node = registered(
        addresses=[{"type": "InternalIP", "address": "127.77.2.1"}, {"type": "Hostname", "address": "gpu-1"}],
        capacity={"cpu": "2", "nvidia.com/gpu": "4"},
        allocatable={"cpu": "2", "nvidia.com/gpu": "4"},
    )
    node["spec"] = {"providerID": "trainyard-local:///local-a/gpu-1", "taints": node["spec"]["taints"][1:]}
    node["metadata"]["labels"] |= {
        "node.kubernetes.io/instance-type": "g5.xlarge",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": "local-a",
    }
    return node


def test_addresses_and_accelerators_come_at_once() -> None:
    patch = status_patch(registered(), MACHINE)
    assert {"type": "InternalIP", "address": "127.77.2.1"} in patch["addresses"]
    assert patch["capacity"] == {"nvidia.com/gpu": "4"}
    assert patch["allocatable"] == {"nvidia.com/gpu": "4"}


def test_accelerators_that_a_restarted_kubelet_set_to_zero_come_back() -> None:
    node = complete()
    node["status"]["capacity"]["nvidia.com/gpu"] = "0"
    assert status_patch(node, MACHINE) == {"capacity": {"nvidia.com/gpu": "4"}}


def test_cpu_and_memory_are_the_kubelets_to_measure() -> None:
    assert "cpu" not in status_patch(registered(), MACHINE)["capacity"]


def test_the_node_is_let_go_with_all_other_taints() -> None:
    patch = object_patch(registered(), MACHINE)
    assert [taint["key"] for taint in patch["spec"]["taints"]] == ["nvidia.com/gpu"]
    # Whoever adds a taint meanwhile makes the patch fail, instead of losing the taint.
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["spec"]["providerID"] == "trainyard-local:///local-a/gpu-1"


def test_labels_that_a_kubelet_may_not_set_are_set() -> None:
    labels = object_patch(registered(), MACHINE)["metadata"]["labels"]
    assert labels["node.kubernetes.io/instance-type"] == "g5.xlarge"
    assert labels["topology.kubernetes.io/zone"] == "local-a"
    assert "trainyard.dev/pool" not in labels


def test_nothing_is_done_to_a_complete_node() -> None:
    assert status_patch(complete(), MACHINE) == {}
    assert object_patch(complete(), MACHINE) == {}
