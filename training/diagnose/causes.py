"""Why has a run failed? What its logs say, by marks that each kind of failure leaves.

Most of what a failed run writes is an echo: a worker dies, and all others report a broken connection or a time-out. So
the list of causes is in the order in which they explain each other, and what is certain counts before what is likely.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from training.diagnose.logs import Line, merged

MOST_EVIDENCE: Final = 5
MOST_LAST_ERRORS: Final = 10
SLOW_SAVE: Final = 60.0
"""Seconds: a checkpoint that takes longer is called slow."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A kind of failure.

    Attributes:
        name: for programs.
        title: for people.
        certain: regular expressions whose match leaves no doubt.
        likely: those whose match may have another reason; they count where nothing is certain.
        next_step: what to do.
    """

    name: str
    title: str
    certain: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    next_step: str


# Sources of the texts: torch (c10d, gloo, NCCL's watchdog), the Linux kernel, Kubernetes' reasons, NVIDIA's list of
# Xid errors, and this project's launcher.
CAUSES: Final = (
    Cause(
        name="gpu-memory",
        title="out of memory on a GPU",
        certain=(
            r"OutOfMemoryError: CUDA out of memory",
            r"CUDA error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"NCCL WARN .*Cuda failure.*out of memory",
        ),
        next_step="Take a smaller batch per rank with more accumulation steps, activation checkpointing or bf16. Where "
        "memory is only fragmented ('reserved but unallocated' is large), set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Look with `nvidia-smi` for another process on the GPU.",
    ),
    Cause(
        name="host-memory",
        title="out of memory on the host",
        certain=(
            r"Out of memory: Killed process",
            r"Memory cgroup out of memory",
            r"oom-kill:",
            r"\bOOMKilled\b",
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"\bMemoryError\b",
            r"OSError: \[Errno 12\] Cannot allocate memory",
            r"insufficient shared memory \(shm\)",
        ),
        likely=(
            r"DataLoader worker \(pid.*\) is killed by signal: Killed",
            r"exitcode\s*: -9\b",
            r"\(exitcode: -9\)",
            r'"exit_code": -9\b',
            r"Exit Code:\s+137",
        ),
        next_step="Compare the container's memory limit with what was used (`kubectl describe pod`: OOMKilled, exit "
        "code 137; `dmesg | grep -i oom`). Raise the limit, take fewer loader workers or less prefetch, or mount a "
        "larger /dev/shm. If the kernel has killed nothing, somebody sent SIGKILL.",
    ),
    Cause(
        name="gpu-fault",
        title="a GPU or its driver has failed",
        certain=(
            r"NVRM: Xid \(PCI:",
            r"GPU has fallen off the bus",
            r"uncorrectable (?:NVLink|ECC) error",
            r"CUDA error: uncorrectable ECC error",
            r"CUDA error: unspecified launch failure",
        ),
        likely=(
            r"CUDA error: an illegal memory access",
            r"CUDA error: device-side assert",
            r"Unable to determine the device handle",
        ),
        next_step="Run `python -m training diagnose gpus` on that node, and look up the Xid in NVIDIA's list. Keep the "
        "node out of the job (`kubectl cordon`) and replace or reset it; a device-side assert or illegal access "
        "without an Xid is the script's (CUDA_LAUNCH_BLOCKING=1 names the line).",
    ),
    Cause(
        name="disk-full",
        title="no space left on a disk",
        certain=(r"No space left on device", r"Disk quota exceeded", r"\bENOSPC\b"),
        next_step="Free space where the line points to, or keep fewer checkpoints (`python -m training checkpoints "
        "prune`). The newest complete checkpoint is not touched by a write that failed.",
    ),
    Cause(
        name="user-error",
        title="an error of the script",
        certain=(
            r"[\w.-]+: (?:unrecognized arguments|the following arguments are required)",
            r"[\w.-]+: argument \S+: (?:invalid|expected)",
        ),
        next_step="Mend the script at the place that is named. It fails in the same way on every node; try it with "
        "`python -m training --standalone`.",
    ),
    Cause(
        name="node-lost",
        title="a node was lost",
        certain=(
            r"node \S+ has died: its launcher's port is closed",
            r"TaintManagerEviction",
            r"NodeNotReady|Node is not ready",
            r"node\.kubernetes\.io/unreachable",
            r"node \S+ is gone",
        ),
        next_step="Look whether the machine still exists (`kubectl get nodes`; the cloud's events: spot reclaim, "
        "maintenance, failure). A reclaimed spot machine gives a notice first: see docs/how-to/notices.md.",
    ),
    Cause(
        name="partition",
        title="the network between nodes, or to etcd, was cut",
        certain=(
            r"No route to host",
            r"Network is unreachable",
            r"for so long that others may train without this node",
            r"Temporary failure in name resolution",
        ),
        likely=(r"etcd does not answer", r"no heartbeat could be sent", r"training goes on$", r"Connection timed out"),
        next_step="Look at the network of the nodes that are named: security groups, network policies, DNS, the links. "
        "Each side's launcher says when it lost etcd; see docs/explanation/fencing.md for what each side then does.",
    ),
    Cause(
        name="sync-timeout",
        title="gradient synchronisation timed out: a rank was silent or late",
        certain=(
            r"Watchdog caught collective operation timeout",
            r"Timed out waiting \d+ms for (?:recv|send) operation",
            r"failed to pass monitoredBarrier in \d+ ms",
            r"Some NCCL operations have failed or timed out",
            r"not all ranks have come within",
        ),
        next_step="Find the rank that did not come: the one without such a line, or with the fewest steps. It may have "
        "hung in data loading or evaluation, or another number of steps. `python -m training diagnose fabric` names a "
        "slow or dead link; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 keeps the collectives of each rank for the next time.",
    ),
    Cause(
        name="slow-storage",
        title="storage was slow or stood still",
        certain=(
            r"nfs: server \S+ not responding",
            r"Lustre: .*slow reply",
            r"LustreError: .*timed out",
            r"task \S+ blocked for more than \d+ seconds",
            r"OSError: \[Errno 5\] Input/output error",
            r"OSError: \[Errno 116\] Stale file handle",
        ),
        likely=(r"DataLoader timed out after \d+ seconds", r"SlowDown|Please reduce your request rate"),
        next_step="Measure the file system from one node (`fio`, or `dd` with a file larger than its cache) and "
        "compare with its throughput limit; for FSx and EFS that grows with size. Put hot data on local disks, and "
        "save beside the training (`training.checkpoint.saver`).",
    ),
)
UNKNOWN: Final = Cause(
    name="unknown",
    title="no known cause",
    next_step="The last error lines are below. Set NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL, and try again.",
)
_BY_NAME: Final = {cause.name: cause for cause in CAUSES}

# What a worker says whose peer is gone: never a cause by itself.
_ECHO: Final = re.compile(
    r"gloo/transport|Connection (?:closed|reset|refused)|Broken pipe|DistBackendError|DistNetworkError|DistStoreError"
    r"|NCCL (?:error|communicator was aborted)|ncclRemoteError|ncclSystemError|recvValue failed|ChildFailedError"
)
_ERROR: Final = re.compile(r"error|exception|fail|fatal|abort|kill|traceback|panic", re.IGNORECASE)
# Files of a traceback that are not the user's.
_NOT_THEIRS: Final = re.compile(
    r"site-packages|dist-packages|<frozen |/lib/python3|training/(?:launch|loop|data|checkpoint)/"
)
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
_RAISED: Final = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout))(?::|$)"
)
_RECOVERY: Final = {"node_lost": "node-lost", "evicted": "partition", "isolated": "partition"}


@dataclass(frozen=True)
class Evidence:
    """A line that speaks for a cause."""

    line: Line
    told: str
    """What it says."""
    is_certain: bool


@dataclass(frozen=True)
class Finding:
    """A cause and the lines that speak for it, the first in time first."""

    cause: Cause
    evidence: tuple[Evidence, ...]

    @property
    def is_certain(self) -> bool:
        """Whether one of its lines leaves no doubt."""
        return any(one.is_certain for one in self.evidence)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cause": self.cause.name,
            "title": self.cause.title,
            "certain": self.is_certain,
            "evidence": [{"place": one.line.place, "time": one.line.time, "text": one.told} for one in self.evidence],
            "next_step": self.cause.next_step,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What logs say: the cause, and what else was seen."""

    verdict: Finding
    also: tuple[Finding, ...]
    last_errors: tuple[Line, ...]
    """Where no cause is known."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.verdict.document(),
            "also": [finding.document() for finding in self.also],
            "last_errors": [{"place": line.place, "time": line.time, "text": line.text} for line in self.last_errors],
        }

    def text(self) -> str:
        """For people."""
        cause = self.verdict.cause
        doubt = "" if self.verdict.is_certain or cause is UNKNOWN else " (likely)"
        lines = [f"{cause.name}: {cause.title}{doubt}"]
        lines += [f"  {one.line.place}: {one.told}" for one in self.verdict.evidence]
        lines += [f"  {line.place}: {line.text}" for line in self.last_errors]
        lines.append(f"next: {cause.next_step}")
        for finding in self.also:
            lines.append(f"also seen: {finding.cause.name}: {finding.cause.title}")
            lines += [f"  {one.line.place}: {one.told}" for one in finding.evidence[:1]]
        return "\n".join(lines)


def diagnose(lines: Sequence[Line]) -> Diagnosis:
    """The cause of a failure, as far as its logs say."""
    ordered = merged(lines)
    found: dict[str, list[Evidence]] = {}
    for name, evidence in [*_marks(ordered), *_tracebacks(ordered), *_events(ordered)]:
        found.setdefault(name, []).append(evidence)
    position = {line: index for index, line in enumerate(ordered)}
    findings = [
        Finding(
            _BY_NAME[name],
            tuple(sorted(every, key=lambda one: (not one.is_certain, position[one.line]))[:MOST_EVIDENCE]),
        )
        for name, every in found.items()
    ]
    findings.sort(key=_place)
    if not findings:
        errors = [line for line in ordered if _ERROR.search(line.text)] or ordered
        return Diagnosis(Finding(UNKNOWN, ()), (), tuple(errors[-MOST_LAST_ERRORS:]))
    return Diagnosis(findings[0], tuple(findings[1:]), ())


# A worker that was killed, probably for memory, still explains a time-out of the others; etcd that was away for a
# moment does not.
_DOUBT: Final = 5


def _place(finding: Finding) -> tuple[int, bool]:
    """What is only likely counts as if it stood a few places later in the list."""
    doubt = 0 if finding.is_certain else _DOUBT
    return list(_BY_NAME).index(finding.cause.name) + doubt, not finding.is_certain


_COMPILED: Final = tuple(
    (cause.name, re.compile(pattern), is_certain)
    for cause in CAUSES
    for patterns, is_certain in ((cause.certain, True), (cause.likely, False))
    for pattern in patterns
)


def _marks(lines: Iterable[Line]) -> Iterator[tuple[str, Evidence]]:
    for line in lines:
        for name, pattern, is_certain in _COMPILED:
            if pattern.search(line.text):
                yield name, Evidence(line, line.body.strip(), is_certain)
                break


def _tracebacks(lines: Iterable[Line]) -> Iterator[tuple[str, Evidence]]:
    """Exceptions of the script itself, each with the deepest place that is the user's."""
    open_ones: dict[tuple[str, str], tuple[Line, str] | None] = {}
    for line in lines:
        key, body = (line.file, line.rank), line.body
        if body.startswith("Traceback (most recent call last)"):
            open_ones[key] = None
        elif key not in open_ones:
            continue
        elif frame := _FRAME.match(body):
            if not _NOT_THEIRS.search(frame[1]):
                open_ones[key] = line, f"{frame[1]}:{frame[2]} in {frame[3]}"
        elif not body.startswith((" ", "\t")):
            place = open_ones.pop(key)
            if place is not None and _is_theirs(body):
                yield "user-error", Evidence(line, f"{place[1]}: {body.strip()}", True)


def _is_theirs(raised: str) -> bool:
    """Whether an exception is neither an echo nor the mark of another cause."""
    is_exception = _RAISED.match(raised) is not None
    return is_exception and not _ECHO.search(raised) and not any(pattern.search(raised) for _, pattern, _ in _COMPILED)


def _events(lines: Iterable[Line]) -> Iterator[tuple[str, Evidence]]:
    """What the launcher and the script say in progress lines."""
    for line in lines:
        event = line.event
        if event.get("trainyard") == "recovery" and (name := _RECOVERY.get(str(event.get("cause")))):
            told = f"recovery, cause {event['cause']}, node {event.get('node') or 'unknown'}"
            yield name, Evidence(line, told, True)
        seconds = event.get("seconds")
        if event.get("trainyard") == "checkpoint" and isinstance(seconds, int | float) and seconds >= SLOW_SAVE:
            told = f"the checkpoint of step {event.get('step')} took {seconds:.0f} s"
            yield "slow-storage", Evidence(line, told, False)
