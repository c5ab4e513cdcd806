"""What becomes of a preview: tables, one JSON document, Markdown for a pull request, SARIF, an exit code."""

from __future__ import annotations

import codecs
import json as json_module
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli.console import print_json, stderr
from infra.cli.files import write
from infra.errors import TrainyardError, UsageError

if TYPE_CHECKING:
    from infra.report.model import Report
    from infra.report.preview import Preview

OWN_PACK = "trainyard"
"""Name of this project's pack of policies, as the engine tells it."""
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="A saved preview instead of a new one: `pulumi preview --json`, or its events; - for stdin.",
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the report as Markdown, short enough for a comment. Where that cuts it, FILE.full has all.",
    ),
]
Sarif = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Write the policy results as SARIF, for code scanning.")
]
FailOn = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        metavar="WHAT",
        help="End with code 1 because of: incomplete, policy, version, known-bad, with commas between; none.",
        show_default="all of them",
    ),
]
Utilisation = Annotated[
    float | None,
    typer.Option(
        "--utilisation",
        metavar="SHARE",
        help="Share of the time, 0 to 1, in which pools have all their machines; for the cost of a month.",
        show_default="0.5",
    ),
]


@dataclass(frozen=True)
class Wanted:
    """What the user wants of a report."""

    markdown: Path | None
    sarif: Path | None
    json: bool
    fail_on: frozenset[str]
    utilisation: Decimal

    @classmethod
    def of(
        cls,
        *,
        markdown: Path | None = None,
        sarif: Path | None = None,
        json: bool = False,
        fail_on: str | None = None,
        utilisation: float | None = None,
    ) -> Wanted:
        """Check it before anything takes time.

        Raises:
            UsageError: an option's value is none, or a file cannot be written.
        """
        from infra.report.cost import DEFAULT_UTILISATION  # noqa: PLC0415

        for file in (markdown, sarif):
            if file is not None and (file.is_dir() or not os.access(file.absolute().parent, os.W_OK)):
                raise UsageError(f"{file} cannot be written: name a file in a folder that is there and is yours")
        if utilisation is not None and not 0 <= utilisation <= 1:
            raise UsageError(f"--utilisation is {utilisation:g}: it is a share of the time, from 0 to 1")
        share = DEFAULT_UTILISATION if utilisation is None else Decimal(str(utilisation))
        return cls(markdown, sarif, json, failing(fail_on), share)


def failing(text: str | None) -> frozenset[str]:
    """What a change is refused for.

    Raises:
        UsageError: a word that is none of them.
    """
    from infra.report.model import FAILING  # noqa: PLC0415

    if text is None:
        return frozenset(FAILING)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return frozenset()
    wrong = [word for word in words if word not in FAILING]
    if wrong or not words:
        raise UsageError(f"--fail-on is {text!r}: it takes {', '.join(FAILING)}, with commas between, or none alone")
    return frozenset(words)


def read(source: str, *, rehearsal: bool, stack: str) -> Preview:
    """A preview from a file or, with `-`, from stdin.

    Raises:
        UsageError: the file cannot be read, or it is no preview.
    """
    from infra.report.preview import ReportError, from_text  # noqa: PLC0415

    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None
    try:
        return from_text(_decoded(content), rehearsal=rehearsal, stack=stack)
    except ReportError as error:
        raise ReportError(f"{'stdin' if source == '-' else source}: {error}") from None


def deliver(preview: Preview, wanted: Wanted, *, note: str = "", failed: TrainyardError | None = None) -> None:
    """Write and show the report about a preview.

    Args:
        preview: what the engine said.
        wanted: what the user wants of it.
        note: a sentence of whoever ran it.
        failed: how the engine's run ended, if not well; raised at the end unless the report tells all of it.

    Raises:
        typer.Exit: with code 1, the change is refused.
        TrainyardError: `failed`.
    """
    from datetime import UTC, datetime  # noqa: PLC0415

    from infra.report.model import build  # noqa: PLC0415

    report = build(_advised(preview), note=note, utilisation=wanted.utilisation, today=datetime.now(UTC).date())
    write_files([report], wanted)
    if wanted.json:
        from infra.report.document import document  # noqa: PLC0415

        print_json(document(report))
    else:
        from infra.cli.report_shown import show_report  # noqa: PLC0415

        show_report(report, wanted.fail_on, errors=failed is None)
    refused = report.fails(wanted.fail_on)
    if failed and (refused or not report.failures):
        raise failed
    if refused:
        raise typer.Exit(1)


def _advised(preview: Preview) -> Preview:
    """The preview with what this project's own rules advise."""
    if not preview.policies:
        return preview
    from infra.report.preview import with_advice  # noqa: PLC0415
    from policies.rules import all_rules  # noqa: PLC0415 - the catalogue behind it is read

    return with_advice(preview, OWN_PACK, {name: rule.steps for name, rule in all_rules().items()})


def write_files(reports: Sequence[Report], wanted: Wanted) -> None:
    """Write the files that the user wants, and say which."""
    written: list[Path] = []
    if wanted.markdown:
        written += write_markdown(reports, wanted.markdown, wanted.fail_on)
    if wanted.sarif:
        from infra.report.sarif import sarif  # noqa: PLC0415

        write(wanted.sarif, json_module.dumps(sarif(reports), indent=2, ensure_ascii=False) + "\n")
        written.append(wanted.sarif)
    for file in written:
        stderr().print(f"written: {file}", markup=False)


def write_markdown(reports: Sequence[Report], file: Path, on: Collection[str]) -> list[Path]:
    """Write a report that fits into a comment, and beside it one with everything where that has been cut.

    Returns:
        The files written.
    """
    from infra.report.markdown import MOST, markdown  # noqa: PLC0415

    whole = file.with_name(f"{file.stem}.full{file.suffix}")
    everything = markdown(reports, most=None, on=on)
    if len(everything) <= MOST:
        write(file, everything)
        whole.unlink(missing_ok=True)  # of an earlier report
        return [file]
    where = f"All of it is in {whole.name}, which the workflow keeps as an artifact."
    write(whole, everything)
    write(file, markdown(reports, on=on, full_text=where))
    return [file, whole]


def _decoded(content: bytes) -> str:
    """Text of a file; PowerShell's `>` writes UTF-16."""
    from infra.report.preview import ReportError  # noqa: PLC0415

    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # A file that is cut in the middle of a character is cut, not binary.
        if error.start >= len(content.rstrip(b"\x00")) - 4:
            return content.decode("utf-8-sig", errors="ignore")
        raise ReportError("this is no text in UTF-8, so that it cannot be a preview") from None
