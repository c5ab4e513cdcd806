"""A stack's Pulumi environment, and the language host under the real engine: no cluster, no network."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from pulumi.runtime.proto import language_pb2 as messages
from pulumi.runtime.proto import language_pb2_grpc

from infra.local import engines
from infra.local.engines import language_host
from infra.local.engines.catalogue import LANGUAGE_HOST_SOURCE
from infra.local.engines.pulumi import install_plugins, pulumi_environment

PROGRAM = """
import os, sys, time
import pulumi
import beside

config = pulumi.Config()
mode = config.get("mode")
if mode == "crash":
    beside.fail()
if mode == "run-error":
    raise pulumi.RunError("the settings are wrong: do this instead")
if mode == "exit":
    sys.exit("said on the way out")
if mode == "exit-code":
    sys.exit(3)
if mode == "killed":
    os.kill(os.getpid(), 9)
if mode == "sleep":
    open(os.environ["MARK"], "w").write(str(os.getpid()))
    time.sleep(600)

class Part(pulumi.ComponentResource):
    def __init__(self, name: str) -> None:
        super().__init__("tiny:index:Part", name)
        self.register_outputs({})

print("printed by the program")
Part("one")
pulumi.export("greeting", config.require("greeting"))
pulumi.export("password", config.get_secret("password"))
pulumi.export("seen", {
    "cwd": os.getcwd(), "root": pulumi.get_root_directory(), "python": sys.executable, "first": sys.path[0],
    "project": pulumi.get_project(), "stack": pulumi.get_stack(), "main": __name__,
})
if mode == "exit-zero":
    sys.exit(0)
"""


class Project:
    """A tiny project with a stack `local`, as a user at a shell has it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [*arguments, "--non-interactive", "--color", "never"]
        return subprocess.Popen(
            ["pulumi", *command],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        with self.start(*arguments) as process:
            said, _ = process.communicate(timeout=300)
        assert process.returncode == code, said
        return said

    def configure(self, **values: str) -> None:
        """As `pulumi config set` would, in no time."""
        with (self.folder / "Pulumi.local.yaml").open("a") as file:
            file.write("config:\n" + "".join(f"  tiny:{key}: {value}\n" for key, value in values.items()))

    def failed_preview(self) -> str:
        """The diagnostics of a preview that fails."""
        with self.start("preview") as process:
            said, _ = process.communicate(timeout=300)
        assert process.returncode != 0
        return said.split("Diagnostics:")[-1]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    engines.ensure(["pulumi", "pulumi-language-python"])
    folder = tmp_path / "project"
    (folder / "infra").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text(
        "name: tiny\nmain: infra/\nruntime: {name: python, options: {toolchain: pip, virtualenv: .venv}}\n"
    )
    (folder / "infra" / "__main__.py").write_text(PROGRAM)
    (folder / "infra" / "beside.py").write_text("def fail():\n    raise ValueError('boom')\n")
    made = Project(folder, os.environ | pulumi_environment(tmp_path / "state"))
    made.run("stack", "init", "local")
    return made


@pytest.mark.engines
def test_a_program_is_previewed_created_and_destroyed_with_its_settings(project: Project) -> None:
    project.run("config", "set", "greeting", "hello")
    project.run("config", "set", "--secret", "password", "geheim")
    previewed = project.run("preview")
    assert "+ 2 to create" in previewed
    assert "printed by the program" in previewed
    assert "warning" not in previewed
    project.run("up", "--yes", "--skip-preview")
    outputs = json.loads(project.run("stack", "output", "--json"))
    assert outputs == {
        "greeting": "hello",
        "password": "[secret]",
        "seen": {
            "cwd": str(project.folder / "infra"),
            "root": str(project.folder),
            "python": sys.executable,
            "first": str(project.folder / "infra"),
            "project": "tiny",
            "stack": "local",
            "main": "__main__",
        },
    }
    assert json.loads(project.run("stack", "output", "--json", "--show-secrets"))["password"] == "geheim"
    assert "2 unchanged" in project.run("up", "--yes", "--skip-preview")
    assert "- 2 deleted" in project.run("destroy", "--yes", "--skip-preview")
    assert "geheim" not in "".join(
        file.read_text() for file in (project.folder.parent / "state/pulumi/backend").rglob("*.json")
    )


@pytest.mark.engines
def test_a_programs_error_is_a_traceback_of_the_program_alone(project: Project) -> None:
    project.configure(mode="crash")
    said = project.failed_preview()
    assert "error: Program failed with an unhandled exception:" in said
    assert f'File "{project.folder}/infra/__main__.py", line 9, in <module>' in said
    assert f'File "{project.folder}/infra/beside.py", line 2, in fail' in said
    assert said.count("ValueError: boom") == 1
    for noise in ("runpy", "asyncio", "pulumi-language-python", "site-packages"):
        assert noise not in said


@pytest.mark.engines
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("run-error", "error: the settings are wrong: do this instead"),
        ("exit", "error: said on the way out"),
        ("exit-code", "error: the program called sys.exit(3)"),
        ("killed", "the program was ended by SIGKILL"),
    ],
)
def test_a_program_that_gives_up_is_quoted_without_a_traceback(project: Project, mode: str, words: str) -> None:
    project.configure(mode=mode)
    said = project.failed_preview()
    assert words in said
    assert "Traceback" not in said


@pytest.mark.engines
def test_a_program_may_end_itself_by_exit_zero(project: Project) -> None:
    project.configure(mode="exit-zero", greeting="hello")
    assert "+ 2 to create" in project.run("preview")


@pytest.mark.engines
def test_a_folder_without_a_program_is_named(project: Project) -> None:
    (project.folder / "infra" / "__main__.py").unlink()
    assert f"there is no __main__.py in {project.folder}/infra" in project.failed_preview()


@pytest.mark.engines
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ending_the_engine_ends_host_and_program(project: Project, number: signal.Signals) -> None:
    mark = project.folder / "mark"
    project.environment["MARK"] = str(mark)
    project.configure(mode="sleep")
    with project.start("preview") as process:
        wait_for(lambda: mark.exists() and mark.read_text())
        family = psutil.Process(process.pid).children(recursive=True)
        assert int(mark.read_text()) in {member.pid for member in family}
        process.send_signal(number)
        process.communicate(timeout=300)
    gone, alive = psutil.wait_procs(family, timeout=120)
    assert gone
    assert not alive


@pytest.mark.engines
def test_the_kubernetes_provider_is_found_in_the_stacks_own_home(project: Project, tmp_path: Path) -> None:
    engines.ensure(["pulumi-resource-kubernetes"])
    plugin = install_plugins(tmp_path / "state")
    assert plugin.is_relative_to(tmp_path / "state" / "pulumi" / "home")
    assert '"version": "4.25.0"' in project.run("plugin", "ls", "--json")
    (project.folder / "infra" / "__main__.py").write_text(
        "import pulumi, pulumi_kubernetes as k\n"
        f"files = k.Provider('files', render_yaml_to_directory={str(tmp_path / 'yaml')!r})\n"
        "k.core.v1.ConfigMap('a', metadata={'name': 'a'}, data={'x': 'y'},\n"
        "    opts=pulumi.ResourceOptions(provider=files))\n"
    )
    said = project.run("up", "--yes", "--skip-preview")
    assert "warning" not in said
    assert list((tmp_path / "yaml").rglob("*configmap*.yaml"))
    assert "- 3 deleted" in project.run("destroy", "--yes", "--skip-preview")


# --- the language host by itself -----------------------------------------------------------------------------------


def wait_for(condition: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@contextlib.contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], Any]]:
    command = [sys.executable, "-P", str(LANGUAGE_HOST_SOURCE), "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        port = int(process.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield process, language_pb2_grpc.LanguageRuntimeStub(channel)
        process.terminate()


def test_the_host_ends_on_sigterm() -> None:
    with serving() as (process, _):
        process.terminate()
        assert process.wait(120) == 0


def test_the_host_ends_when_the_engine_is_gone(tmp_path: Path) -> None:
    command = f"{sys.executable} -P {LANGUAGE_HOST_SOURCE} 127.0.0.1:1 >{tmp_path}/port & echo $!; sleep 60"
    with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout
        host = psutil.Process(int(engine.stdout.readline()))
        wait_for(lambda: (tmp_path / "port").exists() and (tmp_path / "port").read_text())
        for child in psutil.Process(engine.pid).children():
            if child.pid != host.pid:
                child.kill()
        engine.kill()
    host.wait(120)


def test_the_host_started_by_hand_says_what_it_is() -> None:
    answer = subprocess.run(
        [sys.executable, "-P", str(LANGUAGE_HOST_SOURCE)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "started by the Pulumi engine" in answer.stderr


def test_a_plugin_program_is_run_and_what_it_prints_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['GIVEN'], os.getcwd())\nprint('to stderr', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    with serving() as (_, host):
        request = messages.RunPluginRequest(
            pwd=str(tmp_path),
            args=["127.0.0.1:2"],
            env=["GIVEN=a=b"],
            kind="resource",
            info=messages.ProgramInfo(root_directory=str(tmp_path), program_directory=str(tmp_path), entry_point="."),
        )
        answers = list(host.RunPlugin(request))
    assert b"".join(a.stdout for a in answers) == f"['127.0.0.1:2'] a=b {tmp_path}\n".encode()
    assert b"".join(a.stderr for a in answers) == b"to stderr\n"
    assert answers[-1].exitcode == 7


def test_a_plugin_program_ends_when_the_engine_stops_listening(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    with serving() as (_, host):
        info = messages.ProgramInfo(root_directory=str(tmp_path), program_directory=str(tmp_path), entry_point=".")
        stream = host.RunPlugin(messages.RunPluginRequest(pwd=str(tmp_path), kind="resource", info=info))
        plugin = psutil.Process(int(next(stream).stdout))
        stream.cancel()
        plugin.wait(120)


def test_the_interpreter_is_the_one_of_the_virtualenv_option_where_it_exists(tmp_path: Path) -> None:
    info = messages.ProgramInfo(root_directory=str(tmp_path))
    assert language_host.interpreter(info) == sys.executable
    info.options.update({"virtualenv": ".venv"})
    assert language_host.interpreter(info) == sys.executable
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert language_host.interpreter(info) == str(python)


# --- the environment -----------------------------------------------------------------------------------------------


@pytest.fixture
def fake_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A released Pulumi on PATH and the plugin in the user's own home: scripts, so nothing is built."""
    tools = tmp_path / "tools"
    plugin = tmp_path / "own-home/plugins/resource-kubernetes-v4.25.0/pulumi-resource-kubernetes"
    for file in (tools / "pulumi", tools / "pulumi-language-python", plugin):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\necho v3.280.0\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"/usr/bin:{tools}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "own-home"))
    monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "cache"))
    return plugin


def test_the_environment_points_into_the_state_folder_and_fetches_nothing(fake_engines: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    environment = pulumi_environment(state)
    assert environment == {
        "PULUMI_HOME": f"{state}/pulumi/home",
        "PULUMI_BACKEND_URL": f"file://{state}/pulumi/backend",
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PATH": f"/usr/bin:{tmp_path}/tools",  # it finds the right one already
    }
    for folder in ("pulumi", "pulumi/home", "pulumi/backend"):
        assert (state / folder).stat().st_mode & 0o777 == 0o700
    assert pulumi_environment(state) == environment


def test_a_pulumi_behind_an_unfitting_one_comes_first(
    fake_engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "pulumi").write_text("#!/bin/sh\necho v3.10.0\n")
    (tmp_path / "old" / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/old:{tmp_path}/tools")
    assert pulumi_environment(tmp_path / "state")["PATH"] == f"{tmp_path}/tools:{tmp_path}/old"


def test_a_plugin_is_put_into_the_stacks_home_once_and_repaired(fake_engines: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    plugin = install_plugins(state)
    before = plugin.lstat()
    assert plugin.resolve() == fake_engines
    assert install_plugins(state) == plugin
    assert plugin.lstat() == before
    plugin.unlink()
    plugin.symlink_to(tmp_path / "gone")
    assert install_plugins(state).resolve() == fake_engines
    assert [path.name for path in plugin.parent.iterdir()] == [plugin.name]


def test_inside_the_stacks_own_environment_the_plugin_is_not_linked_to_itself(
    fake_engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    plugin = install_plugins(state)
    monkeypatch.setenv("PULUMI_HOME", pulumi_environment(state)["PULUMI_HOME"])
    assert install_plugins(state) == plugin
    assert plugin.resolve() == fake_engines


def test_a_missing_engine_is_named_with_the_command_that_builds_it(
    fake_engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(engines.EngineError, match="trainyard engines build"):
        pulumi_environment(tmp_path / "state")
    fake_engines.unlink()
    with pytest.raises(engines.EngineError, match="trainyard engines build"):
        install_plugins(tmp_path / "state")


def test_a_state_folder_that_cannot_be_made_is_a_plain_error(fake_engines: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(engines.EngineError, match=r"state folder .* cannot be made: Not a directory"):
        pulumi_environment(tmp_path / "state")
    with pytest.raises(engines.EngineError, match="cannot be put in place"):
        install_plugins(tmp_path / "state")
