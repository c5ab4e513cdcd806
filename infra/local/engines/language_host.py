"""`pulumi-language-python` for a Pulumi CLI that was built from Go modules.

A released CLI brings its own language host; one built from modules has none. The engine starts this file, reads a port
from its first line of output and asks it to run programs and policy packs. Each program runs in a process of its own,
in the interpreter that `runtime.options.virtualenv` of Pulumi.yaml names, else in the one of this file's `#!` line.

Installed (as a copy, with that line) beside the built CLI only: it never takes the place of a released CLI's host. So
this file imports nothing of this project.
"""

import asyncio
import atexit
import contextlib
import ctypes
import importlib.metadata
import logging
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pulumi
from google.protobuf import empty_pb2
from pulumi.runtime import reset_options, run_in_stack, set_all_config
from pulumi.runtime.proto import language_pb2 as messages
from pulumi.runtime.proto import language_pb2_grpc, plugin_pb2

ALREADY_REPORTED = 32  # exit code of a program whose error the user has seen: upstream's host uses the same
MAX_MESSAGE_BYTES = 400 << 20  # the engine's own limit for one gRPC message
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class PythonHost(language_pb2_grpc.LanguageRuntimeServicer):
    """The part of the `LanguageRuntime` service that running programs and policy packs needs."""

    def __init__(self, engine_address: str) -> None:
        self.engine_address = engine_address
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def Handshake(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return messages.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return plugin_pb2.PluginInfo(version=importlib.metadata.version("pulumi"))

    def About(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return messages.AboutResponse(executable=interpreter(request.info), version=sys.version.split()[0])

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Nothing to fetch ahead: each resource names its plugin's version, and plugins are installed before."""
        return messages.GetRequiredPackagesResponse()

    def GetRequiredPlugins(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return messages.GetRequiredPluginsResponse()

    def GetProgramDependencies(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        found = sorted((d.name, d.version) for d in importlib.metadata.distributions())
        return messages.GetProgramDependenciesResponse(
            dependencies=[messages.DependencyInfo(name=name, version=version) for name, version in found]
        )

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG002, N802
        """Does nothing: `make setup` installs what programs need, from hashed lock files."""
        return iter(())

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        self.end_children()
        return empty_pb2.Empty()

    def Run(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Runs one program to its end; the engine's cancelling ends it."""
        if not request.args:
            request.args.append(self.engine_address)
        code = self._wait(
            [interpreter(request.info), "-P", "-u", __file__, "--program"],
            context,
            stdin=subprocess.PIPE,
            request=request.SerializeToString(),
        )
        if code == 0:
            return messages.RunResponse()
        if code == ALREADY_REPORTED:
            return messages.RunResponse(bail=True)
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return messages.RunResponse(error=f"the program {ended}")

    def RunPlugin(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Runs a policy pack (kind `analyzer`) or a provider written in Python, and streams what it prints."""
        folder = request.info.program_directory or request.program or request.pwd
        command = [interpreter(request.info), "-u"]
        if request.kind == "analyzer":
            command += ["-m", "pulumi.policy", *request.args, folder]
        else:
            command += [str(Path(folder, request.info.entry_point or ".")), *request.args]
        environment = os.environ | dict(line.split("=", 1) for line in request.env)
        with self._child(
            command,
            context,
            cwd=request.pwd or folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            yield from _streamed(child)
            yield messages.RunPluginResponse(exitcode=child.wait())

    def end_children(self) -> None:
        """Ends all programs and plugins that are still running."""
        with self._lock:
            for child in self._children:
                child.terminate()

    def _wait(self, command: list[str], context: Any, request: bytes, **options: Any) -> int:
        with self._child(command, context, **options) as child:
            child.communicate(request)
            return child.returncode

    @contextlib.contextmanager
    def _child(self, command: list[str], context: Any, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(command, **options) as child:
            with self._lock:
                self._children.add(child)
            if not context.add_callback(child.terminate):  # the engine has already gone
                child.terminate()
            try:
                yield child
            finally:
                with self._lock:
                    self._children.discard(child)
                if child.poll() is None:
                    child.terminate()


def interpreter(info: Any) -> str:
    """The Python for one program: of its `virtualenv` option where that folder has one, else of this host."""
    options = dict(info.options.items()) if info.HasField("options") else {}
    if folder := options.get("virtualenv"):
        candidate = Path(info.root_directory, str(folder), "bin", "python")
        if candidate.exists():
            return str(candidate)
    return sys.executable


def run_program(request: Any) -> int:
    """Runs a program in this process as `python <program>` would, with its resources going to the engine.

    Returns:
        The process's exit code.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # unobserved futures of a failed program are no news
    directory = request.info.program_directory or request.pwd
    program = str(Path(directory, request.info.entry_point or ".").resolve())
    os.chdir(request.pwd or directory)
    sys.argv = [program, *request.args[1:]]
    if Path(program).is_file():
        sys.path.insert(0, directory)  # runpy does so for folders only
    reset_options(
        project=request.project,
        stack=request.stack,
        root_directory=request.info.root_directory,
        parallel=request.parallel,
        engine_address=request.args[0],
        monitor_address=request.monitor_address,
        preview=request.dryRun,
        organization=request.organization or "organization",
    )
    set_all_config(dict(request.config), list(request.configSecretKeys))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with ThreadPoolExecutor(max_workers=4 * max(request.parallel, 1)) as pool:
        loop.set_default_executor(pool)
        try:
            loop.run_until_complete(run_in_stack(lambda: _run_file(program)))
        except pulumi.RunError as error:
            pulumi.log.error(str(error))
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:  # the engine has gone, cancelled: nobody listens
                pulumi.log.error(f"the engine refused a request of the program: {error.details()}")
        except Exception as error:  # noqa: BLE001
            shown = traceback.format_exception(error, limit=-_user_frames(error, directory))
            pulumi.log.error("Program failed with an unhandled exception:\n" + "".join(shown))
        else:
            return 0
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            sys.stdout.flush()
            sys.stderr.flush()
    return ALREADY_REPORTED


def _run_file(program: str) -> None:
    if Path(program).is_dir() and not Path(program, "__main__.py").exists():
        raise pulumi.RunError(f"there is no __main__.py in {program}, which `main` of Pulumi.yaml names")
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            said = ended.code if isinstance(ended.code, str) else f"the program called sys.exit({ended.code})"
            raise pulumi.RunError(said) from None


def _user_frames(error: BaseException, directory: str) -> int:
    """How many of the innermost frames of a traceback are the program's and what it called."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(directory).resolve()) + os.sep
    outermost = next((i for i, frame in enumerate(frames) if frame.filename.startswith(ours)), 0)
    return len(frames) - outermost


def _streamed(child: subprocess.Popen[bytes]) -> Iterator[Any]:
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, 1)  # type: ignore[arg-type]
        selector.register(child.stderr, selectors.EVENT_READ, 2)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select():
                if data := os.read(key.fd, 1 << 16):
                    yield (
                        messages.RunPluginResponse(stdout=data)
                        if key.data == 1
                        else messages.RunPluginResponse(stderr=data)
                    )
                else:
                    selector.unregister(key.fileobj)


def serve(engine_address: str) -> None:
    """Serves until SIGTERM or SIGINT, or until the engine that started this process is gone."""
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = grpc.server(
        ThreadPoolExecutor(max_workers=8),
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ],
    )
    host = PythonHost(engine_address)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    while not stop.wait(timeout=1) and os.getppid() == parent:
        pass
    host.end_children()
    server.stop(grace=2).wait()


def main() -> int:
    """Serves the engine whose address is the last argument; `--program` runs the one of standard input."""
    if sys.argv[1:] == ["--program"]:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a killed host leaves no program behind
        if os.getppid() != parent:
            return ALREADY_REPORTED
        code = run_program(messages.RunRequest.FromString(sys.stdin.buffer.read()))
        atexit._run_exitfuncs()  # noqa: SLF001 - what programs have asked for; the rest of an ordinary end would
        os._exit(code)  # take down thousands of classes one by one, a quarter of a second for nothing
    if len(sys.argv) < 2:
        print("pulumi-language-python is started by the Pulumi engine, with its address as argument", file=sys.stderr)
        return 2
    serve(sys.argv[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
