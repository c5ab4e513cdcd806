"""`trainyard template`: a job that fits a pool of the stack, ready to be edited and submitted."""

from __future__ import annotations

import difflib
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.console import print_json, row, show, stdout, table
from infra.cli.workspace import Workspace
from infra.errors import UsageError

if TYPE_CHECKING:
    from infra.settings.aws import Aws, AwsNodePool

ETCD = "etcd.trainyard-system:2379"
"""Where the jobs of every stack find their rendezvous (the stack's output `rdzvEndpoint`)."""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(template)


def template(
    pool: Annotated[
        str | None, typer.Argument(metavar="[POOL]", help="The pool that the job fills; without it, the pools.")
    ] = None,
    stack: options.Stack = "dev",
    image: Annotated[
        str | None,
        typer.Option("--image", help="The training image; absent: what `images build` has pushed for the pool."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the job.")] = "train",
    workers: Annotated[
        str, typer.Option("--workers", metavar="MIN:MAX", help="How many machines; absent: 1 to all of the pool.")
    ] = "",
    json: options.Json = False,
) -> None:
    """Print an ElasticJob that asks for exactly what a machine of a pool offers: GPUs, EFA, hugepages, memory, grace.

    The image is the one for the pool's GPUs and fabric, by digest, from the stack's image lock.

    Example: [bold]trainyard template gpu-spot -s prod > job.yaml[/bold]
    """
    workspace = Workspace.open(stack)
    aws = workspace.settings.aws
    if aws is None:
        raise UsageError(
            f"jobs are made from the pools of AWS stacks; stack {stack} has target {workspace.settings.target}. For it"
            " take training/examples/digits.yaml, or name an AWS stack: -s"
        )
    if pool is None:
        _list(workspace, aws, json=json)
        return
    chosen = _pool(aws, pool, stack)
    if image is None:
        image = built_image(workspace, chosen)
    if image.split() != [image]:
        raise UsageError(f"--image is {image!r}: must be one reference, as in registry.example/training@sha256:…")
    require_name(name)
    from infra.wiring.job_resources import standard_job  # noqa: PLC0415

    least, most = worker_range(workers, chosen.max)
    job = standard_job(
        chosen,
        name=name,
        image=image,
        namespace=workspace.settings.namespace,
        rdzv_endpoint=ETCD,
        workers_min=least,
        workers_max=most,
        queue=queue_of(aws, chosen),
    )
    if json:
        print_json(job)
        return
    import yaml  # noqa: PLC0415

    sys.stdout.write(yaml.safe_dump(job, sort_keys=False))


def built_image(workspace: Workspace, pool: AwsNodePool) -> str:
    """The image that was built for a pool.

    Raises:
        UsageError: none was.
    """
    from infra.settings.image_lock import build_command  # noqa: PLC0415
    from infra.wiring.images import row_for_pool  # noqa: PLC0415

    stack, wanted = workspace.stack, row_for_pool(pool, workspace.settings.images.torch).name
    if found := workspace.image_lock().images.get(wanted):
        return found
    raise UsageError(
        f"which image? Pool {pool.name} runs {wanted}, and images.{stack}.toml has none: it was not built yet."
        f" Build it: {build_command(stack)}. Or name one: --image"
    )


def _list(workspace: Workspace, aws: Aws, *, json: bool) -> None:
    from infra.settings.image_lock import build_command  # noqa: PLC0415
    from infra.wiring.images import row_for_pool  # noqa: PLC0415
    from infra.wiring.job_resources import job_resources  # noqa: PLC0415

    built, stack = workspace.image_lock().images, workspace.stack
    rows = {pool.name: row_for_pool(pool, workspace.settings.images.torch).name for pool in aws.node_pools}
    offers = [(pool, job_resources(pool)) for pool in aws.node_pools]
    if json:
        document = [
            {
                "pool": pool.name,
                "types": list(pool.types),
                "capacity": pool.capacity,
                "machines": [pool.min, pool.max],
                "worker": offer.requests(),
                "image_row": rows[pool.name],
                "image": built.get(rows[pool.name]),
            }
            for pool, offer in offers
        ]
        print_json({"stack": stack, "pools": document})
        return
    shown = table("pool", "types", "capacity", "machines", "GPUs", "EFA", "memory", "image")
    for pool, offer in offers:
        machines, memory = f"{pool.min} to {pool.max}", f"{offer.memory_mib / 1024:.0f} GiB"
        types, image = ", ".join(pool.types), rows[pool.name]
        row(shown, pool.name, types, pool.capacity, machines, offer.gpus, offer.efa, memory, image)
    show(shown)
    stdout().print("One worker has a machine to itself; these are its GPUs, EFA interfaces and memory.")
    if missing := sorted(set(rows.values()) - set(built)):
        stdout().print(f"Not built yet: {', '.join(missing)}. Build: {build_command(stack)}", markup=False)


def _pool(aws: Aws, name: str, stack: str) -> AwsNodePool:
    for pool in aws.node_pools:
        if pool.name == name:
            return pool
    names = [pool.name for pool in aws.node_pools]
    close = difflib.get_close_matches(name, names, n=1)
    raise UsageError(
        f"stack {stack} has no pool {name!r}"
        + (f"; did you mean {close[0]!r}?" if close else f"; its pools: {', '.join(names) or 'none'}")
    )


def require_name(name: str) -> None:
    """Before a job is made: can it have this name?

    Raises:
        UsageError: it cannot.
    """
    from training.controller.api import MAX_NAME_LENGTH  # noqa: PLC0415

    if len(name) > MAX_NAME_LENGTH or not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise UsageError(
            f"--name is {name!r}: must be at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens, must begin"
            " with a letter and end with a letter or digit; host names of the workers are made from it"
        )


def worker_range(text: str, machines: int) -> tuple[int, int]:
    """Fewest and most workers, of `MIN:MAX` or one number; of no text 1 and all machines.

    Raises:
        UsageError: it is neither.
    """
    if not text:
        return 1, machines
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most.isdecimal() or not most)):
        raise UsageError(f"--workers is {text!r}: must be one number or two with a colon between, for example 2:8")
    return int(least), int(most or least)


def queue_of(aws: Aws, pool: AwsNodePool) -> str | None:
    """The queue that owns a pool; None where the stack has no queues."""
    from infra.wiring.queue_plan import queue_plan  # noqa: PLC0415

    plan = queue_plan(aws)
    return next((queue.name for queue in plan.queues if pool.name in queue.own), None) if plan else None
