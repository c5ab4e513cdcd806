"""Writes the reference page of the images from the matrix and its rules: `python -m images.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from images.matrix import Matrix, Row, matrix
from images.rules import RULES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "images.md"

_HEAD = """\
# Images

What can be built, from `images/matrix.toml`. Made by `python -m images.reference`; `trainyard images matrix ROW` shows
one image with the source of every part, `--gpu`, `--driver`, `--arch`, `--variant` and `--torch` say which to take.
"""
_ROWS = """\

## Rows

Short names mean the newest release. Drivers are the oldest of `infra/catalog/versions.toml` for the CUDA. An image
that is not pinned has a part without digest or sum: see below.
"""
_GPU_CODE = """\

## GPU code

What the torch of an image is compiled for. A GPU runs code of its own major compute capability with the same or a
lower minor (`sm_86` on 8.9, `sm_100` on 10.3) and PTX (`compute_`) of a lower one.
"""
_RULES = """\

## Rules

The file does not load with a row that breaks one of these, and a wish that does is refused with all sentences at once
and the nearest image that works.
"""
_CHANGE = """\

## Change it

- **A release of torch:** a `[torch."…"]` with the versions that its wheels pin, its name in the groups of `[[rows]]`,
  then `make lock`; the tests hold each lock against the matrix. The newest stands first and gets the short names. GPU
  code: PyTorch's table in `.ci/manywheel`; an installed wheel says its own by `torch._C._cuda_getArchFlags()`, which
  needs no GPU.
- **An EFA installer:** an `[efa."…"]` with the parts of its change log, then `efa` of the groups. Without `sha256` the
  images that take it are not pinned.
- **A base image:** `trainyard images pin` asks the registries and writes `digest` and `checked`. A digest is that of
  the index, so that it serves every architecture.
- **A CUDA minor:** its `-devel` and `-base` images here, its oldest driver in `infra/catalog/versions.toml`.
- What is not confirmed belongs into `unconfirmed` of its part, and is shown with a `?`.
"""


def page(of: Matrix) -> str:
    """The page as Markdown."""
    return "".join(
        (
            _HEAD,
            _ROWS,
            _table(("image", "short", "torch", "CUDA", "NCCL", "base", "architectures", "driver", "pinned"), _rows(of)),
            _GPU_CODE,
            _table(("torch", "amd64", "arm64"), _gpu_code(of)),
            _RULES,
            _table(
                ("rule", "what holds", "otherwise", "source"),
                ((f"`{one.id}`", one.sentence, one.reason, one.source) for one in RULES),
            ),
            "\n## Not pinned at present\n\n",
            *(f"- {reason}\n" for reason in dict.fromkeys(one for row in of.rows for one in row.unpinned)),
            "\n## Unconfirmed at present\n\n",
            *(f"- {line}\n" for line in _unconfirmed(of)),
            _CHANGE,
        )
    )


def _rows(of: Matrix) -> Iterator[tuple[str, ...]]:
    for row in of.rows:
        yield (
            f"`{row.name}`",
            ", ".join(f"`{alias}`" for alias in row.aliases),
            row.torch.version if row.torch and row.kind == "training" else "",
            row.cuda or "",
            row.nccl or "",
            f"`{row.base.reference}`",
            ", ".join(row.architectures),
            row.minimum_driver or "",
            "no" if row.unpinned else "yes",
        )


def _gpu_code(of: Matrix) -> Iterator[tuple[str, ...]]:
    seen = {}
    for row in of.rows:
        if row.torch is not None:
            seen[row.name if row.torch.bundled else row.torch.version] = row.torch.sm
    for name, codes in seen.items():
        yield name, *(" ".join(codes.get(architecture, ("CPUs only",))) for architecture in ("amd64", "arm64"))


def _unconfirmed(of: Matrix) -> Iterator[str]:
    """Fields that no document confirms, once for each part."""
    return iter(dict.fromkeys(line for row in of.rows for line in _doubts(row)))


def _doubts(row: Row) -> Iterator[str]:
    parts = {
        f"`{row.base.reference}`": row.base,
        (row.name if row.variant == "ngc" else f"torch {row.torch.version}" if row.torch else ""): row.torch,
        f"EFA installer {row.efa.version}" if row.efa else "": row.efa,
    }
    for name, part in parts.items():
        if part is not None and part.unconfirmed:
            yield f"{name}: {', '.join(f'`{field}`' for field in part.unconfirmed)}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(matrix()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
