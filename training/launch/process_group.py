"""The process group of a worker, by the backend and the init method that the launcher was given.

    from training.launch import process_group
    process_group.init()                     # as dist.init_process_group(), after python -m training --backend gloo ...

Without the launcher's word the backend is nccl where there is a GPU and gloo elsewhere, and the workers meet by the
environment, so a program that uses this runs under torchrun as well.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
import torch.distributed as dist

from training.launch import init_method
from training.launch.environment import BACKEND, GENERATION, INIT_METHOD


def init(backend: str | None = None, *, timeout: timedelta | None = None) -> None:
    """Make the default process group of this world.

    Args:
        backend: `gloo`, `nccl`, `mpi`; by default that of `--backend`.
        timeout: of collectives; torch's default where it is not given.

    Raises:
        ValueError: the init method cannot be, or there is no launcher and so no rank.
        RuntimeError: the others did not come in time (torch's own errors).
    """
    dist.init_process_group(**arguments(backend), timeout=timeout)
    if dist.get_backend() == "mpi" and dist.get_world_size() != int(os.environ.get("WORLD_SIZE", "1")):
        raise ValueError(
            f"mpi has {dist.get_world_size()} ranks and the launcher {os.environ['WORLD_SIZE']}: MPI takes its ranks "
            "from mpirun, so start one launcher with one worker by mpirun for each rank, or use gloo"
        )


def arguments(backend: str | None = None) -> dict[str, Any]:
    """The arguments of `dist.init_process_group` for this world, for those who call it themselves."""
    backend = backend or os.environ.get(BACKEND) or ("nccl" if torch.cuda.is_available() else "gloo")
    method = init_method.complete(os.environ.get(INIT_METHOD, init_method.ENV))
    if backend == "mpi":
        return {"backend": backend}  # mpirun has given the ranks
    if method == init_method.ENV:
        return {"backend": backend, "init_method": method}
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"no {', '.join(missing)} in the environment: start with python -m training, or torchrun")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if method == init_method.TCP:
        method += f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    elif method.startswith(f"{init_method.FILE}/"):
        method = f"{init_method.FILE}{Path(method.removeprefix(init_method.FILE), _world())}"
    else:
        raise ValueError(f"{INIT_METHOD}={method}: write env://, tcp:// or file:///FOLDER")
    return {"backend": backend, "init_method": method, "rank": rank, "world_size": world_size}


def _world() -> str:
    """A name that this world has and no other: a file that a dead world has left must not be read by the next."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    # Without our rendezvous there is no generation; each world has a port of its own.
    world = os.environ.get(GENERATION) or os.environ["MASTER_PORT"]
    return f"trainyard-{quote(run, safe='')}-{world}"
