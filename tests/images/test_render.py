"""Every row renders: the same each time, from parts that are all in the folder."""

from __future__ import annotations

import json
import re
from typing import Any

import dockerfile
import jinja2
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation
from syrupy.types import SnapshotIndex

from images import render as module
from images.bake import bake
from images.context import Context
from images.lint.document import parse
from images.matrix import matrix
from images.render import render, render_all
from images.source import project_version

ROWS = [row.name for row in matrix().rows]
TRAINING = [row.name for row in matrix().rows if row.kind == "training"]


class DockerfileExtension(SingleFileSnapshotExtension):
    """One snapshot, one Dockerfile, which editors show as such."""

    _write_mode = WriteMode.TEXT
    file_extension = "Dockerfile"

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: SnapshotIndex = 0) -> str:  # noqa: ARG003
        return str(index)


@pytest.fixture(scope="module")
def contexts() -> dict[str, Context]:
    return render_all()


@pytest.mark.parametrize("name", ROWS)
def test_the_dockerfile_of_each_row_is_the_one_that_was_reviewed(
    name: str, contexts: dict[str, Context], snapshot: SnapshotAssertion
) -> None:
    # What changes with every release is not what is reviewed; a digest that `images pin` writes is.
    text = contexts[name].dockerfile.replace(f"ARG VERSION={project_version()}\n", "ARG VERSION=0.0.0\n")
    assert text == snapshot(extension_class=DockerfileExtension, name=name)


@pytest.mark.parametrize("name", ROWS)
def test_buildkit_s_own_parser_reads_each_dockerfile(name: str, contexts: dict[str, Context]) -> None:
    assert dockerfile.parse_string(contexts[name].dockerfile)


@pytest.mark.parametrize("name", ROWS)
def test_everything_that_a_dockerfile_copies_is_in_its_folder(name: str, contexts: dict[str, Context]) -> None:
    for source in _copied(contexts[name].dockerfile):
        assert any(file == source or file.startswith(source.rstrip("/") + "/") for file in contexts[name].files), source


def _copied(text: str) -> list[str]:
    return [
        source
        for one in dockerfile.parse_string(text)
        if one.cmd.upper() == "COPY" and not any(flag.startswith("--from") for flag in one.flags)
        for source in one.value[:-1]
    ]


@pytest.mark.parametrize("name", ROWS)
def test_no_image_runs_as_root_or_through_a_shell(name: str, contexts: dict[str, Context]) -> None:
    instructions = dockerfile.parse_string(contexts[name].dockerfile)
    assert [one.value for one in instructions if one.cmd.upper() == "USER"][-1] == ("65532:65532",)
    assert [one.json for one in instructions if one.cmd.upper() == "ENTRYPOINT"] == [True]


def test_rendering_twice_gives_the_same_bytes(contexts: dict[str, Context]) -> None:
    for name in ("cpu", "efa", "ngc", "nccl-tests", "controller"):
        row = matrix().row(name)
        assert dict(render(row).files) == dict(contexts[row.name].files)


@pytest.mark.parametrize("name", TRAINING)
def test_training_images_carry_the_launcher_without_controller_byte_code_and_tests(
    name: str, contexts: dict[str, Context]
) -> None:
    files = contexts[name].files
    assert "trainyard/training/launch/main.py" in files
    assert "trainyard/training/diagnose/image.py" in files
    assert b"etcd-v3 = " in next(data for path, data in files.items() if path.endswith("entry_points.txt"))
    assert not [path for path in files if "controller" in path or "__pycache__" in path or "test" in path]


def test_the_controller_carries_what_it_imports_and_no_torch(contexts: dict[str, Context]) -> None:
    files = contexts["controller"].files
    assert "trainyard/training/launch/etcd_client.py" in files
    assert "trainyard/training/launch/main.py" not in files
    assert "trainyard/training/checkpoint/folder.py" not in files
    assert b"torch==" not in files["requirements.txt"]
    assert b"nvidia" not in files["requirements.txt"]


def test_an_image_for_cpus_leaves_the_compiler_of_kernels_out(contexts: dict[str, Context]) -> None:
    cpu, cuda = contexts[matrix().row("cpu").name], contexts[matrix().row("cuda").name]
    assert b"\ntriton==" in cuda.files["requirements.txt"]
    assert b"\ntriton==" not in cpu.files["requirements.txt"]
    assert cpu.files["requirements.txt"].count(b"==") < cuda.files["requirements.txt"].count(b"==")


def test_nothing_installs_another_torch_on_nvidia_s_image(contexts: dict[str, Context]) -> None:
    for name in (row.name for row in matrix().rows if row.variant == "ngc"):
        assert not re.search(rb"^(torch|triton|nvidia-)", contexts[name].files["requirements.txt"], flags=re.MULTILINE)


def test_facts_say_what_was_built(contexts: dict[str, Context]) -> None:
    row = matrix().row("efa")
    facts = json.loads(contexts[row.name].files["image.json"])
    assert row.torch is not None
    assert row.efa is not None
    assert facts["torch"] == row.torch.version
    assert facts["nccl"] == row.torch.nccl
    assert facts["minimum_driver"] == row.minimum_driver
    assert facts["plugin"]["version"] == row.efa.plugin
    assert facts["plugin"]["files"]["amd64"] == row.plugin_file("amd64")
    assert facts["sm"]["amd64"] == list(row.sm["amd64"])


def test_no_build_reads_nvidia_s_repository_of_packages(contexts: dict[str, Context]) -> None:
    for context in contexts.values():
        for stage in parse(context.dockerfile).stages:
            updates = [one for one in stage.all("RUN") if "apt-get update" in one.text]
            if updates and stage.parent is None and stage.base.startswith(("nvidia/", "nvcr.io/")):
                assert updates[0].text.startswith("rm -f /etc/apt/sources.list.d/cuda*.list "), context.row.name


def test_labels_name_the_driver_that_the_image_needs(contexts: dict[str, Context]) -> None:
    row = matrix().row("cuda")
    assert f'dev.trainyard.minimum-driver="{row.minimum_driver}"' in contexts[row.name].dockerfile


def test_no_image_sets_what_nccl_and_the_plugin_decide_themselves(contexts: dict[str, Context]) -> None:
    obsolete = re.compile(r"^ENV (FI_|NCCL_(PROTO|ALGO|IB_|BUFFSIZE|P2P|TUNER|TOPO|SOCKET)|RDMAV|LD_LIBRARY_PATH)")
    for context in contexts.values():
        assert not [line for line in context.dockerfile.splitlines() if obsolete.match(line)]


def test_a_value_that_a_template_lacks_is_an_error_and_no_empty_text() -> None:
    with pytest.raises(jinja2.UndefinedError, match="title"):
        module._templates().get_template("controller.Dockerfile.j2").render({"row": matrix().row("controller")})


def test_machines_with_different_gpus_compile_for_their_own(contexts: dict[str, Context]) -> None:
    row = matrix().row("nccl-tests")
    assert row.sm["amd64"] != row.sm["arm64"]
    codes = " ".join(code.removeprefix("sm_") for code in row.sm["arm64"])
    assert f'aarch64) codes="{codes}" ;;' in contexts[row.name].dockerfile


def test_without_torch_a_training_image_has_the_same_stages(contexts: dict[str, Context]) -> None:
    row = matrix().row("cpu")
    small = row.model_copy(update={"leave_out": ("torch", "triton")})
    context = render(small)
    assert _stages(context.dockerfile) == _stages(contexts[row.name].dockerfile)
    assert json.loads(context.files["image.json"])["torch"] is None
    assert b"\ntorch==" not in context.files["requirements.txt"]


def _stages(text: str) -> list[str]:
    return re.findall(r"^FROM .* AS (\S+)$", text, flags=re.MULTILINE)


def test_the_bake_file_builds_every_row_for_all_its_architectures(contexts: dict[str, Context]) -> None:
    document = bake(contexts)
    targets: dict[str, Any] = document["target"]
    assert document["group"]["default"]["targets"] == list(targets)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in targets)
    assert [one["context"] for one in targets.values()] == list(contexts)
    for context, target in zip(contexts.values(), targets.values(), strict=True):
        assert target["platforms"] == [f"linux/{name}" for name in context.row.architectures]
        assert target["attest"] == ["type=provenance,mode=max", "type=sbom"]
    tags = [tag for one in targets.values() for tag in one["tags"]]
    assert len(set(tags)) == len(tags) == len(targets)
    used = set(re.findall(r"\$\{(\w+)\}", json.dumps(targets)))
    assert used == set(document["variable"])
