"""Knowing that a node's launcher has died, or lives, without waiting for its heartbeat.

Each launcher listens on a port. When its process is killed, the kernel closes the port and answers every attempt to
connect with a refusal, at once. A host that is gone answers nothing, and then the heartbeat decides.

A refusal could also come from a firewall. So it is proof only from a port that this node has reached before, or from
our own network namespace, where nobody but our kernel answers (a container that was started again finds its predecessor
dead at once). From another port it means nothing, and the heartbeat decides.

Who connects is told the node's name by a thread of the launcher. A process that was frozen takes connections, which its
kernel does, but says nothing: so an answer proves that the launcher runs (see `fencing` for what that is good for).
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from training.launch.torch_private import NodeDesc

# One node is asked at a time, in turn.
INTERVAL: Final = timedelta(milliseconds=100)
# An answer comes within a round trip; who takes longer is not proven dead.
CONNECT_TIMEOUT: Final = timedelta(milliseconds=300)
# An answer needs the other launcher to be scheduled; one on a busy machine has so long.
ANSWER_TIMEOUT: Final = timedelta(milliseconds=500)
# Of many nodes each watches the next few in order, so that all are watched by some.
NUM_WATCHED: Final = 8


class Presence:
    """Our own port, and questions to those of others.

    Args:
        node: ourselves; others know us under its address.
    """

    def __init__(self, node: NodeDesc) -> None:
        self._node = node
        self._socket = socket.socket()
        try:
            self._socket.bind((node.addr, 0))
        except OSError:  # a name of a load balancer or the like: listen on all addresses of this host
            self._socket.bind(("", 0))
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]
        self._reached: set[tuple[str, int]] = set()
        self._last_question = 0.0
        self._turn = 0
        threading.Thread(target=self._answer, args=(self._socket,), name="presence", daemon=True).start()

    def ask_next(self, ports: Mapping[NodeDesc, int], places: Mapping[NodeDesc, str]) -> NodeDesc | None:
        """Ask the next of the nodes, if it is time to.

        Args:
            ports: the nodes of interest and their ports.
            places: their network namespaces (see `place`).

        Returns:
            The node, if it is proven that its launcher has died.
        """
        now = time.monotonic()
        watched = [node for node in sorted(ports) if node > self._node] + [n for n in sorted(ports) if n < self._node]
        if not watched or now - self._last_question < INTERVAL.total_seconds():
            return None
        self._last_question = now
        self._turn += 1
        node = watched[:NUM_WATCHED][self._turn % min(NUM_WATCHED, len(watched))]
        address = (node.addr, ports[node])
        if not self._is_closed(address):
            return None
        return node if address in self._reached or places.get(node) == place() else None

    def answers(self, node: NodeDesc, port: int) -> bool:
        """Whether a node's launcher says that it runs. A frozen one does not; nor does another program on its port."""
        expected = _name(node)
        with contextlib.suppress(OSError), _connect((node.addr, port)) as connection:
            connection.settimeout(ANSWER_TIMEOUT.total_seconds())
            said = b""
            while len(said) < len(expected) and (chunk := connection.recv(len(expected))):
                said += chunk
            return said == expected
        return False

    def close(self) -> None:
        """Close our port: to the others this process has ended."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        self._socket.close()

    def _is_closed(self, address: tuple[str, int]) -> bool:
        try:
            _connect(address).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        self._reached.add(address)
        return False

    def _answer(self, listener: socket.socket) -> None:
        """The thread: say our name to whoever calls, until the port is closed."""
        name = _name(self._node)
        while True:
            try:
                caller, _ = listener.accept()
            except ConnectionError:  # the caller has gone again
                continue
            except OSError:
                return
            with contextlib.suppress(OSError), caller:
                caller.send(name)


def place() -> str:
    """Name of our network namespace, unlike that of any other on any host, until the host restarts."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:  # hidden by a sandbox: nobody is at our place, not even we
        return f"unknown/{os.urandom(8).hex()}"


def _connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, CONNECT_TIMEOUT.total_seconds())


def _name(node: NodeDesc) -> bytes:
    return f"{node.pid}.{node.local_id}\n".encode()
