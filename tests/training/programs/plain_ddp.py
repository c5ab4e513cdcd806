"""A plain DDP program that knows nothing of Trainyard, as one is written for torchrun: it runs under both.

It continues from its last checkpoint, which rank 0 writes after every step. Each worker appends a line to --records for
every complete step; it stops together with the others when the file --enough exists.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from counted import Counted
from torch.nn.parallel import DistributedDataParallel

started = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--records", type=Path, required=True)
parser.add_argument("--checkpoint", type=Path, required=True)
parser.add_argument("--enough", type=Path, required=True)
parser.add_argument("--step-seconds", type=float, default=0.05)
parser.add_argument("--timeout", type=float, default=1800, help="of collectives, seconds")
args = parser.parse_args()

dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
rank, world_size = dist.get_rank(), dist.get_world_size()
began = torch.tensor([time.time()], dtype=torch.float64)
dist.broadcast(began, 0)  # names the world, whoever started it

torch.manual_seed(0)
model = Counted()
optimizer = model.optimizer()
step = 0
if args.checkpoint.exists():
    saved = torch.load(args.checkpoint)
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
            new = args.checkpoint.with_suffix(".new")
            torch.save({"step": step, "model": model.state_dict()}, new)
            new.replace(args.checkpoint)
        record: dict[str, float] = {
            "step": step,
            "applied": model.num_steps,
            "saved": rank == 0,
            "rank": rank,
            "world": began.item(),
        }
        record |= {"world_size": world_size, "pid": os.getpid(), "started": started, "begun": begun}
        records.write(json.dumps(record | {"done": time.time()}) + "\n")
        time.sleep(args.step_seconds)
dist.destroy_process_group()
