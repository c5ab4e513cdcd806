"""ElasticJobs as seen from outside the cluster: submit, wait, follow what the workers say.

The workers' progress lines are read through the pods' logs, the way `kubectl logs -f` does, so what is shown here went
through kubelet and API server like on any cluster.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import queue
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import httpx2
import lightkube
import yaml
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Event, Node, Pod
from lightkube.types import PatchType

from infra.clusters import Access
from infra.errors import TrainyardError
from infra.settings import YAML_MISTAKES

GROUP, VERSION, KIND = "elastic.pytorch.org", "v1alpha1", "ElasticJob"
API_VERSION = f"{GROUP}/{VERSION}"
ElasticJob = create_namespaced_resource(GROUP, VERSION, KIND, "elasticjobs")
JOB_LABEL = "elastic.pytorch.org/job-name"
WORKER_CONTAINER = "elasticjob-worker"

T = TypeVar("T")

_STAMPED = re.compile(
    r"(?P<seconds>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.(?P<fraction>\d+))?(?P<zone>Z|[+-]\d\d:\d\d)( |$)"
)
"""How a line of a log with times begins; the zone is that of the node's runtime."""
_OVER = ("Succeeded", "Failed")
"""Phases of a pod that holds nothing any more."""
_POLL = timedelta(seconds=0.5)
_FIELD_MANAGER = "trainyard"
# What an API server answers that is starting, ending or busy, or that has lost its store: asking again helps.
_PASSING = (429, 500, 502, 503, 504)
# What a request may raise: no answer or a refusal, no credentials, an answer that is none of Kubernetes.
_REQUEST_ERRORS = (httpx2.HTTPError, ConfigError, OSError, ValueError)
# What Kubernetes takes as the name of an object (RFC 1123 subdomain).
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def name_of(resource: Pod | GenericNamespacedResource) -> str:
    """The name of an object that the API server returned."""
    return str(resource.metadata.name) if resource.metadata else ""


class JobError(TrainyardError):
    """A job cannot be submitted, found or followed."""


class ApiServerAwayError(JobError):
    """The API server does not answer, or not as one that is ready; a later attempt may succeed."""


class NotInTimeError(JobError):
    """A job did not get so far in the time that it was given."""


@dataclass(frozen=True)
class Condition:
    """One condition of a job that holds."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Progress:
    """One progress line of a worker."""

    pod: str
    event: str
    """`step`, `resume`, `rendezvous`, `finished`, …"""
    time: float
    """Unix seconds, by the worker's clock."""
    fields: dict[str, Any]


@dataclass(frozen=True)
class LogLine:
    """One line of a worker's log."""

    pod: str
    time: str
    """RFC 3339, by the node's clock; empty for what the node itself says in the log's place."""
    moment: str
    """The same in UTC with all nine digits behind the point: as text, it sorts by time."""
    text: str

    @classmethod
    def read(cls, pod: str, line: str) -> LogLine:
        """A line that begins with its time."""
        found = _STAMPED.match(line)
        if found is None:
            return cls(pod, "", "", line)
        seconds = datetime.fromisoformat(found["seconds"] + found["zone"]).astimezone(UTC)
        moment = f"{seconds:%Y-%m-%dT%H:%M:%S}.{(found['fraction'] or '')[:9]:0<9}"
        return cls(pod, line[: found.end()].rstrip(" "), moment, line[found.end() :])


class Jobs:
    """The ElasticJobs of one namespace.

    Every method raises `ApiServerAwayError` where the API server does not answer, except those that wait: they go on
    until their time is over, so that a control plane may restart meanwhile.
    """

    def __init__(self, access: Access, namespace: str) -> None:
        """Read the kubeconfig; nothing is asked of the cluster yet.

        Raises:
            JobError: the kubeconfig cannot be used.
        """
        self.namespace = namespace
        self._access = access
        self._config = _context(access)
        self._client = self.new_client()

    def submit(self, path: Path, look: Callable[[list[dict[str, Any]]], None] = lambda _: None) -> list[str]:
        """Apply the ElasticJobs of a YAML file (server-side, so a second time changes nothing); their names.

        Never by force: a field that somebody has changed since (`kubectl scale`) stays theirs, and the file is refused
        with the way to either end. A job without a namespace goes to the stack's.

        Args:
            path: the file; it is read once.
            look: shown the jobs before any is submitted.

        Raises:
            JobError: the file holds anything but sound ElasticJobs for this namespace (then none is submitted), or the
                API server refuses one; its reasons are in the message.
        """
        jobs = _jobs_in(path, self.namespace)
        look(jobs)
        done: list[str] = []
        for job in jobs:
            name = job["metadata"]["name"]
            before = f" (submitted before it: {', '.join(done)})" if done else ""
            with self._plain(f"{path}: the API server refuses ElasticJob {name}{before}"):
                try:
                    self._client.patch(
                        ElasticJob,
                        name,
                        job,
                        namespace=self.namespace,
                        patch_type=PatchType.APPLY,
                        field_manager=_FIELD_MANAGER,
                    )
                except ApiError as error:
                    if theirs := _fields_of_others(error):
                        raise JobError(
                            f"{path}: ElasticJob {name} has been changed since by others: {'; '.join(theirs)}. To keep"
                            " their change, take these fields out of the file. To take them back: kubectl -n"
                            f" {self.namespace} apply --server-side --force-conflicts --field-manager={_FIELD_MANAGER}"
                            f" -f {shlex.quote(str(path))}"
                        ) from None
                    raise
                except RecursionError:
                    raise JobError(f"{path}: ElasticJob {name} contains itself (a YAML alias). Write it out.") from None
            done.append(name)
        return done

    def create(self, job: dict[str, Any]) -> None:
        """Submit a new job.

        Args:
            job: its manifest, of this namespace.

        Raises:
            JobError: there is a job of that name, or the API server refuses it.
        """
        with self._plain(f"the API server refuses ElasticJob {job['metadata']['name']}"):
            self._client.create(ElasticJob(**job), namespace=self.namespace)

    def create_with_script(self, job: dict[str, Any], script: ConfigMap) -> None:
        """Submit a new job whose program comes from a ConfigMap, which goes with the job.

        Args:
            job: its manifest, of this namespace.
            script: not there yet; the workers mount it.

        Raises:
            JobError: there is a job or a ConfigMap of that name, or the API server refuses one; then neither is left.
        """
        name = str(job["metadata"]["name"])
        with self._plain(f"the API server refuses the script of ElasticJob {name}"):
            made = self._client.create(script, namespace=self.namespace)
        map_name = str(made.metadata.name) if made.metadata else ""
        try:
            with self._plain(f"the API server refuses ElasticJob {name}"):
                created = self._client.create(ElasticJob(**job), namespace=self.namespace)
                uid = created.metadata.uid if created.metadata else None
                owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid}
                self._client.patch(
                    ConfigMap, map_name, {"metadata": {"ownerReferences": [owner]}}, namespace=self.namespace
                )
        except JobError:
            with contextlib.suppress(JobError), self._plain(f"the script of ElasticJob {name} cannot be removed"):
                self._client.delete(ConfigMap, map_name, namespace=self.namespace)
            raise

    def get(self, name: str) -> GenericNamespacedResource | None:
        """The job, or None."""
        with self._plain(f"ElasticJob {name} cannot be read"):
            try:
                return self._client.get(ElasticJob, name, namespace=self.namespace)
            except ApiError as error:
                if error.status.code == 404:
                    return None
                raise

    def all(self) -> list[GenericNamespacedResource]:
        """All jobs, by name."""
        with self._plain("ElasticJobs cannot be listed"):
            return sorted(self._client.list(ElasticJob, namespace=self.namespace), key=name_of)

    def delete(self, name: str) -> None:
        """Delete a job with its workers; one that is not there is fine. They end in the background: `wait_gone`."""
        with self._plain(f"ElasticJob {name} cannot be deleted"):
            try:
                self._client.delete(ElasticJob, name, namespace=self.namespace)
            except ApiError as error:
                if error.status.code != 404:
                    raise

    def scale(self, name: str, workers: int) -> None:
        """Set the number of workers, as `kubectl scale` does.

        Args:
            name: the job.
            workers: how many it shall have, within its minReplicas and maxReplicas.

        Raises:
            JobError: there is no such job, it has ended, it chooses its number itself (scaling mode Capacity), or the
                API server refuses the number.
        """
        job = self._living(name)
        scaling = (job.get("spec") or {}).get("scaling") or {}
        if scaling.get("mode") == "Capacity":
            raise JobError(
                f"ElasticJob {name} takes as many workers as there is room for (spec.scaling.mode is Capacity), so a"
                " number would change nothing. Set the mode to Manual in its file and submit it, then scale."
            )
        self._change(ElasticJob.Scale, name, {"spec": {"replicas": workers}}, f"scaled to {workers}")

    def suspend(self, name: str) -> None:
        """Have a job's workers save and end, and give their machines back; the job stays.

        Raises:
            JobError: there is no such job, or it has ended.
        """
        self._living(name)
        self._change(ElasticJob, name, {"spec": {"suspend": True}}, "suspended")

    def resume(self, name: str) -> None:
        """Have a suspended job train again, from its last checkpoint.

        Raises:
            JobError: there is no such job, or it has ended.
        """
        self._living(name)
        self._change(ElasticJob, name, {"spec": {"suspend": False}}, "resumed")

    def existing(self, name: str) -> GenericNamespacedResource:
        """The job.

        Raises:
            JobError: there is no such job.
        """
        job = self.get(name)
        if job is None:
            known = ", ".join(name_of(job) for job in self.all()) or "none"
            raise JobError(f"no ElasticJob {name} in namespace {self.namespace} (there: {known})")
        return job

    def conditions(self, name: str) -> list[Condition]:
        """The conditions of a job that hold now, newest last.

        Raises:
            JobError: there is no such job.
        """
        return self.conditions_of(self.existing(name))

    def _living(self, name: str) -> GenericNamespacedResource:
        job = self.existing(name)
        if end := ended(job):
            raise JobError(f"ElasticJob {name} has ended ({end.type}: {end.message}). Submit it under another name.")
        return job

    def _change(self, resource: Any, name: str, patch: dict[str, Any], what: str) -> None:
        """Change fields of a job; they are then no longer its file's: see `submit`."""
        with self._plain(f"ElasticJob {name} cannot be {what}"):
            self._client.patch(
                resource,
                name,
                patch,
                namespace=self.namespace,
                patch_type=PatchType.MERGE,
                field_manager=_FIELD_MANAGER,
            )

    def summaries(self) -> list[dict[str, Any]]:
        """Each job with its state in plain data."""
        rows = []
        for job in self.all():
            status: Any = job.status or {}
            state = self.conditions_of(job)
            rows.append(
                {
                    "job": name_of(job),
                    "state": state[-1].type if state else "Submitted",
                    "message": state[-1].message if state else "",
                    "desired": status.get("desiredReplicas", 0),
                    "ready": status.get("readyReplicas", 0),
                    "generation": status.get("generation", 0),
                }
            )
        return rows

    @staticmethod
    def conditions_of(job: GenericNamespacedResource) -> list[Condition]:
        """The conditions of a job that hold, the oldest first."""
        status: Any = job.status or {}
        return [
            Condition(c["type"], c.get("reason", ""), c.get("message", ""))
            for c in sorted(status.get("conditions") or [], key=lambda c: c.get("lastTransitionTime") or "")
            if c["status"] == "True"
        ]

    def wait(self, name: str, timeout: timedelta, on_change: Callable[[str], None] = lambda _: None) -> Condition:
        """Wait until a job has Succeeded or Failed.

        Args:
            name: the job.
            timeout: give up after this long.
            on_change: told, in a sentence, each new state: also a wait for capacity with its reason, and, once each
                time, that the API server does not answer.

        Raises:
            NotInTimeError: the job did not end in time.
            JobError: the job is gone.
        """
        return self._wait_for(name, ended, "did not end", timeout, on_change)

    def wait_size(self, name: str, workers: int, timeout: timedelta, on_change: Callable[[str], None]) -> None:
        """Wait until exactly so many workers of a job are ready; arguments as for `wait`.

        Raises:
            JobError: the job is gone, has ended, or did not get so far in time.
        """

        def has_the_size(job: GenericNamespacedResource) -> Literal[True] | None:
            status: Any = job.status or {}
            if end := ended(job):
                raise JobError(f"ElasticJob {name} has ended before it had {workers} workers ({end.type})")
            sizes = {status.get("desiredReplicas"), status.get("replicas", 0), status.get("readyReplicas", 0)}
            return True if sizes == {workers} and _is_current(job) else None

        self._wait_for(name, has_the_size, f"did not get {workers} workers", timeout, on_change)

    def wait_running(self, name: str, timeout: timedelta, on_change: Callable[[str], None]) -> None:
        """Wait until a job's fewest workers run; arguments as for `wait`.

        Raises:
            JobError: the job is gone, or did not get so far in time.
        """

        def runs(job: GenericNamespacedResource) -> Literal[True] | None:
            kinds = {condition.type for condition in self.conditions_of(job)} if _is_current(job) else set()
            return True if kinds & {"Running", "Succeeded", "Failed"} else None

        self._wait_for(name, runs, "does not run", timeout, on_change)

    def wait_stopped(self, name: str, timeout: timedelta, on_change: Callable[[str], None]) -> None:
        """Wait until a suspended job has no pod left that runs; arguments as for `wait`.

        Raises:
            JobError: the job is gone, or a worker was still there after the timeout.
        """

        def stopped(job: GenericNamespacedResource) -> Literal[True] | None:
            if not _is_current(job):
                return None
            return True if all(pod.status and pod.status.phase in _OVER for pod in self.workers(name)) else None

        self._wait_for(name, stopped, "has workers left", timeout, on_change)

    def _wait_for(
        self,
        name: str,
        found: Callable[[GenericNamespacedResource], T | None],
        failed: str,
        timeout: timedelta,
        on_change: Callable[[str], None],
    ) -> T:
        """What `found` finds in a job, sooner or later."""
        shown, away = "", ""
        for _ in _until(timeout):
            try:
                job = self.existing(name)
                if (there := found(job)) is not None:
                    return there
            except ApiServerAwayError as error:
                away = f": {error}"
                sentence = f"the API server at {self._server} does not answer; waiting for it"
            else:
                away, sentence = "", _state_of(job)
            if sentence != shown:
                on_change(sentence)
                shown = sentence
        raise NotInTimeError(
            f"ElasticJob {name} {failed} within {timeout}"
            + (away or f"; last state: {shown}. Look: kubectl -n {self.namespace} describe elasticjob {name}")
        )

    def wait_gone(self, name: str, timeout: timedelta) -> None:
        """Wait until a deleted job and all its workers are gone, so that its name is free again.

        Raises:
            JobError: something of it is left after the timeout.
        """
        left = ["nothing is known of it"]
        for _ in _until(timeout):
            try:
                left = [f"ElasticJob {name}"] if self.get(name) else []
                left += [f"pod {name_of(pod)}" for pod in self.workers(name)]
            except ApiServerAwayError as error:
                left = [str(error)]
            if not left:
                return
        raise JobError(
            f"ElasticJob {name} is not gone within {timeout}: {', '.join(left)}. Look: kubectl -n {self.namespace}"
            f" get elasticjobs,pods -l {JOB_LABEL}={name}"
        )

    def workers(self, name: str) -> list[Pod]:
        """The worker pods of a job."""
        return self.pods(self.namespace, {JOB_LABEL: name}, f"the workers of ElasticJob {name}")

    def pods(self, namespace: str, labels: dict[str, str], what: str = "pods") -> list[Pod]:
        """The pods of a namespace that have these labels.

        Args:
            namespace: of the cluster, not only that of the jobs.
            labels: all of them.
            what: they are, for the message where they cannot be listed.
        """
        with self._plain(f"{what} cannot be listed"):
            return list(self._client.list(Pod, namespace=namespace, labels={**labels}))

    def events(self, name: str) -> list[Event]:
        """What Kubernetes' parts said about a job and its workers in the last hour, the oldest first."""
        with self._plain(f"the events of ElasticJob {name} cannot be listed"):
            every = self._client.list(Event, namespace=self.namespace)
            own = [event for event in every if _is_about(event, name)]
        return sorted(own, key=last_seen)

    def nodes(self) -> list[Node]:
        """All machines of the cluster."""
        with self._plain("nodes cannot be listed"):
            return list(self._client.list(Node))

    def lease(self, namespace: str, name: str) -> Lease | None:
        """A Lease, by which one of several processes leads; None: there is none."""
        with self._plain(f"Lease {namespace}/{name} cannot be read"):
            try:
                return self._client.get(Lease, name, namespace=namespace)
            except ApiError as error:
                if error.status.code == 404:
                    return None
                raise

    def logs(self, name: str, last: int | None = None) -> list[list[LogLine]]:
        """What each worker of a job has written until now; workers that have not started are left out.

        Args:
            name: of the job.
            last: only so many lines of each worker, the newest.
        """
        with self._plain(f"the logs of ElasticJob {name} cannot be read"):
            started = [pod for pod in self.workers(name) if any(_containers_with_logs(pod))]
            return [list(_read(self._client, self.namespace, pod, tail_lines=last)) for pod in started]

    def follow(self, name: str) -> Follower:
        """Begin to read the progress lines of all workers of a job, those that come later included."""
        return Follower(self, name)

    def server_version(self) -> str:
        """The API server's own: `v1.36.3`.

        Raises:
            JobError: it refuses to tell.
        """
        parameters = client_adapter.ConnectionParams(trust_env=not _is_loopback(self._server))
        with (
            self._plain("the API server's version cannot be read"),
            client_adapter.Client(self._config, parameters) as http,
        ):
            answer = http.get("/version")
            answer.raise_for_status()
            return str(answer.json()["gitVersion"])

    def new_client(self) -> lightkube.Client:
        """A client of one's own: each serves one thread.

        Raises:
            JobError: the kubeconfig cannot be used.
        """
        try:
            # A proxy of the user's environment leads away from this computer: not to a server on it.
            return lightkube.Client(config=self._config, trust_env=not _is_loopback(self._server))
        except Exception as error:  # noqa: BLE001 - whatever the HTTP and TLS libraries find wrong in it
            raise JobError(f"kubeconfig {self._access.path} cannot be used: {_reason(error)}") from None

    @property
    def _server(self) -> str:
        return str(self._config.cluster.server)

    @contextlib.contextmanager
    def _plain(self, failed: str) -> Iterator[None]:
        """Turn what a request may raise into plain errors; `failed` begins the sentence."""
        try:
            yield
        except httpx2.HTTPStatusError as error:
            said = error.status.message if isinstance(error, ApiError) else str(error)
            if error.response.status_code in _PASSING:
                raise ApiServerAwayError(
                    f"{failed}: the API server at {self._server} is not ready: {said}. {self._access.remedy}"
                ) from None
            remedy = f". {self._access.remedy}" if error.response.status_code == 404 else ""
            raise JobError(f"{failed}: {said}{remedy}") from None
        except httpx2.HTTPError as error:
            raise ApiServerAwayError(
                f"the API server at {self._server} does not answer: {_reason(error)}. {self._access.remedy}"
            ) from None
        except (ConfigError, OSError) as error:  # a program that the kubeconfig names for credentials
            raise JobError(f"{failed}: kubeconfig {self._access.path} gives no credentials: {_reason(error)}") from None
        except ValueError as error:
            raise JobError(
                f"{failed}: {self._server} answers what no Kubernetes API server does: {_reason(error)}."
                f" {self._access.remedy}"
            ) from None


def _state_of(job: GenericNamespacedResource) -> str:
    """A job's state in a sentence: what it waits for, where it waits."""
    status: Any = job.status or {}
    held = {c["type"]: c for c in status.get("conditions") or []}
    conditions = Jobs.conditions_of(job)
    waiting = [condition for condition in conditions if condition.type == "WaitingForCapacity"]
    current = (waiting or conditions or [Condition("Submitted", "", "")])[-1]
    message = current.message
    if not waiting and held.get("Running", {}).get("status") == "False":
        message = held["Running"].get("message") or message
    return current.type + (f": {message}" if message else "")


def ended(job: GenericNamespacedResource) -> Condition | None:
    """How a job has ended; None while it lives."""
    ends = [condition for condition in Jobs.conditions_of(job) if condition.type in ("Succeeded", "Failed")]
    return ends[-1] if ends else None


def last_seen(event: Event) -> datetime:
    """When an event happened the last time."""
    times = [event.lastTimestamp, event.eventTime, event.metadata.creationTimestamp if event.metadata else None]
    return max((time for time in times if time is not None), default=datetime.min.replace(tzinfo=UTC))


def _is_about(event: Event, job: str) -> bool:
    about = event.involvedObject
    if about.kind == KIND:
        return about.name == job
    return about.kind == "Pod" and (about.name or "").startswith(f"{job}-worker-")


def _is_current(job: GenericNamespacedResource) -> bool:
    """Whether the controller's status answers the job as it is now."""
    status: Any = job.status or {}
    now = job.metadata.generation if job.metadata else None
    return now is None or status.get("observedGeneration", 0) >= now


class Logs:
    """Reads the logs of a job's workers as they are written, each worker in a thread of its own."""

    def __init__(self, jobs: Jobs, name: str, take: Callable[[LogLine], None]) -> None:
        """Begin to read; workers that come later are included.

        Args:
            jobs: where the job is.
            name: the job.
            take: given each line once, the past first; those of one worker come in their order, and those of different
                workers from different threads.
        """
        self._jobs, self._name, self._take = jobs, name, take
        self._positions: dict[str, tuple[str, int]] = {}
        """By container: the time of the last line that was taken, and how many of that time were."""
        self._reading: set[str] = set()
        self._ended: set[str] = set()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch_workers, daemon=True, name=f"workers of {name}").start()

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()

    def has_read_to_the_end(self, pod: Pod) -> bool:
        """Whether every line of a pod has been taken, because its container has ended."""
        return all(identity in self._ended for identity, _ in _containers_with_logs(pod))

    def _watch_workers(self) -> None:
        with self._jobs.new_client() as client:
            while not self._stopped.is_set():
                # Where the API server is restarting, the next look finds them again.
                with contextlib.suppress(*_REQUEST_ERRORS):
                    for pod in client.list(Pod, namespace=self._jobs.namespace, labels={JOB_LABEL: self._name}):
                        self._read_containers(pod)
                self._stopped.wait(_POLL.total_seconds())

    def _read_containers(self, pod: Pod) -> None:
        for identity, runs in _containers_with_logs(pod):
            if identity in self._reading or identity in self._ended:
                continue
            self._reading.add(identity)
            threading.Thread(target=self._read_log, args=(pod, identity, runs), daemon=True).start()

    def _read_log(self, pod: Pod, identity: str, runs: bool) -> None:
        """Read a container's log to its end, or until the stream breaks: then it is read again.

        A stream may also end as if it were the log's end, when the API server is told to stop. So it is the end only
        for a container that had ended before.
        """
        try:
            with self._jobs.new_client() as client:
                for line in self._new(identity, _read(client, self._jobs.namespace, pod, follow=True)):
                    if self._stopped.is_set():
                        return
                    self._take(line)
            if not runs:
                self._ended.add(identity)
        except (*_REQUEST_ERRORS, JobError):
            pass  # the next look finds the container again, if it still is there
        finally:
            self._reading.discard(identity)

    def _new(self, identity: str, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """What was not taken yet, of a log that is read from its beginning.

        By time, not by number: the node may have put the oldest lines aside meanwhile.
        """
        last, known = self._positions.get(identity, ("", 0))
        beyond = not last
        for line in lines:
            if not beyond:
                if line.moment < last:
                    continue
                if line.moment == last and known > 0:
                    known -= 1
                    continue
                beyond = True
            if line.moment:
                moment, number = self._positions.get(identity, ("", 0))
                self._positions[identity] = (line.moment, number + 1 if line.moment == moment else 1)
            yield line


def _read(client: lightkube.Client, namespace: str, pod: Pod, **options: Any) -> Iterator[LogLine]:
    name = name_of(pod)
    for line in client.log(
        name, namespace=namespace, container=main_container(pod), timestamps=True, newlines=False, **options
    ):
        yield LogLine.read(name, line)


def main_container(pod: Pod) -> str:
    """The container of a worker in which the launcher runs: the one of that name, else the first."""
    names = [container.name for container in pod.spec.containers] if pod.spec else []
    return WORKER_CONTAINER if WORKER_CONTAINER in names or not names else names[0]


def _containers_with_logs(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The main container's run of a pod, and whether it goes on; nothing where it has not started."""
    main = main_container(pod)
    for container in (pod.status.containerStatuses or []) if pod.status else []:
        if container.containerID and container.name == main:
            yield container.containerID, container.state is not None and container.state.running is not None


class Follower:
    """The progress lines of a job's workers, as they are written."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        self._events: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._logs = Logs(jobs, name, self._take)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._logs.stop()

    def events(self, timeout: timedelta) -> Iterator[Progress]:
        """Progress lines as they arrive, those of the past first; ends when the timeout has passed.

        Lines of one worker come in their order, lines of different workers in any.
        """
        end = time.monotonic() + timeout.total_seconds()
        while (left := end - time.monotonic()) > 0:
            try:
                yield self._events.get(timeout=min(left, 1.0))
            except queue.Empty:
                continue

    def _take(self, line: LogLine) -> None:
        if event := parse_progress(line.pod, line.text):
            self._events.put(event)


def _until(timeout: timedelta) -> Iterator[None]:
    """Attempts at an interval until the timeout; one at least."""
    end = time.monotonic() + timeout.total_seconds()
    while True:
        yield
        if (left := end - time.monotonic()) <= 0:
            return
        time.sleep(min(_POLL.total_seconds(), left))


def _jobs_in(path: Path, namespace: str) -> list[dict[str, Any]]:
    """The ElasticJobs of a file, which must hold nothing else."""
    try:
        documents = [doc for doc in yaml.safe_load_all(path.read_text(encoding="utf-8")) if doc is not None]
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobError(f"{path} is not UTF-8 text, so no YAML file of ElasticJobs") from None
    except YAML_MISTAKES as error:
        raise JobError(f"{path} is not YAML: {error}") from None
    kinds = [_kind_of(document) for document in documents]
    if strangers := [kind for kind in kinds if kind != KIND]:
        raise JobError(
            f"{path} holds more than ElasticJobs: {', '.join(strangers)}. Nothing was submitted: apply those with"
            " kubectl, from a file of their own."
        )
    if not documents:
        raise JobError(f"{path} holds no ElasticJob (kind: {KIND}, apiVersion: {API_VERSION})")
    for job in documents:
        name = _checked_name(job, path)
        if job.get("apiVersion") != API_VERSION:
            raise JobError(
                f"{path}: apiVersion of ElasticJob {name} is {job.get('apiVersion')}: it must be {API_VERSION}."
                " Nothing was submitted."
            )
        if (wanted := job["metadata"].get("namespace") or namespace) != namespace:
            raise JobError(
                f"{path}: ElasticJob {name} is for namespace {wanted}, and this stack keeps its jobs in {namespace}."
                " Nothing was submitted. Take metadata.namespace out of the file, or choose the stack of that namespace"
                " with -s."
            )
        job["metadata"]["namespace"] = namespace
    return documents


def _checked_name(job: dict[str, Any], path: Path) -> str:
    metadata = job.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    given = "is missing" if name is None else f"is {name!r}"
    raise JobError(
        f"{path}: metadata.name of an ElasticJob {given}: it must be text of lower-case letters, digits, '-' and '.'"
        " (a number in quotes). Nothing was submitted."
    )


def _kind_of(document: Any) -> str:
    """What a document is, for people."""
    kind = document.get("kind") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else "a document without a kind"


def _fields_of_others(error: ApiError) -> list[str]:
    """What made a server-side apply conflict: `.spec.replicas (conflict with "kubectl" …)`; empty for other errors."""
    causes = (error.status.details.causes or []) if error.status.code == 409 and error.status.details else []
    return [f"{cause.field} ({cause.message})" for cause in causes if cause.reason == "FieldManagerConflict"]


def _context(access: Access) -> SingleConfig:
    """The part of a kubeconfig that is meant.

    Raises:
        JobError: there is no such part, or the file is no kubeconfig.
    """
    try:
        document = yaml.safe_load(access.path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"kubeconfig {access.path} cannot be read: {error.strerror}. {access.remedy}") from None
    except YAML_MISTAKES as error:
        raise JobError(f"kubeconfig {access.path} is not YAML: {error}") from None
    parts = ("clusters", "contexts")
    if not isinstance(document, dict) or not all(isinstance(document.get(part), list) for part in parts):
        raise JobError(f"{access.path} is no kubeconfig: it has no lists `clusters` and `contexts`. {access.remedy}")
    known = [str(entry.get("name")) for entry in document["contexts"] if isinstance(entry, dict)]
    chosen = access.context or document.get("current-context")
    if chosen not in known:
        missing = f"no context {chosen!r}" if chosen else "no current-context"
        raise JobError(
            f"kubeconfig {access.path} has {missing} (there: {', '.join(known) or 'none'})."
            " Name one of them: trainyard:kubeconfig.context"
        )
    try:
        config = lightkube.KubeConfig.from_dict(document, fname=access.path).get(chosen)
    except KeyError as error:
        raise JobError(
            f"kubeconfig {access.path}: context {chosen!r} needs {error}, which is not in the file"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever lightkube's decoder finds wrong in it
        raise JobError(f"kubeconfig {access.path} cannot be used: {_reason(error)}") from None
    if config is None or config.user is None:
        raise JobError(f"kubeconfig {access.path}: context {chosen!r} names no user")
    return config


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def parse_progress(pod: str, line: str) -> Progress | None:
    """A progress line of the training runtime; None for any other output."""
    if not line.startswith('{"trainyard"'):
        return None
    try:
        fields = json.loads(line)
        return Progress(pod, str(fields.pop("trainyard")), float(fields.pop("time")), fields)
    except (ValueError, KeyError, TypeError):
        return None
