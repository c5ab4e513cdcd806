"""Who goes first when there is not room for all."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.scheduling.v1 import PriorityClass

from infra.wiring.scheduling import PRIORITY_CONTROL, PRIORITY_TRAINING, PRIORITY_TRAINING_LOW

PRIORITY_VALUES = {PRIORITY_CONTROL: 1_000_000, PRIORITY_TRAINING: 1_000, PRIORITY_TRAINING_LOW: 100}


class Priorities(pulumi.ComponentResource):
    """PriorityClasses: Trainyard's own parts, then training, then training that may be pushed aside."""

    def __init__(self, name: str, *, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:Priorities", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        _priority(PRIORITY_CONTROL, "Trainyard's own parts: without them no job is repaired.", child)
        _priority(PRIORITY_TRAINING, "Training jobs.", child)
        _priority(PRIORITY_TRAINING_LOW, "Training jobs that give way to the others.", child)
        self.register_outputs({})


def _priority(name: str, description: str, opts: pulumi.ResourceOptions) -> None:
    value = PRIORITY_VALUES[name]
    PriorityClass(name, metadata=ObjectMetaArgs(name=name), value=value, description=description, opts=opts)
