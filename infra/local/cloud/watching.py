"""List and watch one kind of object forever, across restarts of the API server."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from lightkube import Client, KubeConfig
from lightkube.config.client_adapter import verify_cluster

_FIRST_DELAY, _LAST_DELAY = 0.2, 3.0  # seconds between attempts to reach an API server that is away
_WATCH_SECONDS = 300  # the server ends a watch after this time
_SILENCE_SECONDS = _WATCH_SECONDS + 30.0  # after which the server is taken for dead

log = logging.getLogger(__name__)


class _Bounded(httpx2.HTTPTransport):
    """Bounds every wait for an answer: lightkube watches without any limit."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        limits = request.extensions.setdefault("timeout", {})
        if limits.get("read") is None:
            limits["read"] = _SILENCE_SECONDS
        return super().handle_request(request)


def client_of(kubeconfig: Path) -> Client:
    """The daemon's client, whose watches notice a server that fell silent."""
    config = KubeConfig.from_file(kubeconfig).get()
    if config is None or config.user is None:
        raise SystemExit(f"{kubeconfig} names no user")
    verify = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
    return Client(config=config, transport=_Bounded(verify=verify), trust_env=False, field_manager="local-cloud")


@dataclass(frozen=True)
class Change:
    """An object as it is now, or, with `gone`, as it was last."""

    object: Any
    gone: bool = False


class Watch(threading.Thread):
    """Calls `tell` with every change of one kind, from a thread of its own.

    After a break it lists again and reports what vanished meanwhile as gone, so that the listener's picture is whole.
    """

    def __init__(self, client: Client, kind: Any, tell: Callable[[Change], None], *, namespaced: bool) -> None:
        super().__init__(name=f"watch-{kind.__name__}", daemon=True)
        self._client = client
        self._kind = kind
        self._tell = tell
        self._namespaced = namespaced
        self._known: dict[str, Any] = {}
        self.connected = False  # whether the listener's picture is whole and kept so

    def run(self) -> None:
        """Never returns."""
        delay = _FIRST_DELAY
        while True:
            try:
                version = self._list()
                delay = _FIRST_DELAY
                self.connected = True
                self._follow(version)
            except Exception as error:  # noqa: BLE001 - whatever broke, listing again makes the picture whole
                self.connected = False
                log.info("watching %s: %r; again in %.1f s", self._kind.__name__, error, delay)
                time.sleep(delay)
                delay = min(delay * 2, _LAST_DELAY)

    def _list(self) -> str:
        kind, client = self._kind, self._client
        listed = client.list(kind, namespace="*") if self._namespaced else client.list(kind)
        found = {item.metadata.uid: item for item in listed}
        for uid in self._known.keys() - found.keys():
            self._tell(Change(self._known.pop(uid), gone=True))
        for uid, item in found.items():
            self._known[uid] = item
            self._tell(Change(item))
        return str(listed.resourceVersion)

    def _follow(self, version: str) -> None:
        options: dict[str, Any] = {"resource_version": version, "server_timeout": _WATCH_SECONDS}
        if self._namespaced:
            options["namespace"] = "*"
        events: Iterator[tuple[str, Any]] = self._client.watch(self._kind, **options)
        for kind, item in events:
            if kind == "DELETED":
                self._known.pop(item.metadata.uid, None)
            else:
                self._known[item.metadata.uid] = item
            self._tell(Change(item, gone=kind == "DELETED"))
