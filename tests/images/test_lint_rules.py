"""Every rule finds the mistake that it is for, and no other rule does; what we render has none."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import pytest

from images.bake import bake
from images.lint import RULES, Subject, lint_all, subject_of
from images.lint.document import parse
from images.lint.labels import DRIVER
from images.lint.rule import Finding, Rule
from images.matrix import BaseImage, matrix
from images.render import Options, render, render_all

EFA, CUDA, CPU, NGC, TESTS = "efa", "cuda", "cpu", "ngc", "nccl-tests"
SUM = "0" * 64
LAST = "WORKDIR /workspace\n"
USER = "USER 65532:65532\n"
LOCK = "requirements.txt"
Edit = tuple[str, str, str]
"""File, text that stands there, text in its place."""

BROKEN: dict[str, tuple[str, Edit]] = {
    "base-digest": (CPU, ("Dockerfile", "FROM base AS tools", "FROM debian:bookworm-slim AS tools")),
    "base-latest": (CPU, ("Dockerfile", "FROM base AS tools", "FROM debian:latest AS tools")),
    "base-cuda-tag": (CPU, ("Dockerfile", "FROM base AS tools", f"FROM nvidia/cuda:13.2-base@sha256:{SUM} AS tools")),
    "base-devel": (
        CPU,
        ("Dockerfile", "FROM ${BASE_IMAGE} AS base", f"FROM nvidia/cuda:13.2.1-devel-ubuntu24.04@sha256:{SUM} AS base"),
    ),
    "base-argument": (CPU, ("Dockerfile", "ARG BASE_IMAGE=debian:bookworm", "ARG BASE_IMAGE=debian:trixie")),
    "copy-from": (CPU, ("Dockerfile", LAST, f"COPY --from=pakages /a /a\n{LAST}")),
    "stage-unused": (CPU, ("Dockerfile", "FROM runtime AS image", "FROM base AS spare\n\nFROM runtime AS image")),
    "copy-absent": (CPU, ("Dockerfile", LAST, f"COPY no-such-file /etc/\n{LAST}")),
    "user-root": (CPU, ("Dockerfile", USER, "USER root\n")),
    "user-numeric": (CPU, ("Dockerfile", USER, "USER trainyard\n")),
    "user-number": (CPU, ("Dockerfile", USER, "USER 10001:10001\n")),
    "entrypoint-exec": (CPU, ("Dockerfile", "ENTRYPOINT", "CMD a b\nENTRYPOINT")),
    "entrypoint-shell": (
        CPU,
        ("Dockerfile", '"/usr/bin/tini", "-s", "--", ', '"/usr/bin/tini", "--", "sh", "-c", "true", '),
    ),
    "entrypoint-init": (CPU, ("Dockerfile", '["/usr/bin/tini", "-s", "--", ', "[")),
    "entrypoint-module": (CPU, ("Dockerfile", '"-m", "training"]', '"-m", "train"]')),
    "secret-name": (CPU, ("Dockerfile", LAST, f"ENV HF_TOKEN=a\n{LAST}")),
    "secret-value": (CPU, ("image.json", '"schema"', '"key": "AKIA' + "A" * 16 + '", "schema"')),
    "secret-file": (CPU, ("Dockerfile", LAST, f"RUN <<EOF\nEOF\nCOPY --from=tools /build/.netrc /build/\n{LAST}")),
    "secret-ssh": (CPU, ("Dockerfile", LAST, f"RUN ssh-keygen -t ed25519 -f /id\n{LAST}")),
    "env-obsolete": (EFA, ("Dockerfile", LAST, f"ENV NCCL_PROTO=simple\n{LAST}")),
    "env-nccl-debug": (CUDA, ("Dockerfile", "NCCL_DEBUG=WARN", "NCCL_DEBUG=INFO")),
    "env-socket-ifname": (CUDA, ("Dockerfile", LAST, f"ENV NCCL_SOCKET_IFNAME=^lo,docker\n{LAST}")),
    "env-compat": (CUDA, ("Dockerfile", LAST, f"ENV LD_LIBRARY_PATH=/usr/local/cuda/compat\n{LAST}")),
    "env-library-path": (CUDA, ("Dockerfile", LAST, f"ENV LD_LIBRARY_PATH=/a:$LD_LIBRARY_PATH\n{LAST}")),
    "env-preload": (CUDA, ("Dockerfile", LAST, f"ENV LD_PRELOAD=/a/libnccl.so\n{LAST}")),
    "apt-lists": (CPU, ("Dockerfile", "/var/lib/apt/lists/*", "/var/lib/apt/list/*")),
    "apt-together": (CPU, ("Dockerfile", LAST, f"RUN apt-get install --yes --no-install-recommends curl\n{LAST}")),
    "apt-upgrade": (CPU, ("Dockerfile", "&& apt-get clean", "&& apt-get upgrade --yes && apt-get clean")),
    "add-url": (CPU, ("Dockerfile", LAST, f"ADD https://example.com/a.gz /\n{LAST}")),
    "download-verified": (CPU, ("Dockerfile", LAST, f"RUN curl -fsSL https://example.com/a | sh\n{LAST}")),
    "tls-off": (CPU, ("Dockerfile", "--no-cache-dir", "--no-cache-dir --trusted-host example.com")),
    "git-commit": (CPU, ("Dockerfile", LAST, f"RUN git clone https://example.com/a.git /a\n{LAST}")),
    "efa-flags": (EFA, ("Dockerfile", " --skip-kmod", "")),
    "efa-ngc": ("nccl-tests-cuda13.2-efa", ("Dockerfile", " --disable-ngc", "")),
    "efa-plugin-proved": (EFA, ("Dockerfile", "if [ ! -e ", "if echo ")),
    "efa-absent": (
        CUDA,
        ("Dockerfile", LAST, f"RUN ./efa_installer.sh -y -k -l -n && test -e libnccl-net-ofi.so\n{LAST}"),
    ),
    "nccl-one": (CUDA, ("Dockerfile", "        tini", "        libnccl2 \\\n        tini")),
    "python-hashes": (CPU, ("Dockerfile", "--require-hashes --no-build", "--no-build")),
    "python-cache": (CPU, ("Dockerfile", "--no-cache-dir ", "")),
    "python-link-mode": (CPU, ("Dockerfile", "UV_LINK_MODE=copy ", "")),
    "python-byte-code": (CPU, ("Dockerfile", LAST, f"RUN python3 -m compileall -q /opt/trainyard/venv\n{LAST}")),
    "python-system": (CPU, ("Dockerfile", "--no-cache-dir", "--no-cache-dir --break-system-packages")),
    "python-index": (CPU, ("Dockerfile", "--no-cache-dir", "--no-cache-dir --index-url https://example.com/simple")),
    "epoch-unused": (CPU, ("Dockerfile", "SOURCE_DATE_EPOCH=0 useradd", "useradd")),
    "time-in-layer": (CPU, ("Dockerfile", LAST, f"RUN echo $(date) >/built\n{LAST}")),
    "build-arguments": (CPU, ("Dockerfile", "ARG REVISION\n", "")),
    "labels-oci": (CPU, ("Dockerfile", "org.opencontainers.image.licenses=", "licenses=")),
    "labels-driver": (CUDA, ("Dockerfile", f'{DRIVER}="', f'{DRIVER}="1')),
    "row-lock": (CUDA, (LOCK, "torch==2.15.0", "torch==2.14.1")),
    "row-lock-hashes": (CUDA, (LOCK, "numpy==", "numpy>=")),
    "row-facts": (CUDA, ("image.json", '"nccl": "', '"nccl": "1')),
    "row-sm": (TESTS, ("Dockerfile", "80 90 100 110", "80 100 110")),
}


@functools.cache
def good(name: str) -> Subject:
    return subject_of(render(matrix().row(name)))


def found(subject: Subject) -> set[tuple[str, str, str]]:
    return {(one.rule, one.file, one.message) for rule in RULES for one in rule.findings(subject)}


def edited(name: str, edit: Edit) -> Subject:
    file, old, new = edit
    subject = good(name)
    assert subject.files is not None
    text = subject.files[file].decode()
    assert old in text, f"{file} of {name} has no {old!r}"
    files = {**subject.files, file: text.replace(old, new).encode()}
    return Subject(document=parse(files["Dockerfile"].decode()), row=subject.row, files=files)


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_a_mistake_is_found_by_the_rule_that_is_for_it_and_by_no_other(rule: str) -> None:
    name, edit = BROKEN[rule]
    new = found(edited(name, edit)) - found(good(name))
    assert {one for one, _, _ in new} == {rule}, new


def test_no_rule_is_named_twice_and_none_is_without_a_mistake() -> None:
    assert sorted(rule.id for rule in RULES) == sorted(BROKEN)


def example(rule: Rule, text: str) -> Subject:
    row = matrix().row(rule.row) if rule.row else None
    files = None
    if row is not None:
        base = good(row.name)
        gencode = " ".join(f"-gencode=arch=x,code={code}" for codes in row.sm.values() for code in codes)
        for key, value in {
            "base": row.base.pinned,
            "driver": row.minimum_driver,
            "torch": row.torch.version if row.torch else None,
            "gencode": gencode,
        }.items():
            text = text.replace(f"{{{key}}}", str(value)).replace("${{BASE_IMAGE}}", "${BASE_IMAGE}")
        files = {**(base.files or {}), rule.file: text.encode()}
    if rule.file != "Dockerfile":
        assert files is not None
        return Subject(document=good(str(rule.row)).document, row=row, files=files)
    return Subject(document=parse(text), row=row, files=files)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_examples_of_a_rule_are_what_they_say(rule: Rule) -> None:
    def own(text: str) -> list[Finding]:
        return [one for one in rule.findings(example(rule, text)) if one.file == rule.file]

    assert own(rule.wrong)
    assert own(rule.right) == []


def test_what_we_render_has_no_errors_and_warns_only_of_what_the_matrix_explains() -> None:
    findings = lint_all(render_all())
    assert len(findings) == len(matrix().rows)
    bad = [(name, one) for name, all_of in findings.items() for one in all_of if one.rule != "base-digest"]
    assert bad == []
    for name, all_of in findings.items():
        for one in all_of:
            assert one.severity == "warning"
            assert any(image.unpinned and image.unpinned in one.message for image in bases_of(name)), one


def test_what_a_user_adds_brings_no_findings(tmp_path: Path) -> None:
    requirements = tmp_path / "extra.txt"
    requirements.write_text(f"ninja==1.13.0 --hash=sha256:{SUM}\neinops==0.8.1 --hash=sha256:{SUM}\n")
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.py").write_text("print(1)\n")
    contexts = {
        f"{name} {compiled}": render(
            matrix().row(name),
            Options(requirements=requirements, source=source, apt=("git",), compile=compiled),
        )
        for name, compiled in ((CPU, False), (CUDA, True), (EFA, True), ("infiniband", False))
    }
    assert {name: found for name, found in lint_all(contexts).items() if found} == {}


def bases_of(name: str) -> list[BaseImage]:
    row = matrix().row(name)
    return [image for image in (row.base, row.builder, row.compiled_base) if image]


def test_the_file_for_bake_names_a_stage_that_every_dockerfile_has() -> None:
    contexts = render_all()
    for target in bake(contexts)["target"].values():
        assert parse(contexts[target["context"]].dockerfile).stage(target["target"]) is not None


def test_a_comment_with_a_reason_takes_a_rule_away_for_one_instruction() -> None:
    name, (_, old, new) = BROKEN["base-digest"]
    excused = f"# trainyard ignore=base-digest our mirror has no digests\n{new}"
    assert found(edited(name, ("Dockerfile", old, excused))) == found(good(name))


def test_without_a_row_rules_about_rows_are_silent() -> None:
    subject = dataclasses.replace(good(CPU), row=None, files=None)
    rows = {rule.id for rule in RULES if rule.row}
    assert {one for one, _, _ in found(subject)} & rows == set()


def test_every_rule_says_why_where_that_is_known_from_and_what_to_do() -> None:
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", rule.id), rule.id
        for text in (rule.title, rule.reason, rule.source, rule.remedy):
            assert len(text) > 15, rule.id
