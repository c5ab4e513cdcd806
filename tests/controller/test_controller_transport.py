"""The controller's HTTP: what servers may answer, and what becomes of connections that break."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from training.controller.transport import Transport


async def ask(*answers: bytes) -> tuple[list[str], int]:
    """The bodies of as many answers, each to one request; and how many connections were made for them."""
    waiting = list(answers)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while waiting:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            answer = waiting.pop(0)
            writer.write(answer)
            if b"Content-Length" not in answer and b"chunked" not in answer:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    timeout = httpx2.Timeout(60.0)
    async with httpx2.AsyncClient(transport=Transport(None), timeout=timeout) as caller:
        bodies = [(await caller.get(f"http://127.0.0.1:{port}/")).text for _ in answers]
    server.close()
    return bodies, connections


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole"
PARTS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\npar\r\n2\r\nts\r\n0\r\n\r\n"


def test_answers_in_one_piece_and_in_parts_come_over_one_connection() -> None:
    assert asyncio.run(ask(WHOLE, PARTS, WHOLE)) == (["whole", "parts", "whole"], 1)


def test_an_answer_that_ends_with_its_connection_is_read_to_its_end() -> None:
    assert asyncio.run(ask(b"HTTP/1.1 200 OK\r\n\r\nto the end")) == (["to the end"], 1)


def test_an_answer_without_a_body_leaves_the_connection_open() -> None:
    nothing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert asyncio.run(ask(nothing, WHOLE)) == (["", "whole"], 1)


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\nContent-", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n", b"SSH-2.0 server\r\n\r\n"],
)
def test_what_is_no_answer_is_told_as_an_error_of_the_protocol(answer: bytes) -> None:
    with pytest.raises(httpx2.TransportError):
        asyncio.run(ask(answer))


def test_a_body_that_breaks_off_is_an_error() -> None:
    async def broken() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with httpx2.AsyncClient(transport=Transport(None)) as caller:
            await caller.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")

    with pytest.raises(httpx2.RemoteProtocolError):
        asyncio.run(broken())


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def silent() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        timeout = httpx2.Timeout(60.0, read=0.05)
        async with httpx2.AsyncClient(transport=Transport(None), timeout=timeout) as caller:
            await caller.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")

    with pytest.raises(httpx2.ReadTimeout):
        asyncio.run(silent())


def test_nobody_who_listens_is_told_as_such() -> None:
    async def nobody() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        async with httpx2.AsyncClient(transport=Transport(None)) as caller:
            await caller.get(f"http://127.0.0.1:{port}/")

    with pytest.raises(httpx2.ConnectError):
        asyncio.run(nobody())
