"""Writes the reference page of what `trainyard diagnose` can find: `python -m infra.diagnose.reference`."""

from __future__ import annotations

import sys
from typing import Final

from infra.clusters import CHECKOUT
from infra.diagnose.kinds import KINDS

PAGE: Final = CHECKOUT / "docs/reference/findings.md"
_HEAD: Final = """\
# Findings

What `trainyard diagnose` can find, in the order in which one explains another. Made by
`python -m infra.diagnose.reference` from `infra/diagnose/kinds.py`. How to use the command:
[Why is it slow, stuck or dead?](../how-to/diagnose.md)

With `--json` a finding has these fields:

| field | meaning |
| --- | --- |
| `code` | one of those below; it stays the same from release to release |
| `title` | what is wrong, in one sentence |
| `severity` | `error`: something does not work; `warning`: it works, but badly; `note`: good to know |
| `object` | what it is about: `job/digits`, `node/gpu-spot-1`, `statefulset/etcd` |
| `evidence` | lines of logs, events and states that show it, five at most |
| `remedy` | what to do |
| `command` | the next command, or `null` |

Exit codes: 0, no error was found (there may be warnings and notes); 1, an error was found, or the cluster cannot be
asked; 2, wrong options or settings.

| code | severity | what is wrong | what to do |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page as Markdown."""
    rows = (
        f"| `{code}` | {kind.severity} | {_cell(kind.title)} | {_cell(kind.remedy)} |\n" for code, kind in KINDS.items()
    )
    return _HEAD + "".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")
