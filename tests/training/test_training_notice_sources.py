"""What the launcher hears of clouds and kubelet: each against a stand-in that speaks the real protocol."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from local_agents import closed_port, wait_for
from metadata_servers import AwsServer, AzureServer, GcpServer, MetadataServer

from training.launch.environment import METADATA_ENDPOINT, POD_ANNOTATIONS
from training.launch.notices import Notice, sources, watch
from training.launch.notices.budget import Budget
from training.launch.notices.metadata import MetadataError, ask
from training.launch.notices.sources import Aws, Azure, Gcp, Kubernetes, here
from training.launch.notices.watch import Watch, mistake, wake_signal

AT = "2030-05-04T03:02:01Z"
SECONDS = datetime(2030, 5, 4, 3, 2, 1, tzinfo=UTC).timestamp()


def serve(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METADATA_ENDPOINT, server.endpoint)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # of others: nothing is asked through it


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsServer]:
    with AwsServer() as server:
        serve(server, monkeypatch)
        yield server


@pytest.fixture
def gcp(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpServer]:
    with GcpServer() as server:
        serve(server, monkeypatch)
        yield server


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureServer]:
    with AzureServer("trainer_3") as server:
        serve(server, monkeypatch)
        yield server


def test_aws_says_nothing_until_it_takes_the_machine(aws: AwsServer) -> None:
    source = Aws()
    assert source.look() == []
    aws.recommend(AT)
    (notice,) = source.look()
    assert (notice.kind, notice.deadline) == ("rebalance", None)
    aws.interrupt("terminate", AT)
    leave, again = source.look()
    assert (leave.kind, leave.deadline, leave.source, leave.detail) == (
        "leave",
        SECONDS,
        "aws",
        "instance-action terminate",
    )
    assert again == notice
    assert aws.asked.count("PUT /latest/api/token") == 1, "one token for all of it"


def test_aws_gives_a_new_token_for_an_old_one(aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Aws()
    source.look()
    aws.forget_tokens()
    aws.interrupt("stop", AT)
    assert [notice.detail for notice in source.look()] == ["instance-action stop"]
    assert aws.asked.count("PUT /latest/api/token") == 2

    monkeypatch.setattr(Aws, "TOKEN_LIFE", timedelta(seconds=1))  # renewed before its end, without a refusal
    source = Aws()
    source.look()
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 0.95)
    source.look()
    assert aws.asked.count("PUT /latest/api/token") == 4


def test_aws_hibernation_begins_at_once(aws: AwsServer) -> None:
    aws.interrupt("hibernate", "")
    (notice,) = Aws().look()
    assert notice.deadline is not None
    assert notice.deadline <= time.time()


def test_aws_without_metadata_is_an_error_in_words(aws: AwsServer) -> None:
    aws.is_off = True
    with pytest.raises(MetadataError, match="/latest/api/token: status 403"):
        Aws().look()


def test_gcp_answers_when_the_machine_is_preempted(gcp: GcpServer) -> None:
    source = Gcp()
    assert source.look() == []
    heard: list[Notice] = []
    waiting = threading.Thread(target=lambda: heard.extend(source.look()))
    waiting.start()
    wait_for(lambda: any("wait_for_change=true" in question for question in gcp.asked), "the long question")
    assert "last_etag=preempted0001" in gcp.asked[-1]
    assert not heard
    begin = time.time()
    gcp.set("preempted", "TRUE")
    waiting.join(60)
    (notice,) = heard
    assert (notice.kind, notice.detail) == ("leave", "preempted")
    assert notice.deadline is not None
    assert notice.deadline >= begin + 30


@pytest.mark.parametrize(
    ("event", "kind"), [("MIGRATE_ON_HOST_MAINTENANCE", "rebalance"), ("TERMINATE_ON_HOST_MAINTENANCE", "leave")]
)
def test_gcp_maintenance_of_the_host(gcp: GcpServer, event: str, kind: str) -> None:
    gcp.set("maintenance-event", event)
    assert [(notice.kind, notice.detail) for notice in Gcp().look()] == [(kind, event)]


def test_gcp_takes_no_answer_of_somebody_else(gcp: GcpServer) -> None:
    gcp.broken = "TRUE"
    with pytest.raises(MetadataError, match="not marked as Google's"):
        Gcp().look()


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_azure_takes_the_machine(azure: AzureServer, kind: str) -> None:
    source = Azure()
    assert source.look() == []
    azure.schedule(kind, "Sat, 04 May 2030 03:02:01 GMT")
    azure.schedule(kind, "Sat, 04 May 2030 03:02:01 GMT", machine="trainer_4")
    (notice,) = source.look()
    assert (notice.kind, notice.deadline, notice.detail) == ("leave", SECONDS, f"{kind} id-2")
    assert source.look() == [notice]


def test_azure_freezes_and_has_begun(azure: AzureServer) -> None:
    azure.schedule("Freeze", "")
    azure.schedule("Preempt", "", status="Started")
    freeze, preempt = Azure().look()
    assert (freeze.kind, freeze.deadline) == ("rebalance", None)
    assert preempt.deadline is not None
    assert preempt.deadline <= time.time()


def test_the_kubelet_writes_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "annotations"
    monkeypatch.setenv(POD_ANNOTATIONS, str(file))
    assert here(tmp_path) == []
    with pytest.raises(MetadataError, match="No such file"):
        Kubernetes().look()
    lines = ['kubernetes.io/config.seen="2029"', "what is no line", r'note="a \"word\" and \x01"']
    file.write_text("\n".join(lines))
    assert here(tmp_path) == ["kubernetes"]
    assert Kubernetes().look() == []
    file.write_text("\n".join([*lines, f'trainyard.dev/reclaim-at="{AT}"', 'trainyard.dev/rebalance="1"']))
    leave, save = Kubernetes().look()
    assert (leave.kind, leave.deadline, save.kind) == ("leave", SECONDS, "rebalance")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, ["aws"]),
        ({"sys_vendor": "Google\n", "product_name": "Google Compute Engine\n"}, ["gcp"]),
        (
            {"sys_vendor": "Microsoft Corporation\n", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n"},
            ["azure"],
        ),
        ({"sys_vendor": "Microsoft Corporation\n", "chassis_asset_tag": "0000\n"}, []),
        ({"sys_vendor": "QEMU\n"}, []),
        ({}, []),
    ],
)
def test_the_firmware_names_the_cloud(files: dict[str, str], found: list[str], tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / "sys/class/dmi/id" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert here(tmp_path) == found


LOOKS: list[tuple[Callable[[], MetadataServer], Callable[[], sources.Source]]] = [
    (AwsServer, Aws),
    (GcpServer, Gcp),
    (lambda: AzureServer("m"), Azure),
]


@pytest.mark.parametrize(("server_of", "source_of"), LOOKS, ids=["aws", "gcp", "azure"])
@pytest.mark.parametrize("garbage", ["", "<html>", "[]", '{"Events": 3}'])
def test_garbage_is_no_notice(
    server_of: Callable[[], MetadataServer],
    source_of: Callable[[], sources.Source],
    garbage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server_of() as server:
        serve(server, monkeypatch)
        server.broken = garbage
        source = source_of()
        if isinstance(source, Aws) and garbage.startswith("{"):
            return  # what is an object there counts: better to leave for nothing than to be taken by surprise
        with pytest.raises(MetadataError):
            source.look()


def test_who_does_not_answer_is_not_waited_for(aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.delay = 3
    with pytest.raises(MetadataError, match="timed out"):
        ask("/latest/api/token", method="PUT", patience=timedelta(seconds=0.2))
    with closed_port() as port:
        monkeypatch.setenv(METADATA_ENDPOINT, f"http://127.0.0.1:{port}")
        with pytest.raises(MetadataError, match="refused"):
            Aws().look()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that the launcher would have got."""
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number) if pid == os.getpid() else None)
    monkeypatch.setattr(Aws, "interval", timedelta(seconds=0.05))
    monkeypatch.setattr(watch, "PAUSE", timedelta(seconds=0.05))
    return signals


def test_a_notice_is_told_once_and_the_launcher_is_woken(
    aws: AwsServer, heard: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    guard = Watch("aws", signal.SIGTERM)
    try:
        assert guard.seconds_left() is None
        aws.recommend(AT)
        (save,) = wait_for(guard.saves, "the recommendation")
        assert save.kind == "rebalance"
        at = datetime.now(UTC) + timedelta(minutes=2)
        aws.interrupt("terminate", at.isoformat())
        wait_for(lambda: heard, "the notice")
        left = guard.seconds_left()
        assert left is not None
        assert 0 <= left <= 118
        aws.broken = "<html>"  # it is asked on, whatever it says
        asked = len(aws.asked)
        wait_for(lambda: len(aws.asked) > asked + 3, "more questions")
        aws.broken = None
        asked = len(aws.asked)
        wait_for(lambda: len(aws.asked) > asked + 3, "more questions")
    finally:
        guard.close()
    assert heard == [signal.SIGTERM]
    assert guard.saves() == []
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(event["kind"], event["source"]) for event in told] == [("rebalance", "aws"), ("leave", "aws")]


def test_a_node_that_is_wanted_back_does_not_join_unless_it_is_not_taken(
    aws: AwsServer, heard: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "OVERDUE", timedelta(seconds=0.2))
    aws.interrupt("terminate", (datetime.now(UTC) - timedelta(minutes=9)).isoformat())
    guard = Watch("aws", signal.SIGTERM, is_member=False)
    try:
        wait_for(lambda: guard.leaving, "the notice")
        guard.stay_away()
        assert not heard, "there is nothing to leave"
        assert guard.leaving is None
        aws.interrupt("stop", datetime.now(UTC).isoformat())
        wait_for(lambda: heard, "the next notice, which counts as any other")
    finally:
        guard.close()
    told = [json.loads(line)["message"] for line in capfd.readouterr().out.splitlines()]
    assert [message for message in told if "join" in message] == [
        "this node is wanted back (aws: instance-action terminate): not joining the job",
        "this node has not been taken: joining the job",
    ]


@pytest.mark.parametrize("chosen", ["aws", "auto"])
def test_where_there_is_no_cloud_the_watch_ends_by_itself(
    chosen: str, heard: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "here", lambda: ["aws"])
    with closed_port() as port:
        monkeypatch.setenv(METADATA_ENDPOINT, f"http://127.0.0.1:{port}")
        Watch(chosen, signal.SIGTERM)
        wait_for(lambda: not any(thread.name == "notices-aws" for thread in threading.enumerate()), "its end")
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert not heard
    if chosen == "auto":
        assert told == []
    else:
        assert "hop limit of 2" in told[0]


def test_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(mistake(chosen) is None for chosen in ("auto", "none", "aws", "gcp,kubernetes"))
    assert "write auto, none, or some of aws,gcp,azure,kubernetes" in str(mistake("aws,ibm"))
    assert mistake("auto,aws")
    assert wake_signal("SIGINT,SIGTERM") == signal.SIGTERM
    assert wake_signal("SIGUSR1,SIGINT") == signal.SIGUSR1
    monkeypatch.setattr(watch, "here", lambda: pytest.fail("nobody is asked"))
    Watch("none", signal.SIGTERM)


@pytest.mark.parametrize(
    ("budget", "patience", "text"),
    [
        (
            Budget(left=118, step=0.2, save=3.1),
            5,
            "reclaimed in 118 s; step 0.2 s, save 3.1 s: leaving after this step",
        ),
        (Budget(left=30), 15, "reclaimed in 30 s; step not measured, save not measured: leaving after this step"),
        (Budget(left=30, step=2), 15, "reclaimed in 30 s; step 2.0 s, save not measured: leaving after this step"),
        (
            Budget(left=30, step=25, save=10),
            14,
            "reclaimed in 30 s; step 25.0 s, save 10.0 s: leaving after this step if it ends within 14 s, else without",
        ),
        (
            Budget(left=5, step=1, save=10),
            0,
            "reclaimed in 5 s; step 1.0 s, save 10.0 s: no time to save; only what was saved or others have stays",
        ),
    ],
)
def test_the_time_that_is_left_is_planned(budget: Budget, patience: float, text: str) -> None:
    assert budget.patience == patience
    assert budget.text() == text


def test_a_notice_is_plain_data() -> None:
    notice = Notice(kind="leave", deadline=None, source="aws", detail="x")
    assert dataclasses.asdict(notice) == {"kind": "leave", "deadline": None, "source": "aws", "detail": "x"}
