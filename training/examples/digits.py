"""Train a small network on scikit-learn's handwritten digits, on any number of workers that come and go.

    python -m training.examples.digits                                          # one process, no launcher
    python -m training --nproc-per-node 2 -m training.examples.digits           # two on this computer
    python -m training --nnodes 1:3 --rdzv-backend etcd --rdzv-endpoint etcd:2379 --rdzv-id digits \
        -m training.examples.digits --checkpoints /checkpoints                  # the same on up to three nodes

The model after step k is the same whatever happened on the way, up to the rounding of sums: the global batch is
constant, the cursor decides which samples it holds, and a run continues from its last checkpoint. At SIGTERM all
workers stop after the same step, save, and exit with 75; nothing is lost. After a crash the steps since the last
checkpoint are made again.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from training.checkpoint.folder import Checkpoint, CheckpointError, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.saver import AsyncSaver
from training.data.cursor import Ids, SampleCursor, epoch_order, loss_weight, rank_slice
from training.launch import exit_codes, notices
from training.launch.environment import GENERATION, RUN
from training.launch.peers import is_lost_peer
from training.metrics.progress import emit, report_step

NUM_HELD_OUT: Final = 297  # of 1797 images, chosen at random but always the same
PIXEL_MAX: Final = 16.0
HIDDEN: Final = 256
LEARNING_RATE: Final = 0.01
# Bounds how long a worker waits for one that has fallen silent without its connection breaking.
COLLECTIVE_TIMEOUT: Final = timedelta(seconds=60)


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code (see `training.launch.exit_codes`)."""
    args = parse(argv)
    notices.listen()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    generation = int(os.environ.get(GENERATION, "0"))
    writer = Writer(run=os.environ.get(RUN, ""), generation=generation)
    images, labels = read_images(args.data)
    inputs = torch.from_numpy(images / PIXEL_MAX).float()
    targets = torch.from_numpy(labels).long()
    held_out, train = np.split(epoch_order(len(inputs), seed=0, epoch=0), [NUM_HELD_OUT])
    cursor = SampleCursor(num_samples=len(train), global_batch=args.global_batch, seed=args.seed)
    num_steps = args.epochs * cursor.steps_per_epoch

    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=COLLECTIVE_TIMEOUT)

    torch.manual_seed(args.seed)
    model = new_model(inputs.shape[1]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    first_step = 0
    try:
        folder = CheckpointFolder(args.checkpoints, writer=writer, keep=args.keep)
        checkpoint = agree_on_checkpoint(folder, rank, world_size)
        if checkpoint:
            state = checkpoint.load(device)
            cursor.check(state["cursor"])
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first_step = checkpoint.step
    except StaleWriterError:
        raise
    except (CheckpointError, ValueError, KeyError) as error:
        end(str(error), exit_codes.DO_NOT_RESTART)
    if first_step >= num_steps:  # also a run whose --epochs are fewer than those made: then there is no result yet
        done = cursor.num_samples_before(first_step)
        accuracy = round(evaluate(model, inputs[held_out].to(device), targets[held_out].to(device)), 4)
        if rank == 0:
            emit("finished", step=first_step, **(state["result"] or {"accuracy": accuracy, "samples": done}))
        leave(world_size)
        return exit_codes.FINISHED
    if rank == 0:
        path = str(checkpoint.path) if checkpoint else ""
        emit("resume", step=first_step, generation=generation, world_size=world_size, checkpoint=path)
    network = DistributedDataParallel(model) if world_size > 1 else model
    inputs, targets = inputs.to(device), targets.to(device)

    def report(step: int, path: Path, seconds: float) -> None:
        emit("checkpoint", step=step, path=str(path), seconds=round(seconds, 3))

    saver = AsyncSaver(folder, optimizer=optimizer, on_saved=report)

    def save(step: int, result: dict[str, float] | None = None) -> None:
        if rank != 0:
            return
        state = {
            "step": step,
            "generation": generation,
            "seed": args.seed,
            "cursor": cursor.fingerprint(),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "result": result or {},
        }
        saver.save(step, state)

    for step in range(first_step + 1, num_steps + 1):  # steps are numbered by how many are complete after them
        step_start = time.monotonic()
        batch = cursor.batch(step - 1)
        mine = rank_slice(batch, rank, world_size)
        loss_sum = cross_entropy(network(inputs[train[mine]]), targets[train[mine]], reduction="sum")
        optimizer.zero_grad()
        torch.autograd.backward(loss_sum * loss_weight(len(batch), world_size))
        optimizer.step()

        # One reduction for the loss and for the question whether anybody was told to go.
        totals = torch.stack([loss_sum.detach(), loss_sum.new_tensor(float(notices.preemption_requested()))])
        if world_size > 1:
            dist.all_reduce(totals)
        loss, must_stop = totals[0].item() / len(batch), totals[1].item() > 0
        report_step(step)
        if args.ledger:
            write_ledger(args.ledger, step, generation, gather_ids(mine, world_size), rank)
        if rank == 0:
            emit(
                "step",
                step=step,
                loss=round(loss, 6),
                world_size=world_size,
                generation=generation,
                samples=cursor.num_samples_before(step),
            )
        if step == num_steps:
            break
        if must_stop or step % args.checkpoint_every == 0:
            save(step)
        if must_stop:
            saver.close()
            leave(world_size)
            return exit_codes.PREEMPTED
        time.sleep(max(0.0, step_start + args.step_seconds - time.monotonic()))

    accuracy = evaluate(model, inputs[held_out], targets[held_out])
    result = {"accuracy": round(accuracy, 4), "loss": round(loss, 6), "samples": cursor.num_samples_before(num_steps)}
    save(num_steps, result)
    saver.close()
    if rank == 0:
        emit("finished", step=num_steps, **result)
    leave(world_size)
    return exit_codes.FINISHED


def read_images(path: Path | None) -> tuple[Any, Any]:
    """Images [n, 64] from 0 to 16, and labels [n]."""
    if path is None:
        images, labels = load_digits(return_X_y=True)
        return images, labels
    try:
        with np.load(path) as arrays:
            return arrays["images"], arrays["labels"]
    except (OSError, ValueError, KeyError) as error:
        end(f"{path} holds no images: {error}", exit_codes.DO_NOT_RESTART)


def new_model(num_pixels: int) -> nn.Sequential:
    """The network, untrained."""
    return nn.Sequential(nn.Linear(num_pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


class _Parser(argparse.ArgumentParser):
    """Ends with a code by which the launcher knows that another try is pointless."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        end(message, exit_codes.USAGE)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = _Parser(prog="python -m training.examples.digits", description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8, help="passes over the 1500 training images")
    parser.add_argument("--global-batch", type=int, default=64, help="images per step over all workers")
    parser.add_argument("--seed", type=int, default=7, help="of the initial weights and the order of the images")
    parser.add_argument("--data", type=Path, help="file of training.examples.digits_data; absent: scikit-learn's own")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder that all workers share")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS", help="steps between checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep")
    parser.add_argument("--ledger", type=Path, help="append the ids of each completed step's images to this file")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=0.0,
        help="pacing: no step is shorter than this, so that there is time to try what a lost node does",
    )
    args = parser.parse_args(argv)
    for name in ("epochs", "global_batch", "checkpoint_every", "keep"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args


def agree_on_checkpoint(folder: CheckpointFolder, rank: int, world_size: int) -> Checkpoint | None:
    """Rank 0 takes possession of the folder and says where to start; the others follow."""
    checkpoint: list[Any] = [None]
    if rank == 0:
        folder.claim()
        checkpoint = [folder.newest()]
    if world_size > 1:
        dist.broadcast_object_list(checkpoint)
    found: Checkpoint | None = checkpoint[0]
    return found


def leave(world_size: int) -> None:
    """End together: nobody leaves before rank 0 has saved."""
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def end(message: str, code: int) -> NoReturn:
    """Exit with a sentence."""
    sys.stderr.write(f"digits: {message}\n")
    sys.exit(code)


def gather_ids(mine: Ids, world_size: int) -> list[int]:
    """The ids that the ranks have really consumed, in rank order."""
    ids: list[list[int]] = [mine.tolist()] * world_size
    if world_size > 1:
        dist.all_gather_object(ids, mine.tolist())
    return [number for part in ids for number in part]


def write_ledger(path: Path, step: int, generation: int, ids: list[int], rank: int) -> None:
    """Append one line per completed step. A step that is made again after a crash has a later line, which counts."""
    if rank != 0:
        return
    with path.open("a") as stream:
        stream.write(json.dumps({"step": step, "generation": generation, "ids": ids}) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of images that the model gets right."""
    return float((model(inputs).argmax(1) == targets).float().mean())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CheckpointError as error:  # while training: the disk is full or away, or another world has taken over
        end(str(error), exit_codes.FAILED)
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        end("another worker is gone; the launcher starts this one again from the last checkpoint", exit_codes.FAILED)
