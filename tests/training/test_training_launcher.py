"""The launcher's options and messages, in this process: nothing is started."""

import os
import sys
from pathlib import Path

import pytest

from training.launch.main import MANY_RESTARTS, UsageError, _num_workers, command_id, job_in_words, parse
from training.launch.workers import job_of


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for variable in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(variable)
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


ETCD = ("--rdzv-backend=etcd", "--rdzv-endpoint=h:1")


def test_options_are_those_of_torchrun(script: str) -> None:
    command = [
        *("--nproc_per_node=4", "--nnodes=1:4", "--max_restarts=3", "--rdzv_backend=etcd"),
        *("--rdzv_endpoint=host:2379", script, "--lr", "1"),
    ]
    args = parse(command)

    assert (args.nproc_per_node, args.nnodes, args.max_restarts) == ("4", "1:4", 3)
    assert args.training_script_args == ["--lr", "1"]


def test_etcd_is_served_by_the_v3_handler_with_a_notice(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    parse([*ETCD, script])
    assert "backend 'etcd' is served by 'etcd-v3'" in capsys.readouterr().err
    assert parse(["--rdzv-backend=etcd-v2", "--rdzv-endpoint=h:1", "--nnodes=1:3", script]).max_restarts
    assert "backend 'etcd-v2' is served by 'etcd-v3'" in capsys.readouterr().err
    parse(["--rdzv-backend=etcd-v3", "--rdzv-endpoint=h:1", script])
    assert capsys.readouterr().err == ""


def test_an_elastic_job_restarts_as_often_as_it_makes_progress(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse([*ETCD, "--nnodes=1:3", script]).max_restarts == MANY_RESTARTS
    assert parse([*ETCD, "--nnodes=3", script]).max_restarts == 0
    assert parse(["--nnodes=1:3", script]).max_restarts == 0
    assert parse([*ETCD, "--nnodes=1:3", "--max-restarts=0", script]).max_restarts == 0
    monkeypatch.setenv("PET_MAX_RESTARTS", "7")
    assert parse([*ETCD, "--nnodes=1:3", script]).max_restarts == 7


@pytest.mark.parametrize(("most", "nnodes"), [(1, "1:1"), (2, "2:2"), (3, "2:3"), (4, "3:4"), (5, "3:5")])
def test_where_only_the_most_is_given_the_least_is_a_majority(script: str, most: int, nnodes: str) -> None:
    assert parse([*ETCD, f"--nnodes=:{most}", script]).nnodes == nnodes


def test_less_than_a_majority_is_pointed_out_with_what_protects_then(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse([*ETCD, "--nnodes=2:4", script])
    told = capsys.readouterr().err
    assert "--nnodes 2:4: fewer than 3 nodes are no majority of 4" in told
    assert "a part that is long without etcd stops, and checkpoints refuse writers of an older generation" in told
    for nnodes in (":4", "3:4", "2", "1:1"):
        parse([*ETCD, f"--nnodes={nnodes}", script])
        assert "majority" not in capsys.readouterr().err


def test_a_job_is_known_by_its_script_and_sizes_and_not_by_what_may_differ_between_nodes(script: str) -> None:
    nodes = [parse([*ETCD, "--nnodes=1:4", script, f"--out=/scratch/{node}"]) for node in "ab"]
    assert [job_in_words(args) for args in nodes] == [f"{Path(script).name} on 1:4 nodes"] * 2
    assert job_in_words(parse([*ETCD, "--nnodes=2", "-m", "json.tool"])) == "-m json.tool on 2 nodes"


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ([], 1),
        (["--nproc-per-node=4"], 4),
        (["--nproc_per_node", "2", "--nnodes=3"], 2),
        (["--nproc-per-node", "auto"], os.cpu_count()),
        (["--nproc-per-node"], 1),
    ],
)
def test_the_number_of_workers_is_known_before_torch_is(
    script: str, monkeypatch: pytest.MonkeyPatch, options: list[str], number: int
) -> None:
    assert _num_workers([script]) == 1
    assert _num_workers([*options] if options[-1:] == ["--nproc-per-node"] else [*options, script]) == number
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert _num_workers([script]) == 3


def test_variables_stand_for_options(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NNODES": "2:5", "RDZV_BACKEND": "etcd", "RDZV_ENDPOINT": "e:1", "RDZV_ID": "x"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    args = parse([script])
    assert (args.nnodes, args.rdzv_endpoint, args.rdzv_id) == ("2:5", "e:1", "x")
    assert parse(["--nnodes=1", script]).nnodes == "1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nnodes=three"], "--nnodes three: write a number"),
        (["--nnodes=:x"], "--nnodes :x: write a number"),
        (["--nnodes=:0"], "not more than the most"),
        (["--nnodes=3:1"], "not more than the most"),
        (["--nnodes=0"], "at least 1"),
        (["--rdzv-backend=etcd"], "needs --rdzv-endpoint HOST:2379"),
    ],
)
def test_mistakes_in_options_are_told(script: str, options: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse([*options, script])


def test_a_script_or_module_that_is_not_there_is_told(script: str) -> None:
    with pytest.raises(UsageError, match=r"there is no script '.*/train\.pyx'"):
        parse([script + "x"])
    with pytest.raises(UsageError, match=r"-m no_such_package\.train: there is no module 'no_such_package'"):
        parse(["-m", "no_such_package.train"])
    assert parse(["-m", "training.examples.digits"]).module


def test_an_unknown_option_is_a_usage_error(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        parse(["--no-such-option", script])
    assert "unrecognized arguments: --no-such-option" in capsys.readouterr().err


def test_without_an_id_nodes_with_the_same_command_meet(script: str) -> None:
    first, same = parse([*ETCD, script, "--lr=1"]), parse([*ETCD, "--log-dir=/x", script, "--lr=1"])
    other = parse([*ETCD, script, "--lr=2"])

    assert command_id(first) == command_id(same)
    assert command_id(first) != command_id(other)
    assert command_id(first).startswith("train-")


def test_torchs_command_line_is_read_as_python_reads_it() -> None:
    script = job_of(["-u", "train.py", "-m", "-u"], {"A": "1"})
    module = job_of(["-u", "-m", "package.train", "--lr", "1"], {})

    assert (script.program, script.is_module, script.args) == ("train.py", False, ("-m", "-u"))
    assert (module.program, module.is_module, module.args) == ("package.train", True, ("--lr", "1"))
    assert type(script).from_json(script.to_json()) == script


def test_this_package_does_not_import_torch() -> None:
    import subprocess  # noqa: PLC0415

    code = "import training, training.launch.rendezvous, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
