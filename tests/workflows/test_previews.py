"""Previews side by side, what they leave, and what is said where one fails; plans and drift without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci import deploy, drift, images, issue
from ci import preview as previews
from ci.deploy import approved_of, fingerprint
from ci.failures import StepError
from ci.preview import Wanted, preview
from ci.stacks import ROOT
from infra.report.preview import Preview, Resource, Step

AWS = {"stack": "dev", "target": "aws", "region": "us-east-2"}
OF_A_USER = {"stack": "mine", "target": "kubeconfig", "region": ""}
TOTAL = {"usd": {"low": "1.5", "high": "2.5"}, "without": []}
DOCUMENT: dict[str, Any] = {
    "stack": "mine",
    "project": "trainyard",
    "changes": {"create": 3, "same": 2},
    "steps": [],
    "failures": [],
    "policies": [],
    "rules_run": 4,
    "cost": {
        "after": {
            "usd_per_hour_at_min": TOTAL,
            "usd_per_hour_at_max": {**TOTAL, "without": ["gpu"]},
            "usd_per_month": {"usd": None, "without": ["gpu"]},
        }
    },
}
Command = Callable[..., None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Puts a little program in the place of the command."""

    def put(script: str) -> None:
        monkeypatch.setattr(previews, "TRAINYARD", (sys.executable, "-c", script))

    return put


def wanted(out: Path, *stacks: dict[str, str], on: str = "account") -> Wanted:
    return Wanted(stacks or (OF_A_USER,), out, on, jobs=2)


def test_a_preview_leaves_its_report_in_all_forms(tmp_path: Path, command: Command) -> None:
    command(
        "import json, pathlib, sys\n"
        "options = sys.argv\n"
        "pathlib.Path(options[options.index('--report') + 1]).write_text('<!-- trainyard preview x -->')\n"
        f"print(json.dumps({DOCUMENT!r}))\n"
        "print('said', file=sys.stderr)\n"
    )
    (result,) = preview(wanted(tmp_path))
    assert (result.code, result.how) == (0, "this computer")
    assert json.loads((tmp_path / "mine.json").read_text()) == DOCUMENT
    assert (tmp_path / "mine.md").read_text() == "<!-- trainyard preview x -->"
    assert (tmp_path / "mine.log").read_text() == "said\n"


@pytest.mark.parametrize(
    "script", ["raise SystemExit('<b>@octocat</b> ``` no such file')", "print('{\"cut\": ')", "pass"]
)
def test_a_stack_without_a_preview_has_a_report_that_says_why(tmp_path: Path, command: Command, script: str) -> None:
    (tmp_path / "mine.json").write_text("of before")
    command(script)
    (result,) = preview(wanted(tmp_path))
    text = (tmp_path / "mine.md").read_text()
    assert result.document is None
    assert text.startswith("<!-- trainyard preview trainyard/mine -->\n")
    assert "There is no preview" in text
    assert not (tmp_path / "mine.json").exists(), "a report of before would be taken for this one's"
    assert "@octocat" not in text.split("```")[0]


def test_one_stack_that_fails_leaves_the_others_alone(tmp_path: Path, command: Command) -> None:
    command(f"import json, sys\nif 'mine' in sys.argv: sys.exit(1)\nprint(json.dumps({DOCUMENT!r}))")
    first, second = preview(wanted(tmp_path, OF_A_USER, AWS))
    assert (first.code, second.code) == (1, 0)
    assert second.document is not None


def test_a_rehearsal_is_asked_for_only_where_no_account_is_given(tmp_path: Path, command: Command) -> None:
    command("import json, sys; print(json.dumps(sys.argv))")
    (result,) = preview(wanted(tmp_path, AWS))
    assert "--rehearse" not in (result.document or ())
    assert result.how == "account"


def test_a_variable_that_nobody_has_set_is_no_backend(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("import json, os; print(json.dumps({'found': 'PULUMI_BACKEND_URL' in os.environ}))")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "")
    assert preview(wanted(tmp_path))[0].document == {"found": False}
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://x")
    assert preview(wanted(tmp_path))[0].document == {"found": True}


def test_the_table_says_what_has_no_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {**DOCUMENT, "failures": [{"kind": "policy", "sentence": "a rule is broken"}]}
    results = [
        previews.Result("mine", "account", 0, 1.0, DOCUMENT),
        previews.Result("other", "account", 1, 1.0, refused),
        previews.Result("third", "account", 1, 1.0, None, "trainyard: Pulumi.third.yaml: no such key"),
    ]
    previews._show(results, tmp_path, 2.0)
    shown = capsys.readouterr().out
    for text in ("3 to create", "1.50-2.50", ">= 1.50, without gpu", "unknown", "may go in", "refused", "no preview"):
        assert text in shown
    assert "other: a rule is broken" in shown
    assert "third: trainyard: Pulumi.third.yaml: no such key" in shown


def test_a_stack_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ci.preview", "nowhere", "--out", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no Pulumi.nowhere.yaml; stacks here: dev" in done.stderr


def step(**changes: Any) -> dict[str, Any]:
    made = {"urn": "urn:a", "op": "update", "type": "t", "protected": False, "name": "a", "properties": []}
    return made | changes


def document(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**DOCUMENT, "steps": list(steps), **changes}


def test_the_same_change_has_the_same_fingerprint_in_any_order_and_time() -> None:
    one, two = step(), step(urn="urn:b")
    assert fingerprint(document(one, two)) == fingerprint(document(two, one, seconds=5, note="other"))


@pytest.mark.parametrize(
    "other",
    [
        document(step(op="delete")),
        document(step(urn="urn:b")),
        document(step(), step(urn="urn:b")),
        document(step(properties=[{"path": "size", "old": 1, "new": 2}])),
        document(step(properties=[{"path": "size", "old": 1, "new": "2"}])),
        document(step(), stack="other"),
        document(),
    ],
)
def test_any_other_change_has_another_fingerprint(other: dict[str, Any]) -> None:
    assert fingerprint(other) != fingerprint(document(step()))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no approved plan"),
        ("{", "no approved plan"),
        ("[]", "no approved plan"),
        ('{"stack": "dev"}', "no approved plan"),
        ('{"stack": "prod", "fingerprint": "x", "commit": "c"}', "is of stack prod"),
        ('{"stack": "dev", "fingerprint": "x", "commit": "d"}', "plan again"),
    ],
)
def test_nothing_is_brought_up_without_an_approved_plan_of_this_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, said: str
) -> None:
    monkeypatch.setenv("GITHUB_SHA", "c")
    if content is not None:
        (tmp_path / "dev.fingerprint.json").write_text(content)
    with pytest.raises(StepError, match=said):
        approved_of("dev", tmp_path)


def test_what_was_approved_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SHA", "c")
    (tmp_path / "dev.fingerprint.json").write_text('{"stack": "dev", "fingerprint": "x", "commit": "c"}')
    assert approved_of("dev", tmp_path) == "x"


def test_a_refused_plan_leaves_nothing_to_approve_of(tmp_path: Path, command: Command) -> None:
    command(f"import json, sys; print(json.dumps({DOCUMENT!r})); sys.exit(1)")
    assert deploy.plan("dev", tmp_path) == 1
    assert not list(tmp_path.glob("*.fingerprint.json"))


def resource(name: str) -> Resource:
    return Resource(urn=f"urn:pulumi:x::y::aws:iam/role:Role::{name}", type="aws:iam/role:Role", name=name, inputs={})


def test_drift_is_what_changed_or_went_and_goes_first(tmp_path: Path) -> None:
    found = Preview(
        stack="dev",
        project="trainyard",
        steps=(
            Step(op="same", urn="a", old=resource("a"), new=resource("a")),
            Step(op="update", urn="b", old=resource("b`|@x"), new=resource("b`|@x"), diffs=("description",)),
            Step(op="delete", urn="c", old=resource("c"), new=None),
        ),
        policies=(),
        diagnostics=(),
        complete=True,
        rehearsal=False,
        duration_seconds=1.0,
    )
    drifted = drift.drifted(found)
    assert [(became, name) for became, _, name, _ in drifted] == [("gone", "c"), ("changed", "b`|@x")]
    drift.write("dev", drifted, tmp_path)
    text = (tmp_path / "dev.md").read_text()
    assert "**gone**" in text
    assert "`description`" in text
    assert "b`|" not in text, "a name cannot end its cell"
    drift.write("dev", [], tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["dev.clean"]


def test_an_empty_record_is_no_good_news() -> None:
    found = Preview(
        stack="dev",
        project="trainyard",
        steps=(),
        policies=(),
        diagnostics=(),
        complete=True,
        rehearsal=False,
        duration_seconds=1.0,
    )
    with pytest.raises(StepError, match="has nothing in it"):
        drift.drifted(found)


def test_drift_of_this_computer_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["drift", "local"])
    with pytest.raises(StepError, match="not one on AWS"):
        drift.main()


def test_no_word_about_drift_is_no_good_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "a/b")
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    monkeypatch.setattr(sys, "argv", ["issue", "dev", str(tmp_path / "dev.md")])
    with pytest.raises(StepError, match="nor a word"):
        issue.main()


def test_the_comment_about_images_holds_whatever_a_diff_holds() -> None:
    text = images.report("```\n<!-- x -->\n````", "3 rows", refused=False)
    assert text.startswith("<!-- trainyard images -->\n")
    assert "`````text\n```\n" in text
    assert "Lint" in text
    assert "refuses" in images.report("", "no USER", refused=True)
