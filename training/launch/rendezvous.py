"""The rendezvous backend `etcd-v3`: how nodes find each other, through etcd 3.4 or newer.

    python -m training --rdzv-backend etcd-v3 --rdzv-endpoint etcd:2379 --rdzv-id job-7 --nnodes 1:4 train.py
    torchrun           --rdzv-backend etcd-v3 --rdzv-endpoint etcd:2379 --rdzv-id job-7 --nnodes 1:4 train.py

Options, in `--rdzv-conf key=value,key=value` (no commas inside a value) or, where a secret or a path should not stand
on a command line, in the environment; the command line wins:

| key                    | environment                | default | meaning |
| ---------------------- | -------------------------- | ------- | -------------------- |
| endpoints              | TRAINYARD_ETCD_ENDPOINTS   |         | more members, separated by `;` |
| protocol               |                            | http    | `https` turns TLS on; so does `cacert` |
| cacert                 | TRAINYARD_ETCD_CACERT      | system  | authority that signed etcd's certificate |
| cert, key              | TRAINYARD_ETCD_CERT, _KEY  |         | our own certificate and its key |
| server_name            | TRAINYARD_ETCD_SERVER_NAME |         | name in etcd's certificate, if another |
| user, password         | TRAINYARD_ETCD_USER, ...   |         | etcd's own users; or `password_file` |
| prefix                 |                            |         | all keys start with it; /trainyard/rendezvous |
| join_timeout           |                            | 600 s   | longest wait for a complete world |
| last_call_timeout      |                            | 2 s     | wait for more nodes once the least are there |
| keep_alive_interval    |                            | 5 s     | time between a node's heartbeats |
| keep_alive_max_attempt |                            | 3       | missed heartbeats after which a node is replaced |
| without_etcd           |                            | auto    | train, hold or auto: what a world does without etcd |
| lease                  |                            | 7200 s  | a job's keys outlive its last heartbeat by this time |

Interval x attempts (15 s) is the window: a node that is silent for so long is replaced. Most losses are seen much
sooner (a node that is told to go leaves at once, a killed process is missed by its closed port); the window is for
hosts that vanish and processes that freeze. With `keep_alive_interval=1,keep_alive_max_attempt=5` a frozen node is
replaced within 6 s. The price: each node writes to etcd each second, and one that cannot for 5 s (a pause of etcd that
others do not see, a machine that swaps) is asked directly whether it lives, and dropped if it does not say so within
half a second. A pause of etcd itself costs nobody anything, whatever the window. How long a world goes on without etcd
is another time, `without_etcd`: about a minute (`training.launch.fencing`, docs/explanation/fencing.md).

This module only reads options; it imports no torch, because torch itself loads it through the entry point.
"""

import atexit
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from training.launch.environment import CHECKPOINT_LOCK, ETCD_PREFIX
from training.launch.etcd_client import (
    ATTEMPT_TIMEOUT,
    CALL_TIMEOUT,
    Endpoint,
    EtcdClient,
    EtcdError,
    EtcdUnreachableError,
    parse_endpoints,
)
from training.launch.fencing import MODES, Times, WithoutEtcd

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND: Final = "etcd-v3"

LAST_CALL: Final = timedelta(seconds=2)
JOIN: Final = timedelta(seconds=600)
CLOSE: Final = timedelta(seconds=30)
KEEP_ALIVE_INTERVAL: Final = timedelta(seconds=5)
KEEP_ALIVE_ATTEMPTS: Final = 3
LEASE: Final = timedelta(hours=2)
# etcd and the workers may start together.
START_PATIENCE: Final = timedelta(seconds=60)
PREFIX: Final = "/trainyard/rendezvous"
# Form of a job's state in etcd (`training.launch.membership`), and how a job ends: done; its budget of failures is
# spent; or trying again is pointless.
FORMAT: Final = 3
FINISHED: Final = "finished"
FAILED: Final = "failed"
GIVEN_UP: Final = "given up"
# A node that comes to a job which has ended learns so within this time, or when it joins.
GLANCE: Final = timedelta(seconds=1)
# Longer times are mistakes; so is what does not fit into a timedelta.
LONGEST: Final = timedelta(days=3650)
# The launcher's word that the run id is made up (see `_first_open_run`).
_NEXT_FREE_RUN: Final = "next_free_run"
# The launcher's word for what it runs; plain torchrun does not tell.
_JOB: Final = "job"


def backend() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """Entry point of the group `torchrun.handlers`: returns the function that makes a handler from parameters."""
    return create_handler


def check(params: "RendezvousParameters") -> None:
    """Find mistakes in the options; asks nobody.

    Raises:
        ValueError: an option is unknown, malformed or contradicts another.
    """
    if not params.run_id:
        raise ValueError("the run id is empty; give --rdzv-id, the same on all nodes of the job")
    _options(params).client()


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """Make a rendezvous handler for one node.

    Raises:
        ValueError: an option is unknown, malformed or contradicts another.
        EtcdError: etcd does not answer or refuses us.
    """
    from training.launch.membership import EtcdRendezvousHandler  # noqa: PLC0415  (needs torch; see above)

    next_free_run = bool(params.config.get(_NEXT_FREE_RUN, False))
    options = _options(params)
    client = options.client()
    _await_etcd(client)
    run_id = _first_open_run(client, options, params.run_id) if next_free_run else params.run_id
    handler = EtcdRendezvousHandler.create(
        client,
        options,
        run_id=run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr,
        name=params.backend,
        job=str(params.config.get(_JOB, "")),
    )
    atexit.register(handler.leave)
    told = {key: value for key, value in params.config.items() if key in _FOR_WORKERS}
    os.environ[CHECKPOINT_LOCK] = json.dumps({"endpoint": params.endpoint, "config": told, "run_id": run_id})
    return handler


def state_key(options: "Options", run_id: str) -> bytes:
    """The key that holds the state of a job."""
    return f"{options.prefix}/{run_id}/state".encode()


def in_words(run_id: str, outcome: str) -> str:
    """That a job has ended, and how; `outcome` is empty where that is not known."""
    ended = {GIVEN_UP: "been given up", "": "been closed"}
    return f"the job '{run_id}' has {ended.get(outcome, outcome)} already; to run it again, give it another --rdzv-id"


def outcome_already(endpoint: str, run_id: str, config: Mapping[str, object], job: str) -> str | None:
    """How a job has ended that a node comes to too late: FINISHED, FAILED, GIVEN_UP or "" (closed by hand).

    Asked before torch is imported, which takes seconds: until they are over, the cluster keeps the node, and its job.

    Args:
        endpoint: of etcd, as `--rdzv-endpoint` has it.
        run_id: the job's.
        config: what `--rdzv-conf` says.
        job: what this node would run, in words.

    Returns:
        None where the job has not ended, is another's, or nothing can be learnt at once. All of that is found again,
        with what is to be said about it, when the node joins.
    """
    try:
        options = Options.parse(endpoint, config, os.environ)
        client = options.client()
        try:
            held = client.get(state_key(options, run_id), within=GLANCE)
        finally:
            client.close()
        state = json.loads(held.value) if held is not None else None
    except (ValueError, EtcdError, RecursionError):
        return None
    if not isinstance(state, dict) or state.get("format") != FORMAT or state.get("closed") is not True:
        return None
    return str(state.get("outcome", "")) if state.get("job") in {"", job} else None


def _options(params: "RendezvousParameters") -> "Options":
    config = {key: value for key, value in params.config.items() if key not in {_NEXT_FREE_RUN, _JOB}}
    return Options.parse(params.endpoint, config, os.environ)


def _await_etcd(client: EtcdClient) -> None:
    """Give an etcd that is starting beside us some time; a wrong password or certificate is told at once."""
    deadline = time.monotonic() + START_PATIENCE.total_seconds()
    while True:
        try:
            client.check()
        except EtcdUnreachableError:
            if time.monotonic() >= deadline:
                raise
        else:
            return


def _first_open_run(client: EtcdClient, options: "Options", name: str) -> str:
    """For an id that we made up from the command: `name`, or `name-2` and so on after runs that have ended."""
    from training.launch.membership import decode  # noqa: PLC0415  (needs torch; see above)

    number = 1
    while True:
        run_id = name if number == 1 else f"{name}-{number}"
        held = client.get(state_key(options, run_id))
        if held is None or not decode(held.value).closed:
            return run_id
        number += 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """All that can be set, checked. Meanings and defaults: see the module."""

    endpoints: tuple[Endpoint, ...]
    tls: bool = False
    cacert: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    prefix: str = PREFIX
    join_timeout: timedelta = JOIN
    last_call_timeout: timedelta = LAST_CALL
    close_timeout: timedelta = CLOSE
    keep_alive_interval: timedelta = KEEP_ALIVE_INTERVAL
    keep_alive_max_attempt: int = KEEP_ALIVE_ATTEMPTS
    without_etcd: WithoutEtcd = "auto"
    lease: timedelta = LEASE

    @classmethod
    def parse(cls, endpoint: str, config: Mapping[str, object], environment: Mapping[str, str]) -> "Options":
        """Read the options of `--rdzv-conf` (all strings) and their twins in the environment.

        Raises:
            ValueError: names every unknown key, or the first value that does not fit.
        """
        given = {key: str(value) for key, value in config.items() if key not in _IGNORED}
        if unknown := sorted(set(given) - set(_KEYS)):
            raise ValueError(
                f"--rdzv-conf has unknown keys for {BACKEND}: {', '.join(unknown)}; known keys: {', '.join(_KEYS)}"
            )
        for key, variable in _ENVIRONMENT.items():
            if key not in given and environment.get(variable):
                given[key] = environment[variable]

        endpoints, scheme_is_tls = parse_endpoints(f"{endpoint} {given.get('endpoints', '')}")
        protocol = given.get("protocol", "")
        if protocol not in {"", "http", "https"}:
            raise ValueError(f"protocol={protocol} in --rdzv-conf is neither http nor https")
        tls = protocol == "https" or bool(scheme_is_tls) or any(k in given for k in ("cacert", "cert", "server_name"))
        if tls and (protocol == "http" or scheme_is_tls is False):
            raise ValueError("--rdzv-conf names certificates, but the endpoint or protocol says http; write https")
        if ("cert" in given) != ("key" in given):
            raise ValueError("--rdzv-conf needs `cert` and `key` together: a certificate and its private key")
        password = given.get("password")
        if password is None and "password_file" in given:
            password = _readable("password_file", given["password_file"]).read_text().rstrip("\n")
        if (password is None) != ("user" not in given):
            raise ValueError("etcd's `user` and `password` (or `password_file`) belong together; one is missing")

        without_etcd = next((mode for mode in MODES if mode == given.get("without_etcd", "auto")), None)
        if without_etcd is None:
            raise ValueError(f"without_etcd={given['without_etcd']} in --rdzv-conf is none of {', '.join(MODES)}")

        options = cls(
            endpoints=tuple(endpoints),
            tls=tls,
            cacert=_readable("cacert", given["cacert"]) if "cacert" in given else None,
            cert=_readable("cert", given["cert"]) if "cert" in given else None,
            key=_readable("key", given["key"]) if "key" in given else None,
            server_name=given.get("server_name"),
            user=given.get("user"),
            password=password,
            prefix=given.get("prefix", PREFIX).rstrip("/"),
            join_timeout=_seconds(given, "join_timeout", JOIN),
            last_call_timeout=_seconds(given, "last_call_timeout", LAST_CALL),
            close_timeout=_seconds(given, "close_timeout", CLOSE),
            keep_alive_interval=_seconds(given, "keep_alive_interval", KEEP_ALIVE_INTERVAL),
            keep_alive_max_attempt=int(_number(given, "keep_alive_max_attempt", KEEP_ALIVE_ATTEMPTS)),
            without_etcd=without_etcd,
            lease=_seconds(given, "lease", LEASE),
        )
        if options.lease <= options.join_timeout:
            raise ValueError(
                f"lease={options.lease.total_seconds():g} must be longer than "
                f"join_timeout={options.join_timeout.total_seconds():g}, or a waiting job loses its state"
            )
        return options

    def times(self) -> Times:
        """The times of patience that follow from these options."""
        return Times.of(self.keep_alive_interval, self.keep_alive_max_attempt, self.without_etcd)

    def client(self) -> EtcdClient:
        """A client for these endpoints. With a short window it is less patient: heartbeats wait for its calls.

        Raises:
            ValueError: a certificate or key cannot be used.
        """
        window = self.times().window
        return EtcdClient(
            self.endpoints,
            attempt_timeout=min(ATTEMPT_TIMEOUT, window / 5),
            call_timeout=min(CALL_TIMEOUT, window * 2 / 5),
            tls=self._tls_context() if self.tls else None,
            server_name=self.server_name,
            user=self.user,
            password=self.password,
        )

    def _tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.cacert) if self.cacert else None)
            if self.cert and self.key:
                context.load_cert_chain(str(self.cert), str(self.key))
        except (ssl.SSLError, OSError) as error:
            files = ", ".join(str(path) for path in (self.cacert, self.cert, self.key) if path)
            raise ValueError(f"the certificates for etcd cannot be used ({files}): {error}") from error
        return context


_ENVIRONMENT = {
    key: ETCD_PREFIX + key.upper()
    for key in ("endpoints", "cacert", "cert", "key", "server_name", "user", "password", "password_file")
}
# Settings that workers need to reach the same etcd; a password they find where we do, in a file or the environment.
_FOR_WORKERS = frozenset({*_ENVIRONMENT, "protocol", "prefix"} - {"password"})
_TIMES = (
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "lease",
)
_KEYS = (*_ENVIRONMENT, "protocol", "prefix", "without_etcd", *_TIMES)
# Always added by torch's LaunchConfig, or options of torch's own backends without a meaning here.
_IGNORED = frozenset({"timeout", "rank", "read_timeout", "heartbeat_timeout", "cas_backoff_max_seconds"})


def _number(given: Mapping[str, str], key: str, default: float) -> float:
    text = given.get(key)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = 0
    if not 0 < number <= LONGEST.total_seconds() or (key == "keep_alive_max_attempt" and number < 2):
        least = "a number of at least 2" if key == "keep_alive_max_attempt" else "a positive number"
        raise ValueError(f"{key}={text} in --rdzv-conf is not {least}, or is too large")
    return number


def _seconds(given: Mapping[str, str], key: str, default: timedelta) -> timedelta:
    return timedelta(seconds=_number(given, key, default.total_seconds()))


def _readable(key: str, text: str) -> Path:
    path = Path(text)
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"{key}={text}: there is no such file, or it cannot be read; check the mount and its mode")
    return path
