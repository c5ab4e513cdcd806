"""What is there: driver, GPUs and fabric of the machine; torch, NCCL and libraries of the image.

Nothing here starts CUDA, which a process must not have done before it forks workers.
"""

import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_AMAZON, _MELLANOX = "0x1d0f", "0x15b3"
_NOT_SEARCHED: Final = frozenset({"/proc", "/sys", "/dev"})


@dataclass(frozen=True)
class Machine:
    """The machine as this container sees it."""

    architecture: str
    """`amd64`, `arm64`."""
    driver: str | None = None
    """Version of NVIDIA's kernel module; None where there is none."""
    cuda_library: str | None = None
    """Real path of the libcuda that programs load."""
    cuda: str | None = None
    """Newest CUDA that this libcuda can run."""
    capabilities: tuple[str, ...] = ()
    """Compute capability of each GPU: `9.0`."""
    fabrics: frozenset[str] = frozenset()
    """`efa`, `infiniband`: devices that are there and handed to this container."""


@dataclass(frozen=True)
class Installed:
    """What of the image a job would use."""

    torch: str | None = None
    cuda: str | None = None
    """That torch was built for."""
    nccl: str | None = None
    """As torch's NCCL itself says."""
    nccl_files: tuple[str, ...] = ()
    """Every NCCL on the library paths, by real path."""
    plugin: bool | None = None
    """Whether the plugin's file is there; None where the facts name none."""
    verbs: bool | None = None
    """Whether libibverbs can be loaded; None: nobody asked."""
    trouble: str | None = None
    """Why torch cannot be imported."""


def look(root: Path = Path("/")) -> Machine:
    """Look at the machine.

    Args:
        root: where `/proc`, `/sys` and `/dev` are.
    """
    machine = Machine(
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        driver=driver(root),
        fabrics=frozenset(fabrics(root)),
    )
    if machine.driver is None:
        return machine
    library, cuda = _libcuda()
    return replace(machine, cuda_library=library, cuda=cuda, capabilities=_capabilities())


def driver(root: Path) -> str | None:
    """Version of NVIDIA's kernel module: it counts, not that of the libraries beside it."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found.group(1) if found else None


def fabrics(root: Path) -> Iterator[str]:
    """Fabrics whose devices this container may open; `/sys` alone shows the whole machine's."""
    if not any((root / "dev/infiniband").glob("uverbs*")):
        return
    names = {_AMAZON: "efa", _MELLANOX: "infiniband"}
    for file in (root / "sys/class/infiniband").glob("*/device/vendor"):
        try:
            name = names.get(file.read_text(encoding="utf-8").strip())
        except OSError:
            continue
        if name is not None:
            yield name


def installed(plugin_file: str | None, *, verbs: bool = False) -> Installed:
    """Look at the image. torch is imported, where it can be.

    Args:
        plugin_file: where the EFA plugin should be.
        verbs: whether libibverbs is needed.
    """
    found = Installed(
        nccl_files=tuple(nccl_on_paths()),
        plugin=None if plugin_file is None else Path(plugin_file).is_file(),
        verbs=why_not_loaded("libibverbs.so.1") is None if verbs else None,
    )
    try:
        import torch  # noqa: PLC0415 - seconds, where it is not loaded yet
    except (ImportError, OSError) as error:
        return replace(found, trouble=str(error))
    try:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):  # a build without NCCL
        nccl = None
    return replace(found, torch=torch.__version__, cuda=torch.version.cuda, nccl=nccl)


def nccl_on_paths() -> list[str]:
    """NCCL in the folders of which the loader, or torch, would take it: real files, in the order of the folders."""
    folders = [
        *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
        *_configured(),
        *(f"{path}/nvidia/nccl/lib" for path in sys.path),
    ]
    found = [
        os.path.realpath(file)
        for folder in dict.fromkeys(folders)
        if folder
        for file in sorted(Path(folder).glob("libnccl.so*"))
    ]
    preloaded = [one for one in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if "libnccl.so" in one]
    return list(dict.fromkeys([*map(os.path.realpath, preloaded), *found]))


def _configured() -> Iterator[str]:
    """Folders of the loader's configuration, and its own."""
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        yield from (line.strip() for line in lines if line.strip().startswith("/"))
    machine = platform.machine()
    yield from (f"/usr/lib/{machine}-linux-gnu", "/usr/local/lib", "/usr/lib64", "/usr/lib")


def nccl_anywhere(root: str = "/") -> list[str]:
    """Every NCCL in the image, wherever it lies: real files."""
    found = set()
    for folder, folders, files in os.walk(root):
        folders[:] = [one for one in folders if os.path.join(folder, one) not in _NOT_SEARCHED]  # noqa: PTH118
        found |= {os.path.realpath(os.path.join(folder, one)) for one in files if one.startswith("libnccl.so")}  # noqa: PTH118
    return sorted(found)


def why_not_loaded(file: str) -> str | None:
    """What keeps a library from being loaded; None: nothing."""
    try:
        ctypes.CDLL(file)
    except OSError as error:
        return str(error)
    return None


def _libcuda() -> tuple[str | None, str | None]:
    """File and CUDA version of libcuda. Asking for its version starts nothing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        answered = library.cuDriverGetVersion(ctypes.byref(number)) == 0
    except (OSError, AttributeError):
        return None, None
    version = f"{number.value // 1000}.{number.value % 1000 // 10}" if answered else None
    return next(_mapped("libcuda.so"), None), version


def _mapped(name: str) -> Iterator[str]:
    """Files of this process whose name begins so."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        file = line.partition("/")[2]
        if Path(file).name.startswith(name):
            yield f"/{file}"


def _capabilities() -> tuple[str, ...]:
    """Of all GPUs, from NVML, which needs no CUDA. Empty where NVML is not there or does not answer."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return ()
        try:
            return tuple(_each_capability(nvml))
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return ()


def _each_capability(nvml: ctypes.CDLL) -> Iterable[str]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return
    for index in range(count.value):
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
            continue
        if nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == 0:
            yield f"{major.value}.{minor.value}"
