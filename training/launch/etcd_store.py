"""A c10d `Store` kept in etcd: what agents use to agree on ranks and addresses, and to wait for each other at the end.

Each round of a rendezvous has its own prefix (see `membership`), so a late reader never meets keys of an earlier round,
and all keys hang on the job's lease, so they vanish when the job is gone.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from training.launch.etcd_client import EtcdClient, EtcdUnreachableError, KeyValue
from training.launch.torch_private import Store

# Waiting polls, at first quickly (agents arrive within milliseconds of each other), then gently.
FIRST_PAUSE = timedelta(milliseconds=5)
LONGEST_PAUSE = timedelta(milliseconds=250)
DEFAULT_TIMEOUT = timedelta(minutes=5)
# A counter is stored as this mark, a number used once and the count: two nodes that count from 0 to 1 at the same time
# must not write equal bytes, or one whose swap failed would take the other's write for its own.
_COUNTER = b"\0counter\0"


class EtcdStore(Store):
    """The operations of a c10d store on one key prefix.

    Args:
        client: connection to etcd.
        prefix: all keys start with it; ends with `/`.
        lease: returns the lease to which keys are bound (0: none).
        interruption: asked while a key is awaited; says why that is pointless (a node is gone), or nothing.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        lease: Callable[[], int] = lambda: 0,
        interruption: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__()
        self._client = client
        self._prefix = prefix
        self._lease = lease
        self._interruption = interruption
        self.set_timeout(DEFAULT_TIMEOUT)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a key; an etcd that is away is waited for.

        Raises:
            DistStoreError: it did not come back within the store's timeout.
        """
        deadline = time.monotonic() + self._patience.total_seconds()
        while True:
            try:
                self._client.put(self._key(key), _as_bytes(value), lease=self._lease())
            except EtcdUnreachableError as error:
                if time.monotonic() >= deadline:
                    raise DistStoreError(str(error)) from error
            else:
                return

    def get(self, key: str) -> bytes:
        """Read a key, waiting until it exists.

        Raises:
            DistStoreError: it did not appear within the store's timeout, or waiting became pointless.
        """
        return _plain(self._await([key], self._patience)[0].value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist.

        Raises:
            DistStoreError: they did not appear in time, or waiting became pointless.
        """
        self._await(keys, self._patience if timeout is None else timeout)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist."""
        return all(found is not None for found in self._client.get_many([self._key(key) for key in keys]))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that starts at 0; returns its new value."""
        while True:
            held = self._client.get(self._key(key))
            total = (int(_plain(held.value)) if held else 0) + amount
            if self._swap(key, _COUNTER + secrets.token_hex(8).encode() + b"\0%d" % total, held):
                return total

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Set the key if it holds `expected_value` (or is absent and that is empty); returns what it then holds."""
        while True:
            held = self._client.get(self._key(key))
            if (_plain(held.value) if held else b"") != _as_bytes(expected_value):
                return _plain(held.value) if held else _as_bytes(expected_value)
            if self._swap(key, _as_bytes(desired_value), held):
                return _as_bytes(desired_value)

    def delete_key(self, key: str) -> bool:
        """Delete a key; whether it existed."""
        return self._client.delete(self._key(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read several keys, waiting until all exist."""
        return [_plain(found.value) for found in self._await(keys, self._patience)]

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        """Write several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def num_keys(self) -> int:
        """Number of keys under the prefix."""
        return self._client.count(self._prefix.encode())

    def has_extended_api(self) -> bool:
        """Tells c10d that multi_get and multi_set are here."""
        return True

    @property
    def _patience(self) -> timedelta:
        timeout: timedelta = self.timeout  # type: ignore[attr-defined]  # missing in torch's stub
        return timeout

    def _await(self, keys: Sequence[str], timeout: timedelta) -> list[KeyValue]:
        deadline = time.monotonic() + timeout.total_seconds()
        pause = FIRST_PAUSE.total_seconds()
        while True:
            try:
                found = self._client.get_many([self._key(key) for key in keys])
            except EtcdUnreachableError as error:
                if time.monotonic() >= deadline:
                    raise DistStoreError(str(error)) from error
            else:
                if all(found):
                    return [item for item in found if item is not None]
                missing = ", ".join(key for key, item in zip(keys, found, strict=True) if item is None)
                if reason := self._interruption():
                    raise DistStoreError(f"waited in etcd for {missing}, but {reason}")
                if time.monotonic() >= deadline:
                    raise DistStoreError(
                        f"waited {timeout.total_seconds():g} s in etcd for {missing}: another node has not got that far"
                    )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE.total_seconds())

    def _swap(self, key: str, value: bytes, held: KeyValue | None) -> bool:
        revision = held.mod_revision if held else 0
        return self._client.compare_and_swap(self._key(key), value, revision, lease=self._lease())[0]

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()


def _plain(value: bytes) -> bytes:
    """A value as callers know it."""
    return value.rsplit(b"\0", 1)[1] if value.startswith(_COUNTER) else value


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
