"""HTTP/1.1 to the API server in as few steps as it takes.

A job of 2,000 workers is some thousand calls, made by one process on one core. With httpx2's own transport each takes
1.2 ms of processor time or more, with this one, below the same client (which knows how to log in), 0.25 ms. One server,
no proxies, no HTTP/2: what a controller needs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

MOST_IDLE = 64
"""Connections that are kept for later calls."""
_BUFFER = 1 << 20  # bytes that are read ahead of who consumes them
_LONGEST_HEAD = 1 << 16


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        """Whether the server has not closed it while it lay idle, as far as one can tell."""
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.close()


class Transport(httpx2.AsyncBaseTransport):
    """Sends requests to one server."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        """Connects with TLS as `context` has it, or without."""
        self._context = context
        self._idle: list[_Connection] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request and returns the answer, whose body may be still to come.

        Raises:
            httpx2.ConnectError: there is no connection to be had.
            httpx2.ReadError: the connection broke.
            httpx2.TimeoutException: the server takes longer than the request's time-outs.
            httpx2.RemoteProtocolError: the answer is not HTTP.
        """
        patience: dict[str, float | None] = request.extensions.get("timeout", {})
        connection = await self._connection(request, patience.get("connect"))
        try:
            async with asyncio.timeout(patience.get("read")):
                connection.writer.write(_head(request) + await request.aread())
                await connection.writer.drain()
                status, headers = await _answer(connection.reader)
        except BaseException as error:
            connection.close()
            raise _translated(error, request) from error
        body = _Body(self, connection, request, headers, status, patience.get("read"))
        return httpx2.Response(status, headers=headers, stream=body, request=request)

    async def aclose(self) -> None:
        """Closes the connections that lie idle."""
        while self._idle:
            self._idle.pop().close()

    async def _connection(self, request: httpx2.Request, patience: float | None) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        url = request.url
        port = url.port or (443 if self._context else 80)
        try:
            async with asyncio.timeout(patience):
                return _Connection(
                    *await asyncio.open_connection(url.host, port, ssl=self._context, limit=_BUFFER),
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("no connection in time", request=request) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error) or type(error).__name__, request=request) from error

    def done(self, connection: _Connection, *, reusable: bool) -> None:
        """An answer has been read, or is not wanted any more."""
        if reusable and connection.usable and len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(
        self,
        transport: Transport,
        connection: _Connection,
        request: httpx2.Request,
        headers: list[tuple[bytes, bytes]],
        status: int,
        patience: float | None,
    ) -> None:
        known = {name.lower(): value.lower() for name, value in headers}
        self._transport = transport
        self._connection: _Connection | None = connection
        self._request = request
        self._patience = patience
        self._chunked = known.get(b"transfer-encoding") == b"chunked"
        length = known.get(b"content-length")
        self._length = 0 if status in {204, 304} or request.method == "HEAD" else int(length) if length else None
        self._kept = known.get(b"connection") != b"close"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The parts of the body."""
        if self._connection is None:
            raise httpx2.StreamClosed
        reader = self._connection.reader
        try:
            if self._length == 0:
                pass
            elif self._chunked:
                while part := await self._next_chunk(reader):
                    yield part
            elif self._length is not None:
                async with asyncio.timeout(self._patience):
                    yield await reader.readexactly(self._length)
            else:  # until the server closes the connection
                self._kept = False
                while part := await self._some(reader):
                    yield part
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise _translated(error, self._request) from error
        self._release(reusable=self._kept)

    async def _next_chunk(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(self._patience):
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            chunk = await reader.readexactly(size + 2)  # no trailers: the API server sends none
            return chunk[:-2]

    async def _some(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(self._patience):
            return await reader.read(_BUFFER)

    def _release(self, *, reusable: bool) -> None:
        if self._connection is not None:
            self._transport.done(self._connection, reusable=reusable)
            self._connection = None

    async def aclose(self) -> None:
        """Gives the connection up, if the body was not read to its end."""
        self._release(reusable=False)


def _head(request: httpx2.Request) -> bytes:
    lines = [request.method.encode() + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _answer(reader: asyncio.StreamReader) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status code and headers."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    version, code = first.split(b" ", 2)[:2]
    if not version.startswith(b"HTTP/1.") or len(head) > _LONGEST_HEAD:
        raise ValueError(first)
    pairs = (line.partition(b":") for line in lines)
    return int(code), [(name, value.strip()) for name, _, value in pairs]


def _translated(error: BaseException, request: httpx2.Request) -> BaseException:
    """The error in the words of httpx2; one that is not of the connection stays as it is."""
    if isinstance(error, TimeoutError):
        return httpx2.ReadTimeout("no answer in time", request=request)
    if isinstance(error, EOFError):
        return httpx2.RemoteProtocolError("the server closed the connection before the answer's end", request=request)
    if isinstance(error, OSError):
        return httpx2.ReadError(str(error) or type(error).__name__, request=request)
    if isinstance(error, ValueError | IndexError | asyncio.LimitOverrunError):
        return httpx2.RemoteProtocolError(f"not an answer in HTTP/1.1: {error}", request=request)
    return error
