"""What was asked for and is not there: GPUs, and backends that this build of torch does not have.

Asked in a child process: to count GPUs starts CUDA, and the process that workers are forked from must not have started
it; and a driver that hangs shall hang a process that we can end.
"""

import os
import signal
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from training.diagnose import machine

# A cold driver without persistence mode takes seconds for each of eight GPUs.
PATIENCE: Final = timedelta(seconds=60)
_KINDS: Final = {"gpu": "cuda", "xpu": "xpu"}


class MissingError(Exception):
    """What was asked for is not there; the message says what is."""


def check(nproc_per_node: str, backend: str | None, patience: timedelta = PATIENCE) -> None:
    """Find out whether the devices and the backend that a command names are there.

    Args:
        nproc_per_node: of the command line: a number or a word.
        backend: gloo, nccl, mpi, or None where none was named.
        patience: how long the driver may take.

    Raises:
        MissingError: they are not.
        TimeoutError: the driver does not answer.
    """
    if backend is not None and backend not in offered():
        raise MissingError(f"--backend {backend}: this torch is built without it; it has {', '.join(offered())}")
    if nproc_per_node in _KINDS and not count(_KINDS[nproc_per_node], patience):
        raise MissingError(f"--nproc-per-node {nproc_per_node}: {_no_device()}; name a number of workers, or cpu")
    if backend == "nccl":
        gpus = count("cuda", patience)
        if not gpus:
            raise MissingError(f"--backend nccl: {_no_device()}; gloo works on CPUs: --backend gloo")
        if nproc_per_node.isdecimal() and int(nproc_per_node) > gpus:
            raise MissingError(
                f"--backend nccl with --nproc-per-node {nproc_per_node}: each worker needs a GPU of its own, and there "
                f"are {gpus}"
            )


def offered() -> list[str]:
    """The backends that this build of torch has."""
    has = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    return [name for name, is_there in has.items() if is_there]


def count(kind: str, patience: timedelta = PATIENCE) -> int:
    """Devices that torch sees.

    Args:
        kind: `cuda` or `xpu`.
        patience: how long the driver may take.

    Raises:
        TimeoutError: it took longer.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(getattr(torch, kind).device_count()).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        if not connection.wait([read], patience.total_seconds()):  # select knows no descriptor beyond 1023
            os.kill(child, signal.SIGKILL)
            raise TimeoutError(
                f"the driver of the GPUs has not answered in {patience.total_seconds():g} s: see dmesg and nvidia-smi "
                "on this node; it may need a restart"
            )
        return int(os.read(read, 16) or 0)
    finally:
        os.close(read)
        _collect(child)


def _collect(child: int) -> None:
    """Wait for a child, but not for one that the kernel cannot end while it hangs in a driver."""
    descriptor = os.pidfd_open(child)
    try:
        if connection.wait([descriptor], 1):
            os.waitpid(child, 0)
    finally:
        os.close(descriptor)


def _no_device() -> str:
    driver = machine.driver(Path("/"))
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"torch ({built}) sees no such device here, and the NVIDIA driver is {driver or 'not loaded'}"
