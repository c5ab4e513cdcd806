"""`/healthz`, `/readyz` and `/metrics` for the kubelet and Prometheus: the few lines of HTTP that these need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

READ_TIMEOUT = 5.0  # seconds


class HealthServer:
    """Answers GET requests on one port."""

    def __init__(self, ready: Callable[[], bool], metrics: Callable[[], str]) -> None:
        self._ready = ready
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port (one that is free where 0 was asked for).

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._serve, host, port)
        actual: int = self._server.sockets[0].getsockname()[1]
        return actual

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                request = await reader.readuntil(b"\r\n\r\n")
                code, body = self._answer(request.split(b" ", 2)[1].decode(errors="replace").split("?")[0])
                writer.write(
                    f"HTTP/1.1 {code}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                    f"Content-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n{body}".encode()
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            pass  # not a request, or a client that left
        finally:
            writer.close()

    def _answer(self, path: str) -> tuple[str, str]:
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/readyz":
            return ("200 OK", "ok\n") if self._ready() else ("503 Service Unavailable", "waiting for the first lists\n")
        if path == "/metrics":
            return "200 OK", self._metrics()
        return "404 Not Found", "there are /healthz, /readyz and /metrics\n"
