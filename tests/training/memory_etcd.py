"""Doubles for the tests of the rendezvous: etcd on a dictionary, a clock that is set."""

import threading
from datetime import timedelta

from training.launch.etcd_client import EtcdUnreachableError, KeyValue


class MemoryEtcd:
    """The calls of EtcdClient that the rendezvous makes, on a dictionary; can be switched off."""

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes, int]] = {}
        self.revision = 0
        self.leases: set[int] = set()
        self.down = False
        self.lock = threading.RLock()

    def get(self, key: bytes, *, within: timedelta | None = None) -> KeyValue | None:  # noqa: ARG002
        return self.get_many([key])[0]

    def get_many(self, keys: list[bytes]) -> list[KeyValue | None]:
        with self.lock:
            self._check()
            found = [self.keys.get(key) for key in keys]
            return [
                KeyValue(key=key, value=held[0], mod_revision=held[1]) if held else None
                for key, held in zip(keys, found, strict=True)
            ]

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:  # noqa: ARG002
        with self.lock:
            self._check()
            self.revision += 1
            self.keys[key] = (value, self.revision)
            return self.revision

    def compare_and_swap(
        self, key: bytes, value: bytes, mod_revision: int, *, lease: int = 0
    ) -> tuple[bool, KeyValue | None]:
        with self.lock:
            if self.keys.get(key, (b"", 0))[1] != mod_revision:
                return False, self.get(key)
            self.put(key, value, lease=lease)
            return True, self.get(key)

    def grant_lease(self, ttl: timedelta) -> int:  # noqa: ARG002
        self._check()
        self.leases.add(len(self.leases) + 1)
        return len(self.leases)

    def keep_lease(self, lease: int) -> bool:
        self._check()
        return lease in self.leases

    def hurry(self, time_left: timedelta) -> None:
        pass

    def close(self) -> None:
        pass

    def local_address(self) -> str:
        return "127.0.0.1"

    def _check(self) -> None:
        if self.down:
            raise EtcdUnreachableError("etcd is down")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
