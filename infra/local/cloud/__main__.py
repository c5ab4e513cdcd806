"""The daemon: `python -m infra.local.cloud --kubeconfig FILE --state FOLDER`."""

import argparse
import contextlib
import heapq
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Node, PersistentVolume, PersistentVolumeClaim, Pod, Service

from infra.local.cloud import BEAT_SECONDS, heartbeat
from infra.local.cloud.inotify import FolderWatch
from infra.local.cloud.machines import Machines
from infra.local.cloud.names import Names, PodView, ServiceView
from infra.local.cloud.volumes import Volumes
from infra.local.cloud.watching import Change, Watch, client_of

RETRY_SECONDS = 1.0
GATHER_SECONDS = 0.02  # changes that come together are written to the hosts files together

log = logging.getLogger("cloud")


class Cloud:
    """One thread that acts, fed by threads that wait."""

    def __init__(self, client: Client, state: Path) -> None:
        self._client = client
        self._inbox: queue.Queue[tuple[Callable[[Any], None], Any]] = queue.Queue()
        self._retries: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._machines = Machines(client, state / "nodes")
        self._volumes = Volumes(client, state / "volumes")
        self._names = Names(state / "nodes")
        self._names_due: float | None = None
        self._files = FolderWatch()
        self._watches: list[Watch] = []
        self._heartbeat = heartbeat(state)
        self._beat_due = 0.0

    def run(self) -> None:
        """Act until the process is ended."""
        handlers: list[tuple[Any, Callable[[Any], None], bool]] = [
            (Node, self._on_node, False),
            (PersistentVolume, self._on_volume, False),
            (PersistentVolumeClaim, self._on_claim, True),
            (Service, self._on_service, True),
            (Pod, self._on_pod, True),
        ]
        for kind, handler, namespaced in handlers:
            watch = Watch(self._client, kind, self._teller(handler), namespaced=namespaced)
            self._watches.append(watch)
            watch.start()
        threading.Thread(target=self._watch_files, name="watch-files", daemon=True).start()
        while True:
            self._turn()

    def _turn(self) -> None:
        """Wait for the next thing to do, or for the time at which one is due."""
        due = [self._beat_due]
        if self._retries:
            due.append(self._retries[0][0])
        if self._names_due is not None:
            due.append(self._names_due)
        with contextlib.suppress(queue.Empty):
            self._do(*self._inbox.get(timeout=max(0.0, min(due) - time.monotonic())))
        if self._names_due is not None and self._names_due <= time.monotonic():
            self._names_due = None
            self._names.refresh()
        while self._retries and self._retries[0][0] <= time.monotonic():
            _, _, handler, item = heapq.heappop(self._retries)
            self._do(handler, item)
        if self._beat_due <= time.monotonic():
            self._beat()

    def _beat(self) -> None:
        well = all(watch.connected for watch in self._watches)
        if well:
            with contextlib.suppress(OSError):
                self._heartbeat.touch(mode=0o600)
        self._beat_due = time.monotonic() + (BEAT_SECONDS if well else RETRY_SECONDS / 4)

    def _do(self, handler: Callable[[Any], None], item: Any) -> None:
        try:
            handler(item)
        except (ApiError, httpx2.HTTPError, OSError) as error:
            if isinstance(error, ApiError) and error.status.code in {404, 409}:
                return  # it is gone, or newer than what we saw and on its way to us
            log.warning("%s: %s; again in %.0f s", handler.__name__, error, RETRY_SECONDS)
            heapq.heappush(self._retries, (time.monotonic() + RETRY_SECONDS, id(item), handler, item))
        except Exception:
            # One odd object must not end names and volumes for all others.
            log.exception("%s: given up", handler.__name__)

    def _teller(self, handler: Callable[[Any], None]) -> Callable[[Change], None]:
        return lambda change: self._inbox.put((handler, change))

    def _on_node(self, change: Change) -> None:
        if change.gone:
            return
        folder = self._names.pods_folder(change.object.metadata.name)
        try:
            if self._files.add(folder):
                for pod in folder.iterdir():  # those that were there before us
                    self._do(self._on_file, pod)
        except OSError as error:
            log.warning("%s: %s; again when its node reports", folder, error)
        self._machines.complete(change.object)

    def _on_claim(self, change: Change) -> None:
        if not change.gone:
            self._volumes.provision(change.object)

    def _on_volume(self, change: Change) -> None:
        if not change.gone:
            self._volumes.reclaim(change.object)

    def _on_service(self, change: Change) -> None:
        view = ServiceView.of(change.object.to_dict())
        if self._names.set_service(view, gone=change.gone):
            self._names_due = self._names_due or time.monotonic() + GATHER_SECONDS

    def _on_pod(self, change: Change) -> None:
        view = PodView.of(change.object.to_dict())
        if self._names.set_pod(view, gone=change.gone):
            self._names_due = self._names_due or time.monotonic() + GATHER_SECONDS

    def _on_file(self, path: Path) -> None:
        if path.name == "etc-hosts":
            self._names.refresh_one(path.parent.name)
        elif path.parent.name == "pods" and self._files.add(path):
            self._names.refresh_one(path.name)  # it may have been written before we watched

    def _watch_files(self) -> None:
        for path in self._files.events():
            if path.name == "etc-hosts" or path.parent.name == "pods":
                self._inbox.put((self._on_file, path))


def main() -> None:
    """Start the daemon."""
    parser = argparse.ArgumentParser(prog="python -m infra.local.cloud", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="whom to be, and where the API server is")
    parser.add_argument("--state", type=Path, required=True, help="the state folder of the cluster")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    Cloud(client_of(options.kubeconfig), options.state).run()


if __name__ == "__main__":
    main()
