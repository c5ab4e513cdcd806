"""How long training stands still for a checkpoint: torch.save, DCP, DCP's asynchronous save and ours, in one run.

    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py                       # 512 MB
    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py --megabytes 4096 --folder /dev/shm
    PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py --json results.json

A model with Adam on the CPU, so that its state has the given size. A step is a forward and backward pass and an
optimizer step; the state is saved after one. `stall` is the time of the call and of the next step beyond an ordinary
one: so it has the wait until the optimizer may move the parameters, and what a busy disk or processor costs that step.
`durable` is the time from the call until the checkpoint is written (torch.save does not sync its file, the others do).
`steps meanwhile` is how much longer the other steps take until then. The first save of each kind is shown by itself:
it makes the buffers.
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
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint import state_dict_saver

from training.checkpoint.folder import CheckpointFolder
from training.checkpoint.saver import AsyncSaver

WIDTH: Final = 1024
# Adam keeps two numbers for each parameter.
BYTES_PER_PARAMETER: Final = 12
ORDINARY_STEPS: Final = 5


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
    durable: list[float] = field(default_factory=list)
    slower: list[float] = field(default_factory=list)


# Begins a save; what it returns tells whether it is done, and waits.
Save = Callable[[int], "Future[Any] | None"]


def measure(name: str, training: Training, save: Save, repeats: int) -> Result:
    result = Result(name)
    for number in range(repeats + 1):
        ordinary = statistics.median(training.step() for _ in range(ORDINARY_STEPS))
        start = time.perf_counter()
        writing = save(number)
        in_call = time.perf_counter() - start
        after = training.step()
        result.stall.append(max(0.0, in_call + after - ordinary))
        during: list[float] = []
        while writing and not writing.done():
            during.append(training.step())
        if writing:
            writing.result()
        result.durable.append(time.perf_counter() - start if writing else in_call)
        if during:
            result.slower.append(statistics.median(during) / ordinary)
    return result


def run(args: argparse.Namespace) -> list[Result]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    training = Training(args.megabytes, args.batch)
    training.step()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="checkpoints-") as name:
        root = Path(name)

        def fresh(kind: str, number: int) -> Path:
            shutil.rmtree(root / kind, ignore_errors=True)
            (root / kind).mkdir()
            return root / kind / str(number)

        def with_torch(number: int) -> None:
            torch.save(training.state(), fresh("torch", number))

        def with_dcp(number: int) -> None:
            state_dict_saver.save(training.state(), checkpoint_id=fresh("dcp", number))

        def with_async_dcp(number: int) -> Any:
            return state_dict_saver.async_save(training.state(), checkpoint_id=fresh("async", number))

        folder = CheckpointFolder(root / "ours", keep=1)
        with AsyncSaver(folder, optimizer=training.optimizer) as saver:

            def with_ours(number: int) -> "Future[Any] | None":
                saver.save(number, training.state())
                return saver.writing

            results = [
                measure("torch.save", training, with_torch, args.repeats),
                measure("dcp.save", training, with_dcp, args.repeats),
                measure("dcp.async_save", training, with_async_dcp, args.repeats),
                measure("trainyard", training, with_ours, args.repeats),
            ]
    dist.destroy_process_group()
    return results


def show(results: list[Result], megabytes: int) -> None:
    table = Table(title=f"checkpoint of {megabytes} MB, seconds (median)")
    for column in ("", "stall, first", "stall", "durable", "steps meanwhile"):
        table.add_column(column, justify="left" if not column else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.stall[0]:.3f}",
            f"{statistics.median(result.stall[1:]):.3f}",
            f"{statistics.median(result.durable[1:]):.2f}",
            f"x {statistics.median(result.slower):.2f}" if result.slower else "",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=512, help="size of the state")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step; decides how long it takes")
    parser.add_argument("--repeats", type=int, default=5, help="saves of each kind after the first")
    parser.add_argument("--folder", type=Path, help="where to save (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path, help="write the results there")
    args = parser.parse_args()
    results = run(args)
    show(results, args.megabytes)
    if args.json:
        document = {"megabytes": args.megabytes, "batch": args.batch, "results": [asdict(result) for result in results]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
