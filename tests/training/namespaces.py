"""Nodes with a network of their own on this computer, which can be cut: a bridge, and a network namespace for each.

A cut is silent, as a broken switch is: nothing is refused, packets just do not arrive. It is made by entries of the
neighbour tables that lead to nowhere, which needs no packet filter in the kernel.
"""

import contextlib
import os
import random
import secrets
import subprocess
from collections.abc import Iterator

NOWHERE = "02:00:00:00:00:fe"
INTERFACE = "eth0"
# The bridge itself, where etcd is.
CENTRE = "centre"


class Network:
    """One bridge and its nodes. Everything that is made here is removed by `close`."""

    def __init__(self) -> None:
        self._id = secrets.token_hex(3)
        self._bridge = f"tyb{self._id}"
        self._subnet = f"10.{random.randrange(100, 250)}.{random.randrange(1, 250)}"  # noqa: S311 - no secret
        self._addresses = {CENTRE: f"{self._subnet}.1"}
        self._made: list[str] = []

    @property
    def centre(self) -> str:
        """The address of the bridge: this computer, as the nodes see it."""
        return self._addresses[CENTRE]

    def open(self) -> None:
        """Make the bridge."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self.centre}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def add(self, name: str) -> tuple[str, ...]:
        """Make a node; returns the command that runs another one there."""
        number = len(self._addresses) + 1
        space, outside, inside = self._space(name), f"tyv{self._id}{number}", f"tyw{self._id}{number}"
        _ip("netns", "add", space)
        self._made.append(name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", space, "name", INTERFACE)
        _ip("link", "set", outside, "master", self._bridge, "up")
        _ip("-n", space, "address", "add", f"{self._subnet}.{number}/24", "dev", INTERFACE)
        _ip("-n", space, "link", "set", INTERFACE, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        self._addresses[name] = f"{self._subnet}.{number}"
        return ("ip", "netns", "exec", space)

    def cut(self, one: str, other: str) -> None:
        """From now on nothing goes between these two."""
        for here, there in ((one, other), (other, one)):
            where = ("dev", self._device(here), "lladdr", NOWHERE, "nud", "permanent")
            _ip(*self._at(here), "neigh", "replace", self._addresses[there], *where)

    def heal(self, one: str, other: str) -> None:
        """All goes between these two again."""
        for here, there in ((one, other), (other, one)):
            with contextlib.suppress(subprocess.CalledProcessError):  # was not cut
                _ip(*self._at(here), "neigh", "del", self._addresses[there], "dev", self._device(here))

    def remove(self, name: str) -> None:
        """Remove a node; its processes have ended."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self._space(name))  # takes both ends of its cable with it
        self._made.remove(name)

    def close(self) -> None:
        """Remove everything."""
        for name in list(self._made):
            self.remove(name)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def _space(self, name: str) -> str:
        return f"ty-{self._id}-{name}"

    def _at(self, name: str) -> tuple[str, ...]:
        return () if name == CENTRE else ("-n", self._space(name))

    def _device(self, name: str) -> str:
        return self._bridge if name == CENTRE else INTERFACE


@contextlib.contextmanager
def network() -> Iterator[Network]:
    made = Network()
    try:
        made.open()
        yield made
    finally:
        made.close()


def why_not() -> str:
    """Why there can be no network namespaces here, in words; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with network() as tried:
            inside = tried.add("probe")
            subprocess.run([*inside, "ip", "address"], check=True, capture_output=True, timeout=30)
            tried.cut("probe", CENTRE)
    except FileNotFoundError:
        return "network namespaces need iproute2's `ip`"
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.decode(errors='replace').strip()}"
    except subprocess.TimeoutExpired as error:
        return f"network namespaces cannot be had here: {error}"
    return ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)
