"""What the EFA interfaces of a machine have counted, for Prometheus: the kernel has it, and no exporter tells it.

    python -m training.metrics.fabric [--port 9410] [--sys /sys]

Read from `class/infiniband/DEVICE/ports/PORT/hw_counters` at each scrape. The names are those of the kernel's EFA
driver (drivers/infiniband/hw/efa/efa_verbs.c), with `trainyard_efa_` before and `_total` after; a counter that the
driver or the card does not have is absent. `trainyard_fabric_devices` is the number of interfaces.

It runs on each machine with EFA (`infra.in_cluster.monitoring`) and imports nothing that is slow.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

PORT: Final = 9410
COUNTERS: Final = (
    "tx_bytes",
    "rx_bytes",
    "tx_pkts",
    "rx_pkts",
    "rx_drops",
    "rdma_read_bytes",
    "rdma_write_bytes",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
)


def exposition(sys_folder: Path) -> str:
    """All counters in Prometheus' text format.

    Args:
        sys_folder: the machine's /sys.
    """
    devices = sorted((sys_folder / "class/infiniband").glob("*"))
    efa = [device for device in devices if _is_efa(device)]
    lines = [
        "# HELP trainyard_fabric_devices EFA interfaces of the machine.",
        "# TYPE trainyard_fabric_devices gauge",
        f"trainyard_fabric_devices {len(efa)}",
    ]
    for name in COUNTERS:
        samples = list(_samples(efa, name))
        if samples:
            metric = f"trainyard_efa_{name}_total"
            lines += [f"# HELP {metric} {name} of the EFA driver.", f"# TYPE {metric} counter"]
            lines += [f'{metric}{{device="{device}",port="{port}"}} {value}' for device, port, value in samples]
    return "\n".join(lines) + "\n"


def _is_efa(device: Path) -> bool:
    """Whether the kernel's EFA driver serves it; other cards have counters of other names."""
    try:
        return (device / "device/driver").resolve().name == "efa"
    except OSError:
        return False


def _samples(devices: Sequence[Path], name: str) -> Iterator[tuple[str, str, int]]:
    for device in devices:
        for port in sorted((device / "ports").glob("*")):
            try:
                value = int((port / "hw_counters" / name).read_text())
            except (OSError, ValueError):  # not of this driver, or the card is just going
                continue
            yield device.name, port.name, value


def server(address: str, port: int, sys_folder: Path) -> ThreadingHTTPServer:
    """Answers `/metrics`, and `/healthz` with the same.

    Raises:
        OSError: it cannot listen there.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in {"/metrics", "/healthz"}:
                self.send_error(404)
                return
            body = exposition(sys_folder).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nobody wants a line for each scrape."""

    return ThreadingHTTPServer((address, port), Handler)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m training.metrics.fabric", description="Tells Prometheus what EFA interfaces have counted."
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"where it answers (default {PORT})")
    parser.add_argument("--sys", type=Path, default=Path("/sys"), help="the machine's /sys (default /sys)")
    args = parser.parse_args(argv)
    try:
        made = server(os.environ.get("POD_IP", ""), args.port, args.sys)
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"fabric: port {args.port} cannot be had: {error}. Choose another one with --port\n")
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in the handler: shutdown waits for the loop, which the handler interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=made.shutdown).start())
    with made:
        made.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
