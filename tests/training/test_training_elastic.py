"""Jobs of real launchers, real etcd and real training on this computer, with everything that happens to nodes."""

import json
import os
import re
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import Etcd, Job, etcd_server, wait_for

from training.launch import exit_codes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

EPOCHS, NUM_SAMPLES = 48, 1500

# Two minutes of steps: a launcher that joins needs seconds to start, and on a busy machine most of a minute. When all
# has happened that shall happen, the rest is made without pauses. No power fails here, so nothing is written through to
# the disk, which could take longer than the steps; what was written outlives a killed process all the same.
PACED_DIGITS = """
    import os, runpy, time
    pause = time.sleep
    time.sleep = lambda seconds: None if os.path.exists("hurry") else pause(seconds)
    os.fsync = lambda descriptor: None
    runpy.run_module("training.examples.digits", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def digits(tmp_path: Path, etcd: Etcd) -> Iterator[Job]:
    """The digits example, slowed down so that there is time for accidents."""
    options = [
        *(f"--checkpoints={tmp_path / 'checkpoints'}", f"--ledger={tmp_path / 'ledger'}", f"--epochs={EPOCHS}"),
        *("--step-seconds=0.1", "--checkpoint-every=10"),
    ]
    job = script_job(tmp_path, etcd, PACED_DIGITS, *options, preload="numpy,sklearn.datasets")
    yield job
    job.stop()


def check_that_the_model_is_what_it_would_have_been(job: Job) -> None:
    """Every sample of every epoch was consumed exactly once by the steps that count, and the result is as good."""
    last: dict[int, list[int]] = {}
    for line in (job.folder / "ledger").read_text().splitlines():
        entry = json.loads(line)
        last[entry["step"]] = entry["ids"]  # a step that was made again has a later line
    consumed = Counter(number for ids in last.values() for number in ids)
    assert consumed == dict.fromkeys(range(NUM_SAMPLES), EPOCHS)
    assert sorted(last) == list(range(1, len(last) + 1))
    (result,) = {(event["step"], event["accuracy"]) for event in job.events("finished")}
    assert result[0] == len(last)
    assert result[1] >= 0.95, job.tail()
    # Never two worlds at once: within a generation steps are written by one rank 0, and generations do not overlap.
    steps = job.events("step")
    generations = [event["generation"] for event in steps]
    assert generations == sorted(generations), "an older world went on training"


def test_a_job_survives_every_loss_and_finishes_as_if_nothing_had_happened(digits: Job) -> None:
    """Worker killed, node told to go, node joins, launcher killed with its worker: one after the other."""
    first, second = digits.start("first"), digits.start("second")
    worlds = [digits.wait_for_step(12, world_size=2)["generation"]]

    def next_world(num_steps: int, world_size: int) -> None:
        step = digits.events("step")[-1]["step"] + num_steps
        worlds.append(digits.wait_for_step(step, newer_than=worlds[-1], world_size=world_size)["generation"])

    os.kill(second.worker(), signal.SIGKILL)
    next_world(10, world_size=2)

    joiner = digits.start("joiner")
    next_world(10, world_size=3)

    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == exit_codes.PREEMPTED
    next_world(5, world_size=2)

    worker = joiner.worker()
    joiner.process.kill()
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), "the killed launcher's worker to end")
    next_world(5, world_size=1)

    (digits.folder / "hurry").touch()
    assert first.wait(600) == exit_codes.FINISHED, digits.tail()
    check_that_the_model_is_what_it_would_have_been(digits)
    resumed_at = {event["generation"]: event["step"] for event in digits.events("resume")}
    last_step = {event["generation"]: event["step"] for event in digits.events("step")}
    for index, lost_at_most in enumerate((10, 0, 0, 10)):  # nothing is lost where there was notice
        assert last_step[worlds[index]] - resumed_at[worlds[index + 1]] <= lost_at_most

    assert "Traceback" not in digits.tail()
    assert "another worker is gone" in first.log.read_text()

    late = digits.start("late")
    assert late.wait() == exit_codes.FINISHED
    assert "has finished already" in late.log.read_text()


def test_all_nodes_told_to_go_save_and_are_continued_by_new_ones(digits: Job) -> None:
    old = [digits.start("a"), digits.start("b")]
    digits.wait_for_step(5, world_size=2)
    for agent in old:
        agent.process.send_signal(signal.SIGTERM)
    assert [agent.wait() for agent in old] == [exit_codes.PREEMPTED] * 2
    stopped_at = digits.events("step")[-1]["step"]

    new = digits.start("c")
    digits.wait_for_step(stopped_at + 1)
    assert digits.events("resume")[-1]["step"] == stopped_at
    new.process.send_signal(signal.SIGTERM)
    assert new.wait() == exit_codes.PREEMPTED


def script_job(tmp_path: Path, etcd: Etcd, source: str, *args: str, nnodes: str = "1:3", preload: str = "numpy") -> Job:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    return Job(tmp_path, etcd, [str(script), *args], nnodes=nnodes, run=tmp_path.name, preload=preload)


# A plain DDP program that knows nothing of Trainyard, with the checkpoint that torchrun's documentation asks for. It
# ends together when the test has seen enough: a fixed number of steps would be over while a slow test still waits.
PLAIN = """
    import os, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    start = torch.load("plain.pt") if os.path.exists("plain.pt") else 0
    enough, step = torch.zeros(1), start
    while not enough:
        step += 1
        model(torch.ones(2, 4)).sum().backward()
        enough = torch.tensor([float(os.path.exists("enough"))])
        dist.all_reduce(enough)
        if rank == 0:
            torch.save(step, "plain.tmp")
            os.replace("plain.tmp", "plain.pt")
            print(f"STEP {step} {world} {time.time()}", flush=True)
        time.sleep(0.1)
"""


def plain_steps(job: Job) -> list[tuple[int, int]]:
    found = [re.findall(r"^STEP (\d+) (\d+)", agent.log.read_text(), re.MULTILINE) for agent in job.agents]
    return sorted((int(step), int(world)) for matches in found for step, world in matches)


def test_a_plain_ddp_program_recovers_without_knowing_of_us(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd:
        job = script_job(tmp_path, etcd, PLAIN)
        try:
            go_through_accidents(job, etcd)
        finally:
            job.stop()


def go_through_accidents(job: Job, etcd: Etcd) -> None:
    """Etcd restarts (nothing happens), a worker is killed, a node is told to go."""
    stays, goes = job.start("a"), job.start("b")
    wait_for(lambda: any(step >= 3 and world == 2 for step, world in plain_steps(job)), "three steps")
    generation = job.events("rendezvous")[-1]["generation"]  # not the first, if one has started much later
    etcd.stop()
    before = plain_steps(job)[-1][0]
    wait_for(lambda: plain_steps(job)[-1][0] > before + 12, "steps while etcd is away")
    etcd.start()
    before = plain_steps(job)[-1][0]
    wait_for(lambda: plain_steps(job)[-1][0] > before + 12, "steps when etcd is back")
    assert job.events("rendezvous")[-1]["generation"] == generation

    os.kill(goes.worker(), signal.SIGKILL)
    wait_for(lambda: job.events("rendezvous")[-1]["generation"] > generation, "a second world")
    before = plain_steps(job)[-1][0]
    wait_for(lambda: any(step > before + 2 and world == 2 for step, world in plain_steps(job)), "steps of two")
    goes.process.send_signal(signal.SIGTERM)
    assert goes.wait() == exit_codes.of_signal(signal.SIGTERM)
    wait_for(lambda: any(world == 1 for _, world in plain_steps(job)), "steps of one")
    (job.folder / "enough").touch()
    assert stays.wait() == exit_codes.FINISHED
    steps = {step for step, _ in plain_steps(job)}
    assert steps == set(range(1, max(steps) + 1))


def test_torchrun_itself_gains_from_the_handler(tmp_path: Path, etcd: Etcd) -> None:
    """Through the entry point: a node that is told to go says so, instead of being missed after a while."""
    job = script_job(tmp_path, etcd, PLAIN)
    job.launcher = "torch.distributed.run"
    try:
        stays, goes = job.start("a", "--max-restarts=3"), job.start("b", "--max-restarts=3")
        wait_for(lambda: any(step >= 3 and world == 2 for step, world in plain_steps(job)), "three steps")
        goes.process.send_signal(signal.SIGTERM)
        assert goes.wait() == 1
        wait_for(lambda: any(world == 1 for _, world in plain_steps(job)), "steps of one")
        assert "dropped from the rendezvous" not in stays.log.read_text()
        assert "its launcher's port is closed" not in stays.log.read_text()
        stays.process.send_signal(signal.SIGTERM)
        stays.wait()
    finally:
        job.stop()


EXITS = """
    import os, sys
    print("RAN", os.environ["TRAINYARD_GENERATION"], flush=True)
    if sys.argv[1] == "first-only":
        sys.exit(75 if os.environ["TRAINYARD_GENERATION"] == "1" else 0)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("argument", "code", "runs"),
    [
        ("78", exit_codes.DO_NOT_RESTART, 1),  # the script says that it is pointless
        ("1", exit_codes.DO_NOT_RESTART, 3),  # three failures without a step, and it is enough
        ("first-only", exit_codes.FINISHED, 2),  # stopped at a checkpoint: free of charge
    ],
)
def test_what_follows_from_an_exit_code(tmp_path: Path, etcd: Etcd, argument: str, code: int, runs: int) -> None:
    job = script_job(tmp_path, etcd, EXITS, argument)
    try:
        agent = job.start("a", "--restart-pause=0")
        assert agent.wait() == code, job.tail()
        assert agent.log.read_text().count("RAN") == runs
        if argument == "78":
            late = job.start("late")
            assert late.wait() == exit_codes.DO_NOT_RESTART
            assert "has been given up already" in late.log.read_text()
    finally:
        job.stop()


STUBBORN = """
    import os, signal, sys, time
    if os.environ["LOCAL_RANK"] == "0":
        while not os.path.exists("ready"):
            time.sleep(0.05)
        sys.exit(78)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    open("ready", "w").close()
    while True:
        time.sleep(0.1)
        if told:
            open("outlived", "a").write(".")
"""


def test_siblings_of_a_failed_worker_are_not_waited_for_and_do_not_hide_its_code(tmp_path: Path, etcd: Etcd) -> None:
    job = script_job(tmp_path, etcd, STUBBORN)
    try:
        agent = job.start("a", "--nproc-per-node=2")
        assert agent.wait() == exit_codes.DO_NOT_RESTART, job.tail()
        # Counted by the worker, for whom time stands still together with the computer: 30 in our grace of 3 s, 300 in
        # torch's of 30 s.
        outlived = tmp_path / "outlived"
        assert not outlived.exists() or outlived.stat().st_size < 150
    finally:
        job.stop()


def test_a_spare_beyond_the_most_waits_and_ends_with_the_job(tmp_path: Path, etcd: Etcd) -> None:
    script = """
        import os, time
        print("RAN", flush=True)
        while not os.path.exists("done"):
            time.sleep(0.1)
    """
    job = script_job(tmp_path, etcd, script, nnodes="1:1")
    try:
        busy = job.start("busy")
        wait_for(lambda: "RAN" in busy.log.read_text(), "the worker")
        spare = job.start("spare")
        wait_for(lambda: spare.events("notice"), "the spare to come")
        time.sleep(1)  # in which it would start a worker, if it did
        (tmp_path / "done").touch()
        assert busy.wait() == exit_codes.FINISHED
        assert spare.wait() == exit_codes.FINISHED, job.tail()
        assert "RAN" not in spare.log.read_text()
        assert {event["generation"] for event in job.events("rendezvous")} == {1}
    finally:
        job.stop()


def test_usage_mistakes_are_sentences(tmp_path: Path, etcd: Etcd) -> None:
    job = script_job(tmp_path, etcd, "")
    try:
        wrong = job.start("wrong", "--rdzv-conf=last_call=3")
        assert wrong.wait() == exit_codes.USAGE
        text = wrong.log.read_text()
        assert "--rdzv-conf has unknown keys for etcd-v3: last_call; known keys:" in text
        assert "Traceback" not in text
    finally:
        job.stop()
