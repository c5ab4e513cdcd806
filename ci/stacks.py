"""Which stacks there are: one job of a matrix for each Pulumi.*.yaml.

    python -m ci.stacks --target aws

Prints one line of JSON, `{"include": [{"stack": "dev", "target": "aws", "region": "us-east-2"}, …]}`, and gives it to
the workflow as the output `stacks`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

from ci.failures import StepError, end

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A stack, as Pulumi takes it; also safe in a shell, a file name and an artifact's name."""
REGION = re.compile(r"[a-z]{2}(-[a-z]+){1,3}-\d")
_FILE = re.compile(r"Pulumi\.(.+)\.yaml")


def stacks(folder: Path, target: str | None = None) -> list[dict[str, str]]:
    """The stacks of a folder, by name.

    A file that cannot be read is a stack all the same: its preview says what is wrong with it.

    Args:
        folder: of Pulumi.yaml.
        target: only stacks of this target.

    Raises:
        StepError: a name that is none.
    """
    found = []
    for file in sorted(folder.glob("Pulumi.*.yaml")):
        name = _FILE.fullmatch(file.name)
        if not name:
            continue
        if not NAME.fullmatch(name[1]):
            raise StepError(f"{file.name}: {name[1]!r} is no name of a stack: letters, digits, - _ . and at most 100")
        about = _about(file)
        if target in (None, about["target"]):
            found.append({"stack": name[1], **about})
    return found


def project(folder: Path = ROOT) -> str:
    """The project's name in Pulumi.yaml, by which comments are found again."""
    import yaml  # noqa: PLC0415

    try:
        return str(yaml.safe_load((folder / "Pulumi.yaml").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError) as error:
        raise StepError(f"{folder}/Pulumi.yaml has no name: {error}") from error


def _about(file: Path) -> dict[str, str]:
    import yaml  # noqa: PLC0415

    try:
        content: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        config = content["config"]
        wanted, aws = str(config["trainyard:target"]), config.get("trainyard:aws")
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError, RecursionError):
        return {"target": "unknown", "region": ""}
    region = str(aws.get("region", "")) if isinstance(aws, dict) else ""
    known = wanted if wanted in ("aws", "local", "kubeconfig") else "unknown"
    return {"target": known, "region": region if REGION.fullmatch(region) else ""}


def main() -> int:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("aws", "local", "kubeconfig"), help="only stacks of this target")
    parser.add_argument("--folder", type=Path, default=ROOT, help="of Pulumi.yaml")
    options = parser.parse_args()
    found = stacks(options.folder, options.target)
    if not found:
        raise StepError(f"{options.folder} has no Pulumi.<stack>.yaml of that target: there is nothing to look at")
    line = json.dumps({"include": found})
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as opened:
            opened.write(f"stacks={line}\n")
    print(line)
    return 0


if __name__ == "__main__":
    end(main)
