"""How a spot node's pods are asked to go."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from lightkube import ApiError, Client

from infra.local.nodes import reclaim
from infra.local.nodes.reclaim import NOTICE_TAINT, RECLAIM_AT, drain, free_pods, give_notice


def api_error(code: int) -> ApiError:
    return ApiError(status=cast(Any, SimpleNamespace(code=code, message="", reason="")))


class FakeClient:
    """One node with some pods; an evicted pod is gone at the next look."""

    def __init__(self, *pods: dict[str, Any], refusals: int = 0, conflicts: int = 0, moved: bool = False) -> None:
        self.pods = list(pods)
        self.refusals = refusals
        self.conflicts = conflicts
        self.moved = moved
        self.evictions: list[tuple[str, int]] = []
        self.patches: list[dict[str, Any]] = []
        self.uids: set[str] = set()

    def list(self, _kind: object, **_selection: object) -> list[Any]:
        return [SimpleNamespace(to_dict=lambda pod=pod: pod) for pod in self.pods]

    def create(self, eviction: Any, name: str, **_: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise api_error(429)
        if self.moved:
            self.moved = False
            raise api_error(409)
        self.evictions.append((name, eviction.deleteOptions.gracePeriodSeconds))
        self.uids.add(eviction.deleteOptions.preconditions.uid)
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]

    def get(self, _kind: object, _name: str) -> Any:
        taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
        return SimpleNamespace(to_dict=lambda: {"metadata": {"resourceVersion": "5"}, "spec": {"taints": taints}})

    def patch(self, _kind: object, _name: str, patch: dict[str, Any], **_: object) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise api_error(422 if "uid" in patch["metadata"] else 409)
        self.patches.append(patch)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "_POLL", 0.001)


def pod(name: str, grace: int = 30, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "training", "uid": f"uid-{name}"} | more.pop("metadata", {}),
        "spec": {"terminationGracePeriodSeconds": grace},
        "status": {"phase": "Running"} | more,
    }


def soon(seconds: float = 120) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def run(client: FakeClient, deadline: datetime) -> datetime:
    return drain(cast(Client, client), "gpu-1", deadline)


def free(client: FakeClient, answer: Callable[[httpx2.Request], httpx2.Response]) -> None:
    with httpx2.Client(transport=httpx2.MockTransport(answer), base_url="https://127.0.0.1:1") as http:
        free_pods(cast(Client, client), http, "gpu-1")


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
    client = FakeClient(pod("a", 6000))
    run(client, soon(600))
    assert client.evictions[0][1] in range(500, 601)


def test_a_disruption_budget_is_asked_again() -> None:
    client = FakeClient(pod("a"), refusals=3)
    run(client, soon())
    assert [name for name, _ in client.evictions] == ["a"]


def test_a_pod_that_changed_meanwhile_is_asked_again() -> None:
    client = FakeClient(pod("a"), moved=True)
    run(client, soon())
    assert client.evictions == [("a", 30)]
    assert client.uids == {"uid-a"}


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
    deletions: list[tuple[str, bytes]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        deletions.append((f"{request.method} {request.url.path}", request.read()))
        return httpx2.Response(200)

    free(client, answer)
    assert [what for what, _ in deletions] == [
        "DELETE /api/v1/namespaces/training/pods/running",
        "DELETE /api/v1/namespaces/training/pods/done",
    ]
    assert [json.loads(options) for _, options in deletions] == [
        {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}} for uid in ("uid-running", "uid-done")
    ]
    [patch] = client.patches
    assert patch["metadata"] == {"uid": "uid-running"}
    assert patch["status"]["phase"] == "Failed"
    assert patch["status"]["conditions"][0]["type"] == "DisruptionTarget"


def test_another_pod_that_got_the_name_meanwhile_is_left_alone() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path.rpartition("/")[2])
        return httpx2.Response(409)

    free(FakeClient(pod("taken"), pod("running"), conflicts=1), answer)
    assert asked == ["running"]


def test_what_the_api_server_refuses_for_other_reasons_is_an_error() -> None:
    with pytest.raises(httpx2.HTTPStatusError):
        free(FakeClient(pod("running")), lambda _: httpx2.Response(403))
