"""Calls that fail and controllers that die: in the end each worker is there once, and each failure is counted once."""

from __future__ import annotations

import asyncio
import itertools
import queue
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, TypeVar

import httpx2
import pytest
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.generic_client import BasicRequest
from real_api_server import (
    CONTROLLER_TOKEN,
    JOBS,
    NODE,
    PATIENCE,
    Cluster,
    elastic_job,
    end,
    eventually,
    start_controller,
)

from training.controller import executor
from training.controller.client import Api, Object, Resource
from training.controller.main import Controller

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines


class UnreliableApi(Api):
    """One call in ten is lost: on its way, or its answer is, which the API server does not know."""

    def __init__(self, config: SingleConfig) -> None:
        super().__init__(config)
        self._random = random.Random(8)  # noqa: S311 -- no secret
        self.lost = 0

    async def _respond(self, request: BasicRequest) -> httpx2.Response:
        lot = self._random.random()
        if lot < 0.05:
            self.lost += 1
            raise httpx2.ConnectError("lost on its way")
        response = await super()._respond(request)
        if lot > 0.95:
            self.lost += 1
            raise httpx2.ReadTimeout("the answer is lost")
        return response


class MortalApi(Api):
    """After some writes no call reaches the API server any more, as if the process had been killed."""

    def __init__(self, config: SingleConfig, writes: int) -> None:
        super().__init__(config)
        self._left = writes
        self.dead = False

    async def _respond(self, request: BasicRequest) -> httpx2.Response:
        counted = request.method != "GET" and not request.url.endswith("/events") and "/leases" not in request.url
        if counted and self._left == 0:
            self.dead = True
        if self.dead:
            raise httpx2.ConnectError("this process is dead")
        self._left -= counted
        return await super()._respond(request)


class InterruptedApi(Api):
    """Each watch is cut after a few news, as by a proxy that is restarted again and again."""

    def __init__(self, config: SingleConfig) -> None:
        super().__init__(config)
        self.cuts = 0

    async def watch(
        self, kind: Resource, namespace: str | None, labels: str | None, version: str
    ) -> AsyncIterator[tuple[str, Object]]:
        news = 0
        async for event in super().watch(kind, namespace, labels, version):
            yield event
            news += 1
            if news == 3:
                self.cuts += 1
                raise httpx2.ReadError("the connection was cut")


class JumpingClock(datetime):
    """A clock that is set an hour forward or back every other time that somebody looks at it."""

    looks = itertools.count()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> JumpingClock:
        hours = (0, 0, 1, 1, 0, -1)[next(cls.looks) % 6]
        return cls.fromtimestamp(time.time() + 3600 * hours, tz)


A = TypeVar("A", bound=Api)


@contextmanager
def controller_with(cluster: Cluster, namespace: str, make: Callable[[SingleConfig], A]) -> Iterator[A]:
    """A controller in this process, with an API client of a test's own."""
    config = KubeConfig.from_file(cluster.kubeconfig(CONTROLLER_TOKEN)).get()
    assert config is not None
    started: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event, A]] = queue.Queue()

    async def work() -> None:
        api, stop = make(config), asyncio.Event()
        # Always the same identity: its own lease a controller takes up again at once.
        controller = Controller(api, namespace=namespace, lease_namespace=namespace, identity="one after the other")
        started.put((asyncio.get_running_loop(), stop, api))
        try:
            await controller.run(stop)
        finally:
            await api.close()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    loop, stop, api = started.get(timeout=PATIENCE)
    try:
        yield api
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
    assert not thread.is_alive()


def submit(cluster: Cluster, namespace: str, **spec: Any) -> None:
    cluster.allow_lease(cluster.namespace(namespace))
    body = elastic_job("digits", minReplicas=1, maxReplicas=4, **spec)
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", body)


def books(cluster: Cluster, namespace: str) -> tuple[int, int]:
    status = cluster.job(namespace, "digits").get("status", {})
    return status.get("restarts", 0), status.get("disruptions", 0)


def uid_of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def test_with_calls_that_fail_all_becomes_as_it_should(cluster: Cluster) -> None:
    namespace = "faults-calls"
    submit(cluster, namespace, replicas=4)
    with controller_with(cluster, namespace, UnreliableApi) as api:
        cluster.wait_running(namespace, 4, NODE)
        cluster.phase(namespace, "digits-worker-1", "Failed", exit_code=137)
        eventually("the failure is counted", lambda: books(cluster, namespace) == (1, 0))
        cluster.wait_running(namespace, 4, NODE)
        cluster.merge(f"{JOBS}/namespaces/{namespace}/elasticjobs/digits/scale", {"spec": {"replicas": 2}})
        cluster.wait_running(namespace, 2, NODE)
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs/digits"
        cluster.merge(path, {"spec": {"suspend": True}})
        eventually("no workers", lambda: not cluster.run_pods(namespace, NODE))
        cluster.merge(path, {"spec": {"suspend": False}})
        cluster.wait_running(namespace, 2, NODE)
        assert books(cluster, namespace) == (1, 0)
        assert api.lost > 0


def test_watches_that_are_cut_again_and_again_go_on_where_they_ended(cluster: Cluster) -> None:
    namespace = "faults-cuts"
    submit(cluster, namespace, replicas=4)
    with controller_with(cluster, namespace, InterruptedApi) as api:
        cluster.wait_running(namespace, 4, NODE)
        cluster.phase(namespace, "digits-worker-1", "Failed", exit_code=137)
        eventually("the failure is counted", lambda: books(cluster, namespace) == (1, 0))
        assert sorted(cluster.wait_running(namespace, 4, NODE)) == [f"digits-worker-{i}" for i in range(4)]
        assert api.cuts > 0


def test_a_clock_that_jumps_makes_no_worker_and_no_count(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = "faults-clock"
    monkeypatch.setattr(executor, "datetime", JumpingClock)
    submit(cluster, namespace, replicas=2, backoffLimit=3)
    with controller_with(cluster, namespace, Api):
        cluster.wait_running(namespace, 2, NODE)
        cluster.merge(f"{JOBS}/namespaces/{namespace}/elasticjobs/digits/scale", {"spec": {"replicas": 4}})
        before = cluster.wait_running(namespace, 4, NODE)
        cluster.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/digits-worker-3")
        eventually("the loss is counted", lambda: books(cluster, namespace) == (0, 1))
        after = cluster.wait_running(namespace, 4, NODE)
        kept = {name for name in before if name in after and before[name]["metadata"]["uid"] == uid_of(after[name])}
        assert kept == {"digits-worker-0", "digits-worker-1", "digits-worker-2"}
        assert books(cluster, namespace) == (0, 1)


def test_after_a_compaction_of_etcd_a_watch_begins_anew_and_misses_nothing(cluster: Cluster) -> None:
    """What happened while the controller stood still is in no watch any more: the API server answers 410."""
    namespace = "faults-compaction"
    submit(cluster, namespace, replicas=3)
    controller = start_controller(cluster, f"--namespace={namespace}", f"--lease-namespace={namespace}")
    try:
        cluster.wait_running(namespace, 3, NODE)
        eventually("all is in the status", lambda: cluster.job(namespace, "digits")["status"]["readyReplicas"] == 3)
        lists = controller.metrics()["trainyard_lists_total"]
        controller.process.send_signal(signal.SIGSTOP)
        cluster.restart_api_server()
        cluster.phase(namespace, "digits-worker-1", "Failed", exit_code=137)
        cluster.phase(namespace, "digits-worker-2", "Failed", exit_code=137)
        cluster.compact()
        controller.process.send_signal(signal.SIGCONT)
        eventually("both failures are counted", lambda: books(cluster, namespace) == (2, 0))
        assert sorted(cluster.wait_running(namespace, 3, NODE)) == [f"digits-worker-{i}" for i in range(3)]
        assert books(cluster, namespace) == (2, 0)
        eventually("new lists were read", lambda: controller.metrics()["trainyard_lists_total"] > lists)
    finally:
        controller.process.send_signal(signal.SIGCONT)
        assert end(controller.process) == 0, controller.log.read_text()
    assert "Traceback" not in controller.log.read_text()


def test_a_controller_that_dies_after_each_step_is_taken_up_by_the_next(cluster: Cluster) -> None:
    namespace = "faults-deaths"
    submit(cluster, namespace, replicas=3)
    names = {f"digits-worker-{index}" for index in range(3)}

    def lives_until(reached: Callable[[], bool]) -> int:
        for life in itertools.count(1):
            assert life < 60, "no end to it"
            with controller_with(cluster, namespace, partial(MortalApi, writes=1 + life % 2)) as api:
                eventually("it dies, or has nothing to do", lambda: api.dead or reached())
            if reached():
                return life
        raise AssertionError

    assert lives_until(lambda: cluster.pods(namespace).keys() == names) > 1
    before = cluster.wait_running(namespace, 3, NODE)
    cluster.phase(namespace, "digits-worker-1", "Failed", exit_code=137)

    def made_good() -> bool:
        pod = cluster.pods(namespace).get("digits-worker-1")
        return pod is not None and pod["metadata"]["uid"] != before["digits-worker-1"]["metadata"]["uid"]

    lives_until(made_good)
    pods = cluster.wait_running(namespace, 3, NODE)
    assert pods.keys() == names
    assert books(cluster, namespace) == (1, 0)
