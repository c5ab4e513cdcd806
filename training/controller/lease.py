"""Leader election by a Lease, timed as in Kubernetes itself: valid for 15 s, renewed every 2 s, lost after 10."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

import httpx2

from training.controller import client
from training.controller.client import CONFLICT, NOT_FOUND, Api, Object, code_of, explain

log = logging.getLogger(__name__)

LEASE_SECONDS = 15
RENEW_WITHIN = 10.0  # seconds
RETRY_EVERY = 2.0  # seconds
RELEASE_WITHIN = 5.0  # seconds


class LeaderLease:
    """The right to act, held by one controller at a time."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)  # version of the lease, and when this process first saw it
        self._held: Object | None = None
        self._renewed = 0.0  # when the last call began that took or renewed the lease: others may count from there

    async def acquire(self) -> None:
        """Returns when this process is the leader."""
        waiting = False
        while True:
            try:
                if await self._try_within(RENEW_WITHIN):
                    log.info("leading", extra={"lease": f"{self._namespace}/{self._name}"})
                    return
                if not waiting:
                    log.info("waiting: another controller leads", extra={"lease": f"{self._namespace}/{self._name}"})
                    waiting = True
            except (httpx2.HTTPError, TimeoutError) as error:
                log.warning("cannot take the lease %s/%s: %s", self._namespace, self._name, explain(error))
            await asyncio.sleep(RETRY_EVERY)

    async def hold(self) -> None:
        """Renews; returns when the lease is lost."""
        tried = self._renewed
        while (left := self._renewed + RENEW_WITHIN - time.monotonic()) > 0:
            await asyncio.sleep(min(left, max(0.0, tried + RETRY_EVERY - time.monotonic())))
            tried = time.monotonic()
            try:
                if not await self._try_within(self._renewed + RENEW_WITHIN - tried):
                    return
            except (httpx2.HTTPError, TimeoutError) as error:
                log.warning("cannot renew the lease %s/%s: %s", self._namespace, self._name, explain(error))

    async def release(self) -> None:
        """Gives the lease up, so that the next controller need not wait for it to run out."""
        if self._held is None:
            return
        spec = {key: value for key, value in self._held["spec"].items() if key != "holderIdentity"}
        lease = {**self._held, "spec": spec | {"leaseDurationSeconds": 1, "renewTime": _now()}}
        self._held = None
        try:
            async with asyncio.timeout(RELEASE_WITHIN):
                await self._api.update(client.Lease, lease)
            log.info("released the lease")
        except (httpx2.HTTPError, TimeoutError) as error:
            log.warning("cannot release the lease %s/%s: %s", self._namespace, self._name, explain(error))

    async def _try_within(self, seconds: float) -> bool:
        began = time.monotonic()
        async with asyncio.timeout(seconds):
            taken = await self._try()
        if taken:
            self._renewed = began
        return taken

    async def _try(self) -> bool:
        try:
            lease = await self._api.get(client.Lease, self._namespace, self._name)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != NOT_FOUND:
                raise
            return await self._write(create=True)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        # Judged by how long it has not changed before our eyes, never by the other side's clock.
        expired = time.monotonic() - self._seen[1] > (spec.get("leaseDurationSeconds") or LEASE_SECONDS)
        if holder and holder != self._identity and not expired:
            self._held = None
            return False
        return await self._write(lease, create=False)

    async def _write(self, lease: Object | None = None, *, create: bool) -> bool:
        old = (lease or {}).get("spec") or {}
        taken_over = old.get("holderIdentity") != self._identity
        body: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": (lease or {}).get("metadata") or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": _now() if taken_over else old.get("acquireTime", _now()),
                "renewTime": _now(),
                "leaseTransitions": (old.get("leaseTransitions") or 0) + (1 if lease and taken_over else 0),
            },
        }
        try:
            self._held = await (
                self._api.create(client.Lease, body) if create else self._api.update(client.Lease, body)
            )
        except httpx2.HTTPStatusError as error:
            if code_of(error) != CONFLICT:
                raise
            return False
        return True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
