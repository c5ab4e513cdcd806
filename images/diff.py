"""What a change of the matrix, a template or a lock changes in an image: between two rows, two times, or a folder.

A state is what the files of a context say (Dockerfile, image.json, requirements.txt), so that one rendered by another
version of this project compares as well. What a difference means for machines is said in sentences of `meaning`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images import requirements
from images.rules import is_code, runs_on
from infra.catalog.instance_types import instance_types
from infra.catalog.ranges import in_range, numbers
from infra.catalog.tables import table
from infra.errors import TrainyardError, UsageError

if TYPE_CHECKING:
    from images.context import Context

ROOT = Path(__file__).parents[1]
_FILES = ("Dockerfile", "image.json", "requirements.txt")
_LARGEST = 16 * 1024 * 1024
_TIMEOUT = 300  # seconds for all rows of another time
_BUILDER = re.compile(r"^ARG BUILDER_IMAGE=(.+)$", re.MULTILINE)
_FACTS = {
    "torch": "torch",
    "cuda": "CUDA",
    "cuda_patch": "CUDA, whole number",
    "nccl": "NCCL",
    "cudnn": "cuDNN",
    "efa_installer": "EFA installer",
    "libfabric": "libfabric",
    "minimum_driver": "oldest driver",
    "base": "base",
    "variant": "variant",
    "kind": "kind",
}
# Written to a file of its own by the other version's interpreter: nothing of this process is touched by it.
_RENDER = """
import pathlib, sys
from images.matrix import matrix
from images.render import render
out = pathlib.Path(sys.argv[1])
for row in matrix().rows:
    files = render(row).files
    (out / row.name).mkdir(parents=True)
    for name in sys.argv[2:]:
        if name in files:
            (out / row.name / name).write_bytes(files[name])
"""


@dataclass(frozen=True)
class State:
    """One image as its context describes it."""

    name: str
    """`torch2.15-cuda13.2`, with the time where two times are compared."""
    facts: Mapping[str, str]
    """Versions and names by what a reader calls them."""
    sm: Mapping[str, tuple[str, ...]]
    """GPU code by architecture."""
    packages: Mapping[str, str]
    """Versions of the lock; several of one package are for several Pythons."""
    dockerfile: str


@dataclass(frozen=True)
class Change:
    """One thing that differs."""

    name: str
    old: str | None
    """None: it was not there."""
    new: str | None
    """None: it is gone."""


@dataclass(frozen=True)
class Difference:
    """What differs between two states."""

    old: str
    new: str
    facts: tuple[Change, ...] = ()
    packages: tuple[Change, ...] = ()
    meaning: tuple[str, ...] = ()
    dockerfile: tuple[str, ...] = field(default=(), repr=False)
    """Unified diff, a line each."""

    def __bool__(self) -> bool:
        return bool(self.facts or self.packages or self.dockerfile)


def state_of(context: Context, name: str | None = None) -> State:
    """The state of a rendered context."""
    return _state(name or context.row.name, context.files)


def _state(name: str, files: Mapping[str, bytes]) -> State:
    document = _json(files.get("image.json", b"{}"), name)
    text = files.get("Dockerfile", b"").decode("utf-8", "replace")
    facts = {shown: str(document[key]) for key, shown in _FACTS.items() if document.get(key)}
    plugin = document.get("plugin")
    if isinstance(plugin, dict) and plugin.get("version"):
        facts["EFA plugin"] = str(plugin["version"])
    if builder := _BUILDER.search(text):
        facts["builder"] = builder[1]
    if isinstance(found := document.get("architectures"), list):
        facts["architectures"] = ", ".join(map(str, found))
    sm = document.get("sm")
    packages: dict[str, str] = {}
    for one in requirements.named(files.get("requirements.txt", b"").decode("utf-8", "replace")):
        packages[one.name] = f"{packages[one.name]}, {one.version}" if one.name in packages else one.version
    return State(
        name=name,
        facts=facts,
        sm={str(key): tuple(map(str, codes)) for key, codes in sm.items()} if isinstance(sm, dict) else {},
        packages=packages,
        dockerfile=text,
    )


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UsageError(f"image.json of {name} is no JSON object: render it anew.")
    return document


def in_folder(folder: Path) -> dict[str, State]:
    """States of what `trainyard images render` wrote before: one context, or a folder of them.

    Raises:
        UsageError: there is none.
    """
    places = [folder] if (folder / "Dockerfile").is_file() else sorted(folder.glob("*/"))
    found = {}
    for place in places:
        if (place / "Dockerfile").is_file():
            files = {name: _content(place / name) for name in _FILES if (place / name).is_file()}
            name = str(_json(files.get("image.json", b"{}"), str(place)).get("row") or place.name)
            found[name] = _state(name, files)
    if not found:
        raise UsageError(f"{folder} has no Dockerfile: name a folder that `trainyard images render` wrote.")
    return found


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(data) > _LARGEST:
        raise UsageError(f"{path} is longer than {_LARGEST >> 20} MiB: that was not rendered here.")
    return data


def at_revision(revision: str, root: Path = ROOT) -> dict[str, State]:
    """States of all rows as another revision of this project renders them; the checkout is not touched.

    Args:
        revision: whatever git takes for a commit.
        root: the checkout.

    Raises:
        UsageError: there is no such revision, or it renders nothing.
        TrainyardError: git or the rendering failed.
    """
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise UsageError(
            f"git knows no revision {revision!r} in {root}: name a branch, tag or commit, or compare with --folder."
        )
    with tempfile.TemporaryDirectory(prefix="trainyard-diff-") as temporary:
        tree, out = Path(temporary, "tree"), Path(temporary, "out")
        archive = Path(temporary, "tree.tar")
        if _git(root, "archive", "--format=tar", f"--output={archive}", commit.strip()) is None:
            raise TrainyardError(f"git could not read the files of {revision}: `git -C {root} fsck` says more.")
        with tarfile.open(archive) as files:
            files.extractall(tree, filter="data")
        if not (tree / "images" / "render.py").is_file():
            raise UsageError(f"{revision} has no images/render.py, so nothing to compare: take a later revision.")
        call = [sys.executable, "-c", _RENDER, str(out), *_FILES]
        try:
            done = subprocess.run(
                call, cwd=tree, env={**_environment(), "PYTHONPATH": str(tree)}, capture_output=True, text=True,
                timeout=_TIMEOUT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TrainyardError(
                f"{revision} had not rendered its rows after {_TIMEOUT} s; it takes seconds."
            ) from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise TrainyardError(
                f"{revision} cannot render its rows with the packages that are installed here: {said}. "
                "Render it in a checkout of its own, and compare with --folder."
            )
        return in_folder(out)


def _environment() -> dict[str, str]:
    # Safe path would leave the folder of the other revision out.
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": ""}


def _git(root: Path, *arguments: str) -> str | None:
    """Output of git; None where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise TrainyardError("git is not installed: install it, or compare with a rendered --folder.") from None
    return done.stdout if done.returncode == 0 else None


def compare(old: State, new: State) -> Difference:
    """What differs, and what that means."""
    facts = [*_changes(old.facts, new.facts), *_sm_changes(old.sm, new.sm)]
    lines = difflib.unified_diff(
        old.dockerfile.splitlines(), new.dockerfile.splitlines(), f"{old.name}/Dockerfile", f"{new.name}/Dockerfile",
        lineterm="",
    )  # fmt: skip
    return Difference(
        old=old.name,
        new=new.name,
        facts=tuple(facts),
        packages=tuple(_changes(old.packages, new.packages)),
        meaning=tuple(meaning(old, new)),
        dockerfile=tuple(lines),
    )


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Change(name, old.get(name), new.get(name))


def _sm_changes(old: Mapping[str, Iterable[str]], new: Mapping[str, Iterable[str]]) -> Iterator[Change]:
    for name in dict.fromkeys([*old, *new]):
        before, after = list(old.get(name, ())), list(new.get(name, ()))
        gone, come = [code for code in before if code not in after], [code for code in after if code not in before]
        if gone or come:
            yield Change(f"GPU code, {name}", ", ".join(gone) or None, ", ".join(come) or None)


def meaning(old: State, new: State) -> Iterator[str]:
    """What a difference means for machines and jobs, a sentence each."""
    yield from _driver(old.facts.get("oldest driver"), new.facts.get("oldest driver"))
    yield from _gpus(old, new)
    if _differ(old, new, "NCCL"):
        yield (
            f"All workers of a job need the same NCCL ({old.facts['NCCL']} before, {new.facts['NCCL']} now): a running "
            "job must end before its image changes."
        )
    if _differ(old, new, "CUDA") and old.facts["CUDA"].split(".")[0] != new.facts["CUDA"].split(".")[0]:
        yield "CUDA's major version changes: what was compiled for the old one (extensions, wheels) is built anew."
    if _differ(old, new, "base"):
        yield "The base changes: every layer is another one, and machines pull the whole image."
    if "EFA plugin" in old.facts and "EFA plugin" not in new.facts:
        yield "There is no EFA plugin any more: on machines with EFA, NCCL goes over TCP."
    before, after = (set(state.facts.get("architectures", "").split(", ")) - {""} for state in (old, new))
    if gone := sorted(before - after):
        yield f"It is not built for {', '.join(gone)} any more."


def _differ(old: State, new: State, name: str) -> bool:
    return name in old.facts and name in new.facts and old.facts[name] != new.facts[name]


def _driver(old: str | None, new: str | None) -> Iterator[str]:
    if new is None or old == new:
        return
    if old is not None and numbers(new) < numbers(old):
        yield f"The oldest driver falls from {old} to {new}: older machines can run it."
        return
    yield f"The oldest driver rises from {old or 'none'} to {new}: machines with an older one refuse the image."
    for image in table("versions")["ami"]:
        driver, system = str(image["driver"]), image["os"]
        verdict = "enough" if in_range(driver, f">={new}") else "too old: its pools need another image of the machine"
        yield f"The locked {system} image of EKS has driver {driver}: {verdict}."


def _gpus(old: State, new: State) -> Iterator[str]:
    """GPUs of the catalogue that the change shuts out or lets in."""
    if not old.sm or not new.sm:
        return
    for machine, architecture in (("x86_64", "amd64"), ("arm64", "arm64")):
        before, after = old.sm.get(architecture, ()), new.sm.get(architecture, ())
        lost: list[str] = []
        won: list[str] = []
        for one in instance_types().values():
            if not one.has_gpu or one.architecture != machine:
                continue
            ran, runs = (_runs(codes, str(one.compute_capability)) for codes in (before, after))
            if ran != runs:
                (lost if ran else won).append(f"{one.gpu} ({one.family})")
        if lost:
            yield f"It has no code now for {', '.join(dict.fromkeys(lost))}: jobs fail at their first kernel."
        if won:
            yield f"It has code now for {', '.join(dict.fromkeys(won))}."


def _runs(codes: Iterable[str], capability: str) -> bool:
    # What another version of this project wrote may have names that this one does not know.
    return any(runs_on(code, capability) for code in codes if is_code(code))
