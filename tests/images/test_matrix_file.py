"""The matrix as it is declared: rows, names, what follows from the parts, mistakes in the file."""

import datetime
import itertools
import re
from importlib import resources

import pytest
from torch import _C

from images.errors import MatrixError
from images.matrix import Matrix, Row, load, matrix
from infra.catalog.ranges import numbers
from infra.catalog.versions import versions


def text() -> str:
    return resources.files("images").joinpath("matrix.toml").read_text(encoding="utf-8")


def changed(old: str, new: str, *, times: int = -1) -> Matrix:
    assert old in text()
    return load(text().replace(old, new, times))


ROWS = pytest.mark.parametrize("row", matrix().rows, ids=lambda row: row.name)


def test_every_supported_torch_has_each_variant() -> None:
    releases = ("2.15.0", "2.14.1", "2.13.0", "2.12.1", "2.9.1")
    assert tuple(one.version for one in matrix().torch_releases) == releases
    for version in releases:
        variants = {row.variant for row in matrix().rows if row.torch and row.torch.version == version}
        assert variants >= {"cpu", "cuda", "efa", "infiniband"}


def test_short_names_are_the_newest_release() -> None:
    names = {alias: row.name for row in matrix().rows for alias in row.aliases}
    assert names == {
        "cpu": "torch2.15-cpu",
        "cuda": "torch2.15-cuda13.2",
        "efa": "torch2.15-cuda13.2-efa",
        "infiniband": "torch2.15-cuda13.2-infiniband",
        "ngc": "ngc26.08",
        "nccl-tests": "nccl-tests-cuda13.2",
        "nccl-tests-efa": "nccl-tests-cuda13.2-efa",
        "nccl-tests-infiniband": "nccl-tests-cuda13.2-infiniband",
    }
    assert matrix().row("efa") is matrix().row("torch2.15-cuda13.2-efa")


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(MatrixError, match=r"no image 'torch2.15-cuda13.0-efa'.*Nearest: torch2.1\d-cuda13.\d-efa"):
        matrix().row("torch2.15-cuda13.0-efa")


@ROWS
def test_the_oldest_driver_is_that_of_the_version_lock(row: Row) -> None:
    assert row.minimum_driver == (versions().driver_floor(row.cuda) if row.cuda else None)


@ROWS
def test_a_row_says_what_of_it_is_not_pinned(row: Row) -> None:
    for base in filter(None, (row.base, row.builder, row.compiled_base)):
        if base.digest:
            assert base.pinned == f"{base.reference}@{base.digest}"
        else:
            assert base.pinned == base.reference
            assert base.unpinned
            assert any(reason.startswith(base.reference) for reason in row.unpinned)
    assert bool(row.unpinned) == (
        any(base.digest is None for base in (row.base, row.builder, row.compiled_base) if base)
        or bool(row.efa and row.efa.sha256 is None)
        or bool(row.nccl_tests and row.nccl_tests.sha256 is None)
    )


@ROWS
def test_bases_have_tags_that_name_a_release(row: Row) -> None:
    for base in filter(None, (row.base, row.builder, row.compiled_base)):
        assert re.fullmatch(r"[a-z0-9./]+:[a-z0-9.-]+", base.reference)
        assert "latest" not in base.reference
        if base.reference.startswith("nvidia/cuda"):
            assert re.search(r":\d+\.\d+\.\d+-(devel|base)-", base.reference), "no tags of a minor only"


@ROWS
def test_gpu_images_have_gpu_code_on_every_architecture_of_theirs(row: Row) -> None:
    assert set(row.sm) == (set(row.architectures) if row.cuda else set())
    for codes in row.sm.values():
        assert list(codes) == sorted(codes, key=lambda code: (not code.startswith("sm"), int(code.split("_")[1])))


@ROWS
def test_the_plugin_is_in_efa_images_only(row: Row) -> None:
    for architecture in row.architectures:
        path = row.plugin_file(architecture)
        assert (path is not None) == (row.efa is not None)
        assert path is None or (path.startswith("/opt/amazon/ofi-nccl/") and "{" not in path)


def test_architectures_of_torch_before_cuda_on_arm64_are_amd64_but_for_cpus() -> None:
    assert matrix().row("torch2.9-cuda12.8").architectures == ("amd64",)
    assert matrix().row("torch2.9-cpu").architectures == ("amd64", "arm64")
    assert matrix().row("torch2.12-cuda13.0").architectures == ("amd64", "arm64")


def test_no_row_installs_anything_beside_what_ngc_brings() -> None:
    for row in matrix().rows:
        if row.variant == "ngc":
            assert row.torch is not None
            assert row.torch.bundled
            assert (row.efa, row.builder, row.apt) == (None, None, ())


def test_the_gpu_code_of_the_newest_torch_is_what_the_installed_wheel_says_of_itself() -> None:
    import torch  # noqa: PLC0415

    newest = matrix().torch_releases[0]
    assert torch.__version__.partition("+")[0] == newest.version
    assert torch.version.cuda == newest.cuda
    assert tuple(str(_C._cuda_getArchFlags()).split()) == newest.sm["amd64"]


def test_every_part_has_a_source_and_a_date() -> None:
    for row in matrix().rows:
        for part in (row.base, row.builder, row.torch, row.efa, row.nccl_tests):
            if part is not None:
                assert part.source
                assert datetime.date(2026, 1, 1) <= part.checked <= datetime.date(2099, 1, 1)


def test_the_newest_efa_installer_is_taken_whose_sum_is_known() -> None:
    row = matrix().row("efa")
    assert row.efa is not None
    assert row.efa.sha256
    assert row.efa.url == f"https://efa-installer.amazonaws.com/aws-efa-installer-{row.efa.version}.tar.gz"


def test_newer_torch_has_newer_cuda_and_nccl() -> None:
    releases = matrix().torch_releases
    for newer, older in itertools.pairwise(releases):
        assert numbers(newer.cuda_patch) >= numbers(older.cuda_patch)
        assert numbers(newer.nccl) >= numbers(older.nccl)
        assert newer.cuda_patch.startswith(newer.cuda)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_broken_toml_is_told_with_its_place() -> None:
    with pytest.raises(MatrixError, match=r"images/matrix.toml is no TOML: "):
        load("schema = ")


def test_all_wrong_fields_are_told_at_once() -> None:
    wrong = re.sub(r'digest = "sha256:.', 'digest = "sha256:', text(), count=1).replace('"sm_70"', '"7.0"', 1)
    with pytest.raises(MatrixError) as caught:
        load(wrong)
    assert "base.debian12.digest" in str(caught.value)
    assert "torch.2.9.1.sm.amd64" in str(caught.value)


def test_an_unknown_key_is_a_mistake() -> None:
    with pytest.raises(MatrixError, match=r"base.debian12.colour: Extra inputs"):
        changed("[base.debian12]\n", '[base.debian12]\ncolour = "red"\n')


def test_an_installer_without_the_plugin_s_path_on_one_of_its_distributions_is_a_mistake() -> None:
    with pytest.raises(MatrixError, match=r"efa\.1\.51\.0: .*plugin_files lacks debian13"):
        changed('debian13 = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"\n', "", times=1)


def test_groups_that_name_what_is_not_there_are_told_together() -> None:
    with pytest.raises(MatrixError) as caught:
        load(text().replace('efa = "1.50.0"', 'efa = "1.60.0"').replace('ngc = ["26.08", ', 'ngc = ["26.12", '))
    assert "there is no [efa.'1.60.0']" in str(caught.value)
    assert "there is no [ngc.'26.12']" in str(caught.value)


def test_a_name_that_two_rows_have_is_a_mistake() -> None:
    with pytest.raises(MatrixError, match="two rows have the name controller"):
        load(text() + '\n[[rows]]\nkind = "controller"\nbase = "debian12"\n')


def test_a_cuda_without_a_driver_in_the_version_lock_is_a_mistake() -> None:
    with pytest.raises(MatrixError, match=r"versions.toml has no driver for CUDA 14.0"):
        load(text().replace('cuda = "13.4"', 'cuda = "14.0"'))


def test_a_declared_row_that_breaks_a_rule_does_not_load() -> None:
    with pytest.raises(MatrixError) as caught:
        changed('python_min = "3.11"', 'python_min = "3.13"')
    message = str(caught.value)
    assert "torch2.15-cpu, arm64: debian:bookworm-slim has Python 3.11, torch 2.15.0 wants 3.13 or newer" in message
    assert "(torch-python)" in message
