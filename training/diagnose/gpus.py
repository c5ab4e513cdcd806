"""What nvidia-smi says of the GPUs: errors of memory, throttling, temperature, and a GPU that does not answer.

Both of its formats are read, `-q -x` (XML) and `--query-gpu=... --format=csv`, as drivers from 470 on write them. Names
have changed on the way: what holds the clock back is `clocks_throttle_reasons` up to 535 and `clocks_event_reasons`
since; errors that are not corrected are `double_bit` for old GPUs, split by memory (`dram`, `sram`) for newer ones, and
`sram` once more by how they were found (parity, SEC-DED) in newer drivers.
"""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final
from xml.etree import ElementTree

# A driver that hangs answers nobody, and nvidia-smi waits with it.
PATIENCE: Final = timedelta(seconds=60)
HOT: Final = 85
"""Degrees Celsius from which a data-center GPU is near the point where its clock is lowered."""
COLUMNS: Final = (
    "index,uuid,name,driver_version,pci.bus_id,temperature.gpu,power.draw,power.limit,utilization.gpu,memory.used,"
    "memory.total,ecc.errors.uncorrected.volatile.total"
)
# What holds a clock back without being a fault.
_HARMLESS: Final = frozenset({"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clocks_setting"})
_MEANINGS: Final = {
    "sw_power_cap": "its power limit",
    "hw_slowdown": "the hardware (heat or power)",
    "hw_thermal_slowdown": "the hardware, for heat",
    "hw_power_brake_slowdown": "the power supply (power brake)",
    "sw_thermal_slowdown": "the driver, for heat",
}
# Of NVIDIA's list of Xid errors those that end a GPU's work; others are mostly a program's.
XIDS: Final = {
    31: "a memory page fault: mostly the program's",
    43: "a program's fault; the GPU is well",
    45: "a program was ended",
    48: "an uncorrectable memory error",
    63: "a memory row or page was marked for replacement: reset the GPU",
    64: "a memory row or page could not be replaced: replace the GPU",
    74: "an NVLink error: replace or reset",
    79: "the GPU has fallen off the bus: replace the node",
    92: "many corrected memory errors",
    94: "a contained memory error: restart the program",
    95: "an uncontained memory error: reset the GPU",
    119: "the GPU's system processor does not answer: reset the GPU",
    120: "an error of the GPU's system processor: reset the GPU",
    140: "an unrecovered memory error",
}
# Those after which the program may just be started again.
_PROGRAMS: Final = frozenset({13, 31, 43, 45})
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\):? (\d+)")


class GpuError(Exception):
    """nvidia-smi is missing, fails, or writes what nobody can read; the message is for the user."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. None: this driver or GPU does not say.

    Attributes:
        index: its number on this machine.
        bus: its place, as `00000000:59:00.0`.
        temperature: degrees Celsius.
        power, power_limit: watts.
        memory_used, memory_total: MiB.
        uncorrected: memory errors that were not corrected since the driver was loaded.
        pending: memory that is to be replaced at the next reset.
        throttled: what holds its clock back, by NVIDIA's names.
        trouble: why nvidia-smi could not ask it.
    """

    index: int
    bus: str | None = None
    name: str | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    utilization: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    uncorrected: int | None = None
    pending: bool = False
    throttled: tuple[str, ...] = ()
    trouble: str | None = None

    def problems(self) -> Iterator[str]:
        """What is wrong with it, as sentences."""
        if self.trouble:
            yield f"GPU {self.index} does not answer ({self.trouble}): reset or replace it"
        if self.uncorrected:
            yield f"GPU {self.index} has {self.uncorrected} memory errors that were not corrected: reset or replace it"
        if self.pending:
            yield f"GPU {self.index} has memory that waits for replacement: reset it while no program runs"
        for reason in self.throttled:
            if reason not in _HARMLESS:
                yield f"GPU {self.index} is slowed down by {_MEANINGS.get(reason, reason)}"
        if self.temperature is not None and self.temperature >= HOT:
            yield f"GPU {self.index} is at {self.temperature:g} degrees Celsius: look at the cooling"


@dataclass(frozen=True)
class Report:
    """All GPUs of a machine."""

    driver: str | None
    gpus: tuple[Gpu, ...]
    xids: tuple[str, ...] = ()
    """Errors of the kernel log, as sentences."""

    def problems(self) -> list[str]:
        """What is wrong, as sentences."""
        models = {gpu.name for gpu in self.gpus if gpu.name}
        mixed = [f"different GPUs in one machine: {', '.join(sorted(models))}"] if len(models) > 1 else []
        return [problem for gpu in self.gpus for problem in gpu.problems()] + mixed + list(self.xids)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"driver": self.driver, "gpus": [asdict(gpu) for gpu in self.gpus], "problems": self.problems()}

    def text(self) -> str:
        """For people."""
        lines = [f"driver {self.driver or 'unknown'}, {len(self.gpus)} GPUs"]
        for gpu in self.gpus:
            figures = (
                _figure(gpu.temperature, "C"),
                _figure(gpu.power, "W"),
                _figure(gpu.utilization, "% busy"),
                f"{_figure(gpu.memory_used, '')}/{_figure(gpu.memory_total, 'MiB')}",
            )
            lines.append(f"  GPU {gpu.index} {gpu.name or ''} {gpu.bus or ''}: {', '.join(figures)}")
        return "\n".join([*lines, *(self.problems() or ["nothing is wrong with them"])])


def _figure(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:g} {unit}".strip()


def ask() -> Report:
    """Run nvidia-smi.

    Raises:
        GpuError: it is missing, or does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise GpuError("there is no nvidia-smi: this machine has no NVIDIA driver, or the container does not get it")
    try:
        done = subprocess.run(
            [program, "-q", "-x"], capture_output=True, text=True, timeout=PATIENCE.total_seconds(), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GpuError(
            f"nvidia-smi has not answered for {PATIENCE.total_seconds():g} s: the driver hangs; look for Xid errors "
            "in `dmesg`, and reboot the node"
        ) from error
    if done.returncode != 0 and "<nvidia_smi_log>" not in done.stdout:
        raise GpuError(f"nvidia-smi failed ({done.returncode}): {(done.stdout + done.stderr).strip()}")
    return of_xml(done.stdout)


def of_text(text: str) -> Report:
    """Read either format.

    Raises:
        GpuError: it is neither.
    """
    return of_xml(text) if "<nvidia_smi_log>" in text else of_csv(text)


def of_xml(text: str) -> Report:
    """Read what `nvidia-smi -q -x` has written.

    Raises:
        GpuError: it is no such output.
    """
    # The document type names a file of NVIDIA's that is nowhere, and entities have no place here.
    body = re.sub(r"<!DOCTYPE[^>]*>", "", text[max(0, text.find("<nvidia_smi_log>")) :])
    try:
        root = ElementTree.fromstring(body)  # noqa: S314  (no entities without a document type)
    except ElementTree.ParseError as error:
        raise GpuError(f"this is no output of `nvidia-smi -q -x`: {error}") from error
    gpus = tuple(_of_element(index, element) for index, element in enumerate(root.findall("gpu")))
    return Report(_said(root.findtext("driver_version")), gpus)


def _of_element(index: int, gpu: ElementTree.Element) -> Gpu:
    power = next(
        (found for tag in ("gpu_power_readings", "power_readings") if (found := gpu.find(tag)) is not None), None
    )
    power = ElementTree.Element("none") if power is None else power
    draws = (power.findtext(tag) for tag in ("instant_power_draw", "power_draw", "average_power_draw"))
    limits = (power.findtext(tag) for tag in ("current_power_limit", "enforced_power_limit", "power_limit"))
    return Gpu(
        index=index,
        bus=gpu.get("id"),
        name=_said(gpu.findtext("product_name")),
        temperature=_number(gpu.findtext("temperature/gpu_temp")),
        power=_first(draws),
        power_limit=_first(limits),
        utilization=_number(gpu.findtext("utilization/gpu_util")),
        memory_used=_number(gpu.findtext("fb_memory_usage/used")),
        memory_total=_number(gpu.findtext("fb_memory_usage/total")),
        uncorrected=_uncorrected(gpu.find("ecc_errors/volatile")),
        pending=_is_pending(gpu),
        throttled=tuple(_throttled(gpu)),
        trouble=_trouble(gpu),
    )


def _uncorrected(volatile: ElementTree.Element | None) -> int | None:
    if volatile is None:
        return None
    counts = [
        number
        for element in volatile.iter()
        if ("uncorrectable" in element.tag or element.tag == "total")
        and (element.tag != "total" or _is_below(volatile, "double_bit", element))
        and (number := _number(element.text)) is not None
    ]
    return round(sum(counts)) if counts else None


def _is_below(root: ElementTree.Element, tag: str, wanted: ElementTree.Element) -> bool:
    """Whether an element is inside one of this name."""
    return any(child is wanted for element in root.iter(tag) for child in element.iter())


def _is_pending(gpu: ElementTree.Element) -> bool:
    pages = gpu.findtext("retired_pages/pending_blacklist") or gpu.findtext("retired_pages/pending_retirement")
    rows = gpu.findtext("remapped_rows/remapped_row_pending") or gpu.findtext("row_remapper/row_remapper_pending")
    failed = gpu.findtext("remapped_rows/remapped_row_failure") or gpu.findtext("row_remapper/row_remapper_failure")
    return any((said or "").strip().lower() == "yes" for said in (pages, rows, failed))


def _throttled(gpu: ElementTree.Element) -> Iterator[str]:
    for name, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        reasons = gpu.find(name)
        for reason in () if reasons is None else reasons:
            if (reason.text or "").strip() == "Active":
                yield reason.tag.removeprefix(prefix)


def _trouble(gpu: ElementTree.Element) -> str | None:
    """Fields that say that the GPU is lost or in an error, where a figure belongs."""
    marks = ("GPU is lost", "Unknown Error", "ERR!", "GPU requires reset")
    for element in gpu.iter():
        if (text := (element.text or "").strip().strip("[]")) in marks:
            return f"{element.tag}: {text}"
    return None


def of_csv(text: str) -> Report:
    """Read what `nvidia-smi --query-gpu=... --format=csv` has written, with any columns, units or none.

    Raises:
        GpuError: there is no line with names of columns.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    start = next(
        (number for number, line in enumerate(lines) if re.match(r"(?:index|name|uuid|pci\.bus_id)\b", line)), None
    )
    if start is None:
        raise GpuError(
            "this is no output of nvidia-smi: give that of `nvidia-smi -q -x`, or of `nvidia-smi --format=csv "
            f"--query-gpu={COLUMNS}` with the line of names"
        )
    names = [re.sub(r" \[.*\]$", "", name.strip()) for name in lines[start].split(",")]
    gpus, driver = [], None
    for number, cells in enumerate(csv.reader(lines[start + 1 :], skipinitialspace=True)):
        row = dict(zip(names, cells, strict=False))
        driver = driver or _said(row.get("driver_version"))
        gpus.append(_of_row(number, row))
    return Report(driver, tuple(gpus))


def _of_row(number: int, row: Mapping[str, str]) -> Gpu:
    errors = _number(row.get("ecc.errors.uncorrected.volatile.total"))
    reasons = {
        name.rpartition(".")[2]
        for name, said in row.items()
        if name.startswith(("clocks_throttle_reasons.", "clocks_event_reasons.")) and said.strip() == "Active"
    }
    broken = next(
        (said for said in row.values() if said.strip("[] ") in {"GPU is lost", "Unknown Error", "ERR!"}), None
    )
    index = _number(row.get("index"))
    return Gpu(
        index=number if index is None else int(index),
        bus=_said(row.get("pci.bus_id")),
        name=_said(row.get("name")),
        temperature=_number(row.get("temperature.gpu")),
        power=_number(row.get("power.draw") or row.get("power.draw.instant")),
        power_limit=_number(row.get("power.limit")),
        utilization=_number(row.get("utilization.gpu")),
        memory_used=_number(row.get("memory.used")),
        memory_total=_number(row.get("memory.total")),
        uncorrected=None if errors is None else int(errors),
        throttled=tuple(sorted(reasons)),
        trouble=broken.strip("[] ") if broken else None,
    )


def xids(text: str) -> list[str]:
    """The Xid errors of a kernel log, as sentences, each GPU and number once."""
    found = dict.fromkeys((bus, int(number)) for bus, number in _XID.findall(text))
    return [
        f"Xid {number} of the GPU at {bus}: {XIDS.get(number, 'see the list of Xid errors of NVIDIA')}"
        for bus, number in found
        if number not in _PROGRAMS
    ]


def _said(text: str | None) -> str | None:
    """None for what stands where nothing is known: N/A, [N/A], [Not Supported], [Unknown Error]."""
    text = (text or "").strip()
    return text if text and not re.fullmatch(r"\[?(?:N/A|Not Supported|Unknown Error|GPU is lost)\]?", text) else None


def _number(text: str | None) -> float | None:
    """The figure of `61 C`, `119.30 W`, `0`."""
    found = re.match(r"-?\d+(?:\.\d+)?", (text or "").strip())
    return float(found[0]) if found else None


def _first(texts: Iterator[str | None]) -> float | None:
    return next((number for text in texts if (number := _number(text)) is not None), None)
