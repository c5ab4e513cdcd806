"""A run of a workflow through kfp: step after step, on from where it was, and what fails says why; compiled as well.

The job is played here; tests/end_to_end/test_operations.py has a real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import certifi
import pytest
import small_workflow
import yaml

import infra.cli
from infra.errors import TrainyardError
from infra.jobs import Condition, JobError, NotInTimeError
from infra.workflow import kfp_environment, steps
from infra.workflow.definition import Definition, read
from infra.workflow.errors import DefinitionError, StepError
from infra.workflow.models import Models

Patch = pytest.MonkeyPatch


class Jobs:
    """The jobs of a cluster, as far as the step `train` asks for them."""

    def __init__(self, *ends: Condition | Exception) -> None:
        self.submitted: list[dict[str, Any]] = []
        self._ends = list(ends)

    def get(self, name: str) -> dict[str, Any] | None:
        return next((job for job in self.submitted if job["metadata"]["name"] == name), None)

    def submit(self, path: Path) -> None:
        self.submitted.append(yaml.safe_load(path.read_text()))

    def wait(self, name: str, *_: Any) -> Condition:
        assert self.get(name)
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


SUCCEEDED = Condition("Succeeded", "JobSucceeded", "all workers have finished")


def perform(step: str, definition: Definition, run: str = "monday") -> dict[str, Any]:
    return steps.perform(step, definition.to_json(), run)


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: Patch) -> Path:
    made = tmp_path / "volume"
    made.mkdir()
    monkeypatch.setenv(steps.VOLUME_VARIABLE, str(made))
    return made


def with_jobs(monkeypatch: Patch, *ends: Condition | Exception) -> Jobs:
    made = Jobs(*ends)
    monkeypatch.setattr(steps, "_jobs", lambda: made)
    return made


def test_a_run_goes_from_step_to_step_and_each_is_done_once(tmp_path: Path, volume: Path, monkeypatch: Patch) -> None:
    definition = read(small_workflow.write(tmp_path))
    jobs = with_jobs(monkeypatch, SUCCEEDED)
    for _ in range(2):
        results = {step: perform(step, definition) for step in steps.STEPS}
    folder = volume / "workflows/small/monday"
    assert (folder / "prepared").read_text() == "prepared\n", "only once"
    (job,) = jobs.submitted
    (container,) = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert {"name": "RUN_FOLDER", "value": "/checkpoints/workflows/small/monday"} in container["env"], (
        "as workers see it"
    )
    assert results["evaluate"]["metrics"] == {"accuracy": 0.9}
    assert Models(str(volume / "models")).verify(results["publish"]["version"]).job == "small-monday"


def test_a_job_that_was_submitted_before_is_followed(tmp_path: Path, volume: Path, monkeypatch: Patch) -> None:
    definition = read(small_workflow.write(tmp_path))
    jobs = with_jobs(monkeypatch, JobError("no such thing"), NotInTimeError("still running"), SUCCEEDED)
    with pytest.raises(StepError, match="cannot be followed: no such thing"):
        perform("train", definition)
    assert perform("train", definition)["reason"] == "JobSucceeded"
    assert len(jobs.submitted) == 1


def test_a_failed_job_fails_the_step_with_its_reason(tmp_path: Path, volume: Path, monkeypatch: Patch) -> None:
    definition = read(small_workflow.write(tmp_path))
    with_jobs(monkeypatch, Condition("Failed", "BackoffLimitExceeded", "worker-0 ended with 1"), SUCCEEDED)
    with pytest.raises(StepError, match=r"small-monday has failed \(BackoffLimitExceeded\): worker-0 ended with 1"):
        perform("train", definition)
    run = steps.Run(definition, "monday", volume)
    step, reason = run.failure() or ("", "")
    assert step == "train"
    assert (
        "Look: trainyard logs small-monday. To train on in this run from the last checkpoint: trainyard cancel"
        in reason
    )
    perform("train", definition)
    assert run.failure() is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo no disk; exit 3", "sh ended with 3. Its last words .*\nno disk"),
        ("true", "have not written .*metrics.json"),
        ("echo no > metrics.json", "is not JSON"),
        ('echo \'{"accuracy": "high"}\' > metrics.json', "must be an object of numbers"),
        ("echo '{\"accuracy\": NaN}' > metrics.json", "must be an object of numbers"),
    ],
)
def test_what_fails_in_a_command_is_said(
    tmp_path: Path, volume: Path, monkeypatch: Patch, command: str, said: str
) -> None:
    definition = read(small_workflow.write(tmp_path, evaluate=[["sh", "-c", command]]))
    with pytest.raises(StepError, match=said):
        perform("evaluate", definition)


def test_a_command_that_is_not_there_is_said(tmp_path: Path, volume: Path) -> None:
    definition = read(small_workflow.write(tmp_path, prepare=[["no-such-program"]]))
    with pytest.raises(StepError, match="no-such-program cannot be started: No such file"):
        perform("prepare", definition)


def test_a_run_keeps_the_definition_with_which_it_began(tmp_path: Path, volume: Path) -> None:
    perform("prepare", read(small_workflow.write(tmp_path)))
    other = read(small_workflow.write(tmp_path, prepare=[]))
    with pytest.raises(DefinitionError, match="was begun with another definition"):
        perform("evaluate", other)
    perform("prepare", other, "tuesday")


def test_in_a_pod_the_service_account_is_the_way_in(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv(steps.KUBECONFIG_VARIABLE, raising=False)
    monkeypatch.setattr(steps, "_ACCOUNT", tmp_path)
    with pytest.raises(StepError, match="knows no cluster"):
        steps._jobs()
    (tmp_path / "namespace").write_text("training")
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    jobs = steps._jobs()
    assert jobs.namespace == "training"
    assert jobs._config.cluster.server == "https://[fd00::1]:443"
    assert jobs._config.user.token == "secret"


def test_kfp_goes_on_where_a_run_was_and_leaves_what_was_done(tmp_path: Path, volume: Path, monkeypatch: Patch) -> None:
    """Interrupted after the training: that step is on record, as a run that was killed leaves it."""
    publish = {"to": "$(VOLUME)/models", "metric": "accuracy", "limit": 0.95}
    definition = read(small_workflow.write(tmp_path, publish=publish))
    with_jobs(monkeypatch, SUCCEEDED)
    for step in ("prepare", "train"):
        perform(step, definition)
    run = steps.Run(definition, "monday", volume)
    variables = {steps.VOLUME_VARIABLE: str(volume)}
    said: list[str] = []
    assert not kfp_environment.run_pipeline(definition, "monday", run.folder / "kfp", variables, said.append)
    assert said[:2] == ["prepare: done before", "train: done before"]
    assert run.failure() == ("publish", "accuracy is 0.9, and must be at least 0.95 (publish.limit)")
    assert (run.folder / "prepared").read_text() == "prepared\n"
    evaluated = run.result("evaluate")
    assert evaluated is not None, (run.folder / "kfp/kfp.log").read_text()
    assert evaluated["metrics"] == {"accuracy": 0.9}
    assert not (volume / "models").exists()


def test_the_whole_runs_in_kfp_with_words_that_others_replace(tmp_path: Path, volume: Path, monkeypatch: Patch) -> None:
    odd = [["sh", "-c", "echo 'python3 $(RUN) $$(RUN) {{x}}' > said"]]
    definition = read(small_workflow.write(tmp_path, prepare=odd))
    with_jobs(monkeypatch, SUCCEEDED)
    perform("train", definition)
    run = steps.Run(definition, "monday", volume)
    variables = {steps.VOLUME_VARIABLE: str(volume)}
    done = kfp_environment.run_pipeline(definition, "monday", run.folder / "kfp", variables, print)
    assert done, (run.folder / "kfp/kfp.log").read_text()
    assert (run.folder / "said").read_text() == "python3 monday $(RUN) {{x}}\n"
    published = run.result("publish")
    assert published is not None
    assert Models(str(volume / "models")).verify(published["version"]).metrics == {"accuracy": 0.9}


def test_a_pipeline_is_the_same_text_each_time_and_has_the_steps_in_order(tmp_path: Path) -> None:
    path = small_workflow.write(tmp_path)
    texts = []
    for number in range(2):
        output = tmp_path / f"{number}.yaml"
        options = ["--image", "registry.example/workflow:1", "-o", str(output), "--json"]
        command = [str(Path(sys.executable).with_name("trainyard")), "workflow", "compile", str(path), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["steps"] == ["prepare", "train", "evaluate", "publish"]
        texts.append(output.read_bytes())
    assert texts[0] == texts[1]
    pipeline, platform = yaml.safe_load_all(texts[0])
    tasks = pipeline["root"]["dag"]["tasks"]
    assert {name: task.get("dependentTasks") for name, task in tasks.items()} == {
        "prepare": None,
        "train": ["prepare"],
        "evaluate": ["train"],
        "publish": ["evaluate"],
    }
    assert pipeline["root"]["inputDefinitions"]["parameters"] == {"run": {"parameterType": "STRING"}}
    executors = pipeline["deploymentSpec"]["executors"]
    assert {each["container"]["image"] for each in executors.values()} == {"registry.example/workflow:1"}
    mounted = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for name in executors:
        (mount,) = mounted[name]["pvcMount"]
        assert (mount["constant"], mount["mountPath"]) == ("checkpoints", "/checkpoints")
    text = tasks["train"]["inputs"]["parameters"]["definition"]["runtimeValue"]["constant"]
    assert Definition.model_validate_json(text) == read(path)


def test_a_pipeline_comes_as_objects_of_kubernetes_too(tmp_path: Path) -> None:
    output = tmp_path / "objects.yaml"
    kfp_environment.compile_pipeline(
        read(small_workflow.write(tmp_path)),
        output,
        image="registry.example/workflow:1",
        claim="checkpoints",
        volume="/checkpoints",
        namespace="training",
    )
    objects = list(yaml.safe_load_all(output.read_text()))
    assert [each["kind"] for each in objects] == ["Pipeline", "PipelineVersion"]
    assert {each["metadata"]["namespace"] for each in objects} == {"training"}


def test_history_and_rollback_by_the_workflow_s_file(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trainyard(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trainyard", "workflow", *arguments])
        with pytest.raises(SystemExit) as ended:
            infra.cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    path = str(small_workflow.write(tmp_path))
    assert trainyard("history", path, "--volume", str(tmp_path))[1] == f"{tmp_path}/models has no published model\n"
    models, gate = Models(str(tmp_path / "models")), read(Path(path)).publish
    for run in ("monday", "tuesday"):
        folder = tmp_path / run
        folder.mkdir()
        (folder / "w").write_text(run)
        models.publish(folder, run=run, job=f"small-{run}", metrics={"accuracy": 0.9}, gate=gate)
    code, out, _ = trainyard("rollback", path, "--volume", str(tmp_path), "--yes", "--json")
    back = json.loads(out)
    assert (code, back["number"], back["version"][:7]) == (0, 3, "monday-")
    code, out, _ = trainyard("history", str(tmp_path / "models"), "--json")
    shown = json.loads(out)
    assert (shown["current"], shown["address"]) == (back["version"], back["address"])
    assert [each["metrics"] for each in shown["decisions"]] == [{"accuracy": 0.9}] * 3
    assert "rollback from tuesday" in trainyard("history", str(tmp_path / "models"))[1]
    code, _, err = trainyard("rollback", path, "other", "--volume", str(tmp_path), "--yes")
    assert (code, "cannot go back to version other" in err, "Traceback" in err) == (1, True, False)
    code, _, err = trainyard("history", path, "--volume", str(tmp_path / "nowhere"))
    assert (code, "is no folder that can be written" in err) == (2, True)


def test_without_kfp_the_way_to_it_is_said(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv(kfp_environment.PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(kfp_environment, "CHECKOUT", tmp_path)
    with pytest.raises(TrainyardError, match=r"make \.venv-workflow/installed") as error:
        kfp_environment.python()
    assert error.value.exit_code == 2
