"""Parts of a stack that are brought up before the rest: the registry, since a cluster pulls what was pushed to it.

The engine is told to touch nothing but the part (`--target`). That alone ends with an error as long as there is no
cluster: whatever is in the cluster needs a Kubernetes provider, which has no kubeconfig yet. So the program then
declares the part alone. It must do so only in that case, as what it does not declare is taken for removed: the command
looks into the record of the stack, and tells the program by a variable that means something in this one run only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from infra.errors import UsageError

Part = Literal["registry"]
PARTS: tuple[Part, ...] = get_args(Part)

_BELONGS: Mapping[Part, tuple[str, ...]] = {
    # With the key that encrypts its images, and what holds both.
    "registry": ("::trainyard:aws:AwsCluster::aws", "$trainyard:aws:Encryption", "$trainyard:aws:Registry"),
}
"""What the URNs of a part's resources have in them."""
_EVERYWHERE = ("::pulumi:pulumi:Stack::", "::pulumi:providers:aws::")
_CLUSTER = "::pulumi:providers:kubernetes::"

_VARIABLE = "TRAINYARD_ONLY"
_RUN = "TMPDIR"  # a folder of this one run of the engine: what is left of the variable in a shell names another one
_ALONE, _BESIDE = "alone", "beside-the-rest"


def targets(part: Part) -> list[str]:
    """Arguments by which the engine touches nothing but a part."""
    return [argument for fragment in _BELONGS[part] for argument in ("--target", f"**{fragment}**")]


def is_alone(part: Part, urns: Iterable[str]) -> bool:
    """Whether a stack consists of nothing but (some of) a part.

    Args:
        part: the part.
        urns: all resources on the record of the stack.
    """
    known = (*_BELONGS[part], *_EVERYWHERE)
    return all(any(fragment in urn for fragment in known) for urn in urns)


def require_one_or_the_other(part: Part, urns: Collection[str], stack: str) -> None:
    """Before a part is brought up: does its stack consist of it alone, or has it a cluster?

    Raises:
        UsageError: it was made as far as some point in between, where neither can be declared.
    """
    if not is_alone(part, urns) and not any(_CLUSTER in urn for urn in urns):
        raise UsageError(
            f"stack {stack} was begun, and its cluster is not there: finish it, which brings the {part} up as well:"
            f" trainyard up -s {stack}"
        )


def environment(part: Part | None, run: Path, urns: Collection[str] = ()) -> dict[str, str]:
    """Variables by which the program of an engine run knows the part.

    Args:
        part: None for the whole stack.
        run: the folder for temporary files of this run.
        urns: all resources on the record of the stack.
    """
    how = _ALONE if part and is_alone(part, urns) else _BESIDE
    return {_RUN: str(run), _VARIABLE: f"{part}:{how}:{run}" if part else ""}


def part_of_run() -> tuple[Part | None, bool]:
    """The part that this run of the program is about, None for the whole stack; and whether it is declared alone.

    Raises:
        UsageError: the variable is not from this run of the command.
    """
    given = os.environ.get(_VARIABLE, "")
    if not given:
        return None, False
    for part in PARTS:
        for how in (_ALONE, _BESIDE):
            if given == f"{part}:{how}:{os.environ.get(_RUN, '')}":
                return part, how == _ALONE
    raise UsageError(
        f"{_VARIABLE} is set, and not by `trainyard up --only`: without its targets the engine would remove the rest of"
        f" the stack. Unset it: unset {_VARIABLE}"
    )
