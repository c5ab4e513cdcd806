"""Writes the reference page of the launcher from its tables: `python -m training.launch.reference`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.launch import environment, exit_codes, init_method, rendezvous
from training.launch.main import LIMITS
from training.launch.options import OWN, TORCHRUN, TorchrunOption
from training.metrics import progress

PAGE = Path(__file__).parents[2] / "docs/reference/launcher.md"

_HEAD = """\
# The launcher

    python -m training --nproc_per_node=4 --nnodes=1:4 --max_restarts=3 \\
        --rdzv_backend=etcd --rdzv_endpoint=host:2379 train.py --lr 0.1

`python -m training`, also installed as `trainyard-run`, stands where `torchrun` stood: same options, same `PET_*`
variables (the command line wins), same environment for workers. What happens at a loss is told in
[recovery](../explanation/recovery.md). Made by `python -m training.launch.reference`.
"""
_TORCHRUN = """\

## Options of torchrun

Each may be written with underscores, as in torchrun. On a torch that does not have an option yet, it is refused with a
sentence; `--shutdown-timeout` and `--signals-to-handle` work on every torch from 2.9.

"""
_OWN = """\

## Options of Trainyard

Each has an environment variable. The command line wins, and what it says becomes the variable of the workers, too.

"""
_LIMITS = """\

## Rendezvous

`--rdzv-backend etcd` (or `etcd-v2`, `etcd-v3`) is ours: see below for its settings. Torch's own stay available, and the
launcher names their limits once at the start:

"""
_RESTARTS = """\

## Restarts

- A worker that ends with an ordinary code, or by a signal, is started again, as long as the job has had no more than
  `--max-restarts` failures, on whichever nodes; after one more the launchers end with 1. Three failures in a row
  without a new step are the end before that, with 78. Scripts report steps with
  `training.metrics.progress.report_step`; one that does not is taken to make progress when it lives a minute. So a
  script that fails at once runs three times.
- What a script needs may be away for a moment. So from the start of a world that brought no new step to the next start
  at least 3 to 4 s go by, and before the last try 15 to 20 s (`--restart-pause`; the exact time is random, so that not
  all jobs come back to the same storage at once). The nodes pause together, and a signal ends the pause. After a
  failure with a new step, or one by SIGKILL, SIGTERM, SIGINT or SIGHUP, there is none.
- 75 costs nothing. Nor does a failure that is only the echo of a node that is gone, or a node that leaves or joins.
- 64 and 78 are final, and so are those of `--no-restart-on`; `--restart-on` wins over both. So
  `--no-restart-on 1-255 --restart-on 75,SIGKILL` goes on after these two only.
- How the job has ended is kept with its id: who comes to it later ends with 0, 1 or 78 as well, before it imports
  torch, and starts nothing.
- All workers ended with 0: the job is finished, however soon that was.
- More nodes than the most wait as spares, and end with the job; fewer than the least wait for `join_timeout` and say
  how many have come.
- These rules hold with etcd. With `c10d` and `static` torch's own agent decides, by `--max-restarts` alone.
"""
_CODES = """\

## Exit codes

Of workers, and of the launcher itself.

"""
_PROCESS_ONE = """\

## Signals and process 1

SIGTERM, SIGINT, SIGHUP and SIGQUIT end the launcher in order, from its first line of Python on, before anything slow is
imported: until there are workers at once, and then as `--signals-to-handle` says (SIGHUP stays ignored under `nohup`).
The node leaves the job, its workers get the signal and `--shutdown-timeout`. As process 1 of a container the launcher
stands behind a process that passes signals on and collects orphans; nothing else is needed, no `tini` and no `--init`.
"""
_METHODS = """\

## Backend and init method

`training.launch.process_group.init()` in a script takes both; a script that calls `dist.init_process_group` itself is
not changed. `gloo`, `nccl` and `mpi` are checked at the start against what this torch has and, for nccl, the GPUs of
the node. MPI takes its ranks from `mpirun`.

"""
_VARIABLES: tuple[tuple[str, str, str], ...] = (
    ("RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, ROLE_RANK, ...", "workers", "As in torchrun."),
    ("MASTER_ADDR, MASTER_PORT", "workers", "Of this world; another in the next."),
    (
        f"{environment.GENERATION}, {environment.RUN}",
        "workers",
        "Number of the world, and run id with a random part: a checkpoint refuses an older world's writer. With etcd.",
    ),
    (environment.PROGRESS_FILE, "workers", "Where a script reports its steps (`report_step`). With etcd."),
    (
        environment.LEASE_FILE,
        "workers",
        "Until when this node is sure to be a member. With etcd.",
    ),
    (
        environment.CHECKPOINT_LOCK,
        "workers",
        "Where the launcher's etcd is, for the claim on the checkpoints. With etcd.",
    ),
    (environment.CONTROL, "workers", "Descriptor over which hooks hear of a new world. With etcd."),
    (
        f"{environment.ETCD_PREFIX}...",
        "launcher",
        "Settings of etcd that should not stand on a command line; see the rendezvous.",
    ),
    (
        environment.WORKER_METRICS_PORT,
        "workers",
        "Port on which a node's first worker answers Prometheus, the next one on the next; `Loop(metrics_port=...)`.",
    ),
    (
        environment.MEMORY,
        "both",
        "Folder in memory for the state after the last step (`training.checkpoint.replica`); `/dev/shm` unless set.",
    ),
    (
        environment.IMAGE_CHECK,
        "launcher",
        "`warn`: what does not fit between image and machine is a warning, and no end with 78.",
    ),
    (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        "both",
        "1 unless set: with torch's default restarts often hang.",
    ),
    ("OMP_NUM_THREADS", "both", "1 with several workers per node unless set, as in torchrun."),
    ("PYTHONUNBUFFERED", "both", "1 unless set."),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "launcher", "Stands for `--shutdown-timeout`, as in torchrun."),
)


def page() -> str:
    """The page as Markdown."""
    limits = [f"- `{name}`: {text}." for name, text in LIMITS.items()]
    return "".join(
        (
            _HEAD,
            _TORCHRUN,
            _table(("option", "variable", "default", "here"), map(_torchrun_row, TORCHRUN)),
            _OWN,
            _table(
                ("option", "variable", "values", "meaning"),
                (
                    (f"`{one.name}`", f"`{one.variable}`", ", ".join(f"`{c}`" for c in one.choices), _cell(one.help))
                    for one in OWN
                ),
            ),
            "\n`--version` prints the versions of Trainyard, torch and Python, without importing torch.\n",
            _LIMITS,
            "\n".join(limits) + "\n\n",
            *_table_of(rendezvous.__doc__),
            _RESTARTS,
            _CODES,
            *_table_of(exit_codes.__doc__),
            _PROCESS_ONE,
            _METHODS,
            *_table_of(init_method.__doc__),
            "\n## Environment\n\nBeside those of the options.\n\n",
            _table(("variable", "read by", "meaning"), ((f"`{name}`", who, text) for name, who, text in _VARIABLES)),
            "\n## Progress lines\n\nOne JSON object a line on standard output, `trainyard` first.\n\n",
            *_table_of(progress.__doc__),
        )
    )


def _torchrun_row(option: TorchrunOption) -> tuple[str, ...]:
    default = "" if option.default in (None, "", False) or option.default == [] else f"`{option.default}`"
    names = ", ".join(f"`{name}`" for name in option.names if "_" not in name)
    return names, f"`{option.variable}`" if option.variable else "", default, option.here


def _cell(text: str) -> str:
    return re.sub(r"(?<!\w)(--[a-z][a-z-]+)", r"`\1`", text)


def _table_of(docstring: str | None) -> Iterator[str]:
    """The table in a module's docstring: it is written beside the code, once."""
    lines = [line for line in (docstring or "").splitlines() if line.startswith("|")]
    assert lines  # noqa: S101
    yield from (f"{re.sub(r' +', ' ', line)}\n" for line in lines)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
