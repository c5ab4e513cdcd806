"""What the tools print, as a user reads it: the step that runs, the reason of a failure, and what to do next."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from images.builders.failures import Work, of_file, sentence
from images.builders.steps import Reader, step

BUILD = Work("buildah", "the build of cpu", "amd64")
PUSH = Work("docker", "the push of registry.example/training:1", pushing=True)
PULL = "Error: creating build container: initializing source docker://debian:bookworm-slim: "


def explained(work: Work, *lines: str, step: str = "") -> str:
    return sentence(work, 1, lines, step, Path("/logs/cpu.log"))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("STEP 2/7: RUN  make   it", "step 2/7: RUN make it"),
        ("COMMIT trainyard/training:cpu", "writing the image trainyard/training:cpu"),
        ("[2/2] COMMIT trainyard/training:cpu", "writing the image trainyard/training:cpu"),
        ("#12 exporting to image", "writing the image"),
        ("#12 exporting to docker image format", "writing the image"),
        ("[1/2] STEP 3/3: COPY a /b", "stage 1/2, step 3/3: COPY a /b"),
        ("#9 [builder 3/8] RUN uv pip sync", "stage builder, step 3/8: RUN uv pip sync"),
        ("#5 [2/4] COPY image.json /etc/", "step 2/4: COPY image.json /etc/"),
        (
            "STEP 1/1: RUN --mount=type=secret,id=ca,target=/ca --mount=type=cache,id=a,target=/b pip",
            "step 1/1: RUN pip",
        ),
    ],
)
def test_steps_of_each_tool_are_recognised(line: str, shown: str) -> None:
    assert step(line) == shown


@pytest.mark.parametrize(
    "line", ["", "--> 4af1", "#9 DONE 1.2s", "Collecting STEP", "#1 [internal] load build definition"]
)
def test_other_output_is_no_step(line: str) -> None:
    assert step(line) is None


def test_a_long_instruction_is_cut() -> None:
    shown = step("STEP 1/1: RUN " + "x" * 500)
    assert shown is not None
    assert len(shown) < 120
    assert shown.endswith("…")


def test_each_step_is_told_once_with_its_time() -> None:
    told: list[str] = []
    reader = Reader(told.append)
    for line in ("STEP 1/2: FROM a", "Trying to pull a", "STEP 1/2: FROM a", "STEP 2/2: RUN b"):
        reader.read(line)
    assert [line.partition(" · ")[2] for line in told] == ["step 1/2: FROM a", "step 2/2: RUN b"]
    assert all(line.split()[1] == "s" for line in told)


@pytest.mark.parametrize(
    ("work", "line", "words"),
    [
        (BUILD, "write /a: no space left on device", ["disk is full", "buildah rmi --prune"]),
        (PUSH, "write /var/lib/x: disk quota exceeded", ["disk is full", "docker buildx prune"]),
        (BUILD, PULL + "dial tcp: lookup registry-1.docker.io: no such host", ["cannot be reached", "--base-image"]),
        (BUILD, PULL + "manifest unknown", ["images/matrix.toml", "--base-image"]),
        (BUILD, PULL + "unauthorized: authentication required", ["buildah login"]),
        (BUILD, PULL + 'pinging registry x: Get "https://x/v2/": x509: certificate signed by unknown authority',
         ["certs.d", "is for what runs inside the build"]),
        (BUILD, "SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')", ["--extra-ca FILE"]),
        (BUILD, "error: invalid peer certificate: UnknownIssuer", ["--extra-ca FILE", "not in the image"]),
        (BUILD, "W: https://mirror.example/debian: Certificate verification failed: The certificate is NOT trusted.",
         ["--extra-ca is not for apt", "--base-image"]),
        (BUILD, "exec /bin/sh: exec format error", ["cannot run programs of amd64", "qemu-user-static"]),
        (BUILD, "no image found in manifest list for architecture arm64", ["does not exist for amd64"]),
        (BUILD, "Could not resolve 'deb.debian.org'", ["from inside the build", "DNS", "HTTPS_PROXY, which the build"]),
        (Work("docker", "the build of cpu"), "Could not resolve 'deb.debian.org'", ["~/.docker/config.json"]),
        (BUILD, "error: Hash mismatch for `six==1.0`", ["not the one of the lock"]),
        (BUILD, "while running runtime: signal: killed", ["memory"]),
        (BUILD, "Error: while running runtime: exit status 1", ["BUILDAH_ISOLATION=chroot"]),
        (PUSH, "denied: requested access to the resource is denied", ["docker login"]),
        (PUSH, "tag invalid: The image tag '1' already exists and the repository is immutable", ["--tag"]),
        (PUSH, "name unknown: The repository with name 'training' does not exist", ["trainyard up -s STACK"]),
        (PUSH, "dial tcp 10.0.0.1:443: connect: connection refused", ["the registry cannot be reached"]),
    ],
)  # fmt: skip
def test_a_known_reason_is_a_sentence_with_a_remedy(work: Work, line: str, words: list[str]) -> None:
    said = explained(work, "much before", line, "")
    assert said.startswith(f"{work.what} failed")
    for word in words:
        assert word in said
    assert said.endswith("The whole output: /logs/cpu.log")


def test_an_authority_that_did_not_help_is_not_asked_for_again() -> None:
    said = explained(Work("buildah", "the build of cpu", extra_ca=True), "certificate verify failed")
    assert "nor those of --extra-ca" in said


def test_a_local_base_that_is_not_in_the_store_is_to_be_imported() -> None:
    work = Work("buildah", "the build of cpu", "arm64", base="localhost/base:1")
    said = explained(work, 'creating build container: pinging localhost: Get "https://localhost/v2/": refused')
    assert "localhost/base:1 is not in the store of buildah, at least not for arm64" in said


def test_an_unknown_reason_shows_how_the_output_ends_and_at_which_step() -> None:
    said = explained(
        BUILD, "a", "b", "SyntaxError: expected", "subprocess exited with status 1", step="step 3/7: RUN x"
    )
    assert said.startswith("the build of cpu failed at step 3/7: RUN x: buildah ended with 1. The whole output:")
    assert said.endswith("It ends:\n  a\n  b\n  SyntaxError: expected")


def test_a_tool_that_a_signal_ended_is_said_to_be() -> None:
    assert sentence(BUILD, -9, [], "", None) == "the build of cpu failed: SIGKILL ended buildah."


def test_lines_without_end_are_cut() -> None:
    assert len(explained(BUILD, "x" * 100_000)) < 1000


def test_a_file_that_cannot_be_written_is_a_sentence() -> None:
    assert "the disk is full: /a cannot be written" in of_file(OSError(errno.ENOSPC, "No space"), Path("/a"))
    assert of_file(OSError(errno.EACCES, "Permission denied"), Path("/a")) == "/a cannot be written: Permission denied"
