"""One text that is kept up to date in place: found again by a hidden first line, and by who wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ci.failures import StepError
from ci.github import GitHub, UnclearError

MOST = 65_000
"""Characters; GitHub takes 65,536 of a comment or an issue."""
BOT = "github-actions[bot]"
"""Who writes with the token of a workflow."""
_MARKER = re.compile(r"<!-- trainyard [\w ./-]{1,230} -->")
_ATTEMPTS = 4


def marker_of(text: str) -> str:
    """The hidden first line of a text.

    Raises:
        StepError: it has none.
    """
    first = text.split("\n", 1)[0].strip()
    if not _MARKER.fullmatch(first):
        raise StepError(
            "the text does not begin with a line <!-- trainyard … -->, by which it would be found again:"
            " write it by `trainyard preview --report FILE`"
        )
    return first


def ours(found: Iterable[Mapping[str, Any]], marker: str, author: str) -> Iterator[Mapping[str, Any]]:
    """Those that begin with the marker and are by us: anybody can write a comment that begins so."""
    for one in found:
        begins = (one.get("body") or "").split("\n", 1)[0].strip() == marker
        if begins and (one.get("user") or {}).get("login") == author:
            yield one


def put_comment(github: GitHub, number: int, text: str, *, author: str = BOT) -> str:
    """Write the comment, or bring the one of before up to date; what is there twice goes.

    Args:
        github: the repository.
        number: of the pull request.
        text: begins with its marker.
        author: who we are.

    Returns:
        What was done: "created", "updated" or "unchanged".

    Raises:
        StepError: the text cannot be a comment, or GitHub refuses it.
    """
    marker = marker_of(text)
    if len(text) > MOST:
        raise StepError(f"the comment has {len(text):,} characters; GitHub takes {MOST:,}")
    for attempt in range(_ATTEMPTS):
        there = list(ours(github.pages(f"issues/{number}/comments"), marker, author))
        for twice in there[1:]:
            github.delete(f"issues/comments/{twice['id']}")
        if there:
            if there[0]["body"].replace("\r\n", "\n").strip() == text.strip():
                return "unchanged"
            github.change(f"issues/comments/{there[0]['id']}", {"body": text})
            return "updated"
        try:
            github.create(f"issues/{number}/comments", {"body": text})
        except UnclearError:
            if attempt == _ATTEMPTS - 1:
                raise
            continue  # it may be there: look again
        return "created"
    raise AssertionError("the last attempt returns or raises")


def put_issue(github: GitHub, title: str, text: str, *, author: str = BOT) -> str:
    """Open the issue, or bring the open one up to date.

    Returns:
        What was done: "created", "updated" or "unchanged".
    """
    marker = marker_of(text)
    for attempt in range(_ATTEMPTS):
        there = list(_issues(github, marker, author))
        if there:
            if there[0]["body"].replace("\r\n", "\n").strip() == text.strip():
                return "unchanged"
            github.change(f"issues/{there[0]['number']}", {"title": title, "body": text[:MOST]})
            return "updated"
        try:
            github.create("issues", {"title": title, "body": text[:MOST]})
        except UnclearError:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        return "created"
    raise AssertionError("the last attempt returns or raises")


def close_issue(github: GitHub, marker: str, *, author: str = BOT) -> int:
    """Close what is open of it; how many that were."""
    there = list(_issues(github, marker, author))
    for one in there:
        github.change(f"issues/{one['number']}", {"state": "closed", "state_reason": "completed"})
    return len(there)


def _issues(github: GitHub, marker: str, author: str) -> Iterator[Mapping[str, Any]]:
    found = github.pages("issues", state="open", sort="created", direction="asc")
    yield from ours((one for one in found if "pull_request" not in one), marker, author)
