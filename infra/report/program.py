"""What the program of a stack asks for, without an engine: of the checkout as it is, or of a revision of git.

It takes two seconds and no account, where a preview takes several and engines. A stack that is up may differ from it:
only a preview looks at that.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from infra.clusters import CHECKOUT, STATE_VARIABLE
from infra.errors import TrainyardError, UsageError
from infra.report.preview import Resource
from infra.report.secrets import scrub

RECORDER = Path(__file__).with_name("recorder.py")
_TIMEOUT = 600  # seconds; a run takes two
_REFUSED = 3  # the recorder's exit code where the program itself says no


class ProgramError(TrainyardError):
    """The program could not be run."""


def resources_of(stack: str, folder: Path = CHECKOUT) -> tuple[Resource, ...]:
    """The resources that a stack's program asks for.

    Args:
        stack: its name.
        folder: that of Pulumi.yaml.

    Raises:
        ProgramError: the program refused, or broke.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-record-") as scratch:
        out, state = Path(scratch, "resources.json"), Path(scratch, "state")
        state.mkdir()
        (state / "kubeconfig").write_text("{}")  # the local target looks whether its cluster is there
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PULUMI_", "AWS_"))}
        environment |= {STATE_VARIABLE: str(state), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}
        try:
            # -P: the recorder's folder has modules that are named like Python's own
            done = subprocess.run(
                [sys.executable, "-P", str(RECORDER), str(folder), stack, str(out)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProgramError(f"the program of stack {stack} did not end within {_TIMEOUT} seconds") from None
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip() or f"it ended with code {done.returncode}"
            shown = said if done.returncode == _REFUSED else "\n".join(said.splitlines()[-8:])
            raise ProgramError(f"the program of stack {stack} says:\n{shown}")
        recorded = json.loads(out.read_text(encoding="utf-8"))
    return tuple(
        Resource(
            urn=one["urn"],
            type=one["type"],
            name=one["name"],
            inputs=scrub(one["inputs"]),
            id=one["id"],
            parent=one["parent"] or None,
            provider=one["provider"],
            protect=one["protect"],
            custom=one["custom"],
        )
        for one in recorded
    )


@contextlib.contextmanager
def at_revision(revision: str, stack: str, checkout: Path = CHECKOUT) -> Iterator[Path]:
    """The checkout as it was at a revision of git, in a temporary folder.

    Args:
        revision: whatever git takes for a commit: `main`, `HEAD~1`.
        stack: must have been there.
        checkout: where the repository is looked for.

    Raises:
        UsageError: git does not know the revision, or the stack was not there.
        ProgramError: git failed.
    """
    commit = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise UsageError(f"git knows no revision {revision!r} in {checkout}: name a branch, a tag or a commit")
    with tempfile.TemporaryDirectory(prefix="trainyard-revision-") as scratch:
        archive, folder = Path(scratch, "files.tar"), Path(scratch, "checkout")
        if _git(checkout, "archive", "--format=tar", f"--output={archive}", commit.strip()) is None:
            raise ProgramError(f"git could not read the files of {revision}: `git -C {checkout} fsck` says more")
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        if not (folder / f"Pulumi.{stack}.yaml").is_file():
            known = sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in folder.glob("Pulumi.*.yaml"))
            raise UsageError(f"at {revision} there is no stack {stack}; there are: {', '.join(known) or 'none'}")
        yield folder


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ProgramError("git is not installed: --against needs it to read the files of a revision") from None
    return done.stdout if done.returncode == 0 else None
