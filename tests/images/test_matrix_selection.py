"""Which image a wish and a machine get, and what is said where none fits."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.errors import MatrixError
from images.matrix import Architecture, Kind, Row, Variant, matrix
from images.rules import Subject, violations

RELEASES = [one.version for one in matrix().torch_releases]


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        ({}, "torch2.15-cpu"),
        ({"torch": "2.14"}, "torch2.14-cpu"),
        ({"torch": "2.14.1", "variant": "efa"}, "torch2.14-cuda13.0-efa"),
        ({"driver": "580.159.03"}, "torch2.15-cuda13.2"),
        ({"driver": "570.133.20"}, "torch2.9-cuda12.8"),
        ({"compute_capability": "9.0", "variant": "efa", "architecture": "arm64"}, "torch2.15-cuda13.2-efa"),
        ({"compute_capability": "7.0"}, "torch2.9-cuda12.8"),
        ({"compute_capability": "7.5"}, "torch2.15-cuda13.2"),
        ({"variant": "ngc"}, "ngc26.08"),
        ({"kind": "controller"}, "controller"),
        ({"kind": "nccl-tests"}, "nccl-tests-cuda13.2"),
        ({"kind": "nccl-tests", "variant": "efa", "torch": "2.13"}, "nccl-tests-cuda13.0-efa"),
    ],
)
def test_the_newest_image_that_works_is_taken(wish: dict[str, str], name: str) -> None:
    assert matrix().select(**wish).name == name  # type: ignore[arg-type]


def refusal(**wish: str) -> str:
    with pytest.raises(MatrixError) as caught:
        matrix().select(**wish)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_unknown_torch_is_refused_with_those_that_are_there_and_the_nearest() -> None:
    said = refusal(torch="2.11", variant="cuda")
    assert "there is no image with torch 2.11, only with 2.15.0, 2.14.1, 2.13.0, 2.12.1, 2.9.1." in said
    assert "Nearest that works: torch2.12-cuda13.0 (" in said


def test_cuda_too_new_for_the_driver_is_refused_and_the_older_torch_named() -> None:
    said = refusal(torch="2.15", driver="570.133.20")
    assert "570.133.20 is older than 580.65.06, which CUDA 13.2 needs" in said
    assert "Nearest that works: torch2.9-cuda12.8 (torch 2.9.1, CUDA 12.8, driver 525.60.13 or newer, amd64)." in said


def test_arm64_with_wheels_for_cpus_only_is_refused() -> None:
    said = refusal(torch="2.9", variant="efa", architecture="arm64")
    assert "torch 2.9.1 has no CUDA on arm64" in said
    assert "Nearest that works: torch2.12-cuda13.0-efa" in said


def test_all_broken_rules_are_told_in_one_go() -> None:
    said = refusal(torch="2.15", driver="520.61.05", compute_capability="7.0")
    for rule in ("driver-floor", "gpu-code", "cuda-13-generations"):
        assert f"({rule})" in said
    assert said.startswith("this cannot work:\n")
    assert "No image works with the GPUs of this machine." in said
    assert "The oldest driver that any of them takes is 525.60.13." in said


def test_nobody_who_wants_the_gpus_is_offered_an_image_that_leaves_them_idle() -> None:
    assert "Nearest" not in refusal(driver="400.1", compute_capability="7.0")


def test_ngc_with_a_torch_is_refused() -> None:
    said = refusal(variant="ngc", torch="2.15")
    assert "images of NGC bring their own torch (ngc26.08 has 2.14.0a0, ngc26.03 has 2.11.0a0)" in said
    assert "Nearest that works: ngc26.08" in said


def test_a_controller_with_a_torch_is_refused() -> None:
    assert "the controller image has no torch, 2.15 was wanted" in refusal(kind="controller", torch="2.15")


def test_nonsense_is_told_as_such() -> None:
    said = refusal(driver="new", compute_capability="sm_90")
    assert "the driver 'new' is no version" in said
    assert "the compute capability 'sm_90' has to be written as 9.0" in said


@settings(max_examples=300)
@given(
    torch=st.sampled_from([None, *RELEASES, *(one.rpartition(".")[0] for one in RELEASES), "2.8", "nightly", ""]),
    variant=st.sampled_from([None, *get_args(Variant)]),
    architecture=st.sampled_from([None, *get_args(Architecture)]),
    kind=st.sampled_from(get_args(Kind)),
    driver=st.one_of(st.none(), st.builds("{}.{}".format, st.integers(390, 620), st.integers(0, 99))),
    capability=st.one_of(st.none(), st.builds("{}.{}".format, st.integers(3, 13), st.integers(0, 9))),
)
def test_what_is_selected_breaks_no_rule_and_what_is_refused_had_no_image(
    torch: str | None,
    variant: Variant | None,
    architecture: Architecture | None,
    kind: Kind,
    driver: str | None,
    capability: str | None,
) -> None:
    def works(row: Row) -> bool:
        own = [architecture] if architecture else list(row.architectures)
        return any(not violations(Subject(row, one, driver, capability)) for one in own)

    default = "cuda" if driver or capability or kind == "nccl-tests" else "cpu"
    wanted_variant = None if kind == "controller" else variant or default
    try:
        row = matrix().select(
            torch=torch,
            variant=variant,
            architecture=architecture,
            kind=kind,
            driver=driver,
            compute_capability=capability,
        )
    except MatrixError:
        fitting = [
            one
            for one in matrix().rows
            if (one.kind, one.variant) == (kind, wanted_variant)
            and works(one)
            and (
                torch is None or (one.torch and not one.torch.bundled and torch in (one.torch.version, one.torch.minor))
            )
        ]
        assert fitting == []
    else:
        assert works(row)
        assert (row.kind, row.variant) == (kind, wanted_variant)
        assert kind == "nccl-tests" or torch is None or (row.torch and torch in (row.torch.version, row.torch.minor))
