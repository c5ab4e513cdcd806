"""Rules on the variables that every process of the image gets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.lint.document import Instruction
from images.lint.rule import Problem, Subject, rule
from infra.catalog.variables import bad_variable

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_MOST_FOLDERS = 4
_EXCLUDED = ("lo", "docker", "veth", "eni", "pod-id-link0")
"""Interfaces that are up and lead to no other machine: of containers, of the CNI, and of EKS Pod Identity."""
_NCCL_CONF = re.compile(r"^\s*(NCCL_DEBUG|NCCL_SOCKET_IFNAME)\s*=\s*(\S+)", re.MULTILINE)


def efa_is_fabric(subject: Subject) -> bool:
    """Whether the image is for EFA: by its row, or because it installs it; a file without a row may be for it."""
    if subject.row is None:
        return "FI_" in subject.document.text or "efa" in subject.document.text.lower()
    return subject.row.plugin is not None


def _set(subject: Subject) -> Iterator[tuple[str, str, Instruction]]:
    """Variables of the last stage, and lines that a RUN or COPY writes into NCCL's own file."""
    for name, (value, one) in subject.document.last.environment().items():
        yield name, value, one
    for one in subject.document.last.inherited("RUN", "COPY"):
        if "nccl.conf" in one.text:
            for found in _NCCL_CONF.finditer(re.sub(r"[\"'>]|\becho\b|\bprintf\b", " ", one.text)):
                yield found[1], found[2], one


@rule(
    "env-obsolete",
    "No variable of NCCL, libfabric or torch that is without effect or harmful",
    reason="Samples carry settings of old plugins on for years. Today some do nothing; others turn the plugin's own "
    "choice off, which shows only as slow training. What is harmful is an error, the rest a warning; "
    "`infra/catalog/variables.toml` has each with its reason.",
    source="https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md",
    remedy="Take it away. What one job needs, set in that job.",
    wrong=f"{_BASE}\nENV NCCL_PROTO=simple FI_PROVIDER=efa\nUSER 65532\n",
    right=f"{_BASE}\nENV TORCH_NCCL_TRACE_BUFFER_SIZE=2000\nUSER 65532\n",
)
def env_obsolete(subject: Subject) -> Iterator[Problem]:
    """Look the variables of the last stage up."""
    for name, (_, one) in subject.document.last.environment().items():
        if known := bad_variable(name, efa=efa_is_fabric(subject)):
            yield Problem(one, f"{name}: {known.reason}", "error" if known.harmful else "warning")


@rule(
    "env-nccl-debug",
    "NCCL_DEBUG is WARN at most",
    reason="INFO writes hundreds of lines a process at every start, and at every restart of an elastic job: logs that "
    "cost money and hide the one line that matters.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug",
    remedy="Write NCCL_DEBUG=WARN; set INFO in the job that you look at.",
    severity="warning",
    wrong=f"{_BASE}\nENV NCCL_DEBUG=INFO\nUSER 65532\n",
    right=f"{_BASE}\nENV NCCL_DEBUG=WARN\nUSER 65532\n",
)
def env_nccl_debug(subject: Subject) -> Iterator[Problem]:
    """Look at the variable, and at /etc/nccl.conf."""
    for name, value, one in _set(subject):
        if name == "NCCL_DEBUG" and value.upper() not in {"WARN", "VERSION", ""}:
            yield Problem(one, f"NCCL_DEBUG is {value}")


@rule(
    "env-socket-ifname",
    "NCCL_SOCKET_IFNAME excludes what leads nowhere, and names no interface",
    reason="`eth0` is the name of no interface on AL2023: ranks find none. And without `pod-id-link0` among the "
    "excluded, ranks on clusters with EKS Pod Identity call 169.254.170.23, which is not another rank.",
    source="https://github.com/aws-samples/aws-do-eks/pull/54",
    remedy="Write NCCL_SOCKET_IFNAME=^lo,docker,veth,eni,pod-id-link0.",
    wrong=f"{_BASE}\nENV NCCL_SOCKET_IFNAME=eth0\nUSER 65532\n",
    right=f"{_BASE}\nENV NCCL_SOCKET_IFNAME=^lo,docker,veth,eni,pod-id-link0\nUSER 65532\n",
)
def env_socket_ifname(subject: Subject) -> Iterator[Problem]:
    """Look at the variable, and at /etc/nccl.conf."""
    for name, value, one in _set(subject):
        if name != "NCCL_SOCKET_IFNAME":
            continue
        if not value.startswith("^"):
            yield Problem(one, f"NCCL_SOCKET_IFNAME={value} names interfaces, which differ by machine")
        elif missing := [each for each in _EXCLUDED if each not in value[1:].split(",")]:
            yield Problem(one, f"NCCL_SOCKET_IFNAME does not exclude {', '.join(missing)}")


@rule(
    "env-compat",
    "CUDA's compat libraries are in no search path",
    reason="They are a driver for older kernels. On a newer driver they end every CUDA call with error 803 or 804, so "
    "that an image that runs today breaks with the next AMI.",
    source="https://github.com/gpustack/gpustack/issues/4678",
    remedy="Take the folder away; the machine's driver is new enough, which the row's driver floor ensures.",
    wrong=f"{_BASE}\nENV LD_LIBRARY_PATH=/usr/local/cuda/compat\nUSER 65532\n",
    right=f"{_BASE}\nENV LD_LIBRARY_PATH=/opt/amazon/efa/lib\nUSER 65532\n",
)
def env_compat(subject: Subject) -> Iterator[Problem]:
    """Look at the path of libraries and at what is written for ldconfig."""
    for name, (value, one) in subject.document.last.environment().items():
        if name in {"LD_LIBRARY_PATH", "LD_PRELOAD"} and re.search(r"/(compat|stubs)(/|:|$)", value):
            yield Problem(one, f"{name} has {value}")
    for one in subject.document.last.inherited("RUN", "COPY"):
        if "ld.so.conf" in one.text and re.search(r"cuda[^\s]*/compat\b", one.text):
            yield Problem(one, "it puts CUDA's compat folder into the path of ldconfig")


@rule(
    "env-library-path",
    "LD_LIBRARY_PATH is short, and without an empty part",
    reason="Every folder is searched before the system's, by every program: a second NCCL or libfabric in one of them "
    "is loaded without a word. An empty part (`…:$LD_LIBRARY_PATH` where it was not set) is the working folder.",
    source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
    remedy="Write fixed folders into /etc/ld.so.conf.d and run ldconfig; keep at most four here.",
    severity="warning",
    wrong=f"{_BASE}\nENV LD_LIBRARY_PATH=/opt/amazon/efa/lib:$LD_LIBRARY_PATH\nUSER 65532\n",
    right=f"{_BASE}\nENV LD_LIBRARY_PATH=/opt/amazon/efa/lib\nUSER 65532\n",
)
def env_library_path(subject: Subject) -> Iterator[Problem]:
    """Count the folders."""
    found = subject.document.last.environment().get("LD_LIBRARY_PATH")
    if found is None:
        return
    value, one = found
    parts = value.split(":")
    # A name that this file does not set may be set by the base: of NVIDIA's it is.
    from_base = "/cuda" in subject.document.last.image or "nvidia" in subject.document.last.image
    if any(part == "" or (part.startswith("$") and not from_base) for part in parts):
        yield Problem(one, f"LD_LIBRARY_PATH={value} has an empty part")
    if len(parts) > _MOST_FOLDERS:
        yield Problem(one, f"LD_LIBRARY_PATH has {len(parts)} folders")


@rule(
    "env-preload",
    "LD_PRELOAD is not set in the image",
    reason="Every program of the image loads that library, the shell and the health check too. To force one NCCL by it "
    "hides that there are two.",
    source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
    remedy="See that there is one library, and take the variable away.",
    severity="warning",
    wrong=f"{_BASE}\nENV LD_PRELOAD=/opt/nccl/build/lib/libnccl.so\nUSER 65532\n",
    right=f"{_BASE}\nUSER 65532\n",
)
def env_preload(subject: Subject) -> Iterator[Problem]:
    """Look at the variables of the last stage."""
    found = subject.document.last.environment().get("LD_PRELOAD")
    if found and found[0]:
        yield Problem(found[1], f"LD_PRELOAD={found[0]}")
