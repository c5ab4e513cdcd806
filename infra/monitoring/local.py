"""Prometheus beside a local stack: the same targets and rules as in a cluster, found through the Kubernetes API."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from infra.errors import TrainyardError
from infra.monitoring.rules import SECONDS, Limits, groups
from infra.monitoring.scraping import JOB_LABEL, TARGETS, Target

if TYPE_CHECKING:
    from lightkube.models.core_v1 import Container
    from lightkube.resources.core_v1 import Pod

_SCRAPE_SECONDS = 5
"""More often than in a cluster: somebody is looking."""
_READY_SECONDS = 120.0
_ENDING_SECONDS = 20.0


class MonitoringError(TrainyardError):
    """Prometheus does not run as it should."""


def configuration(folder: Path) -> dict[str, Any]:
    """Prometheus' configuration: a file of targets for each kind of them, and the rules."""
    return {
        "global": {"scrape_interval": f"{_SCRAPE_SECONDS}s", "evaluation_interval": f"{SECONDS}s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {
                "job_name": target.name,
                "honor_labels": target.own_namespace,
                "file_sd_configs": [{"files": [str(folder / _file(target))], "refresh_interval": "5s"}],
            }
            for target in TARGETS
        ],
    }


def targets_of(target: Target, pods: Iterable[Pod]) -> list[dict[str, Any]]:
    """The addresses of one kind of target, with their labels, as Prometheus reads them from a file."""
    found = []
    for pod in pods:
        if pod.metadata is None or pod.spec is None or pod.status is None:
            continue
        name, namespace, labels = pod.metadata.name, pod.metadata.namespace or "", pod.metadata.labels or {}
        if pod.status.phase != "Running" or not pod.status.podIP or not target.selects(namespace, labels):
            continue
        told = {"namespace": namespace, "pod": str(name), "node": pod.spec.nodeName or ""}
        if JOB_LABEL in labels:
            told["training_job"] = labels[JOB_LABEL]
        addresses = [f"{pod.status.podIP}:{port}" for port in _ports(pod.spec.containers, target.ports)]
        if addresses:
            found.append({"targets": addresses, "labels": told})
    return sorted(found, key=lambda one: str(one["targets"]))


def _ports(containers: Sequence[Container], names: Sequence[str]) -> list[int]:
    ports = [port for container in containers for port in container.ports or ()]
    return [port.containerPort for port in ports if port.name in names]


def _file(target: Target) -> str:
    return f"targets-{target.name}.json"


class LocalPrometheus:
    """One Prometheus, for as long as the `with` block.

    Args:
        program: of Prometheus.
        folder: for its configuration, its log and its data; series of earlier times are kept there for a day.
        port: on which it answers, at 127.0.0.1 alone.
    """

    def __init__(self, program: Path, folder: Path, port: int) -> None:
        self._program, self._folder = program, folder
        self.url = f"http://127.0.0.1:{port}"
        self._written: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalPrometheus:
        """Start it, and wait until it answers.

        Raises:
            MonitoringError: it does not.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write("rules.yaml", yaml.safe_dump(groups(Limits())))
            self._write("prometheus.yaml", yaml.safe_dump(configuration(self._folder)))
            self.find([])
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except OSError as error:
            raise MonitoringError(f"Prometheus cannot be started in {self._folder}: {error.strerror}.") from error
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it, so that it writes what it has."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def find(self, pods: Sequence[Pod]) -> int:
        """Tell it the targets; it looks at the files by itself.

        Returns:
            How many addresses there are.
        """
        number = 0
        for target in TARGETS:
            found = targets_of(target, pods)
            number += sum(len(one["targets"]) for one in found)
            self._write(_file(target), json.dumps(found))
        return number

    def require_alive(self) -> None:
        """Does it still run?

        Raises:
            MonitoringError: it has ended, with the end of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            said = self._log.read_text(errors="replace").splitlines()[-3:]
            raise MonitoringError(f"Prometheus has ended; its log is {self._log}:\n" + "\n".join(said))

    def alerts(self) -> dict[str, str]:
        """What fires now: the summary by the alert with its labels."""
        found = self._get("/api/v1/alerts")["data"]["alerts"]
        return {
            f"{one['labels']['alertname']}{sorted(one['labels'].items())}": f"{one['labels']['alertname']}: "
            f"{one['annotations']['summary']}"
            for one in found
            if one["state"] == "firing"
        }

    def _command(self) -> list[str]:
        return [
            str(self._program),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--storage.tsdb.retention.time=1d",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]

    @property
    def _log(self) -> Path:
        return self._folder / "prometheus.log"

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            self.require_alive()
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):  # noqa: S310 - of 127.0.0.1
                    return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise MonitoringError(f"Prometheus does not answer at {self.url}; see {self._log}.") from error
            time.sleep(0.1)

    def _get(self, path: str) -> Mapping[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:  # noqa: S310 - of 127.0.0.1
                return dict(json.load(answer))
        except (urllib.error.URLError, OSError, ValueError) as error:
            self.require_alive()
            raise MonitoringError(f"Prometheus does not answer at {self.url}: {error}") from error

    def _write(self, name: str, text: str) -> None:
        """Replaces a file where it has changed, at once, for Prometheus may be reading."""
        if self._written.get(name) != text:
            new = self._folder / f"{name}.new"
            new.touch(mode=0o600)
            new.write_text(text)
            new.replace(self._folder / name)
            self._written[name] = text
