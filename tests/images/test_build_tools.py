"""Finding a tool, what it is asked for, and how a run of it ends; the tools are small scripts on PATH here."""

from __future__ import annotations

import datetime
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from images.builders import debootstrap, docker, find_tool, trust
from images.builders.built import Order
from images.builders.containers import Buildah, Podman, build_command
from images.builders.failures import Work
from images.builders.files import complete
from images.builders.mounts import secrets_of
from images.builders.running import run
from images.errors import BuildError
from images.matrix import matrix
from images.render import render

MINUTES = 120.0  # seconds; only a limit
Script = Callable[[str, str], Path]
IN_PIECES = """\
import sys
from pathlib import Path
from images.builders.failures import Work
from images.builders.running import run
run(sys.argv[1:], Work("tool", "the build of x"), log=Path("log"))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Puts a shell script on a PATH that has nothing else but the shell's own programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cat", "sleep", "touch"):
        found = next(path for path in (Path("/bin"), Path("/usr/bin")) if (path / name).exists())
        (folder / name).symlink_to(found / name)
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, body: str) -> Path:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def order(tmp_path: Path) -> Order:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\n")
    return Order(row="cpu", context=context, tag="trainyard/training:cpu", architecture="arm64", log=tmp_path / "log")


@pytest.fixture(scope="module")
def authority() -> str:
    """A certificate of an authority that nobody knows."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of a test")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1)).sign(
        key, hashes.SHA256()
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def test_the_first_tool_that_can_build_is_taken(script: Script) -> None:
    script("buildah", "exit 0")
    assert find_tool().name == "buildah"
    script("podman", "exit 0")
    assert find_tool().name == "podman"
    script("docker", "echo 27.0")
    assert find_tool().name == "docker"
    assert find_tool("buildah").name == "buildah"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 1", "no engine answers the client"),
        ('[ "$1" = version ] && echo 27.0', "it has no buildx"),
    ],
)
def test_a_docker_that_cannot_build_does_not_count(script: Script, body: str, why: str) -> None:
    script("docker", body)
    script("buildah", "exit 0")
    assert find_tool().name == "buildah"
    with pytest.raises(BuildError, match=why):
        find_tool("docker")


def test_without_a_tool_all_three_are_named_with_the_reason_and_how_to_get_one(script: Script) -> None:
    script("podman", "echo 'Error: no machine' >&2; exit 125")
    with pytest.raises(BuildError) as caught:
        find_tool()
    said = str(caught.value)
    for part in ("docker: not on PATH", "podman: it does not answer (Error: no machine)", "buildah: not on PATH"):
        assert part in said
    assert "apt-get install buildah" in said


def test_an_unknown_tool_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(BuildError, match=r"kaniko is no tool.*docker, podman, buildah"):
        find_tool("kaniko")


@pytest.mark.parametrize(
    "make", [lambda order: build_command("buildah", order, {}), lambda o: docker.build_command(o, {}, rewrites=True)]
)
def test_a_build_names_platform_base_and_time(make: Callable[[Order], list[str]], order: Order) -> None:
    wanted = Order(
        row="cpu", context=order.context, tag="t:1", architecture="arm64", log=order.log, base="mirror/debian:12",
        no_cache=True, timestamp=5, arguments={"REVISION": "abc"}, target="packages",
    )  # fmt: skip
    command = make(wanted)
    for part in (
        "--platform=linux/arm64", "--build-arg=BASE_IMAGE=mirror/debian:12", "--build-arg=SOURCE_DATE_EPOCH=5",
        "--build-arg=CREATED=1970-01-01T00:00:05Z", "--build-arg=REVISION=abc", "--no-cache", "--target=packages",
    ):  # fmt: skip
        assert part in command
    assert command[-1] == str(order.context)
    assert not [part for part in make(order) if "BASE_IMAGE" in part or part == "--no-cache" or "secret" in part]


def test_authority_and_index_are_secrets_and_on_no_command_line(order: Order, tmp_path: Path, authority: str) -> None:
    extra = tmp_path / "authority.pem"
    extra.write_text(authority)
    index = "https://somebody:password@packages.example/simple"
    wanted = Order(
        row="cpu", context=order.context, tag="t:1", architecture="amd64", log=order.log, extra_ca=extra, index=index
    )
    with secrets_of(wanted) as secrets:
        assert set(secrets) == {"ca", "pip", "uv"}
        assert authority.strip() in secrets["ca"].read_text()
        assert index in secrets["pip"].read_text()
        assert index in secrets["uv"].read_text()
        for file in secrets.values():
            assert not stat.S_IMODE(file.parent.stat().st_mode) & 0o077
        for command in (build_command("podman", wanted, secrets), docker.build_command(wanted, secrets, rewrites=True)):
            assert [part for part in command if part.startswith("--secret=")] == [
                f"--secret=id={name},src={file}" for name, file in secrets.items()
            ]
            assert "password" not in " ".join(command)
    assert not [file for file in secrets.values() if file.exists()]


@pytest.mark.parametrize("row", [row.name for row in matrix().rows])
def test_secrets_are_mounted_only_in_stages_that_the_image_is_not_made_of(row: str) -> None:
    """buildah takes away the file over which a secret was mounted: the image would have no authorities any more."""
    below, steps = {}, {}
    for stage in re.split(r"^FROM ", render(matrix().row(row)).dockerfile, flags=re.MULTILINE)[1:]:
        start, _, name = stage.partition("\n")[0].split()
        below[name], steps[name] = start, stage
    stage = name
    while stage in steps:
        assert "type=secret" not in steps[stage], stage
        stage = below[stage]
    assert any("type=secret" in stage for stage in steps.values())


def test_the_bundle_has_this_computers_authorities_too(
    tmp_path: Path, authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, extra = tmp_path / "known.pem", tmp_path / "extra.pem"
    known.write_text("# those of this computer\n")
    extra.write_text(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(known))
    assert trust.bundle(extra) == f"# those of this computer\n{authority}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"\x30\x82\xff\xfe", "no certificate in PEM form.*openssl x509"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "damaged certificate"),
    ],
)
def test_a_file_that_is_no_authority_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "authority.crt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BuildError, match=words):
        trust.bundle(file)


def test_a_context_that_is_not_there_or_has_no_dockerfile(order: Order, tmp_path: Path) -> None:
    for folder, words in ((tmp_path / "nothing", "no folder"), (tmp_path, "no Dockerfile")):
        wanted = Order(row="cpu", context=folder, tag="t:1", architecture="amd64", log=order.log)
        for tool in (Buildah(), Podman(), docker.Docker()):
            with pytest.raises(BuildError, match=f"{words}.*trainyard images render"):
                tool.build(wanted)


def test_the_whole_output_is_in_the_log_and_the_message_names_it(script: Script, tmp_path: Path) -> None:
    tool = script("tool", "echo 'STEP 1/2: FROM a'; echo 'STEP 2/2: RUN b'; echo wrong >&2; exit 3")
    told: list[str] = []
    log = tmp_path / "logs" / "cpu.log"
    with pytest.raises(BuildError, match=f"failed at step 2/2: RUN b: tool ended with 3. .*{log}"):
        run([str(tool)], Work("tool", "the build of cpu"), log=log, told=told.append)
    assert log.read_text() == "STEP 1/2: FROM a\nSTEP 2/2: RUN b\nwrong\n"
    assert len(told) == 2


def test_a_log_that_cannot_be_written_stops_before_the_build(script: Script, tmp_path: Path) -> None:
    tool = script("tool", f"touch {tmp_path}/begun")
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written"):
        run([str(tool)], Work("tool", "the build of cpu"), log=tmp_path / "file" / "log")
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_tool_and_all_that_it_started(
    script: Script, tmp_path: Path, number: signal.Signals
) -> None:
    tool = script("tool", "sleep 600 &\necho $! >child; wait")
    program = f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n{IN_PIECES}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tool)], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )
    child = tmp_path / "child"
    deadline = time.monotonic() + MINUTES
    while not (child.exists() and child.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = psutil.Process(int(child.read_text()))
    process.send_signal(number)
    assert process.wait(MINUTES) != 0
    while started.is_running() and started.status() != psutil.STATUS_ZOMBIE:  # who reaps it is not our business
        assert time.monotonic() < deadline
        time.sleep(0.02)


def interrupted_while_writing(file: Path) -> None:
    with complete(file) as new:
        new.write_text("half")
        raise KeyboardInterrupt


def test_an_archive_is_complete_or_absent(tmp_path: Path) -> None:
    file = tmp_path / "cpu.tar"
    with pytest.raises(KeyboardInterrupt):
        interrupted_while_writing(file)
    assert list(tmp_path.iterdir()) == []
    with complete(file) as new:
        new.write_text("whole")
    assert [one.name for one in tmp_path.iterdir()] == ["cpu.tar"]
    with pytest.raises(BuildError, match="cannot be written"), complete(tmp_path / "nowhere" / "cpu.tar"):
        pass


@pytest.mark.parametrize(
    ("driver", "output", "notes"),
    [
        ("docker-container", "type=docker,name=trainyard/training:cpu,rewrite-timestamp=true", 0),
        ("docker", "type=docker,name=trainyard/training:cpu", 1),
    ],
)
def test_a_builder_that_refuses_to_rewrite_times_is_not_asked_to(
    script: Script, order: Order, tmp_path: Path, driver: str, output: str, notes: int
) -> None:
    script(
        "docker",
        f"""case "$1 $2" in
        "buildx inspect") printf 'Name:   a\nDriver: {driver}\n' ;;
        "buildx build") echo "$@" >{tmp_path}/arguments ;;
        *) echo '[{{"Id": "sha256:1", "Architecture": "arm64", "Size": 7}}]' ;;
        esac""",
    )
    told: list[str] = []
    assert docker.Docker().build(order, told.append).size == 7
    assert f"--output={output} " in (tmp_path / "arguments").read_text()
    assert len([note for note in told if "docker buildx create --use" in note]) == notes


def test_docker_says_under_which_digest_an_image_was_pushed(script: Script) -> None:
    digest = "sha256:" + "c" * 64
    script("docker", f'[ "$2" = push ] && echo "1: digest: {digest} size: 528" || exit 0')
    assert docker.Docker().push("trainyard/training:cpu", "registry.example/training:1") == digest
    script("docker", "exit 0")
    with pytest.raises(BuildError, match="did not say by which digest"):
        docker.Docker().push("trainyard/training:cpu", "registry.example/training:1")


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ({"debootstrap": "touch unpacked"}, "buildah cannot build here: not on PATH"),
        ({"buildah": '[ "$1" != inspect ]'}, "there is no debootstrap here"),
        (
            {"buildah": '[ "$1" != inspect ]', "debootstrap": "echo 'E: can only run as root'; exit 1"},
            "the base image failed: debootstrap ended with 1. It ends:\n  E: can only run as root$",
        ),
    ],
)
def test_a_base_image_that_cannot_be_made_is_a_sentence(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: dict[str, str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, body in scripts.items():
        script(name, body)
    with pytest.raises(BuildError, match=words):
        debootstrap.make()
    assert not (tmp_path / "unpacked").exists()


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--mirror=here", 2), ("bookworm", 2)])
def test_help_and_unknown_arguments_make_no_base_image(
    script: Script, tmp_path: Path, argument: str, code: int
) -> None:
    script("buildah", f"touch {tmp_path}/began")
    ran = subprocess.run(
        [sys.executable, "-m", "images.builders.debootstrap", argument],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == code, ran.stderr
    assert "usage: python -m images.builders.debootstrap" in ran.stdout + ran.stderr
    assert code or debootstrap.REFERENCE in ran.stdout
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize("tool", [docker.Docker(), Podman(), Buildah()])
def test_a_password_goes_by_stdin(script: Script, tmp_path: Path, tool: Buildah | docker.Docker) -> None:
    script(tool.name, f'echo "$@" >{tmp_path}/arguments; cat >{tmp_path}/stdin')
    tool.login("registry.example", "AWS", "a secret")
    assert (tmp_path / "stdin").read_text() == "a secret"
    assert (tmp_path / "arguments").read_text() == "login --username AWS --password-stdin registry.example\n"
    script(tool.name, "cat >/dev/null; echo 'unauthorized' >&2; exit 1")
    with pytest.raises(
        BuildError, match=f"`{tool.name} login registry.example` does not accept the login as AWS: unauthorized"
    ):
        tool.login("registry.example", "AWS", "a secret")


@pytest.mark.parametrize("answer", ["", "<html>", "[]", "[{}]", "{}", "null", "7"])
@pytest.mark.parametrize("tool", [docker.Docker(), Podman(), Buildah()])
def test_an_answer_in_words_of_another_tool_is_a_sentence(
    script: Script, tool: Buildah | docker.Docker, answer: str
) -> None:
    script(tool.name, f"echo '{answer}'")
    with pytest.raises(BuildError, match=f"{tool.name} answers about a:1 what nobody here understands"):
        tool.inspect("a:1")


@pytest.mark.parametrize("tool", [docker.Docker(), Podman(), Buildah()])
def test_an_image_that_is_not_there_is_a_sentence(script: Script, tool: Buildah | docker.Docker) -> None:
    script(tool.name, "echo 'image not known' >&2; exit 125")
    with pytest.raises(BuildError, match=rf"{tool.name} has no image a:1 \(image not known\); `{tool.name} images`"):
        tool.inspect("a:1")
