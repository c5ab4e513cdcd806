"""What the measurement of a fabric says: which rank or pair of ranks is slow, and how fast all-reduces are."""

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from training.diagnose import nccl

SLOW: Final = 3.0
"""So many times the usual makes a pair slow."""
SLOW_LEAST: Final = 0.002
"""Seconds above the usual: below that it is noise."""
SIZES: Final = (8, 2**20, 16 * 2**20, 64 * 2**20)
"""Bytes of the all-reduces."""
PATIENCE: Final = 60.0
"""Seconds until a silent rank is dead."""

ABOUT: Final = """How fast are all-reduces over this job's ranks, and is one of them slow or dead?

    python -m training diagnose fabric --nproc-per-node 8                               # this machine
    python -m training diagnose fabric --nnodes 4 --rdzv-backend etcd --rdzv-endpoint etcd:2379 --rdzv-id fabric

All other options are the launcher's. On several nodes the same command runs on each; rank 0 writes the report."""


@dataclass(frozen=True)
class AllReduce:
    """One size of message.

    Attributes:
        size: bytes.
        seconds: of the slowest rank, the best of all repeats.
        algorithm_bandwidth: bytes per second, size over time.
        bus_bandwidth: the same as nccl-tests counts it, times 2 (n-1) / n: comparable for any number of ranks.
    """

    size: int
    seconds: float
    algorithm_bandwidth: float
    bus_bandwidth: float

    @classmethod
    def of(cls, size: int, seconds: float, world_size: int) -> "AllReduce":
        """The figures of a measurement."""
        rate = size / seconds
        return cls(size, seconds, rate, rate * 2 * (world_size - 1) / world_size)


@dataclass(frozen=True)
class Machine:
    """What a worker sees of its machine and nobody else does without being on it."""

    kernel: str
    driver: str | None
    """NVIDIA's kernel module; None where there is none."""


@dataclass(frozen=True)
class Report:
    """What was measured; times in seconds."""

    backend: str
    world_size: int
    hosts: tuple[str, ...]
    pairs: Mapping[tuple[int, int], float]
    """One exchange of each two ranks, the best of several."""
    all_reduces: tuple[AllReduce, ...]
    transport: nccl.Transport | None
    machines: Mapping[str, Machine] = field(default_factory=dict)
    """By host."""
    slow_least: float = SLOW_LEAST

    @property
    def slow_ranks(self) -> list[int]:
        """Ranks all of whose exchanges are slow."""
        return slow_ranks(self.pairs, self.hosts, self.slow_least)

    def slow_pairs(self) -> list[tuple[int, int]]:
        """Slow exchanges that are not those of a slow rank."""
        slow = set(self.slow_ranks)
        return [pair for pair in slow_pairs(self.pairs, self.hosts, self.slow_least) if not slow & set(pair)]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "backend": self.backend,
            "world_size": self.world_size,
            "hosts": list(self.hosts),
            "machines": {host: asdict(machine) for host, machine in self.machines.items()},
            "pairs": [{"ranks": list(pair), "seconds": seconds} for pair, seconds in sorted(self.pairs.items())],
            "all_reduces": [asdict(one) for one in self.all_reduces],
            "transport": None if self.transport is None else self.transport.document(),
            "slow_ranks": self.slow_ranks,
            "slow_pairs": [list(pair) for pair in self.slow_pairs()],
        }

    def text(self) -> str:
        """For people."""
        lines = [f"{self.world_size} ranks on {len(set(self.hosts))} hosts, {self.backend}"]
        lines += ["       bytes      ms   GB/s   bus GB/s"]
        for one in self.all_reduces:
            rate, bus = one.algorithm_bandwidth / 1e9, one.bus_bandwidth / 1e9
            lines.append(f"  {one.size:>10} {one.seconds * 1e3:>7.3f} {rate:>6.3f} {bus:>10.3f}")
        if self.transport is not None:
            lines.append(self.transport.text())
        elif self.backend == "gloo":
            lines.append("transport: sockets (gloo)")
        for rank in self.slow_ranks:
            lines.append(f"rank {rank} on {self.hosts[rank]} is slow with every partner: look at that machine")
        for first, second in self.slow_pairs():
            lines.append(f"ranks {first} ({self.hosts[first]}) and {second} ({self.hosts[second]}) are slow together")
        if not self.slow_ranks and not self.slow_pairs():
            lines.append("no rank is slower than the others")
        return "\n".join(lines)


def rounds(world_size: int) -> list[list[tuple[int, int]]]:
    """Pairs in rounds: in each, every rank has one partner at most; in all, every two meet once (the circle method)."""
    ranks: list[int] = list(range(world_size + world_size % 2))
    found = []
    for _ in range(len(ranks) - 1):
        half = len(ranks) // 2
        pairs = zip(ranks[:half], reversed(ranks[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < world_size])
        ranks = [ranks[0], ranks[-1], *ranks[1:-1]]
    return found


def slow_pairs(
    pairs: Mapping[tuple[int, int], float], hosts: Sequence[str], least: float = SLOW_LEAST
) -> list[tuple[int, int]]:
    """Pairs that are much slower than others of their kind, on one host or between two.

    Usual is what the fastest third takes: with three ranks one slow rank spoils two pairs of three.
    """
    found = []
    for of_kind in _kinds(pairs, hosts):
        usual = statistics.median(sorted(of_kind.values())[: math.ceil(len(of_kind) / 3)])
        found += [pair for pair, seconds in of_kind.items() if seconds > max(SLOW * usual, usual + least)]
    return sorted(found)


def slow_ranks(pairs: Mapping[tuple[int, int], float], hosts: Sequence[str], least: float = SLOW_LEAST) -> list[int]:
    """Ranks all of whose pairs are slow; their partners are innocent. Of two ranks nobody can say which."""
    slow = set(slow_pairs(pairs, hosts, least))
    comparable = {pair for of_kind in _kinds(pairs, hosts) for pair in of_kind}
    found = []
    for rank in range(len(hosts)):
        mine = [pair for pair in comparable if rank in pair]
        if len(mine) > 1 and all(pair in slow for pair in mine):
            found.append(rank)
    return found


def _kinds(pairs: Mapping[tuple[int, int], float], hosts: Sequence[str]) -> list[dict[tuple[int, int], float]]:
    """Pairs on one host and pairs between hosts; of each kind there must be two to compare."""
    together = {pair: seconds for pair, seconds in pairs.items() if hosts[pair[0]] == hosts[pair[1]]}
    apart = {pair: seconds for pair, seconds in pairs.items() if pair not in together}
    return [of_kind for of_kind in (together, apart) if len(of_kind) > 1]


def parser() -> argparse.ArgumentParser:
    """Of the options of the measurement itself."""
    made = argparse.ArgumentParser(
        prog="python -m training diagnose fabric",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--json", action="store_true", help="write one JSON document, by rank 0")
    made.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS", help="after which a silent rank is dead"
    )
    made.add_argument("--fail-on-slow", action="store_true", help="end with 78 where a rank or a pair is slow")
    made.add_argument(
        "--sizes", type=_sizes, default=SIZES, metavar="BYTES,...", help="of the all-reduces, multiples of 4"
    )
    made.add_argument(
        "--slow-least",
        type=float,
        default=SLOW_LEAST,
        metavar="SECONDS",
        help="above the usual, below which a slow exchange is noise: more where ranks share processors",
    )
    return made


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if any(size < 4 or size % 4 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text}: every size must be a multiple of 4 bytes")
    return sizes


def own_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options of a command line, and those of the launcher."""
    given, theirs = parser().parse_known_args(argv)
    flags = {"--json": given.json, "--fail-on-slow": given.fail_on_slow}
    ours = [*(name for name, is_given in flags.items() if is_given), f"--patience={given.patience}"]
    if given.sizes != SIZES:
        ours.append(f"--sizes={','.join(map(str, given.sizes))}")
    if given.slow_least != SLOW_LEAST:
        ours.append(f"--slow-least={given.slow_least}")
    return ours, theirs
