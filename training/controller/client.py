"""The few calls to the Kubernetes API that the controller makes, on lightkube's asynchronous client.

Objects are plain dictionaries: the controller keeps small records of them (`records.py`) and drops the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any

import httpx2
import msgspec
from lightkube import ApiError
from lightkube.config.client_adapter import ConnectionParams, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core import decoders
from lightkube.core.exceptions import ConfigError
from lightkube.core.generic_client import ALL_NS, BasicRequest, GenericAsyncClient
from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.generic_resource import (
    GenericGlobalResource,
    GenericNamespacedResource,
    GenericNamespacedStatus,
    create_api_info,
)

from training.controller import pytorchjob
from training.controller.api import GROUP, KIND, PLURAL, VERSION, GangScheduler
from training.controller.gang import GANG_APIS
from training.controller.gang import PLURAL as POD_GROUPS_PLURAL
from training.controller.transport import Transport

FIELD_MANAGER = "trainyard-elastic-controller"
CONNECTIONS = 64
"""Calls in flight at once: as many as get a fair share of a busy API server, beside scheduler and kubelets."""
CALL_TIMEOUT = 30.0  # seconds
WATCH_SECONDS = 300
"""The API server ends a watch after this time; it is taken up again where it ended."""
BOOKMARK_SECONDS = 60.0
"""How often the API server writes to a watch at least."""
WATCH_SILENCE = BOOKMARK_SECONDS + 40.0
"""A watch silent for longer has lost its connection without word."""

FORBIDDEN = 403
CONFLICT = 409
NOT_FOUND = 404
GONE = 410


class Job(GenericNamespacedResource):
    """An ElasticJob."""

    _api_info: ApiInfo = create_api_info(GROUP, VERSION, KIND, PLURAL)


class JobStatus(GenericNamespacedStatus):
    """The status subresource of an ElasticJob."""

    _api_info: ApiInfo = ApiInfo(
        resource=ResourceDef(GROUP, VERSION, KIND),
        parent=ResourceDef(GROUP, VERSION, KIND),
        plural=PLURAL,
        verbs=["get", "patch", "put"],
        action="status",
    )


class PyTorchJob(GenericNamespacedResource):
    """A PyTorchJob."""

    _api_info: ApiInfo = create_api_info(
        pytorchjob.GROUP, pytorchjob.VERSION, pytorchjob.PYTORCH_KIND, pytorchjob.PLURAL
    )


class PyTorchJobStatus(GenericNamespacedStatus):
    """The status subresource of a PyTorchJob."""

    _api_info: ApiInfo = ApiInfo(
        resource=ResourceDef(pytorchjob.GROUP, pytorchjob.VERSION, pytorchjob.PYTORCH_KIND),
        parent=ResourceDef(pytorchjob.GROUP, pytorchjob.VERSION, pytorchjob.PYTORCH_KIND),
        plural=pytorchjob.PLURAL,
        verbs=["get", "patch", "put"],
        action="status",
    )


class Pod(GenericNamespacedResource):
    """A pod."""

    _api_info: ApiInfo = create_api_info("", "v1", "Pod", "pods")


class Service(GenericNamespacedResource):
    """A service."""

    _api_info: ApiInfo = create_api_info("", "v1", "Service", "services")


class Node(GenericGlobalResource):
    """A node."""

    _api_info: ApiInfo = create_api_info(
        "", "v1", "Node", "nodes", verbs=["delete", "get", "list", "patch", "post", "put", "watch"]
    )


class Event(GenericNamespacedResource):
    """An event."""

    _api_info: ApiInfo = create_api_info("", "v1", "Event", "events")


def _pod_group(scheduler: GangScheduler) -> tuple[str, str, str, str]:
    api = GANG_APIS[scheduler]
    return api.group, api.version, "PodGroup", POD_GROUPS_PLURAL


class DisruptionBudget(GenericNamespacedResource):
    """A disruption budget."""

    _api_info: ApiInfo = create_api_info("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


class Deployment(GenericNamespacedResource):
    """A deployment."""

    _api_info: ApiInfo = create_api_info("apps", "v1", "Deployment", "deployments")


class Lease(GenericNamespacedResource):
    """A lease."""

    _api_info: ApiInfo = create_api_info("coordination.k8s.io", "v1", "Lease", "leases")


class VolcanoPodGroup(GenericNamespacedResource):
    """A PodGroup of Volcano."""

    _api_info: ApiInfo = create_api_info(*_pod_group(GangScheduler.VOLCANO))


class SchedulerPluginsPodGroup(GenericNamespacedResource):
    """A PodGroup of the scheduler-plugins."""

    _api_info: ApiInfo = create_api_info(*_pod_group(GangScheduler.SCHEDULER_PLUGINS))


PodGroup = VolcanoPodGroup | SchedulerPluginsPodGroup
POD_GROUPS: Mapping[GangScheduler, type[PodGroup]] = {
    GangScheduler.VOLCANO: VolcanoPodGroup,
    GangScheduler.SCHEDULER_PLUGINS: SchedulerPluginsPodGroup,
}

Resource = type[
    Job
    | JobStatus
    | PyTorchJob
    | PyTorchJobStatus
    | Deployment
    | Pod
    | Service
    | Node
    | Event
    | Lease
    | PodGroup
    | DisruptionBudget
]
Object = dict[str, Any]


class _LeanMeta(msgspec.Struct):
    name: str | msgspec.UnsetType = msgspec.UNSET
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    uid: str | msgspec.UnsetType = msgspec.UNSET
    resourceVersion: str | msgspec.UnsetType = msgspec.UNSET  # noqa: N815 -- as Kubernetes spells it
    creationTimestamp: str | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815
    deletionTimestamp: str | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815
    deletionGracePeriodSeconds: int | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    annotations: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    ownerReferences: list[Any] | msgspec.UnsetType = msgspec.UNSET  # noqa: N815
    finalizers: list[str] | msgspec.UnsetType = msgspec.UNSET


class _LeanContainer(msgspec.Struct):
    name: str
    resources: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class _LeanSpec(msgspec.Struct):
    nodeName: str | msgspec.UnsetType = msgspec.UNSET  # noqa: N815
    containers: list[_LeanContainer] | msgspec.UnsetType = msgspec.UNSET


class _LeanPod(msgspec.Struct):
    """What is read of a pod: half of one is who wrote which field when, much of the rest what a worker runs."""

    metadata: _LeanMeta
    kind: str | msgspec.UnsetType = msgspec.UNSET
    spec: _LeanSpec | msgspec.UnsetType = msgspec.UNSET
    status: Any = msgspec.UNSET


class RateLimit:
    """Token bucket: `rate` calls per second on the long run, `burst` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._last = time.monotonic()

    async def wait(self) -> None:
        """Returns when the next call may go out."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate) - 1
        self._last = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)


class Api:
    """Typed access to the objects that the controller works with."""

    def __init__(self, config: SingleConfig | None = None, *, rate: float = 400, burst: int = 800) -> None:
        """Connects to `config`, else to the cluster that the process runs in, else to `KUBECONFIG`.

        Raises:
            ConfigError: there is no configuration.
        """
        found = config or KubeConfig.from_env().get()
        if found is None:
            raise ConfigError("the kubeconfig names no context")
        parameters = ConnectionParams(timeout=httpx2.Timeout(CALL_TIMEOUT))
        parameters.transport = _transport(found)  # type: ignore[assignment]  # its type is that of the other client
        self._client = GenericAsyncClient(parameters, found, field_manager=FIELD_MANAGER)
        self._server = found.cluster.server.rstrip("/") + "/"
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._limit = RateLimit(rate, burst)
        self.calls: Counter[tuple[str, str]] = Counter()
        """Calls made so far by (verb, resource), as RBAC names them."""

    @property
    def namespace(self) -> str:
        """The namespace of the configuration: in a cluster that of the pod."""
        namespace: str | None = self._client.namespace
        return namespace or "default"

    async def list_all(self, kind: Resource, namespace: str | None, labels: str | None) -> tuple[list[Object], str]:
        """All objects, and the version of the collection from which a watch can go on."""
        self._count("list", kind)
        request = self._client.prepare_request(
            "list",
            res=kind,
            namespace=_scope(kind, namespace),
            params={"limit": "500", "labelSelector": labels},
        )
        request.response_type = _read_as(kind)
        items: list[Object] = []
        version = ""
        async for listed, chunk in self._client.list_chunks(request):
            version = listed or version
            items.extend(_plain(item) for item in chunk)
        return items, version

    async def watch(
        self, kind: Resource, namespace: str | None, labels: str | None, version: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """What happens after `version`: (ADDED | MODIFIED | DELETED | BOOKMARK, object).

        Raises:
            httpx2.HTTPError: the watch is broken; with `ApiError` 410 the version is too old and a new list is due.
            TimeoutError: the connection is dead.
        """
        self._count("watch", kind)
        request = self._client.prepare_request(
            "list",
            res=kind,
            namespace=_scope(kind, namespace),
            watch=True,
            params={
                "resourceVersion": version,
                "labelSelector": labels,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(WATCH_SECONDS),
            },
        )
        request.timeout = httpx2.Timeout(CALL_TIMEOUT, read=None)
        response: httpx2.Response = await self._client.send(  # type: ignore[no-untyped-call]
            self._client.build_adapter_request(request), stream=True
        )
        try:
            if response.is_error:
                await response.aread()
            self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
            parts = response.aiter_raw()
            rest = b""
            while True:
                async with asyncio.timeout(WATCH_SILENCE):
                    part = await anext(parts, b"")
                if not part:
                    return  # its time is over
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    event = decoders.decode_watch_event(line)
                    if event.type == "ERROR":
                        raise ApiError(status=decoders.decode_status(event.object))
                    yield event.type, _plain(decoders.decode_object(event.object, _read_as(kind)))
        finally:
            await response.aclose()

    async def create(self, kind: Resource, obj: Object) -> Object:
        """Creates an object and returns it as stored.

        Raises:
            ApiError: 409 if the name is taken; 403, 422 if it is refused.
        """
        namespace = obj["metadata"]["namespace"]
        request = self._client.prepare_request("post", res=kind, obj=kind.from_dict(obj), namespace=namespace)
        return await self._send("create", kind, "post", request)

    async def get(self, kind: Resource, namespace: str, name: str) -> Object:
        """The object of a name.

        Raises:
            ApiError: 404 if there is none.
        """
        request = self._client.prepare_request("get", res=kind, name=name, namespace=namespace)
        return await self._send("get", kind, "get", request)

    async def update(self, kind: Resource, obj: Object) -> Object:
        """Replaces an object.

        Raises:
            ApiError: 409 if it has changed since it was read.
        """
        namespace = obj["metadata"]["namespace"]
        request = self._client.prepare_request("put", res=kind, obj=kind.from_dict(obj), namespace=namespace)
        return await self._send("update", kind, "put", request)

    async def apply(self, kind: Resource, obj: Object) -> Object:
        """Server-side apply: the controller owns the fields in `obj`, all of them and no others."""
        request = self._client.prepare_request(
            "patch",
            res=kind,
            name=obj["metadata"]["name"],
            namespace=obj["metadata"]["namespace"],
            obj=obj,
            headers={"Content-Type": "application/apply-patch+yaml"},
            params={"force": "true"},
        )
        return await self._send("patch", kind, "patch", request)

    async def take_off(self, kind: Resource, namespace: str, name: str, finalizer: str, *, uid: str) -> Object:
        """Takes a finalizer off an object, if it still is the one with `uid`; answers with the object.

        Raises:
            ApiError: 404 if there is none; 409 if another has its name now.
        """
        request = self._client.prepare_request(
            "patch",
            res=kind,
            name=name,
            namespace=namespace,
            obj={"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}},
            headers={"Content-Type": "application/strategic-merge-patch+json"},
        )
        return await self._send("patch", kind, "patch", request)

    async def delete(
        self,
        kind: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: int | None = None,
        grace_seconds: int | None = None,
    ) -> Object:
        """Deletes an object, if it still is the one with `uid` (and `version`); answers with what the API server says.

        Raises:
            ApiError: 404 if there is none; 409 if another has its name now, or it has changed.
        """
        request = self._client.prepare_request("delete", res=kind, name=name, namespace=namespace)
        request.data = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid is not None:
            request.data["preconditions"] = {"uid": uid} | ({"resourceVersion": str(version)} if version else {})
        if grace_seconds is not None:
            request.data["gracePeriodSeconds"] = grace_seconds
        request.response_type = kind  # type: ignore[assignment]
        return await self._send("delete", kind, "delete", request)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def _send(self, verb: str, kind: Resource, method: str, request: BasicRequest) -> Object:
        self._count(verb, kind)
        if kind is Lease:  # it must not wait behind a thousand pods: without it the right to make them is lost
            response = await self._respond(request)
        else:
            await self._limit.wait()
            async with self._slots:
                response = await self._respond(request)
        if request.response_type is not None:
            request.response_type = _read_as(kind)
        return _plain(self._client.handle_response(method, response, request))

    async def _respond(self, request: BasicRequest) -> httpx2.Response:
        # By hand: the client would parse the same address three times for each of a thousand pods.
        prepared = httpx2.Request(
            request.method,
            _url(self._server + request.url, tuple(request.params.items())),
            headers={"Accept": "application/json", "Content-Type": "application/json", **(request.headers or {})},
            content=None if request.data is None else msgspec.json.encode(request.data),
            extensions={"timeout": httpx2.Timeout(CALL_TIMEOUT).as_dict()},
        )
        response: httpx2.Response = await self._client.send(prepared)  # type: ignore[no-untyped-call]
        return response

    def _count(self, verb: str, kind: Resource) -> None:
        info = kind._api_info  # noqa: SLF001 -- lightkube's own name for a resource's place in the API
        self.calls[verb, f"{info.plural}/{info.action}" if info.action else info.plural] += 1


def _read_as(kind: Resource) -> Any:
    """The type as which answers are decoded."""
    return _LeanPod if kind is Pod else kind


def _plain(found: Any) -> Object:
    """A decoded answer as a dictionary."""
    plain: Object = msgspec.to_builtins(found) if isinstance(found, msgspec.Struct) else found
    return plain


@lru_cache(maxsize=256)
def _url(address: str, params: tuple[tuple[str, str], ...]) -> httpx2.URL:
    return httpx2.URL(address, params=dict(params)) if params else httpx2.URL(address)


def _transport(config: SingleConfig) -> httpx2.AsyncBaseTransport:
    """Connections to the server that a configuration names, with its authority and certificates."""
    if not config.cluster.server.startswith("https:"):
        return Transport(None)
    return Transport(verify_cluster(config.cluster, config.user or User(), config.abs_file))


def code_of(error: Exception) -> int | None:
    """HTTP status code of an API error."""
    if isinstance(error, ApiError):
        return error.status.code
    return error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None


def explain(error: Exception) -> str:
    """What went wrong with a call, in one line."""
    if isinstance(error, ApiError):
        return str(error)
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the API server answers {error.response.status_code} {error.response.reason_phrase}"
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def _scope(kind: Resource, namespace: str | None) -> str | None:
    if issubclass(kind, Node):
        return None
    return namespace or ALL_NS
