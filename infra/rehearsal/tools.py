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
_EXECUTABLE = 0o700
_EXEC_VERSION = "client.authentication.k8s.io/v1beta1"
_LOCAL_HOSTS = "127.0.0.1,localhost"

_AWS = """\
#!/bin/sh
# The `aws` command of a rehearsal: it gives a token for the rehearsed cluster, and does nothing else.
case " $* " in
*" eks get-token "*)
  case "$KUBERNETES_EXEC_INFO" in
  *client.authentication.k8s.io/v1\\"*) exec sed s,client.authentication.k8s.io/v1beta1,client.authentication.k8s.io/v1, {token} ;;
  *) exec cat {token} ;;
  esac ;;
esac
echo "aws: this is the stand-in of a rehearsal and answers only 'aws eks get-token', not: aws $*" >&2
exit 252
"""  # noqa: E501 - a line of shell


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
    state.write(state.path("bin", "aws"), _AWS.format(token=shlex.quote(str(token))), _EXECUTABLE)
    state.write(state.path("pulumi", "home", STAND_INS), "the plugins here are stand-ins of a rehearsal\n")
    aws = Path("plugins", f"resource-aws-v{importlib.metadata.version('pulumi-aws')}", "pulumi-resource-aws")
    _plugin(state, aws, checkout, ["infra.rehearsal.double"])
    kubernetes = plugin_path(CATALOGUE[PROVIDER])
    _plugin(state, kubernetes, checkout, ["infra.rehearsal.kubernetes_plugin", str(provider)])


def project_folder(state: State) -> Path:
    """Where the rehearsal's own project is."""
    return state.path("project")


def write_project(state: State, stack: str, checkout: Path) -> None:
    """A project of the same name and program whose stack file is the rehearsal's own: the engine writes into that."""
    folder = project_folder(state)
    project = yaml.safe_load((checkout / "Pulumi.yaml").read_text())
    project["main"] = str(checkout / project.get("main", "."))
    options = project["runtime"].get("options", {})
    if "virtualenv" in options:
        options["virtualenv"] = str(checkout / options["virtualenv"])
    state.write(folder / "Pulumi.yaml", yaml.safe_dump(project, sort_keys=False))
    name = f"Pulumi.{stack}.yaml"
    settings = yaml.safe_load((checkout / name).read_text()) or {}
    try:
        earlier = yaml.safe_load((folder / name).read_text()) or {}
    except FileNotFoundError:
        earlier = {}
    salt = {key: earlier[key] for key in ("encryptionsalt",) if key in earlier}  # belongs to the rehearsal's own record
    state.write(folder / name, yaml.safe_dump({**salt, "config": settings.get("config", {})}, sort_keys=False))


def switch_off_protection(state: State, stack: str) -> bool:
    """Set `trainyard:aws.protect` to false in the rehearsal's own stack file, as people do before they remove a stack.

    Returns:
        Whether it was on.
    """
    path = project_folder(state) / f"Pulumi.{stack}.yaml"
    content = yaml.safe_load(path.read_text())
    settings = content["config"].get("trainyard:aws")
    if not (isinstance(settings, dict) and settings.get("protect")):
        return False
    settings["protect"] = False
    state.write(path, yaml.safe_dump(content, sort_keys=False))
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
