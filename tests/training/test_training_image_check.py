"""The check of the image at the start: what never works ends the launcher, everything else is said once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.diagnose import image
from training.diagnose import machine as seen
from training.diagnose.facts import Facts, FactsError, read
from training.diagnose.image import Finding, compare, compare_built, has_code
from training.diagnose.machine import Installed, Machine
from training.launch import exit_codes

FACTS = Facts(
    row="torch2.15-cuda13.2-efa",
    variant="efa",
    torch="2.15.0",
    cuda="13.2",
    nccl="2.30.7",
    minimum_driver="580.65.06",
    sm={"amd64": ("sm_80", "sm_90", "sm_120")},
    plugin="1.21.1",
    plugin_files={"amd64": "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"},
)
INSTALLED = Installed(torch="2.15.0+cu132", cuda="13.2", nccl="2.30.7", nccl_files=("/nccl/libnccl.so.2",), plugin=True)
NEW_DRIVER = Machine("amd64", driver="580.95.05", cuda_library="/usr/lib/libcuda.so.580.95.05", cuda="13.0")
KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Jul 16 12:00:00 UTC 2026\nGCC version: 11\n"
OPEN_KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder)\n"


def _found(facts: Facts = FACTS, machine: Machine = NEW_DRIVER, installed: Installed = INSTALLED) -> list[Finding]:
    return list(compare(facts, machine, installed))


def test_an_image_that_fits_says_nothing() -> None:
    assert _found() == []
    assert _found(machine=Machine("amd64")) == []


def test_a_driver_that_is_too_old_is_an_error_with_both_versions() -> None:
    (found,) = _found(machine=Machine("amd64", driver="570.133.20", cuda="12.8"))
    assert (found.what, found.severity) == ("driver", "error")
    assert "570.133.20" in found.message
    assert "580.65.06" in found.message


def test_versions_are_compared_as_numbers() -> None:
    assert _found(machine=Machine("amd64", driver="1000.1", cuda="14.0")) == []
    assert _found(machine=Machine("amd64", driver="580.7", cuda="13.0"))[0].severity == "error"


def test_an_old_driver_with_cuda_s_compatibility_library_may_work() -> None:
    bridged = Machine(
        "amd64", driver="570.133.20", cuda_library="/usr/local/cuda/compat/libcuda.so.595.45.04", cuda="13.2"
    )
    (found,) = _found(machine=bridged)
    assert found.severity == "warning"
    assert "804" in found.message


def test_a_compatibility_library_that_is_older_than_the_driver_is_named() -> None:
    hidden = Machine("amd64", driver="590.44.01", cuda_library="/usr/local/cuda/compat/libcuda.so.580.65.06")
    (found,) = _found(machine=hidden)
    assert (found.what, found.severity) == ("libcuda", "warning")
    assert "803" in found.message
    assert "/usr/local/cuda/compat/libcuda.so.580.65.06" in found.message


def test_gpus_without_code_are_an_error_and_one_among_others_a_warning() -> None:
    volta = Machine("amd64", driver="580.95.05", capabilities=("7.0", "7.0"))
    (found,) = _found(machine=volta)
    assert (found.what, found.severity) == ("gpu", "error")
    assert "7.0" in found.message
    mixed = Machine("amd64", driver="580.95.05", capabilities=("9.0", "7.0"))
    assert [one.severity for one in _found(machine=mixed)] == ["warning"]


@pytest.mark.parametrize(
    ("capability", "codes", "runs"),
    [
        ("9.0", ("sm_90",), True),
        ("8.9", ("sm_80",), True),
        ("8.0", ("sm_86",), False),
        ("9.0", ("sm_80",), False),
        ("9.0", ("compute_80",), True),
        ("8.0", ("compute_90",), False),
        ("10.3", ("sm_100",), True),
        ("12.0", ("sm_120",), True),
        ("12.0", ("sm_100",), False),
        ("9.0", ("sm_90a",), True),
        ("10.3", ("sm_100a",), False),
        ("10.3", ("sm_100f",), True),
        ("7.0", (), False),
    ],
)
def test_code_runs_on_gpus_of_its_generation(capability: str, codes: tuple[str, ...], runs: bool) -> None:
    assert has_code(capability, codes) is runs


def test_a_machine_with_efa_and_an_image_without_plugin_is_a_warning() -> None:
    plain = Facts(row="torch2.15-cuda13.2", torch="2.15.0", cuda="13.2", nccl="2.30.7")
    (found,) = _found(plain, Machine("amd64", fabrics=frozenset({"efa"})))
    assert (found.what, found.severity) == ("plugin", "warning")
    assert "-efa" in found.message


def test_a_plugin_that_has_gone_is_a_warning_where_there_is_efa() -> None:
    gone = Installed(torch="2.15.0", cuda="13.2", nccl="2.30.7", plugin=False)
    assert _found(machine=Machine("amd64"), installed=gone) == []
    (found,) = _found(machine=Machine("amd64", fabrics=frozenset({"efa"})), installed=gone)
    assert "no longer at /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so" in found.message


def test_infiniband_without_its_library_is_a_warning() -> None:
    bare = Installed(torch="2.15.0", cuda="13.2", nccl="2.30.7", plugin=True, verbs=False)
    (found,) = _found(machine=Machine("amd64", fabrics=frozenset({"infiniband"})), installed=bare)
    assert found.what == "fabric"
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (Installed(torch="2.14.1", cuda="13.2", nccl="2.30.7"), "2.14.1 is there"),
        (Installed(torch="2.15.0", cuda="12.8", nccl="2.30.7"), "it is for 12.8"),
        (Installed(torch="2.15.0", cuda=None, nccl="2.30.7"), "it is for CPUs"),
        (Installed(torch="2.15.0", cuda="13.2", nccl="2.29.7"), "2.29.7 is loaded"),
        (Installed(trouble="no libfoo"), "cannot be imported: no libfoo"),
        (Installed(torch="2.15.0", cuda="13.2", nccl="2.30.7", nccl_files=("/a", "/b")), "several NCCL"),
    ],
)
def test_an_image_that_was_changed_is_a_warning(installed: Installed, said: str) -> None:
    (found,) = _found(machine=Machine("amd64"), installed=installed)
    assert found.severity == "warning"
    assert said in found.message


def test_while_an_image_is_built_every_difference_is_an_error(tmp_path: Path) -> None:
    other = Installed(torch="2.15.0", cuda="13.2", nccl="2.29.7", plugin=False)
    found = list(compare_built(FACTS, other, ["/a/libnccl.so.2", "/b/libnccl.so.2"], "/opt/plugin.so"))
    assert [(one.what, one.severity) for one in found] == [("nccl", "error"), ("nccl", "error"), ("plugin", "error")]
    assert "/a/libnccl.so.2, /b/libnccl.so.2" in found[1].message


def test_while_an_image_is_built_a_plugin_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "libnccl-net-ofi.so"
    broken.write_bytes(b"no library")
    found = list(compare_built(FACTS, INSTALLED, ["/a/libnccl.so.2"], str(broken)))
    assert f"{broken} cannot be loaded" in found[0].message


def test_an_image_without_torch_or_cuda_needs_no_nccl_when_it_is_built() -> None:
    assert list(compare_built(Facts(row="small"), Installed(), [], None)) == []
    cpu = Facts(row="torch2.15-cpu", torch="2.15.0")
    assert list(compare_built(cpu, Installed(torch="2.15.0+cpu"), [], None)) == []


@pytest.mark.parametrize("text", [KERNEL, OPEN_KERNEL])
def test_the_driver_is_that_of_the_kernel(tmp_path: Path, text: str) -> None:
    file = tmp_path / "proc" / "driver" / "nvidia" / "version"
    file.parent.mkdir(parents=True)
    file.write_text(text.format("580.95.05"))
    assert seen.driver(tmp_path) == "580.95.05"
    assert seen.driver(tmp_path / "elsewhere") is None


def test_a_fabric_counts_only_where_its_devices_are_handed_to_the_container(tmp_path: Path) -> None:
    for name, vendor in (("rdmap0s6", "0x1d0f"), ("mlx5_0", "0x15b3"), ("other", "0x1234")):
        file = tmp_path / "sys" / "class" / "infiniband" / name / "device" / "vendor"
        file.parent.mkdir(parents=True)
        file.write_text(f"{vendor}\n")
    assert set(seen.fabrics(tmp_path)) == set()
    (tmp_path / "dev" / "infiniband").mkdir(parents=True)
    (tmp_path / "dev" / "infiniband" / "uverbs0").write_text("")
    assert set(seen.fabrics(tmp_path)) == {"efa", "infiniband"}


def test_several_nccl_are_found_by_what_they_are_and_not_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libnccl.so.2").write_text("")
    (tmp_path / "one" / "libnccl.so").symlink_to("libnccl.so.2")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/one:{tmp_path}/two::{tmp_path}/one")
    found = seen.nccl_on_paths()
    assert found[:2] == [f"{tmp_path}/one/libnccl.so.2", f"{tmp_path}/two/libnccl.so.2"]
    assert seen.nccl_anywhere(str(tmp_path)) == [f"{tmp_path}/one/libnccl.so.2", f"{tmp_path}/two/libnccl.so.2"]


def _write(folder: Path, **changes: object) -> Path:
    file = folder / "image.json"
    file.write_text(json.dumps({"schema": 1, "row": "torch2.15-cuda13.2", "variant": "cuda", **changes}))
    return file


def test_the_facts_of_a_rendered_image_are_read(tmp_path: Path) -> None:
    from images.matrix import matrix  # noqa: PLC0415
    from images.render import render  # noqa: PLC0415

    row = matrix().row("efa")
    file = tmp_path / "image.json"
    file.write_bytes(render(row).files["image.json"])
    facts = read(file)
    assert row.torch is not None
    assert (facts.row, facts.torch, facts.nccl) == (row.name, row.torch.version, row.torch.nccl)
    assert facts.minimum_driver == row.minimum_driver
    assert facts.plugin_files["amd64"] == row.plugin_file("amd64")
    assert facts.sm == row.sm


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"row": "x", "plugin": [1]}', '{"row": "x", "sm": 3}'])
def test_damaged_facts_are_one_warning_and_no_obstacle(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "image.json"
    file.write_text(text)
    monkeypatch.setenv("TRAINYARD_IMAGE_FACTS", str(file))
    with pytest.raises(FactsError):
        read(file)
    assert image.at_start() is None
    assert "cannot be read" in capsys.readouterr().err


def test_outside_of_images_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_IMAGE_FACTS", "/nonexistent")
    monkeypatch.setattr(seen, "look", lambda: pytest.fail("it looked"))
    assert image.at_start() is None


def test_an_error_ends_the_start_with_the_code_that_forbids_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _write(tmp_path, cuda="13.2", minimum_driver="580.65.06")
    monkeypatch.setenv("TRAINYARD_IMAGE_FACTS", str(file))
    monkeypatch.setattr(seen, "look", lambda: Machine("amd64", driver="470.82.01"))
    assert image.at_start() == exit_codes.DO_NOT_RESTART
    assert "image, error: the machine has NVIDIA driver 470.82.01" in capsys.readouterr().err


def test_whoever_knows_better_makes_warnings_of_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_IMAGE_FACTS", str(_write(tmp_path, cuda="13.2", minimum_driver="580.65.06")))
    monkeypatch.setenv("TRAINYARD_IMAGE_CHECK", "warn")
    monkeypatch.setattr(seen, "look", lambda: Machine("amd64", driver="470.82.01"))
    assert image.at_start() is None


def _diagnose(*arguments: str, facts: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "training.diagnose", "image", *arguments],
        env={**os.environ, "TRAINYARD_IMAGE_FACTS": str(facts)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_the_check_alone_writes_json_and_ends_with_its_verdict(tmp_path: Path) -> None:
    done = _diagnose("--json", facts=_write(tmp_path, torch="1.0.0"))
    assert done.returncode == exit_codes.FINISHED
    document = json.loads(done.stdout)
    assert document["built"]["torch"] == "1.0.0"
    assert [one["severity"] for one in document["findings"]] == ["warning"]


def test_the_check_of_a_build_fails_where_torch_is_another_one(tmp_path: Path) -> None:
    done = _diagnose("--built", facts=_write(tmp_path, torch="1.0.0", cuda="1.0", nccl="1.0"))
    assert done.returncode == exit_codes.DO_NOT_RESTART
    assert "error: torch 1.0.0 was built in" in done.stdout


def test_the_check_outside_of_images_says_so(tmp_path: Path) -> None:
    done = _diagnose(facts=tmp_path / "none.json")
    assert done.returncode == exit_codes.USAGE
    assert "no image of Trainyard's" in done.stderr


def test_the_launcher_compares_before_it_starts_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('worker ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", "training", str(script)],
        env={**os.environ, "TRAINYARD_IMAGE_FACTS": str(_write(tmp_path, torch="1.0.0"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == exit_codes.FINISHED
    assert "worker ran" in done.stdout
    assert done.stderr.count("image, warning: torch 1.0.0 was built in") == 1
