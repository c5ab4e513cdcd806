"""One issue about a stack's drift: opened, kept up to date, and closed when all is well.

    python -m ci.issue prod reports/prod.md

The file is what `ci.drift` wrote; where it wrote none, nothing has drifted. The token may write to issues:
`GITHUB_REPOSITORY`, `GITHUB_TOKEN`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.failures import StepError, end
from ci.github import GitHub
from ci.stacks import NAME
from ci.sticky import close_issue, put_issue

CLEAN = "clean"
"""The ending of the file that says that nothing has drifted: no file at all may also be a preview that failed."""


def marker(stack: str) -> str:
    """The hidden first line of the issue."""
    return f"<!-- trainyard drift {stack} -->"


def main() -> int:
    """Open, change or close it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stack", help="name of the stack")
    parser.add_argument("report", type=Path, help="Markdown, if something has drifted")
    options = parser.parse_args()
    if not NAME.fullmatch(options.stack):
        raise StepError(f"{options.stack!r} is no name of a stack")
    github = GitHub.of_workflow()
    if options.report.is_file():
        text = options.report.read_text(encoding="utf-8")
        said = put_issue(github, f"Stack {options.stack} has drifted", f"{marker(options.stack)}\n{text}")
        print(f"issue about {options.stack}: {said}")
        return 0
    if not options.report.with_suffix(f".{CLEAN}").is_file():
        raise StepError(f"there is neither {options.report} nor a word that nothing has drifted: see the job before")
    closed = close_issue(github, marker(options.stack))
    print(f"nothing has drifted in {options.stack}" + (f"; closed: {closed}" if closed else ""))
    return 0


if __name__ == "__main__":
    end(main)
