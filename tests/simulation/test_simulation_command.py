"""`trainyard simulate` as a user meets it."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import made_traces
import pytest

import infra.cli
from infra.simulation.parameters import Checkpoints, Parameters, Pool, Recovery

JOB = """\
steps: 2000
stepSeconds: 2
minWorkers: 2
maxWorkers: 4
noticeSeconds: 0
region: us-east-1
recovery: {death: 20, join: 10, start: 60}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", "simulate", *arguments])
    code = 0
    try:
        infra.cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    output = capsys.readouterr()
    return code, output.out, output.err


def test_policies_stand_side_by_side_with_what_they_take_and_cost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Path
) -> None:
    first, second = made_traces.machines(tmp_path), made_traces.numbered(tmp_path)
    named = ["--job", str(job), "--trace", str(first), "--trace", str(second), "--type", "p5.48xlarge"]
    picture = tmp_path / "plot.svg"
    code, out, err = run(capsys, monkeypatch, *named, "--svg", str(picture))
    assert code == 0
    for policy in ("on demand", "spot, p5.48xlarge", "spot, p5.48xlarge, + 2 on demand", "spot, 2 pools"):
        assert policy in out
    assert "p5.48xlarge: 1:02:00 with" in err
    assert "Prices are known of types that the catalogue has" in err
    drawn = picture.read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own
    assert "waiting for machines" in drawn

    code, out, err = run(capsys, monkeypatch, *named, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    policies = {each["policy"]: each for each in document["policies"]}
    assert len(policies) == 5
    alone = policies["on demand"]
    assert alone["done"]
    hourly = Decimal(document["on_demand_usd_per_hour"]["low"])
    assert float(alone["usd"]["low"]) == pytest.approx(4 * alone["seconds"] / 3600 * float(hourly), rel=1e-4)
    mixed = policies["spot, 2 pools"]
    assert mixed["usd_without"] == ["spot, numbered"]
    for each in policies.values():
        assert each["seconds"] == pytest.approx(each["useful_seconds"] + sum(each["losses"].values()), abs=0.1)


def test_the_same_input_gives_the_same_picture(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Path
) -> None:
    trace = str(made_traces.machines(tmp_path))
    for name in ("one.svg", "two.svg"):
        run(capsys, monkeypatch, "--job", str(job), "--trace", trace, "--svg", str(tmp_path / name))
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_all_mistakes_are_told_in_one_go(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Path
) -> None:
    wrong = ["--set", "steps=0", "--set", "colour=red", "--set", "recovery.join=-1", "--set", "what"]
    code, out, err = run(capsys, monkeypatch, "--job", str(job), "--trace", "none.csv", *wrong)
    assert (code, out) == (2, "")
    assert f"trainyard: {job}: 4 of the parameters cannot be used:" in err
    assert "  --set what: is not KEY=VALUE" in err
    assert "  steps: should be greater than or equal to 1, and not '0'" in err
    assert "  colour: there is no such key" in err
    assert "  recovery.join: should be greater than or equal to 0, and not '-1'" in err

    code, _, err = run(capsys, monkeypatch, "--job", str(job), "--set", "minWorkers=5", "--trace", "none.csv")
    assert (code, "minWorkers (5) is more than maxWorkers (4)" in err) == (2, True)

    (tmp_path / "bad.csv").write_text("x,y\n")
    both = ["--trace", str(tmp_path / "none.csv"), "--trace", str(tmp_path / "bad.csv")]
    code, _, err = run(capsys, monkeypatch, "--job", str(job), *both)
    assert code == 2
    assert "none.csv cannot be read" in err
    assert "bad.csv: line 1 is not `seconds,number`" in err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("- 1\n", "is no mapping of parameters"),
        ("a: [\n", "is no YAML"),
    ],
)
def test_a_file_of_parameters_that_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, told: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(content)
    code, _, err = run(capsys, monkeypatch, "--job", str(file))
    assert (code, told in err, "Traceback" in err) == (2, True, False)


def test_without_a_trace_there_is_nothing_to_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, job: Path
) -> None:
    code, _, err = run(capsys, monkeypatch, "--job", str(job))
    assert (code, "no trace is named: --trace FILE" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, "--job", str(job), "--type", "p5.48xlarge")
    assert (code, "--type names 1 type for 0 traces" in err) == (2, True)


def test_a_job_that_no_policy_finishes_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Path
) -> None:
    trace = str(made_traces.machines(tmp_path))
    code, out, err = run(capsys, monkeypatch, "--job", str(job), "--trace", trace, "--set", "mostDays=0.01")
    assert code == 1
    assert "NOT DONE" in out
    assert "With no policy the job is done within 0.01 days" in err


def test_the_page_names_every_parameter_and_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/simulate.md").read_text()
    told = {part for line in page.splitlines() if line.startswith("| `") for part in line.split("|")[1].split(", ")}
    named = {name.strip().strip("`").removeprefix("pools[]").removeprefix(".") for name in told}
    pools = {str(field.alias) for field in Pool.model_fields.values()}
    expected = {str(field.alias) for name, field in Parameters.model_fields.items() if name != "pools"} | pools
    for section, model in (("checkpoints", Checkpoints), ("recovery", Recovery)):
        expected -= {section}
        for field in model.model_fields.values():
            expected.add(f"{section}.{field.alias}")
            assert f"| `{section}.{field.alias}` | `{field.default:g}` |" in page
    assert expected - named == set()
