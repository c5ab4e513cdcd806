"""What a fork's workflow hands over is a stranger's: nothing of it is believed, and nothing in it stays alive."""

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_github import REPOSITORY, TOKEN, FakeGitHub
from hypothesis import given
from hypothesis import strategies as some
from markdown_it import MarkdownIt

from ci import hand_over, handed_over
from ci.failures import StepError
from ci.handed_over import MOST_BYTES, Run
from ci.untrusted import MOST, harmless

pytest_plugins = ["fake_github_fixture"]

SHA = "a" * 40
FORK = "mallory/trainyard"
RUN: dict[str, Any] = {
    "id": 5,
    "event": "pull_request",
    "head_sha": SHA,
    "head_branch": "patch",
    "head_repository": {"full_name": FORK},
}
CLAIM = json.dumps({"number": 7})
Post = Callable[..., int]


def artifact(*, claim: str | bytes = CLAIM, report: str | bytes = "## Preview\n", **others: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("pull-request.json", claim)
        packed.writestr("report.md", report)
        for name, value in others.items():
            packed.writestr(name, value)
    return content.getvalue()


def pull(**changes: Any) -> dict[str, Any]:
    return {
        "number": 7,
        "state": "open",
        "base": {"repo": {"full_name": REPOSITORY}},
        "head": {"sha": SHA, "ref": "patch", "repo": {"full_name": FORK}},
    } | changes


@pytest.fixture
def post(github: FakeGitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    github.pulls = {
        7: pull(),
        8: pull(number=8, head={"sha": SHA, "ref": "x", "repo": {"full_name": "victim/trainyard"}}),
    }

    def posted(content: bytes, *, name: str = "fork-preview-dev", run: dict[str, Any] | None = None) -> int:
        number = len(github.artifacts) + 1
        github.artifacts.append({"id": number, "name": name, "size_in_bytes": len(content)})
        github.files[f"/blob/{number}"] = content
        event = tmp_path / "event.json"
        event.write_text(json.dumps({"workflow_run": RUN | (run or {})}))
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
        monkeypatch.setattr("sys.argv", ["handed_over"])
        return handed_over.main()

    return posted


def test_a_report_of_a_fork_is_posted_under_a_notice(github: FakeGitHub, post: Post) -> None:
    assert post(artifact(report="## Preview of stack `dev`\n\n3 to create.\n")) == 0
    (comment,) = github.comments
    marker, *_ = comment["body"].split("\n")
    assert marker == "<!-- trainyard preview trainyard/dev -->"
    assert "The fork's own code wrote what follows" in comment["body"]
    assert comment["body"].index("IMPORTANT") < comment["body"].index("3 to create.")


def test_the_token_does_not_go_where_the_artifact_is_kept(github: FakeGitHub, post: Post) -> None:
    post(artifact())
    tokens = dict(github.tokens)
    assert tokens["/blob/1"] is None
    assert tokens[f"/repos/{REPOSITORY}/pulls/7"] == f"Bearer {TOKEN}"


def test_other_artifacts_of_the_run_are_nothing_to_us(github: FakeGitHub, post: Post) -> None:
    assert post(b"no archive", name="coverage") == 0
    assert github.comments == []


def test_each_stack_of_the_run_is_posted(github: FakeGitHub, post: Post) -> None:
    post(artifact())
    assert post(artifact(), name="fork-preview-prod") == 0
    assert len(github.comments) == 2


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ('{"number": 8}', "claims pull request 8"),
        ('{"number": 9}', "HTTP 404"),
        ('{"number": "7/../../8"}', "number is none"),
        ('{"number": true}', "number is none"),
        ('{"number": -7}', "number is none"),
        ('{"number": 7.0}', "number is none"),
        ("[7]", "not what they should be"),
        ("{", "not what they should be"),
        ("[" * 900, "not what they should be"),
        (b"\xff\xfe", "not what they should be"),
        ("7" * 1_001, "more than 1,000 bytes"),
    ],
)
def test_a_false_claim_posts_nothing(
    github: FakeGitHub, post: Post, capsys: pytest.CaptureFixture[str], claim: str | bytes, why: str
) -> None:
    with pytest.raises(StepError, match="not everything was posted"):
        post(artifact(claim=claim))
    assert why in capsys.readouterr().out
    assert github.comments == []


@pytest.mark.parametrize("head", [{"ref": "other"}, {"repo": None}, {"repo": {"full_name": "victim/trainyard"}}])
def test_a_pull_request_of_another_branch_or_repository_is_not_written_on(
    github: FakeGitHub, post: Post, head: dict[str, Any]
) -> None:
    github.pulls[7]["head"] |= head
    with pytest.raises(StepError, match="not everything"):
        post(artifact())
    assert github.comments == []


@pytest.mark.parametrize("change", [{"state": "closed"}, {"head": pull()["head"] | {"sha": "b" * 40}}])
def test_about_what_is_closed_or_has_moved_on_nothing_is_said(
    github: FakeGitHub, post: Post, change: dict[str, Any]
) -> None:
    github.pulls[7] |= change
    assert post(artifact()) == 0
    assert github.comments == []


@pytest.mark.parametrize(
    "run",
    [
        {"event": "push"},
        {"event": "pull_request_target"},
        {"head_sha": "main"},
        {"head_repository": {"full_name": REPOSITORY}},
        {"head_repository": {"full_name": REPOSITORY.upper()}},
        {"head_repository": None},
    ],
)
def test_only_runs_about_pull_requests_of_forks_are_taken(github: FakeGitHub, post: Post, run: dict[str, Any]) -> None:
    with pytest.raises(StepError):
        post(artifact(), run=run)
    assert github.asked == []


def forged_size() -> bytes:
    """An archive that says of its report that it is small."""
    content = bytearray(artifact(report="x" * 2_000_000))
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = content.rindex(signature)
        struct.pack_into("<I", content, at + offset, 10)
    return bytes(content)


def otherwise_packed() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("pull-request.json", CLAIM)
        packed.writestr("report.md", "## Preview\n")
    return content.getvalue()


def spoilt() -> bytes:
    """An archive whose directory is right, and whose content is no deflated text."""
    content = bytearray(artifact(report="# Preview\n" * 400))
    at = content.rindex(b"PK\x03\x04") + 30 + len("report.md")
    content[at : at + 8] = b"\xff" * 8
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no archive", "cannot be read"),
        (b"", "cannot be read"),
        (artifact()[:-30], "cannot be read"),
        (artifact(**{"../../../etc/cron.d/x": b"* * * * * root id"}), "other files"),
        (artifact(**{"run.sh": b"#!/bin/sh"}), "other files"),
        (artifact(report="x" * 10_000_000), "more than 400,000 bytes"),
        (artifact(report="x" * (MOST + 1)), "not posted"),
        (artifact(report=b"\xff\xfe\x00"), "not what they should be"),
        (forged_size(), "cannot be read"),
        (otherwise_packed(), "packed otherwise"),
        (spoilt(), "cannot be read"),
    ],
    ids=["text", "empty", "cut", "path", "script", "bomb", "long", "binary", "forged size", "lzma", "spoilt"],
)
def test_a_hostile_artifact_is_refused_in_a_sentence(
    github: FakeGitHub, post: Post, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    with pytest.raises(StepError, match="not everything was posted"):
        post(content)
    assert why in capsys.readouterr().out
    assert github.comments == []


def test_two_files_of_one_name_are_refused(github: FakeGitHub, post: Post) -> None:
    content = io.BytesIO(artifact())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(content, "a") as packed:
        packed.writestr("report.md", "the other one")
    with pytest.raises(StepError, match="not everything"):
        post(content.getvalue())
    assert github.comments == []


def test_a_large_artifact_is_not_even_fetched(github: FakeGitHub, post: Post) -> None:
    github.artifacts.append({"id": 1, "name": "fork-preview-dev", "size_in_bytes": MOST_BYTES + 1})
    with pytest.raises(StepError):
        post(artifact(), name="other")
    assert not [line for line in github.asked if "zip" in line]


def test_an_artifact_that_is_larger_than_github_says_is_not_read_to_its_end(github: FakeGitHub, post: Post) -> None:
    github.artifacts.append({"id": 1, "name": "fork-preview-dev", "size_in_bytes": 10})
    github.files["/blob/1"] = b"x" * (MOST_BYTES + 1)
    with pytest.raises(StepError):
        post(b"", name="other")
    assert github.comments == []


@pytest.mark.parametrize("name", ["fork-preview-", "fork-preview-../x", "fork-preview-a b", "fork-preview--->"])
def test_a_name_that_is_no_stack_is_refused(github: FakeGitHub, post: Post, name: str) -> None:
    with pytest.raises(StepError):
        post(artifact(), name=name)
    assert github.comments == []


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<details open onclick=x>",
        "<a href=/login>log in</a>",
        "![](https://evil.example/pixel)",
        "[log in](https://evil.example)",
        "[log in]: https://evil.example",
        "[log in][x]",
        "<https://evil.example>",
        "https://evil.example",
        "www.evil.example",
        "_https://evil.example_",
        "1https://evil.example",
        "https\\://evil.example",
        "_www.evil.example_",
        "www\\.evil.example",
        "@octocat",
        "&#64;octocat",
        "&commat;octocat",
        "Closes #1",
        "gh-1",
        "_GH-1_",
        "GH\\-1",
        "<!-- trainyard preview trainyard/prod -->",
        "<!--",
        "\u202egnirts",
        "java\u0000script:alert(1)",
    ],
)
def test_nothing_in_a_strangers_text_stays_alive(hostile: str) -> None:
    shown = harmless(f"before {hostile}\n\n{hostile}\n\nafter\n")
    assert hostile not in shown
    html = MarkdownIt("gfm-like", {"linkify": False}).render(shown)
    for living in ("<a ", "<img", "<script", "<!--", "http:", "https:", "www.", "GH-1", "\u202e", "\u0000"):
        assert living not in html, html
    assert "after" in html


@pytest.mark.parametrize("hostile", ["deadbee", "DEADBEEF", "_deadbeef_", "deadbeef" * 5, "a" * 7 + "deadbeef" * 4])
def test_no_part_of_a_commits_name_is_long_enough_for_a_link(hostile: str) -> None:
    assert max(map(len, re.findall(r"(?i)[0-9a-f]+", harmless(hostile)))) == 6


@pytest.mark.parametrize(
    "opened", ["```", "~~~~", "<details><summary>x</summary>", "<details>\n\n```mermaid", "````\n```"]
)
def test_what_is_left_open_is_closed(opened: str) -> None:
    html = MarkdownIt("commonmark").render(harmless(f"{opened}\nswallowed\n") + "\n\n## ours\n")
    assert "<h2>ours</h2>" in html
    assert html.count("<details>") == html.count("</details>")


def test_a_report_as_ours_stays_readable() -> None:
    table = "| pool | GPUs |\n| --- | --- |\n| `gpu` | 1 |"
    folded = "<details><summary>rest</summary>\n\n```diff\n+ a: 1\n```\n\n</details>"
    report = f"## Preview of stack `dev`\n\n{table}\n\n{folded}\n"
    assert harmless(report) == report


@given(some.text(max_size=400))
def test_what_is_harmless_stays_as_it_is(text: str) -> None:
    once = harmless(text)
    assert harmless(once).replace("\u200b", "") == once.replace("\u200b", "")
    assert "@" not in once.replace("@\u200b", "")


def test_the_fork_leaves_report_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event, report, to = tmp_path / "event.json", tmp_path / "dev.md", tmp_path / "handed"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    report.write_text("## Preview\n")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setattr("sys.argv", ["hand_over", str(report), "--to", str(to)])
    assert hand_over.main() == 0
    content = {file.name: file.read_bytes() for file in to.iterdir()}
    assert handed_over.read(artifact(claim=content["pull-request.json"], report=content["report.md"])) == (
        7,
        "## Preview\n",
    )


def test_a_run_is_read_from_its_event() -> None:
    assert Run.of_event({"workflow_run": RUN}, REPOSITORY) == Run(5, SHA, FORK, "patch")
