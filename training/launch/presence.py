"""Knowing that a node's launcher has died without waiting for its heartbeat to stand still.

Each launcher listens on a port and never talks. When its process is killed, the kernel closes the port and answers
every attempt to connect with a refusal, at once. A host that is gone answers nothing, and then the heartbeat decides.

A refusal could also come from a firewall. So it is proof only from a port that this node has reached before; from
another it is a suspicion, which a heartbeat that is overdue confirms.
"""

import contextlib
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from training.launch.torch_private import NodeDesc

# One node is asked at a time, in turn.
INTERVAL: Final = timedelta(milliseconds=100)
# An answer comes within a round trip; who takes longer is not proven dead.
CONNECT_TIMEOUT: Final = timedelta(milliseconds=300)
# Of many nodes each watches the next few in order, so that all are watched by some.
NUM_WATCHED: Final = 8


class Presence:
    """Our own port, and questions to those of others.

    Args:
        address: the address under which others know this node.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket()
        try:
            self._socket.bind((address, 0))
        except OSError:  # a name of a load balancer or the like: listen on all addresses of this host
            self._socket.bind(("", 0))
        self._socket.listen(128)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._reached: set[tuple[str, int]] = set()
        self._last_question = 0.0
        self._turn = 0

    def ask_next(self, this_node: NodeDesc, ports: Mapping[NodeDesc, int]) -> tuple[NodeDesc, bool] | None:
        """Ask the next of the nodes, if it is time to.

        Args:
            this_node: ourselves.
            ports: the nodes of interest and their ports.

        Returns:
            The node, if its port is closed, and whether that proves its death; None otherwise.
        """
        self._answer()
        now = time.monotonic()
        watched = [node for node in sorted(ports) if node > this_node] + [n for n in sorted(ports) if n < this_node]
        if not watched or now - self._last_question < INTERVAL.total_seconds():
            return None
        self._last_question = now
        self._turn += 1
        node = watched[:NUM_WATCHED][self._turn % min(NUM_WATCHED, len(watched))]
        address = (node.addr, ports[node])
        return (node, address in self._reached) if self._is_closed(address) else None

    def close(self) -> None:
        """Close our port: to the others this process has ended."""
        self._socket.close()

    def _is_closed(self, address: tuple[str, int]) -> bool:
        try:
            socket.create_connection(address, CONNECT_TIMEOUT.total_seconds()).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        self._reached.add(address)
        return False

    def _answer(self) -> None:
        """Take the callers off the queue, so that it never fills."""
        with contextlib.suppress(OSError):
            while True:
                self._socket.accept()[0].close()
