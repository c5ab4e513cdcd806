"""Files that go into a build context: the user's code, and the project's own package."""

from __future__ import annotations

import ast
import importlib.metadata
import stat
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

LONGEST_FILE = 32 << 20
"""Bytes; larger files are data or weights, which belong on a volume or into a bucket, not into an image."""
LARGEST_SOURCE = 128 << 20
"""Bytes of all files together."""
_NEVER = frozenset({"__pycache__", "node_modules"})
_CONTROLLER = "training.controller"
_BESIDE = "training.metrics.fabric"
"""Runs from the controller's image too: the exporter of machines with EFA."""


def collect(folder: Path) -> tuple[dict[str, bytes], list[str], list[str]]:
    """Read the user's code.

    Names that begin with a dot are left out: `.git` is large, and `.env`, `.aws`, `.netrc` hold secrets.

    Args:
        folder: what is copied.

    Returns:
        Contents by path within the folder; names that were left out; a sentence for everything that cannot be copied.
    """
    if not folder.is_dir():
        return {}, [], [f"{folder} is no folder."]
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    mistakes: list[str] = []
    total = 0
    root = folder.resolve()
    for path in _walk(folder, left_out, mistakes):
        name = path.relative_to(folder).as_posix()
        try:
            target = path.resolve(strict=True)
            if not target.is_relative_to(root):
                mistakes.append(f"{path} is a link to {target}, outside of {folder}; copy what it points to.")
                continue
            if any(part.startswith(".") for part in target.relative_to(root).parts):
                mistakes.append(f"{path} is a link to {target}, whose name begins with a dot: such files stay out.")
                continue
            found = target.stat()
            if not stat.S_ISREG(found.st_mode):
                mistakes.append(f"{path} is neither a file nor a folder.")
                continue
            if found.st_size > LONGEST_FILE:
                mistakes.append(
                    f"{path} has {found.st_size >> 20} MiB, more than {LONGEST_FILE >> 20}: data and weights belong on"
                    " a volume or into a bucket, or the image has to be moved whenever they change."
                )
                continue
            total += found.st_size
            if total > LARGEST_SOURCE:
                mistakes.append(f"{folder} has more than {LARGEST_SOURCE >> 20} MiB of files; is it the right one?")
                break
            files[name] = target.read_bytes()
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it points to itself"
            mistakes.append(f"{path} cannot be read: {reason}.")
    if any(name == "training.py" or name.startswith("training/") for name in files):
        mistakes.append(
            f"{folder / 'training'}: the launcher is a package of this name (`python -m training`), which yours would "
            "hide. Rename yours, or copy the folder above it."
        )
    if not files and not mistakes:
        mistakes.append(f"{folder} has no files to copy.")
    return files, left_out, mistakes


def _walk(folder: Path, left_out: list[str], mistakes: list[str]) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        mistakes.append(f"{folder} cannot be read: {error.strerror}.")
        return
    for path in entries:
        if any(character < " " or character == "\x7f" for character in path.name):
            mistakes.append(f"{str(path)!r}: names with control characters cannot be copied.")
        elif path.name.startswith(".") or path.name in _NEVER or path.suffix in (".pyc", ".pyo"):
            if path.name not in _NEVER and path.suffix not in (".pyc", ".pyo"):
                left_out.append(str(path))
        elif path.is_dir() and path.is_symlink():
            mistakes.append(f"{path} is a link to a folder; copy the folder.")
        elif path.is_dir():
            yield from _walk(path, left_out, mistakes)
        else:
            yield path


def training_package() -> dict[str, bytes]:
    """The training runtime as an image installs it: the package without the controller, and what torchrun looks up."""
    modules = {
        name: content for name, content in _package().items() if not name.startswith(_CONTROLLER.replace(".", "/"))
    }
    return modules | _metadata(entry_points="torchrun.handlers")


def controller_package() -> dict[str, bytes]:
    """The controller with what it imports, now or later, of the package."""
    package = _package()
    wanted = _imported(package, [name for name in _modules(package) if name.startswith((_CONTROLLER, _BESIDE))])
    return {name: content for name, content in package.items() if name in wanted} | _metadata()


def _package() -> dict[str, bytes]:
    def files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
        for entry in sorted(folder.iterdir(), key=lambda one: one.name):
            name = f"{prefix}/{entry.name}"
            if entry.is_dir():
                if entry.name not in _NEVER:
                    yield from files(entry, name)
            elif not entry.name.endswith((".pyc", ".pyo")):
                yield name, entry.read_bytes()

    return dict(files(resources.files("training"), "training"))


def _modules(package: Mapping[str, bytes]) -> dict[str, str]:
    """Files by the modules that they hold."""
    return {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name in package
        if name.endswith(".py")
    }


def _imported(package: Mapping[str, bytes], modules: list[str]) -> set[str]:
    """Files of modules and of everything that they import from the package, also inside of functions.

    What stands under TYPE_CHECKING, and what is imported only where torch is, comes along: too much does no harm.
    """
    known = _modules(package)
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in known or known[module] in found:
            continue
        found.add(known[module])
        waiting.append(module.rpartition(".")[0])  # importing a module imports the packages around it
        for node in ast.walk(ast.parse(package[known[module]])):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _metadata(entry_points: str | None = None) -> dict[str, bytes]:
    """What `importlib.metadata` reads of an installed package."""
    version = project_version()
    folder = f"trainyard-{version}.dist-info"
    files = {f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: trainyard\nVersion: {version}\n".encode()}
    if entry_points is not None:
        found = importlib.metadata.distribution("trainyard").entry_points.select(group=entry_points)
        lines = sorted(f"{one.name} = {one.value}" for one in found)
        files[f"{folder}/entry_points.txt"] = "\n".join([f"[{entry_points}]", *lines, ""]).encode()
    return files


def project_version() -> str:
    """Version of this Trainyard."""
    return importlib.metadata.version("trainyard")
