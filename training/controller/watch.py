"""Informers: list once, watch on, and keep a small record of each object.

What a write returned is put in at once (`put`), so that the next plan sees it; news that is older than what is known is
ignored. When a watch cannot be resumed (410) a new list replaces it, and objects that vanished meanwhile are reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

import httpx2
import msgspec

from training.controller.client import GONE, Api, Object, Resource, code_of, explain

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.2  # seconds before a broken watch is taken up again
LONGEST_PAUSE = 5.0


class Record(Protocol):
    """What an informer keeps of an object."""

    @property
    def resource_version(self) -> int:
        """The object's version."""


R = TypeVar("R", bound=Record)
Observer = Callable[[str, R | None, R | None], None]
"""Called with (key, old, new) for each change; new is None when the object has vanished."""


class Informer(Generic[R]):
    """Records of all objects of a kind, by `namespace/name` (or name, for nodes)."""

    def __init__(
        self,
        api: Api,
        kind: Resource,
        record: Callable[[Object], R],
        observe: Observer[R],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        merge: Callable[[R, R], R] = lambda _, new: new,
    ) -> None:
        self._api = api
        self._kind = kind
        self._record = record
        self._observe = observe
        self._namespace = namespace
        self._labels = labels
        self._merge = merge
        self._records: dict[str, R] = {}
        self.synced = asyncio.Event()
        self.relists = 0
        self.listed_at: datetime | None = None
        """When the last full list was asked for."""
        self.reached = 0
        """Version up to which the watch has told everything."""
        self._answered = 0  # the newest version at which a call is known to have removed an object

    def get(self, key: str) -> R | None:
        """The record of a key."""
        return self._records.get(key)

    def all(self) -> dict[str, R]:
        """Every record by key; not to be changed."""
        return self._records

    def __iter__(self) -> Iterator[R]:
        return iter(self._records.values())

    @property
    def newest(self) -> int:
        """Version of the newest thing that is known, by the watch or by the answer to a call."""
        return max(self.reached, self._answered)

    def put(self, obj: Object) -> None:
        """Takes in an object as a call returned it, unless the watch has told more: that it is gone again, say."""
        if key_of(obj) in self._records or int(obj["metadata"]["resourceVersion"]) > self.reached:
            self._put(obj)

    def _put(self, obj: Object) -> None:
        key, record = key_of(obj), self._record(obj)
        old = self._records.get(key)
        if old is not None and old.resource_version >= record.resource_version:
            return
        if old is not None:
            record = self._merge(old, record)
        self._records[key] = record
        self._observe(key, old, record)

    def drop(self, key: str, version: int | None = None) -> None:
        """Takes out an object that is gone, unless something newer than `version` has its name."""
        self._answered = max(self._answered, version or 0)
        old = self._records.get(key)
        if old is None or (version is not None and old.resource_version > version):
            return
        del self._records[key]
        self._observe(key, old, None)

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        pause = FIRST_PAUSE
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                    pause = FIRST_PAUSE
                async for event, obj in self._api.watch(self._kind, self._namespace, self._labels, version):
                    version = obj["metadata"]["resourceVersion"]
                    pause = FIRST_PAUSE
                    self._take(event, obj)
            except (httpx2.HTTPError, msgspec.MsgspecError, TimeoutError) as error:
                if code_of(error) == GONE:
                    version = ""
                elif code_of(error) is not None:
                    version = ""
                    log.warning("cannot watch %s: %s", self._kind.__name__, explain(error))
                await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 -- jitter, not a secret
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _list(self) -> str:
        asked = datetime.now(UTC)
        items, version = await self._api.list_all(self._kind, self._namespace, self._labels)
        self.relists += 1
        self.listed_at = asked
        present = {key_of(obj) for obj in items}
        for obj in items:
            self._put(obj)
        self.reached = listed = int(version)
        for key in [key for key in self._records if key not in present]:
            self.drop(key, listed)
        self.synced.set()
        return version

    def _take(self, event: str, obj: Object) -> None:
        if event in {"ADDED", "MODIFIED"}:
            self._put(obj)
        elif event == "DELETED" and key_of(obj) in self._records:
            self._put(obj)  # the last state: its outcome may be in it
            self.drop(key_of(obj), int(obj["metadata"]["resourceVersion"]))
        self.reached = int(obj["metadata"]["resourceVersion"])


def key_of(obj: Object) -> str:
    """`namespace/name`, or the name alone where there is no namespace."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
