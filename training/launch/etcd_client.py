"""A client for etcd's version 3 API over its JSON gateway, on the standard library alone.

Why not a library: those that speak gRPC bring a protobuf version that Pulumi and others forbid, and the rendezvous
needs six calls. The gateway (`POST /v3/...`, served on the client port since etcd 3.4) has a few traps, met here once:
64-bit numbers are strings, fields that are false or zero are absent, keys and values are base64, and errors come as
HTTP 4xx/5xx with a gRPC status code in the body.

Retries: a request is repeated, on the next endpoint, until its deadline. That is safe for reads and for lease calls.
A compare-and-swap whose answer was lost may have been applied: it is repeated with the same revision, and when the
comparison then fails although the stored bytes are ours, it was our first attempt that did it (callers make every
value unique, see `compare_and_swap`).
"""

import base64
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 2379
# One attempt, including the connection. Well below the rendezvous' liveness window (5 s x 3), because the heartbeat
# waits for it.
ATTEMPT_TIMEOUT: Final = timedelta(seconds=2)
# All attempts of one call together.
CALL_TIMEOUT: Final = timedelta(seconds=6)
PAUSE_BETWEEN_ATTEMPTS: Final = timedelta(milliseconds=100)

# gRPC status codes in the body of an error (https://grpc.io/docs/guides/status-codes/).
_UNAUTHENTICATED = 16
# Unavailable, deadline exceeded, aborted, resource exhausted, unknown ("no leader"): another attempt may succeed.
_WORTH_REPEATING = frozenset({2, 4, 8, 10, 14})


class EtcdError(Exception):
    """Etcd answered, and the answer is no: wrong user, missing permission, malformed request."""


class EtcdUnreachableError(EtcdError):
    """No endpoint answered in time."""


@dataclass(frozen=True, kw_only=True)
class KeyValue:
    """A value as stored, and the revision of the write that put it there."""

    key: bytes
    value: bytes
    mod_revision: int


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One member of the etcd cluster."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(text: str) -> tuple[list[Endpoint], bool | None]:
    """Read `host:port` or several of them, separated by `;`, `|` or blanks, each with or without `http(s)://`.

    A comma cannot separate them, because torchrun splits `--rdzv-conf` at commas.

    Returns:
        The endpoints, and whether the scheme asks for TLS (None: no scheme given).

    Raises:
        ValueError: nothing given, no host, a user, a port that is no port, or two schemes.
    """
    endpoints: list[Endpoint] = []
    schemes: set[str] = set()
    for part in text.replace(";", " ").replace("|", " ").split():
        parts = urlsplit(part if "://" in part else f"//{part}")
        if "@" in parts.netloc:  # not repeated here: there is a password in it
            raise ValueError(
                "an etcd endpoint holds no user; give `user` and `password_file`, or TRAINYARD_ETCD_USER, ..."
            )
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            port = 0
        if not parts.hostname or not port or parts.scheme not in {"", "http", "https"}:
            raise ValueError(f"'{part}' is no etcd endpoint; write host:port, for example etcd.trainyard-system:2379")
        endpoints.append(Endpoint(host=parts.hostname, port=port))
        schemes.add(parts.scheme)
    if not endpoints:
        raise ValueError("no etcd endpoint given; add --rdzv-endpoint=HOST:2379")
    if len(schemes) > 1:
        raise ValueError(f"the endpoints '{text}' mix schemes; write all of them with https:// or none")
    scheme = schemes.pop()
    return endpoints, None if not scheme else scheme == "https"


class EtcdClient:
    """Blocking client, to be shared by threads: each has its own connection.

    Args:
        endpoints: members of one cluster; the next one is tried when one does not answer.
        tls: context that verifies the server (and holds our certificate), or None for plain http.
        server_name: name that the server's certificate must bear, if not the endpoint's host.
        user: user name, when etcd's authentication is on.
        password: its password.
        attempt_timeout: longest wait for one attempt.
        call_timeout: longest wait for one call with all its attempts.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        attempt_timeout: timedelta = ATTEMPT_TIMEOUT,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        if not endpoints:
            raise ValueError("an etcd client needs at least one endpoint")
        self._endpoints = tuple(endpoints)
        self._tls = tls
        self._server_name = server_name
        self._user = user
        self._password = password
        self._attempt_timeout = attempt_timeout.total_seconds()
        self._call_timeout = call_timeout.total_seconds()
        self._preferred = 0  # index of the endpoint that answered last; shared, a race costs one attempt
        self._last_moment = float("inf")
        self._token: str | None = None  # simple tokens live for minutes; see _authenticated
        self._local = threading.local()

    def get(self, key: bytes, *, within: timedelta | None = None) -> KeyValue | None:
        """Read one key (linearizable), giving up after `within` if that is sooner than the client's own limit."""
        kvs = self._call("/v3/kv/range", {"key": _encode(key)}, within).get("kvs", [])
        return _key_value(kvs[0]) if kvs else None

    def get_many(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Read several keys as of one revision; None for those that do not exist."""
        reads = [{"request_range": {"key": _encode(key)}} for key in keys]
        responses = self._call("/v3/kv/txn", {"success": reads}).get("responses", [])
        found = [response["response_range"].get("kvs", []) for response in responses]
        return [_key_value(kvs[0]) if kvs else None for kvs in found]

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """Write one key, whatever it holds. Repeated when the answer is lost: same value, same result.

        Returns:
            The revision of the write.
        """
        answer = self._call("/v3/kv/put", _put(key, value, lease))
        return int(answer["header"]["revision"])

    def compare_and_swap(
        self, key: bytes, value: bytes, mod_revision: int, *, lease: int = 0
    ) -> tuple[bool, KeyValue | None]:
        """Write `value` if the key's last write is `mod_revision` (0: if the key does not exist).

        Args:
            key: the key.
            value: the new bytes; make them unique (a writer and a counter), or a lost answer cannot be told apart
                from another writer's equal bytes.
            mod_revision: revision that a read returned, 0 for "absent".
            lease: lease to which the key is bound, 0 for none.

        Returns:
            Whether the key now holds our write, and what it holds (None: nothing).
        """
        answer = self._call(
            "/v3/kv/txn",
            {
                "compare": [
                    {"key": _encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}
                ],
                "success": [{"request_put": _put(key, value, lease)}],
                "failure": [{"request_range": {"key": _encode(key)}}],
            },
        )
        if answer.get("succeeded", False):
            revision = int(answer["header"]["revision"])
            return True, KeyValue(key=key, value=value, mod_revision=revision)
        kvs = answer["responses"][0]["response_range"].get("kvs", [])
        current = _key_value(kvs[0]) if kvs else None
        return current is not None and current.value == value, current

    def delete(self, key: bytes) -> bool:
        """Delete one key; whether it existed."""
        return int(self._call("/v3/kv/deleterange", {"key": _encode(key)}).get("deleted", 0)) > 0

    def count(self, prefix: bytes) -> int:
        """Number of keys that start with `prefix`."""
        request = {**_range(prefix), "count_only": True}
        return int(self._call("/v3/kv/range", request).get("count", 0))

    def grant_lease(self, ttl: timedelta) -> int:
        """Open a lease: keys bound to it vanish when nobody has kept it alive for `ttl`."""
        return int(self._call("/v3/lease/grant", {"TTL": str(max(1, int(ttl.total_seconds())))})["ID"])

    def keep_lease(self, lease: int) -> bool:
        """Renew a lease; False when it has expired (its keys are gone)."""
        result = self._call("/v3/lease/keepalive", {"ID": str(lease)}).get("result", {})
        return int(result.get("TTL", 0)) > 0

    def check(self) -> None:
        """Make one harmless request, so that a wrong address, certificate or password is told at the start."""
        self._call("/v3/kv/range", {"key": _encode(b"\0"), "count_only": True})

    def local_address(self) -> str | None:
        """Our own address as etcd sees it; None when there is no connection."""
        held = getattr(self._local, "held", None)
        return str(held[1].sock.getsockname()[0]) if held and held[1].sock else None

    def hurry(self, time_left: timedelta) -> None:
        """Have all calls, also those that other threads are making, end by then, for this process is ending."""
        self._last_moment = min(self._last_moment, time.monotonic() + time_left.total_seconds())

    def close(self) -> None:
        """Close this thread's connection."""
        self._drop_connection()

    def _call(self, path: str, request: dict[str, Any], within: timedelta | None = None) -> dict[str, Any]:
        limit = self._call_timeout if within is None else min(self._call_timeout, within.total_seconds())
        until = time.monotonic() + limit
        while True:
            deadline = min(until, self._last_moment)
            endpoint = self._endpoints[self._preferred % len(self._endpoints)]
            try:
                return self._authenticated(endpoint, path, request, deadline)
            except ssl.SSLCertVerificationError as error:
                raise EtcdError(
                    f"the certificate of etcd at {endpoint} is not accepted: {error.verify_message}; check that "
                    "`cacert` is the authority that signed it and that the name matches (`server_name`)"
                ) from error
            except (OSError, http.client.HTTPException, _RepeatError) as error:
                self._preferred += 1
                deadline = min(until, self._last_moment)
                if time.monotonic() + PAUSE_BETWEEN_ATTEMPTS.total_seconds() >= deadline:
                    tried = ", ".join(map(str, self._endpoints))
                    raise EtcdUnreachableError(
                        f"etcd does not answer at {tried} ({error or type(error).__name__}); check the address, that "
                        "etcd runs, and whether it wants TLS"
                    ) from error
                time.sleep(PAUSE_BETWEEN_ATTEMPTS.total_seconds())

    def _authenticated(self, endpoint: Endpoint, path: str, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send with the user's token, getting a new one when etcd has forgotten or outlived the old one."""
        if self._user is None:
            return self._send(endpoint, path, request, deadline)
        used = self._token
        if used is not None:
            try:
                return self._send(endpoint, path, request, deadline, token=used)
            except _UnauthenticatedError:
                if self._token == used:
                    self._token = None
        if (fresh := self._token) is None:
            login = {"name": self._user, "password": self._password or ""}
            fresh = self._token = str(self._send(endpoint, "/v3/auth/authenticate", login, deadline)["token"])
        try:
            return self._send(endpoint, path, request, deadline, token=fresh)
        except _UnauthenticatedError as error:
            raise EtcdError(f"etcd at {endpoint} refuses a token that it has just given out: {error}") from error

    def _send(
        self, endpoint: Endpoint, path: str, request: dict[str, Any], deadline: float, token: str | None = None
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = token
        timeout = max(0.1, min(self._attempt_timeout, deadline - time.monotonic()))
        with self._connection(endpoint, timeout) as connection:
            connection.request("POST", path, body=json.dumps(request), headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _RepeatError(f"HTTP {status} without JSON from {endpoint}; is it really etcd's client port?")
        if status == http.HTTPStatus.OK:
            return answer
        code, message = int(answer.get("code", 2)), str(answer.get("message", answer.get("error", body)))
        if code == _UNAUTHENTICATED or "invalid auth token" in message:
            raise _UnauthenticatedError(message)
        if code in _WORTH_REPEATING and "authentication failed" not in message:
            raise _RepeatError(message)
        raise EtcdError(f"etcd at {endpoint} refuses {path}: {message}")

    @contextlib.contextmanager
    def _connection(self, endpoint: Endpoint, timeout: float) -> Iterator[http.client.HTTPConnection]:
        """This thread's connection. Whatever interrupts its use (a signal's exception too) closes it."""
        held: tuple[Endpoint, http.client.HTTPConnection] | None = getattr(self._local, "held", None)
        if held is None or held[0] != endpoint:
            self._drop_connection()
            held = self._local.held = (endpoint, self._connect(endpoint, timeout))
        connection = held[1]
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            yield connection
        except BaseException:
            self._drop_connection()
            raise

    def _connect(self, endpoint: Endpoint, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
        if self._server_name is None:
            return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=timeout, context=self._tls)
        return _NamedHTTPSConnection(endpoint, timeout, self._tls, self._server_name)

    def _drop_connection(self) -> None:
        held = getattr(self._local, "held", None)
        self._local.held = None
        if held is not None:
            held[1].close()


class _RepeatError(Exception):
    """An answer after which another attempt may succeed."""


class _UnauthenticatedError(EtcdError):
    """The token is unknown or has expired."""


class _NamedHTTPSConnection(http.client.HTTPSConnection):
    """TLS where the certificate's name is not the address (a load balancer, an IP address)."""

    def __init__(self, endpoint: Endpoint, timeout: float, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__(endpoint.host, endpoint.port, timeout=timeout, context=context)
        self._named_context = context
        self._named_server = server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._named_context.wrap_socket(self.sock, server_hostname=self._named_server)


def _put(key: bytes, value: bytes, lease: int) -> dict[str, Any]:
    request = {"key": _encode(key), "value": _encode(value)}
    return {**request, "lease": str(lease)} if lease else request


def _key_value(kv: dict[str, Any]) -> KeyValue:
    return KeyValue(key=_decode(kv["key"]), value=_decode(kv.get("value", "")), mod_revision=int(kv["mod_revision"]))


def _range(prefix: bytes) -> dict[str, Any]:
    """All keys with this prefix: from it to the first key after them; for etcd, zero to zero means all there are."""
    trimmed = prefix.rstrip(b"\xff")
    end = trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"
    return {"key": _encode(prefix or b"\0"), "range_end": _encode(end)}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text)
