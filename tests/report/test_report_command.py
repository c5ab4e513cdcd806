"""`trainyard preview --from`: files, exit codes, and what is said of files that are none."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_previews import broken_rule, digest, lines, said, step, summary

import infra.cli
from infra.report.markdown import MOST

GOOD = [step("create", name="größe", new={"a": 1}), summary(create=1)]
BROKEN = [step("create", new={"a": 1}), broken_rule("must-not"), said("preview failed"), summary("failed")]


class Ran:
    """What the command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def preview(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["trainyard", "preview", *map(str, arguments)])
        code = 0
        try:
            infra.cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(content: str | bytes) -> Path:
        file = tmp_path / "preview.json"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return save


def test_a_saved_preview_is_shown(preview: Any, saved: Any) -> None:
    for form in (lines, digest):
        ran = preview("--from", saved(form(GOOD)))
        assert ran.code == 0, ran.err
        assert "größe" in ran.out
        assert "1 to create" in ran.out


def test_json_is_one_document(preview: Any, saved: Any) -> None:
    told = json.loads(preview("--from", saved(lines(GOOD)), "--json").out)
    assert told["schema"] == "trainyard-preview/1"
    assert told["changes"] == {"create": 1}
    assert [(one["op"], one["name"]) for one in told["steps"]] == [("create", "größe")]
    assert (told["complete"], told["failures"], told["rehearsal"]) == (True, [], False)


def test_a_rehearsal_is_said_to_be_one(preview: Any, saved: Any) -> None:
    ran = preview("--from", saved(lines(GOOD)), "--rehearse", "--json")
    assert json.loads(ran.out)["rehearsal"] is True
    assert any("rehearsal" in one for one in json.loads(ran.out)["warnings"])


def test_it_reads_stdin(preview: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(GOOD).encode())))
    assert "größe" in preview("--from", "-").out


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_shells_of_windows_write_other_encodings(preview: Any, saved: Any, encoding: str) -> None:
    ran = preview("--from", saved(lines(GOOD).encode(encoding)))
    assert ran.code == 0, ran.err
    assert "größe" in ran.out


def test_a_log_that_takes_only_ascii_gets_the_rest_as_code_points(saved: Any) -> None:
    command = [sys.executable, "-c", "import infra.cli; infra.cli.main()", "preview", "--from", str(saved(lines(GOOD)))]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "gr\\xf6\\xdfe" in ran.stdout


def test_broken_policies_end_with_code_1_unless_one_does_not_want_it(preview: Any, saved: Any) -> None:
    file = saved(lines(BROKEN))
    ran = preview("--from", file)
    assert ran.code == 1
    assert "refused: 1 violation of mandatory policies: must-not" in ran.out
    assert preview("--from", file, "--fail-on", "policy").code == 1
    for wanted in ("none", "version,known-bad", "incomplete"):
        ran = preview("--from", file, "--fail-on", wanted)
        assert ran.code == 0
        assert "not refused because of --fail-on" in ran.out


def test_a_cut_preview_ends_with_code_1(preview: Any, saved: Any) -> None:
    text = digest([*GOOD, step("create", name="second", new={"a": 1})])
    ran = preview("--from", saved(text[: text.index("second")]))
    assert ran.code == 1
    assert "not complete" in ran.out + ran.err
    assert "größe" in ran.out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\x00\x01\xff\xfe\x80" * 100, "no text in UTF-8"),
        (b"error: no such stack", "no JSON"),
        (b'{"resource_changes": []}', "a plan of Terraform"),
    ],
)
def test_what_is_no_preview_is_a_sentence_and_code_2(preview: Any, saved: Any, content: bytes, sentence: str) -> None:
    file = saved(content)
    ran = preview("--from", file)
    assert ran.code == 2
    assert sentence in ran.err
    assert str(file) in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--fail-on", "weather"], "--fail-on is 'weather'"),
        (["--fail-on", "none,policy"], "none alone"),
        (["--fail-on", ""], "--fail-on is ''"),
        (["--utilisation", "50"], "a share of the time, from 0 to 1"),
        (["--report", "/nowhere/at/all.md"], "cannot be written"),
        (["--sarif", "."], "cannot be written"),
    ],
)
def test_wrong_options_are_sentences_and_code_2(preview: Any, saved: Any, arguments: list[str], sentence: str) -> None:
    ran = preview("--from", saved(lines(GOOD)), *arguments)
    assert ran.code == 2
    assert sentence in ran.err


def test_a_file_that_is_not_there_is_a_sentence(preview: Any, tmp_path: Path) -> None:
    ran = preview("--from", tmp_path / "gone.json")
    assert ran.code == 2
    assert "cannot be read: No such file or directory" in ran.err


def test_files_are_written_also_where_the_change_is_refused(preview: Any, saved: Any, tmp_path: Path) -> None:
    report, sarif = tmp_path / "report.md", tmp_path / "report.sarif"
    ran = preview("--from", saved(lines(BROKEN)), "--report", report, "--sarif", sarif)
    assert ran.code == 1
    assert "must-not" in report.read_text()
    assert json.loads(sarif.read_text())["runs"][0]["results"][0]["ruleId"] == "must-not"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(report.stat().st_mode) == 0o666 & ~mask
    assert sorted(path.name for path in tmp_path.iterdir()) == ["preview.json", "report.md", "report.sarif"]


def test_what_does_not_fit_into_a_comment_is_in_a_file_beside(preview: Any, saved: Any, tmp_path: Path) -> None:
    many = [step("create", f"aws:x/kind{index}:Kind", f"resource-{index}", new={}) for index in range(3000)]
    report, whole = tmp_path / "report.md", tmp_path / "report.full.md"
    preview("--from", saved(lines([*many, summary()])), "--report", report)
    assert len(report.read_text()) <= MOST
    assert "report.full.md" in report.read_text()
    assert "resource-2999" in whole.read_text()
    preview("--from", saved(lines(GOOD)), "--report", report)
    assert not whole.exists(), "an old one would belong to another report"


def test_the_share_of_time_is_that_of_the_month(preview: Any, saved: Any) -> None:
    pool = {"instanceTypes": ["g6.xlarge"], "scalingConfig": {"minSize": 1, "maxSize": 3}, "capacityType": "ON_DEMAND"}
    events = [
        step("create", "pulumi:providers:aws", "aws", new={"region": "us-east-2"}),
        step("create", "aws:eks/nodeGroup:NodeGroup", "gpu", new={**pool, "region": "us-east-2"}),
        summary(),
    ]
    file = saved(lines(events))

    def month(share: str) -> str:
        ran = preview("--from", file, "--json", "--utilisation", share)
        return str(json.loads(ran.out)["cost"]["after"]["usd_per_month"])

    assert month("0") != month("1")
