"""`run`: a script of one's own as an ElasticJob; image, pool, sizes and storage come from the stack."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, stdout
from infra.cli.job_details import follow_logs
from infra.cli.jobs import wait_for_end
from infra.cli.template import ETCD, built_image, queue_of, require_name, worker_range
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError, UsageError

if TYPE_CHECKING:
    from infra.jobs import Jobs
    from infra.settings import NodePool

_LONGEST = timedelta(days=365)


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(run)


def run(
    script: Annotated[Path, typer.Argument(help="Python file; code of several files belongs in an image.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="For the script, behind `--`.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", help="The pool that it runs on; absent: every one with GPUs, on AWS the only one."),
    ] = None,
    workers: Annotated[
        str, typer.Option("--workers", metavar="MIN:MAX", help="How many machines; absent: 1 to all of the pool.")
    ] = "",
    image: Annotated[
        str | None, typer.Option("--image", help="The training image; absent: the stack's own for the pool.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the job; absent: the script's, with a number if it is taken.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Only submit it; otherwise its logs are shown to its end.")
    ] = False,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Train with a script on the machines of a stack, as an ElasticJob; /checkpoints is the stack's shared volume.

    Ctrl-C ends the output only: `trainyard logs JOB -f` shows it again, `trainyard cancel JOB` ends the job.

    Example: [bold]trainyard run train.py --workers 1:3 -- --epochs 3[/bold]
    """
    text = _read(script)
    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal("submit a file to the rehearsal: kubectl apply -f job.yaml")
    if name is not None:
        require_name(name)
    jobs = workspace.jobs()
    chosen = _free_name(jobs, name, script)
    from infra.wiring.script_job import SCRIPT_FOLDER, file_name, with_script  # noqa: PLC0415

    program = [f"{SCRIPT_FOLDER}/{file_name(script.name)}", *(arguments or [])]
    manifest = _manifest(workspace, pool, chosen, image, workers, program)
    config_map = f"{chosen}-script"
    jobs.create_with_script(with_script(manifest, config_map), _config_map(config_map, file_name(script.name), text))

    steps = Steps()
    spec = manifest["spec"]
    result: dict[str, Any] = {
        "job": chosen,
        "namespace": jobs.namespace,
        "image": spec["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"],
        "min": spec["minReplicas"],
        "max": spec["maxReplicas"],
        "state": "Submitted",
    }
    if not detach:
        steps.say(f"job {chosen}: {result['min']} to {result['max']} workers; Ctrl-C ends the output, not the job")
        if not json:
            follow_logs(workspace, jobs, chosen, json=False)
        result |= wait_for_end(workspace, jobs, chosen, _LONGEST, steps)
    if json:
        print_json(result)
    else:
        stdout().print(f"{chosen}: {result['state']} {result.get('message', '')}".rstrip(), markup=False)
    if result["state"] == "Failed":
        raise typer.Exit(1)


def _read(script: Path) -> str:
    from infra.wiring.script_job import SCRIPT_BYTES_MAX  # noqa: PLC0415

    try:
        content = script.read_bytes()
        text = content.decode()
        compile(text, str(script), "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{script} is not UTF-8 text, so no Python script") from None
    except SyntaxError as error:
        raise UsageError(f"{script}, line {error.lineno}: {error.msg}. Nothing was submitted.") from None
    except ValueError as error:  # zero bytes
        raise UsageError(f"{script} is no Python script: {error}") from None
    if len(content) > SCRIPT_BYTES_MAX:
        raise UsageError(
            f"{script} has {len(content) // 1024} KiB, and {SCRIPT_BYTES_MAX // 1024} can be handed to workers: put"
            " data on the volume /checkpoints, and code of several files into an image"
        )
    return text


def _free_name(jobs: Jobs, asked: str | None, script: Path) -> str:
    from infra.wiring.script_job import job_name  # noqa: PLC0415

    taken = {row["job"] for row in jobs.summaries()}
    if asked is not None:
        if asked in taken:
            raise TrainyardError(f"there is a job {asked} already: choose another --name, or trainyard cancel {asked}")
        return asked
    first = job_name(script.name)
    if first not in taken:
        return first
    number = 2
    while f"{first}-{number}" in taken:
        number += 1
    return f"{first}-{number}"


def _config_map(name: str, file: str, text: str) -> Any:
    from lightkube.models.meta_v1 import ObjectMeta  # noqa: PLC0415
    from lightkube.resources.core_v1 import ConfigMap  # noqa: PLC0415

    return ConfigMap(metadata=ObjectMeta(name=name), data={file: text}, immutable=True)


def _manifest(
    workspace: Workspace, pool: str | None, name: str, image: str | None, workers: str, program: list[str]
) -> dict[str, Any]:
    """The job of a program on the pool that was asked for, or on those that fit."""
    if workspace.settings.aws is not None:
        return _on_aws(workspace, pool, name, image, workers, program)
    if not workspace.is_local:
        raise UsageError(
            f"stack {workspace.stack} has target {workspace.settings.target}, whose machines it does not know. Write"
            " the job's file (training/examples/digits.yaml is one), and: trainyard submit"
        )
    from infra.wiring.script_job import LOCAL_IMAGE, local_job  # noqa: PLC0415

    pools = _local_pools(workspace, pool)
    least, most = worker_range(workers, sum(each.nodes for each in pools))
    return local_job(
        pools,
        name=name,
        image=image or LOCAL_IMAGE,
        namespace=workspace.settings.namespace,
        rdzv_endpoint=ETCD,
        workers_min=least,
        workers_max=most,
        arguments=program,
    )


def _local_pools(workspace: Workspace, name: str | None) -> list[NodePool]:
    pools = [pool for pool in workspace.settings.node_pools if pool.nodes]
    if name is not None:
        chosen = [pool for pool in pools if pool.name == name]
        if not chosen:
            raise UsageError(_no_pool(workspace.stack, name, [pool.name for pool in pools]))
        return chosen
    with_gpus = [pool for pool in pools if pool.gpus_per_node]
    if len({pool.gpus_per_node for pool in with_gpus}) > 1:
        names = ", ".join(f"{pool.name} ({pool.gpus_per_node})" for pool in with_gpus)
        raise UsageError(f"the pools have different numbers of GPUs: {names}. Choose one: --pool")
    return with_gpus or pools


def _on_aws(
    workspace: Workspace, pool: str | None, name: str, image: str | None, workers: str, program: list[str]
) -> dict[str, Any]:
    from infra.wiring.job_resources import standard_job  # noqa: PLC0415

    aws = workspace.settings.aws
    assert aws is not None  # noqa: S101 - asked before
    names = [each.name for each in aws.node_pools]
    if pool is None and len(names) != 1:
        raise UsageError(f"which pool of stack {workspace.stack}: --pool {'|'.join(names) or '(it has none)'}")
    chosen = next((each for each in aws.node_pools if pool in (None, each.name)), None)
    if chosen is None:
        raise UsageError(_no_pool(workspace.stack, pool, names))
    least, most = worker_range(workers, chosen.max)
    return standard_job(
        chosen,
        name=name,
        image=image or built_image(workspace, chosen),
        namespace=workspace.settings.namespace,
        rdzv_endpoint=ETCD,
        workers_min=least,
        workers_max=most,
        arguments=program,
        queue=queue_of(aws, chosen),
    )


def _no_pool(stack: str, name: str | None, names: list[str]) -> str:
    return f"stack {stack} has no pool {name!r}; its pools: {', '.join(names) or 'none'}"
