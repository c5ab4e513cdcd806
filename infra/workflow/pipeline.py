"""A workflow as a pipeline of kfp: run here, step after step as processes, or compiled for Kubeflow Pipelines.

    python -m infra.workflow.pipeline run RUN FOLDER         < definition.json
    python -m infra.workflow.pipeline compile OUTPUT OPTIONS < definition.json

Needs requirements/workflow.txt, whose protobuf is not that of the policy pack: an environment of its own
(`make .venv-workflow/installed`), with which `trainyard workflow` calls this.

Functions of components are taken out of this module as text, so they import what they need, and their annotations must
be types.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Final

from kfp import compiler, dsl, kubernetes, local
from kfp.compiler.compiler_utils import KubernetesManifestOptions

from infra.workflow.definition import Definition

# What others would replace in a definition on its way, and how JSON writes it so that they don't: the local runner puts
# its interpreter's path for every "python3", the kubelet a variable for $(NAME), Argo a value for {{name}}.
_ESCAPES: Final = {"python3": "\\u0070ython3", "$": "\\u0024", "{{": "\\u007b\\u007b"}


def prepare(definition: str, run: str) -> str:
    """Make what the job reads."""
    from infra.workflow.steps import perform  # noqa: PLC0415

    perform("prepare", definition, run)
    return run


def train(definition: str, run: str) -> str:
    """Submit the ElasticJob and follow it to its end."""
    from infra.workflow.steps import perform  # noqa: PLC0415

    return str(perform("train", definition, run)["job"])


def evaluate(definition: str, run: str, metrics: dsl.Output[dsl.Metrics]) -> None:
    """Measure the model."""
    from infra.workflow.steps import perform  # noqa: PLC0415

    for name, value in perform("evaluate", definition, run)["metrics"].items():
        metrics.log_metric(name, value)


def publish(definition: str, run: str) -> str:
    """Make the model the current one, if the gate holds."""
    from infra.workflow.steps import perform  # noqa: PLC0415

    return str(perform("publish", definition, run)["version"])


def pipeline_of(definition: Definition, *, image: str, claim: str, volume: str) -> Any:
    """The pipeline of a workflow; its one parameter is the name of the run.

    Args:
        definition: the workflow.
        image: of the steps' pods: holds kfp, this project and what the commands need.
        claim: the PersistentVolumeClaim of the stack's shared volume.
        volume: where the pods see it.
    """
    text = definition.to_json()
    for plain, escaped in _ESCAPES.items():
        text = text.replace(plain, escaped)
    steps = [
        dsl.component(function, base_image=image, install_kfp_package=False)
        for function in (prepare, train, evaluate, publish)
    ]

    @dsl.pipeline(name=definition.name, description=f"Trains, measures and publishes {definition.name}.")  # type: ignore[untyped-decorator]
    def workflow(run: str) -> None:
        before = None
        for step in steps:
            task = step(definition=text, run=run)
            # A run's own records decide what is done already.
            task.set_caching_options(enable_caching=False)
            kubernetes.mount_pvc(task, pvc_name=claim, mount_path=volume)
            if before is not None:
                task.after(before)
            before = task

    return workflow


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m infra.workflow.pipeline")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("run")
    running.add_argument("folder", type=Path, help="for what the engine itself keeps")
    compiling = commands.add_parser("compile")
    compiling.add_argument("output", type=Path)
    compiling.add_argument("--namespace", help="as objects of Kubernetes in this namespace")
    for each in (running, compiling):
        each.add_argument("--image", default="python")
        each.add_argument("--claim", default="checkpoints")
        each.add_argument("--volume", default="/checkpoints")
    args = parser.parse_args()
    definition = Definition.model_validate_json(sys.stdin.read())
    made = pipeline_of(definition, image=args.image, claim=args.claim, volume=args.volume)
    if args.command == "compile":
        options = KubernetesManifestOptions(namespace=args.namespace, include_pipeline_manifest=True)
        objects = {"kubernetes_manifest_format": True, "kubernetes_manifest_options": options} if args.namespace else {}
        compiler.Compiler().compile(made, package_path=str(args.output), **objects)
        return 0
    logging.getLogger().setLevel(logging.WARNING)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(args.folder))
    try:
        made(run=args.run)
    except RuntimeError as error:  # a step failed: it has said why, and put it on record
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
