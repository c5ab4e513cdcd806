"""Rules that hold an image against its row: facts, lock, GPU code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images import requirements
from images.lint.rule import Problem, Subject, rule
from images.matrix import MACHINES

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
LOCK = "requirements.txt"


@rule(
    "row-lock",
    "torch and NCCL of the lock are the row's",
    reason="The row promises a torch, its CUDA and its NCCL: driver floor, plugin and the choice of a pool go by that. "
    "With another version in the lock they speak of another image.",
    source="The matrix, `images/matrix.toml`.",
    remedy="Run `make lock`, or correct the row.",
    row="torch2.15-cuda13.2",
    file=LOCK,
    wrong=f"torch==2.14.1 \\\n    --hash=sha256:{'0' * 64}\n",
    right="torch=={torch} \\\n    --hash=sha256:" + "0" * 64 + "\n",
)
def row_lock(subject: Subject) -> Iterator[Problem]:
    """Compare the lock with the row."""
    row = subject.row
    if row is None or subject.files is None or row.torch is None or row.torch.bundled:
        return
    found = requirements.named("\n".join(subject.lines_of(LOCK)))
    if row.kind == "training" and not any(one.name == "torch" for one in found):
        yield Problem(0, "the lock has no torch", file=LOCK)
    wanted = {"torch": row.torch.version if row.kind == "training" else None, **_nccl(subject)}
    for one in found:
        version = wanted.get(one.name)
        if version and one.version.split("+")[0] != version:
            yield Problem(one.line, f"{one.name} is {one.version}, the row has {version}", file=LOCK)


def _nccl(subject: Subject) -> dict[str, str | None]:
    row = subject.row
    if row is None or row.torch is None:
        return {}
    return {f"nvidia-nccl-cu{major}": row.torch.nccl for major in (12, 13)}


@rule(
    "row-lock-hashes",
    "Every package of the lock has its sums, and one version",
    reason="One package without a sum makes `--require-hashes` end the build, after minutes of downloads.",
    source="https://pip.pypa.io/en/stable/topics/secure-installs/",
    remedy="Run `make lock`.",
    row="torch2.15-cuda13.2",
    file=LOCK,
    wrong="torch=={torch}\n",
    right="torch=={torch} \\\n    --hash=sha256:" + "0" * 64 + "\n",
)
def row_lock_hashes(subject: Subject) -> Iterator[Problem]:
    """Look at every requirement of the locks."""
    for name in subject.files or {}:
        if not re.fullmatch(r"(requirements|uv)\.txt", name):
            continue
        lines = subject.lines_of(name)
        for number, line in enumerate(lines, 1):
            if not line.strip() or line[0] in "# \t-":
                continue
            following = "".join(lines[number - 1 : number + 1])
            if "==" not in line and " @ " not in line:
                yield Problem(number, f"{line.split()[0]} has no version", file=name)
            elif "--hash=" not in following:
                yield Problem(number, f"{line.split()[0]} has no sum", file=name)


@rule(
    "row-facts",
    "image.json says what the row says",
    reason="The start-up check compares the machine with this file: wrong facts refuse good machines, or let bad ones "
    "through.",
    source="The matrix, `images/matrix.toml`.",
    remedy="Render the context anew: `trainyard images render`.",
    row="torch2.15-cuda13.2",
    file="image.json",
    wrong='{"minimum_driver": "470"}\n',
    right='{"minimum_driver": "{driver}"}\n',
)
def row_facts(subject: Subject) -> Iterator[Problem]:
    """Compare the facts that are there with the row."""
    row = subject.row
    if row is None or subject.files is None:
        return
    if "image.json" not in subject.files:
        yield Problem(0, "the context has no image.json", file="image.json")
        return
    wanted = {
        "row": row.name,
        "torch": row.torch.version if row.torch and row.kind == "training" else None,
        "nccl": row.nccl,
        "cuda": row.cuda,
        "minimum_driver": row.minimum_driver,
        "efa_installer": row.efa.version if row.efa else None,
        "libfabric": row.efa.libfabric if row.efa else None,
    }
    for name, value in wanted.items():
        said = subject.facts.get(name)
        if name in subject.facts and value is not None and said != value:
            yield Problem(0, f"{name} is {said!r}, the row has {value!r}", file="image.json")
    sm = subject.facts.get("sm")
    if "sm" in subject.facts and sm != {name: list(codes) for name, codes in row.sm.items()}:
        yield Problem(0, "the GPU code (sm) is not the row's", file="image.json")
    plugin = subject.facts.get("plugin")
    if isinstance(plugin, dict) and plugin.get("version") != row.plugin:
        yield Problem(0, f"the plugin is {plugin.get('version')!r}, the row has {row.plugin!r}", file="image.json")


@rule(
    "row-sm",
    "What is compiled has code for every GPU that the row names",
    reason="A GPU without code in the binary fails in the job, not in the build: no kernel image is available.",
    source="https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-feature-list",
    remedy="Take NVCC_GENCODE or TORCH_CUDA_ARCH_LIST from the row, as the templates do.",
    row="nccl-tests-cuda13.2-efa",
    wrong=f'{_BASE}\nRUN make NVCC_GENCODE="-gencode=arch=compute_80,code=sm_80"\nUSER 65532\n',
    right=f'{_BASE}\nRUN make NVCC_GENCODE="{{gencode}}"\nUSER 65532\n',
)
def row_sm(subject: Subject) -> Iterator[Problem]:
    """Compare the lists of GPU code with the row."""
    row = subject.row
    if row is None:
        return
    for one in subject.document.all("RUN", "ENV", "ARG"):
        text = one.text
        if "NVCC_GENCODE" not in text and "TORCH_CUDA_ARCH_LIST" not in text:
            continue
        for architecture, codes in row.sm.items():
            wanted = {code.removeprefix("sm_") for code in codes if code.startswith("sm_")}
            given = _given(text, MACHINES[architecture])
            if given and (missing := sorted(wanted - given, key=lambda code: int(re.sub(r"\D", "", code)))):
                yield Problem(one, f"no code for sm_{', sm_'.join(missing)} on {architecture}")


def _given(text: str, machine: str) -> set[str]:
    """GPU code that a step names, `sm_90` or `9.0`: for this machine, where it asks for the machine."""
    if of_machine := re.search(rf"\b{machine}\)\s*\w+=[\"']([^\"']*)", text):
        text = of_machine[1]
        return {code.replace(".", "") for code in re.findall(r"\b\d{1,2}\.?\d[af]?\b", text)}
    if "NVCC_GENCODE" in text:
        return set(re.findall(r"\bsm_(\d+[af]?)", text))
    found = re.search(r"TORCH_CUDA_ARCH_LIST[=\s\"']+([\d.;\s+PTXaf]+)", text)
    return {code.replace(".", "") for code in re.findall(r"\d+\.\d[af]?", found[1])} if found else set()
