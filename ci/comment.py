"""Keep the comment of a stack on a pull request up to date.

    python -m ci.comment reports/*.md

Each file is one comment; its first line, which nobody sees, says which. The pull request is that of the workflow's
event, the token may write to pull requests: `GITHUB_REPOSITORY`, `GITHUB_TOKEN`, `GITHUB_EVENT_PATH`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ci.failures import StepError, end
from ci.github import GitHub
from ci.sticky import put_comment


def pull_request() -> int:
    """The number of the pull request of this workflow's event.

    Raises:
        StepError: there is none.
    """
    try:
        event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes())
        return int(event["pull_request"]["number"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StepError(
            "this is no workflow about a pull request (GITHUB_EVENT_PATH): nothing to comment on"
        ) from error


def main() -> int:
    """Post each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a comment, in Markdown")
    options = parser.parse_args()
    number, github = pull_request(), GitHub.of_workflow()
    for file in options.files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise StepError(f"{file} cannot be read: {error}") from None
        print(f"{file.name}: {put_comment(github, number, text)}")
    return 0


if __name__ == "__main__":
    end(main)
