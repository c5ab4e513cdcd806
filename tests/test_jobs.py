"""ElasticJobs over HTTP: what is sent, and what is said when the file, the kubeconfig or the API server is not right.

The API server here is a small one of this test: it answers what each test tells it to.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap

from infra.clusters import CHECKOUT, Access
from infra.jobs import ApiServerAwayError, Follower, JobError, Jobs, Progress, parse_progress
from infra.logs import Following

SHORT = timedelta(seconds=1)
REMEDY = "Look: trainyard status -s dev. Start it: trainyard up -s dev"
JOBS = "/apis/elastic.pytorch.org/v1alpha1/namespaces/research/elasticjobs"
PODS = "/api/v1/namespaces/research/pods"

Answer = tuple[int, Any]
"""Status code, and a body: text as it is, anything else as JSON."""


@dataclass
class ApiServer:
    """Answers by method and path; a list of answers is used up one by one, its last stays."""

    answers: dict[str, Answer | list[Answer] | Callable[[], Answer]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any], Any]] = field(default_factory=list)
    """Method and path, query, body."""
    url: str = ""

    def answer(self, request: str) -> Answer:
        known = self.answers.get(request, (404, failure(404, "the server could not find the requested resource")))
        if isinstance(known, list):
            known = known.pop(0) if len(known) > 1 else known[0]
        return known() if callable(known) else known


def failure(code: int, message: str, causes: list[dict[str, str]] | None = None) -> dict[str, Any]:
    details = {"causes": causes} if causes else {}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "message": message,
        "details": details,
    }


def job(name: str = "digits", *conditions: str, **metadata: Any) -> dict[str, Any]:
    states = [
        {"type": kind, "status": "True", "message": f"{kind} it is", "lastTransitionTime": f"2026-11-30T00:00:{n:02}Z"}
        for n, kind in enumerate(conditions)
    ]
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, **metadata},
        "spec": {"replicaSpecs": {}},
        "status": {"conditions": states},
    }


def pod(name: str, identity: str, state: str = "running") -> dict[str, Any]:
    container = {
        "name": "elasticjob-worker",
        "containerID": identity,
        "state": {state: {"exitCode": 0} if state == "terminated" else {}},
        "image": "",
        "imageID": "",
    }
    return {
        "metadata": {"name": name},
        "status": {"containerStatuses": [container | {"ready": True, "restartCount": 0}]},
    }


def listed(*items: dict[str, Any]) -> Answer:
    return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": list(items)}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            made.requests.append(
                (f"{self.command} {url.path}", parse_qs(url.query), json.loads(body) if body else None)
            )
            code, content = made.answer(f"{self.command} {url.path}")
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.end_headers()
            self.wfile.write(content.encode() if isinstance(content, str) else json.dumps(content).encode())

        do_GET = do_PATCH = do_DELETE = do_POST = reply  # noqa: N815 - names of the standard library

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    made.url = f"http://127.0.0.1:{http.server_port}"
    serving = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    serving.start()
    yield made
    http.shutdown()
    http.server_close()


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "here",
            }
        )
    )
    return path


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def jobs(server: ApiServer, tmp_path: Path) -> Jobs:
    return Jobs(Access(kubeconfig(tmp_path, server.url), None, REMEDY), "research")


@pytest.fixture
def away(tmp_path: Path) -> Jobs:
    """A kubeconfig is left over, and nothing listens there."""
    return Jobs(Access(kubeconfig(tmp_path, f"http://127.0.0.1:{closed_port()}"), None, REMEDY), "research")


def job_file(folder: Path, *documents: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_a_job_without_a_namespace_goes_to_the_stack_s_and_nothing_is_forced(
    jobs: Jobs, server: ApiServer, tmp_path: Path
) -> None:
    server.answers[f"PATCH {JOBS}/digits"] = (200, job())
    assert jobs.submit(job_file(tmp_path, job())) == ["digits"]
    ((_, query, sent),) = server.requests
    assert query == {"fieldManager": ["trainyard"]}
    assert sent["metadata"] == {"name": "digits", "namespace": "research"}


def test_a_job_for_another_namespace_is_refused(jobs: Jobs, server: ApiServer, tmp_path: Path) -> None:
    path = job_file(tmp_path, job("one"), job("two", namespace="training"))
    with pytest.raises(
        JobError, match="ElasticJob two is for namespace training, and this stack keeps its jobs in res"
    ):
        jobs.submit(path)
    assert server.requests == [], "nothing of a wrong file is submitted"


def test_the_example_can_be_submitted_to_any_stack_without_its_namespace(
    jobs: Jobs, server: ApiServer, tmp_path: Path
) -> None:
    example = yaml.safe_load((CHECKOUT / "training/examples/digits.yaml").read_text())
    example["metadata"].pop("namespace", None)
    server.answers[f"PATCH {JOBS}/digits"] = (200, job())
    assert jobs.submit(job_file(tmp_path, example)) == ["digits"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    {
        b"": "holds no ElasticJob",
        b"\x7fELF\x00\xff\xfe": "is not UTF-8 text",
        b"\x00\x01": "is not YAML",
        b"a: [": "is not YAML",
        b"kind: ElasticJob\nspec: {at: 2026-13-45}": "is not YAML",
        b"- 1": "holds more than ElasticJobs: a document without a kind",
        b"kind: Service\n---\nkind: ElasticJob\n---\nkind: ConfigMap": "ElasticJobs: Service, ConfigMap. Nothing was",
        b"kind: ElasticJob\nmetadata:": "metadata.name of an ElasticJob is missing",
        b"kind: ElasticJob\nmetadata: x": "metadata.name of an ElasticJob is missing",
        b"kind: ElasticJob\nmetadata: {name: 7}": "metadata.name of an ElasticJob is 7: it must be text",
        b"kind: ElasticJob\nmetadata: {name: a/b}": "metadata.name of an ElasticJob is 'a/b'",
        b"kind: ElasticJob\napiVersion: v1\nmetadata: {name: a}": "apiVersion of ElasticJob a is v1: it must be",
        b"kind: ElasticJob\nmetadata: {name: a}": "apiVersion of ElasticJob a is None: it must be",
        b"apiVersion: elastic.pytorch.org/v1alpha1\nkind: ElasticJob\nmetadata: {name: a}\nspec: &x {y: *x}": (
            "ElasticJob a contains itself"
        ),
    }.items(),
)
def test_a_file_that_cannot_be_submitted_says_why(jobs: Jobs, tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(JobError) as caught:
        jobs.submit(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_says_why(jobs: Jobs, tmp_path: Path, path: str) -> None:
    with pytest.raises(JobError, match="cannot be read"):
        jobs.submit(tmp_path / path)


def test_what_somebody_else_has_changed_is_not_taken_back(jobs: Jobs, server: ApiServer, tmp_path: Path) -> None:
    cause = {
        "reason": "FieldManagerConflict",
        "message": 'conflict with "kubectl" with subresource "scale"',
        "field": ".spec.replicaSpecs.Worker.replicas",
    }
    server.answers[f"PATCH {JOBS}/digits"] = (409, failure(409, "Apply failed with 1 conflict", [cause]))
    with pytest.raises(JobError) as caught:
        jobs.submit(job_file(tmp_path, job()))
    assert '.spec.replicaSpecs.Worker.replicas (conflict with "kubectl" with subresource "scale")' in str(caught.value)
    assert "take these fields out of the file" in str(caught.value)
    assert "kubectl -n research apply --server-side --force-conflicts --field-manager=trainyard -f" in str(caught.value)


def test_what_the_api_server_refuses_is_told_in_its_words(jobs: Jobs, server: ApiServer, tmp_path: Path) -> None:
    server.answers[f"PATCH {JOBS}/one"] = (200, job("one"))
    server.answers[f"PATCH {JOBS}/two"] = (422, failure(422, "minReplicas must not exceed maxReplicas"))
    with pytest.raises(JobError, match=r"refuses ElasticJob two \(submitted before it: one\): minReplicas must not"):
        jobs.submit(job_file(tmp_path, job("one"), job("two")))


def test_a_cluster_without_the_stack_says_how_to_bring_it_up(jobs: Jobs) -> None:
    with pytest.raises(JobError, match=r"could not find the requested resource. Look: trainyard status -s dev"):
        jobs.all()
    assert jobs.get("digits") is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda jobs, _: jobs.get("digits"),
        lambda jobs, _: jobs.all(),
        lambda jobs, _: jobs.summaries(),
        lambda jobs, _: jobs.conditions("digits"),
        lambda jobs, _: jobs.delete("digits"),
        lambda jobs, _: jobs.workers("digits"),
        lambda jobs, folder: jobs.submit(job_file(folder, job())),
    ],
    ids=["get", "all", "summaries", "conditions", "delete", "workers", "submit"],
)
def test_an_api_server_that_is_away_is_told_with_the_way_back(
    away: Jobs, tmp_path: Path, ask: Callable[[Jobs, Path], Any]
) -> None:
    with pytest.raises(
        ApiServerAwayError, match=r"the API server at http://127\.0\.0\.1:\d+ does not answer: "
    ) as told:
        ask(away, tmp_path)
    assert str(told.value).endswith(REMEDY)


def test_waiting_outlives_a_restart_of_the_api_server_and_says_so_once(jobs: Jobs, server: ApiServer) -> None:
    restarting = (503, "apiserver not ready")
    server.answers[f"GET {JOBS}/digits"] = [
        (200, job("digits", "Running")),
        restarting,
        restarting,
        (200, job("digits", "Running", "Succeeded")),
    ]
    told: list[str] = []
    assert jobs.wait("digits", timedelta(seconds=120), told.append).type == "Succeeded"
    assert told == ["Running: Running it is", f"the API server at {server.url} does not answer; waiting for it"]


def test_waiting_for_an_api_server_that_stays_away_ends_with_the_way_back(away: Jobs) -> None:
    told: list[str] = []
    with pytest.raises(JobError, match=r"did not end within 0:00:01: the API server at .* does not answer: ") as caught:
        away.wait("digits", SHORT, told.append)
    assert len(told) == 1
    assert str(caught.value).endswith(REMEDY)


def test_waiting_ends_where_there_is_no_such_job(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}"] = listed(job("other"))
    with pytest.raises(JobError, match=r"no ElasticJob digits in namespace research \(there: other\)"):
        jobs.wait("digits", SHORT)


def test_a_job_that_does_not_end_says_its_last_state(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job("digits", "Running", "WaitingForCapacity"))
    with pytest.raises(
        JobError, match=r"last state: WaitingForCapacity: WaitingForCapacity it is. Look: kubectl -n res"
    ):
        jobs.wait("digits", timedelta(0))


def test_a_deleted_job_is_gone_with_its_workers(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"DELETE {JOBS}/digits"] = (200, {"kind": "Status", "status": "Success"})
    server.answers[f"GET {JOBS}/digits"] = [(200, job()), (404, failure(404, "not found"))]
    server.answers[f"GET {PODS}"] = [listed(pod("a", "x")), (503, "starting"), listed(pod("a", "x")), listed()]
    jobs.delete("digits")
    jobs.delete("other")
    jobs.wait_gone("digits", timedelta(seconds=120))
    selectors = {query["labelSelector"][0] for name, query, _ in server.requests if name == f"GET {PODS}"}
    assert selectors == {"elastic.pytorch.org/job-name=digits"}


def test_a_job_that_does_not_go_says_what_is_left(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job())
    server.answers[f"GET {PODS}"] = listed(pod("digits-worker-0", "x"))
    with pytest.raises(
        JobError, match=r"is not gone within 0:00:00: ElasticJob digits, pod digits-worker-0. Look: kub"
    ):
        jobs.wait_gone("digits", timedelta(0))


CLUSTER = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
CONTEXT = {"name": "here", "context": {"cluster": "c", "user": "u"}}
USER = {"name": "u", "user": {"token": "t"}}


@pytest.mark.parametrize(
    ("content", "context", "sentence"),
    [
        (b"", None, "is no kubeconfig"),
        (b"- 1", None, "is no kubeconfig"),
        (b"clusters: []", None, "is no kubeconfig"),
        (b"a: [", None, "is not YAML"),
        (b"\xff\xfe\x00", None, "is not YAML"),
        ({}, "there", "has no context 'there' (there: here). Name one of them: trainyard:kubeconfig.context"),
        ({}, None, "has no current-context (there: here)"),
        ({"current-context": "gone"}, None, "has no context 'gone' (there: here)"),
        ({"clusters": []}, "here", "context 'here' needs 'c', which is not in the file"),
        ({"users": []}, "here", "context 'here' needs 'u', which is not in the file"),
        ({"contexts": [{"name": "here", "context": {"cluster": "c"}}]}, "here", "context 'here' names no user"),
        ({"clusters": [{"name": "c", "cluster": 3}]}, "here", "cannot be used"),
        ({"clusters": [{"name": "c", "cluster": {"server": 3}}]}, "here", "cannot be used"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "x", "certificate-authority": "/no"}}]},
            "here",
            "cannot be",
        ),
        (
            {"users": [{"name": "u", "user": {"client-certificate-data": "?", "client-key-data": "?"}}]},
            "here",
            "cannot",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, content: bytes | dict[str, Any], context: str | None, sentence: str
) -> None:
    path = tmp_path / "kubeconfig"
    whole = {"clusters": [CLUSTER], "users": [USER], "contexts": [CONTEXT]}
    path.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(whole | content).encode())
    with pytest.raises(JobError) as caught:
        Jobs(Access(path, context, REMEDY), "research")
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_program_for_credentials_that_is_not_there_is_named(tmp_path: Path, server: ApiServer) -> None:
    path = kubeconfig(tmp_path, server.url)
    document = yaml.safe_load(path.read_text())
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "no-such-program"}
    document["users"] = [{"name": "u", "user": {"exec": exec_}}]
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(JobError, match=r"gives no credentials: .*no-such-program"):
        Jobs(Access(path, None, REMEDY), "research").all()


def test_a_server_that_is_no_api_server_is_told(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}"] = (200, "<html>")
    with pytest.raises(JobError, match="answers what no Kubernetes API server does"):
        jobs.all()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_server_on_this_computer_is_not_asked_through_a_proxy(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{closed_port()}")
    server.answers[f"GET {JOBS}"] = listed(job("a"))
    assert [
        row["job"] for row in Jobs(Access(kubeconfig(tmp_path, server.url), None, REMEDY), "research").summaries()
    ] == ["a"]


def test_a_server_elsewhere_is_asked_through_the_proxy(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.answers[f"GET {JOBS}"] = listed()
    assert Jobs(Access(kubeconfig(tmp_path, "http://cluster.example"), None, REMEDY), "research").all() == []


def lines(*events: tuple[str, int]) -> str:
    """A log with times, as an API server sends it."""
    return "".join(
        f"2026-11-30T00:00:{at:02}Z " + json.dumps({"trainyard": event, "time": at, "step": 1}) + "\n"
        for event, at in events
    )


def read(follower: Follower, count: int, timeout: float = 120.0) -> list[tuple[str, str, float]]:
    """The first so many events, and whatever comes within a second after them."""
    got: list[Progress] = []
    end = time.monotonic() + timeout
    while len(got) < count and time.monotonic() < end:
        got += follower.events(timedelta(seconds=0.2))
    got += follower.events(timedelta(seconds=1.2))
    return [(event.pod, event.event, event.time) for event in got]


def test_scale_suspend_and_resume_change_one_field_each(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job("digits", "Running"))
    server.answers[f"PATCH {JOBS}/digits/scale"] = (200, {"kind": "Scale", "apiVersion": "autoscaling/v1"})
    server.answers[f"PATCH {JOBS}/digits"] = (200, job())
    jobs.scale("digits", 4)
    jobs.suspend("digits")
    jobs.resume("digits")
    sent = [(name, query, body) for name, query, body in server.requests if name.startswith("PATCH")]
    assert [body for _, _, body in sent] == [
        {"spec": {"replicas": 4}},
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False}},
    ]
    assert {query["fieldManager"][0] for _, query, _ in sent} == {"trainyard"}


@pytest.mark.parametrize(
    "change",
    [lambda jobs: jobs.scale("digits", 2), lambda jobs: jobs.suspend("digits"), lambda jobs: jobs.resume("digits")],
)
def test_what_has_ended_is_not_changed(jobs: Jobs, server: ApiServer, change: Callable[[Jobs], None]) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job("digits", "Running", "Succeeded"))
    with pytest.raises(JobError, match=r"digits has ended \(Succeeded: Succeeded it is\)"):
        change(jobs)
    assert all(name.startswith("GET") for name, _, _ in server.requests)


def test_a_job_that_chooses_its_size_itself_is_not_scaled(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job() | {"spec": {"scaling": {"mode": "Capacity"}}})
    with pytest.raises(JobError, match=r"spec.scaling.mode is Capacity"):
        jobs.scale("digits", 2)


def test_a_size_that_the_job_does_not_allow_is_refused_in_the_server_s_words(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job())
    server.answers[f"PATCH {JOBS}/digits/scale"] = (422, failure(422, "must not exceed maxReplicas"))
    with pytest.raises(JobError, match="digits cannot be scaled to 9: must not exceed maxReplicas"):
        jobs.scale("digits", 9)


def sized(generation: int, **status: int) -> Answer:
    made = job("digits", "Running", generation=2)
    made["status"] |= {"observedGeneration": generation, **status}
    return 200, made


def test_a_size_is_reached_when_the_controller_has_seen_it_and_all_are_ready(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = [
        sized(1, desiredReplicas=4, replicas=4, readyReplicas=4),
        sized(2, desiredReplicas=4, replicas=4, readyReplicas=3),
        sized(2, desiredReplicas=4, replicas=4, readyReplicas=4),
    ]
    jobs.wait_size("digits", 4, timedelta(seconds=120), lambda _: None)
    assert len(server.requests) == 3


def test_a_size_that_is_not_reached_says_the_last_state(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = sized(2, desiredReplicas=4, replicas=4, readyReplicas=3)
    with pytest.raises(JobError, match=r"did not get 4 workers within 0:00:00; last state: Running: Running it is"):
        jobs.wait_size("digits", 4, timedelta(0), lambda _: None)


def test_a_job_that_ends_first_never_reaches_its_size(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job("digits", "Running", "Failed"))
    with pytest.raises(JobError, match=r"has ended before it had 4 workers \(Failed\)"):
        jobs.wait_size("digits", 4, timedelta(seconds=120), lambda _: None)


def test_a_suspended_job_has_stopped_when_no_worker_runs(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {JOBS}/digits"] = (200, job("digits", "Suspended"))
    over = pod("b", "y", "terminated")
    over["status"]["phase"] = "Succeeded"
    server.answers[f"GET {PODS}"] = [listed(pod("a", "x"), over), listed(over)]
    jobs.wait_stopped("digits", timedelta(seconds=120), lambda _: None)
    assert sum(name == f"GET {PODS}" for name, _, _ in server.requests) == 2


def test_what_keeps_a_job_from_running_is_its_state(jobs: Jobs, server: ApiServer) -> None:
    waiting = job("digits", "Created")
    waiting["status"]["conditions"].append(
        {"type": "Running", "status": "False", "message": "0 of 3 workers run; a: ErrImagePull"}
    )
    server.answers[f"GET {JOBS}/digits"] = [(200, waiting), (200, job("digits", "Created", "Running"))]
    told: list[str] = []
    jobs.wait_running("digits", timedelta(seconds=120), told.append)
    assert told == ["Created: 0 of 3 workers run; a: ErrImagePull"]


def test_a_script_belongs_to_its_job_and_goes_with_it(jobs: Jobs, server: ApiServer) -> None:
    maps = "/api/v1/namespaces/research/configmaps"
    server.answers[f"POST {maps}"] = (201, {"metadata": {"name": "digits-script"}})
    server.answers[f"POST {JOBS}"] = (201, job("digits", uid="u-1"))
    server.answers[f"PATCH {maps}/digits-script"] = (200, {"metadata": {"name": "digits-script"}})
    script = ConfigMap(metadata=ObjectMeta(name="digits-script"), data={"train.py": "pass"})
    jobs.create_with_script(job(), script)
    (owner,) = server.requests[-1][2]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ElasticJob", "digits", "u-1")


def test_of_a_job_that_is_refused_no_script_is_left(jobs: Jobs, server: ApiServer) -> None:
    maps = "/api/v1/namespaces/research/configmaps"
    server.answers[f"POST {maps}"] = (201, {"metadata": {"name": "digits-script"}})
    server.answers[f"POST {JOBS}"] = (422, failure(422, "minReplicas must not exceed maxReplicas"))
    server.answers[f"DELETE {maps}/digits-script"] = (200, {"kind": "Status", "status": "Success"})
    script = ConfigMap(metadata=ObjectMeta(name="digits-script"), data={"train.py": "pass"})
    with pytest.raises(JobError, match="refuses ElasticJob digits: minReplicas must not exceed maxReplicas"):
        jobs.create_with_script(job(), script)
    assert server.requests[-1][0] == f"DELETE {maps}/digits-script"


def test_logs_are_followed_from_before_the_first_worker_to_the_end_of_the_job(jobs: Jobs, server: ApiServer) -> None:
    silences: list[None] = []
    server.answers[f"GET {JOBS}/digits"] = lambda: (200, job("digits", "Succeeded" if silences else "Created"))
    pending = {"metadata": {"name": "digits-worker-0"}, "status": {"phase": "Pending"}}
    done = [pod("digits-worker-0", "x", "terminated"), pod("digits-worker-1", "y", "terminated")]
    server.answers[f"GET {PODS}"] = lambda: listed(*done) if silences else listed(pending)
    server.answers[f"GET {PODS}/digits-worker-0/log"] = (200, lines(("step", 1), ("finished", 3)))
    server.answers[f"GET {PODS}/digits-worker-1/log"] = (200, "2026-11-30T00:00:02Z hello\n")
    followed = Following(jobs, "digits", lambda: silences.append(None)).lines()
    texts = [line.log.text.partition(", ")[0] for line in followed]
    assert texts == ['{"trainyard": "step"', "hello", '{"trainyard": "finished"']
    assert silences


def test_logs_of_a_cluster_that_is_gone_are_not_followed_for_ever(away: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.logs.AWAY", timedelta(0))
    with pytest.raises(ApiServerAwayError):
        list(Following(away, "digits", lambda: None).lines())


def test_each_line_is_told_once_though_the_stream_breaks(jobs: Jobs, server: ApiServer) -> None:
    server.answers[f"GET {PODS}"] = (
        [(503, "starting")]
        + [listed(pod("a", "x"))] * 3
        + [listed(pod("a", "x", "terminated"), pod("b", "y", "terminated"))]
    )
    server.answers[f"GET {PODS}/a/log"] = [
        (200, "2026-11-30T00:00:00.5Z hello\n" + lines(("step", 1))),
        (500, failure(500, "the node is away")),
        (200, lines(("step", 1), ("step", 2))),
        (200, lines(("step", 1), ("step", 2), ("finished", 3))),
    ]
    server.answers[f"GET {PODS}/b/log"] = (200, lines(("step", 9)))
    with jobs.follow("digits") as follower:
        got = read(follower, 4)
        logs = sum(name.endswith("/b/log") for name, _, _ in server.requests)
    assert [event for event in got if event[0] == "a"] == [("a", "step", 1), ("a", "step", 2), ("a", "finished", 3)]
    assert [event for event in got if event[0] == "b"] == [("b", "step", 9)]
    assert logs == 1, "the log of a container that has ended is read once"


@pytest.mark.parametrize(
    "line",
    ["epoch 3", "", '{"trainyard": "step"}', '{"trainyard": "step", "time": null}', '{"trainyard": 1', '{"a": 1}'],
)
def test_other_output_is_not_taken_for_progress(line: str) -> None:
    assert parse_progress("a", line) is None


def test_a_progress_line_is_read() -> None:
    event = parse_progress("a", '{"trainyard": "step", "time": 1.5, "step": 3}')
    assert event == Progress("a", "step", 1.5, {"step": 3})
