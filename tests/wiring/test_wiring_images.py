"""Each pool runs the image for its GPUs and its fabric, and only images that its machines can run."""

from __future__ import annotations

from typing import Any

import pytest

from images.matrix import matrix
from infra.clusters import CHECKOUT
from infra.settings import Aws, AwsNetwork, AwsNodePool, AwsRegistry, AwsSystemPool, Settings, Target, read_stack_file
from infra.settings.images import Images
from infra.wiring.errors import WiringError
from infra.wiring.images import (
    architectures_for,
    fitting_torch,
    repository_for,
    row_for_pool,
    rows_for_stack,
    torch_of,
    unpinned_images,
    why_not,
)
from infra.wiring.references import is_pinned, is_reference, repository_of

DRIVER = "580.159.03"
TARGETS: tuple[Target, ...] = ("kubeconfig", "local")
DIGEST = f"@sha256:{'1' * 64}"


def pool(*types: str, efa: bool = False) -> AwsNodePool:
    return AwsNodePool(name="gpu", types=types, efa=efa, zone="us-east-2a")


def stack(*pools: AwsNodePool, torch: str | None = None, system: str = "m7i.large") -> Settings:
    aws = Aws(
        region="us-east-2",
        network=AwsNetwork(zones=("us-east-2a", "us-east-2b")),
        node_pools=pools,
        system_pool=AwsSystemPool(types=(system,)),
    )
    return Settings(target="aws", aws=aws, images=Images(torch=torch))


def test_gpu_and_fabric_choose_the_variant() -> None:
    assert row_for_pool(pool("p5.48xlarge", efa=True), "2.15").name == "torch2.15-cuda13.2-efa"
    assert row_for_pool(pool("p5.48xlarge"), "2.15").name == "torch2.15-cuda13.2"
    assert row_for_pool(pool("m7i.large"), "2.15").name == "torch2.15-cpu"


def test_torch_is_the_stack_s_or_the_newest() -> None:
    assert row_for_pool(pool("g6.xlarge"), "2.9").name == "torch2.9-cuda12.8"
    assert row_for_pool(pool("g6.xlarge"), "2.9.1").name == "torch2.9-cuda12.8"
    newest = matrix().torch_releases[0]
    assert torch_of(None) == newest.minor
    assert row_for_pool(pool("g6.xlarge"), None).torch == newest


def test_a_stack_needs_its_controller_the_images_of_its_pools_and_nccl_s_tests_for_efa() -> None:
    settings = stack(pool("g6.xlarge"), pool("p5.48xlarge", efa=True), pool("p4d.24xlarge", efa=True), torch="2.15")
    assert [row.name for row in rows_for_stack(settings)] == [
        "controller",
        "torch2.15-cuda13.2",
        "torch2.15-cuda13.2-efa",
        "nccl-tests-cuda13.2-efa",
    ]
    assert [row.name for row in rows_for_stack(stack())] == ["controller"]


@pytest.mark.parametrize("torch", [release.minor for release in matrix().torch_releases])
def test_every_torch_has_all_rows_of_a_stack(torch: str) -> None:
    rows = rows_for_stack(stack(pool("g6.xlarge"), pool("p5.48xlarge", efa=True), torch=torch))
    assert [row.kind for row in rows] == ["controller", "training", "training", "nccl-tests"]
    assert len({row.cuda for row in rows if row.cuda}) == 1


def test_clusters_whose_machines_are_not_known_get_the_image_that_runs_anywhere() -> None:
    elsewhere, here = (Settings(target=target, images=Images(torch="2.15")) for target in TARGETS)
    assert [row.name for row in rows_for_stack(elsewhere)] == ["controller", "torch2.15-cuda13.2"]
    assert [row.name for row in rows_for_stack(here)] == ["controller", "torch2.15-cpu"]


def test_images_are_built_for_the_machines_on_which_they_run() -> None:
    settings = stack(pool("g6.xlarge"), pool("p6e-gb200.36xlarge"), pool("p5.48xlarge", efa=True), system="m7g.large")
    by_row = {row.name: architectures_for(settings, row) for row in rows_for_stack(settings)}
    assert by_row == {
        "controller": ("arm64",),
        "torch2.15-cuda13.2": ("amd64", "arm64"),
        "torch2.15-cuda13.2-efa": ("amd64",),
        "nccl-tests-cuda13.2-efa": ("amd64",),
    }


def test_each_kind_has_its_repository() -> None:
    aws = stack().aws
    assert aws is not None
    for row in rows_for_stack(stack(pool("p5.48xlarge", efa=True))):
        assert repository_for(row, aws) == row.kind
    without = aws.model_copy(update={"registry": AwsRegistry(repositories=("training",))})
    with pytest.raises(WiringError, match=r"aws.registry.repositories does not name it \(training\)"):
        repository_for(matrix().row("controller"), without)


def test_machines_that_can_run_their_image_have_nothing_against_it() -> None:
    assert why_not(pool("g6.xlarge", "g5.xlarge"), "2.15", driver=DRIVER) == []
    assert why_not(pool("p5.48xlarge", efa=True), "2.15", driver=None) == []


def test_a_driver_below_the_floor_is_said_with_both_numbers() -> None:
    (found,) = why_not(pool("g6.xlarge", "g5.xlarge"), "2.15", driver="570.26")
    assert "570.26 is older than 580.65.06, which CUDA 13.2 needs" in found
    assert why_not(pool("g6.xlarge"), "2.9", driver="570.26") == []


def test_what_runs_on_all_pools_is_the_newest_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = stack(pool("g6.xlarge"), pool("p5.48xlarge", efa=True))
    assert settings.aws is not None
    assert fitting_torch(settings.aws) == matrix().torch_releases[0].minor
    monkeypatch.setattr("infra.wiring.images.driver_of", lambda *_: "570.26")
    assert fitting_torch(settings.aws) == "2.9"
    monkeypatch.setattr("infra.wiring.images.driver_of", lambda *_: "470.0")
    assert fitting_torch(settings.aws) is None


@pytest.mark.parametrize("name", ["dev", "prod"])
def test_the_example_stacks_run_the_newest_torch(name: str) -> None:
    settings = read_stack_file(CHECKOUT / f"Pulumi.{name}.yaml", name)
    assert settings.aws is not None
    assert settings.images.torch == matrix().torch_releases[0].minor == fitting_torch(settings.aws)
    for row in rows_for_stack(settings):
        assert repository_for(row, settings.aws)


def job(*images: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "c", "image": image} for image in images]}}
    return {"metadata": {"name": "train"}, "spec": {"replicaSpecs": {"Worker": {"template": template}}}}


def test_images_without_a_digest_are_named_with_what_was_built() -> None:
    built = {"torch2.15-cuda13.2": f"r.example:5000/t/training:7{DIGEST}", "controller": f"r.example/c{DIGEST}"}
    assert unpinned_images(job(f"r.example/x{DIGEST}"), built) == []
    (found,) = unpinned_images(job("r.example:5000/t/training:1", f"r.example/x{DIGEST}"), built)
    assert found.startswith("job train names image r.example:5000/t/training:1 without a digest: workers that start")
    assert f"Built for this stack: r.example:5000/t/training:7{DIGEST} (torch2.15-cuda13.2)" in found
    (found,) = unpinned_images(job("other/training"), built)
    assert "Built for" not in found


@pytest.mark.parametrize("spec", [None, [], {"replicaSpecs": 1}, {"replicaSpecs": {"Worker": {"template": []}}}])
def test_manifests_of_another_shape_are_left_to_the_api_server(spec: Any) -> None:
    assert unpinned_images({"metadata": {"name": "x"}, "spec": spec}, {}) == []
    assert unpinned_images(job(1, None), {}) == []


def test_a_reference_is_taken_apart() -> None:
    assert repository_of(f"r.example:5000/a/b:1{DIGEST}") == "r.example:5000/a/b"
    assert repository_of("r.example:5000/a/b") == "r.example:5000/a/b"
    assert repository_of("b:1") == "b"
    assert is_pinned(f"b:1{DIGEST}")
    assert not is_pinned(f"b:1{DIGEST[:-1]}")
    assert is_reference("r.example:5000/a/b:1")
    assert is_reference("my_image:1")
    assert not is_reference("r.example/A b")
