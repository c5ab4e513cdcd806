"""`trainyard images matrix` as a user meets it, and the page that says the same."""

import json
import sys
from typing import Any

import pytest

import infra.cli
from images.matrix import matrix
from images.reference import PAGE, page
from images.rules import RULES

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def run(capsys: Capture, monkeypatch: Patch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", "images", "matrix", *arguments])
    with pytest.raises(SystemExit) as ended:
        infra.cli.main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


def documents(capsys: Capture, monkeypatch: Patch, *arguments: str) -> Any:
    code, out, err = run(capsys, monkeypatch, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def names(capsys: Capture, monkeypatch: Patch, *arguments: str) -> list[str]:
    return [one["name"] for one in documents(capsys, monkeypatch, *arguments)["images"]]


def test_all_images_are_listed(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, err = run(capsys, monkeypatch)
    assert code == 0
    for row in matrix().rows:
        assert row.name in out
    assert "efa is torch2.15-cuda13.2-efa" in err


def test_json_has_every_row_with_what_follows_from_it(capsys: Capture, monkeypatch: Patch) -> None:
    found = documents(capsys, monkeypatch)
    assert [one["name"] for one in found] == [row.name for row in matrix().rows]
    efa = next(one for one in found if one["name"] == "torch2.15-cuda13.2-efa")
    assert (efa["nccl"], efa["plugin"], efa["python"], efa["minimum_driver"]) == (
        "2.30.7",
        "1.21.1",
        "3.12",
        "580.65.06",
    )


def test_one_image_is_shown_with_sources_and_rules(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, _ = run(capsys, monkeypatch, "efa")
    assert code == 0
    for part in ("torch2.15-cuda13.2-efa", "sha256:", "efa-changelog", "sm_100", "images/locks/torch-2.15.0.txt"):
        assert part in out
    for rule in RULES:
        assert rule.id in out


def test_a_value_that_nothing_confirms_is_marked(capsys: Capture, monkeypatch: Patch) -> None:
    assert "libnccl-net-ofi.so?" in run(capsys, monkeypatch, "efa")[1]
    assert "sm_120 compute_120?" in run(capsys, monkeypatch, "ngc26.08")[1]
    assert "sm_120?" not in run(capsys, monkeypatch, "torch2.9-cuda12.8")[1]


def test_an_old_driver_leaves_the_old_torch_and_says_why(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, err = run(capsys, monkeypatch, "--driver", "570.133.20")
    assert code == 0
    assert "torch2.9-cuda12.8" in out
    assert "torch2.15" not in out
    assert "Take torch2.9-cuda12.8" in err
    assert "570.133.20 is older than 580.65.06" in err


def test_a_machine_with_efa_is_told_to_take_the_efa_image(capsys: Capture, monkeypatch: Patch) -> None:
    found = documents(capsys, monkeypatch, "--gpu", "p5.48xlarge")
    assert found["take"] == "torch2.15-cuda13.2-efa"
    assert "ngc26.08" in [one["name"] for one in found["images"]]
    assert documents(capsys, monkeypatch, "--gpu", "p5.48xlarge", "--variant", "cuda")["take"] == "torch2.15-cuda13.2"


def test_an_arm_machine_gets_no_image_of_amd64_only(capsys: Capture, monkeypatch: Patch) -> None:
    found = documents(capsys, monkeypatch, "--gpu", "p6e-gb200.36xlarge")
    assert found["take"] == "torch2.15-cuda13.2-efa"
    assert all("arm64" in one["architectures"] for one in found["images"])
    assert "has no CUDA on arm64" in found["left_out"]["torch2.9-cuda12.8-efa"][0]


def test_filters_without_a_machine_name_nothing_to_take(capsys: Capture, monkeypatch: Patch) -> None:
    assert documents(capsys, monkeypatch, "--torch", "2.14")["take"] is None
    assert names(capsys, monkeypatch, "--torch", "2.14") == [
        "torch2.14-cpu",
        "torch2.14-cuda13.0",
        "torch2.14-cuda13.0-efa",
        "torch2.14-cuda13.0-infiniband",
    ]


def test_names_of_machines_may_be_those_of_the_kernel(capsys: Capture, monkeypatch: Patch) -> None:
    wanted = ("--gpu", "H100", "--arch")
    assert names(capsys, monkeypatch, *wanted, "aarch64") == names(capsys, monkeypatch, *wanted, "arm64")


def test_what_cannot_work_is_refused_with_every_reason(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, err = run(capsys, monkeypatch, "--torch", "2.15", "--gpu", "T4", "--arch", "arm64", "--driver", "550.1")
    assert (code, out) == (2, "")
    assert "driver-floor" in err
    assert "gpu-code" in err
    assert "Traceback" not in err


def test_all_wrong_filters_are_told_at_once(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, err = run(capsys, monkeypatch, "--variant", "tpu", "--gpu", "V100", "--arch", "riscv")
    assert (code, out) == (2, "")
    assert "--variant tpu: take one of cpu, cuda, efa, infiniband, ngc" in err
    assert "--gpu V100: the catalogue has no such GPU; it has B300" in err
    assert "--arch riscv: take one of amd64, arm64" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("efa", "--gpu", "H100"), "leave the filters out, or the image"),
        (("torch3-cuda",), "Nearest: torch2."),
        (("--gpu", "m7i.large"), "has no GPU"),
        (("--gpu", "p9.large"), "the catalogue has no instance type"),
        (("--gpu", "p5.48xlarge", "--arch", "arm64"), "is a machine of amd64, --arch is arm64"),
        (("--driver", "newest", "--gpu", "H100"), "the driver 'newest' is no version"),
        (("--variant", "ngc", "--torch", "2.15"), "images of NGC bring their own torch"),
    ],
)
def test_mistakes_are_plain_sentences(
    capsys: Capture, monkeypatch: Patch, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_the_page_says_what_the_matrix_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(matrix()), "run: python -m images.reference"
