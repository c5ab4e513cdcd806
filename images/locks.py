"""`python -m images.locks`: writes the locked requirements of all images anew, with uv.

One file serves amd64 and arm64 and every Python from the oldest base on: requirements carry markers. Nothing in the
files says where they were resolved, so any mirror of PyPI serves.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.errors import MatrixError
from images.matrix import LOCKS, Matrix, Row, matrix
from infra.catalog.ranges import numbers

_ROOT = Path(__file__).parent.parent
_IN_NGC = ("numpy",)
"""What NGC's images bring beside torch: a lock that names it would replace theirs."""


@dataclass(frozen=True)
class Lock:
    """One file to write."""

    name: str
    requirements: tuple[str, ...]
    """What is asked for, before it is resolved."""
    python: str
    """The oldest Python that it has to serve."""
    leave_out: tuple[str, ...] = ()
    """Packages that are not written: the image has them."""
    as_tested: bool = False
    """With the versions of requirements/dev.txt, in which the tests run; another torch wants others."""


def locks(of: Matrix, groups: dict[str, list[str]]) -> tuple[Lock, ...]:
    """The files that the rows name.

    Args:
        of: the matrix.
        groups: dependency groups of pyproject.toml.
    """
    rows: dict[str, list[Row]] = {}
    for row in of.rows:
        if row.lock is not None:
            rows.setdefault(row.lock, []).append(row)
    return tuple(
        Lock(
            name=name,
            requirements=_wanted(sharing[0], groups),
            python=min(_pythons(sharing), key=numbers),
            leave_out=_IN_NGC if sharing[0].variant == "ngc" else (),
            as_tested=set(_wanted(sharing[0], groups)) <= {*groups["controller"], *groups["training"]},
        )
        for name, sharing in rows.items()
    )


def _wanted(row: Row, groups: dict[str, list[str]]) -> tuple[str, ...]:
    torch = row.torch
    if row.kind == "controller" or torch is None:
        return tuple(groups["controller"])
    if row.kind == "nccl-tests":
        return (f"nvidia-nccl-cu{torch.cuda.partition('.')[0]}=={torch.nccl}",)
    others = [one for one in groups["training"] if _name(one) != "torch"]
    return tuple(others) if torch.bundled else (*others, f"torch=={torch.version}")


def _pythons(rows: list[Row]) -> list[str]:
    return [base.python for row in rows for base in (row.base, row.compiled_base) if base is not None]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def write(lock: Lock, uv: str, folder: Path = LOCKS) -> Path:
    """Resolve one lock. The versions that the file has already stay, where they can.

    Args:
        lock: what to write.
        uv: the program.
        folder: where to.
    """
    target = folder / lock.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary, "requirements.in")
        wanted.write_text("".join(f"{one}\n" for one in lock.requirements), encoding="utf-8")
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", lock.python]
        command += ["--no-emit-index-url", "--no-annotate", "--generate-hashes"]
        command += ["--custom-compile-command", "make lock", "--output-file", str(target)]
        if lock.as_tested:
            command += ["--constraints", str(_ROOT / "requirements" / "dev.txt")]
        for package in lock.leave_out:
            command += ["--no-emit-package", package]
        subprocess.run([*command, str(wanted)], check=True)
    return target


def groups() -> dict[str, list[str]]:
    """The dependency groups of pyproject.toml."""
    document: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        name: [one for one in group if isinstance(one, str)] for name, group in document["dependency-groups"].items()
    }


def main(arguments: list[str]) -> int:
    """Write all locks, with the uv that is named; take away those that no row names any more."""
    uv = arguments[0] if arguments else "uv"
    wanted = locks(matrix(), groups())
    for lock in wanted:
        write(lock, uv)
    for old in {path.name for path in LOCKS.glob("*.txt")} - {lock.name for lock in wanted}:
        (LOCKS / old).unlink()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (MatrixError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"images/locks cannot be written: {error}")
