"""The way from the double to moto, and the book for what moto does not have."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from infra.errors import TrainyardError
from infra.local.state import State
from infra.rehearsal import moto
from infra.rehearsal.double.kind import Call
from infra.rehearsal.double.validation import mistakes, regions, session

if TYPE_CHECKING:
    from infra.rehearsal.connection import Connection
    from infra.rehearsal.nodes import Group


class AwsRefusedError(TrainyardError):
    """AWS, or its stand-in, refused a call.

    `code` is AWS's own, e.g. `DependencyViolation`; empty where the request never left.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Nodes(Protocol):
    """Who makes Kubernetes nodes of a node group (`infra.rehearsal.nodes`)."""

    def set_nodes(self, connection: Connection, group: Group, count: int) -> None:
        """Let the group have this many nodes."""

    def remove_nodes(self, connection: Connection, group_name: str) -> None:
        """Take all nodes of the group away."""


class Aws:
    """One region of AWS, played by moto.

    Args:
        connection: of the rehearsal.
        folder: the rehearsal's folder, for the book.
        region: of the calls; absent: the connection's.
        nodes: gives who makes nodes of node groups, when the first is needed; absent: nobody does.

    Raises:
        AwsRefusedError: there is no such region, or the endpoint is not on this computer: a rehearsal never calls AWS.
    """

    def __init__(
        self,
        connection: Connection,
        folder: Path,
        *,
        region: str | None = None,
        nodes: Callable[[], Nodes] | None = None,
    ) -> None:
        self.connection = connection
        self.region = region or connection.region
        self._nodes = nodes
        self.account = connection.account
        if self.region not in regions():
            raise AwsRefusedError(f"AWS has no region {self.region!r}: set trainyard:aws.region, e.g. us-east-2")
        if urlsplit(connection.aws_endpoint_url).hostname != moto.LOOPBACK:
            raise AwsRefusedError(
                f"{connection.aws_endpoint_url} is not on this computer, and a rehearsal never calls AWS."
                " Begin it anew: trainyard down --rehearse, then trainyard up --rehearse"
            )
        self.partition = regions()[self.region]
        self._clients: dict[str, Any] = {}
        self._making = Lock()  # the engine asks for several resources at a time, and a session is for one thread
        self._folder = folder

    @cached_property
    def book(self) -> Book:
        """Records of the resources that moto does not have."""
        return Book(self._folder)

    @cached_property
    def nodes(self) -> Nodes | None:
        """Who makes the Kubernetes nodes of node groups."""
        return self._nodes() if self._nodes else None

    @property
    def dns_suffix(self) -> str:
        """Of service endpoints in this partition."""
        return "amazonaws.com.cn" if self.partition == "aws-cn" else "amazonaws.com"

    def arn(self, service: str, resource: str, *, region: bool = True) -> str:
        """An ARN of this account; without the region for global services (IAM)."""
        return f"arn:{self.partition}:{service}:{self.region if region else ''}:{self.account}:{resource}"

    def call(self, service: str, operation: str, *, absent: Collection[str] = (), **params: Any) -> Any:
        """Make one call.

        Args:
            service: as botocore names it.
            operation: as the API names it, `CreateVpc`.
            absent: error codes that mean that the thing is not there: the answer is None then.
            **params: the request; None is left out.

        Raises:
            AwsRefusedError: the request is against AWS's model, or moto refused it.
        """
        given = self.checked(service, operation, **params)
        from botocore import xform_name  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            return getattr(self._client(service), xform_name(operation))(**given)
        except ClientError as error:
            code = str(error.response["Error"].get("Code", ""))
            if code in absent:
                return None
            text = error.response["Error"].get("Message") or error
            raise AwsRefusedError(f"AWS refused {service}:{operation} with {code}: {text}", code) from error
        except BotoCoreError as error:
            raise AwsRefusedError(
                f"{service}:{operation} had no answer from the rehearsal's AWS: {error}."
                " Look whether it runs: trainyard status --rehearse"
            ) from error

    def checked(self, service: str, operation: str, **params: Any) -> dict[str, Any]:
        """A request without what is None, held against AWS's model; alone for operations that moto doesn't have.

        Raises:
            AwsRefusedError: the request is against the model.
        """
        given = {name: value for name, value in params.items() if value is not None}
        if wrong := mistakes(service, operation, given):
            said = "; ".join(f"{'.'.join(map(str, mistake.path))}: {mistake.reason}" for mistake in wrong)
            raise AwsRefusedError(f"AWS would refuse {service}:{operation}: {said}")
        return given

    def run(self, call: Call, *, absent: Collection[str] = ()) -> Any:
        """Make a call of a kind's `requests`."""
        return self.call(call.service, call.operation, absent=absent, **call.params)

    def _client(self, service: str) -> Any:
        with self._making:
            if service not in self._clients:
                self._clients[service] = self._made(service)
            return self._clients[service]

    def _made(self, service: str) -> Any:
        from botocore.config import Config  # noqa: PLC0415 - see validation.session

        return session().create_client(
            service,
            region_name=self.region,
            endpoint_url=self.connection.aws_endpoint_url,
            aws_access_key_id="rehearsal",
            aws_secret_access_key="rehearsal",  # noqa: S106 - moto asks for some, AWS would refuse these
            config=Config(
                retries={"max_attempts": 1}, proxies={}, connect_timeout=5, read_timeout=60,
                s3={"addressing_style": "path"}, parameter_validation=False,
            ),
        )  # fmt: skip


class Book:
    """A small store of records by kind and id, in one file of the rehearsal's folder (mode 0600).

    Several providers of one stack are several processes: each change holds a lock.
    """

    def __init__(self, folder: Path) -> None:
        self._state = State(folder)
        self._path = self._state.path("aws-book.json")

    def put(self, kind: str, id: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        """Write a record, whether it was there or not."""
        with self._changed() as records:
            records.setdefault(kind, {})[id] = dict(data)

    def get(self, kind: str, id: str) -> dict[str, Any] | None:  # noqa: A002
        """A record, or None."""
        found = self._read().get(kind, {}).get(id)
        return None if found is None else dict(found)

    def drop(self, kind: str, id: str) -> None:  # noqa: A002
        """Remove a record; one that isn't there is no error."""
        with self._changed() as records:
            records.get(kind, {}).pop(id, None)
            if not records.get(kind):
                records.pop(kind, None)

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """All records of a kind, by id."""
        return dict(self._read().get(kind, {}))

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        try:
            return dict(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return {}

    @contextmanager
    def _changed(self) -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
        from filelock import FileLock  # noqa: PLC0415

        with FileLock(f"{self._path}.lock", mode=0o600):
            records = self._read()
            yield records
            self._state.write_json(self._path, records)
