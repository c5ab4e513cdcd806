"""By which init method workers meet: what `--init-method` may be, and what the workers are told.

| value               | how the workers meet                                                                     |
| ------------------- | ---------------------------------------------------------------------------------------- |
| env, env://         | MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, which the launcher agrees on for each world |
| tcp, tcp://         | the same address, given to torch as `tcp://HOST:PORT`                                     |
| file, file://       | a file in a folder of this launcher; one node only                                       |
| file:///FOLDER      | a file in a folder that all nodes share, another for each world                          |

`training.launch.process_group.init()` reads it. This module imports no torch.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from training.launch.environment import INIT_METHOD

ENV, TCP, FILE = "env://", "tcp://", "file://"


def complete(value: str) -> str:
    """`env`, `tcp` and `file` with what belongs behind them."""
    return value if "://" in value else f"{value}://"


def mistake(value: str, *, is_one_node: bool) -> str | None:
    """What is wrong with a value of `--init-method`, as a sentence; None if nothing is."""
    method = complete(value)
    if method in {ENV, TCP}:
        return None
    if method.startswith(TCP):
        return (
            f"--init-method {value}: write tcp alone; rank 0 may be on any node, and the launcher tells its address to "
            "all, another in each world"
        )
    if method == FILE:
        return (
            None if is_one_node else "--init-method file: for more than one node name a shared folder, file:///FOLDER"
        )
    if method.startswith(f"{FILE}/"):
        folder = Path(method.removeprefix(FILE))
        return None if folder.is_dir() else f"--init-method {value}: there is no folder {folder}"
    return f"--init-method {value}: write env, tcp, file or file:///FOLDER"


@contextlib.contextmanager
def exported() -> Iterator[None]:
    """The variable as workers need it: complete, with a folder for files while this lasts."""
    with contextlib.ExitStack() as stack:
        if INIT_METHOD in os.environ:
            method = complete(os.environ[INIT_METHOD])
            if method == FILE:
                method += stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-"))
            os.environ[INIT_METHOD] = method
        yield
