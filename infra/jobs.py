"""ElasticJobs as seen from outside the cluster: submit, wait, follow what the workers say.

The workers' progress lines are read through the pods' logs, the way `kubectl logs -f` does, so what is shown here went
through kubelet and API server like on any cluster.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import lightkube
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from infra.clusters import Access
from infra.errors import TrainyardError

ElasticJob = create_namespaced_resource("elastic.pytorch.org", "v1alpha1", "ElasticJob", "elasticjobs")
JOB_LABEL = "elastic.pytorch.org/job-name"
WORKER_CONTAINER = "elasticjob-worker"

_POLL = timedelta(seconds=0.5)
_FIELD_MANAGER = "trainyard"


def name_of(resource: Pod | GenericNamespacedResource) -> str:
    """The name of an object that the API server returned."""
    return str(resource.metadata.name) if resource.metadata else ""


class JobError(TrainyardError):
    """A job cannot be submitted, found or followed."""


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


class Jobs:
    """The ElasticJobs of one namespace."""

    def __init__(self, access: Access, namespace: str) -> None:
        config = lightkube.KubeConfig.from_file(access.path)
        self.namespace = namespace
        self._config = config.get(access.context)
        self._client = self._new_client()

    def submit(self, path: Path) -> list[str]:
        """Apply the ElasticJobs of a YAML file (server-side, so a second time changes nothing); their names.

        Raises:
            JobError: the file has none, or the API server refuses one; its reasons are in the message.
        """
        try:
            documents = [doc for doc in yaml.safe_load_all(path.read_text(encoding="utf-8")) if doc]
        except OSError as error:
            raise JobError(f"{path} cannot be read: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise JobError(f"{path} is not YAML: {error}") from None
        jobs = [doc for doc in documents if isinstance(doc, dict) and doc.get("kind") == "ElasticJob"]
        if not jobs:
            raise JobError(f"{path} holds no ElasticJob (kind: ElasticJob, apiVersion: elastic.pytorch.org/v1alpha1)")
        names = []
        for job in jobs:
            metadata = job.setdefault("metadata", {})
            name = metadata.get("name")
            if not name:
                raise JobError(f"{path}: an ElasticJob has no metadata.name")
            metadata.setdefault("namespace", self.namespace)
            try:
                self._client.patch(
                    ElasticJob,
                    name,
                    job,
                    namespace=metadata["namespace"],
                    patch_type=PatchType.APPLY,
                    field_manager=_FIELD_MANAGER,
                    force=True,
                )
            except ApiError as error:
                raise JobError(f"{path}: the API server refuses ElasticJob {name}: {error.status.message}") from None
            names.append(name)
        return names

    def get(self, name: str) -> GenericNamespacedResource | None:
        """The job, or None."""
        try:
            return self._client.get(ElasticJob, name, namespace=self.namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise JobError(f"ElasticJob {name} cannot be read: {error.status.message}") from None

    def all(self) -> list[GenericNamespacedResource]:
        """All jobs, by name."""
        try:
            return sorted(self._client.list(ElasticJob, namespace=self.namespace), key=name_of)
        except ApiError as error:
            raise JobError(f"ElasticJobs cannot be listed: {error.status.message}") from None

    def delete(self, name: str) -> None:
        """Delete a job with its workers; one that is not there is fine."""
        try:
            self._client.delete(ElasticJob, name, namespace=self.namespace)
        except ApiError as error:
            if error.status.code != 404:
                raise JobError(f"ElasticJob {name} cannot be deleted: {error.status.message}") from None

    def conditions(self, name: str) -> list[Condition]:
        """The conditions of a job that hold now, newest last.

        Raises:
            JobError: there is no such job.
        """
        job = self.get(name)
        if job is None:
            known = ", ".join(name_of(job) for job in self.all()) or "none"
            raise JobError(f"no ElasticJob {name} in namespace {self.namespace} (there: {known})")
        return self.conditions_of(job)

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
            on_change: told, in a sentence, each new state, a wait for capacity with its reason among them.

        Raises:
            JobError: the job is gone, or did not end in time.
        """
        end, shown = time.monotonic() + timeout.total_seconds(), ""
        while time.monotonic() < end:
            conditions = self.conditions(name)
            ended = [c for c in conditions if c.type in ("Succeeded", "Failed")]
            if ended:
                return ended[-1]
            waiting = [c for c in conditions if c.type == "WaitingForCapacity"]
            current = (waiting or conditions or [Condition("Submitted", "", "")])[-1]
            sentence = current.type + (f": {current.message}" if current.message else "")
            if sentence != shown:
                on_change(sentence)
                shown = sentence
            time.sleep(_POLL.total_seconds())
        raise JobError(
            f"ElasticJob {name} did not end within {timeout}; last state: {shown}."
            f" Look: kubectl -n {self.namespace} describe elasticjob {name}"
        )

    def workers(self, name: str) -> list[Pod]:
        """The worker pods of a job."""
        return list(self._client.list(Pod, namespace=self.namespace, labels={JOB_LABEL: name}))

    def follow(self, name: str) -> Follower:
        """Begin to read the progress lines of all workers of a job, those that come later included."""
        return Follower(self, name)

    def _new_client(self) -> lightkube.Client:
        # No read timeout: a followed log may be silent for long.
        return lightkube.Client(config=self._config, timeout=httpx2.Timeout(10.0, read=None))


class Follower:
    """Reads the logs of a job's workers as they are written, each worker in a thread of its own."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        self._jobs, self._name = jobs, name
        self._events: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._read: set[str] = set()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch_workers, daemon=True, name=f"workers of {name}").start()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def events(self, timeout: timedelta) -> Iterator[Progress]:
        """Progress lines as they arrive; ends when the timeout has passed."""
        end = time.monotonic() + timeout.total_seconds()
        while (left := end - time.monotonic()) > 0:
            try:
                yield self._events.get(timeout=min(left, 1.0))
            except queue.Empty:
                continue

    def _watch_workers(self) -> None:
        client = self._jobs._new_client()  # noqa: SLF001 - a client serves one thread
        while not self._stopped.is_set():
            try:
                pods = list(client.list(Pod, namespace=self._jobs.namespace, labels={JOB_LABEL: self._name}))
            except (ApiError, httpx2.HTTPError):
                pods = []  # the API server is restarting: the next look finds them again
            for pod in pods:
                for container in (pod.status.containerStatuses or []) if pod.status else []:
                    identity = container.containerID
                    if identity and identity not in self._read:
                        self._read.add(identity)
                        arguments = (name_of(pod), identity)
                        threading.Thread(target=self._read_log, args=arguments, daemon=True).start()
            self._stopped.wait(_POLL.total_seconds())

    def _read_log(self, pod: str, identity: str) -> None:
        client = self._jobs._new_client()  # noqa: SLF001
        try:
            for line in client.log(pod, namespace=self._jobs.namespace, container=WORKER_CONTAINER, follow=True):
                if self._stopped.is_set():
                    return
                if event := parse_progress(pod, line):
                    self._events.put(event)
        except (ApiError, httpx2.HTTPError):
            # The stream broke (API server or node restarted): read this container again if it still is there.
            self._read.discard(identity)


def parse_progress(pod: str, line: str) -> Progress | None:
    """A progress line of the training runtime; None for any other output."""
    if not line.startswith('{"trainyard"'):
        return None
    try:
        fields = json.loads(line)
        return Progress(pod, str(fields.pop("trainyard")), float(fields.pop("time")), fields)
    except (ValueError, KeyError):
        return None
