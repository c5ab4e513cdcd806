"""`python -m training.controller`: informers, queue, leader election, health, and a clean end."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube.core.exceptions import ConfigError

from training.controller import client
from training.controller.api import FINALIZER, Phase
from training.controller.client import CONFLICT, NOT_FOUND, Api, code_of, explain
from training.controller.executor import Executor, RefusedError
from training.controller.health import HealthServer
from training.controller.lease import LeaderLease
from training.controller.metrics import Histogram, label, metric
from training.controller.pods import RendezvousLogin
from training.controller.queue import KeyQueue
from training.controller.records import KNOWN_NOTICES, Notices
from training.controller.served import ELASTIC, PYTORCH, Served
from training.controller.store import Store

log = logging.getLogger("training.controller")

WORKERS = 8
"""Jobs that are worked on at the same time."""
EXIT_USAGE = 2
_WANTS_NO_WORKERS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.COMPLETING, Phase.SUSPENDED})
SHUTDOWN_SECONDS = 5.0
"""Time for calls in flight at the end, and for giving up the lease."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what was passed as `extra` stands beside the message."""

    _STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
        }
        entry |= {key: value for key, value in record.__dict__.items() if key not in self._STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class Controller:
    """The running controller."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str | None,
        lease_namespace: str,
        identity: str,
        login: RendezvousLogin | None = None,
        notices: Notices = KNOWN_NOTICES,
        deployment: str | None = None,
        served: Served = ELASTIC,
    ) -> None:
        self._api = api
        self._deployment = deployment
        self._served = served
        self._queue = KeyQueue()
        self._store = Store(api, served, self._due, namespace, self._edited, notices)
        self._executor = Executor(api, self._store, identity, login, served)
        self._lease = LeaderLease(api, lease_namespace, served.lease, identity)
        self._leading = False
        self._errors = 0
        self._passes = Histogram("trainyard_pass_seconds", "Time of a pass over a job, with its calls.")

    @property
    def ready(self) -> bool:
        """Whether it knows the cluster, as leader or in waiting."""
        return all(informer.synced.is_set() for informer in self._store.informers)

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set."""
        informers = [asyncio.create_task(informer.run()) for informer in self._store.informers]
        election = asyncio.create_task(self._lead())
        stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([election, stopping, *informers], return_when=asyncio.FIRST_COMPLETED)
            for task in informers:
                if task.done():
                    task.result()  # informers end by nothing but a bug: let it be seen
            if election.done():
                election.result()
        finally:
            self._leading = False
            self._executor.below.forget_all()
            tasks = (election, stopping, *informers)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=SHUTDOWN_SECONDS)
            await self._lease.release()
            if stop.is_set():
                await self._let_go_if_removed()

    async def _let_go_if_removed(self) -> None:
        """A controller that is removed takes its finalizers with it: pods and namespaces would wait for ever."""
        if self._deployment is None:
            return
        try:
            if await self._removed(self._deployment):
                await self._executor.release_all()
        except httpx2.HTTPError as error:
            log.warning(
                "cannot let worker pods go: %s. If no controller follows, take the finalizer %s off them (how: "
                "docs/decisions/0004-books-of-the-controller.md)",
                explain(error),
                FINALIZER,
            )

    async def _removed(self, deployment: str) -> bool:
        try:
            found = await self._api.get(client.Deployment, self._api.namespace, deployment)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != NOT_FOUND:
                raise
            return True
        return "deletionTimestamp" in found["metadata"]

    async def _lead(self) -> None:
        await self._store.wait_synced()
        while True:
            await self._lease.acquire()
            self._leading = True
            self._executor.forget_all()
            for key in self._store.jobs.all():
                self._queue.add(key)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._work()) for _ in range(WORKERS)]
                tasks.append(group.create_task(self._executor.run_events()))
                await self._lease.hold()
                self._leading = False
                self._executor.below.forget_all()
                log.warning("the lease is lost: another controller may lead now, so this one stops acting")
                for task in tasks:
                    task.cancel()

    def _due(self, key: str, delay: float) -> None:
        if self._leading:  # one that waits would gather the keys of all jobs there ever were; the new leader takes all
            self._queue.add(key, delay)

    def _edited(self, key: str) -> None:
        if self._leading:
            self._queue.forgive(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            began = time.monotonic()
            try:
                result = await self._executor.reconcile(key)
            except RefusedError as error:
                wait = self._queue.failed(key)
                log.warning("%s; next try in %.1f s", error, wait, extra={"job": key})
            except (httpx2.HTTPError, TimeoutError) as error:
                wait = self._queue.failed(key)
                if code_of(error) == CONFLICT:
                    log.debug("the job has changed meanwhile; next try in %.1f s", wait, extra={"job": key})
                    continue
                self._errors += 1
                log.warning("call failed: %s; next try in %.1f s", explain(error), wait, extra={"job": key})
            except asyncio.CancelledError:
                self._queue.done(key)
                self._queue.add(key)
                raise
            except Exception:  # one job's trouble must not stop the others
                self._errors += 1
                wait = self._queue.failed(key)
                log.exception("planning failed; next try in %.1f s", wait, extra={"job": key})
            else:
                self._passes.observe(time.monotonic() - began)
                self._queue.done(key, result.planning_seconds)
                if self._store.jobs.get(key) is None:
                    self._queue.forget(key)
                elif result.look_again_after is not None:
                    self._queue.add(key, result.look_again_after)

    def metrics(self) -> str:
        """Prometheus' text format."""
        jobs: dict[str, int] = {}
        desired: dict[str, float] = {}
        ready: dict[str, float] = {}
        missing = 0
        for record in self._store.jobs:
            if record.job is not None:
                if record.job.status.phase not in _WANTS_NO_WORKERS:
                    labels = f'namespace="{record.job.metadata.namespace}",training_job="{record.job.metadata.name}"'
                    desired[labels] = record.job.status.desired_replicas
                    ready[labels] = record.job.status.ready_replicas
                missing += max(0, record.job.status.desired_replicas - record.job.status.ready_replicas)
            phase = str(record.job.status.phase or "Pending") if record.job is not None else "Unreadable"
            jobs[phase] = jobs.get(phase, 0) + 1
        lines = [
            metric("trainyard_controller_leader", "gauge", "1 while this process leads.", {"": int(self._leading)}),
            metric(
                f"trainyard_{self._served.gauge}",
                "gauge",
                "Jobs by phase.",
                {f'phase="{k}"': v for k, v in jobs.items()},
            ),
            metric("trainyard_job_workers_desired", "gauge", "Workers that a job wants.", desired),
            metric("trainyard_job_workers_ready", "gauge", "Workers of a job that are ready.", ready),
            metric("trainyard_worker_pods", "gauge", "Worker pods known.", {"": len(self._store.pods.all())}),
            metric("trainyard_workers_missing", "gauge", "Workers wanted that are not ready.", {"": missing}),
            metric("trainyard_queue_length", "gauge", "Jobs waiting to be looked at.", {"": len(self._queue)}),
            metric("trainyard_plans_total", "counter", "Plans made.", {"": self._executor.plans}),
            metric("trainyard_plan_seconds_total", "counter", "Time spent planning.", {"": self._executor.seconds}),
            metric("trainyard_errors_total", "counter", "Passes that failed.", {"": self._errors}),
            metric(
                "trainyard_lists_total",
                "counter",
                "Full lists read; each after the first of a kind stands for a watch that could not be resumed.",
                {"": sum(informer.relists for informer in self._store.informers)},
            ),
            metric(
                "trainyard_api_calls_total",
                "counter",
                "Calls to the API server.",
                {f'verb="{verb}",resource="{resource}"': n for (verb, resource), n in self._api.calls.items()},
            ),
            metric(
                "trainyard_job_events_total",
                "counter",
                "What happened to jobs, by reason; told as events too, but there repetitions are left out.",
                {f'reason="{reason}"': n for reason, n in self._executor.happened.items()},
            ),
            metric(
                "trainyard_worker_restarts_total",
                "counter",
                "Workers that failed, charged to backoffLimit, by cause.",
                {label("cause", loss.cause): n for loss, n in self._executor.losses.items() if loss.charged},
            ),
            metric(
                "trainyard_worker_disruptions_total",
                "counter",
                "Workers lost without being charged, by cause.",
                {label("cause", loss.cause): n for loss, n in self._executor.losses.items() if not loss.charged},
            ),
            metric(
                "trainyard_scalings_total",
                "counter",
                "Changes of the number of workers that a job aims at.",
                {label("direction", which): n for which, n in self._executor.scalings.items()},
            ),
            metric(
                "trainyard_jobs_below_desired",
                "gauge",
                "Jobs with fewer ready workers than they aim at.",
                {"": len(self._executor.below)},
            ),
            metric(
                "trainyard_below_desired_seconds_total",
                "counter",
                "Time for which jobs had fewer ready workers than they aim at, of all jobs together.",
                {"": self._executor.below.seconds},
            ),
            str(self._queue.waits),
            str(self._passes),
            str(self._executor.replacements),
        ]
        return "".join(lines).replace(ELASTIC.metrics, self._served.metrics)


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m training.controller",
        description="Serves ElasticJob objects: keeps the workers of elastic training jobs running.",
        epilog="In a cluster it needs no option. On a computer with a kubeconfig: KUBECONFIG=... python -m "
        "training.controller --namespace training --metrics-port 0 --lease-namespace default",
    )
    parser.add_argument("--namespace", help="look after jobs of this namespace only (default: all)")
    parser.add_argument("--lease-namespace", help="namespace of the leader Lease (default: the pod's own)")
    parser.add_argument(
        "--deployment",
        metavar="NAME",
        help="the controller's own Deployment: when it is deleted, worker pods are let go (default: they are not)",
    )
    parser.add_argument(
        "--metrics-port", type=int, default=8080, help="port of /healthz, /readyz, /metrics (default 8080)"
    )
    parser.add_argument(
        "--metrics-address",
        default=default_address(),
        help="address to listen on (default: in a cluster the pod's own, else 127.0.0.1)",
    )
    parser.add_argument(
        "--rendezvous-secret",
        help="Secret of the jobs' namespaces with which workers log in to etcd (default: etcd asks for nothing)",
    )
    parser.add_argument(
        "--rendezvous-host", help="host of that etcd; jobs that meet elsewhere do not get the Secret's password"
    )
    for what, meaning in (
        ("taint", "key of a taint"),
        ("condition", "type of a condition that is True then"),
        ("annotation", "key of an annotation"),
    ):
        parser.add_argument(
            f"--notice-{what}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"{meaning} that announces a node's end, besides those that are known; can be given several times",
        )
    parser.add_argument(
        "--pytorch-jobs",
        action="store_true",
        help="serve PyTorchJobs (kubeflow.org/v1) too, where no training operator runs",
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    args = parser.parse_args(argv)
    if bool(args.rendezvous_secret) != bool(args.rendezvous_host):
        parser.error("--rendezvous-secret and --rendezvous-host belong together; one is missing")
    return args


def notices_of(args: argparse.Namespace) -> Notices:
    """What announces the end of a node: what is known, and what the command line adds."""
    known = KNOWN_NOTICES
    return Notices(
        known.taints | set(args.notice_taint),
        known.conditions | set(args.notice_condition),
        known.annotations | set(args.notice_annotation),
    )


def default_address() -> str:
    """Where to listen: the pod's address only, for pods of the local cluster share one network with this computer."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return "127.0.0.1"
    try:
        return os.environ.get("POD_IP") or socket.gethostbyname(os.environ.get("HOSTNAME") or socket.gethostname())
    except OSError:
        return "0.0.0.0"  # noqa: S104 -- a pod whose hosts file does not name it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the controller; returns the exit code."""
    args = parse_args(sys.argv[1:] if argv is None else argv)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=args.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx2").setLevel("WARNING")
    logging.getLogger("httpcore2").setLevel("WARNING")
    return asyncio.run(_run(args))


def _complain(sentence: str) -> None:
    """A user's mistake: a sentence, without a traceback."""
    log.error(sentence)


async def _run(args: argparse.Namespace) -> int:
    kinds = (ELASTIC, PYTORCH) if args.pytorch_jobs else (ELASTIC,)
    try:
        apis = [Api() for _ in kinds]  # each with connections and a limit of its own: neither waits for the other
    except (ConfigError, OSError, KeyError) as error:
        _complain(f"no cluster to connect to: {error}. Run it in a cluster, or set KUBECONFIG to a kubeconfig file")
        return EXIT_USAGE
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    login = RendezvousLogin(args.rendezvous_secret, args.rendezvous_host) if args.rendezvous_secret else None
    controllers = [
        Controller(
            api,
            namespace=args.namespace,
            lease_namespace=args.lease_namespace or api.namespace,
            identity=identity,
            login=login,
            notices=notices_of(args),
            deployment=args.deployment,
            served=served,
        )
        for api, served in zip(apis, kinds, strict=True)
    ]
    health = HealthServer(
        lambda: all(controller.ready for controller in controllers),
        lambda: "".join(controller.metrics() for controller in controllers),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        port = await health.start(args.metrics_address, args.metrics_port)
    except OSError as error:
        _complain(
            f"cannot listen on {args.metrics_address}:{args.metrics_port}: {error}. Choose another with --metrics-port"
        )
        for api in apis:
            await api.close()
        return EXIT_USAGE
    log.info("started", extra={"identity": identity, "port": port, "namespace": args.namespace or "all"})
    try:
        async with asyncio.TaskGroup() as group:
            for controller in controllers:
                group.create_task(controller.run(stop))
    finally:
        health.close()
        for api in apis:
            await api.close()
    log.info("stopped")
    return 0
