"""kfp, in a Python environment of its own: found, and called as a program."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.clusters import CHECKOUT
from infra.errors import TrainyardError
from infra.workflow.definition import Definition
from infra.workflow.errors import StepError
from infra.workflow.steps import STEPS

PYTHON_VARIABLE = "TRAINYARD_WORKFLOW_PYTHON"


class NoKfpError(TrainyardError):
    """There is no kfp on this computer."""

    exit_code = 2


def python() -> str:
    """The interpreter that has kfp: the one that is named, this one, or that of `.venv-workflow`.

    Raises:
        NoKfpError: none has.
    """
    if named := os.environ.get(PYTHON_VARIABLE):
        return named
    if importlib.util.find_spec("kfp") is not None:
        return sys.executable
    own = CHECKOUT / ".venv-workflow/bin/python"
    if own.exists():
        return str(own)
    raise NoKfpError(
        "workflows need kfp, in an environment of its own: make .venv-workflow/installed"
        f" (or name an interpreter that has requirements/workflow.txt: export {PYTHON_VARIABLE}=<path>)"
    )


def compile_pipeline(
    definition: Definition, output: Path, *, image: str, claim: str, volume: str, namespace: str | None
) -> None:
    """Write the pipeline of a workflow.

    Args:
        definition: the workflow.
        output: YAML file.
        image: of the steps' pods.
        claim: the PersistentVolumeClaim of the stack's shared volume.
        volume: where pods see it.
        namespace: write objects of Kubernetes for this namespace; None: the form that the pipeline service takes.

    Raises:
        NoKfpError: there is no kfp.
        StepError: kfp refuses.
    """
    options = ["--image", image, "--claim", claim, "--volume", volume]
    options += ["--namespace", namespace] if namespace else []
    done = subprocess.run(
        _command("compile", str(output), *options),
        env=_environment(),
        input=definition.to_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StepError(f"kfp cannot compile workflow {definition.name}:\n{done.stderr.strip()}")


def run_pipeline(
    definition: Definition, run: str, folder: Path, variables: Mapping[str, str], tell: Callable[[str], None]
) -> bool:
    """Run a workflow on this computer, step after step; whether all steps were done.

    Args:
        definition: the workflow.
        run: its name.
        folder: for what kfp itself keeps; `kfp.log` there has all that was said.
        variables: for the steps' environment.
        tell: told what the steps say.

    Raises:
        NoKfpError: there is no kfp.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # `python` in a command means the one that runs this.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**_environment(), **variables, "PATH": path}
    with (
        (folder / "kfp.log").open("a", encoding="utf-8") as log,
        subprocess.Popen(
            _command("run", run, str(folder)),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - they are pipes
        process.stdin.write(definition.to_json())
        process.stdin.close()
        for line in process.stdout:
            log.write(line)
            if line.strip().startswith(tuple(f"{step}: " for step in STEPS)):
                tell(line.strip())
    return process.returncode == 0


def _command(*arguments: str) -> list[str]:
    return [python(), "-m", "infra.workflow.pipeline", *arguments]


def _environment() -> dict[str, str]:
    search = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1"}
