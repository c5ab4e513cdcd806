"""What the steps of a workflow do: on this computer below `trainyard workflow run`, in a cluster as pods of a pipeline.

Each step leaves a record in the run's folder when it is done. Who begins again with the same run's name finds it, and
goes on with the step after. The job is submitted by the run's name, so a second time the same job is followed.

    <volume>/workflows/<name>/<run>/
      definition.json    what the run was begun with
      steps/<step>.json  what came of a step; steps/<step>.failed why it failed, steps/<step>.log what its commands said
      job.yaml           the ElasticJob as submitted
      metrics.json, model/  what `evaluate` has made
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from infra.errors import TrainyardError
from infra.workflow.definition import Command, Definition, job_of_run, replaced
from infra.workflow.errors import DefinitionError, StepError
from infra.workflow.models import Models

STEPS = ("prepare", "train", "evaluate", "publish")
# Set by `trainyard workflow run`; absent in a pod, where the volume is mounted as in the workers.
VOLUME_VARIABLE = "TRAINYARD_WORKFLOW_VOLUME"
KUBECONFIG_VARIABLE = "TRAINYARD_WORKFLOW_KUBECONFIG"
CONTEXT_VARIABLE = "TRAINYARD_WORKFLOW_CONTEXT"
NAMESPACE_VARIABLE = "TRAINYARD_WORKFLOW_NAMESPACE"
WORKERS_VOLUME = "/checkpoints"
"""Where workers see the stack's shared volume (infra.wiring.job_resources.CHECKPOINTS)."""
# https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A pod's token is replaced by the kubelet well before an hour is over; the client is made anew as often.
_RECONNECT = timedelta(minutes=10)
_SHOWN_LINES = 15
# Workers are another user than these steps, and write their checkpoints beside; the volume itself is as open.
_FOLDER_MODE = 0o777


@dataclass(frozen=True)
class Run:
    """A run of a workflow."""

    definition: Definition
    name: str
    volume: Path
    """The shared volume, as this process sees it."""

    @property
    def folder(self) -> Path:
        """All that the run keeps."""
        return self.volume / self._below

    @property
    def _below(self) -> Path:
        return Path("workflows", self.definition.name, self.name)

    def variables(self, *, in_workers: bool = False) -> dict[str, str]:
        """What commands and arguments may use."""
        volume = Path(WORKERS_VOLUME) if in_workers else self.volume
        return {"VOLUME": str(volume), "RUN": self.name, "RUN_FOLDER": str(volume / self._below)}

    def result(self, step: str) -> dict[str, Any] | None:
        """What came of a step; None: it is not done."""
        try:
            found = json.loads((self.folder / "steps" / f"{step}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return dict(found)

    def failure(self) -> tuple[str, str] | None:
        """The step that failed, and why; None: none did."""
        for step in STEPS:
            path = self.folder / "steps" / f"{step}.failed"
            if path.exists():
                return step, path.read_text(encoding="utf-8").strip()
        return None

    def begin(self) -> None:
        """Make the folder, or go on with what is in it.

        Raises:
            DefinitionError: the run was begun with another definition.
            StepError: the folder cannot be written.
        """
        self.definition.job_name(self.name)
        record = self.folder / "definition.json"
        try:
            if not record.exists():
                (self.folder / "steps").mkdir(parents=True, exist_ok=True)
                self.folder.chmod(_FOLDER_MODE)
                _write(record, self.definition.to_json())
            there = record.read_text(encoding="utf-8")
        except OSError as error:
            raise StepError(f"{self.folder} cannot be written: {error.strerror}") from None
        if there != self.definition.to_json():
            raise DefinitionError(
                f"run {self.name} of {self.definition.name} was begun with another definition ({record}). Go on with"
                " that one, or begin a new run under another name"
            )


def perform(step: str, definition: str, run: str) -> dict[str, Any]:
    """One step of a run, from the environment of a pod or of `trainyard workflow run`; what came of it.

    Args:
        step: one of `STEPS`.
        definition: as JSON.
        run: its name.

    Raises:
        TrainyardError: the step failed; the reason is on record as well.
    """
    made = Run(Definition.model_validate_json(definition), run, Path(os.environ.get(VOLUME_VARIABLE, WORKERS_VOLUME)))
    made.begin()
    done = made.result(step)
    if done is not None:
        _say(f"{step}: done before")
        return done
    failed = made.folder / "steps" / f"{step}.failed"
    failed.unlink(missing_ok=True)
    begin = time.monotonic()
    try:
        result = _STEPS[step](made)
    except TrainyardError as error:
        _write(failed, f"{error}\n")
        raise
    record = {"step": step, "seconds": round(time.monotonic() - begin, 3), **result}
    _write(made.folder / "steps" / f"{step}.json", json.dumps(record, indent=1))
    return record


def _prepare(run: Run) -> dict[str, Any]:
    _commands(run, "prepare", run.definition.prepare)
    return {}


def _train(run: Run) -> dict[str, Any]:
    """Submit the job, or find the one that was submitted before, and follow it to its end."""
    from infra.jobs import JobError, NotInTimeError  # noqa: PLC0415 - the Kubernetes client takes a quarter of a second

    manifest = run.folder / "job.yaml"
    _write(manifest, yaml.safe_dump(job_of_run(run.definition, run.name, run.variables(in_workers=True))))
    name = run.definition.job_name(run.name)
    if _jobs().get(name) is None:
        _jobs().submit(manifest)
        _say(f"train: job {name} submitted")
    else:
        _say(f"train: job {name} is there already")
    while True:
        try:
            end = _jobs().wait(name, _RECONNECT, lambda sentence: _say(f"train: {sentence}"))
            break
        except NotInTimeError:
            continue
        except JobError as error:
            raise StepError(f"job {name} cannot be followed: {error}") from None
    if end.type != "Succeeded":
        raise StepError(
            f"job {name} has failed ({end.reason}): {end.message}. Look: trainyard logs {name}. To train on in this run"
            f" from the last checkpoint: trainyard cancel {name}, then the same run again"
        )
    return {"job": name, "reason": end.reason, "message": end.message}


def _evaluate(run: Run) -> dict[str, Any]:
    model, metrics = run.folder / "model", run.folder / "metrics.json"
    model.mkdir(exist_ok=True)
    metrics.unlink(missing_ok=True)
    _commands(run, "evaluate", run.definition.evaluate)
    return {"metrics": _metrics(metrics)}


def _publish(run: Run) -> dict[str, Any]:
    evaluated = run.result("evaluate")
    if evaluated is None:
        raise StepError(f"run {run.name} was not evaluated")
    wanted = run.definition.publish
    models = Models(replaced(wanted.to, run.variables()))
    version, decision = models.publish(
        run.folder / "model",
        run=run.name,
        job=run.definition.job_name(run.name),
        metrics=evaluated["metrics"],
        gate=wanted,
    )
    return {"version": version.name, "address": models.address(version.name), "decision": decision.number}


_STEPS: Mapping[str, Callable[[Run], dict[str, Any]]] = {
    "prepare": _prepare,
    "train": _train,
    "evaluate": _evaluate,
    "publish": _publish,
}


def _commands(run: Run, step: str, commands: tuple[Command, ...]) -> None:
    """Run commands one after another in the run's folder; what they say is shown, and kept."""
    variables = run.variables()
    log = run.folder / "steps" / f"{step}.log"
    log.write_text("", encoding="utf-8")
    for command in commands:
        arguments = [replaced(argument, variables) for argument in command]
        _say(f"{step}: {' '.join(arguments)}")
        try:
            with log.open("a", encoding="utf-8") as stream:
                code = subprocess.run(
                    arguments,
                    cwd=run.folder,
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    check=False,
                ).returncode
        except OSError as error:
            raise StepError(f"{step}: {arguments[0]} cannot be started: {error.strerror}") from None
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if code:
            last = "\n".join(said[-_SHOWN_LINES:])
            raise StepError(f"{step}: {arguments[0]} ended with {code}. Its last words ({log}):\n{last}")


def _metrics(path: Path) -> dict[str, float]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StepError(f"evaluate: its commands have not written {path}") from None
    except ValueError:
        raise StepError(f"evaluate: {path} is not JSON") from None
    if not isinstance(document, dict) or not all(_is_figure(value) for value in document.values()):
        raise StepError(f'evaluate: {path} must be an object of numbers, as {{"accuracy": 0.97}}')
    return {name: float(value) for name, value in document.items()}


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _jobs() -> Any:
    """The ElasticJobs of the stack that runs this: by its kubeconfig, or as a pod's service account."""
    from infra.clusters import Access  # noqa: PLC0415
    from infra.jobs import Jobs  # noqa: PLC0415

    if path := os.environ.get(KUBECONFIG_VARIABLE):
        access = Access(Path(path), os.environ.get(CONTEXT_VARIABLE) or None, "Is the stack up? trainyard status")
        return Jobs(access, os.environ[NAMESPACE_VARIABLE])
    try:
        namespace = (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        document = _kubeconfig_of_pod((_ACCOUNT / "token").read_text(encoding="utf-8").strip())
    except (OSError, KeyError):
        raise StepError(
            "this step knows no cluster: it runs in a pod with a service account, or below `trainyard workflow run`"
        ) from None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:  # of mode 0600
        yaml.safe_dump(document, file)
        file.flush()
        return Jobs(
            Access(Path(file.name), None, "See docs/how-to/workflow.md for the rights of its account"), namespace
        )


def _kubeconfig_of_pod(token: str) -> dict[str, Any]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    cluster = {"server": f"https://{host}:{port}", "certificate-authority": str(_ACCOUNT / "ca.crt")}
    return {
        "clusters": [{"name": "pod", "cluster": cluster}],
        "users": [{"name": "pod", "user": {"token": token}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "current-context": "pod",
    }


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
