"""kfp, in a Python environment of its own: found, and called as a program."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.clusters import CHECKOUT
from infra.errors import TrainyardError
from infra.workflow.definition import Definition
from infra.workflow.errors import StepError

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
    done = _call(["compile", str(output), *options], definition, {})
    if done.returncode:
        raise StepError(f"kfp cannot compile workflow {definition.name}:\n{done.stderr.strip()}")


def run_pipeline(definition: Definition, run: str, folder: Path, variables: Mapping[str, str], *, show: bool) -> bool:
    """Run a workflow on this computer, step after step; whether all steps were done.

    Args:
        definition: the workflow.
        run: its name.
        folder: for what kfp itself keeps.
        variables: for the steps' environment.
        show: what kfp says, on stderr; otherwise it is in `kfp.log` in the folder.

    Raises:
        NoKfpError: there is no kfp.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # `python` in a command means the one that runs this.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = _call(["run", run, str(folder)], definition, {**variables, "PATH": path}, capture=not show)
    if not show:
        (folder / "kfp.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return done.returncode == 0


def _call(
    arguments: Sequence[str], definition: Definition, variables: Mapping[str, str], *, capture: bool = True
) -> subprocess.CompletedProcess[str]:
    interpreter = python()
    search = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [interpreter, "-m", "infra.workflow.pipeline", *arguments],
        env={**os.environ, **variables, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1"},
        input=definition.to_json(),
        stdout=subprocess.PIPE if capture else sys.stderr,
        stderr=subprocess.PIPE if capture else sys.stderr,
        text=True,
        check=False,
    )
