"""`python -m training.diagnose image [--json]`: does this image fit this machine?"""

import argparse
import json
import sys

from training.diagnose import image
from training.launch import exit_codes


def main(argv: list[str] | None = None) -> int:
    """Run the check alone; the exit code is 0, or 78 where a job would not be started here."""
    parser = argparse.ArgumentParser(prog="python -m training.diagnose", description=image.__doc__)
    parser.add_argument("topic", choices=["image"])
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    parser.add_argument(
        "--built", action="store_true", help="only what is in the image, every difference an error: for its build"
    )
    given = parser.parse_args(argv)
    try:
        report = image.examine(built=given.built)
    except image.FactsError as error:
        sys.stderr.write(f"{error}\n")
        return exit_codes.USAGE
    if given.json:
        print(json.dumps(report.document(), indent=2))
    else:
        print(report.text())
    return exit_codes.DO_NOT_RESTART if report.errors else exit_codes.FINISHED


if __name__ == "__main__":
    sys.exit(main())
