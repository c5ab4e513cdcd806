"""Who may write checkpoints, held in etcd, where the launcher has one: a claim that no older world can replace.

The fence in the checkpoint folder is a file, which is looked at and then relied upon. Here a claim is a
compare-and-swap on the revision that was read, and every publication is one, too: it records the step under the
revision of our claim, so it fails once anybody has claimed after us. What is left is the moment between that record and
the rename of the folder, in which an old world adds one complete checkpoint, of a step that it really made; it deletes
nothing then, for it asks once more before.

Where etcd does not answer, or refuses, the file decides alone, and a warning says so.
"""

import hashlib
import json
import logging
import os
import secrets
from datetime import timedelta
from typing import Any, Final

from training.launch.environment import CHECKPOINT_LOCK, RUN
from training.launch.etcd_client import EtcdClient, EtcdError, KeyValue
from training.launch.rendezvous import Options

logger = logging.getLogger(__name__)

# A key outlives its last publication by this time: then its job is over, or the file in the folder decides.
LEASE: Final = timedelta(days=7)


class LostLockError(Exception):
    """Somebody newer has claimed; the message says who."""


class EtcdLock:
    """The claim on one place for checkpoints.

    Args:
        client: of the etcd.
        key: the same for all who write to the place.
    """

    def __init__(self, client: EtcdClient, key: bytes) -> None:
        self._client = client
        self._key = key
        # Makes what we write unique, as `compare_and_swap` wants it.
        self._token = secrets.token_hex(8)
        self._count = 0
        self._revision = 0
        self._lease = 0
        self._is_told = False

    @classmethod
    def of_launcher(cls, run: str, place: str) -> "EtcdLock | None":
        """The lock for a place in the etcd of the launcher that has started us; None: it has none, or `run` is not its.

        Args:
            run: of the writer.
            place: folder or URL, as all nodes of the job name it.
        """
        told = os.environ.get(CHECKPOINT_LOCK)
        if not told or not run or run != os.environ.get(RUN):
            return None
        settings = json.loads(told)
        try:
            options = Options.parse(settings["endpoint"], settings["config"], os.environ)
            client = options.client()
        except (ValueError, OSError) as error:
            logger.warning("no lock in etcd for %s, only the file in it: %s", place, error)
            return None
        digest = hashlib.sha256(place.encode()).hexdigest()[:16]
        return cls(client, f"{options.prefix}/{settings['run_id']}/checkpoints/{digest}".encode())

    def claim(self, run: str, generation: int) -> None:
        """Become the only writer.

        Raises:
            LostLockError: a newer generation of the run has.
        """
        try:
            self._lease = self._client.grant_lease(LEASE)
            held = self._client.get(self._key)
            while True:
                _refuse_older(held, run, generation)
                revision = held.mod_revision if held else 0
                is_ours, held = self._client.compare_and_swap(
                    self._key, self._value(run, generation, None), revision, lease=self._lease
                )
                if is_ours and held:
                    self._revision = held.mod_revision
                    return
        except EtcdError as error:
            self._tell(error)

    @property
    def is_claimed(self) -> bool:
        """Whether we have claimed; somebody else may have since."""
        return self._revision > 0

    def publish(self, run: str, generation: int, step: int | None) -> None:
        """Record that a step is about to be published, or (None) only that the claim still stands.

        Raises:
            LostLockError: somebody has claimed since we did.
        """
        try:
            if not self.is_claimed:  # we have not claimed, or etcd was away then: the newest may not be newer than we
                _refuse_older(self._client.get(self._key), run, generation)
                return
            if step is None:
                held = self._client.get(self._key)
                is_ours = held is not None and held.mod_revision == self._revision
            else:
                value = self._value(run, generation, step)
                is_ours, held = self._client.compare_and_swap(self._key, value, self._revision, lease=self._lease)
            if is_ours and held:
                self._revision = held.mod_revision
                self._client.keep_lease(self._lease)
            elif held:
                other = json.loads(held.value)
                raise LostLockError(f"generation {other['generation']} of run '{other['run']}' has claimed it in etcd")
            else:  # its lease has run out, or etcd was made anew
                self.claim(run, generation)
        except EtcdError as error:
            self._tell(error)

    def _value(self, run: str, generation: int, step: int | None) -> bytes:
        self._count += 1
        fields = {"run": run, "generation": generation, "step": step, "writer": f"{self._token}-{self._count}"}
        return json.dumps(fields).encode()

    def _tell(self, error: EtcdError) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "the lock of the checkpoints in etcd cannot be used, the file in the folder decides: %s", error
            )


def _refuse_older(held: KeyValue | None, run: str, generation: int) -> None:
    if held is None:
        return
    other: dict[str, Any] = json.loads(held.value)
    if other["run"] == run and other["generation"] > generation:
        raise LostLockError(f"generation {other['generation']} of run '{run}' has claimed it in etcd")
