"""What the options of DDP cost and save: bytes on the wire and time of a step, for each of `training.loop.DdpOptions`.

    PYTHONPATH=. python benchmarks/ddp_options.py [--workers 2] [--steps 20] [--json FILE]

Real workers with gloo over the loopback interface of this computer; bytes are those that the kernel counts on it, so
nothing else should use it meanwhile (on Linux a namespace of its own would do). Times are those of the slowest part on
few cores: compression pays for itself on a network that is slower than a loopback, or not at all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import TensorDataset

from training.loop import DdpOptions, Loop
from training.loop.loop import LoopError

WIDTH: Final = 1024
NUM_LAYERS: Final = 6  # 6 million parameters, 25 MB of gradients
BATCH: Final = 64
# PowerSGD begins after so many steps; then everything has been made once.
WARM_UP: Final = 14
POWERSGD_START: Final = 10
SENT: Final = Path("/sys/class/net/lo/statistics/tx_bytes")

ROWS: Final[dict[str, dict[str, Any]]] = {
    "as it is": {},
    "bucket_mb=1": {"bucket_mb": 1.0},
    "bucket_mb=100": {"bucket_mb": 100.0},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "compress=bf16": {"compress": "bf16"},
    "compress=fp16": {"compress": "fp16"},
    "compress=powersgd, rank 1": {"compress": "powersgd", "powersgd_start": POWERSGD_START},
    "compress=powersgd, rank 8": {"compress": "powersgd", "powersgd_start": POWERSGD_START, "powersgd_rank": 8},
    "micro_batch of a quarter": {"micro_batch": True},
}


def train(row: str, steps: int, output: Path) -> None:
    """One worker of one row."""
    options = dict(ROWS[row])
    world = int(os.environ["WORLD_SIZE"])
    micro_batch = BATCH // world // 4 if options.pop("micro_batch", False) else None
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, WIDTH)
    loop = Loop(ddp=DdpOptions(**options), log_every=1)
    loop.setup(
        model,
        optimizer,
        TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        global_batch=BATCH,
        steps=WARM_UP + steps,
        micro_batch=micro_batch,
    )

    def body(network: nn.Module) -> None:
        begin, sent = 0.0, 0
        for samples, targets in loop.batches():
            if loop.state.step == WARM_UP and not begin:
                begin, sent = time.perf_counter(), int(SENT.read_text())
            loop.backward(((network(samples) - targets) ** 2).mean())
            loop.step()
        if loop.world.rank == 0:
            seconds, num_bytes = time.perf_counter() - begin, int(SENT.read_text()) - sent
            output.write_text(json.dumps({"seconds": seconds / steps, "bytes": num_bytes / steps}))

    loop.run(body)


def measure(row: str, workers: int, steps: int) -> dict[str, Any]:
    """One row, by launching its workers."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "training", "--standalone", f"--nproc-per-node={workers}", __file__]
        done = subprocess.run(
            [*command, f"--steps={steps}", f"--row={row}", f"--output={output}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise LoopError(f"{row}: {done.stderr[-2000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trainyard": "step"')]
        measured = lines[WARM_UP:]
        parts = {
            part: sum(line["seconds"].get(part, 0.0) for line in measured) / len(measured)
            for part in ("forward", "backward", "sync", "optimizer")
        }
        return {"row": row, **json.loads(output.read_text()), "parts": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        train(args.row, args.steps, args.output)
        return
    results = []
    sys.stdout.write(
        "| option | MB a step on the wire | ms a step | of it backward | sync |\n| --- | --- | --- | --- | --- |\n"
    )
    for row in ROWS:
        result = measure(row, args.workers, args.steps)
        results.append(result)
        parts = result["parts"]
        sys.stdout.write(
            f"| {row} | {result['bytes'] / 1e6:.1f} | {result['seconds'] * 1000:.0f} | {parts['backward'] * 1000:.0f} "
            f"| {parts['sync'] * 1000:.0f} |\n"
        )
        sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
