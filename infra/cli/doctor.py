"""`doctor`: can this computer do it, and if not, what would help."""

from __future__ import annotations

import json as json_module
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import print_json, row, show, table

MEMORY_NEEDED_GIB = 6  # the whole local stack with the example job takes about 3
_ONE_OF = {"addresses": "address", "machines": "machine"}
DISK_NEEDED_GIB = 8  # Go modules and build cache 6, engines 1, state 1


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(doctor)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool | None
    """None where it could not be looked at."""
    found: str
    remedy: str = ""
    """What to do; empty where nothing is wrong."""

    @property
    def sign(self) -> str:
        """The verdict as one character."""
        return "·" if self.ok is None else "✓" if self.ok else "✗"


def doctor(
    stack: Annotated[
        str | None, typer.Option("-s", "--stack", help="Look also at what this stack needs, if it is on AWS.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Look at this computer: memory, engines and what building them takes, namespaces. Exit code 1 if one is missing.

    For a stack of target aws: the aws command, credentials, and the quotas of the account that the stack needs.

    Example: [bold]trainyard doctor --json[/bold], [bold]trainyard doctor -s prod[/bold]
    """
    engines = _engines()
    missing = [engine.what for engine in engines if engine.ok is False]
    findings = [*_machine(), *(_building(missing) if missing else ()), *engines, _namespaces()]
    findings += _aws(stack) if stack else []
    healthy = all(finding.ok is not False for finding in findings)
    if json:
        print_json({"healthy": healthy, "findings": [finding.__dict__ for finding in findings]})
    else:
        shown = table("", "what", "found", "remedy")
        for finding in findings:
            row(shown, finding.sign, finding.what, finding.found, finding.remedy)
        show(shown)
    if not healthy:
        raise typer.Exit(1)


def _machine() -> list[Finding]:
    import psutil  # noqa: PLC0415

    memory = psutil.virtual_memory().total / 2**30
    linux = sys.platform == "linux"
    return [
        Finding(
            "system",
            linux,
            f"{platform.system()} {platform.release()}",
            "" if linux else "the local cluster needs Linux; use target kubeconfig with kind, k3d or any cluster",
        ),
        Finding("python", True, platform.python_version()),
        Finding("processors", True, str(os.cpu_count())),
        Finding(
            "memory",
            memory >= MEMORY_NEEDED_GIB,
            f"{memory:.0f} GiB",
            "" if memory >= MEMORY_NEEDED_GIB else f"the local stack wants {MEMORY_NEEDED_GIB} GiB",
        ),
    ]


def _building(missing: list[str]) -> list[Finding]:
    """What building these engines takes."""
    from infra.local.engines.cache import engines_directory  # noqa: PLC0415
    from infra.local.engines.errors import EngineError  # noqa: PLC0415
    from infra.local.engines.go import find_go  # noqa: PLC0415

    try:
        go = Finding("go", True, find_go(missing).version)
    except EngineError as error:
        go = Finding("go", False, "missing or too old", str(error))
    folder = next(path for path in (engines_directory(), *engines_directory().parents) if path.exists())
    disk = shutil.disk_usage(folder).free / 2**30
    enough = disk >= DISK_NEEDED_GIB
    wanted = f"building the engines wants {DISK_NEEDED_GIB} GiB; free some, or set TRAINYARD_CACHE_DIR"
    return [go, Finding("disk", enough, f"{disk:.0f} GiB free at {folder}", "" if enough else wanted)]


def _engines() -> list[Finding]:
    from infra.local.engines.doctor import doctor_rows  # noqa: PLC0415

    return [
        Finding(
            engine.name,
            engine.origin != "missing",
            "; ".join([f"{engine.version} ({engine.origin})" if engine.path else "missing", *engine.passed_over]),
            "" if engine.path else " or ".join(["trainyard engines build", *filter(None, [engine.remedy])]),
        )
        for engine in doctor_rows()
    ]


def _namespaces() -> Finding:
    """Whether this user may give processes namespaces of their own, which the local cluster's pods need."""
    from infra.local.engines import locate  # noqa: PLC0415

    runtime = locate("process-runtime")
    if runtime is None:
        return Finding(
            "namespaces", None, "not looked at: the process runtime is not built yet", "trainyard engines build"
        )
    checked = subprocess.run([runtime.path, "check", "--json"], capture_output=True, text=True, check=False)
    told = json_module.loads(checked.stdout)
    remedy = "" if told["ok"] else told["message"]
    return Finding("namespaces", told["ok"], told["how"], remedy)


def _aws(stack: str) -> list[Finding]:
    """What an AWS stack needs of this computer and of the account; nothing for other stacks."""
    from infra.cli.workspace import Workspace, in_rehearsal  # noqa: PLC0415

    settings = Workspace.open(stack).settings
    if settings.aws is None:
        return []
    import boto3  # noqa: PLC0415 - half a second
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    from infra.settings.quotas import quotas_needed  # noqa: PLC0415

    command = shutil.which("aws")
    session, credentials = None, None
    missing = "none"
    remedy = f"aws sso login, or set AWS_PROFILE; without an account: trainyard up -s {stack} --rehearse"
    if in_rehearsal():
        missing = "not the account's: this shell has the variables of a rehearsal"
        remedy = "open a new shell to look at the account"
    else:
        try:
            session = boto3.session.Session(region_name=settings.aws.region)
            credentials = session.get_credentials()
        except BotoCoreError as error:  # a profile that is not there, a file that cannot be read
            missing = str(error)
    found = [
        Finding(
            "aws command",
            None if in_rehearsal() else command is not None,
            "the stand-in of a rehearsal" if in_rehearsal() else command or "missing",
            "" if command else "install AWS CLI 2: kubectl and the program get their tokens from it",
        ),
        Finding(
            "AWS credentials",
            credentials is not None,
            f"by {credentials.method}" if credentials else missing,
            "" if credentials else remedy,
        ),
    ]
    for quota in quotas_needed(settings):
        limit = _limit(session, quota.code) if credentials else None
        unit = _ONE_OF.get(quota.unit, quota.unit) if quota.needed == 1 else quota.unit
        needed = f"{quota.needed} {unit} needed in {quota.region}"
        enough = None if limit is None else limit >= quota.needed
        known = "not asked for" if not credentials else "could not be read" if limit is None else f"{limit:g} granted"
        raise_it = "" if enough else f"Service Quotas, EC2, {quota.code}: raise it days ahead"
        found.append(Finding(f"quota: {quota.name}", enough, f"{needed}; {known}", raise_it))
    return found


def _limit(session: Any, code: str) -> float | None:
    """What the account has of an EC2 quota; None where that cannot be asked (no right to, no network)."""
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    patience = Config(connect_timeout=3, read_timeout=10, retries={"max_attempts": 1})
    client = session.client("service-quotas", config=patience)
    try:
        return float(client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"])
    except (BotoCoreError, ClientError):
        return None
