"""`trainyard cost` and `trainyard diagram` as a user meets them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_program import run_stack_file

import infra.cli
from infra.report import program
from infra.report.preview import Resource


@pytest.fixture(scope="module")
def resources() -> dict[str, tuple[Resource, ...]]:
    """What the programs of the example stacks ask for, by stack; `small` is dev with fewer machines."""
    found = {}
    for stack in ("dev", "prod"):
        recorded = run_stack_file(stack).resources
        found[stack] = tuple(
            Resource(
                urn=each.urn,
                type=each.type,
                name=each.name,
                inputs=each.inputs,
                parent=each.parent or None,
                provider=each.provider,
                custom=not each.type.startswith("trainyard:"),
            )
            for each in recorded
        )
    return found


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch, resources: dict[str, tuple[Resource, ...]]) -> None:
    """No test here runs the program again; at every revision stands what dev is, without its machines."""

    def resources_of(stack: str, folder: Path | None = None) -> tuple[Resource, ...]:
        found = resources[stack]
        return found if folder is None else tuple(one for one in found if one.kind != "NodeGroup")

    @contextlib.contextmanager
    def at_revision(revision: str, stack: str) -> Iterator[Path]:
        yield Path("/")

    monkeypatch.setattr(program, "resources_of", resources_of)
    monkeypatch.setattr(program, "at_revision", at_revision)


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", *arguments])
    with pytest.raises(SystemExit) as ended:
        infra.cli.main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


# --- cost -------------------------------------------------------------------------------------------------------------


def test_a_stack_tells_its_parts_totals_dates_and_what_is_not_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "cost", "-s", "prod")
    assert code == 0
    for told in ("gpu-block", "0-8 x p5.48xlarge, spot", "1.41-1.50", "32,850.00-35,010.80", "2026-01-01"):
        assert told in out
    assert "A month at 50 % utilisation: >= 37,441.66 USD, without gpu-block" in out
    assert "Each GPU and hour, most machines: unknown" in out
    assert "<0.01" in out  # a gigabyte of etcd for an hour is not nothing
    assert "no price of a capacity block of p5.48xlarge in us-east-2" in err
    assert "Not counted: " in err
    assert "without an engine and without AWS" in err
    assert "older than 90 days" in err


def test_figures_for_which_no_price_list_was_seen_are_marked_and_others_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, err = run(capsys, monkeypatch, "cost", "-s", "dev")
    rows = {
        words: line.split()
        for line in out.splitlines()
        for words in ("disks of system", "NAT gateways")
        if words in line
    }
    assert rows["disks of system"][-4:-1] == ["0.01?", "0.02?", "10.00?"]
    assert rows["NAT gateways"][-4:-1] == ["0.05", "0.05", "32.85"]
    assert "? behind a figure: no price list of AWS was seen for it." in err


def test_the_document_has_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "cost", "-s", "dev", "--json", "--utilisation", "1")
    told = json.loads(out)
    assert code == 0
    assert told["cost"]["utilisation"] == "1"
    assert told["cost"]["region"] == "us-east-2"
    assert told["resources_from"] == "program"
    assert [pool["name"] for pool in told["cost"]["pools"]] == ["gpu-spot", "system"]


def test_a_change_is_told_part_by_part_and_in_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, out, err = run(
        capsys, monkeypatch, "cost", "-s", "dev", "--against", "main", "--svg", str(tmp_path / "cost.svg")
    )
    assert code == 0
    assert "+379.45 to +575.68" in out
    assert "A month, against main: +605.41 to +801.64 USD" in out
    (disks,) = [line.split() for line in out.splitlines() if "disks of gpu-spot" in line and " x " not in line]
    assert disks[-3:] == ["-", "32.00?", "+32.00?"]
    assert "? behind a figure: " in err
    assert (tmp_path / "cost.svg").read_text().startswith("<?xml")
    assert "Written: " in err
    _, out, _ = run(capsys, monkeypatch, "cost", "-s", "dev", "--against", "main", "--json")
    told = json.loads(out)["against"]
    assert told["revision"] == "main"
    assert {one["name"] for one in told["changes"]} == {"gpu-spot", "system", "disks of gpu-spot", "disks of system"}


def test_a_stack_of_this_computer_costs_nothing_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "cost")
    assert code == 0
    assert out.strip() == "Stack local runs on this computer and costs nothing."
    code, out, _ = run(capsys, monkeypatch, "cost", "--json")
    assert json.loads(out)["cost"] is None


@pytest.mark.parametrize("share", ["x", "1.5", "-1", "nan", ""])
def test_a_share_that_is_none_is_a_mistake(
    share: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "cost", "-s", "dev", "--utilisation", share)
    assert code == 2
    assert "is a share of the time" in err


def test_a_plot_that_cannot_be_written_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, _, err = run(capsys, monkeypatch, "cost", "-s", "dev", "--svg", str(tmp_path / "no/such/folder.svg"))
    assert code == 2
    assert "cannot be written" in err


def test_a_stack_that_is_not_there_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("cost", "diagram"):
        code, _, err = run(capsys, monkeypatch, command, "-s", "nope")
        assert code == 2
        assert "Stacks here: dev, local, prod" in err


# --- diagram ----------------------------------------------------------------------------------------------------------

DRAWS = """#!/bin/sh
read first
case "$first" in digraph*) ;; *) echo "no graph" >&2; exit 1 ;; esac
cat > /dev/null
echo "drawn with $1"
"""


@pytest.fixture
def graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `dot` that says what it was asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dot").write_text(DRAWS)
    (folder / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "dot"


def test_mermaid_is_what_one_gets_without_asking(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "diagram", "-s", "prod")
    assert code == 0
    assert out.startswith("flowchart LR\n")
    code, out, _ = run(capsys, monkeypatch, "diagram", "-s", "prod", "--format", "dot")
    assert out.startswith("digraph stack {")
    code, out, _ = run(capsys, monkeypatch, "diagram", "-s", "prod", "--json")
    assert json.loads(out)["diagram"].startswith("flowchart LR\n")


def test_the_ending_of_the_file_names_the_format(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graphviz: Path
) -> None:
    for name, begins in (
        ("a.mmd", "flowchart"),
        ("a.dot", "digraph"),
        ("a.svg", "drawn with -Tsvg"),
        ("a.txt", "flow"),
    ):
        code, out, err = run(capsys, monkeypatch, "diagram", "-s", "dev", "-o", str(tmp_path / name))
        assert code == 0
        assert out == ""
        assert f"Written: {tmp_path / name}" in err
        assert (tmp_path / name).read_text().startswith(begins)
    code, out, _ = run(
        capsys, monkeypatch, "diagram", "-s", "dev", "--format", "png", "-o", str(tmp_path / "b"), "--json"
    )
    assert json.loads(out) == {"stack": "dev", "format": "png", "file": str(tmp_path / "b"), "diagram": None}
    assert (tmp_path / "b").read_text() == "drawn with -Tpng\n"


def test_without_graphviz_the_package_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run(capsys, monkeypatch, "diagram", "-s", "dev", "-o", str(tmp_path / "a.svg"))
    assert code == 1
    assert "install the package `graphviz`" in err
    assert not (tmp_path / "a.svg").exists()


def test_a_graphviz_that_fails_leaves_no_file_and_is_quoted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graphviz: Path
) -> None:
    graphviz.write_text("#!/bin/sh\ncat > /dev/null\necho 'syntax error near here' >&2\nexit 1\n")
    code, _, err = run(capsys, monkeypatch, "diagram", "-s", "dev", "-o", str(tmp_path / "a.svg"))
    assert code == 1
    assert "syntax error near here" in err
    assert not (tmp_path / "a.svg").exists()


def test_what_cannot_be_done_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graphviz: Path
) -> None:
    for arguments, said in (
        (["--format", "pdf"], "there are mermaid, dot, svg, png"),
        (["--format", "png", "--json"], "name a file with -o"),
        (["-o", str(tmp_path / "no/such/a.mmd")], "cannot be written"),
    ):
        code, _, err = run(capsys, monkeypatch, "diagram", "-s", "dev", *arguments)
        assert code == 2
        assert said in err
