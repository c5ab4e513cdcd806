"""Finds the row that fits a wish and a machine, or says what stands against it and what would work."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from images.errors import MatrixError
from images.matrix import Architecture, Kind, Matrix, Row, Variant
from images.rules import Subject, violations
from infra.catalog.ranges import numbers


@dataclass(frozen=True)
class Wish:
    """What somebody wants: the first three are choices, the others the machine."""

    torch: str | None = None
    """`2.15` or `2.15.0`."""
    variant: Variant | None = None
    kind: Kind = "training"
    architecture: Architecture | None = None
    driver: str | None = None
    compute_capability: str | None = None

    @property
    def has_gpu(self) -> bool:
        """Whether something of a GPU is known of the machine."""
        return self.driver is not None or self.compute_capability is not None


def select(matrix: Matrix, wish: Wish) -> Row:
    """See `Matrix.select`."""
    _check(wish)
    rows = [row for row in matrix.rows if row.kind == wish.kind]
    if wish.kind != "controller" and wish.variant is None:
        wish = replace(wish, variant="cuda" if wish.has_gpu or wish.kind == "nccl-tests" else "cpu")
    against = []
    candidates = [row for row in rows if row.variant == wish.variant] if wish.kind != "controller" else rows
    if not candidates:
        against.append(f"there is no {wish.kind} image of the variant {wish.variant}")
    if wish.torch is not None:
        candidates, unknown = _of_release(matrix, candidates, wish)
        against += unknown
    broken: list[str] = []
    for row in _newest_first(candidates):
        found = sentences(row, wish)
        if not found:
            return row
        broken = found if not broken or len(found) < len(broken) else broken
    nearest = _nearest(matrix, rows, wish)
    raise MatrixError(_refusal([*against, *broken], describe(nearest) if nearest else None, wish, rows))


def sentences(row: Row, wish: Wish) -> list[str]:
    """What stands against a row on the machine of a wish; none where it works.

    Without an architecture the one counts on which the least stands against it.
    """
    architectures = row.architectures if wish.architecture is None else (wish.architecture,)
    subjects = [Subject(row, name, wish.driver, wish.compute_capability) for name in architectures]
    return min(([one.sentence for one in violations(subject)] for subject in subjects), key=len)


def _check(wish: Wish) -> None:
    mistakes = []
    if wish.driver is not None and not re.fullmatch(r"\d+(\.\d+)*", wish.driver):
        mistakes.append(f"the driver {wish.driver!r} is no version: nvidia-smi shows it as 580.159.03")
    if wish.compute_capability is not None and not re.fullmatch(r"\d{1,2}\.\d", wish.compute_capability):
        mistakes.append(f"the compute capability {wish.compute_capability!r} has to be written as 9.0")
    if mistakes:
        raise MatrixError("; ".join(mistakes) + ".")


def _of_release(matrix: Matrix, rows: list[Row], wish: Wish) -> tuple[list[Row], list[str]]:
    """The rows with the wanted torch, and what stands against the wish already."""
    if wish.kind == "controller":
        return [], [f"the controller image has no torch, {wish.torch} was wanted"]
    if wish.variant == "ngc":
        own = ", ".join(f"{row.name} has {row.torch.version}" for row in rows if row.torch)
        return [], [
            f"images of NGC bring their own torch ({own}), and nothing may put another beside it: name the image"
        ]
    release = next((one for one in matrix.torch_releases if wish.torch in (one.version, one.minor)), None)
    if release is None:
        known = ", ".join(one.version for one in matrix.torch_releases)
        return [], [f"there is no image with torch {wish.torch}, only with {known}"]
    if wish.kind == "nccl-tests":  # one for each CUDA
        found = [row for row in rows if row.cuda == release.cuda]
    else:
        found = [row for row in rows if row.torch == release]
    missing = [f"there is no {wish.kind} image of the variant {wish.variant} for torch {release.version}"]
    return found, [] if found or not rows else missing


def _newest_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=_release, reverse=True)


def _release(row: Row) -> tuple[int, ...]:
    return numbers(row.torch.version) if row.torch else ()


def _nearest(matrix: Matrix, rows: list[Row], wish: Wish) -> Row | None:
    """What works on the machine and differs least from the wish: rather another torch than another variant."""
    order = [one.minor for one in matrix.torch_releases]

    def distance(row: Row) -> tuple[bool, float, int]:
        place = order.index(row.torch.minor) if row.torch and row.torch.minor in order else len(order)
        wanted = place if wish.torch is None else _place(order, wish.torch)
        return row.variant != wish.variant, abs(place - wanted), place

    # Somebody who wants the GPUs is not helped by an image that leaves them idle.
    works = [row for row in rows if not sentences(row, wish) and (wish.variant == "cpu" or row.variant != "cpu")]
    return min(works, key=distance, default=None)


def _place(order: list[str], torch: str) -> float:
    """Where a release stands among the known ones, newest first; an unknown one between two of them."""
    if not re.match(r"\d", torch):
        return 0
    wanted = numbers(torch)[:2]
    newer = sum(numbers(minor) > wanted for minor in order)
    return newer if any(numbers(minor) == wanted for minor in order) else newer - 0.5


def _refusal(against: list[str], nearest: str | None, wish: Wish, rows: list[Row]) -> str:
    if nearest is not None:
        remedy = f"Nearest that works: {nearest}."
    else:
        remedy = "No image works with the GPUs of this machine."
        oldest = min((row.minimum_driver for row in rows if row.minimum_driver), key=numbers, default=None)
        if wish.driver is not None and oldest is not None:
            remedy += f" The oldest driver that any of them takes is {oldest}."
    if len(against) == 1:
        return f"{against[0]}. {remedy}"
    return "\n".join(["this cannot work:", *(f"  {one}" for one in against), remedy])


def describe(row: Row) -> str:
    """A row in a few words."""
    parts = [
        f"torch {row.torch.version}" if row.torch and row.kind == "training" else None,
        f"CUDA {row.cuda}" if row.cuda else None,
        f"driver {row.minimum_driver} or newer" if row.minimum_driver else None,
        " and ".join(row.architectures),
    ]
    return f"{row.name} ({', '.join(part for part in parts if part)})"
