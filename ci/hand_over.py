"""What the workflow of a fork's pull request leaves for the one that may write: the report and the number, as claims.

python -m ci.hand_over reports/dev.md --to handed-over
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from ci.comment import pull_request
from ci.failures import StepError, end


def main() -> int:
    """Put both files into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="Markdown")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    if not options.report.is_file():
        raise StepError(f"there is no {options.report}: the preview before this step has written none")
    options.to.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(options.report, options.to / "report.md")
    (options.to / "pull-request.json").write_text(json.dumps({"number": pull_request()}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    end(main)
