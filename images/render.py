"""Renders one row of the matrix as a build context: a Dockerfile and everything that it copies."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images import requirements as locked
from images import source as code
from images.context import Context
from images.errors import MatrixError
from images.matrix import MACHINES, Architecture, Matrix, Row
from images.matrix import matrix as the_matrix
from infra.errors import UsageError
from infra.wiring.naming import UNPRIVILEGED

if TYPE_CHECKING:
    import jinja2

__all__ = ["Context", "Options", "render", "render_all"]

VENV = "/opt/trainyard/venv"
_DEBIAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]*[A-Za-z0-9.+~])?")
"""apt-get takes `NAME-` for a package to remove."""
_REFERENCE = re.compile(r"[a-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?")
_FLIGHT_RECORDER = 2000
"""Collectives that each rank remembers; torch writes them to a file when one of them hangs."""


@dataclass(frozen=True)
class Options:
    """What a user adds to a row."""

    requirements: Path | None = None
    """Locked requirements (`uv pip compile --generate-hashes`), installed beside the row's own."""
    source: Path | None = None
    """A folder of code, copied to /workspace."""
    apt: tuple[str, ...] = ()
    """Packages of the distribution."""
    compile: bool = False
    """Some of the requirements are compiled with nvcc, while the image is built."""
    base: str | None = None
    """Replaces the base image."""


def render(row: Row, options: Options | None = None) -> Context:
    """Make the build context of one row.

    Args:
        row: what to build.
        options: what is added.

    Raises:
        UsageError: options that cannot work; all mistakes in one message.
        MatrixError: the row's lock is missing.
    """
    options = options or Options()
    mistakes = _mistakes(row, options)
    lock = _lock(row)
    extra, found = _extra(row, options, lock)
    mistakes += found
    copied: dict[str, bytes] = {}
    left_out: list[str] = []
    if options.source is not None and row.kind == "training":
        copied, left_out, found = code.collect(options.source)
        mistakes += found
    if mistakes:
        raise UsageError("\n".join([f"{row.name} cannot be rendered so:", *(f"  {one}" for one in mistakes)]))
    files = {
        "image.json": _json(facts(row, options)),
        "requirements.txt": locked.text(lock).encode(),
        **_build_files(row),
        **_project(row),
        **{f"source/{name}": content for name, content in copied.items()},
        **_extra_files(extra, options),
    }
    values = _values(row, options, extra=bool(extra), source=bool(copied))
    files["Dockerfile"] = _dockerfile(row, values).encode()
    return Context(row=row, files=dict(sorted(files.items())), left_out=tuple(left_out))


def render_all(matrix: Matrix | None = None) -> dict[str, Context]:
    """Make the build contexts of all rows, by name."""
    return {row.name: render(row) for row in (matrix or the_matrix()).rows}


def _mistakes(row: Row, options: Options) -> list[str]:
    found = [
        f"apt package {name!r}: names have small letters, digits, '+', '-' and '.', and a version may follow after '='."
        for name in options.apt
        if not _APT.fullmatch(name)
    ]
    if options.base is not None and not _REFERENCE.fullmatch(options.base):
        found.append(f"base image {options.base!r} is no reference of an image: NAME:TAG or NAME@sha256:DIGEST.")
    if row.kind != "training":
        given = {"requirements": options.requirements, "source": options.source, "compile": options.compile}
        found += [
            f"--{name} is for training images; {row.name} has no place for it."
            for name, value in given.items()
            if value
        ]
    elif options.compile:
        if options.requirements is None:
            found.append("--compile without --requirements: there is nothing to compile.")
        if row.builder is None and not _bundled(row):
            found.append(f"--compile needs an image with nvcc, which {row.name} does not have; take a row with CUDA.")
    return found


def _lock(row: Row) -> list[locked.Requirement]:
    if row.lock_path is None:
        return []
    if not row.lock_path.is_file():
        raise MatrixError(f"images/locks/{row.lock} is missing, which {row.name} is built from: run `make lock`.")
    return locked.without(locked.read(row.lock_path), row.leave_out)


def _extra(row: Row, options: Options, lock: list[locked.Requirement]) -> tuple[list[locked.Requirement], list[str]]:
    if options.requirements is None or row.kind != "training":
        return [], []
    file = options.requirements
    try:
        wanted, mistakes = locked.parse(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        return [], [f"{file} cannot be read: {error.strerror}."]
    except UnicodeDecodeError:
        return [], [f"{file} is no text."]
    if mistakes:
        mistakes.append(f"Lock it: uv pip compile --generate-hashes --no-emit-index-url {file.stem}.in -o {file.name}")
    extra, conflicts = locked.added(wanted, lock, str(file), bundled=_bundled(row))
    return extra, mistakes + conflicts


def _extra_files(extra: list[locked.Requirement], options: Options) -> dict[str, bytes]:
    if not extra:
        return {}
    if not options.compile:
        return {"extra-requirements.txt": locked.text(extra).encode()}
    tools = [one for one in extra if one.name in locked.BUILD_TOOLS]
    others = [one for one in extra if one.name not in locked.BUILD_TOOLS]
    return {
        "extra-tools.txt": locked.text(tools).encode(),
        "extra-requirements.txt": locked.text(others).encode(),
    }


def _bundled(row: Row) -> bool:
    return row.torch is not None and row.torch.bundled


def _has_torch(row: Row) -> bool:
    return row.kind == "training" and "torch" not in row.leave_out


def facts(row: Row, options: Options | None = None) -> dict[str, Any]:
    """What `image.json` says: how the image was built, for the check when it starts, and for who asks."""
    options = options or Options()
    torch = row.torch
    base = _base(row, options)
    plugin = None
    if row.plugin is not None:
        files = {one: path for one in row.architectures if (path := _plugin_file(row, options, one)) is not None}
        plugin = {"name": "aws-ofi-nccl", "version": row.plugin, "files": files}
    return {
        "schema": 1,
        "row": row.name,
        "kind": row.kind,
        "variant": row.variant,
        "version": code.project_version(),
        "base": options.base or base.pinned,
        "architectures": list(row.architectures),
        "torch": torch.version if torch is not None and _has_torch(row) else None,
        "cuda": row.cuda,
        "cuda_patch": torch.cuda_patch if torch is not None and row.cuda else None,
        "nccl": row.nccl,
        "cudnn": torch.cudnn if torch is not None and row.cuda and _has_torch(row) else None,
        "minimum_driver": row.minimum_driver,
        "sm": {name: list(codes) for name, codes in row.sm.items()},
        "plugin": plugin,
        "efa_installer": row.efa.version if row.efa else None,
        "libfabric": row.efa.libfabric if row.efa else None,
        "fabric": dict(row.fabric),
    }


def _base(row: Row, options: Options) -> Any:
    return row.compiled_base if options.compile and row.compiled_base is not None else row.base


def _plugin_file(row: Row, options: Options, architecture: Architecture) -> str | None:
    if row.efa is None:
        return None
    return row.efa.plugin_file(_base(row, options).distribution, architecture)


def _plugin_path(row: Row, options: Options) -> str | None:
    """Path of the plugin for a shell on either architecture."""
    if row.efa is None:
        return None
    return row.efa.plugin_files[_base(row, options).distribution].format(machine="$(uname -m)")


def _values(row: Row, options: Options, *, extra: bool, source: bool) -> dict[str, Any]:
    base = _base(row, options)
    title, description = _named(row)
    builder = row.builder if row.kind == "nccl-tests" or options.compile else None
    return {
        "row": row,
        "title": title,
        "description": description,
        "version": code.project_version(),
        "base": options.base or base.pinned,
        "builder": builder.pinned if builder is not None else None,
        "uid": UNPRIVILEGED,
        "venv": VENV,
        "python": f"{VENV}/bin/python",
        "path": _DEBIAN_PATH if base.cuda is None else "${PATH}",
        "apt": [*row.apt, *options.apt],
        "efa": row.efa,
        "plugin_file": _plugin_path(row, options),
        "cudart": _cudart(row),
        "extra": extra,
        "compile": options.compile,
        "source": source,
        "environment": _environment(row, options),
        "labels": _labels(row),
        "entrypoint": _entrypoint(row),
        "codes": {MACHINES[one]: " ".join(_capabilities(codes)) for one, codes in row.sm.items()},
        "cuda_arch_list": {MACHINES[one]: _arch_list(codes) for one, codes in row.sm.items()},
    }


def _named(row: Row) -> tuple[str, str]:
    if row.kind == "controller":
        return "trainyard controller", "the ElasticJob controller"
    cuda = f"CUDA {row.cuda}" if row.cuda else "CPUs"
    fabric = {"efa": ", EFA", "infiniband": ", InfiniBand", "ngc": ", on NVIDIA's image"}.get(row.variant or "", "")
    if row.kind == "nccl-tests":
        return f"trainyard {row.name}", f"NVIDIA's nccl-tests with NCCL {row.nccl}, {cuda}{fabric}"
    torch = row.torch.version if row.torch else ""
    return f"trainyard training {row.name}", f"training with torch {torch}, {cuda}{fabric}"


def _environment(row: Row, options: Options) -> dict[str, str]:
    """Settings that are right on every machine; all others are left to NCCL and the plugin, which know it better."""
    if row.cuda is None:
        return {}
    found = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "NCCL_DEBUG": "WARN"}
    if row.kind == "training":
        found |= {"TORCH_FR_BUFFER_SIZE": str(_FLIGHT_RECORDER), "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    plugin = _plugin_path(row, options)
    named = re.fullmatch(r"libnccl-net-(\w+)\.so", Path(plugin).name) if plugin else None
    if named:
        found["NCCL_NET_PLUGIN"] = named.group(1)
    return found


def _labels(row: Row) -> dict[str, str]:
    found = {
        "row": row.name,
        "kind": row.kind,
        "variant": row.variant,
        "torch": row.torch.version if row.torch is not None and _has_torch(row) else None,
        "cuda": row.cuda,
        "nccl": row.nccl,
        "aws-ofi-nccl": row.plugin,
        "efa-installer": row.efa.version if row.efa else None,
        "minimum-driver": row.minimum_driver,
        "sm": ";".join(f"{name}={','.join(codes)}" for name, codes in row.sm.items()),
    }
    return {f"dev.trainyard.{name}": value for name, value in found.items() if value}


def _entrypoint(row: Row) -> list[str]:
    tini = ["/usr/bin/tini", "-s", "--"]
    if row.kind == "nccl-tests":
        return [*tini, "/opt/nccl-tests/all_reduce_perf"]
    module = "training.controller" if row.kind == "controller" else "training"
    return [*tini, f"{VENV}/bin/python", "-m", module]


def _cudart(row: Row) -> str | None:
    """CUDA's runtime library within site-packages."""
    if row.torch is None:
        return None
    major = row.torch.cuda.partition(".")[0]
    folder = "nvidia/cuda_runtime" if int(major) < 13 else f"nvidia/cu{major}"
    return f"{folder}/lib/libcudart.so.{major}"


def _capabilities(codes: Iterable[str]) -> list[str]:
    """What machine code is made for: `90` of `sm_90`."""
    return [one.removeprefix("sm_") for one in codes if one.startswith("sm_")]


def _arch_list(codes: Iterable[str]) -> str:
    """For torch's extension builder: `8.0;9.0;12.0+PTX`."""
    named = [re.sub(r"^(\d+)(\d[af]?)$", r"\1.\2", one) for one in _capabilities(codes)]
    return ";".join([*named[:-1], f"{named[-1]}+PTX"]) if named else ""


def _build_files(row: Row) -> dict[str, bytes]:
    # uv.txt is a link to the project's own: images and `make` have the same uv.
    folder = resources.files("images").joinpath("templates", "files")
    wanted = {"build/bytecode.py": "bytecode.py", "build/sbom.py": "sbom.py", "uv.txt": "uv.txt"}
    if row.efa is not None or row.kind == "nccl-tests":
        wanted["build/fetch.py"] = "fetch.py"
    return {name: folder.joinpath(file).read_bytes() for name, file in wanted.items()}


def _project(row: Row) -> dict[str, bytes]:
    if row.kind == "nccl-tests":
        return {}
    package = code.controller_package() if row.kind == "controller" else code.training_package()
    return {f"trainyard/{name}": content for name, content in package.items()}


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415 - only whoever renders pays for it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("images", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - it is a Dockerfile; values from outside are checked above
    )
    environment.filters["quoted"] = functools.partial(json.dumps, ensure_ascii=False)  # tojson escapes for HTML
    return environment


def _dockerfile(row: Row, values: Mapping[str, Any]) -> str:
    name = "ngc" if row.variant == "ngc" else row.kind
    text = _templates().get_template(f"{name}.Dockerfile.j2").render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
