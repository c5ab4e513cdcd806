"""Free loopback ports and loopback networks; who chose one keeps it while nobody else takes it."""

import hashlib
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from infra.local.errors import LocalClusterError

# Below Linux's default range for outgoing connections (32768 and up), so that no passing connection can occupy a
# port while its server is restarted.
FIRST_PORT = 20000
LAST_PORT = 32000
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        # Without it, connections of an earlier server that linger in TIME_WAIT would look like a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def becomes_free(port: int, seconds: float = 1.0) -> bool:
    """Like `is_free`, with patience: a killed server's process is gone a moment before its port is."""
    deadline = time.monotonic() + seconds
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def choose(key: str, count: int, taken: Iterable[int] = ()) -> list[int]:
    """`count` free ports; the same `key` begins the search at the same place.

    Raises:
        LocalClusterError: there aren't that many free ports.
    """
    span = LAST_PORT - FIRST_PORT
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % span
    unusable = set(taken)
    chosen: list[int] = []
    for offset in range(span):
        port = FIRST_PORT + (start + offset) % span
        if port not in unusable and is_free(port):
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise LocalClusterError(
        f"no {count} free ports between {FIRST_PORT} and {LAST_PORT} on 127.0.0.1",
        why="other programs listen on them",
        remedy="see who: ss -ltnp",
    )


def require_free(port: int, purpose: str, setting: str) -> None:
    """Raise a plain error, with the listener's name where it is known, when a port that the user fixed is taken."""
    if becomes_free(port):
        return
    raise LocalClusterError(
        f"port {port} on 127.0.0.1, wanted for {purpose}, is taken",
        why=f"{listener(port) or 'a program that you may not look at'} listens there",
        remedy=f"end that program, or change {setting} (leave it out and a free port is chosen)",
    )


def listener(port: int) -> str | None:
    """Who listens on a loopback port, in words; None where that can't be told."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port
        if listens and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({' '.join(process.cmdline())[:100] or process.name()})"
            except psutil.Error:
                return f"process {connection.pid}"
    return None


def used_networks() -> set[int]:
    """The second octets A of 127.A.0.0/16 in which somebody listens now."""
    used = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state = line.split()[:4]
            address = bytes.fromhex(local.split(":")[0])[-4:][::-1]  # little endian in /proc
            if address[0] == 127 and state == _LISTENS:
                used.add(address[1])
    return used


def choose_network(directory: Path) -> int:
    """A second octet A such that nobody listens anywhere in 127.A.0.0/16 now, for the nodes and pods of one cluster."""
    used = used_networks()
    start = int.from_bytes(hashlib.sha256(str(directory).encode()).digest()[:4], "big")
    for offset in range(253):
        octet = 1 + (start + offset) % 253
        if octet not in used:
            return octet
    raise LocalClusterError("every loopback network is in use", remedy="see who: ss -ltnp")
