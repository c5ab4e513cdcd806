"""Makes components without an engine, and keeps what they ask it for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime import mocks, rpc

Object = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """A resource as it was asked for."""

    type: str
    name: str
    inputs: Object
    after: tuple[str, ...]
    """`type name` of the resources that it comes after."""


class Recorded(list[Made]):
    """All of them, in the order of their requests."""

    def one(self, kind: str, name: str | None = None) -> Object:
        """The inputs of the only resource of a kind (and name)."""
        (found,) = self.all(kind, name)
        return found

    def all(self, kind: str, name: str | None = None) -> list[Object]:
        return [made.inputs for made in self if made.type.endswith(f":{kind}") and name in (None, made.name)]

    def after(self, kind: str, name: str) -> tuple[str, ...]:
        (found,) = [made for made in self if made.type.endswith(f":{kind}") and made.name == name]
        return found.after


class _Monitor(mocks.MockMonitor):
    def __init__(self) -> None:
        super().__init__(_Echo())
        self.made = Recorded()

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - a method of the engine's protocol
        if request.type.startswith("kubernetes:"):
            inputs = rpc.deserialize_properties(request.object)
            after = tuple(" ".join(urn.split("::")[-2:]).split("$")[-1] for urn in request.dependencies)
            self.made.append(Made(request.type, request.name, inputs, after))
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


class _Echo(mocks.Mocks):
    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        return f"{args.name}-id", args.inputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"components call nothing, and now {args.token}")


def record(make: Callable[[pulumi.ResourceOptions], object]) -> Recorded:
    """What components ask for.

    Args:
        make: makes them with the options that it is given.
    """
    asyncio.set_event_loop(asyncio.new_event_loop())
    monitor = _Monitor()
    mocks.set_mocks(monitor.mocks, project="trainyard", stack="dev", preview=False, monitor=monitor)

    def run() -> None:
        make(pulumi.ResourceOptions())

    pulumi.runtime.test(run)()  # type: ignore[no-untyped-call]
    return monitor.made
