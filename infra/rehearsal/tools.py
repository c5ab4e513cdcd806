"""What the engine finds in a rehearsal instead of the real things: plugins, the `aws` command, a project of its own.

All of it is below the rehearsal's folder. The checkout, the user's Pulumi home, backend and login, and their AWS
credentials are not touched, nor read.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.local.engines.catalogue import CATALOGUE
from infra.local.engines.discovery import STAND_INS, plugin_path
from infra.local.engines.pulumi import PROVIDER, pulumi_environment
from infra.local.state import State
from infra.rehearsal import moto
from infra.rehearsal.connection import FOLDER_VARIABLE, Connection

HIDDEN_VARIABLES = ("AWS_", "PULUMI_", "KUBECONFIG", "TRAINYARD_STATE_DIR")
"""Beginnings of names of the user's variables that a rehearsed engine does not get."""
_ATTEMPTED, _APPLIED = "attempted.yaml", "applied.yaml"  # beside the stack file, of which they are copies
_EXECUTABLE = 0o700
_EXEC_VERSION = "client.authentication.k8s.io/v1beta1"
_LOCAL_HOSTS = "127.0.0.1,localhost"

_AWS = """\
#!/bin/sh
# The `aws` command of a rehearsal. It gives a token for the rehearsed cluster itself; whatever else is asked goes to
# the next `aws` on PATH, as long as the variables are the rehearsal's, which lead that to moto.
case " $* " in
*" eks get-token "*)
  case "$KUBERNETES_EXEC_INFO" in
  *client.authentication.k8s.io/v1\\"*)
    exec sed s,client.authentication.k8s.io/v1beta1,client.authentication.k8s.io/v1, {token} ;;
  *) exec cat {token} ;;
  esac ;;
esac
others=
set -f
IFS=:
for folder in $PATH; do
  [ "$folder" = {folder} ] || others="$others${{others:+:}}$folder"
done
unset IFS
if [ -z "$AWS_ENDPOINT_URL" ]; then
  echo "aws: this is the stand-in of a rehearsal, and AWS_ENDPOINT_URL is not set: open a new shell for AWS itself" >&2
elif [ -n "$others" ] && next=$(PATH=$others; command -v aws); then
  PATH=$others exec "$next" "$@"
else
  echo "aws: there is no AWS CLI on this computer, and this stand-in of a rehearsal answers only" \\
    "'aws eks get-token', not: aws $*. boto3 sees the rehearsal as well" >&2
fi
exit 252
"""


def install(state: State, kubeconfig: Path, checkout: Path, provider: Path) -> None:
    """Put everything in place; safe to repeat.

    Args:
        state: the rehearsal's folder.
        kubeconfig: the administrator's kubeconfig, with a client certificate.
        checkout: the folder of this project's Pulumi.yaml.
        provider: the real Kubernetes provider.
    """
    token = state.path("token.json")
    state.write(token, json.dumps(_credential(yaml.safe_load(kubeconfig.read_text()))))
    programs = state.path("bin")
    state.write(
        programs / "aws", _AWS.format(token=shlex.quote(str(token)), folder=shlex.quote(str(programs))), _EXECUTABLE
    )
    state.write(state.path("pulumi", "home", STAND_INS), "the plugins here are stand-ins of a rehearsal\n")
    aws = Path("plugins", f"resource-aws-v{importlib.metadata.version('pulumi-aws')}", "pulumi-resource-aws")
    _plugin(state, aws, checkout, ["infra.rehearsal.double"])
    kubernetes = plugin_path(CATALOGUE[PROVIDER])
    _plugin(state, kubernetes, checkout, ["infra.rehearsal.kubernetes_plugin", str(provider)])


def project_folder(state: State) -> Path:
    """Where the rehearsal's own project is."""
    return state.path("project")


def write_project(state: State, stack: str, checkout: Path, images: Mapping[str, str] | None = None) -> None:
    """A project of the same name and program whose stack file is the rehearsal's own: the engine writes into that.

    Args:
        state: the rehearsal's folder.
        stack: name of the stack.
        checkout: the folder of this project's Pulumi.yaml.
        images: what stands for images of the stack that were not built yet, by key of `trainyard:images`.
    """
    folder = project_folder(state)
    project = yaml.safe_load((checkout / "Pulumi.yaml").read_text())
    project["main"] = str(checkout / project.get("main", "."))
    options = project["runtime"].get("options", {})
    if "virtualenv" in options:
        options["virtualenv"] = str(checkout / options["virtualenv"])
    state.write(folder / "Pulumi.yaml", yaml.safe_dump(project, sort_keys=False))
    name = f"Pulumi.{stack}.yaml"
    settings = yaml.safe_load((checkout / name).read_text()) or {}
    config = settings.get("config", {})
    if images:
        config["trainyard:images"] = {**(config.get("trainyard:images") or {}), **images}
    content = {**_salt(folder / name), "config": config}
    state.write(folder / name, yaml.safe_dump(content, sort_keys=False))


def keep_attempted(state: State, stack: str) -> None:
    """Keep the settings that an `up` begins with apart from those of later previews."""
    _keep(state, stack, _ATTEMPTED)


def keep_applied(state: State, stack: str) -> None:
    """Keep the settings of an `up` that succeeded apart from those of later previews and failures."""
    _keep(state, stack, _APPLIED)


def switch_off_protection(state: State, stack: str) -> bool:
    """Make the rehearsal's own stack file what is up, with `trainyard:aws.protect: false`.

    People do the same before they remove a stack. What is up are the settings of the last `up` that succeeded (one
    that failed later is not gone on with: it would replace what it was refused), else of the last that began. Those
    of a preview are not: to apply them would make and replace things only to remove them.

    Returns:
        Whether it was on, so that this file is to be applied.
    """
    folder = project_folder(state)
    path = folder / f"Pulumi.{stack}.yaml"
    kept = [one for name in (_APPLIED, _ATTEMPTED) if (one := folder / name).exists()]
    configs = [yaml.safe_load(one.read_text())["config"] for one in kept or [path]]
    all_of_aws = [one for config in configs if isinstance(one := config.get("trainyard:aws"), dict)]
    if not any(settings.get("protect") for settings in all_of_aws):
        return False
    all_of_aws[0]["protect"] = False
    state.write(path, yaml.safe_dump({**_salt(path), "config": configs[0]}, sort_keys=False))
    return True


def environment(state: State, connection: Connection) -> dict[str, str]:
    """Variables with which the engine, and tools at a shell, see the stand-ins and nothing else."""
    variables = pulumi_environment(state.directory)
    path = f"{state.path('bin')}{os.pathsep}{variables['PATH']}"
    unproxied = {
        name: ",".join(filter(None, [os.environ.get(name, ""), _LOCAL_HOSTS])) for name in ("NO_PROXY", "no_proxy")
    }
    return {
        **variables,
        "PATH": path,
        **moto.aws_environment(connection.aws_endpoint_url, connection.region),
        **unproxied,
        FOLDER_VARIABLE: str(state.directory),
        "KUBECONFIG": str(connection.kubeconfig),
    }


def _keep(state: State, stack: str, name: str) -> None:
    folder = project_folder(state)
    state.write(folder / name, (folder / f"Pulumi.{stack}.yaml").read_text())


def _salt(stack_file: Path) -> dict[str, Any]:
    """What the engine has written into the rehearsal's stack file, which belongs to the rehearsal's own record."""
    try:
        written = yaml.safe_load(stack_file.read_text()) or {}
    except FileNotFoundError:
        return {}
    return {key: written[key] for key in ("encryptionsalt",) if key in written}


def _plugin(state: State, path: Path, checkout: Path, module: list[str]) -> None:
    """A plugin that is a module of this checkout."""
    command = " ".join(shlex.quote(part) for part in [sys.executable, "-m", *module])
    paths = shlex.quote(str(checkout))
    script = f'#!/bin/sh\nexport PYTHONPATH={paths}"${{PYTHONPATH:+:$PYTHONPATH}}"\nexec {command} "$@"\n'
    state.write(state.path("pulumi", "home") / path, script, _EXECUTABLE)


def _credential(kubeconfig: Mapping[str, Any]) -> dict[str, Any]:
    """What `aws eks get-token` prints, with the administrator's certificate where AWS would give a token."""
    (user,) = kubeconfig["users"]
    certificate, key = (_decoded(user["user"][name]) for name in ("client-certificate-data", "client-key-data"))
    return {
        "kind": "ExecCredential",
        "apiVersion": _EXEC_VERSION,
        "spec": {},
        "status": {"clientCertificateData": certificate, "clientKeyData": key},
    }


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
