"""Holds the rendezvous store of a job (torch's c10d) and does nothing else: `python -m training.launch.store_host`.

The controller gives the text of this file to the Python of the worker's image (`python3 -c`), so that image needs torch
and not this package: nothing but torch and the standard library is imported here.
"""

import argparse
import signal
import socket
from collections.abc import Sequence

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its documented place

_ENDS = (signal.SIGTERM, signal.SIGINT)


def serve(host: str, port: int) -> TCPStore:
    """A store that listens on one address.

    Args:
        host: address of its own; torch would take all of the computer's, which pods may share.
        port: 0 for any free one (`store.port` tells which).

    Raises:
        OSError: the address is not this computer's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Holds the rendezvous store of a job (c10d).")
    parser.add_argument("--host", required=True, help="address to listen on: the pod's own")
    parser.add_argument("--port", type=int, default=29400, help="port to listen on (default 29400)")
    args = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # as the first process of a container it would ignore SIGTERM
    try:
        store = serve(args.host, args.port)
    except OSError as error:
        parser.error(f"cannot listen on {args.host}:{args.port}: {error}. Choose another with --host and --port")
    print(f"rendezvous store on {store.host}:{store.port}", flush=True)
    signal.sigwait(_ENDS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
