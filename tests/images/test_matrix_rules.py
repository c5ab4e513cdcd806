"""Each rule of the matrix refuses what it is there for, with its reason, and lets the declared rows through."""

import re
from typing import Any

import pytest

from images.matrix import Row, matrix
from images.rules import RULES, Subject, runs_on, violations
from infra.catalog.instance_types import gpus
from training.diagnose.image import has_code

EFA = matrix().row("efa")
CUDA = matrix().row("cuda")
NGC = matrix().row("ngc")
OLD = matrix().row("torch2.9-cuda12.8")


def with_part(row: Row, part: str, **changes: Any) -> Row:
    return row.model_copy(update={part: getattr(row, part).model_copy(update=changes)})


BREAKS = {
    "driver-floor": (Subject(CUDA, "amd64", driver="570.133.20"), "570.133.20 is older than 580.65.06"),
    "gpu-code": (Subject(OLD, "amd64", compute_capability="6.0"), "sm_70 .* runs on GPUs of compute capability 6.0"),
    "cuda-13-generations": (Subject(CUDA, "amd64", compute_capability="7.0"), "CUDA 13.2 does not know GPUs of"),
    "torch-python": (Subject(with_part(CUDA, "base", python="3.10"), "amd64"), "Python 3.10, torch 2.15.0 wants 3.11"),
    "torch-cuda-architecture": (Subject(OLD, "arm64"), "torch 2.9.1 has no CUDA on arm64"),
    "bundled-torch": (Subject(with_part(NGC, "torch", bundled=False), "amd64"), "would get another torch"),
    "base-architecture": (
        Subject(with_part(CUDA, "base", architectures=("amd64",)), "arm64"),
        "debian:bookworm-slim is not there for arm64",
    ),
    "one-cuda": (
        Subject(with_part(CUDA, "builder", cuda="12.8"), "amd64"),
        "has CUDA 12.8, torch 2.15.0 has CUDA 13.2",
    ),
    "builder-distribution": (
        Subject(CUDA.model_copy(update={"compiled_base": None}), "amd64"),
        "ubuntu24.04, Python 3.12.* would run on debian:bookworm-slim .debian12, Python 3.11",
    ),
    "variant-parts": (Subject(EFA.model_copy(update={"efa": None}), "amd64"), "an EFA image without an EFA installer"),
    "efa-distribution": (
        Subject(with_part(EFA, "base", distribution="ubuntu20.04"), "amd64"),
        "does not know ubuntu20.04, only debian12",
    ),
    "efa-architecture": (
        Subject(with_part(EFA, "base", distribution="debian12"), "arm64"),
        "on debian12 the EFA installer 1.50.0 has the NCCL plugin for amd64 only",
    ),
    "efa-nccl": (Subject(with_part(EFA, "torch", nccl="2.16.5"), "amd64"), "NCCL 2.16.5 is older than 2.17.1"),
    "efa-libfabric": (Subject(with_part(EFA, "efa", libfabric="1.21.0"), "amd64"), "libfabric 1.21.0 is older"),
}


def test_every_rule_has_a_subject_that_breaks_it() -> None:
    assert set(BREAKS) == {rule.id for rule in RULES}
    assert len(BREAKS) == len(RULES)


@pytest.mark.parametrize("name", BREAKS)
def test_a_rule_says_what_is_wrong_and_why(name: str) -> None:
    subject, message = BREAKS[name]
    found = {one.rule.id: one for one in violations(subject)}
    assert name in found
    sentence = found[name].sentence
    assert re.search(message, sentence)
    assert found[name].rule.reason in sentence
    assert sentence.endswith(f"({name})")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_a_sentence_a_reason_and_a_source(rule: Any) -> None:
    assert rule.sentence.endswith(".")
    assert not rule.reason.endswith(".")
    assert rule.source


@pytest.mark.parametrize("row", matrix().rows, ids=lambda row: row.name)
def test_declared_rows_keep_all_rules(row: Row) -> None:
    for architecture in row.architectures:
        assert violations(Subject(row, architecture)) == []


@pytest.mark.parametrize(
    ("code", "gpu", "runs"),
    [
        ("sm_80", "8.0", True),
        ("sm_86", "8.9", True),  # L4, L40S
        ("sm_86", "8.0", False),
        ("sm_80", "9.0", False),
        ("sm_100", "10.3", True),  # B300
        ("sm_103", "10.0", False),
        ("sm_100", "12.0", False),
        ("sm_90a", "9.0", True),
        ("sm_100a", "10.3", False),
        ("sm_100f", "10.3", True),
        ("compute_80", "12.0", True),
        ("compute_120", "10.0", False),
    ],
)
def test_gpu_code_runs_within_its_generation_and_ptx_on_newer_ones(code: str, gpu: str, runs: bool) -> None:
    assert runs_on(code, gpu) is runs


@pytest.mark.parametrize("gpu", gpus().values(), ids=lambda gpu: gpu.name)
def test_every_gpu_of_the_catalogue_runs_every_release_on_amd64(gpu: Any) -> None:
    for release in matrix().torch_releases:
        assert any(runs_on(code, gpu.compute_capability) for code in release.sm["amd64"])


@pytest.mark.parametrize(
    ("distribution", "rule"), [("ubuntu20.04", "efa-distribution"), ("debian12", "efa-architecture")]
)
def test_the_efa_installer_also_has_to_know_the_base_on_which_compiled_code_runs(distribution: str, rule: str) -> None:
    row = with_part(EFA, "compiled_base", distribution=distribution)
    assert rule in [one.rule.id for one in violations(Subject(row, "arm64"))]


def test_the_check_at_the_start_of_a_container_judges_gpu_code_as_the_matrix_does() -> None:
    codes = {code for row in matrix().rows for one in row.sm.values() for code in one} | {"sm_90a", "sm_100f"}
    for gpu in gpus().values():
        for code in codes:
            assert runs_on(code, gpu.compute_capability) == has_code(gpu.compute_capability, (code,)), (code, gpu.name)


def test_a_t4_runs_cuda_13_and_a_v100_does_not() -> None:
    assert violations(Subject(CUDA, "amd64", compute_capability="7.5")) == []
    v100 = Subject(CUDA, "amd64", compute_capability="7.0")
    assert [one.rule.id for one in violations(v100)] == ["gpu-code", "cuda-13-generations"]
    assert violations(Subject(OLD, "amd64", compute_capability="7.0")) == []


def test_a_cpu_image_asks_nothing_of_the_gpu() -> None:
    assert violations(Subject(matrix().row("cpu"), "amd64", driver="1.0", compute_capability="3.5")) == []
