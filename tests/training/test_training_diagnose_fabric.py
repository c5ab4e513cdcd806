"""The measurement of a fabric, and real failures under the launcher with the cause that their logs give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from itertools import combinations
from pathlib import Path

import pytest
from local_agents import ROOT

from training.diagnose import causes, links, logs
from training.launch import exit_codes


@pytest.mark.parametrize("world_size", range(2, 10))
def test_every_two_ranks_meet_once(world_size: int) -> None:
    rounds = links.rounds(world_size)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(world_size), 2))
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)), "one partner at a time"


def times(world_size: int, usual: float = 0.001, **slow: float) -> dict[tuple[int, int], float]:
    """Of all pairs; `r3` makes all of rank 3's slow, `r1_2` one pair."""
    found = dict.fromkeys(combinations(range(world_size), 2), usual)
    for name, seconds in slow.items():
        ranks = {int(number) for number in name[1:].split("_")}
        found |= {pair: seconds for pair in found if ranks <= set(pair)}
    return found


@pytest.mark.parametrize("world_size", range(3, 9))
def test_a_slow_rank_is_told_from_its_partners(world_size: int) -> None:
    hosts = [f"host{rank}" for rank in range(world_size)]
    for rank in range(world_size):
        assert links.slow_ranks(times(world_size, **{f"r{rank}": 0.05}), hosts) == [rank]


def test_slow_pairs_and_what_cannot_be_said() -> None:
    hosts = ["a", "b", "c", "d"]
    assert links.slow_ranks(times(4, r1_2=0.05), hosts) == []
    assert links.slow_pairs(times(4, r1_2=0.05), hosts) == [(1, 2)]
    assert links.slow_pairs(times(4, r1_2=0.0025), hosts) == [], "that is noise"
    assert links.slow_ranks(times(2, r0=9.0), ["a", "b"]) == []


def test_another_host_is_no_fault() -> None:
    """Ranks on one machine exchange messages faster than ranks on two: each kind is compared with its own."""
    hosts = ["a", "a", "b", "b"]
    pairs = {pair: 0.0001 if hosts[pair[0]] == hosts[pair[1]] else 0.01 for pair in combinations(range(4), 2)}
    assert links.slow_pairs(pairs, hosts) == []
    pairs |= {pair: 0.2 for pair in pairs if 3 in pair}
    assert links.slow_ranks(pairs, hosts) == [3]


def test_bandwidth_as_nccl_tests_counts_it() -> None:
    one = links.AllReduce.of(10**9, 0.5, 4)
    assert (one.algorithm_bandwidth, one.bus_bandwidth) == (2e9, 3e9)


def test_the_report_says_who_is_slow() -> None:
    hosts = ("a", "b", "c")
    report = links.Report("gloo", 3, hosts, times(3, r2=0.05), (links.AllReduce.of(1000, 0.001, 3),), None)
    assert "rank 2 on c is slow with every partner" in report.text()
    assert report.document()["slow_ranks"] == [2]
    assert report.document()["slow_pairs"] == []
    assert "transport: sockets (gloo)" in report.text()


def test_options_are_ours_or_the_launchers() -> None:
    ours, theirs = links.own_options(["--nnodes=2", "--json", "--patience", "7", "--rdzv-endpoint", "x:1"])
    assert (ours, theirs) == (["--json", "--patience=7.0"], ["--nnodes=2", "--rdzv-endpoint", "x:1"])


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "training", *arguments],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("TRAINYARD_", "PET_"))},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TRAINYARD_NOTICES": "none",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_a_slow_rank_and_a_dead_one_are_named(tmp_path: Path) -> None:
    slow = run(tmp_path, "diagnose", "fabric", "--nproc-per-node=3", "--json", TRAINYARD_FABRIC_DELAY="2:0.5")
    assert slow.returncode == exit_codes.FINISHED, slow.stderr
    report = json.loads(slow.stdout)
    assert report["slow_ranks"] == [2], report
    assert [one["size"] for one in report["all_reduces"]] == [8, 2**20, 16 * 2**20, 64 * 2**20]

    options = ("--nproc-per-node=3", "--patience=10")
    dead = run(tmp_path, "diagnose", "fabric", *options, TRAINYARD_FABRIC_DELAY="1:100000")
    assert dead.returncode == exit_codes.DO_NOT_RESTART, dead.stderr
    (told,) = [line for line in dead.stderr.splitlines() if line.startswith("fabric: ")]
    assert told.startswith("fabric: no sign of rank 1 on ")
    assert "rank 2" not in told


SCRIPT = """
    import os, signal, sys, time
    from datetime import timedelta
    import torch, torch.distributed as dist

    what, is_victim = sys.argv[1], os.environ["RANK"] == "1"
    dist.init_process_group("gloo", timeout=timedelta(seconds=15 if what == "late" else 600))

    def step():
        if is_victim and what == "mistake":
            return torch.ones(2, 3) @ torch.ones(4, 5)
        if is_victim and what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_victim and what == "late":
            time.sleep(100000)
        dist.all_reduce(torch.ones(1))

    step()
"""


@pytest.mark.engines
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("what", "name", "told"),
    [
        ("mistake", "user-error", "train.py:10 in step: RuntimeError: "),
        ("killed", "host-memory", "-9"),
        ("late", "sync-timeout", "Timed out waiting 15000ms for recv operation"),
    ],
)
def test_real_failures_are_told_apart(what: str, name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT).lstrip())
    done = run(tmp_path, "--standalone", "--nproc-per-node=2", "train.py", what)
    assert done.returncode == exit_codes.FAILED, done.stderr
    log = tmp_path / "run.log"
    log.write_text(done.stdout + done.stderr)
    found = causes.diagnose(logs.read([log]))
    assert found.verdict.cause.name == name, log.read_text()
    assert told in found.verdict.evidence[0].told
