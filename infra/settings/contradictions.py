"""What does not go together in settings whose values are right one by one."""

from __future__ import annotations

from collections.abc import Iterator

from infra.settings.mistakes import Contradiction, Location, removing, setting
from infra.settings.sections import LOCAL_NODES_MAX, Settings
from infra.wiring.scheduling import taints_of


def contradictions(settings: Settings, stack: str) -> Iterator[Contradiction]:
    """All contradictions, in the order of the sections; the stack's name is part of other names."""
    names = [pool.name for pool in settings.node_pools]
    for index, name in enumerate(names):
        if earlier := [number for number in range(index) if names[number] == name]:
            places: tuple[Location, ...] = (("nodePools", earlier[-1], "name"), ("nodePools", index, "name"))
            yield Contradiction(places[1], f"two pools are named {name!r}", by=places)
    yield from _of_other_targets(settings)
    if settings.target == "local":
        yield from _room_on_this_computer(settings)
    if settings.target == "kubeconfig" and settings.kubeconfig is None:
        fix = setting(("kubeconfig", "path"), "~/.kube/config")
        by: tuple[Location, ...] = (("target",), ("kubeconfig",))
        yield Contradiction(("kubeconfig",), "target kubeconfig needs it: at least its `path`", fix, by)
    if settings.target == "aws" and settings.aws is None:
        fix = setting(("aws", "region"), "us-east-2")
        by = (("target",), ("aws",))
        yield Contradiction(("aws",), "target aws needs it: at least `region` and the network's zones", fix, by)
    if settings.target == "aws" and settings.aws is not None:
        # The catalogue and its tables are read only where an AWS stack asks for them.
        from infra.settings.aws_contradictions import in_aws  # noqa: PLC0415

        yield from in_aws(settings, settings.aws, stack)


def _of_other_targets(settings: Settings) -> Iterator[Contradiction]:
    """Sections that the target does not read."""
    target = settings.target
    given = {"local": settings.local, "kubeconfig": settings.kubeconfig, "aws": settings.aws}
    for section, value in given.items():
        if section != target and value is not None:
            yield Contradiction((section,), f"has no meaning with target {target}", removing(section))
    if target != "local" and "node_pools" in settings.model_fields_set:
        where = "the machines of that cluster are there already" if target == "kubeconfig" else "see aws.nodePools"
        yield Contradiction(("nodePools",), f"has no meaning with target {target}: {where}", removing("nodePools"))
    if target == "local" and settings.images.torch is not None:
        torch: Location = ("images", "torch")
        what = "has no meaning with target local: its training image is this checkout with the torch of this computer"
        yield Contradiction(torch, what, removing(*torch), (("target",), torch))
    classes = {"etcd": settings.etcd.storage_class, "checkpoints": settings.checkpoints.storage_class}
    for section, storage_class in classes.items():
        if storage_class is not None and target != "kubeconfig":
            what = f"has no meaning with target {target}: it brings its own"
            yield Contradiction((section, "storageClass"), what, removing(section, "storageClass"))


def _room_on_this_computer(settings: Settings) -> Iterator[Contradiction]:
    # A wrong value counts as its default here, which makes room and a home: nothing is said that it could refute.
    homes = sum(pool.nodes for pool in settings.node_pools if not taints_of(pool))
    if not homes:
        what = "one pool with a node must have neither GPUs nor capacity spot: etcd and the controller run there"
        yield Contradiction(("nodePools",), what)
    elif homes < settings.etcd.members:
        members: Location = ("etcd", "members")
        what = f"is {settings.etcd.members}, each on a machine of its own; without GPUs and not spot there are {homes}"
        yield Contradiction(members, what, setting(members, 1), (members, ("target",), ("nodePools",)))
    if (total := sum(pool.nodes for pool in settings.node_pools)) > LOCAL_NODES_MAX:
        yield Contradiction(("nodePools",), f"ask for {total} nodes; the local target has room for {LOCAL_NODES_MAX}")
