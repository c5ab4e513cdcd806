"""The training loop: what a DDP script needs to keep its model, its data and its checkpoints through every change.

    from training.loop import Loop

    loop = Loop("checkpoints", save_every=100)
    loop.setup(model, optimizer, data, global_batch=64, epochs=4)

    def train(network):                              # called once for every world
        for inputs, targets in loop.batches():
            loss = cross_entropy(network(inputs), targets)
            loop.backward(loss)
            loop.step()

    loop.run(train)

See docs/how-to/loop.md; `training.launch.elastic` is the ground on which it stands.
"""

from training.loop.ddp import DdpOptions
from training.loop.loop import EarlyStop, Loop, LoopError
from training.loop.schedule import Schedule, cosine_after_warmup

__all__ = ["DdpOptions", "EarlyStop", "Loop", "LoopError", "Schedule", "cosine_after_warmup"]
