"""Rules on NCCL and on the network under it: EFA's installer, its plugin, and one NCCL only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.lint.bases import tag_of
from images.lint.document import Stage
from images.lint.rule import Problem, Subject, rule
from images.lint.shell import Call, calls

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_INSTALLER = "efa_installer.sh"
_FLAGS = {
    "-y": ("-y", "--yes"),
    "--skip-kmod": ("-k", "--skip-kmod"),
    "--skip-limit-conf": ("-l", "--skip-limit-conf"),
    "--no-verify": ("-n", "--no-verify"),
}
_APT_NCCL = re.compile(r"^libnccl(2|-dev)\b")
_PIP_NCCL = re.compile(r"^(nvidia-nccl|torch)\b(?!-|_)", re.IGNORECASE)


def _installs(subject: Subject) -> Iterator[tuple[Stage, Call]]:
    for stage in subject.document.stages:
        for one in stage.all("RUN"):
            for call in calls(one):
                by_shell = call.name in {"sh", "bash"} and any(word.endswith(_INSTALLER) for word in call.arguments[:2])
                if call.name == _INSTALLER or by_shell:
                    yield stage, call


@rule(
    "efa-flags",
    "EFA's installer runs with the options for containers",
    reason="Without them it builds a kernel module for the build machine's kernel, changes limits that are the "
    "machine's, asks questions, or ends because there is no EFA device.",
    source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html",
    remedy="Run `./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify`.",
    wrong=f"{_BASE}\nRUN ./efa_installer.sh -y\nUSER 65532\n",
    right=f"{_BASE}\nRUN ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify\nUSER 65532\n",
)
def efa_flags(subject: Subject) -> Iterator[Problem]:
    """Look at the options of the installer."""
    for _, call in _installs(subject):
        if missing := [name for name, spellings in _FLAGS.items() if not call.has(*spellings)]:
            yield Problem(call.at, f"the installer lacks {', '.join(missing)}")


@rule(
    "efa-ngc",
    "On NVIDIA's images EFA's installer is told that this is not NGC's",
    reason="From 1.48 on it takes every image with NVIDIA's entrypoint file, nvidia/cuda's too, for one of NGC, and "
    "leaves the plugin out there: training then goes over TCP, without an error.",
    source="https://github.com/aws/deep-learning-containers (docker/pytorch/Dockerfile.cuda, read 2026-08-21)",
    remedy="Add `--disable-ngc`, and test that the plugin is there.",
    wrong=f"FROM nvidia/cuda:13.2.1-base-ubuntu24.04@sha256:{'0' * 64}\n"
    "RUN ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify\nUSER 65532\n",
    right=f"FROM nvidia/cuda:13.2.1-base-ubuntu24.04@sha256:{'0' * 64}\n"
    "RUN ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify --disable-ngc\nUSER 65532\n",
)
def efa_ngc(subject: Subject) -> Iterator[Problem]:
    """Look at installers in stages that begin from NVIDIA's images."""
    for stage, call in _installs(subject):
        nvidia = re.search(r"(^|/)nvidia/", stage.image) or "cuda" in (tag_of(stage.image) or "")
        if nvidia and not call.has("--disable-ngc"):
            yield Problem(call.at, f"the installer takes {stage.image.split('@')[0]} for an image of NGC")


@rule(
    "efa-plugin-proved",
    "The build ends if the plugin's file is absent",
    reason="The file has another name on other distributions and since installer 1.44. Without it NCCL takes sockets: "
    "everything works, ten times slower.",
    source="https://github.com/aws/aws-ofi-nccl/issues/803",
    remedy="Test for the row's plugin file in the last stage: `RUN test -f …/libnccl-net-ofi.so`.",
    wrong=f"{_BASE}\nRUN ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify\nUSER 65532\n",
    right=f"{_BASE}\nRUN ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \\\n"
    " && test -f /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so\nUSER 65532\n",
)
def efa_plugin_proved(subject: Subject) -> Iterator[Problem]:
    """Look for a test of the file in the last stage or where the installer runs."""
    installs = list(_installs(subject))
    wanted = bool(installs) or (subject.row is not None and subject.row.efa is not None)
    if not wanted:
        return
    stages = {stage.index: stage for stage in [*subject.document.last.chain, *(stage for stage, _ in installs)]}
    runs = [one for stage in stages.values() for one in stage.all("RUN")]
    proved = re.compile(
        r"(\btest\s+-[efrs]|\[\s+(!\s+)?-[efrs]|\bls\b|\bassert|\bcheck\b|\bverify\b)[^\n;&|]*(libnccl-net|image\.json)"
    )
    proofs = [one for one in runs if proved.search(one.text)]
    at = installs[0][1].at if installs else subject.document.last
    if not proofs:
        yield Problem(at, "no RUN tests for the plugin's file")
    elif (path := _plugin(subject)) and not any(re.search(path, one.text) for one in proofs):
        yield Problem(proofs[0], "the file that is tested for is not the matrix's")


def _plugin(subject: Subject) -> str | None:
    """A pattern for the plugin's path on the bases of the row."""
    row = subject.row
    if row is None or row.efa is None:
        return None
    bases = [base.distribution for base in (row.base, row.compiled_base) if base]
    files = [row.efa.plugin_files[name] for name in bases if name in row.efa.plugin_files]
    return "|".join(re.escape(file).replace(re.escape("{machine}"), r".{1,20}") for file in files)


@rule(
    "efa-absent",
    "An image for EFA has the installer, others do without",
    reason="A row says what is in it: the start-up check and the choice of a pool go by that.",
    source="The matrix, `images/matrix.toml`.",
    remedy="Take the row whose fabric you want: `trainyard images matrix`.",
    row="torch2.15-cuda13.2-efa",
    wrong=f"{_BASE}\nUSER 65532\n",
    right=f"{_BASE}\nRUN ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify\nUSER 65532\n",
)
def efa_absent(subject: Subject) -> Iterator[Problem]:
    """Compare with the row."""
    if subject.row is None:
        return
    installs = list(_installs(subject))
    if subject.row.efa and not installs:
        yield Problem(subject.document.last, "the row has EFA, and no stage runs its installer")
    if subject.row.efa is None:
        for _, call in installs:
            yield Problem(call.at, f"row {subject.row.name} has no EFA, and this installs it")


@rule(
    "nccl-one",
    "There is one NCCL in the image",
    reason="torch's wheel brings NCCL; a second one, of apt or from source, is loaded by whoever finds it first. Ranks "
    "then hang, or the plugin speaks to another NCCL than torch.",
    source="https://github.com/aws/aws-ofi-nccl/issues/1055",
    remedy="Leave NCCL to torch's wheel. On NGC's images install neither torch nor NCCL.",
    wrong=f"{_BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends libnccl2 \\\n"
    " && rm -rf /var/lib/apt/lists/*\nRUN pip install --require-hashes --no-cache-dir torch==2.15.0\nUSER 65532\n",
    right=f"{_BASE}\nRUN pip install --require-hashes --no-cache-dir torch==2.15.0\nUSER 65532\n",
)
def nccl_one(subject: Subject) -> Iterator[Problem]:
    """Count where NCCL comes from in what the last stage has."""
    last = subject.document.last
    runs = last.inherited("RUN")
    apt = [
        (word, one)
        for one in runs
        for call in calls(one)
        if call.name in {"apt-get", "apt"}
        for word in call.plain
        if _APT_NCCL.match(word)
    ]
    brought = _brought(subject)
    if brought and apt:
        yield Problem(apt[0][1], f"apt brings {apt[0][0]}, and {brought} brings NCCL too")
    bundled = subject.row is not None and subject.row.torch is not None and subject.row.torch.bundled
    if bundled or re.search(r"nvidia/pytorch", last.image):
        for number, line in enumerate(subject.lines_of("requirements.txt"), 1):
            if _PIP_NCCL.match(line):
                yield Problem(
                    number,
                    f"NGC's image has its own torch and NCCL; this adds {line.split()[0]}",
                    file="requirements.txt",
                )


def _brought(subject: Subject) -> str | None:
    """What brings NCCL besides apt: a name for the message."""
    row = subject.row
    if row is not None and row.kind == "training" and row.torch is not None:
        return f"torch {row.torch.version}"
    for one in subject.document.all("RUN"):
        for call in calls(one):
            if call.name in {"pip", "uv pip", "uv"} and any(_PIP_NCCL.match(word) for word in call.plain):
                return next(word for word in call.plain if _PIP_NCCL.match(word))
    return None
