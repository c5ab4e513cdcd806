"""Rules on secrets: none in a layer, and none in the image's history."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from images.lint.rule import Problem, Subject, rule
from images.lint.shell import all_calls

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_NAMES = re.compile(
    r"(^|_)(AUTH|CREDENTIALS?|PASS|PASSWD|PASSWORD|PASSPHRASE|SECRETS?|TOKEN|APIKEY|(API|ACCESS|PRIVATE|SECRET|SSH|GPG)_?KEY)"
    r"(_ID)?(_|$)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"(PUBLIC|_FILE$|_PATH$|_DIR$|_URL$|TOKENIZERS?_)", re.IGNORECASE)
_VALUES = {
    "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a GitHub token": r"\b(gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}\b",
    "a PyPI token": r"\bpypi-[A-Za-z0-9_-]{40,}",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.",
    "a Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "a password in an address": r"://[^/\s:@'\"$]+:[^/\s:@'\"$]+@[\w.-]+",
}
_FILES = re.compile(
    r"(^|/)(\.env(\..+)?|id_(rsa|dsa|ecdsa|ed25519)|\.netrc|\.pypirc|\.npmrc|\.git-credentials|kubeconfig"
    r"|\.kube(/config)?|\.aws(/credentials|/config)?|\.ssh(/.*)?|\.docker/config\.json|\.gnupg(/.*)?|credentials\.json"
    r"|[^/]+\.(key|p12|pfx|jks|kdbx))/?$"
)
_BINARY = 4 * 1024 * 1024  # bytes; nobody's secret is in a longer text


@rule(
    "secret-name",
    "No ARG or ENV is named like a secret",
    reason="Values of ARG stand in the image's history and in its provenance, values of ENV in its configuration: who "
    "can pull the image can read them, also after a later layer takes them away.",
    source="https://docs.docker.com/reference/build-checks/secrets-used-in-arg-or-env/",
    remedy="Builds: `RUN --mount=type=secret,id=…`. Running jobs: a Secret of Kubernetes, or a role of the pod.",
    wrong=f"{_BASE}\nARG HF_TOKEN\nUSER 65532\n",
    right=f"{_BASE}\nRUN --mount=type=secret,id=hf_token fetch-model\nUSER 65532\n",
)
def secret_name(subject: Subject) -> Iterator[Problem]:
    """Look at the names of all variables."""
    for one in subject.document.all("ARG", "ENV"):
        for name, _ in one.pairs():
            if _NAMES.search(name) and not _HARMLESS.search(name):
                yield Problem(one, f"{one.keyword} {name} is named like a secret")


@rule(
    "secret-value",
    "Nothing in the context looks like a secret",
    reason="A key in a layer is public to all who can pull the image, and stays in the registry when it is found.",
    source="https://docs.docker.com/build/building/secrets/",
    remedy="Take it out, and make it invalid where it was issued: it was in a file that others have.",
    wrong=f"{_BASE}\nRUN git clone https://someone:hunter2secret@example.com/a.git\nUSER 65532\n",
    right=f"{_BASE}\nRUN --mount=type=ssh git clone git@example.com:a.git\nUSER 65532\n",
)
def secret_value(subject: Subject) -> Iterator[Problem]:
    """Look for shapes of keys in the Dockerfile and in the other texts of the context; values are not shown."""
    texts = {"Dockerfile": subject.document.text}
    for name, content in (subject.files or {}).items():
        if name != "Dockerfile" and len(content) < _BINARY and b"\0" not in content:
            texts[name] = content.decode("utf-8", "replace")
    for name, text in texts.items():
        for line, what in _shapes(text):
            yield Problem(line, f"that looks like {what}", file=name)


@functools.lru_cache(1024)
def _shapes(text: str) -> tuple[tuple[int, str], ...]:
    """Line and kind of what looks like a secret; the project's own files are in the context of every row."""
    return tuple(
        (text.count("\n", 0, found.start()) + 1, what)
        for what, shape in _VALUES.items()
        for found in re.finditer(shape, text)
    )


@rule(
    "secret-file",
    "No file of keys or passwords is copied",
    reason="A copied file stays in its layer, also where a later RUN deletes it.",
    source="https://docs.docker.com/build/building/secrets/",
    remedy="Give it to the one RUN that needs it: `RUN --mount=type=secret,id=netrc,target=/build/.netrc`.",
    wrong=f"{_BASE}\nCOPY .netrc /build/\nUSER 65532\n",
    right=f"{_BASE}\nRUN --mount=type=secret,id=netrc,target=/build/.netrc fetch-model\nUSER 65532\n",
)
def secret_file(subject: Subject) -> Iterator[Problem]:
    """Look at the sources of COPY and ADD, and at the names in the context."""
    for one in subject.document.all("COPY", "ADD"):
        for source in one.expanded[:-1]:
            if _FILES.search(source):
                yield Problem(one, f"{one.keyword} takes {source}")
    for name in subject.files or {}:
        if _FILES.search(name):
            yield Problem(0, f"the context has {name}", file=name)


@rule(
    "secret-ssh",
    "No key is made in the image, and host keys are checked",
    reason="A key that is made during the build is the same in every container of the image: who has the image can go "
    "to every machine that runs it. This project's jobs need no SSH.",
    source="https://github.com/aws/deep-learning-containers (docker/pytorch/Dockerfile.cuda does it; read 2026-08-21)",
    remedy="Take ssh-keygen and `StrictHostKeyChecking no` away; where MPI needs SSH, mount keys of the job.",
    wrong=f"{_BASE}\nRUN ssh-keygen -t ed25519 -N '' -f /etc/ssh/id_ed25519\nUSER 65532\n",
    right=f"{_BASE}\nRUN ssh-keyscan example.com\nUSER 65532\n",
)
def secret_ssh(subject: Subject) -> Iterator[Problem]:
    """Look at the programs of all RUNs, and for the option in all texts."""
    for call in all_calls(subject.document):
        if call.name == "ssh-keygen" and not call.has("-l", "-y", "-R", "-F"):
            yield Problem(call.at, "ssh-keygen puts a private key into the image")
    for one in subject.document.all("RUN", "COPY"):
        if re.search(r"StrictHostKeyChecking[=\s\"']*no\b", one.text, re.IGNORECASE):
            yield Problem(one, "host keys are not checked")
