"""The training of `plain_ddp.py`, written with our hooks: the process and the model live on when the world changes."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from training.launch import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--records", type=Path, required=True)
parser.add_argument("--checkpoint", type=Path, required=True)
parser.add_argument("--enough", type=Path, required=True)
parser.add_argument("--step-seconds", type=float, default=0.05)
args = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = elastic.State(model=model, optimizer=optimizer)


def restore(state: elastic.State) -> None:
    """Only when nobody has the state in memory."""
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        state.step = saved["step"]


def save(state: elastic.State) -> None:
    """One rank at a time; a replaced file is whole."""
    new = args.checkpoint.with_suffix(f".{os.getpid()}")
    torch.save({"step": state.step, "model": model.state_dict()}, new)
    new.replace(args.checkpoint)


def train(world: elastic.World, state: elastic.State) -> None:
    """Until there is enough, or the world changes."""
    network = DistributedDataParallel(model)
    enough = torch.zeros(1)
    with args.records.open("a", buffering=1) as records:
        while not enough:
            begun = time.time()
            optimizer.zero_grad()
            network(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            enough = state.commit(torch.tensor([float(args.enough.exists())]))
            record: dict[str, float] = {
                "step": state.step,
                "rank": world.rank,
                "world": world.generation,
                "world_size": world.size,
            }
            record |= {"pid": os.getpid(), "begun": begun, "done": time.time()}
            records.write(json.dumps(record) + "\n")
            if world.rank == 0:
                save(state)
            time.sleep(args.step_seconds)


elastic.run(train, state, restore=restore, save=save)
