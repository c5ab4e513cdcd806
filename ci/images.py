"""What a pull request changes in the images: all rendered and linted, and compared with before.

    python -m ci.images --against origin/main --out reports

Writes images.md, a comment; ends with 1 where the lint refuses something.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from ci.failures import StepError, end
from ci.stacks import ROOT

MARKER = "<!-- trainyard images -->"
_MOST = 50_000  # characters of the comparison
_TRAINYARD = ROOT / "ci/trainyard"


def run(*arguments: str) -> tuple[int, str]:
    """The command's code, and what it printed."""
    done = subprocess.run(
        [_TRAINYARD, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"NO_COLOR": "1"},
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def block(text: str) -> str:
    """Text as a block of code that nothing in it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    shown = (
        text if len(text) <= _MOST else f"{text[:_MOST]}\n… ({len(text):,} characters; all of it is in the job's log)"
    )
    return f"{fence}text\n{shown}\n{fence}"


def report(changes: str, lint: str, *, refused: bool) -> str:
    """The comment."""
    lines = [MARKER, f"## {'❌ ' if refused else ''}Images", ""]
    if refused:
        lines += ["> [!CAUTION]", "> **The lint refuses what would be built.**", "", block(lint), ""]
    if changes:
        lines += [block(changes), ""]
    else:
        lines += ["**Nothing changes in the images.**", ""]
    if not refused and lint:
        lines += ["<details><summary>Lint</summary>", "", block(lint), "", "</details>", ""]
    return "\n".join(lines)


def main() -> int:
    """Render, lint, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="REVISION", help="of git, to compare with")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ty-") as folder:
        code, said = run("images", "render", "--all", "--output", f"{folder}/images")
    if code:
        raise StepError(f"the images cannot be rendered:\n{said}")
    refused, lint = run("images", "lint", "--all")
    code, changes = run("images", "diff", "--against", options.against)
    if code:
        raise StepError(f"the images cannot be compared with {options.against}:\n{changes}")
    print(f"{lint}\n{changes}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "images.md").write_text(report(changes, lint, refused=bool(refused)), encoding="utf-8")
    return 1 if refused else 0


if __name__ == "__main__":
    end(main)
