"""The rules, one topic a module."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from policies.registry import declared
from policies.rule import Rule

# Importing a topic declares its rules.
from policies.rules import (
    autoscaling,
    cluster,
    cost,
    efa,
    gpu_pods,
    identity,
    images,
    jobs,
    machines,
    network,
    node_groups,
    pod_security,
    storage,
)

TOPICS = (
    cluster,
    machines,
    node_groups,
    efa,
    autoscaling,
    network,
    storage,
    identity,
    images,
    pod_security,
    gpu_pods,
    jobs,
    cost,
)
"""In the order of the page."""


@functools.cache
def all_rules() -> Mapping[str, Rule]:
    """All rules by name, topic by topic."""
    rules = declared()
    order = [one.topic.title for one in TOPICS]
    return MappingProxyType(dict(sorted(rules.items(), key=lambda item: order.index(item[1].topic))))
