"""Queue, informers, health server and command line, each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import httpx2
import pytest
from lightkube import ApiError, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.generic_client import BasicRequest
from lightkube.models.meta_v1 import Status

from training.controller import client
from training.controller import lease as lease_module
from training.controller.api import ElasticJob, Reason
from training.controller.client import CONNECTIONS, Api, Object, RateLimit
from training.controller.events import EventFilter
from training.controller.executor import Executor, RefusedError, summarised
from training.controller.health import HealthServer
from training.controller.lease import LeaderLease
from training.controller.main import JsonFormatter, default_address
from training.controller.metrics import Histogram, TimeBelow, label
from training.controller.planner import DeletePod, Event
from training.controller.queue import KeyQueue
from training.controller.records import PodRecord, pod_record
from training.controller.served import ELASTIC
from training.controller.store import Store
from training.controller.watch import Informer

T = TypeVar("T")
Listed = tuple[list[Object], str]
Seen = list[tuple[str, int | None, int | None]]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 120))


class TestQueue:
    def test_news_of_a_key_is_merged(self) -> None:
        async def work() -> None:
            queue = KeyQueue()
            for _ in range(3):
                queue.add("a")
            assert await queue.get() == "a"
            assert len(queue) == 0

        run(work())

    def test_a_key_is_worked_on_once_at_a_time_and_comes_again_when_done(self) -> None:
        async def work() -> None:
            queue = KeyQueue()
            queue.add("a")
            assert await queue.get() == "a"
            queue.add("a")
            queue.add("b")
            assert await queue.get() == "b"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.get(), 0.05)
            queue.done("a")
            assert await queue.get() == "a"

        run(work())

    def test_the_sooner_of_two_times_counts(self) -> None:
        async def work() -> None:
            queue = KeyQueue()
            queue.add("a", 600)
            queue.add("a", 0.02)
            queue.add("a", 600)
            assert await queue.get() == "a"  # in time for `run`

        run(work())

    def test_failures_wait_longer_each_time(self) -> None:
        async def work() -> None:
            queue = KeyQueue()
            waits = []
            for _ in range(12):
                queue._working.add("a")
                waits.append(queue.failed("a"))
            assert waits[:3] == [0.2, 0.4, 0.8]
            assert waits[-1] == 60
            queue.done("a")
            assert queue.failed("a") == 0.2

        run(work())

    def test_a_key_that_the_user_has_corrected_does_not_wait(self) -> None:
        async def work() -> None:
            queue = KeyQueue()
            queue.add("a")
            await queue.get()
            for _ in range(11):
                queue.failed("a")
            last = queue.failed("a")
            queue.forgive("a")
            assert await asyncio.wait_for(queue.get(), last / 2) == "a"
            assert queue.failed("a") == 0.2

        run(work())

    def test_a_job_whose_plans_take_long_leaves_time_to_others(self) -> None:
        async def work() -> None:
            queue = KeyQueue()
            queue.add("slow")
            await queue.get()
            started = asyncio.get_running_loop().time()
            queue.done("slow", 0.05)
            queue.add("slow")
            await queue.get()
            assert asyncio.get_running_loop().time() - started >= 0.19

        run(work())


class ScriptedApi:
    """Answers lists and watches from a script; a watch without a line left stays silent."""

    def __init__(self, lists: list[Listed], watches: list[list[tuple[str, Object] | Exception]]) -> None:
        self.lists = lists
        self.watches = watches
        self.versions: list[str] = []

    async def list_all(self, *_: object) -> tuple[list[Object], str]:
        return self.lists.pop(0)

    async def watch(self, *where: str | None) -> AsyncIterator[tuple[str, Object]]:
        self.versions.append(where[-1] or "")
        for line in self.watches.pop(0) if self.watches else []:
            if isinstance(line, Exception):
                raise line
            yield line
        await asyncio.sleep(60)


def pod(name: str, version: int, uid: str = "u", **status: Any) -> Object:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {"job-name": "j"},
    }
    return {"metadata": metadata, "status": status}


def refused(code: int, message: str = "refused") -> ApiError:
    return ApiError(status=Status(code=code, message=message))


def gone() -> ApiError:
    return refused(410, "too old resource version")


class TestInformer:
    @staticmethod
    async def watched(api: ScriptedApi, until: int) -> tuple[Informer[PodRecord], Seen]:
        """Runs an informer until it has seen so many changes."""
        seen: Seen = []
        enough = asyncio.Event()

        def observe(key: str, old: PodRecord | None, new: PodRecord | None) -> None:
            seen.append((key, old.resource_version if old else None, new.resource_version if new else None))
            if len(seen) >= until:
                enough.set()

        informer = Informer(cast("Api", api), client.Pod, pod_record, observe)
        task = asyncio.create_task(informer.run())
        await enough.wait()
        await asyncio.sleep(0)
        task.cancel()
        return informer, seen

    def test_list_then_watch_from_its_version(self) -> None:
        api = ScriptedApi([([pod("a", 1)], "5")], [[("ADDED", pod("b", 6)), ("DELETED", pod("a", 7))]])
        informer, seen = run(self.watched(api, 4))
        assert seen == [("n/a", None, 1), ("n/b", None, 6), ("n/a", 1, 7), ("n/a", 7, None)]
        assert list(informer.all()) == ["n/b"]
        assert api.versions[0] == "5"

    def test_a_broken_watch_goes_on_where_it_ended(self) -> None:
        api = ScriptedApi(
            [([], "5")],
            [[("ADDED", pod("a", 6)), ("BOOKMARK", pod("", 9)), httpx2.ReadError("cut")], [("MODIFIED", pod("a", 10))]],
        )
        _, seen = run(self.watched(api, 2))
        assert api.versions == ["5", "9"]
        assert seen[-1] == ("n/a", 6, 10)

    def test_after_410_a_new_list_tells_what_vanished_meanwhile(self) -> None:
        api = ScriptedApi([([pod("a", 1), pod("b", 2)], "5"), ([pod("b", 2)], "50")], [[gone()]])
        informer, seen = run(self.watched(api, 3))
        assert seen[-1] == ("n/a", 1, None)
        assert list(informer.all()) == ["n/b"]
        assert informer.relists == 2

    def test_what_a_write_returned_is_not_undone_by_older_news(self) -> None:
        old_news: list[tuple[str, Object] | Exception] = [("ADDED", pod("a", 6)), ("DELETED", pod("a", 7, uid="u"))]
        api = ScriptedApi([([], "5")], [[*old_news, ("ADDED", pod("b", 9))]])

        async def work() -> Informer[PodRecord]:
            told = asyncio.Event()
            informer = Informer(
                cast("Api", api), client.Pod, pod_record, lambda key, *_: told.set() if key == "n/b" else None
            )
            informer.put(pod("a", 8, uid="successor"))
            task = asyncio.create_task(informer.run())
            await told.wait()
            task.cancel()
            return informer

        record = run(work()).get("n/a")
        assert record is not None
        assert record.uid == "successor"

    def test_an_answer_that_comes_late_does_not_bring_back_what_is_gone(self) -> None:
        api = ScriptedApi([([], "5")], [[("ADDED", pod("a", 6)), ("DELETED", pod("a", 7))]])

        async def work() -> Informer[PodRecord]:
            informer, _ = await self.watched(api, 3)
            informer.put(pod("a", 6))
            return informer

        assert run(work()).get("n/a") is None

    def test_a_deletion_that_was_known_is_not_told_again(self) -> None:
        api = ScriptedApi([([pod("a", 1)], "5")], [[("DELETED", pod("a", 7)), ("ADDED", pod("b", 8))]])
        seen: Seen = []

        async def work() -> None:
            known = asyncio.Event()

            def observe(key: str, old: PodRecord | None, new: PodRecord | None) -> None:
                seen.append((key, old.resource_version if old else None, new.resource_version if new else None))
                if key == "n/a" and old is None:
                    informer.drop("n/a", 7)  # as the answer to the deletion does
                if key == "n/b":
                    known.set()

            informer = Informer(cast("Api", api), client.Pod, pod_record, observe)
            task = asyncio.create_task(informer.run())
            await known.wait()
            task.cancel()

        run(work())
        assert seen == [("n/a", None, 1), ("n/a", 1, None), ("n/b", None, 8)]

    def test_a_silent_watch_is_given_up_when_a_bookmark_is_overdue(self) -> None:
        assert client.BOOKMARK_SECONDS < client.WATCH_SILENCE < 2 * client.BOOKMARK_SECONDS


class TestStore:
    def test_a_node_is_lost_only_if_it_was_there(self) -> None:
        store = Store(cast("Api", None), ELASTIC, lambda *_: None)
        store.nodes.put({"metadata": {"name": "seen", "resourceVersion": "1"}})
        listed = store.nodes.listed_at = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
        early, late = listed - timedelta(minutes=1), listed + timedelta(seconds=1)
        pods = [
            PodRecord("a", "a", node="seen", scheduled=early),
            PodRecord("b", "b", node="gone before the list", scheduled=early),
            PodRecord("c", "c", node="its news is late", scheduled=late, created=early),
            PodRecord("d", "d", node=None, created=early),
        ]
        assert store.lost_nodes(pods) == {"gone before the list"}
        store.nodes.drop("seen")
        assert store.lost_nodes(pods) == {"gone before the list", "seen"}
        store.nodes.put({"metadata": {"name": "seen", "resourceVersion": "2"}})
        assert store.lost_nodes(pods) == {"gone before the list"}

    def test_nodes_that_no_pod_names_are_forgotten(self) -> None:
        store = Store(cast("Api", None), ELASTIC, lambda *_: None)
        for number in range(10):
            store.nodes.put({"metadata": {"name": f"spot-{number}", "resourceVersion": "1"}})
            store.nodes.drop(f"spot-{number}")
        assert store._lost_nodes == {"spot-9"}

    def test_what_workers_take_of_nodes_is_summed_until_they_end(self) -> None:
        store = Store(cast("Api", None), ELASTIC, lambda *_: None)
        container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": "500m"}}}
        for name, phase in (("a", "Running"), ("b", "Pending"), ("c", "Succeeded")):
            one = pod(name, 1)
            one |= {"spec": {"nodeName": "node-a", "containers": [container]}, "status": {"phase": phase}}
            store.pods.put(one)
        assert store.used() == {"node-a": {"pods": 2, "nvidia.com/gpu": 4, "cpu": 1}}

    def test_a_node_that_opens_is_told_to_jobs_that_look_for_room(self) -> None:
        due: list[str] = []
        store = Store(cast("Api", None), ELASTIC, lambda key, _: due.append(key))
        for name, scaling in (("steady", {"mode": "Manual"}), ("probing", {"mode": "Capacity", "growth": "Probe"})):
            spec = {"rdzvEndpoint": "e", "scaling": scaling, "replicaSpecs": {"Worker": {"template": {}}}}
            store.jobs.put(
                {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"}, "spec": spec}
            )
        node = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"unschedulable": True}}
        store.nodes.put(node)
        due.clear()
        store.nodes.put({"metadata": {"name": "a", "resourceVersion": "2"}})
        assert due == ["n/probing"]

    def test_the_time_of_a_notice_is_kept_until_it_is_withdrawn_or_the_node_has_gone(self) -> None:
        store = Store(cast("Api", None), ELASTIC, lambda *_: None)
        taint = {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}}
        for version, spec, noticed in ((1, {}, False), (2, taint, True), (3, {}, False), (4, taint, True)):
            store.nodes.put({"metadata": {"name": "a", "resourceVersion": str(version)}, **spec})
            assert ("a" in store.noticed_at) == noticed
        store.nodes.drop("a")
        assert store.noticed_at == {}

    def test_an_edit_is_told_apart_from_a_status_write(self) -> None:
        edited: list[str] = []
        store = Store(cast("Api", None), ELASTIC, lambda *_: None, edited=edited.append)
        for version, generation in ((1, 1), (2, 1), (3, 2)):
            metadata = {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": str(version)}
            spec = {"rdzvEndpoint": "e", "replicaSpecs": {"Worker": {"template": {}}}}
            store.jobs.put({"metadata": metadata | {"generation": generation}, "spec": spec})
        assert edited == ["n/j"]

    def test_a_pod_that_changes_its_job_leaves_the_first(self) -> None:
        store = Store(cast("Api", None), ELASTIC, lambda *_: None)
        store.pods.put(pod("a", 1))
        moved = pod("a", 2)
        moved["metadata"]["labels"] = {"job-name": "other"}
        store.pods.put(moved)
        assert store.pods_of("n/j") == []
        assert [p.uid for p in store.pods_of("n/other")] == ["u"]

    def test_a_job_that_cannot_be_read_keeps_the_reason(self) -> None:
        record = ELASTIC.record(
            {"metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1"}, "spec": {}}
        )
        assert record.job is None
        assert record.error == "spec.replicaSpecs: Field required"


def test_many_events_of_a_reason_become_one() -> None:
    events = [Event("Normal", Reason.WORKER_DISRUPTED, f"w{i} was lost") for i in range(5)]
    told = summarised([*events, Event("Normal", Reason.JOB_RESUMED, "resumed")])
    assert [event.message for event in told] == ["5 times, first: w0 was lost", "resumed"]


def test_the_same_news_again_and_again_is_told_less_and_less() -> None:
    keeps, now = EventFilter(), 0.0
    told = [
        event.message
        for number in range(100)
        if (event := keeps.pass_on("uid", Event("Normal", Reason.WORKER_DISRUPTED, f"worker {number}"), now))
        is not None
    ]
    assert told == [
        *(f"worker {number}" for number in range(10)),
        "20 times within 10 minutes, the last: worker 19",
        "40 times within 10 minutes, the last: worker 39",
        "80 times within 10 minutes, the last: worker 79",
    ]
    other = Event("Normal", Reason.JOB_FAILED, "over")
    assert keeps.pass_on("uid", other, now) == keeps.pass_on("other job", other, now) == other
    later = Event("Normal", Reason.WORKER_DISRUPTED, "later")
    assert keeps.pass_on("uid", later, now + 600) == later


def test_durations_are_counted_by_their_bounds() -> None:
    histogram = Histogram("wait_seconds", "Time.")
    for seconds in (0.004, 0.5, 90):
        histogram.observe(seconds)
    lines = str(histogram).splitlines()
    assert lines[:2] == ["# HELP wait_seconds Time.", "# TYPE wait_seconds histogram"]
    assert 'wait_seconds_bucket{le="0.005"} 1' in lines
    assert 'wait_seconds_bucket{le="60.0"} 2' in lines
    assert lines[-3:] == ['wait_seconds_bucket{le="+Inf"} 3', "wait_seconds_sum 90.504", "wait_seconds_count 3"]


def test_the_time_of_all_that_is_too_little_is_summed() -> None:
    now = 100.0
    below = TimeBelow(lambda: now)
    below.note("a", below=True)
    now = 110
    below.note("a", below=True)
    below.note("b", below=True)
    now = 115
    assert (len(below), below.seconds) == (2, 20)  # a for 15, b for 5
    below.note("a", below=False)
    below.note("never", below=False)
    now = 125
    assert (len(below), below.seconds) == (1, 30)
    below.forget_all()
    now = 1000
    assert (len(below), below.seconds) == (0, 30)


def test_a_label_holds_whatever_others_have_written() -> None:
    assert label("cause", 'a "quoted"\n\\ reason') == r'cause="a \"quoted\"\n\\ reason"'
    assert len(label("cause", "x" * 1000)) < 80


def test_calls_beyond_the_burst_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def work() -> None:
        limit = RateLimit(rate=100, burst=5)
        monkeypatch.setattr("training.controller.client.time.monotonic", lambda: limit._last)
        monkeypatch.setattr("training.controller.client.asyncio.sleep", sleep)
        for _ in range(8):
            await limit.wait()

    run(work())
    assert waits == pytest.approx([0.01, 0.02, 0.03])


def test_a_deletion_that_is_answered_without_a_version_is_left_to_the_watch() -> None:
    """So the API server answers where the kubelet was faster; a conformance test on a busy computer met it."""

    class Late:
        async def delete(self, *_: object, **__: object) -> Object:
            return {"kind": "Pod", "metadata": {"name": "j-worker-0", "namespace": "n"}}

    store = Store(cast("Api", None), ELASTIC, lambda *_: None)
    store.pods.put(pod("j-worker-0", 1))
    executor = Executor(cast("Api", Late()), store, "me")
    run(executor._delete_pod("n", DeletePod("j-worker-0", "u", "not wanted")))
    assert [p.name for p in store.pods_of("n/j")] == ["j-worker-0"]


class TestNamesThatAreTaken:
    """The API server says 409: somebody has the name of a worker already."""

    @staticmethod
    def executor(owner: str | None) -> tuple[Executor, Store, ElasticJob]:
        store = Store(cast("Api", None), ELASTIC, lambda *_: None)
        found = pod("j-worker-0", 7)
        found["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}]
        spec = {"rdzvEndpoint": "e", "replicaSpecs": {"Worker": {"template": {}}}}
        metadata = {"name": "j", "namespace": "n", "uid": "job", "resourceVersion": "1"}
        store.jobs.put({"metadata": metadata, "spec": spec})

        class Taken:
            async def create(self, kind: client.Resource, obj: Object) -> Object:
                if kind is client.Service or obj["metadata"]["name"] != "j-worker-0":
                    return {
                        **obj,
                        "metadata": {**obj["metadata"], "uid": obj["metadata"]["name"], "resourceVersion": "9"},
                    }
                raise refused(409)

            async def get(self, *_: object) -> Object:
                if owner is None:
                    raise refused(404)
                return found

            async def apply(self, _: client.Resource, obj: Object) -> Object:
                return {"metadata": metadata | {"resourceVersion": "2"}, "spec": spec, "status": obj["status"]}

        record = store.jobs.get("n/j")
        assert record is not None
        assert record.job is not None
        return Executor(cast("Api", Taken()), store, "me"), store, record.job

    def test_the_jobs_own_pod_is_taken_in(self) -> None:
        executor, store, _ = self.executor("job")
        run(executor.reconcile("n/j"))
        assert [p.uid for p in store.pods_of("n/j")] == ["u"]

    def test_others_keep_it_and_another_name_is_used_at_once(self) -> None:
        executor, store, _ = self.executor("another")
        with pytest.raises(RefusedError, match="not of this job"):
            run(executor.reconcile("n/j"))
        run(executor.reconcile("n/j"))
        assert [p.name for p in store.pods_of("n/j")] == ["j-worker-1"]

    def test_one_that_has_gone_meanwhile_is_tried_again(self) -> None:
        executor, _, _ = self.executor(None)
        for _ in range(3):
            with pytest.raises(RefusedError, match="j-worker-0 existed a moment ago"):
                run(executor.reconcile("n/j"))

    def test_a_name_whose_pod_is_seen_is_no_longer_remembered(self) -> None:
        executor, store, _ = self.executor("another")
        with pytest.raises(RefusedError):
            run(executor.reconcile("n/j"))
        store.pods.put(pod("j-worker-0", 8, uid="seen"))
        run(executor.reconcile("n/j"))
        assert executor._names_taken["n/j"] == set()

    def test_nothing_is_remembered_of_a_job_that_is_gone(self) -> None:
        executor, store, job = self.executor("another")
        with pytest.raises(RefusedError):
            run(executor.reconcile("n/j"))
        executor._service_name_taken(job, "j-workers-of-others")
        store.jobs.drop("n/j")
        run(executor.reconcile("n/j"))
        assert (executor._names_taken, executor._told) == ({}, {})


def test_a_job_whose_pods_are_refused_costs_one_call_and_one_whose_pods_were_taken_starts_with_many() -> None:
    store = Store(cast("Api", None), ELASTIC, lambda *_: None)
    metadata = {"name": "j", "namespace": "n", "uid": "job", "resourceVersion": "1"}
    workers = {"template": {}, "replicas": 200}
    spec = {"rdzvEndpoint": "e", "maxReplicas": 200, "replicaSpecs": {"Worker": workers}}
    store.jobs.put({"metadata": metadata, "spec": spec})
    open_calls, most, calls, refuse = 0, 0, 0, True

    class Quota:
        async def create(self, kind: client.Resource, obj: Object) -> Object:
            nonlocal open_calls, most, calls
            if kind is client.Pod:
                calls, open_calls = calls + 1, open_calls + 1
                most = max(most, open_calls)
                await asyncio.sleep(0)
                open_calls -= 1
                if refuse:
                    raise refused(403)
            return {**obj, "metadata": {**obj["metadata"], "uid": obj["metadata"]["name"], "resourceVersion": "9"}}

        async def apply(self, _: client.Resource, obj: Object) -> Object:
            return {"metadata": metadata | {"resourceVersion": "2"}, "spec": spec, "status": obj["status"]}

    executor = Executor(cast("Api", Quota()), store, "me")

    def calls_of_a_pass() -> int:
        nonlocal calls
        calls = 0
        with contextlib.suppress(RefusedError):
            run(executor.reconcile("n/j"))
        return calls

    assert calls_of_a_pass() == 1
    assert calls_of_a_pass() == 1
    refuse = False
    assert calls_of_a_pass() == 200
    assert most == CONNECTIONS
    for known in store.pods_of("n/j"):
        store.pods.drop(f"n/{known.name}")
    refuse = True
    assert calls_of_a_pass() == CONNECTIONS  # it was trusted: each of the calls side by side learns that it is not
    assert calls_of_a_pass() == 1


class TestLease:
    """The lease is kept in time whatever the answers take."""

    @staticmethod
    def api(respond: Callable[[], Awaitable[None]]) -> Api:
        """An API server that knows one lease, which this process holds."""
        config = KubeConfig.from_one(cluster=Cluster(server="http://127.0.0.1:1"), user=User(token="t"))
        api = Api(config.get(), rate=0.001, burst=1)
        lease = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"}, "spec": {"holderIdentity": "me"}}

        async def send(request: BasicRequest) -> httpx2.Response:
            await respond()
            return httpx2.Response(200, json=lease, request=httpx2.Request("GET", "http://127.0.0.1:1"))

        api._respond = send  # type: ignore[method-assign]
        return api

    def test_it_does_not_wait_behind_other_calls(self) -> None:
        async def work() -> None:
            api = self.api(lambda: asyncio.sleep(0))
            for _ in range(CONNECTIONS):
                await api._slots.acquire()
            for _ in range(3):
                assert (await api.get(client.Lease, "n", "l"))["metadata"]["name"] == "l"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await api.get(client.Pod, "n", "p")

        run(work())

    def test_it_counts_from_the_start_of_the_call_and_never_longer_than_others_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clock of its own: each answer takes 4.5 s, two make a renewal, which is 9 s; then none comes."""
        clock = 0.0
        answers = 4

        async def sleep(seconds: float) -> None:
            nonlocal clock
            clock += seconds

        @asynccontextmanager
        async def timeout(seconds: float) -> AsyncIterator[None]:
            nonlocal clock
            deadline = clock + seconds
            yield
            if clock > deadline:
                clock = deadline
                raise TimeoutError

        async def respond() -> None:
            nonlocal answers
            answers -= 1
            await sleep(4.5 if answers >= 0 else 1000)

        api = self.api(respond)
        monkeypatch.setattr("training.controller.lease.time.monotonic", lambda: clock)
        monkeypatch.setattr("training.controller.lease.asyncio", SimpleNamespace(sleep=sleep, timeout=timeout))
        lease = LeaderLease(api, "n", "l", "me")

        async def work() -> None:
            await lease.acquire()
            assert clock == 9
            await lease.hold()

        run(work())
        assert clock == lease_module.RENEW_WITHIN  # of the call that took it: the renewal had 1 s left and needed more


def test_health_answers_and_survives_nonsense() -> None:
    async def work() -> list[tuple[int, str]]:
        ready = False
        server = HealthServer(lambda: ready, lambda: "metric 1\n")
        port = await server.start("127.0.0.1", 0)
        base = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(timeout=120) as http:
            answers = [await http.get(f"{base}{path}") for path in ("/healthz", "/readyz", "/metrics", "/x")]
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\r\n\r\n")
            writer.close()
            ready = True
            answers.append(await http.get(f"{base}/readyz"))
        server.close()
        return [(answer.status_code, answer.text) for answer in answers]

    codes = [code for code, _ in run(work())]
    assert codes == [200, 503, 200, 404, 200]


def test_log_lines_are_json_with_the_job() -> None:
    record = logging.makeLogRecord({"msg": "created %s", "args": ("x",), "levelname": "INFO", "job": "n/j"})
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["job"], line["level"]) == ("created x", "n/j", "info")


def controller(*options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training.controller", *options]
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=root, check=False)


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path) -> None:
    done = controller(env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")})
    assert done.returncode == 2
    assert "set KUBECONFIG to a kubeconfig file" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_it_starts_without_torch() -> None:
    code = "import sys, training.controller.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_the_status_read_back_is_the_status_written() -> None:
    status = {
        "conditions": [{"type": "Running", "status": "True", "lastTransitionTime": "2026-11-30T12:00:00Z"}],
        "accountedPods": ["u"],
        "startTime": "2026-11-30T12:00:00Z",
    }
    spec = {"rdzvEndpoint": "e", "replicaSpecs": {"Worker": {"template": {}}}}
    metadata = {"name": "j", "namespace": "n", "uid": "u"}
    made = ElasticJob.model_validate({"metadata": metadata, "spec": spec, "status": status})
    dumped = made.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert dumped["startTime"] == "2026-11-30T12:00:00Z"
    assert type(made.status).model_validate(dumped) == made.status


def test_a_port_that_is_taken_is_told_without_a_traceback(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: c}}],"
        " clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: c, user: {token: t}}]}"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = controller(f"--metrics-port={port}", env={"PATH": "/usr/bin:/bin", "KUBECONFIG": str(config)})
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stdout
    assert "Choose another with --metrics-port" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_in_a_cluster_it_listens_on_the_pods_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert default_address() == "127.0.0.1"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("POD_IP", "127.77.1.4")
    assert default_address() == "127.77.1.4"
    monkeypatch.delenv("POD_IP")
    monkeypatch.setenv("HOSTNAME", "localhost")
    assert default_address() == "127.0.0.1"
    monkeypatch.setenv("HOSTNAME", "no-such-host.invalid")
    assert default_address() == "0.0.0.0"  # noqa: S104
