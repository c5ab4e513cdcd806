"""`trainyard gpus` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

import infra.cli
from infra.catalog import account
from infra.catalog.account import AccountError, Clients, Difference, Findings
from infra.catalog.instance_types import InstanceType, instance_types

GPU_TYPES = [machine for machine in instance_types().values() if machine.has_gpu]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", "gpus", *arguments])
    code = 0
    try:
        infra.cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_table_has_every_gpu_type_and_says_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch)
    assert code == 0
    for machine in GPU_TYPES:
        assert f" {machine.name} " in out
    assert "m7i.large" not in out
    line = next(line for line in out.splitlines() if "p5.48xlarge" in line)
    assert line.split()[:8] == ["p5.48xlarge", "8", "H100", "80", "192", "2048", "32/32", "30400"]
    assert "55.04" in line and "6.88" in line and "2026-07-20" in line  # noqa: PT018
    gb200 = next(line for line in out.splitlines() if "p6e-gb200" in line)
    assert "8?/17?" in gb200
    assert "? behind a value: not confirmed" in err
    assert "Old: " in err


@pytest.mark.parametrize("width", [200, 130, 100, 80])
def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(highlight=False, soft_wrap=True, width=width)
    monkeypatch.setattr("infra.cli.console.stdout", lambda: console)
    code, out, err = run(capsys, monkeypatch)
    assert code == 0
    line = next(line.split() for line in out.splitlines() if "p5.48xlarge" in line)
    assert line[:3] == ["p5.48xlarge", "8", "H100"]
    assert {"32/32", "55.04"} <= set(line)
    assert ("30400" in line) == ("NVMe GB" not in err)
    assert max(map(len, out.splitlines())) <= width


def test_filters_leave_only_what_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(*arguments: str) -> set[str]:
        code, out, _ = run(capsys, monkeypatch, *arguments, "--json")
        assert code == 0
        return {one["type"] for one in json.loads(out)["types"]}

    assert names("--gpu", "h100") == {"p5.48xlarge", "p5.4xlarge"}
    assert names("--efa") == {machine.name for machine in GPU_TYPES if machine.efa}
    assert names("--gpu", "L4", "--efa") == {
        machine.name for machine in GPU_TYPES if machine.efa and str(machine.gpu).startswith("L4")
    }
    assert "p6e-gb200.36xlarge" not in names("--capacity", "spot")


def test_filters_that_leave_nothing_are_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "--gpu", "MI300X")
    assert (code, out) == (2, "")
    assert "GPUs: " in err and "H100" in err  # noqa: PT018
    code, _, err = run(capsys, monkeypatch, "p5.48xlarge", "--efa")
    assert code == 2
    assert "leave the filters out" in err


def test_one_type_shows_everything_with_its_interfaces(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "p6-b300.48xlarge")
    assert code == 0
    words = " ".join(out.split())
    assert "compute capability 10.3" in words
    assert "the AL2023 image has 580.159.03" in words
    assert "Interfaces with EFA: cards device index kind" in words
    assert "0 0 interface 1-16 0 efa-only" in words
    assert "142.42 USD/h" in words
    assert "source EC2 DescribeInstanceTypes" in words
    assert "us-east-1" in err


def test_a_driver_that_is_too_old_for_a_gpu_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run(capsys, monkeypatch, "g7.48xlarge")
    assert "too old: it needs an image of your own" in " ".join(out.split())


def test_a_machine_without_gpus_can_be_asked_for_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "m7i.large", "--json")
    document = json.loads(out)
    assert (code, document["gpus"], document["max_pods"]) == (0, 0, 29)
    assert document["price"]["usd_per_gpu_hour"] is None
    code, out, _ = run(capsys, monkeypatch, "m7i.large")
    assert code == 0
    assert "compute capability" not in out


def test_one_type_as_json_is_one_document_with_layout_and_price(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "p5en.48xlarge", "--json")
    document = json.loads(out)
    assert code == 0
    assert len(document["interfaces"]) == 17
    assert document["price"]["usd_per_gpu_hour"] == pytest.approx(7.912)
    assert document["price"]["as_of"] == "2026-07-20"


def test_an_unknown_type_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "p5.96xlarge")
    assert (code, out) == (2, "")
    assert "p5.48xlarge" in err
    assert "Traceback" not in err


def test_a_region_without_prices_says_how_to_get_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "--region", "eu-west-1")
    assert code == 0
    assert "No prices of eu-west-1" in err
    assert "trainyard gpus --refresh --region eu-west-1" in err


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Difference]:
    """An account with two differences, without AWS behind it."""
    price = Difference("p5.48xlarge", "usd_per_hour", None, Decimal("49.5"), None)
    spot = Difference("p5.48xlarge", "spot", None, (Decimal("9.5"), Decimal("30.25")), None)

    def compare(machines: list[InstanceType], region: str, _: Clients) -> Findings:
        return Findings(region, tuple(machine.name for machine in machines), ("p6e-gb200.36xlarge",), (price, spot))

    monkeypatch.setattr(account, "clients", lambda _: Clients(None, None))
    monkeypatch.setattr(account, "compare", compare)
    return [price, spot]


def test_refresh_prints_the_differences(
    found: list[Difference], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "--gpu", "H100", "--refresh", "--region", "us-east-2")
    assert code == 0
    assert "p5.48xlarge usd_per_hour - 49.5" in " ".join(out.split())
    assert "p5.48xlarge spot - 9.5 30.25" in " ".join(out.split())
    assert "2 types compared, 2 differences; nothing was changed" in err
    assert "Not in us-east-2: p6e-gb200.36xlarge" in err

    code, out, _ = run(capsys, monkeypatch, "p5.48xlarge", "--refresh", "--json")
    document: dict[str, Any] = json.loads(out)
    assert document["compared"] == ["p5.48xlarge"]
    assert document["differences"] == [
        {"type": "p5.48xlarge", "field": "usd_per_hour", "catalogue": None, "aws": 49.5, "reason": None},
        {"type": "p5.48xlarge", "field": "spot", "catalogue": None, "aws": [9.5, 30.25], "reason": None},
    ]


def test_refresh_without_credentials_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(region: str) -> Clients:
        raise AccountError("AWS was not asked: no credentials.")

    monkeypatch.setattr(account, "clients", refuse)
    code, out, err = run(capsys, monkeypatch, "--refresh")
    assert (code, out) == (1, "")
    assert "trainyard: AWS was not asked: no credentials." in err


def test_the_command_and_the_catalogue_do_not_load_the_aws_sdk() -> None:
    modules = "infra.cli.gpus, infra.catalog.account, infra.catalog.known_bad, infra.catalog.prices"
    script = f"import sys, {modules}; print(*{{'boto3', 'botocore', 'pulumi', 'rich'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
