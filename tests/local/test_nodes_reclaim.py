"""How a spot node's pods are asked to go."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightkube import ApiError, Client

from infra.local.nodes import reclaim
from infra.local.nodes.reclaim import NOTICE_TAINT, RECLAIM_AT, drain, free_pods, give_notice


def api_error(code: int) -> ApiError:
    return ApiError(status=cast(Any, SimpleNamespace(code=code, message="", reason="")))


class FakeClient:
    """One node with some pods; an evicted pod is gone at the next look."""

    def __init__(self, *pods: dict[str, Any], refusals: int = 0, conflicts: int = 0) -> None:
        self.pods = list(pods)
        self.refusals = refusals
        self.conflicts = conflicts
        self.evictions: list[tuple[str, int]] = []
        self.patches: list[dict[str, Any]] = []
        self.deleted: list[tuple[str, int]] = []

    def list(self, _kind: object, **_selection: object) -> list[Any]:
        return [SimpleNamespace(to_dict=lambda pod=pod: pod) for pod in self.pods]

    def create(self, eviction: Any, name: str, **_: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise api_error(429)
        self.evictions.append((name, eviction.deleteOptions.gracePeriodSeconds))
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]

    def delete(self, _kind: object, name: str, *, grace_period: int, **_: object) -> None:
        self.deleted.append((name, grace_period))

    def get(self, _kind: object, _name: str) -> Any:
        taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
        return SimpleNamespace(to_dict=lambda: {"metadata": {"resourceVersion": "5"}, "spec": {"taints": taints}})

    def patch(self, _kind: object, _name: str, patch: dict[str, Any], **_: object) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise api_error(409)
        self.patches.append(patch)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "_POLL", 0.001)


def pod(name: str, grace: int = 30, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "training", "uid": name} | more.pop("metadata", {}),
        "spec": {"terminationGracePeriodSeconds": grace},
        "status": {"phase": "Running"} | more,
    }


def soon(seconds: float = 120) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def run(client: FakeClient, deadline: datetime) -> datetime:
    return drain(cast(Client, client), "gpu-1", deadline)


def test_the_notice_says_when_and_keeps_other_taints() -> None:
    client = FakeClient(conflicts=2)
    give_notice(cast(Client, client), "gpu-1", datetime(2026, 11, 30, 10, 2, tzinfo=UTC))
    [patch] = client.patches
    assert patch["metadata"] == {"resourceVersion": "5", "annotations": {RECLAIM_AT: "2026-11-30T10:02:00Z"}}
    assert [taint["key"] for taint in patch["spec"]["taints"]] == ["nvidia.com/gpu", NOTICE_TAINT]
    assert patch["spec"]["unschedulable"] is True


def test_pods_go_with_their_own_grace() -> None:
    client = FakeClient(pod("a", 30), pod("b", 5))
    assert run(client, soon()) < soon()
    assert sorted(client.evictions) == [("a", 30), ("b", 5)]


def test_the_notice_limits_the_grace() -> None:
    client = FakeClient(pod("a", 600))
    run(client, soon(60))
    assert client.evictions[0][1] in range(55, 61)


def test_a_disruption_budget_is_asked_again() -> None:
    client = FakeClient(pod("a"), refusals=3)
    run(client, soon())
    assert [name for name, _ in client.evictions] == ["a"]


def test_at_the_deadline_it_ends_whatever_the_budget_says() -> None:
    client = FakeClient(pod("a"), refusals=10**9)
    deadline = soon(0.1)
    assert run(client, deadline) >= deadline
    assert not client.evictions


def test_pods_that_are_over_or_of_a_daemon_set_are_not_waited_for() -> None:
    owner = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}
    client = FakeClient(pod("done", phase="Succeeded"), pod("daemon", metadata=owner))
    run(client, soon())
    assert not client.evictions


def test_pods_of_a_machine_that_is_gone_are_given_up_as_the_collector_would() -> None:
    client = FakeClient(pod("running"), pod("done", phase="Succeeded"))
    free_pods(cast(Client, client), "gpu-1")
    assert client.deleted == [("running", 0), ("done", 0)]
    [patch] = client.patches
    assert patch["status"]["phase"] == "Failed"
    assert patch["status"]["conditions"][0]["type"] == "DisruptionTarget"
