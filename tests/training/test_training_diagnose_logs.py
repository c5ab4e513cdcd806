"""Out of the logs of a failed run: what was the cause, by which lines, and what next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.diagnose import causes, logs
from training.diagnose.__main__ import main
from training.launch import exit_codes

# After the formats of torch 2.9 to 2.15, NCCL 2.20 to 2.30, the Linux kernel and Kubernetes 1.30; shortened.
GLOO = "RuntimeError: [/pytorch/third_party/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.1.7]:39336"
LOGS = {
    "gpu-memory": """
[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/train.py", line 88, in <module>
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 \
GiB of which 1.13 GiB is free. Of the allocated memory 74.20 GiB is allocated by PyTorch, and 2.61 GiB is reserved by \
PyTorch but unallocated.
""",
    "host-memory": """
[31231.114] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=968
[31231.120] Memory cgroup out of memory: Killed process 21873 (pt_data_worker) total-vm:61234408kB, anon-rss:33480124kB
""",
    "gpu-fault": """
[ 9120.401] NVRM: Xid (PCI:0000:59:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
""",
    "disk-full": """
[rank0]: OSError: [Errno 28] No space left on device: '/checkpoints/step-00001200.partial/0.distcp'
""",
    "user-error": """
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 41, in <module>
[rank1]:     main()
[rank1]:   File "/app/model.py", line 12, in forward
[rank1]:     return self.head(self.body(x))
[rank1]:   File "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 125, in forward
[rank1]:     return F.linear(input, self.weight, self.bias)
[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 256x10)
""",
    "node-lost": """
{"trainyard": "recovery", "time": 1796080281.4, "cause": "node_lost", "node": "10.0.1.7", "outcome": "failed"}
""",
    "partition": """
WARNING training.launch.membership: etcd has not answered for 12 s: for so long that others may train without this \
node, so its workers stop
""",
    "sync-timeout": """
[rank0]:[E1130 10:12:44.551 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=4127, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) ran for 600029 \
milliseconds before timing out.
""",
    "slow-storage": """
[62110.9] nfs: server 10.0.3.4 not responding, still trying
[62231.2] INFO: task python:20111 blocked for more than 120 seconds.
""",
}


def write(folder: Path, **texts: str) -> list[Path]:
    files = []
    for name, text in texts.items():
        files.append(folder / f"{name}.log")
        files[-1].write_text(text)
    return files


def diagnose(folder: Path, **texts: str) -> causes.Diagnosis:
    return causes.diagnose(logs.read(write(folder, **texts)))


@pytest.mark.parametrize("name", LOGS)
def test_each_cause_leaves_its_mark(name: str, tmp_path: Path) -> None:
    found = diagnose(tmp_path, rank0=f"starting\n{GLOO}\n", rank1=LOGS[name])
    assert found.verdict.cause.name == name
    assert found.verdict.is_certain
    assert found.verdict.evidence[0].line.file == str(tmp_path / "rank1.log")
    assert found.verdict.cause.next_step in found.text()


def test_every_cause_has_a_test() -> None:
    assert set(LOGS) == {cause.name for cause in causes.CAUSES}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"trainyard": "notice", "time": 1.5, "message": "worker failed", "exit_code": -9, "pid": 7}', "host-memory"),
        ("    Reason:       OOMKilled\n    Exit Code:    137", "host-memory"),
        ("RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.", "host-memory"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu-fault"),
        ("urllib3.exceptions: Failed to establish: [Errno 113] No route to host", "partition"),
        ("[Rank 2]: Rank 1 failed to pass monitoredBarrier in 60000 ms", "sync-timeout"),
        ("RuntimeError: DataLoader timed out after 300 seconds", "slow-storage"),
        ('{"trainyard": "checkpoint", "time": 1.5, "step": 40, "path": "x", "seconds": 211.0}', "slow-storage"),
        ("train.py: error: unrecognized arguments: --bach-size 3", "user-error"),
        ('{"trainyard": "recovery", "time": 1.5, "cause": "isolated", "node": ""}', "partition"),
        ("WARNING training.launch.membership: node 10.0.0.3 has died: its launcher's port is closed", "node-lost"),
    ],
)
def test_other_words_for_the_same(text: str, name: str, tmp_path: Path) -> None:
    assert diagnose(tmp_path, rank0=text).verdict.cause.name == name


def test_an_error_of_the_script_is_named_by_its_own_deepest_place(tmp_path: Path) -> None:
    (evidence,) = diagnose(tmp_path, rank1=LOGS["user-error"]).verdict.evidence
    assert evidence.told.startswith("/app/model.py:12 in forward: RuntimeError: mat1 and mat2")
    assert evidence.line.place == f"{tmp_path}/rank1.log:9"


def test_echoes_of_a_killed_worker_are_no_cause(tmp_path: Path) -> None:
    """The others wait for it until they give up: their time-outs are sure, its end is only likely, and yet first."""
    found = diagnose(
        tmp_path, rank0=LOGS["sync-timeout"], launcher="E1130 10:02:11.0 12 failed (exitcode: -9) local_rank: 1"
    )
    assert found.verdict.cause.name == "host-memory"
    assert not found.verdict.is_certain
    assert [finding.cause.name for finding in found.also] == ["sync-timeout"]
    assert "(likely)" in found.text()
    assert "also seen: sync-timeout" in found.text()


def test_ranks_that_write_into_one_file_keep_their_tracebacks_apart(tmp_path: Path) -> None:
    text = f"""
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 7, in <module>
[rank1]:   File "/app/train.py", line 9, in <module>
[rank0]: {GLOO}
[rank1]: KeyError: 'label'
"""
    (evidence,) = diagnose(tmp_path, all=text).verdict.evidence
    assert evidence.told == "/app/train.py:9 in <module>: KeyError: 'label'"


def test_what_nobody_knows_is_unknown_with_the_last_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write(tmp_path, rank0="\n".join(["all is well", f"{GLOO}", "frobnication failed: 7", "bye"]))
    assert main(["logs", *map(str, files)]) == exit_codes.FAILED
    told = capsys.readouterr().out
    assert told.startswith("unknown: no known cause")
    assert "frobnication failed: 7" in told
    assert "all is well" not in told

    write(tmp_path, rank0="only\nthis")
    assert main(["logs", "--json", str(tmp_path)]) == exit_codes.FAILED
    document = json.loads(capsys.readouterr().out)
    assert (document["cause"], document["certain"]) == ("unknown", False)
    assert [line["text"] for line in document["last_errors"]] == ["only", "this"]


def test_logs_of_ranks_are_merged_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each writes its times in its own way; a line without one stays behind the line before it."""
    write(
        tmp_path,
        launcher="first, without a time\n2026-11-30 10:00:01,500 WARNING one\n2026-11-30 10:00:04,000 WARNING four",
        pod="2026-11-30T11:00:02.25+01:00 two\nstill two",
        rank1='[rank1]: {"trainyard": "step", "time": 1796032803.0, "step": 3}',
    )
    (tmp_path / "empty.log").touch()
    assert main(["logs", "--merge", "--json", str(tmp_path)]) == exit_codes.FINISHED
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [Path(line["place"]).name for line in lines] == [
        *("launcher.log:1", "launcher.log:2", "pod.log:1", "pod.log:2", "rank1.log:1", "launcher.log:3"),
    ]
    assert main(["logs", "--merge", str(tmp_path)]) == exit_codes.FINISHED
    assert "pod.log:2: still two\n" in capsys.readouterr().out


def test_torch_writes_no_year() -> None:
    assert logs.time_of("W1130 10:00:01.250000 468 api.py:752] x", 2026) == 1796032801.25
    assert logs.time_of("[rank0]:[default1]: E1130 10:00:01.25 468 api.py:752] x", 2026) == 1796032801.25
    assert logs.time_of("W1330 10:00:01.250000 468 api.py:752] x", 2026) is None
    assert logs.time_of("no time", 2026) is None


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(tmp_path / "none.log")]) == exit_codes.USAGE
    assert "none.log: No such file" in capsys.readouterr().err
    assert main(["logs", str(tmp_path)]) == exit_codes.USAGE
    assert "there is no file in this folder" in capsys.readouterr().err
    assert main([]) == exit_codes.USAGE
    assert main(["--help"]) == exit_codes.FINISHED
