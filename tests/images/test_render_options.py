"""What users add to an image: it comes in, or a sentence says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from images import source
from images.errors import MatrixError
from images.matrix import matrix
from images.render import Options, render
from infra.errors import UsageError

HASH = "--hash=sha256:" + "0" * 64
CPU, CUDA, NGC = matrix().row("cpu"), matrix().row("cuda"), matrix().row("ngc")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print('training')\n")
    (folder / "package" / "__init__.py").write_text("")
    return folder


def _requirements(tmp_path: Path, text: str) -> Options:
    file = tmp_path / "requirements.txt"
    file.write_text(text)
    return Options(requirements=file)


def test_source_comes_to_the_workspace_without_caches_and_hidden_files(code: Path) -> None:
    (code / ".env").write_text("TOKEN=secret")
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "train.cpython-311.pyc").write_bytes(b"")
    context = render(CPU, Options(source=code))
    assert {name for name in context.files if name.startswith("source/")} == {
        "source/package/__init__.py",
        "source/train.py",
    }
    assert "COPY source/ /workspace/" in context.dockerfile
    assert context.left_out == (str(code / ".env"),)


def test_a_link_within_the_source_is_copied_as_what_it_points_to(code: Path) -> None:
    (code / "same.py").symlink_to("train.py")
    assert render(CPU, Options(source=code)).files["source/same.py"] == b"print('training')\n"


def test_a_link_out_of_the_source_is_refused(code: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    (code / "config").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match=r"config is a link to .*, outside of"):
        render(CPU, Options(source=code))


def test_a_link_to_a_hidden_file_is_refused(code: Path) -> None:
    (code / ".env").write_text("TOKEN=secret")
    (code / "env").symlink_to(".env")
    with pytest.raises(UsageError, match="begins with a dot"):
        render(CPU, Options(source=code))


def test_links_that_lead_nowhere_or_to_folders_pipes_and_large_files_are_refused_together(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LONGEST_FILE", 100)
    (code / "weights.bin").write_bytes(b"0" * 101)
    (code / "circle").symlink_to("circle")
    (code / "gone").symlink_to("nowhere")
    (code / "folder").symlink_to("package")
    os.mkfifo(code / "pipe")
    with pytest.raises(UsageError) as caught:
        render(CPU, Options(source=code))
    said = str(caught.value)
    for name in ("weights.bin has", "circle cannot be read", "gone cannot be read", "folder is a link to a folder"):
        assert name in said
    assert "pipe is neither a file nor a folder" in said


def test_too_much_source_is_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LARGEST_SOURCE", 10)
    with pytest.raises(UsageError, match="is it the right one"):
        render(CPU, Options(source=code))


def test_source_that_would_hide_the_launcher_is_refused(code: Path) -> None:
    (code / "training").mkdir()
    (code / "training" / "__init__.py").write_text("")
    with pytest.raises(UsageError, match=r"python -m training.*hide"):
        render(CPU, Options(source=code))


@pytest.mark.parametrize("name", ["no/such/folder", "train.py", "empty"])
def test_source_that_is_no_folder_with_files_is_refused(code: Path, name: str) -> None:
    (code / "empty").mkdir()
    with pytest.raises(UsageError, match=r"is no folder|has no files"):
        render(CPU, Options(source=code / name))


def test_a_name_with_a_newline_cannot_write_into_the_dockerfile(code: Path) -> None:
    (code / "a\nRUN evil").write_text("")
    with pytest.raises(UsageError, match="control characters"):
        render(CPU, Options(source=code))


@pytest.mark.parametrize("name", ["git\nRUN evil", "git; evil", "-o=x", "$(evil)", "", "git \\", "Git", "git-"])
def test_names_of_packages_cannot_write_into_the_dockerfile_or_remove_a_package(name: str) -> None:
    with pytest.raises(UsageError, match="apt package"):
        render(CPU, Options(apt=(name,)))


def test_packages_of_the_distribution_come_beside_the_row_s_own_in_order() -> None:
    text = render(matrix().row("infiniband"), Options(apt=("zstd", "git=1:2.39.5-0+deb12u2"))).dockerfile
    line = text[text.index("ca-certificates") : text.index("apt-get clean")]
    names = [word for word in line.split() if word not in ("\\", "&&")]
    assert names == sorted(names)
    assert {"zstd", "git=1:2.39.5-0+deb12u2", "libibverbs1"} <= set(names)


@pytest.mark.parametrize("base", ["x\nRUN evil", "x y", "-x", "", "debian:bookworm@sha256:12", "${EVIL}"])
def test_names_of_base_images_cannot_write_into_the_dockerfile(base: str) -> None:
    with pytest.raises(UsageError, match="no reference of an image"):
        render(CPU, Options(base=base))


def test_a_base_of_one_s_own_replaces_the_row_s() -> None:
    context = render(CPU, Options(base="localhost/base:bookworm"))
    assert "ARG BASE_IMAGE=localhost/base:bookworm\n" in context.dockerfile
    assert b'"base": "localhost/base:bookworm"' in context.files["image.json"]


def test_requirements_that_the_image_lacks_get_a_layer_of_their_own(tmp_path: Path) -> None:
    text = f"# mine\nEinops==0.8.1 \\\n    {HASH}\nnumpy=={_version('numpy')} {HASH}\n"
    context = render(CPU, _requirements(tmp_path, text))
    assert context.files["extra-requirements.txt"].decode().splitlines()[0] == "Einops==0.8.1 \\"
    assert b"numpy" not in context.files["extra-requirements.txt"]
    assert "COPY --from=extra /opt/trainyard/extra /opt/trainyard/extra" in context.dockerfile


def _version(name: str) -> str:
    lines = render(CPU).files["requirements.txt"].decode().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{name}=="))


def test_requirements_cannot_bring_another_torch(tmp_path: Path) -> None:
    options = _requirements(tmp_path, f"torch==2.0.0 {HASH}\nnvidia-nccl-cu13==2.19.3 {HASH}\n")
    with pytest.raises(UsageError, match=r"torch==2\.0\.0, but this image has") as caught:
        render(CUDA, options)
    assert "nvidia-nccl-cu13==2.19.3" in str(caught.value)


def test_requirements_cannot_replace_what_nvidia_s_image_brings(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="torch comes with the base image"):
        render(NGC, _requirements(tmp_path, f"torch==2.15.0 {HASH}\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("einops>=0.8\n", "not locked as NAME==VERSION"),
        ("einops==0.8.1\n", "einops has no hash"),
        (f"einops @ https://example.com/einops.whl {HASH}\n", "not locked"),
        (f"--index-url https://user:word@example.com\neinops==0.8.1 {HASH}\n", "is an option"),
        ("-r other.txt\n", "is an option"),
        ("-e .\n", "is an option"),
        ("../../etc/passwd\n", "not locked"),
    ],
)
def test_requirements_that_are_not_locked_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        render(CPU, _requirements(tmp_path, text))


def test_requirements_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, said in (("none.txt", "cannot be read"), ("binary", "is no text")):
        with pytest.raises(UsageError, match=said):
            render(CPU, Options(requirements=tmp_path / name))


def test_compiling_builds_on_the_image_with_nvcc_and_runs_on_the_same_distribution(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"flash-attn==2.8.3 {HASH}\nninja==1.13.0 {HASH}\n")
    context = render(CUDA, Options(requirements=file, compile=True))
    assert CUDA.builder is not None
    assert CUDA.compiled_base is not None
    assert CUDA.builder.distribution == CUDA.compiled_base.distribution
    assert f"ARG BUILDER_IMAGE={CUDA.builder.pinned}\n" in context.dockerfile
    assert f"ARG BASE_IMAGE={CUDA.compiled_base.pinned}\n" in context.dockerfile
    assert "FROM ${BUILDER_IMAGE} AS tools\n" in context.dockerfile
    assert b"ninja" in context.files["extra-tools.txt"]
    assert b"flash-attn" in context.files["extra-requirements.txt"]
    assert "9.0" in context.dockerfile[context.dockerfile.index("codes=") :].splitlines()[0]


def test_without_compiling_no_image_with_nvcc_is_needed(tmp_path: Path) -> None:
    context = render(CUDA, _requirements(tmp_path, f"einops==0.8.1 {HASH}\n"))
    assert "devel" not in context.dockerfile


def test_compiling_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to compile") as caught:
        render(CPU, Options(compile=True))
    assert "needs an image with nvcc" in str(caught.value)


def test_images_without_a_place_for_code_refuse_it_with_all_other_mistakes(code: Path) -> None:
    with pytest.raises(UsageError, match="--source is for training images") as caught:
        render(matrix().row("controller"), Options(source=code, compile=True, apt=("a b",)))
    assert "--compile is for training images" in str(caught.value)
    assert "apt package 'a b'" in str(caught.value)


def test_a_row_without_its_lock_names_the_command_that_writes_it() -> None:
    with pytest.raises(MatrixError, match=r"images/locks/gone\.txt is missing.*make lock"):
        render(CPU.model_copy(update={"lock": "gone.txt"}))
