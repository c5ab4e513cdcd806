"""The training of `plain_ddp.py`, written with our hooks: the process and the model live on when the world changes."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from counted import Counted
from torch.nn.parallel import DistributedDataParallel

from training.launch import elastic

started = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--records", type=Path, required=True)
parser.add_argument("--checkpoint", type=Path, required=True)
parser.add_argument("--enough", type=Path, required=True)
parser.add_argument("--step-seconds", type=float, default=0.05)
args = parser.parse_args()

torch.manual_seed(0)
model = Counted()
optimizer = model.optimizer()
state = elastic.State(model=model, optimizer=optimizer)


def checkpoints() -> list[Path]:
    """All that are whole, the newest last. A frozen process of an old world that goes on cannot replace a newer one."""
    return sorted(args.checkpoint.parent.glob(f"{args.checkpoint.name}.*.pt"))


def restore(state: elastic.State) -> None:
    """Only when nobody has the state in memory."""
    if found := checkpoints():
        saved = torch.load(found[-1])
        model.load_state_dict(saved["model"])
        state.step = saved["step"]


def save(state: elastic.State) -> None:
    """One rank at a time, named by world and step."""
    older = checkpoints()
    generation = int(os.environ["TRAINYARD_GENERATION"])
    path = args.checkpoint.with_name(f"{args.checkpoint.name}.{generation:06}.{state.step:09}.pt")
    new = path.with_suffix(f".{os.getpid()}")
    torch.save({"step": state.step, "model": model.state_dict()}, new)
    new.replace(path)
    for other in older:
        if other < path:
            other.unlink(missing_ok=True)


def train(world: elastic.World, state: elastic.State) -> None:
    """Until there is enough, or the world changes."""
    network = DistributedDataParallel(model)
    enough = torch.zeros(1)
    with args.records.open("a", buffering=1) as records:
        while not enough:
            begun = time.time()
            optimizer.zero_grad()
            network(torch.randn(32, 64)).backward()
            optimizer.step()
            enough = state.commit(torch.tensor([float(args.enough.exists())]))
            if world.rank == 0:
                save(state)
            record: dict[str, float] = {
                "step": state.step,
                "applied": model.num_steps,
                "saved": world.rank == 0,
                "rank": world.rank,
            }
            record |= {"world": world.generation, "world_size": world.size, "pid": os.getpid(), "started": started}
            records.write(json.dumps(record | {"begun": begun, "done": time.time()}) + "\n")
            time.sleep(args.step_seconds)


elastic.run(train, state, restore=restore, save=save)
