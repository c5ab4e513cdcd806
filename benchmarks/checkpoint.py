"""How long training stands still for a checkpoint: torch.save, DCP, DCP's asynchronous save and ours, in one run.

    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py                       # 512 MB
    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py --megabytes 4096 --folder /dev/shm
    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py --json results.json

    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py --write-docs          # both: make bench-checkpoint

A model with Adam on the CPU, so that its state has the given size. A step is a forward and backward pass and an
optimizer step; the state is saved after one. `stall` is how long the training thread is held up: the time of the call,
and what the next optimizer step waits for the copy. `next step` is by how much that step is longer than an ordinary
one: on a CPU the copy and the disk's thread want a core that training wants, too. `durable` is the time from the call
until the checkpoint is written (torch.save does not sync its file, the others do), while training goes on; `notice` the
same when nothing else goes on, as after a notice. `steps meanwhile` is how much longer the other steps take until then.
The first save of each kind is shown by itself: it makes the buffers.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from results import measured, write_section
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint import state_dict_saver

from training.checkpoint.folder import CheckpointFolder
from training.checkpoint.remote import Remote
from training.checkpoint.saver import AsyncSaver

WIDTH: Final = 1024
# Adam keeps two numbers for each parameter.
BYTES_PER_PARAMETER: Final = 12
ORDINARY_STEPS: Final = 5
# MB.
SMALL: Final = 512
LARGE: Final = 4096
GOAL_MS: Final = 10


class Training:
    """A stack of linear layers whose state with Adam's has about the given size."""

    def __init__(self, megabytes: int, batch: int) -> None:
        torch.manual_seed(1)
        num_layers = max(1, megabytes * 1_000_000 // (BYTES_PER_PARAMETER * WIDTH * (WIDTH + 1)))
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5)
        self._inputs = torch.randn(batch, WIDTH)

    def step(self) -> float:
        """Make a step; returns its seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        torch.autograd.backward(self.model(self._inputs).square().mean())
        self.optimizer.step()
        return time.perf_counter() - start

    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


@dataclass
class Result:
    """Seconds of each save of one kind."""

    name: str
    stall: list[float] = field(default_factory=list)
    longer: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)
    notice: list[float] = field(default_factory=list)
    slower: list[float] = field(default_factory=list)


# Begins a save; what it returns tells whether it is done, and waits.
Save = Callable[[int], "Future[Any] | None"]


def measure(
    name: str, training: Training, save: Save, repeats: int, waited: Callable[[], float] = lambda: 0.0
) -> Result:
    """Save and go on, so many times, then save and wait.

    Args:
        name: of the kind.
        training: what goes on.
        save: begins a save.
        repeats: saves after the first.
        waited: seconds for which steps have been held up so far, where a kind knows.
    """
    result = Result(name)
    for number in range(repeats + 1):
        ordinary = statistics.median(training.step() for _ in range(ORDINARY_STEPS))
        start = time.perf_counter()
        writing = save(number)
        in_call = time.perf_counter() - start
        before = waited()
        after = training.step()
        held_up = waited() - before
        result.stall.append(in_call + held_up)
        result.longer.append(max(0.0, after - ordinary - held_up))
        during: list[float] = []
        while writing and not writing.done():
            during.append(training.step())
        if writing:
            writing.result()
        result.durable.append(time.perf_counter() - start if writing else in_call)
        if during:
            result.slower.append(statistics.median(during) / ordinary)
    for number in range(repeats + 1, 2 * repeats + 1):
        start = time.perf_counter()
        if writing := save(number):
            writing.result()
        result.notice.append(time.perf_counter() - start)
    return result


def run(megabytes: int, batch: int, repeats: int, parent: Path | None) -> list[Result]:
    training = Training(megabytes, batch)
    training.step()
    results = []
    with tempfile.TemporaryDirectory(dir=parent, prefix="checkpoints-") as name:
        root = Path(name)

        def fresh(number: int) -> Path:
            """A name in an empty folder: a disk must not hold several states of 4 GB at once."""
            shutil.rmtree(root / "theirs", ignore_errors=True)
            (root / "theirs").mkdir()
            return root / "theirs" / str(number)

        def with_torch(number: int) -> None:
            torch.save(training.state(), fresh(number))

        def with_dcp(number: int) -> None:
            state_dict_saver.save(training.state(), checkpoint_id=fresh(number))

        def with_async_dcp(number: int) -> Any:
            return state_dict_saver.async_save(training.state(), checkpoint_id=fresh(number))

        results.append(measure("torch.save", training, with_torch, repeats))
        results.append(measure("dcp.save", training, with_dcp, repeats))
        results.append(measure("dcp.async_save", training, with_async_dcp, repeats))
        shutil.rmtree(root / "theirs")
        with AsyncSaver(CheckpointFolder(root / "ours", keep=1), optimizer=training.optimizer) as saver:

            def with_ours(number: int) -> "Future[Any] | None":
                saver.save(number, training.state())
                return saver.writing

            results.append(measure("trainyard", training, with_ours, repeats, lambda: saver.stalled))
    return results


def sync(megabytes: int, parent: Path | None) -> list[int]:
    """Bytes sent for a first checkpoint, for the next of a model of which a quarter is trained, and for it again."""
    training = Training(megabytes, 1)
    frozen = {name: value.clone() for name, value in list(training.model.state_dict().items())}
    with tempfile.TemporaryDirectory(dir=parent, prefix="checkpoints-") as name:
        folder, remote = CheckpointFolder(Path(name) / "local"), Remote(f"file://{name}/remote")
        sent = []
        for step in (1, 2):
            for key in list(frozen)[-len(frozen) // 4 :]:
                frozen[key] = frozen[key] + 1
            path = folder.save(step, {"model": frozen})
            sent.append(remote.push(path))
        return [*sent, remote.push(path)]


def show(results: list[Result], megabytes: int) -> None:
    table = Table(title=f"checkpoint of {megabytes} MB")
    for column in COLUMNS:
        table.add_column(column, justify="right" if table.columns else "left")
    for result in results:
        table.add_row(*row(result))
    Console().print(table)


COLUMNS: Final = (
    *("", "stall, first, ms", "stall, ms, median / worst", "next step longer by, ms", "durable, s", "notice, s"),
    "steps meanwhile",
)


def row(result: Result) -> tuple[str, ...]:
    stalls = [1000 * seconds for seconds in result.stall[1:]]
    return (
        result.name,
        f"{1000 * result.stall[0]:.0f}",
        f"{statistics.median(stalls):.1f} / {max(stalls):.1f}",
        f"{1000 * statistics.median(result.longer[1:]):.0f}",
        f"{statistics.median(result.durable[1:]):.2f}",
        f"{statistics.median(result.notice):.2f}",
        f"x {statistics.median(result.slower):.2f}" if result.slower else "",
    )


def judged(results: list[Result], megabytes: int) -> str:
    """The goals of this size, and whether they are reached."""
    stall = {result.name: 1000 * statistics.median(result.stall[1:]) for result in results}
    best = min(stall["dcp.save"], stall["dcp.async_save"])
    text = f"Goal: stall at most 1.2 x DCP's best ({1.2 * best:.0f} ms): "
    text += "reached" if stall["trainyard"] <= 1.2 * best else "missed"
    if megabytes == SMALL:
        text += f"; at most {GOAL_MS} ms: " + ("reached" if stall["trainyard"] <= GOAL_MS else "missed")
    return text + "."


def write_docs(tables: dict[int, list[Result]], batch: int, sent: list[int]) -> None:
    lines = [f"{measured()}; medians; steps with a batch of {batch}, which use all cores."]
    for megabytes, results in tables.items():
        lines += [
            "",
            f"### State of {megabytes} MB",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "| --- " * len(COLUMNS) + "|",
        ]
        lines += ["| " + " | ".join(row(result)) + " |" for result in results]
        lines += ["", judged(results, megabytes)]
    first, second, again = (f"{number / 1e6:.1f} MB" for number in sent)
    told = f"the next, of a model of which a quarter is trained, {second}; it once more, {again}."
    lines += ["", f"Sent to a second place: the first checkpoint {first}; {told}"]
    write_section("checkpoint", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=SMALL, help="size of the state")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step; decides how long it takes")
    parser.add_argument("--repeats", type=int, default=5, help="saves of each kind after the first")
    parser.add_argument("--folder", type=Path, help="where to save (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument(
        "--write-docs", action="store_true", help="measure both sizes, write them to docs/benchmarks.md"
    )
    args = parser.parse_args()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    tables = {}
    for megabytes in (SMALL, LARGE) if args.write_docs else (args.megabytes,):
        # A large state takes minutes: fewer of them.
        repeats = args.repeats if megabytes <= SMALL else 1
        tables[megabytes] = run(megabytes, args.batch, repeats, args.folder)
        show(tables[megabytes], megabytes)
    sent = sync(SMALL, args.folder)
    Console().print(f"bytes sent: {sent}")
    dist.destroy_process_group()
    if args.json:
        document = {
            "batch": args.batch,
            "sent": sent,
            "results": {size: [asdict(result) for result in results] for size, results in tables.items()},
        }
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if args.write_docs:
        write_docs(tables, args.batch, sent)


if __name__ == "__main__":
    main()
