"""Post what the workflow of a fork's pull request has handed over. This runs with a token that may write.

    python -m ci.handed_over

The fork's code made the artifact, so nothing of it is believed: it is read in memory with limits, nothing of it is
executed, unpacked to disk or rendered by a template; the pull request that it claims must be an open one whose head is
the commit of the run, by GitHub's own word; its text is made harmless (`ci.untrusted`) and marked as the fork's.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.failures import StepError, end
from ci.github import GitHub
from ci.stacks import NAME, project
from ci.sticky import put_comment
from ci.untrusted import harmless

ARTIFACT = "fork-preview-"
"""How the names of artifacts begin; a stack follows."""
MOST_ARTIFACTS = 20
MOST_BYTES = 1 << 20  # of an artifact, packed
_MOST_TEXT = 400_000  # bytes of the report: 59,000 characters, at most four bytes each, and room to say so
_CLAIM, _REPORT = "pull-request.json", "report.md"
_SHA = re.compile(r"[0-9a-f]{40}")
_NOTICE = (
    "> [!IMPORTANT]\n"
    "> This pull request comes from a fork. **The fork's own code wrote what follows**, by rehearsal, without an"
    " account or secrets. Nobody has checked it: read the diff before you believe it.\n"
)


@dataclass(frozen=True)
class Run:
    """The run of the untrusted workflow, as GitHub tells it."""

    id: int
    head_sha: str
    head_repository: str
    head_branch: str

    @classmethod
    def of_event(cls, event: Any, repository: str) -> Run:
        """From the event `workflow_run`.

        Raises:
            StepError: it is no run about a pull request of a fork.
        """
        try:
            run = event["workflow_run"]
            found = cls(
                int(run["id"]),
                str(run["head_sha"]),
                str(run["head_repository"]["full_name"]),
                str(run["head_branch"]),
            )
            kind = run["event"]
        except (LookupError, TypeError, ValueError) as error:
            raise StepError("this is no event `workflow_run`") from error
        if kind != "pull_request" or not _SHA.fullmatch(found.head_sha):
            raise StepError(f"the run was started by {kind!r}, not by a pull request: nothing is posted")
        if found.head_repository.lower() == repository.lower():
            raise StepError("the run is about a branch of this repository; its own workflow posts that")
        return found


def pull_request(github: GitHub, run: Run, claimed: int) -> int | None:
    """The claimed pull request, if GitHub says that it is the one of the run.

    Returns:
        Its number; None if it was closed or has moved on meanwhile: there is nothing to say then.

    Raises:
        StepError: the claim is false.
    """
    found = github.get(f"pulls/{claimed}")
    head = found["head"]
    theirs = ((head.get("repo") or {}).get("full_name") or "").lower() == run.head_repository.lower()
    here = (found["base"]["repo"]["full_name"] or "").lower() == github.repository.lower()
    if not (theirs and here and head["ref"] == run.head_branch):
        raise StepError(f"the artifact claims pull request {claimed}, which is not that of the run: nothing is posted")
    if found["state"] != "open" or head["sha"] != run.head_sha:
        return None
    return claimed


def read(content: bytes) -> tuple[int, str]:
    """The claimed number and the report in an artifact.

    Raises:
        StepError: it is not made as ours are.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            members = {one.filename: one for one in packed.infolist()}
            if sorted(members) != sorted((_CLAIM, _REPORT)) or len(packed.infolist()) != 2:
                raise StepError(f"the artifact holds other files than {_CLAIM} and {_REPORT}")
            claim = _member(packed, members[_CLAIM], 1_000)
            report = _member(packed, members[_REPORT], _MOST_TEXT)
        number = json.loads(claim)["number"]
        text = report.decode("utf-8")
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise StepError(f"the artifact cannot be read: {error}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StepError("the artifact's files are not what they should be") from error
    if type(number) is not int or not 0 < number < 10**9:
        raise StepError("the artifact claims a pull request whose number is none")
    return number, text


def _member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
    """The content of a file, with a limit on what really comes out: the size in the archive is a claim as well.

    GitHub's archives are deflated; LZMA would be given as much memory as the archive asks for.
    """
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise StepError(f"{member.filename} is packed otherwise than GitHub does")
    with packed.open(member) as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise StepError(f"{member.filename} has more than {most:,} bytes")
    return content


def comment(stack: str, of_project: str, text: str) -> str:
    """What is posted: our own first line and notice, then the fork's text."""
    try:
        body = harmless(text)
    except ValueError as error:
        raise StepError(f"the report of {stack} is not posted: {error}") from error
    return f"<!-- trainyard preview {of_project}/{stack} -->\n{_NOTICE}\n{body}\n"


def main() -> int:
    """Post each report of the run."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    github = GitHub.of_workflow()
    try:
        event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes())
    except (OSError, LookupError, ValueError) as error:
        raise StepError("GITHUB_EVENT_PATH names no event") from error
    run = Run.of_event(event, github.repository)
    problems = []
    posted: set[str] = set()
    for artifact in github.pages(f"actions/runs/{run.id}/artifacts", key="artifacts"):
        name = str(artifact["name"])
        stack = name.removeprefix(ARTIFACT)
        if stack == name:
            continue
        try:
            said = _post(github, run, artifact, stack, posted)
        except StepError as error:
            said = str(error)
            problems.append(said)
        print(f"{stack if NAME.fullmatch(stack) else 'an artifact'}: {said}")
    if problems:
        raise StepError(f"not everything was posted: {len(problems)} of the artifacts are not what they should be")
    return 0


def _post(github: GitHub, run: Run, artifact: Any, stack: str, posted: set[str]) -> str:
    if not NAME.fullmatch(stack):
        raise StepError("the artifact's name ends with no name of a stack")
    if stack in posted or len(posted) >= MOST_ARTIFACTS:
        raise StepError(f"there are more than {MOST_ARTIFACTS} artifacts, or two of one name")
    posted.add(stack)
    if int(artifact["size_in_bytes"]) > MOST_BYTES:
        raise StepError(f"the artifact has more than {MOST_BYTES:,} bytes")
    claimed, text = read(github.download(f"actions/artifacts/{int(artifact['id'])}/zip", MOST_BYTES))
    number = pull_request(github, run, claimed)
    if number is None:
        return "the pull request was closed, or has newer commits: nothing to post"
    return put_comment(github, number, comment(stack, project(), text))


if __name__ == "__main__":
    end(main)
