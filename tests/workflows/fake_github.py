"""A GitHub of its own for tests: issues, comments, pull requests, artifacts; in pages, with bad minutes on demand."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ci.github import GitHub

REPOSITORY = "example/trainyard"
BOT = "github-actions[bot]"
TOKEN = "of-a-test"


@dataclass
class Trouble:
    """An answer that the next matching request gets instead of the right one."""

    method: str
    path: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    """Whether what was asked for is done all the same."""
    body: str = '{"message": "trouble"}'


@dataclass
class FakeGitHub:
    """What GitHub knows, and what it was asked."""

    address: str = ""
    page: int = 2
    """How many objects a page has."""
    comments: list[dict[str, Any]] = field(default_factory=list)
    issues: list[dict[str, Any]] = field(default_factory=list)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tokens: list[tuple[str, str | None]] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    next_page: str = ""
    """Where pages lead, if elsewhere."""
    _id: int = 100

    def client(self) -> GitHub:
        """A client that waits for nothing."""
        return GitHub(REPOSITORY, TOKEN, self.address, sleep=self.waited.append)

    def comment(self, body: str, author: str = BOT) -> int:
        """Write a comment; its id."""
        self._id += 1
        self.comments.append({"id": self._id, "body": body, "user": {"login": author}})
        return self._id

    def answer(self, method: str, path: str, query: dict[str, list[str]], content: Any) -> tuple[int, Any]:
        """What GitHub does and says."""
        routes: list[tuple[str, str, Any]] = [
            ("GET", r"issues/(\d+)/comments", lambda _: self.comments),
            ("POST", r"issues/(\d+)/comments", lambda _: self.comments[self._made(content)]),
            ("PATCH", r"issues/comments/(\d+)", lambda number: self._changed(self.comments, "id", number, content)),
            ("DELETE", r"issues/comments/(\d+)", self._deleted),
            ("GET", r"issues", lambda: [one for one in self.issues if one["state"] == query["state"][0]]),
            ("POST", r"issues", lambda: self._opened(content)),
            ("PATCH", r"issues/(\d+)", lambda number: self._changed(self.issues, "number", number, content)),
            ("GET", r"pulls/(\d+)", lambda number: self.pulls.get(int(number))),
            ("GET", r"actions/runs/(\d+)/artifacts", lambda _: self.artifacts),
        ]
        for verb, pattern, act in routes:
            if verb == method and (found := re.fullmatch(pattern, path)):
                answer = act(*found.groups())
                return (404, {"message": "Not Found"}) if answer is None else (200, answer)
        return 404, {"message": "Not Found"}

    def _made(self, content: Any) -> int:
        self.comment(content["body"])
        return -1

    def _opened(self, content: Any) -> dict[str, Any]:
        self._id += 1
        made = {"number": self._id, "state": "open", "user": {"login": BOT}, **content}
        self.issues.append(made)
        return made

    def _changed(self, found: list[dict[str, Any]], key: str, number: str, content: Any) -> dict[str, Any] | None:
        for one in found:
            if one[key] == int(number):
                one.update(content)
                return one
        return None

    def _deleted(self, number: str) -> dict[str, Any] | None:
        kept = [one for one in self.comments if one["id"] != int(number)]
        gone = len(kept) < len(self.comments)
        self.comments = kept
        return {} if gone else None


@contextmanager
def fake_github() -> Iterator[FakeGitHub]:
    """A server for as long as the test takes."""
    fake = FakeGitHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            content = json.loads(self.rfile.read(length)) if length else None
            query = parse_qs(parts.query)
            fake.asked.append(f"{self.command} {parts.path}")
            fake.tokens.append((parts.path, self.headers.get("Authorization")))
            if parts.path in fake.files:
                self._send(200, fake.files[parts.path], {})
                return
            path = parts.path.removeprefix(f"/repos/{REPOSITORY}/")
            trouble = next(
                (one for one in fake.troubles if one.method == self.command and re.fullmatch(one.path, path)), None
            )
            if trouble:
                fake.troubles.remove(trouble)
                if trouble.done:
                    fake.answer(self.command, path, query, content)
                self._send(trouble.status, trouble.body.encode(), trouble.headers)
                return
            if zipped := re.fullmatch(r"actions/artifacts/(\d+)/zip", path):
                self._send(302, b"", {"Location": f"{fake.address}/blob/{zipped[1]}"})
                return
            status, answer = fake.answer(self.command, path, query, content)
            headers = {}
            found = answer.get("artifacts") if isinstance(answer, dict) else answer
            if status == 200 and isinstance(found, list):
                page = int(query.get("page", ["1"])[0])
                shown = found[(page - 1) * fake.page : page * fake.page]
                if page * fake.page < len(found):
                    more = f"{fake.next_page or fake.address}{parts.path}?state=open&page={page + 1}"
                    headers["Link"] = f'<{more}>; rel="next", <{fake.address}/last>; rel="last"'
                answer = {"artifacts": shown, "total_count": len(found)} if "artifacts" in path else shown
            self._send(status, json.dumps(answer).encode(), headers)

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815 - names of the server's protocol

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
