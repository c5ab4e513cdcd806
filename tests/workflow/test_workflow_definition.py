"""The file of a workflow: all mistakes in one go, and what commands and workers are told of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_workflow

from infra.clusters import CHECKOUT
from infra.workflow.definition import Gate, job_of_run, read, replaced
from infra.workflow.errors import DefinitionError


def test_all_mistakes_are_said_in_one_go(tmp_path: Path) -> None:
    publish = {"to": "models", "metric": "accuracy", "tolerance": -1, "floor": 0.9}
    path = small_workflow.write(tmp_path, name="Not A Name", train="missing.yaml", evaluate=[], publish=publish)
    with pytest.raises(DefinitionError) as error:
        read(path)
    said = str(error.value)
    assert error.value.exit_code == 2
    for part in (
        "train: ",
        "missing.yaml cannot be read: No such file",
        "name: must be lower-case",
        "evaluate: ",
        "publish.limit: ",
        "publish.tolerance: ",
        "publish.floor: ",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("text", "said"),
    [("kind: ConfigMap", "holds no ElasticJob"), ("- a", "holds no workflow"), ("{", "is not YAML")],
)
def test_a_job_must_be_an_elasticjob(tmp_path: Path, text: str, said: str) -> None:
    path = small_workflow.write(tmp_path)
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(DefinitionError, match=said):
        read(path)


def test_a_file_is_the_same_workflow_however_it_is_written(tmp_path: Path) -> None:
    path = small_workflow.write(tmp_path)
    first = read(path)
    path.write_text("# a comment\n" + path.read_text())
    assert (read(path).to_json(), read(path).digest()) == (first.to_json(), first.digest())


def test_workers_know_the_run_and_its_folder(tmp_path: Path) -> None:
    made = read(small_workflow.write(tmp_path))
    job = job_of_run(made, "monday", {"RUN": "monday", "RUN_FOLDER": "/checkpoints/workflows/small/monday"})
    (container,) = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert job["metadata"]["name"] == "small-monday"
    assert container["args"] == ["train.py", "--to=$(RUN_FOLDER)/checkpoints"], "Kubernetes replaces it"
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "RUN": "monday",
        "RUN_FOLDER": "/checkpoints/workflows/small/monday",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize("run", ["Monday", "a b", "", "x" * 46, "../x"])
def test_a_run_has_a_name_that_a_job_can_have(tmp_path: Path, run: str) -> None:
    made = read(small_workflow.write(tmp_path))
    with pytest.raises(DefinitionError, match="cannot be called"):
        made.job_name(run)


def test_commands_are_written_as_kubernetes_reads_arguments() -> None:
    variables = {"RUN": "monday"}
    assert replaced("a $(RUN) $(OTHER) $$(RUN) $RUN", variables) == "a monday $(OTHER) $(RUN) $RUN"


@pytest.mark.parametrize(
    ("gate", "value", "current", "said"),
    [
        ({"limit": 0.9}, 0.9, None, None),
        ({"limit": 0.9}, 0.89, None, "at least 0.9"),
        ({"limit": 0.9}, 0.94, 0.95, "worse by more than 0"),
        ({"limit": 0.9, "tolerance": 0.02}, 0.94, 0.95, None),
        ({"limit": 0.9, "mode": "min"}, 0.91, None, "at most 0.9"),
        ({"limit": 0.9, "mode": "min"}, 0.5, 0.4, "worse by more than 0"),
        ({"limit": 0.9, "mode": "min", "tolerance": 0.1}, 0.45, 0.4, None),
        ({"limit": 0.9}, float("nan"), None, "nan"),
    ],
)
def test_the_gate(gate: dict[str, Any], value: float, current: float | None, said: str | None) -> None:
    refusal = Gate.model_validate({"metric": "figure", **gate}).refusal(value, current)
    assert refusal is None if said is None else said in str(refusal)


def test_the_example_can_be_read() -> None:
    made = read(CHECKOUT / "training/examples/digits_workflow.yaml")
    assert made.job_name("20261201-031700") == "digits-20261201-031700"
