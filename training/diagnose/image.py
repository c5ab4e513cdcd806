"""Compares what an image was built for with the machine that it runs on.

In an image (there is `/etc/trainyard/image.json`, or what TRAINYARD_IMAGE_FACTS names) `python -m training` does this
before it starts workers; elsewhere it does nothing. What can never work here, a driver that is too old or GPUs for
which torch has no code, ends the launcher with exit code 78: starting the same image again on this machine is
pointless. Everything else is one warning each. TRAINYARD_IMAGE_CHECK=warn makes warnings of errors, too.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from training.diagnose import facts as built_facts
from training.diagnose import machine as seen
from training.diagnose.facts import Facts, FactsError
from training.diagnose.machine import Installed, Machine
from training.launch import exit_codes
from training.launch.environment import IMAGE_CHECK

__all__ = ["Facts", "FactsError", "Finding", "Report", "at_start", "compare", "compare_built", "examine"]

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that does not fit."""

    what: str
    """`driver`, `gpu`, `libcuda`, `torch`, `nccl`, `plugin`, `fabric`."""
    severity: Severity
    message: str


@dataclass(frozen=True)
class Report:
    """The result of the check."""

    facts: Facts
    machine: Machine | None
    """None: only the image was looked at."""
    installed: Installed
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        """What keeps a job from being started."""
        return [one for one in self.findings if one.severity == "error"]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        machine = None
        if self.machine is not None:
            machine = asdict(self.machine) | {"fabrics": sorted(self.machine.fabrics)}
        return {
            "built": asdict(self.facts),
            "machine": machine,
            "installed": asdict(self.installed),
            "findings": [asdict(one) for one in self.findings],
        }

    def text(self) -> str:
        """For people."""
        lines = [f"image {self.facts.row}: torch {self.installed.torch}, NCCL {self.installed.nccl}"]
        if self.machine is not None:
            gpus = ", ".join(sorted(set(self.machine.capabilities))) or "none that NVML shows"
            driver = f"NVIDIA driver {self.machine.driver}" if self.machine.driver else "no NVIDIA driver"
            lines.append(f"machine: {driver}; compute capability of its GPUs: {gpus}")
        lines += [f"{one.severity}: {one.message}" for one in self.findings]
        return "\n".join(lines if self.findings else [*lines, "everything fits"])


def at_start() -> int | None:
    """The launcher's check: say what does not fit.

    Returns:
        The exit code where no job can run; None where it may start.
    """
    file = built_facts.path()
    if file is None:
        return None
    try:
        report = examine(file)
    except FactsError as error:
        _say("warning", str(error))
        return None
    for one in report.findings:
        _say(one.severity, one.message)
    return exit_codes.DO_NOT_RESTART if report.errors else None


def _say(severity: str, message: str) -> None:
    sys.stderr.write(f"python -m training: image, {severity}: {message}\n")
    sys.stderr.flush()


def examine(file: Path | None = None, *, built: bool = False) -> Report:
    """Look and compare.

    Args:
        file: the facts; absent: this image's.
        built: look at the image alone, while it is built; every difference is an error.

    Raises:
        FactsError: there are no facts, or they cannot be read.
    """
    file = file or built_facts.path()
    if file is None:
        raise FactsError(
            f"this is no image of Trainyard's: there is no {built_facts.FILE}, and {built_facts.VARIABLE} names no file"
        )
    facts = built_facts.read(file)
    architecture = seen.ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    plugin_file = facts.plugin_files.get(architecture)
    if built:
        installed = seen.installed(plugin_file)
        found = compare_built(facts, installed, seen.nccl_anywhere(), plugin_file)
        return Report(facts, None, installed, tuple(found))
    machine = seen.look()
    installed = seen.installed(plugin_file, verbs="infiniband" in machine.fabrics)
    findings = tuple(compare(facts, machine, installed))
    if os.environ.get(IMAGE_CHECK) == "warn":
        findings = tuple(Finding(one.what, "warning", one.message) for one in findings)
    return Report(facts, machine, installed, findings)


def compare(facts: Facts, machine: Machine, installed: Installed) -> Iterator[Finding]:
    """What does not fit, the machine's first."""
    if facts.cuda is not None and machine.driver is not None:
        yield from _driver(facts, machine)
        yield from _gpus(facts, machine)
    yield from _fabric(facts, machine, installed)
    for what, message in _differences(facts, installed):
        yield Finding(what, "warning", f"{message} Something was installed into the image after it was built.")
    if len(installed.nccl_files) > 1:
        yield Finding(
            "nccl",
            "warning",
            f"there are several NCCL on the library paths, and which one runs depends on their order: "
            f"{', '.join(installed.nccl_files)}. Keep one; LD_LIBRARY_PATH should name none.",
        )


def _driver(facts: Facts, machine: Machine) -> Iterator[Finding]:
    assert machine.driver is not None  # noqa: S101
    library = _version_of(machine.cuda_library)
    forward = library is not None and _numbers(library) > _numbers(machine.driver)
    enough = machine.cuda is not None and _numbers(machine.cuda) >= _numbers(facts.cuda or "0")
    if facts.minimum_driver and _numbers(machine.driver) < _numbers(facts.minimum_driver):
        old = (
            f"the machine has NVIDIA driver {machine.driver}, this image (CUDA {facts.cuda}) wants"
            f" {facts.minimum_driver} or newer"
        )
        if not (forward and enough):
            yield Finding("driver", "error", f"{old}: update the driver, or take an image with an older CUDA.")
            return
        yield Finding(
            "driver",
            "warning",
            f"{old}; CUDA's compatibility library {machine.cuda_library} bridges that, on data-center GPUs only (others"
            " fail with error 804).",
        )
    elif library is not None and _numbers(library) < _numbers(machine.driver):
        yield Finding(
            "libcuda",
            "warning",
            f"{machine.cuda_library} is older than the driver {machine.driver}: CUDA will fail with error 803. A"
            " compatibility library stands before the driver's own; take it out of LD_LIBRARY_PATH and"
            " /etc/ld.so.conf.d.",
        )


def _version_of(library: str | None) -> str | None:
    """`580.65.06` of `/usr/lib/…/libcuda.so.580.65.06`."""
    found = re.search(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)$", library or "")
    return found.group(1) if found else None


def _gpus(facts: Facts, machine: Machine) -> Iterator[Finding]:
    codes = facts.sm.get(machine.architecture, ())
    if not codes:
        return
    without = sorted({one for one in machine.capabilities if not has_code(one, codes)}, key=_numbers)
    if not without:
        return
    every = len(without) == len(set(machine.capabilities))
    yield Finding(
        "gpu",
        "error" if every else "warning",
        f"torch in this image has no code for GPUs of compute capability {', '.join(without)} (it has "
        f"{', '.join(codes)}): each kernel would fail with 'no kernel image'. Take an image whose list has them, see"
        " `trainyard images matrix`.",
    )


def has_code(capability: str, codes: tuple[str, ...]) -> bool:
    """Whether a GPU can run one of the codes.

    Machine code (`sm_80`) runs on GPUs of the same major number that are not older; of an architecture alone (`sm_90a`)
    on exactly that; `compute_90` is compiled for whatever is not older.
    """
    major, minor = _numbers(capability)[:2]
    for code in codes:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
        if found is None:
            continue
        kind, its_major, its_minor, only = found[1], int(found[2]), int(found[3]), found[4]
        same = (its_major, its_minor) == (major, minor)
        if same or (only != "a" and its_major == major and its_minor <= minor):
            return True
        if kind == "compute" and not only and (its_major, its_minor) <= (major, minor):
            return True
    return False


def _fabric(facts: Facts, machine: Machine, installed: Installed) -> Iterator[Finding]:
    if "efa" in machine.fabrics:
        if facts.plugin is None:
            yield Finding(
                "plugin",
                "warning",
                f"this machine has EFA, and image {facts.row} lacks the plugin through which NCCL uses it: NCCL takes"
                " TCP, many times slower. Take the image whose name ends with -efa.",
            )
        elif installed.plugin is False:
            path = facts.plugin_files.get(machine.architecture)
            yield Finding(
                "plugin",
                "warning",
                f"the EFA plugin is no longer at {path}: NCCL takes TCP, many times slower. Something hides or removed"
                " it; a volume over /opt, for instance.",
            )
    if "infiniband" in machine.fabrics and installed.verbs is False:
        yield Finding(
            "fabric",
            "warning",
            f"this machine has InfiniBand, and image {facts.row} lacks libibverbs: NCCL takes TCP, many times slower."
            " Take the image whose name ends with -infiniband.",
        )


def _differences(facts: Facts, installed: Installed) -> Iterator[tuple[str, str]]:
    """Where the image is not what was built."""
    if facts.torch is None:
        return
    if installed.torch is None:
        yield "torch", f"torch {facts.torch} was built in, and cannot be imported: {installed.trouble}."
        return
    if installed.torch.partition("+")[0] != facts.torch:
        yield "torch", f"torch {facts.torch} was built in, and {installed.torch} is there."
    if facts.cuda is None:
        return
    if installed.cuda is None or _numbers(installed.cuda)[:2] != _numbers(facts.cuda)[:2]:
        yield "torch", f"torch for CUDA {facts.cuda} was built in, and it is for {installed.cuda or 'CPUs'}."
    if installed.nccl != facts.nccl:
        yield "nccl", f"NCCL {facts.nccl} was built in, and {installed.nccl or 'none'} is loaded."


def compare_built(
    facts: Facts, installed: Installed, nccl_files: list[str], plugin_file: str | None
) -> Iterator[Finding]:
    """What an image must have when it is built.

    Args:
        facts: what it should be.
        installed: what it is.
        nccl_files: every NCCL in it.
        plugin_file: where the plugin should be; None where none is installed by us.
    """
    for what, message in _differences(facts, installed):
        yield Finding(what, "error", message)
    wanted = 1 if facts.torch is not None and facts.cuda is not None else None
    if len(nccl_files) > 1 or (wanted is not None and len(nccl_files) != wanted):
        there = ", ".join(nccl_files) or "none"
        yield Finding("nccl", "error", f"exactly one NCCL belongs into the image; there is: {there}.")
    if plugin_file is None:
        return
    if not installed.plugin:
        yield Finding("plugin", "error", f"the EFA plugin is not at {plugin_file}.")
        return
    for library in (plugin_file, "libcudart.so"):
        reason = seen.why_not_loaded(library)
        if reason is not None and "libcuda.so.1" not in reason:  # that one comes from the machine
            yield Finding("plugin", "error", f"{library} cannot be loaded: {reason}.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
