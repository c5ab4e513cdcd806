"""The training of `plain_ddp.py` by a script that knows of Trainyard's checkpoints, and not of its hooks.

A step counts when it is in a checkpoint, which an old world cannot write any more: only then is it in the records.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from counted import Counted
from torch.nn.parallel import DistributedDataParallel

from training.checkpoint.folder import Checkpoint, CheckpointFolder, StaleWriterError, Writer
from training.launch import exit_codes
from training.launch.peers import is_lost_peer
from training.metrics.progress import report_step

# No power fails here, and a slow disk could take longer than the steps; what is written outlives a killed process.
os.fsync = lambda fd: None  # noqa: ARG005  (its own name, for the type)

started = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--records", type=Path, required=True)
parser.add_argument("--checkpoint", type=Path, required=True)
parser.add_argument("--enough", type=Path, required=True)
parser.add_argument("--step-seconds", type=float, default=0.05)
args = parser.parse_args()


def main() -> None:
    """Train until there is enough."""
    dist.init_process_group("gloo")
    rank, world_size, generation = dist.get_rank(), dist.get_world_size(), int(os.environ["TRAINYARD_GENERATION"])
    torch.manual_seed(0)
    model = Counted()
    optimizer = model.optimizer()
    folder = CheckpointFolder(
        args.checkpoint, writer=Writer(run=os.environ["TRAINYARD_RUN"], generation=generation), keep=3
    )
    found: list[Checkpoint | None] = [None]
    if rank == 0:
        folder.claim()
        found[0] = folder.newest()
    dist.broadcast_object_list(found)
    step = 0
    if found[0] is not None:
        saved = found[0].load()
        model.load_state_dict(saved["model"])
        step = saved["step"]
    network = DistributedDataParallel(model)
    enough = torch.zeros(1)
    with args.records.open("a", buffering=1) as records:
        while not enough:
            begun = time.time()
            optimizer.zero_grad()
            network(torch.randn(32, 64)).backward()
            optimizer.step()
            enough = torch.tensor([float(args.enough.exists())])
            dist.all_reduce(enough)
            step += 1
            if rank == 0:
                folder.save(step, {"step": step, "model": model.state_dict()})
                record: dict[str, float] = {
                    "step": step,
                    "applied": model.num_steps,
                    "saved": True,
                    "rank": rank,
                    "world": generation,
                }
                record |= {"world_size": world_size, "pid": os.getpid(), "started": started, "begun": begun}
                records.write(json.dumps(record | {"done": time.time()}) + "\n")
            report_step(step)
            time.sleep(args.step_seconds)
    dist.barrier()
    dist.destroy_process_group()


try:
    main()
except StaleWriterError as error:
    sys.exit(f"careful_ddp: {error}")
except RuntimeError as error:
    if not is_lost_peer(error):
        raise
    sys.stderr.write("careful_ddp: another worker is gone\n")
    sys.exit(exit_codes.FAILED)
