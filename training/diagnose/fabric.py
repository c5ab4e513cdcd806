"""Measures the fabric between the ranks of a job: a script for the launcher, which `diagnose fabric` starts.

    python -m training --nnodes 4 ... -m training.diagnose.fabric --json

First each rank exchanges messages with one partner at a time, in rounds in which every two ranks meet once: a pair that
is slower than others names a slow rank (all its pairs are slow) or link. Then all-reduces of growing size.
A rank that does not come, or stops on the way, is named after `--patience` seconds, and all end: nobody waits for ever.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from training.diagnose import links, nccl
from training.diagnose.machine import driver
from training.launch import exit_codes
from training.launch.environment import BACKEND, GENERATION
from training.launch.torch_private import PrefixStore, Store
from training.metrics.progress import emit

PAIR_BYTES: Final = 1 * 2**20
PAIR_ROUNDS: Final = 3
REPEATS: Final = 5
POLL: Final = 0.01
"""Seconds between two looks into the store."""
ROLL_EXTRA: Final = 2.0
"""Seconds more than the patience until the roll is closed."""
DELAY: Final = "TRAINYARD_FABRIC_DELAY"
"""`rank:seconds`: that rank waits so long before each message, for trying this out."""
HOST: Final = "TRAINYARD_FABRIC_HOST"
"""What this rank's machine is called in the report; absent: its host name, which in a pod is the pod's."""


class DeadRankError(Exception):
    """Ranks have not come in time; the message names them, and is empty where another rank says it."""

    def __init__(self, message: str, dead: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.dead = dead or {}
        """The ranks, with their hosts."""


class Meeting:
    """Where ranks tell in the store how far they are; unlike a collective it can say who is missing."""

    def __init__(self, store: Store, rank: int, hosts: Sequence[str], patience: float) -> None:
        self._store, self._rank, self._hosts, self._patience = store, rank, hosts, patience

    def wait(self, what: str) -> None:
        """Go on when all have come.

        Raises:
            DeadRankError: not all have come in time, or somebody is in trouble.
        """
        self._store.set(f"{what}/{self._rank}", "1")
        deadline = time.monotonic() + self._patience
        while self._missing(what):
            if time.monotonic() >= deadline or self._store.check(["trouble"]):
                self.call_the_roll(what)
            time.sleep(POLL)

    def call_the_roll(self, why: str) -> NoReturn:
        """Something is wrong: find out who lives. Who waits for a message gives up in as long as our patience.

        Raises:
            DeadRankError: always.
        """
        try:
            self._store.set("trouble", why)
            self._store.set(f"roll/{self._rank}", "1")
            deadline = time.monotonic() + self._patience + ROLL_EXTRA
            while (missing := self._missing("roll")) and time.monotonic() < deadline:
                time.sleep(POLL)
            living = [rank for rank in range(len(self._hosts)) if rank not in missing]
        except dist.DistError as error:  # others know already, and the store went with them
            raise DeadRankError("") from error
        if self._rank != min(living):
            raise DeadRankError("")
        if not missing:
            raise DeadRankError(f"all ranks live, and messages do not arrive: {why}")
        names = ", ".join(f"rank {rank} on {self._hosts[rank]}" for rank in missing)
        raise DeadRankError(
            f"no sign of {names} for {self._patience:g} s: look at these machines ({why})",
            {rank: self._hosts[rank] for rank in missing},
        )

    def _missing(self, what: str) -> list[int]:
        return [rank for rank in range(len(self._hosts)) if not self._store.check([f"{what}/{rank}"])]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 when all is well, 1 when a rank is slow or dead."""
    args = links.parser().parse_args(argv)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size < 2:
        _say("one rank has nobody to exchange messages with: --nproc-per-node 2, or more nodes")
        return exit_codes.USAGE
    backend = os.environ.get(BACKEND) or ("nccl" if torch.cuda.is_available() else "gloo")
    with tempfile.TemporaryDirectory(prefix="trainyard-fabric-") as folder:
        debug = Path(folder) / "nccl.log"
        if backend == "nccl" and "NCCL_DEBUG_FILE" not in os.environ:
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH", NCCL_DEBUG_FILE=str(debug))
        try:
            report = _measure(backend, rank, world_size, args, debug)
        except DeadRankError as error:
            if str(error):
                _say(str(error))
                if args.json:
                    dead = [{"rank": rank, "host": host} for rank, host in error.dead.items()]
                    emit("fabric-dead", message=str(error), dead=dead)
            return exit_codes.DO_NOT_RESTART
        finally:
            if dist.is_initialized() and backend == "gloo":
                dist.destroy_process_group()
    if report is not None:
        _write(report, as_json=args.json)
        # Not a failure of the launcher's: a slow rank is a result.
        if args.fail_on_slow and (report.slow_ranks or report.slow_pairs()):
            return exit_codes.DO_NOT_RESTART
    return exit_codes.FINISHED


def _write(report: links.Report, *, as_json: bool) -> None:
    if as_json:
        emit("fabric", **report.document())
    else:
        sys.stdout.write(report.text() + "\n")
        sys.stdout.flush()


def _measure(backend: str, rank: int, world_size: int, args: argparse.Namespace, debug: Path) -> links.Report | None:
    """All measurements; the report is rank 0's."""
    patience: float = args.patience
    timeout = timedelta(seconds=patience)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    base, _, _ = next(iter(rendezvous("env://", rank, world_size, timeout=timeout)))
    store = PrefixStore(f"fabric/{os.environ.get(GENERATION, '')}", base)
    store.set(f"host/{rank}", os.environ.get(HOST) or os.uname().nodename)
    mine = links.Machine(os.uname().release, driver(Path("/")))
    store.set(f"machine/{rank}", json.dumps(asdict(mine)))
    Meeting(store, rank, [f"(unknown host {number})" for number in range(world_size)], patience).wait("start")
    hosts = [store.get(f"host/{number}").decode() for number in range(world_size)]
    meeting = Meeting(store, rank, hosts, patience)
    try:
        dist.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=world_size, timeout=timeout
        )
        delay = _delay(rank)
        seconds = _pair_seconds(rank, world_size, device, meeting, delay)
        results = _all_reduce_seconds(args.sizes, device, meeting, delay)
    except (RuntimeError, dist.DistError) as error:
        meeting.call_the_roll(str(error).partition("\n")[0])  # a collective says that somebody is gone, but not who
    store.set(f"pairs/{rank}", json.dumps({f"{low}-{high}": best for (low, high), best in seconds.items()}))
    store.set(f"all-reduces/{rank}", json.dumps(results))
    meeting.wait("end")
    if rank != 0:
        meeting.wait("reported")  # the store may be the launcher's of rank 0
        return None
    pairs: dict[tuple[int, int], float] = {}
    slowest = dict.fromkeys(args.sizes, 0.0)
    for number in range(world_size):
        for name, best in json.loads(store.get(f"pairs/{number}")).items():
            low, high = map(int, name.split("-"))
            pairs[low, high] = max(best, pairs.get((low, high), 0.0))
        for size, best in json.loads(store.get(f"all-reduces/{number}")).items():
            slowest[int(size)] = max(best, slowest[int(size)])
    machines = {host: links.Machine(**json.loads(store.get(f"machine/{rank}"))) for rank, host in enumerate(hosts)}
    meeting.wait("reported")
    found = nccl.transport(debug.read_text(errors="replace").splitlines()) if debug.is_file() else None
    figures = tuple(links.AllReduce.of(size, best, world_size) for size, best in slowest.items())
    return links.Report(backend, world_size, tuple(hosts), pairs, figures, found, machines, args.slow_least)


def _pair_seconds(
    rank: int, world_size: int, device: torch.device, meeting: Meeting, delay: float
) -> dict[tuple[int, int], float]:
    """The best time of an exchange with each partner."""
    mine, theirs = (torch.ones(PAIR_BYTES // 4, device=device) for _ in range(2))
    found = {}
    for number, pairs in enumerate(links.rounds(world_size)):
        meeting.wait(f"round {number}")
        pair = next((pair for pair in pairs if rank in pair), None)
        if pair is None:
            continue
        low, high = pair
        partner = high if rank == low else low

        def exchange(low: int = low, partner: int = partner) -> None:
            time.sleep(delay)
            if rank == low:
                dist.send(mine, partner)
                dist.recv(theirs, partner)
            else:
                dist.recv(theirs, partner)
                dist.send(mine, partner)

        found[pair] = _best_of(PAIR_ROUNDS, exchange, device)
    return found


def _all_reduce_seconds(sizes: Sequence[int], device: torch.device, meeting: Meeting, delay: float) -> dict[int, float]:
    found = {}
    for size in sizes:
        meeting.wait(f"all-reduce of {size}")
        numbers = torch.ones(size // 4, device=device)

        def reduce(numbers: Tensor = numbers) -> None:
            time.sleep(delay)
            dist.all_reduce(numbers)

        found[size] = _best_of(REPEATS, reduce, device)
    return found


def _best_of(times: int, action: Callable[[], None], device: torch.device) -> float:
    """The shortest of several runs, after one that connects."""
    found = []
    for _ in range(times + 1):
        start = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found[1:])


def _delay(rank: int) -> float:
    slow, _, seconds = os.environ.get(DELAY, "").partition(":")
    return float(seconds) if slow == str(rank) else 0.0


def _say(message: str) -> None:
    sys.stderr.write(f"fabric: {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a communicator with a dead rank has threads that wait for it
