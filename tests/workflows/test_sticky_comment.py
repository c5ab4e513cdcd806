"""One comment a stack, brought up to date in place, whatever GitHub does meanwhile."""

import json
import sys
import time
from pathlib import Path

import pytest
from fake_github import BOT, TOKEN, FakeGitHub, Trouble

from ci import comment
from ci.failures import StepError
from ci.github import ATTEMPTS, GitHubError
from ci.sticky import close_issue, put_comment, put_issue

pytest_plugins = ["fake_github_fixture"]

MARKER = "<!-- trainyard preview trainyard/prod -->"
TEXT = f"{MARKER}\n## Preview\n"


def test_the_first_report_becomes_a_comment_and_the_next_one_changes_it(github: FakeGitHub) -> None:
    assert put_comment(github.client(), 7, TEXT) == "created"
    assert put_comment(github.client(), 7, TEXT + "more\n") == "updated"
    assert put_comment(github.client(), 7, TEXT + "more\n") == "unchanged"
    assert [one["body"] for one in github.comments] == [TEXT + "more\n"]


def test_each_stack_has_a_comment_of_its_own(github: FakeGitHub) -> None:
    other = TEXT.replace("prod", "prod-2")
    assert put_comment(github.client(), 7, TEXT) == "created"
    assert put_comment(github.client(), 7, other) == "created"
    assert [one["body"] for one in github.comments] == [TEXT, other]


def test_the_comment_is_found_on_the_last_of_many_pages(github: FakeGitHub) -> None:
    for number in range(9):
        github.comment(f"discussion {number}", author="somebody")
    github.comment(TEXT)
    assert put_comment(github.client(), 7, TEXT + "new\n") == "updated"
    assert len(github.comments) == 10
    assert sum(line.startswith("GET") for line in github.asked) == 5


def test_a_comment_of_somebody_else_that_begins_the_same_is_left_alone(github: FakeGitHub) -> None:
    github.comment(f"{MARKER}\nmine", author="mallory")
    assert put_comment(github.client(), 7, TEXT) == "created"
    assert [one["body"] for one in github.comments] == [f"{MARKER}\nmine", TEXT]


def test_what_two_runs_at_once_left_twice_becomes_one(github: FakeGitHub) -> None:
    first, *_ = (github.comment(f"{MARKER}\n{number}") for number in range(3))
    for number in range(2):
        github.comment(f"{MARKER}\nlate {number}")
    assert put_comment(github.client(), 7, TEXT) == "updated"
    assert [(one["id"], one["body"]) for one in github.comments] == [(first, TEXT)]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_bad_minute_is_waited_out(github: FakeGitHub, status: int) -> None:
    github.comment(TEXT)
    github.troubles = [
        Trouble("GET", "issues/7/comments", status),
        Trouble("GET", "issues/7/comments", status),
        Trouble("PATCH", r"issues/comments/\d+", status),
    ]
    assert put_comment(github.client(), 7, TEXT + "new\n") == "updated"
    assert len(github.waited) == 3


@pytest.mark.parametrize("done", [True, False])
def test_a_comment_whose_creation_was_not_answered_is_there_once(github: FakeGitHub, done: bool) -> None:
    github.troubles = [Trouble("POST", "issues/7/comments", 502, done=done)]
    put_comment(github.client(), 7, TEXT)
    assert [one["body"] for one in github.comments] == [TEXT]


def test_a_github_that_stays_away_is_said_in_a_sentence(github: FakeGitHub) -> None:
    github.troubles = [Trouble("GET", "issues/7/comments", 503) for _ in range(ATTEMPTS)]
    with pytest.raises(GitHubError, match=r"HTTP 503, 6 times"):
        put_comment(github.client(), 7, TEXT)


@pytest.mark.parametrize(
    ("status", "headers", "waits"),
    [
        (429, {"Retry-After": "7"}, 7),
        (403, {"Retry-After": "3"}, 3),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()))}, 1),
        (429, {}, 60),
    ],
)
def test_a_rate_limit_is_waited_for_as_long_as_github_says(
    github: FakeGitHub, status: int, headers: dict[str, str], waits: float
) -> None:
    github.troubles = [Trouble("POST", "issues/7/comments", status, headers)]
    assert put_comment(github.client(), 7, TEXT) == "created"
    assert github.waited == [waits]
    assert len(github.comments) == 1


def test_the_secondary_rate_limit_names_no_time_and_is_a_minute(github: FakeGitHub) -> None:
    body = '{"message": "You have exceeded a secondary rate limit"}'
    github.troubles = [Trouble("POST", "issues/7/comments", 403, body=body)]
    assert put_comment(github.client(), 7, TEXT) == "created"
    assert github.waited == [60]


def test_a_rate_limit_of_an_hour_ends_the_step(github: FakeGitHub) -> None:
    reset = str(int(time.time()) + 3600)
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
    github.troubles = [Trouble("GET", "issues/7/comments", 403, headers)]
    with pytest.raises(GitHubError, match="run this job again then"):
        put_comment(github.client(), 7, TEXT)
    assert github.waited == []


def test_missing_permissions_are_no_rate_limit(github: FakeGitHub) -> None:
    github.troubles = [
        Trouble("POST", "issues/7/comments", 403, body='{"message": "Resource not accessible by integration"}')
    ]
    with pytest.raises(GitHubError, match=r"not accessible by integration.*permissions"):
        put_comment(github.client(), 7, TEXT)
    assert github.waited == []


def test_the_token_does_not_follow_a_page_that_leads_elsewhere(github: FakeGitHub) -> None:
    for number in range(3):
        github.comment(str(number), author="somebody")
    github.next_page = "http://localhost:1"
    with pytest.raises(GitHubError, match="does not get the token"):
        put_comment(github.client(), 7, TEXT)


def test_a_text_without_its_first_line_is_no_comment(github: FakeGitHub) -> None:
    with pytest.raises(StepError, match="trainyard preview --report"):
        put_comment(github.client(), 7, "## Preview\n")
    assert github.asked == []


def test_a_text_that_github_would_refuse_is_not_sent(github: FakeGitHub) -> None:
    with pytest.raises(StepError, match=r"70,\d+ characters"):
        put_comment(github.client(), 7, TEXT + "x" * 70_000)
    assert github.asked == []


def test_the_step_of_the_workflow_posts_each_file(
    github: FakeGitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event, report = tmp_path / "event.json", tmp_path / "prod.md"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    report.write_text(TEXT)
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setattr(sys, "argv", ["comment", str(report)])
    assert comment.main() == 0
    assert capsys.readouterr().out == "prod.md: created\n"
    assert {token for _, token in github.tokens} == {f"Bearer {TOKEN}"}


def test_outside_of_a_pull_request_there_is_nothing_to_comment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_EVENT_PATH", raising=False)
    with pytest.raises(StepError, match="no workflow about a pull request"):
        comment.pull_request()


def test_drift_has_one_issue_that_is_changed_closed_and_opened_anew(github: FakeGitHub) -> None:
    marker = "<!-- trainyard drift trainyard/prod -->"
    github.issues = [
        {"number": 1, "state": "open", "body": f"{marker}\nforged", "user": {"login": "mallory"}},
        {"number": 2, "state": "open", "body": f"{marker}\npr", "user": {"login": BOT}, "pull_request": {}},
        {"number": 3, "state": "open", "body": None, "user": {"login": "somebody"}},
    ]
    client = github.client()
    assert put_issue(client, "Drift: prod", f"{marker}\none") == "created"
    assert put_issue(client, "Drift: prod", f"{marker}\ntwo") == "updated"
    assert put_issue(client, "Drift: prod", f"{marker}\ntwo") == "unchanged"
    assert close_issue(client, marker) == 1
    assert close_issue(client, marker) == 0
    assert put_issue(client, "Drift: prod", f"{marker}\nagain") == "created"
    assert [(one["state"], one["body"]) for one in github.issues[3:]] == [
        ("closed", f"{marker}\ntwo"),
        ("open", f"{marker}\nagain"),
    ]
