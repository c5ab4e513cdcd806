"""A pass-through in front of the real Kubernetes provider: everything is the provider's answer, but Helm Releases.

A Release's chart would be fetched from the internet and rendered. In a rehearsal it is checked (chart, version,
repository, values), recorded in the folder of the rehearsal, and never rendered: `releases.json` says what a real
cluster would get. The custom resource kinds of known charts are registered meanwhile (`bundles`).

The engine starts it as the plugin: `python -m infra.rehearsal.kubernetes_plugin REAL_PLUGIN ENGINE_ADDRESS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from infra.errors import TrainyardError
from infra.rehearsal.connection import folder_of_environment

if TYPE_CHECKING:
    from infra.rehearsal.releases import Releases

SERVICE = "/pulumirpc.ResourceProvider/"

# The engine sends whole states in one message; its own limit is this (rpcutil.GrpcChannelOptions).
_OPTIONS = [("grpc.max_receive_message_length", 400 << 20), ("grpc.max_send_message_length", 400 << 20)]
_WORKERS = 64  # calls that wait for a Kubernetes object to become ready hold a thread each
_PERHAPS_A_RELEASE = b"kubernetes:helm.sh/v3:Release::"  # in the URN of each
_PR_SET_PDEATHSIG = 1


class PassThrough(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Hands every call on to the real provider as it came, but those about Releases.

    Args:
        real: channel to the real provider.
        folder: of the rehearsal.
    """

    def __init__(self, real: grpc.Channel, folder: Path) -> None:
        self._real = real
        self._folder = folder

    @cached_property
    def _releases(self) -> Releases:
        from infra.rehearsal.releases import Releases  # noqa: PLC0415 - see there

        return Releases(self._folder)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of one call, by its method."""
        method = details.method
        if method == f"{SERVICE}List":  # the one call that answers with a stream
            return grpc.unary_stream_rpc_method_handler(self._forward_stream(method))
        return grpc.unary_unary_rpc_method_handler(self._answer(method))

    def _answer(self, method: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        forward = self._real.unary_unary(method)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if _PERHAPS_A_RELEASE in request:
                try:
                    own = self._releases.answer(method.removeprefix(SERVICE), request)
                except TrainyardError as error:
                    context.abort(grpc.StatusCode.UNKNOWN, str(error))
                if own is not None:
                    return own
            call = forward.future(request, metadata=_metadata(context))
            context.add_callback(call.cancel)  # where the engine gives up; without effect on a call that has ended
            try:
                return bytes(call.result())
            except grpc.RpcError as error:
                _pass_on(error, context)
                raise

        return answer

    def _forward_stream(self, method: str) -> Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]:
        forward = self._real.unary_stream(method)

        def answer(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                yield from forward(request, metadata=_metadata(context))
            except grpc.RpcError as error:
                _pass_on(error, context)

        return answer


def _metadata(context: grpc.ServicerContext) -> list[tuple[str, str | bytes]]:
    """What the engine sent beside the message; what belongs to the connection itself does not travel on."""
    own = ("user-agent", "te", "content-type")
    return [(key, value) for key, value in context.invocation_metadata() if key not in own and key[:1] != ":"]


def _pass_on(error: grpc.RpcError, context: grpc.ServicerContext) -> None:
    """Fail as the provider failed, details and all: partly made objects are told in them."""
    kept = [(key, value) for key, value in error.trailing_metadata() or () if key.startswith("grpc-status-details")]
    context.set_trailing_metadata(kept)
    context.abort(error.code(), error.details() or "")


def _dies_with_parent() -> None:
    """In the child, before it becomes the provider: the kernel ends it when this process ends, in whatever way."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _provider(command: list[str]) -> Iterator[str]:
    """The real provider as a child; gives its address."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_dies_with_parent)  # noqa: PLW1509
    try:
        line = process.stdout.readline().strip() if process.stdout else ""
        if not line.isdigit():
            raise TrainyardError(
                f"the Kubernetes provider {command[0]} told no port but {line!r}. Build it: trainyard engines build"
            )
        threading.Thread(target=_drain, args=(process,), daemon=True).start()
        yield f"127.0.0.1:{line}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _drain(process: subprocess.Popen[str]) -> None:
    for line in process.stdout or ():
        sys.stderr.write(line)


def main() -> None:
    """Serve until the engine ends, or ends us."""
    engine, ended = os.getppid(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with _provider(sys.argv[1:]) as address, grpc.insecure_channel(address, options=_OPTIONS) as channel:
        server = grpc.server(ThreadPoolExecutor(_WORKERS), options=_OPTIONS)
        server.add_generic_rpc_handlers((PassThrough(channel, folder_of_environment()),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        while not ended.wait(1.0):
            if os.getppid() != engine:  # killed: nobody will end us
                break
        server.stop(grace=1.0).wait()


if __name__ == "__main__":
    try:
        main()
    except TrainyardError as failure:
        sys.exit(f"rehearsal: {failure}")
