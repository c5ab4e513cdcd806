"""Stand-ins for the metadata services of three clouds, as their documentation describes them, on a free port.

Each keeps what a test sets and answers as the cloud does, with its refusals: a test that passes here has the headers,
paths and waits right. What it has been asked is in `asked`.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class MetadataServer:
    """Base: runs a server in a thread; `answer` decides."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: str | None = None
        """Answers every question with this text and status 200."""
        self.delay = 0.0
        self.changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                outer.asked.append(f"{self.command} {self.path}")
                time.sleep(outer.delay)
                named = {name.lower(): value for name, value in self.headers.items()}
                more: dict[str, str] = {}
                if outer.broken is not None:
                    status, text = 200, outer.broken
                else:
                    status, text, more = outer.answer(self.command, self.path, named)
                body = text.encode()
                try:
                    self.send_response(status)
                    for name, value in {**more, "Content-Length": str(len(body))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    return  # whoever asked has gone

            do_GET = do_PUT = do_POST = _serve  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class AwsServer(MetadataServer):
    """Instance metadata, version 2 only: a token by PUT, 401 without one that is valid, 404 until something is set."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[str, str] = {}
        self._tokens: dict[str, float] = {}
        self.is_off = False

    def interrupt(self, action: str, at: str) -> None:
        self.items["spot/instance-action"] = json.dumps({"action": action, "time": at})

    def recommend(self, at: str) -> None:
        self.items["events/recommendations/rebalance"] = json.dumps({"noticeTime": at})

    def forget_tokens(self) -> None:
        """As after a stop and start."""
        self._tokens.clear()

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        if self.is_off:
            return 403, "", {}
        if path == "/latest/api/token":
            seconds = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT":
                return 405, "", {}
            if not seconds.isdecimal() or not 1 <= int(seconds) <= 21600 or "x-forwarded-for" in headers:
                return 400, "", {}
            token = f"token-{len(self.asked)}"
            self._tokens[token] = time.monotonic() + int(seconds)
            return 200, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": seconds}
        if self._tokens.get(headers.get("x-aws-ec2-metadata-token", ""), 0) < time.monotonic():
            return 401, "", {}
        item = self.items.get(path.removeprefix("/latest/meta-data/"))
        return (404, "Not Found", {}) if item is None else (200, item, {})


class GcpServer(MetadataServer):
    """`wait_for_change` holds a question until the value has another ETag than `last_etag`, or until `timeout_sec`."""

    def __init__(self) -> None:
        super().__init__()
        self._values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self._versions = dict.fromkeys(self._values, 1)

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self._values[key] = value
            self._versions[key] += 1
            self.changed.notify_all()

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        place = urlsplit(path)
        query = {name: values[-1] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        if method != "GET" or headers.get("metadata-flavor") != "Google":
            return 403, "Missing Metadata-Flavor:Google header.", {}
        key = place.path.removeprefix("/computeMetadata/v1/instance/")
        if key not in self._values:
            return 404, "", {}
        with self.changed:
            if query.get("wait_for_change") == "true":
                seen, limit = query.get("last_etag") or self._etag(key), float(query.get("timeout_sec", "3600"))
                self.changed.wait_for(lambda: self._etag(key) != seen, limit)
            return 200, self._values[key], {"Metadata-Flavor": "Google", "ETag": self._etag(key)}

    def _etag(self, key: str) -> str:
        return f"{key}{self._versions[key]:04x}"


class AzureServer(MetadataServer):
    """Scheduled Events: 400 without the header or a version; events of all machines of the group, with incarnation."""

    def __init__(self, machine: str) -> None:
        super().__init__()
        self._machine = machine
        self._incarnation = 1
        self._events: list[dict[str, Any]] = []

    def schedule(self, kind: str, not_before: str, *, machine: str = "", status: str = "Scheduled") -> None:
        self._incarnation += 1
        event = {
            "EventId": f"id-{self._incarnation}",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": [machine or self._machine],
            "EventStatus": status,
            "NotBefore": not_before,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self._events.append(event)

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        place = urlsplit(path)
        query = parse_qs(place.query)
        if headers.get("metadata") != "true" or "api-version" not in query or method != "GET":
            return 400, json.dumps({"error": "Bad request"}), {}
        if place.path == "/metadata/instance/compute/name":
            return (200, self._machine, {}) if query.get("format") == ["text"] else (400, "{}", {})
        if place.path == "/metadata/scheduledevents":
            document = {"DocumentIncarnation": self._incarnation, "Events": self._events}
            return 200, json.dumps(document), {}
        return 404, "", {}
