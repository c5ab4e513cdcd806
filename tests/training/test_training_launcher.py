"""The launcher's options and messages, in this process: nothing is started."""

import os
import sys
from pathlib import Path

import pytest

from training.launch import options
from training.launch.main import (
    MANY_RESTARTS,
    UsageError,
    _notices,
    _num_workers,
    _wrong_at_first_look,
    command_id,
    job_in_words,
    parse,
)
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


def told(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What the launcher says of a command before it starts."""
    _notices(parse(command))
    return capsys.readouterr().err


def test_etcd_is_served_by_the_v3_handler_with_a_notice(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "backend 'etcd' is served by 'etcd-v3'" in told(capsys, *ETCD, script)
    assert "backend 'etcd-v2' is served by" in told(capsys, "--rdzv-backend=etcd-v2", "--rdzv-endpoint=h:1", script)
    assert told(capsys, "--rdzv-backend=etcd-v3", "--rdzv-endpoint=h:1", script) == ""


def test_limits_of_torchs_rendezvous_are_told_once_where_they_matter(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--nnodes=2:4", script)
    assert text.count("\n") == 1
    for limit in ("falls silent", "missed as late", "node with the store dies", "two worlds", "--max-restarts counts"):
        assert limit in text
    assert "has to be started again on all nodes" in told(capsys, "--nnodes=2", "--node-rank=1", script)
    assert told(capsys, "--nproc-per-node=4", script) == ""
    assert told(capsys, "--standalone", script) == ""


def test_what_a_backend_does_not_use_is_told(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, *ETCD, "--node-rank=1", "--master-addr=a", "--master-port=1", script)
    assert [f"{option} is ignored" in text for option in ("--node-rank", "--master-addr", "--master-port")] == [
        True
    ] * 3
    assert "--rdzv-backend etcd is not used" in told(capsys, *ETCD, "--standalone", script)


def test_a_variable_that_stands_for_nothing_is_told(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PERNODE", "4")
    assert "PET_NPROC_PERNODE stands for no option and is ignored; did you mean PET_NPROC_PER_NODE?" in told(
        capsys, script
    )


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
    text = told(capsys, *ETCD, "--nnodes=2:4", script)
    assert "--nnodes 2:4: fewer than 3 nodes are no majority of 4" in text
    assert "a part that is long without etcd stops, and checkpoints refuse writers of an older generation" in text
    for nnodes in (":4", "3:4", "2", "1:1"):
        assert "majority" not in told(capsys, *ETCD, f"--nnodes={nnodes}", script)


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


def test_what_comes_behind_the_script_is_none_of_our_options(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--logs` could be two of torchrun's, `--stand` one, and `--nproc-per-node` is one."""
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    behind = ["--logs=x", "--stand", "--nproc-per-node", "8", "-h", "--version", "--", "y.py", "-t"]
    for before in ([], ["--nnodes=1:2", "--rdzv-id", "a"], ["--stand"]):
        command = [*before, script, *behind]
        assert _wrong_at_first_look(command) == []
        assert _num_workers(command) == 1
        args = parse(command)
        assert (args.training_script, args.training_script_args) == (script, behind)
        assert args.standalone == (before == ["--stand"])


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
        (["--nnodes=1:"], "--nnodes 1:: write a number"),
        (["--nnodes=1:2:3"], "--nnodes 1:2:3: write a number"),
        (["--nnodes=3:1"], "not more than the most"),
        (["--nnodes=0"], "at least 1"),
        (["--nproc-per-node=0"], "--nproc-per-node 0: at least one worker"),
        (["--nproc-per-node=-2"], "--nproc-per-node -2: at least one worker"),
        (["--rdzv-backend=etcd"], "needs --rdzv-endpoint HOST:2379"),
        (["--standalone", "--nnodes=2"], "--standalone is for one node, and --nnodes 2 waits for more"),
        (["--max-restarts=-1"], "--max-restarts -1: write 0 or more"),
        (["--monitor-interval=0"], "--monitor-interval 0.0: write seconds"),
        (["--shutdown-timeout=-1"], "--shutdown-timeout -1: write seconds"),
        (["--signals-to-handle=SIGTERM,SIGNONE"], "there is no signal 'SIGNONE'"),
        (["--local-ranks-filter=a"], "--local-ranks-filter a: write local ranks"),
        (["--no-python", "-m"], "--module names a Python module and --no-python a file"),
        (["--run-path", "-m"], "--module names a Python module and --run-path a file"),
        (["--restart-on=1"], "--restart-on needs --rdzv-backend etcd"),
        ([*ETCD, "--restart-pause=soon"], "--restart-pause soon: write seconds, 0 to 300"),
        ([*ETCD, "--restart-pause=301"], "--restart-pause 301: write seconds, 0 to 300"),
        (["--restart-pause=1"], "--restart-pause needs --rdzv-backend etcd"),
        ([*ETCD, "--no-restart-on=x"], "--no-restart-on: 'x' is no exit code"),
        (["--init-method=udp"], "--init-method udp: write env, tcp, file or"),
        (["--init-method=tcp://h:1"], "--init-method tcp://h:1: write tcp alone"),
        (["--init-method=file", "--nnodes=1:2"], "name a shared folder"),
        (["--init-method=file:///no/such/folder"], "there is no folder /no/such/folder"),
    ],
)
def test_mistakes_in_options_are_told_before_torch_is_imported_and_again(
    script: str, options: list[str], message: str
) -> None:
    (sentence, *_) = _wrong_at_first_look([*options, script])
    assert message in sentence
    with pytest.raises(UsageError) as caught:
        parse([*options, script])
    assert message in str(caught.value)


def test_several_mistakes_are_told_in_one_go(script: str) -> None:
    command = ["--rdzv-backend=etcd", "--nnodes=4:2", "--max-restarts=-1", "--no-restart-on=0", f"{script}x"]
    sentences = _wrong_at_first_look(command)
    assert [sentence.split()[0] for sentence in sentences] == [
        *("--nnodes", "there", "--rdzv-backend", "--max-restarts", "--no-restart-on:")
    ]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRAINYARD_BACKEND", "glo", "TRAINYARD_BACKEND=glo: write gloo, nccl, mpi"),
        ("TRAINYARD_START", "thread", "TRAINYARD_START=thread: write fork, spawn"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon: write seconds"),
    ],
)
def test_mistakes_in_variables_are_told(
    script: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert _wrong_at_first_look([script]) == [message] or message in _wrong_at_first_look([script])[0]


def test_a_flag_variable_that_is_neither_0_nor_1_is_told() -> None:
    assert list(options.mistakes_in_variables({"PET_STANDALONE": "yes", "PET_MODULE": "1"})) == [
        "PET_STANDALONE=yes: write 1 (as if --standalone were given) or 0"
    ]


def test_a_script_or_module_that_is_not_there_is_told(script: str) -> None:
    with pytest.raises(UsageError, match=r"there is no script '.*/train\.pyx'"):
        parse([script + "x"])
    with pytest.raises(UsageError, match=r"-m no_such_package\.train: there is no module 'no_such_package'"):
        parse(["-m", "no_such_package.train"])
    with pytest.raises(UsageError, match=r"--no-python: there is no program 'no-such-program' on PATH"):
        parse(["--no-python", "no-such-program"])
    assert parse(["-m", "training.examples.digits"]).module
    assert parse(["--no-python", "true"]).no_python


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

    modules = "training, training.__main__, training.launch.main, training.launch.rendezvous"
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
