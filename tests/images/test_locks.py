"""The locks of the images: they have what the matrix says, for both architectures, and nothing of this computer."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from images.locks import groups, locks
from images.matrix import LOCKS, MACHINES, Architecture, Row, matrix
from infra.catalog.ranges import numbers

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(path.name for path in LOCKS.glob("*.txt"))
LOCKED = pytest.mark.parametrize("name", FILES)
TRAINING = pytest.mark.parametrize(
    "row", [row for row in matrix().rows if row.kind == "training"], ids=lambda row: row.name
)


@functools.cache
def requirements(path: Path) -> tuple[tuple[Requirement, tuple[str, ...]], ...]:
    """What a lock asks for, with the hashes of each."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found = []
    for entry in "\n".join(lines).replace("\\\n", " ").splitlines():
        wanted, *hashes = entry.split(" --hash=")
        found.append((Requirement(wanted.strip()), tuple(one.strip() for one in hashes)))
    return tuple(found)


def installed(row: Row, architecture: Architecture, python: str | None = None) -> dict[str, str]:
    """What a row's lock installs on a machine, by name."""
    assert row.lock_path is not None
    machine = {
        "platform_machine": MACHINES[architecture],
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python or row.python,
        "python_full_version": f"{python or row.python}.2",
        "extra": "",
    }
    return dict(_installed(row.lock_path, machine))


def _installed(path: Path, machine: dict[str, str]) -> Iterator[tuple[str, str]]:
    for wanted, _ in requirements(path):
        if wanted.marker is None or Marker(str(wanted.marker)).evaluate(machine):
            assert str(wanted.specifier).startswith("==")
            yield wanted.name, str(wanted.specifier).removeprefix("==")


def test_every_lock_belongs_to_a_row_and_every_row_has_one() -> None:
    assert set(FILES) == {row.lock for row in matrix().rows}


def test_the_writer_writes_these_files() -> None:
    assert {lock.name for lock in locks(matrix(), groups())} == set(FILES)


def test_locks_serve_the_oldest_python_of_the_rows_that_share_them() -> None:
    written = {lock.name: lock for lock in locks(matrix(), groups())}
    assert written["torch-2.15.0.txt"].python == "3.11", "Debian for most, Ubuntu for EFA"
    assert written["ngc-26.08.txt"].python == "3.12"


def test_locks_are_held_to_the_tested_versions_unless_they_have_another_torch() -> None:
    assert {lock.name for lock in locks(matrix(), groups()) if lock.as_tested} == {
        "controller.txt",
        "ngc-26.03.txt",
        "ngc-26.08.txt",
        "torch-2.15.0.txt",
    }


def test_the_lock_of_ngc_is_resolved_without_torch_and_written_without_numpy() -> None:
    ngc = next(lock for lock in locks(matrix(), groups()) if lock.name == "ngc-26.08.txt")
    assert not any(one.startswith("torch") for one in ngc.requirements)
    assert ngc.leave_out == ("numpy",)


@LOCKED
def test_every_requirement_has_a_version_and_hashes(name: str) -> None:
    found = requirements(LOCKS / name)
    assert found
    for wanted, hashes in found:
        assert re.fullmatch(r"==[^,]+", str(wanted.specifier))
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)


@LOCKED
def test_no_lock_says_where_it_was_made(name: str) -> None:
    text = (LOCKS / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"index|find-links|trusted-host|/(home|tmp|work)/", text)


@TRAINING
def test_torch_and_its_parts_are_those_of_the_matrix(row: Row) -> None:
    torch = row.torch
    assert torch is not None
    for architecture in row.architectures:
        found = installed(row, architecture)
        if torch.bundled:
            continue
        assert found["torch"] == torch.version
        major = torch.cuda.partition(".")[0]
        if architecture in torch.sm:
            assert found[f"nvidia-nccl-cu{major}"] == torch.nccl
            assert found[f"nvidia-cudnn-cu{major}"] == torch.cudnn
            assert found["triton"] == torch.triton
        if "cuda-toolkit" in found:
            assert ".".join(found["cuda-toolkit"].split(".")[:3]) == torch.cuda_patch


@TRAINING
def test_exactly_one_nccl_is_installed_where_there_is_cuda(row: Row) -> None:
    for architecture in row.architectures:
        found = [name for name in installed(row, architecture) if name.startswith("nvidia-nccl")]
        assert len(found) == (1 if row.torch and not row.torch.bundled and architecture in row.torch.sm else 0)


@TRAINING
def test_a_lock_serves_the_base_where_something_is_compiled_as_well(row: Row) -> None:
    if row.compiled_base is not None:
        for architecture in row.architectures:
            pythons = (row.base.python, row.compiled_base.python)
            assert {installed(row, architecture, python).get("torch") for python in pythons} == {
                row.torch and row.torch.version
            }


@pytest.mark.parametrize("row", [row for row in matrix().rows if row.variant == "ngc"], ids=lambda row: row.name)
def test_locks_of_ngc_leave_torch_and_everything_of_cuda_alone(row: Row) -> None:
    for architecture in row.architectures:
        for name in installed(row, architecture):
            assert not re.match(r"torch|nvidia|cuda|triton|numpy", name)


@pytest.mark.parametrize("row", [row for row in matrix().rows if row.kind == "nccl-tests"], ids=lambda row: row.name)
def test_nccl_tests_measure_the_nccl_that_training_loads(row: Row) -> None:
    assert row.torch is not None
    major = row.torch.cuda.partition(".")[0]
    for architecture in row.architectures:
        assert installed(row, architecture) == {f"nvidia-nccl-cu{major}": row.torch.nccl}


def test_the_image_of_the_tested_torch_has_the_versions_that_the_tests_run_with() -> None:
    locked = requirements(ROOT / "requirements" / "training.txt")
    tested = {wanted.name: str(wanted.specifier) for wanted, _ in locked}
    row = matrix().row("cpu")
    assert tested["torch"] == f"=={row.torch.version if row.torch else None}"
    assert {name: f"=={version}" for name, version in installed(row, "amd64", "3.11").items()} == tested


def test_the_controller_image_has_the_versions_that_the_tests_run_with() -> None:
    tested = {wanted.name for wanted, _ in requirements(ROOT / "requirements" / "controller.txt")}
    found = installed(matrix().row("controller"), "amd64")
    assert set(found) == tested
    assert "torch" not in found


def test_what_a_row_leaves_out_is_in_its_lock() -> None:
    for row in matrix().rows:
        for architecture in row.architectures:
            has_cuda = row.torch is not None and architecture in row.torch.sm
            assert not has_cuda or set(row.leave_out) <= set(installed(row, architecture))


def test_the_oldest_torch_of_the_images_is_the_one_that_the_launcher_is_tested_on() -> None:
    releases = {row.torch.version for row in matrix().rows if row.torch is not None and not row.torch.bundled}
    oldest = min(releases, key=numbers)
    locked = requirements(ROOT / "requirements" / "oldest-torch.txt")
    assert {wanted.name: str(wanted.specifier) for wanted, _ in locked}["torch"] == f"=={oldest}"
    assert f"images/locks/torch-{oldest}.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")
