"""How fast the ElasticJob controller is: a real control plane, simulated kubelets (kwok), all on this computer.

    make bench-controller
    PYTHONPATH=.:tests/controller .venv/bin/python benchmarks/controller.py --only large --workers 200 --repeats 1

etcd (without fsync), kube-apiserver, kube-scheduler, kube-controller-manager (the garbage collector among others) and
the controller are real processes that share the processors; kwok says of each pod with a node that it runs, and of each
deleted one that it has ended. No program of a worker runs, so the figures are about the controller and the API server.

large     one job: until all its workers are created, run and are counted in its status; until it is deleted and no pod
          is left. Before each repeat, from the same computer, as many equal pods created through 16 connections and
          nothing else: what the API server allows.
reclaims  the same job with many of its workers alone on nodes, to all of which a notice of their end is given at once.
many      many jobs at once: the same, and what is written of all of them; memory; the processor time of a controller
          that has nothing to do.

Seconds are those of a watch of this program beside the controller. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import ssl
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
from real_api_server import (
    ADMIN_TOKEN,
    CONTROLLER_TOKEN,
    JOBS,
    Cluster,
    ControllerProcess,
    control_plane,
    elastic_job,
    end,
    engine,
    eventually,
    start_controller,
)

from infra.cli import console
from infra.rehearsal.stages import SIMULATED, stages
from training.controller.api import ElasticJob
from training.controller.pods import worker_pod

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- controller: written by `make bench-controller` -->", "<!-- end of controller -->"
PATIENCE = 900.0  # seconds; for a step that takes two minutes on two quiet cores
BARE_CONNECTIONS = 16
NODE_GPUS = 64
"""Workers on one node of those that stay."""
NOTICE = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
GOALS: dict[str, tuple[str, float]] = {
    "created_to_bare": ("created, by the bare API server's time", 1.2),
    "status_lag": ("from the last worker Running to the status that says so", 3.0),
    "deletion_to_creation": ("deleted, by the time from creation to all Running", 1.0),
    "notice_p99": ("from a notice to the replacement, p99", 1.0),
    "rss_mib": ("peak memory (MiB)", 400 * 1e6 / 2**20),
    "idle_percent": ("processor time of an idle controller (% of a core)", 1.0),
}
"""What each result is, and the most that it may be."""


# --- what happens, as a watch sees it -------------------------------------------------------------------------------


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 -- as Kubernetes spells it


class _Spec(msgspec.Struct):
    nodeName: str = ""  # noqa: N815


class _Status(msgspec.Struct):
    phase: str = ""
    readyReplicas: int = 0  # noqa: N815


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)
    message: str = ""


class _Event(msgspec.Struct):
    type: str
    object: _Object


@dataclass
class Pod:
    """When a pod was seen to come, run and go (seconds of the monotonic clock)."""

    created: float
    node: str = ""
    running: float | None = None
    gone: float | None = None


@dataclass
class View:
    """What a watch has seen so far."""

    pods: dict[str, dict[str, Pod]] = field(default_factory=lambda: defaultdict(dict))
    """By namespace and UID."""
    ready: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """By namespace and job: workers that its status calls ready, and since when it says so."""
    trouble: str = ""
    """Why a watch has ended."""

    def pod(self, event: str, found: _Object, now: float) -> None:
        """Takes in the news of a pod."""
        pod = self.pods[found.metadata.namespace].setdefault(found.metadata.uid, Pod(now))
        pod.node = found.spec.nodeName
        if event == "DELETED":
            pod.gone = now
        elif pod.running is None and found.status.phase == "Running":
            pod.running = now

    def job(self, event: str, found: _Object, now: float) -> None:
        """Takes in the news of a job."""
        key = found.metadata.namespace, found.metadata.name
        if event == "DELETED":
            self.ready.pop(key, None)
        elif self.ready.get(key, (-1, 0.0))[0] != found.status.readyReplicas:
            self.ready[key] = found.status.readyReplicas, now

    def alive(self, namespace: str) -> list[Pod]:
        """Pods that are there."""
        return [pod for pod in list(self.pods[namespace].values()) if pod.gone is None]


class Simulation:
    """The control plane with the simulated kubelets, and what is seen of it."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.say = say
        self.view = View()
        self._context = ssl.create_default_context(cafile=cluster.ca)
        for path, take in (("/api/v1/pods", self.view.pod), (f"{JOBS}/elasticjobs", self.view.job)):
            threading.Thread(target=self._watch, args=(path, take), daemon=True).start()

    def wait(self, what: str, look: Callable[[], bool]) -> None:
        """Returns when `look` is true.

        Raises:
            SystemExit: nothing came of it for a long time.
        """
        deadline = time.monotonic() + PATIENCE
        while not look():
            if self.view.trouble:
                sys.exit(f"the watch of the benchmark itself has ended: {self.view.trouble}")
            if time.monotonic() > deadline:
                sys.exit(f"not within {PATIENCE:g} s: {what}. The logs of all programs: {self.cluster.folder}")
            time.sleep(0.05)

    def call_all(self, calls: Iterable[tuple[str, str, Any]], token: str = CONTROLLER_TOKEN) -> list[float]:
        """Makes calls (method, path, body) through 16 connections; returns when each of them began."""
        waiting = iter([(method, path, json.dumps(body).encode()) for method, path, body in calls])
        lock, began = threading.Lock(), []

        def work() -> None:
            connection = self._connect()
            while True:
                with lock:
                    call = next(waiting, None)
                    began.append(time.monotonic())
                if call is None:
                    began.pop()
                    return
                method, path, body = call
                kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
                connection.request(
                    method, path, body=body, headers={"Authorization": f"Bearer {token}", "Content-Type": kind}
                )
                with connection.getresponse() as answer:
                    text = answer.read()
                    if answer.status >= 300:
                        sys.exit(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:500]}")

        with ThreadPoolExecutor(BARE_CONNECTIONS) as pool:
            for done in [pool.submit(work) for _ in range(BARE_CONNECTIONS)]:
                done.result()
        return sorted(began)

    def _connect(self) -> http.client.HTTPSConnection:
        address = urllib.parse.urlsplit(self.cluster.server)
        return http.client.HTTPSConnection(str(address.hostname), address.port, context=self._context)

    def _watch(self, path: str, take: Callable[[str, _Object, float], None]) -> None:
        decoder = msgspec.json.Decoder(_Event)
        version = "0"
        try:
            while True:
                connection = self._connect()
                query = f"watch=true&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=3000"
                connection.request("GET", f"{path}?{query}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
                with connection.getresponse() as answer:
                    for line in answer:
                        event = decoder.decode(line)
                        if event.type == "ERROR":
                            self.view.trouble = event.object.message
                            return
                        version = event.object.metadata.resourceVersion
                        if event.type != "BOOKMARK":
                            take(event.type, event.object, time.monotonic())
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            self.view.trouble = str(error)


@contextmanager
def simulation(say: Callable[[str], None]) -> Iterator[Simulation]:
    """A control plane in a temporary folder, with kwok in place of kubelets."""
    with tempfile.TemporaryDirectory(prefix="ty-") as name, control_plane(Path(name)) as cluster:
        behaviour = Path(name) / "stages.yaml"
        behaviour.write_text(stages())
        cluster.commands["kwok"] = [
            engine("kwok"),
            f"--config={behaviour}",
            f"--kubeconfig={cluster.kubeconfig(ADMIN_TOKEN)}",
            f"--manage-nodes-with-annotation-selector={'='.join(SIMULATED)}",
            "--node-lease-duration-seconds=0",  # nobody judges the nodes by their leases here
            "--cidr=100.64.0.1/16",
        ]
        cluster.start("kwok")
        yield Simulation(cluster, say)


def add_nodes(simulated: Simulation, names: Sequence[str], gpus: int) -> None:
    """Nodes that are ready and stay so."""
    resources = {"cpu": "256", "memory": "2Ti", "pods": "250", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    status = {"capacity": resources, "allocatable": resources, "conditions": ready}
    metadata = {"annotations": dict([SIMULATED])}
    path = "/api/v1/nodes"
    admin = ADMIN_TOKEN
    simulated.call_all(
        (("POST", path, {"metadata": metadata | {"name": name}, "status": status}) for name in names), admin
    )
    opened = {"spec": {"taints": None}}  # the API server taints new nodes, the node life cycle would open them
    simulated.call_all((("PATCH", f"{path}/{name}", opened) for name in names), admin)


def job_body(name: str, workers: int) -> dict[str, Any]:
    """A job as users write it: one GPU a worker, some environment."""
    body = elastic_job(name, replicas=workers, minReplicas=1, maxReplicas=workers)
    (container,) = body["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    container["args"] = ["--nproc_per_node=1", "train.py", "--config", "configs/large.yaml"]
    container["env"] = [{"name": "NCCL_DEBUG", "value": "WARN"}]
    return body


# --- the controller as a process ------------------------------------------------------------------------------------


@contextmanager
def controller(simulated: Simulation) -> Iterator[ControllerProcess]:
    """A controller that leads."""
    started = start_controller(simulated.cluster)
    try:
        eventually("the controller leads", lambda: started.leading)
        yield started
    finally:
        code = end(started.process)
        log = started.log.read_text()
    if code != 0 or "Traceback" in log:
        sys.exit(f"the controller ended with {code}; its log: {log[-2000:]}")


def calls_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """API calls by verb and resource."""
    prefix = "trainyard_api_calls_total{"
    made = {
        " ".join(part.split('"')[1] for part in name.removeprefix(prefix).split(",")): value - before.get(name, 0.0)
        for name, value in after.items()
        if name.startswith(prefix)
    }
    return {what: number for what, number in sorted(made.items()) if number > 0}


def quantile(before: Mapping[str, float], after: Mapping[str, float], histogram: str, part: float) -> float | None:
    """A quantile of what a histogram of the controller counted meanwhile, interpolated within its bucket."""
    prefix = f'{histogram}_bucket{{le="'
    buckets = sorted(
        (float(name.removeprefix(prefix).rstrip('"}').replace("+Inf", "inf")), value - before.get(name, 0.0))
        for name, value in after.items()
        if name.startswith(prefix)
    )
    total = buckets[-1][1] if buckets else 0.0
    low, below = 0.0, 0.0
    for bound, number in buckets:
        if total and number >= part * total:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (part * total - below) / (number - below)
        low, below = bound, number
    return None


def peak_mib(process: int) -> float:
    """The most memory that a process has held so far (MiB)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError


# --- scenarios ------------------------------------------------------------------------------------------------------


def bare(simulated: Simulation, workers: int, namespace: str) -> float:
    """Seconds in which the API server takes as many worker pods from 16 connections; they are deleted again."""
    simulated.cluster.namespace(namespace)
    body = job_body("bare", workers)
    body["metadata"] |= {"namespace": namespace, "uid": "00000000-0000-0000-0000-000000000000", "generation": 1}
    job = ElasticJob.model_validate(body)
    pods = [worker_pod(job, index, 1, f"1:{workers}") for index in range(workers)]
    for pod in pods:
        del pod["metadata"]["ownerReferences"]  # of a job that is not there: they would be collected
        for label in ("group-name", "job-name"):
            pod["metadata"]["labels"].pop(label)  # nor is the controller to know of them
        pod["metadata"].pop("finalizers", None)
    path = f"/api/v1/namespaces/{namespace}/pods"
    begin = time.monotonic()
    simulated.call_all(("POST", path, pod) for pod in pods)
    seconds = time.monotonic() - begin
    simulated.wait("all run", lambda: all(pod.running for pod in simulated.view.alive(namespace)))
    simulated.cluster.call("DELETE", path)
    simulated.wait("no bare pods", lambda: not simulated.view.alive(namespace))
    return seconds


def submit(simulated: Simulation, namespace: str, workers: int) -> tuple[float, list[Pod]]:
    """Creates the job `large`, waits until its status says that all run; when it was created, and its pods."""
    simulated.cluster.namespace(namespace)
    begin = time.monotonic()
    simulated.cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", job_body("large", workers))
    key = namespace, "large"
    simulated.wait("all ready in status", lambda: simulated.view.ready.get(key, (0, 0.0))[0] == workers)
    pods = simulated.view.alive(namespace)
    if len(pods) != workers:
        sys.exit(f"{len(pods)} pods of {workers} workers")
    return begin, pods


def delete(simulated: Simulation, namespace: str, *names: str) -> float:
    """Deletes jobs; seconds until none of their pods is left."""
    begin = time.monotonic()
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    simulated.call_all((("DELETE", f"{path}/{name}", {}) for name in names), ADMIN_TOKEN)
    simulated.wait("no pods", lambda: not simulated.view.alive(namespace))
    return time.monotonic() - begin


def large(simulated: Simulation, workers: int, repeats: int) -> list[dict[str, Any]]:
    """One large job, several times, each time beside the bare API server."""
    add_nodes(simulated, [f"large-{i}" for i in range(-(-workers // NODE_GPUS))], NODE_GPUS)
    samples = []
    for repeat in range(repeats):
        seconds = bare(simulated, workers, f"bare-{repeat}")
        simulated.say(f"large: bare API server {seconds:.1f} s")
        with controller(simulated) as running:
            namespace = f"large-{repeat}"
            before = running.metrics()
            begin, pods = submit(simulated, namespace, workers)
            after = running.metrics()
            sample: dict[str, Any] = {
                "bare": seconds,
                "created": max(pod.created for pod in pods) - begin,
                "running": max(pod.running or 0.0 for pod in pods) - begin,
                "status": simulated.view.ready[namespace, "large"][1] - begin,
                "calls": calls_between(before, after),
                "queue_p50": quantile(before, after, "trainyard_queue_seconds", 0.5),
                "queue_p99": quantile(before, after, "trainyard_queue_seconds", 0.99),
                "plan_seconds": after["trainyard_plan_seconds_total"] - before["trainyard_plan_seconds_total"],
                "plans": after["trainyard_plans_total"] - before["trainyard_plans_total"],
            }
            cpu = psutil.Process(running.process.pid).cpu_times()
            sample["processor_seconds"] = cpu.user + cpu.system
            sample["deleted"] = delete(simulated, namespace, "large")
            sample["calls_deletion"] = calls_between(after, running.metrics())
            sample["rss_mib"] = peak_mib(running.process.pid)
        samples.append(sample)
        simulated.say(
            "large: {created:.1f} s until created, {running:.1f} running, {status:.1f} in status, "
            "deleted in {deleted:.1f}".format_map(sample)
        )
    return samples


def reclaims(simulated: Simulation, workers: int, number: int) -> dict[str, Any]:
    """Notices for many nodes at once, each with one worker of a job."""
    spot = [f"spot-{i}" for i in range(number)]
    add_nodes(simulated, spot, 1)
    add_nodes(simulated, [f"steady-{i}" for i in range(-(-workers // NODE_GPUS))], NODE_GPUS)
    with controller(simulated) as running:
        namespace = "reclaims"
        _, pods = submit(simulated, namespace, workers)
        reclaimed = sorted({pod.node for pod in pods} & set(spot))
        if not reclaimed:
            sys.exit("the scheduler put no worker on a node that could be reclaimed: ask for more --workers")
        simulated.say(f"reclaims: {workers} workers run, notices for {len(reclaimed)} nodes with one each")
        before = running.metrics()
        given = simulated.call_all(
            (("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [NOTICE]}}) for name in reclaimed), ADMIN_TOKEN
        )

        def replaced() -> list[float]:
            new = (pod.created for pod in list(simulated.view.pods[namespace].values()) if pod.created >= given[0])
            return sorted(new)

        simulated.wait("a replacement for each", lambda: len(replaced()) >= len(reclaimed))
        waits = sorted(created - notice for notice, created in zip(given, replaced(), strict=False))
        simulated.wait("the leaving ones go", lambda: len(simulated.view.alive(namespace)) == workers)
        after = running.metrics()
        result = {
            "number": len(reclaimed),
            "given_within": given[-1] - given[0],
            "notice_p50": statistics.median(waits),
            "notice_p99": waits[int(len(waits) * 0.99)],
            "own_p99": quantile(before, after, "trainyard_notice_to_replacement_seconds", 0.99),
            "surplus": len(replaced()) - len(reclaimed),
            "calls": calls_between(before, after),
        }
        simulated.say("reclaims: p50 {notice_p50:.2f} s, p99 {notice_p99:.2f} s".format_map(result))
        delete(simulated, namespace, "large")
    simulated.call_all((("DELETE", f"/api/v1/nodes/{name}", {}) for name in spot), ADMIN_TOKEN)
    return result


def many(simulated: Simulation, jobs: int, size: int, idle_seconds: float) -> dict[str, Any]:
    """Many jobs at once; then nothing for a while; then none of them."""
    add_nodes(simulated, [f"many-{i}" for i in range(-(-jobs * size // NODE_GPUS))], NODE_GPUS)
    namespace = simulated.cluster.namespace("many")
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    with controller(simulated) as running:
        process = psutil.Process(running.process.pid)
        before = running.metrics()
        begin = time.monotonic()
        simulated.call_all((("POST", path, job_body(f"job-{i}", size)) for i in range(jobs)), ADMIN_TOKEN)
        submitted = time.monotonic() - begin
        simulated.say(f"many: {jobs} jobs submitted within {submitted:.1f} s")
        view = simulated.view

        def ready() -> bool:
            found = [view.ready.get((namespace, f"job-{i}"), (0, 0.0)) for i in range(jobs)]
            return all(number == size for number, _ in found)

        simulated.wait("all jobs ready in status", ready)
        pods = view.alive(namespace)
        after = running.metrics()
        result = {
            "jobs": jobs,
            "size": size,
            "submitted": submitted,
            "created": max(pod.created for pod in pods) - begin,
            "running": max(pod.running or 0.0 for pod in pods) - begin,
            "status": max(since for (where, _), (_, since) in view.ready.items() if where == namespace) - begin,
            "queue_p50": quantile(before, after, "trainyard_queue_seconds", 0.5),
            "queue_p99": quantile(before, after, "trainyard_queue_seconds", 0.99),
            "calls": calls_between(before, after),
        }
        simulated.say(
            "many: {created:.1f} s until created, {running:.1f} running, {status:.1f} in status".format_map(result)
        )
        time.sleep(min(15.0, idle_seconds))  # events on their way
        started, used = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(idle_seconds)
        spent = sum(process.cpu_times()[:2]) - used
        result["idle_percent"] = 100 * spent / (time.monotonic() - started)
        result["rss_mib"] = peak_mib(process.pid)
        simulated.say("many: {rss_mib:.0f} MiB at most, idle {idle_percent:.2f} % of a core".format_map(result))
        result["deleted"] = delete(simulated, namespace, *(f"job-{i}" for i in range(jobs)))
        result["rss_deleted_mib"] = peak_mib(process.pid)
        simulated.say("many: deleted in {deleted:.1f} s".format_map(result))
    return result


# --- results --------------------------------------------------------------------------------------------------------


def judged(document: Mapping[str, Any]) -> dict[str, float]:
    """What the goals are about, of the scenarios that ran: the median where something was repeated."""
    found: dict[str, float] = {}
    if samples := document.get("large"):
        found["created_to_bare"] = statistics.median(sample["created"] / sample["bare"] for sample in samples)
        found["status_lag"] = statistics.median(sample["status"] - sample["running"] for sample in samples)
        found["deletion_to_creation"] = statistics.median(sample["deleted"] / sample["status"] for sample in samples)
    if "reclaims" in document:
        found["notice_p99"] = document["reclaims"]["notice_p99"]
    if "many" in document:
        found["rss_mib"] = document["many"]["rss_deleted_mib"]
        found["idle_percent"] = document["many"]["idle_percent"]
    return found


def rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything measured, as (what, value)."""
    found: list[tuple[str, str]] = []

    def middle(samples: Sequence[Mapping[str, Any]], name: str) -> str:
        values = sorted(sample[name] for sample in samples if sample[name] is not None)
        return f"{statistics.median(values):.2f} / {values[-1]:.2f}" if values else ""

    def per_pod(calls: Mapping[str, float], pods: int) -> str:
        by = ", ".join(f"{what} {number / pods:.2f}" for what, number in calls.items() if number / pods >= 0.005)
        return f"{sum(calls.values()) / pods:.2f} ({by})"

    if samples := document.get("large"):
        workers = document["workers"]
        found += [
            (
                f"bare API server: {workers} pods created through {BARE_CONNECTIONS} connections",
                middle(samples, "bare"),
            ),
            (f"one job of {workers} workers: all created", middle(samples, "created")),
            ("... all Running", middle(samples, "running")),
            ("... all in its status", middle(samples, "status")),
            ("... deleted, no pod left", middle(samples, "deleted")),
            ("... queue latency p50", middle(samples, "queue_p50")),
            ("... queue latency p99", middle(samples, "queue_p99")),
            ("... processor time of the controller until then", middle(samples, "processor_seconds")),
            ("... API calls a worker until all is in the status", per_pod(samples[-1]["calls"], workers)),
            ("... API calls a worker for the deletion", per_pod(samples[-1]["calls_deletion"], workers)),
        ]
    if result := document.get("reclaims"):
        found += [
            (f"{result['number']} notices, given within", f"{result['given_within']:.2f}"),
            ("... from a notice to a replacement created, p50", f"{result['notice_p50']:.2f}"),
            ("... p99", f"{result['notice_p99']:.2f}"),
            ("... API calls a notice", per_pod(result["calls"], result["number"])),
        ]
    if result := document.get("many"):
        pods = result["jobs"] * result["size"]
        found += [
            (f"{result['jobs']} jobs of {result['size']} workers: submitted", f"{result['submitted']:.1f}"),
            ("... all created", f"{result['created']:.1f}"),
            ("... all Running", f"{result['running']:.1f}"),
            ("... all in their status", f"{result['status']:.1f}"),
            ("... queue latency p50", f"{result['queue_p50'] or 0:.3f}"),
            ("... queue latency p99", f"{result['queue_p99'] or 0:.3f}"),
            ("... API calls a worker", per_pod(result["calls"], pods)),
            ("... all deleted", f"{result['deleted']:.1f}"),
        ]
    return found


def verdicts(document: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Each goal: what, measured, goal, whether it is held."""
    return [
        (GOALS[name][0], f"{value:.2f}", f"<= {GOALS[name][1]:.3g}", "yes" if value <= GOALS[name][1] else "no")
        for name, value in judged(document).items()
    ]


def show(document: Mapping[str, Any]) -> None:
    """Prints the tables."""
    measured = console.table("kubelets simulated by kwok", "seconds, or as said; median / worst")
    for cells in rows(document):
        console.row(measured, *cells)
    goals = console.table("goal", "measured", "at most", "held")
    for verdict in verdicts(document):
        console.row(goals, *verdict)
    console.show(measured)
    console.show(goals)


def write_docs(document: Mapping[str, Any]) -> None:
    """Puts the tables between the marks in docs/benchmarks.md, in place of the old ones."""
    lines = [
        f"Measured on {document['when']}, {document['processors']} cores, Python {document['python']}; the kubelets",
        "are simulated (kwok), all else is real and shares the cores. Seconds unless said otherwise, median / worst",
        "where repeated.",
        "",
        "| what | measured |",
        "| --- | --- |",
        *(f"| {what} | {value} |" for what, value in rows(document)),
        "",
        "| goal | measured | at most | held |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(verdict)} |" for verdict in verdicts(document)),
    ]
    text = DOCS.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    DOCS.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}", encoding="utf-8")


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scenarios = ("large", "reclaims", "many")
    parser.add_argument("--only", default="", help=f"some of {','.join(scenarios)} (default: all)")
    parser.add_argument("--workers", type=int, default=2000, help="of the large job (default 2000)")
    parser.add_argument("--repeats", type=int, default=3, help="of the large job (default 3)")
    parser.add_argument("--notices", type=int, default=500, help="nodes that are reclaimed at once (default 500)")
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs are many (default 1000)")
    parser.add_argument("--size", type=int, default=16, help="workers of each of them (default 16)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds for which it is left alone (default 60)")
    parser.add_argument("--json", type=Path, help="also write the results to this file, after each scenario")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    chosen = tuple(filter(None, options.only.split(","))) or scenarios
    if unknown := set(chosen) - set(scenarios):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    for name in ("workers", "repeats", "notices", "jobs", "size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} has to be at least 1")
    document: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%d"),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "kubelets": "simulated (kwok)",
        "workers": options.workers,
    }
    begin = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begin:6.0f} s  {text}\n")

    with simulation(say) as simulated:
        say("the control plane is ready")
        runs: dict[str, Callable[[], Any]] = {
            "large": lambda: large(simulated, options.workers, options.repeats),
            "reclaims": lambda: reclaims(simulated, options.workers, options.notices),
            "many": lambda: many(simulated, options.jobs, options.size, options.idle),
        }
        for name in scenarios:
            if name in chosen:
                document[name] = runs[name]()
                if options.json:
                    options.json.write_text(json.dumps(document, indent=2) + "\n")
    show(document)
    if options.write_docs:
        write_docs(document)


if __name__ == "__main__":
    main()
