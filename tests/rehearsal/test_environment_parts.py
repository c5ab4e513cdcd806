"""The parts of a rehearsal that decide something, without engines: nodes, volumes, Releases, the `aws` command, the
engine's own project.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf import struct_pb2
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from pulumi.runtime.proto import provider_pb2

from infra.errors import TrainyardError
from infra.local.engines.catalogue import CATALOGUE
from infra.local.engines.discovery import locate, plugin_path
from infra.local.state import State
from infra.rehearsal import bundles, inspection, tools
from infra.rehearsal.connection import FOLDER_VARIABLE, Connection, NoRehearsalError, folder_of_environment
from infra.rehearsal.kubernetes_plugin import PassThrough
from infra.rehearsal.nodes import Group, node_manifest
from infra.rehearsal.releases import Releases, mistakes, readable
from infra.rehearsal.stages import stages
from infra.rehearsal.volumes import volume_for

P5: Group = {
    "name": "gpu-p5",
    "instanceType": "p5.48xlarge",
    "capacityType": "SPOT",
    "labels": {"trainyard.dev/pool": "gpu-p5"},
    "taints": [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"},
        {"key": "trainyard.dev/spot", "value": "true", "effect": "NO_EXECUTE"},
    ],
    "zones": ["us-east-2a", "us-east-2b"],
    "efa": True,
    "diskGib": 200,
}


def connection(folder: Path) -> Connection:
    return Connection("http://127.0.0.1:1", "us-east-2", "123456789012", folder / "kubeconfig", "https://x", "Q0E=")


class TestNodes:
    def test_a_node_is_what_aws_would_give_for_the_group(self) -> None:
        node = node_manifest(P5, 0, "us-east-2")
        labels = node["metadata"]["labels"]
        assert node["metadata"]["name"].startswith("ip-10-")
        assert node["metadata"]["name"].endswith(".us-east-2.compute.internal")
        assert labels["trainyard.dev/pool"] == labels["eks.amazonaws.com/nodegroup"] == "gpu-p5"
        assert labels["eks.amazonaws.com/capacityType"] == "SPOT"
        assert labels["topology.kubernetes.io/zone"] == "us-east-2a"
        assert node["spec"]["providerID"].startswith("aws:///us-east-2a/i-")
        offered = node["status"]["allocatable"]
        assert offered["nvidia.com/gpu"] == "8"
        assert offered["vpc.amazonaws.com/efa"] == "32"
        assert offered["hugepages-2Mi"] == "42242Mi"

    def test_taints_are_translated_from_the_eks_spelling_and_no_other_is_taken(self) -> None:
        taints = node_manifest(P5, 0, "us-east-2")["spec"]["taints"]
        assert [taint["effect"] for taint in taints] == ["NoSchedule", "NoExecute"]
        kubernetes: Group = {**P5, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}
        with pytest.raises(KeyError):
            node_manifest(kubernetes, 0, "us-east-2")

    def test_nodes_of_a_group_are_spread_over_its_zones_and_none_is_like_another(self) -> None:
        nodes = [node_manifest(P5, number, "us-east-2") for number in range(40)]
        assert len({node["metadata"]["name"] for node in nodes}) == 40
        assert len({node["spec"]["providerID"] for node in nodes}) == 40
        zones = [node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes]
        assert zones.count("us-east-2a") == zones.count("us-east-2b") == 20

    def test_without_efa_interfaces_a_node_offers_neither_efa_nor_its_hugepages(self) -> None:
        offered = node_manifest({**P5, "efa": False}, 0, "us-east-2")["status"]["allocatable"]
        assert "vpc.amazonaws.com/efa" not in offered
        assert "hugepages-2Mi" not in offered

    def test_kwok_gets_one_stage_for_each_thing_that_happens_to_nodes_and_pods(self) -> None:
        found = list(yaml.safe_load_all(stages()))
        assert [stage["metadata"]["name"] for stage in found] == ["node-ready", "pod-runs", "pod-succeeds", "pod-goes"]
        node = found[0]["spec"]["next"]["statusTemplate"]
        assert "allocatable" not in node
        assert "capacity" not in node


class TestVolumes:
    CLAIM: dict[str, Any] = {  # noqa: RUF012
        "metadata": {"name": "data", "namespace": "a", "uid": "u-1"},
        "spec": {
            "storageClassName": "c",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "8Gi"}},
        },
    }

    def test_a_disk_belongs_to_the_zone_of_the_node_that_was_chosen(self) -> None:
        volume = volume_for(self.CLAIM, {"provisioner": "ebs.csi.aws.com"}, "us-east-2b")
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["us-east-2b"]
        assert volume["spec"]["claimRef"]["uid"] == "u-1"
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"

    def test_a_shared_file_system_is_everywhere_and_keeps_its_policy(self) -> None:
        volume = volume_for(self.CLAIM, {"provisioner": "efs.csi.aws.com", "reclaimPolicy": "Retain"}, "us-east-2b")
        assert "nodeAffinity" not in volume["spec"]
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


GOOD = {
    "chart": "kueue",
    "version": "0.14.1",
    "repositoryOpts": {"repo": "https://charts.example.com"},
    "values": {"a": {"b": [1]}},
}


class TestReleases:
    @pytest.mark.parametrize(
        ("change", "where", "says"),
        [
            ({"chart": None}, "chart", "is missing"),
            ({"chart": "./charts/mine"}, "chart", "folder"),
            ({"version": None}, "version", "newest on that day"),
            ({"version": ">=1.0"}, "version", "not a range"),
            ({"version": "1"}, "version", "must be one version"),
            ({"repositoryOpts": {}}, "repositoryOpts.repo", "is missing"),
            ({"values": ["a"]}, "values", "must be a mapping"),
            ({"valueYamlFiles": ["x.yaml"]}, "valueYamlFiles", "not checked"),
        ],
    )
    def test_a_release_that_is_not_the_same_every_day_is_refused(
        self, change: dict[str, Any], where: str, says: str
    ) -> None:
        ((place, sentence),) = mistakes(GOOD | change)
        assert place == where
        assert says in sentence

    @pytest.mark.parametrize(
        "change",
        [{}, {"chart": "oci://registry.example.com/charts/kueue", "repositoryOpts": {}}, {"version": "v1.2.3-rc.1+b"}],
    )
    def test_a_pinned_release_is_fine(self, change: dict[str, Any]) -> None:
        assert mistakes(GOOD | change) == []

    def test_secrets_are_not_written_where_people_look(self) -> None:
        secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "hush"}
        shown = readable({"values": {"password": secret, "host": "04da6b54-80e4-46f7-96ec-b56ff0331ba9"}})
        assert shown == {"values": {"password": "[secret]", "host": "[known after up]"}}

    def test_two_of_one_name_cannot_be_and_a_preview_records_nothing(
        self, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bundles, "register", lambda *_: ())
        State(short_tmp)
        connection(short_tmp).write(State(short_tmp))
        releases = Releases(short_tmp)
        inputs = struct_of(GOOD | {"name": "kueue", "namespace": "kueue-system"})
        releases.create(provider_pb2.CreateRequest(properties=inputs, preview=True))
        assert releases.all() == {}
        made = releases.create(provider_pb2.CreateRequest(properties=inputs))
        assert made.id == "kueue-system/kueue"
        assert made.properties["status"]["status"] == "recorded by a rehearsal, not rendered"
        with pytest.raises(Exception, match="is there already"):
            releases.create(provider_pb2.CreateRequest(properties=inputs))
        assert releases.read(provider_pb2.ReadRequest(id=made.id)).id == made.id
        assert releases.read(provider_pb2.ReadRequest(id="default/other")).id == ""

    def test_another_name_is_another_release_and_other_values_are_not(self, short_tmp: Path) -> None:
        releases = Releases(short_tmp)
        before = GOOD | {"name": "kueue", "namespace": "a"}

        def diff(after: dict[str, Any]) -> provider_pb2.DiffResponse:
            return releases.diff(provider_pb2.DiffRequest(old_inputs=struct_of(before), news=struct_of(before | after)))

        assert diff({}).changes == provider_pb2.DiffResponse.DIFF_NONE
        assert list(diff({"values": {}}).diffs) == ["values"]
        assert list(diff({"values": {}}).replaces) == []
        assert list(diff({"namespace": "b"}).replaces) == ["namespace"]

    def test_kinds_of_charts_take_any_fields_and_tell_whose_they_are(self) -> None:
        for chart, kinds in bundles.KINDS_OF_CHARTS.items():
            for kind in kinds:
                made = bundles.definition(kind)
                assert made["metadata"]["labels"] == {"trainyard.dev/rehearsal": "true"}, chart
                assert sum(version["storage"] for version in made["spec"]["versions"]) == 1
                schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
                assert schema["x-kubernetes-preserve-unknown-fields"] is True


def struct_of(values: dict[str, Any]) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update({name: value for name, value in values.items() if value is not None})
    return made


class RealProvider(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call with its name and what it got; Update fails, as the provider does, with details."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if details.method.endswith("Update"):
                context.set_trailing_metadata([("grpc-status-details-bin", b"partly made"), ("other", "x")])
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a field is immutable")
            return bytes(details.method.encode() + b" " + request)

        return grpc.unary_unary_rpc_method_handler(answer)


def serve(handler: grpc.GenericRpcHandler) -> tuple[Any, grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, grpc.insecure_channel(f"127.0.0.1:{port}")


@pytest.fixture
def pass_through(short_tmp: Path) -> Iterator[grpc.Channel]:
    real, to_real = serve(RealProvider())
    ours, to_ours = serve(PassThrough(to_real, short_tmp))
    with to_real, to_ours:
        yield to_ours
        ours.stop(None).wait()
        real.stop(None).wait()


RELEASE_URN = "urn:pulumi:dev::trainyard::trainyard:in_cluster:Queues$kubernetes:helm.sh/v3:Release::kueue"
MAP_URN = "urn:pulumi:dev::trainyard::kubernetes:core/v1:ConfigMap::helm.sh/v3:Release"


class TestPassThrough:
    def ask(self, channel: grpc.Channel, method: str, request: Any) -> Any:
        call = channel.unary_unary(f"/pulumirpc.ResourceProvider/{method}")
        return call(request if isinstance(request, bytes) else request.SerializeToString(), timeout=120)

    def test_what_is_no_release_goes_to_the_real_provider_as_it_is(self, pass_through: grpc.Channel) -> None:
        raw = b"\xff bytes that are no message of ours"
        assert self.ask(pass_through, "Configure", raw) == b"/pulumirpc.ResourceProvider/Configure " + raw
        check = provider_pb2.CheckRequest(urn=MAP_URN, news=struct_of({"a": 1}))
        assert self.ask(pass_through, "Check", check).endswith(check.SerializeToString())

    def test_the_real_providers_failures_come_through_with_their_details(self, pass_through: grpc.Channel) -> None:
        with pytest.raises(grpc.RpcError) as failed:
            self.ask(pass_through, "Update", provider_pb2.UpdateRequest(urn=MAP_URN))
        assert failed.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert failed.value.details() == "a field is immutable"
        assert ("grpc-status-details-bin", b"partly made") in list(failed.value.trailing_metadata())

    def test_a_release_is_checked_here_and_gets_helms_defaults(self, pass_through: grpc.Channel) -> None:
        request = provider_pb2.CheckRequest(urn=RELEASE_URN, news=struct_of(GOOD | {"version": None}))
        answer = provider_pb2.CheckResponse.FromString(self.ask(pass_through, "Check", request))
        assert [failure.property for failure in answer.failures] == ["version"]
        assert answer.inputs["name"] == "kueue"
        assert answer.inputs["namespace"] == "default"


KUBECONFIG = {
    "clusters": [],
    "users": [
        {
            "name": "admin",
            "user": {
                "client-certificate-data": base64.b64encode(b"CERTIFICATE").decode(),
                "client-key-data": base64.b64encode(b"KEY").decode(),
            },
        }
    ],
}


@pytest.fixture
def installed(short_tmp: Path) -> State:
    state = State(short_tmp / "rehearsal")
    kubeconfig = short_tmp / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    tools.install(state, kubeconfig, short_tmp / "checkout", short_tmp / "provider")
    return state


class TestTools:
    def aws(self, state: State, *arguments: str, api: str = "v1beta1", **more: str) -> subprocess.CompletedProcess[str]:
        asks = json.dumps({"kind": "ExecCredential", "apiVersion": f"client.authentication.k8s.io/{api}"})
        moto = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "PATH": f"{state.path('bin')}:{os.defpath}"}
        environment = moto | {"KUBERNETES_EXEC_INFO": asks} | more
        program = [str(state.path("bin", "aws")), *arguments]
        return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)

    @pytest.mark.parametrize("api", ["v1beta1", "v1"])
    def test_the_aws_command_gives_a_token_in_the_version_that_was_asked_for(self, installed: State, api: str) -> None:
        arguments = ("--region", "us-east-2", "eks", "get-token", "--cluster-name", "x", "--output", "json")
        told = json.loads(self.aws(installed, *arguments, api=api).stdout)
        assert told["apiVersion"] == f"client.authentication.k8s.io/{api}"
        assert told["status"] == {"clientCertificateData": "CERTIFICATE", "clientKeyData": "KEY"}

    def test_the_aws_command_passes_on_what_else_is_asked(self, installed: State, short_tmp: Path) -> None:
        theirs = short_tmp / "their tools" / "aws"
        theirs.parent.mkdir()
        theirs.write_text('#!/bin/sh\necho "asks $AWS_ENDPOINT_URL: $#: $*"; exit 3\n')
        theirs.chmod(0o700)
        other = State(short_tmp / "other-rehearsal")  # of a shell that has seen two
        tools.install(other, short_tmp / "kubeconfig", short_tmp / "checkout", short_tmp / "provider")
        path = f"{installed.path('bin')}:{other.path('bin')}:{theirs.parent}:{os.defpath}"
        told = self.aws(installed, "s3", "ls", "s3://a b", PATH=path)
        assert (told.returncode, told.stdout) == (3, "asks http://127.0.0.1:1: 3: s3 ls s3://a b\n")
        refused = self.aws(installed, "s3", "rb", "s3://everything", PATH=path, AWS_ENDPOINT_URL="")
        assert (refused.returncode, refused.stdout) == (252, "")
        assert "open a new shell for AWS itself" in refused.stderr

    @pytest.mark.parametrize("path", ["{bin}:/nowhere", "{bin}:/{bin}x:{bin}", "{bin}", ""])
    def test_without_an_aws_cli_the_aws_command_does_nothing_else(self, installed: State, path: str) -> None:
        refused = self.aws(installed, "s3", "rb", "s3://everything", PATH=path.format(bin=installed.path("bin")))
        assert refused.returncode == 252
        assert "this stand-in of a rehearsal answers only 'aws eks get-token', not: aws s3 rb" in refused.stderr
        assert refused.stdout == ""

    def test_keys_are_readable_by_their_owner_only(self, installed: State) -> None:
        assert stat.S_IMODE(installed.path("token.json").stat().st_mode) == 0o600

    def test_the_engine_writes_into_a_stack_file_of_the_rehearsals_own(self, short_tmp: Path) -> None:
        checkout, state = short_tmp / "checkout", State(short_tmp / "rehearsal")
        checkout.mkdir()
        runtime = {"name": "python", "options": {"virtualenv": ".venv"}}
        (checkout / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "p", "main": "infra/", "runtime": runtime}))
        theirs = checkout / "Pulumi.dev.yaml"
        theirs.write_text("secretsprovider: awskms://key\nencryptedkey: abc\nconfig:\n  p:target: aws\n")
        tools.write_project(state, "dev", checkout)
        ours = tools.project_folder(state) / "Pulumi.dev.yaml"
        assert yaml.safe_load(ours.read_text()) == {"config": {"p:target": "aws"}}
        # What the engine adds stays through the next run, and theirs is as it was.
        ours.write_text(ours.read_text() + "encryptionsalt: v1:salt\n")
        theirs.write_text(theirs.read_text() + "  p:more: x\n")
        tools.write_project(state, "dev", checkout)
        assert yaml.safe_load(ours.read_text()) == {
            "encryptionsalt": "v1:salt",
            "config": {"p:target": "aws", "p:more": "x"},
        }
        project = yaml.safe_load((tools.project_folder(state) / "Pulumi.yaml").read_text())
        assert Path(project["main"]) == checkout / "infra"
        assert Path(project["runtime"]["options"]["virtualenv"]) == checkout / ".venv"

    def test_a_stand_in_is_never_taken_for_the_real_provider(
        self, installed: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        home = installed.path("pulumi", "home")
        name = "pulumi-resource-kubernetes"
        assert os.access(home / plugin_path(CATALOGUE[name]), os.X_OK)
        monkeypatch.setenv("PULUMI_HOME", str(home))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "cache"))
        assert locate(name) is None


class TestConnection:
    def test_it_is_private_and_found_by_the_variable(self, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        written = connection(short_tmp)
        written.write(State(short_tmp / "r"))
        monkeypatch.setenv(FOLDER_VARIABLE, str(short_tmp / "r"))
        assert Connection.read() == written
        assert stat.S_IMODE((short_tmp / "r/rehearsal.json").stat().st_mode) == 0o600

    def test_without_a_rehearsal_the_sentence_says_how_to_begin_one(
        self, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
        with pytest.raises(NoRehearsalError, match="trainyard up -s <stack> --rehearse"):
            folder_of_environment()
        whole = {**dataclasses.asdict(connection(short_tmp)), "kubeconfig": "/k"}
        for garbled in ("", "{}", "[]", "null", "7", json.dumps({**whole, "aws_endpoint_url": 5})):
            (short_tmp / "rehearsal.json").write_text(garbled)
            with pytest.raises(NoRehearsalError, match=r"rehearsal\.json cannot be read"):
                Connection.read(short_tmp)


class Cluster:
    """A cluster's client, as far as looking goes."""

    def __init__(self, *objects: tuple[type, dict[str, Any]]) -> None:
        self.objects = objects

    def list(self, kind: type, **_: object) -> list[Any]:
        return [kind.from_dict(one) for of, one in self.objects if of is kind]  # type: ignore[attr-defined]


class TestWatching:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspection, "PATIENCE", 0.0)
        monkeypatch.setattr(inspection, "_LOOK_SECONDS", 0.01)

    def removal(self, *, hopeless: bool) -> None:
        with inspection.claims_must_be_free(Path("k")) as event:
            assert event.wait(120 if hopeless else 0.1) == hopeless
            raise TrainyardError("the engine was interrupted")

    def test_a_claim_that_a_pod_holds_ends_the_removal_and_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        going = {"name": "checkpoints", "namespace": "training", "deletionTimestamp": "2026-11-30T12:00:00Z"}
        stays = {"name": "theirs", "namespace": "training"}

        def pod(name: str, claim: str, namespace: str = "training", node: str | None = "n") -> dict[str, Any]:
            volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": claim}}]
            spec = {"containers": [], "volumes": volumes, **({"nodeName": node} if node else {})}
            return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}

        pods = [
            pod("holds", "checkpoints"),
            pod("other-claim", "theirs"),
            pod("other-namespace", "checkpoints", namespace="x"),
            pod("without-node", "checkpoints", node=None),
        ]
        claims = [(PersistentVolumeClaim, {"metadata": about}) for about in (going, stays)]
        cluster = Cluster(*claims, *((Pod, one) for one in pods))
        monkeypatch.setattr(inspection, "_client", lambda _: cluster)
        expected = r"(?s)training/checkpoints: used by holds\nthe engine was interrupted.*Delete jobs and pods first"
        with pytest.raises(inspection.ClaimInUseError, match=expected):
            self.removal(hopeless=True)

    def test_another_failure_of_a_removal_stays_what_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspection, "_client", lambda _: Cluster())
        with pytest.raises(TrainyardError, match=r"^the engine was interrupted$"):
            self.removal(hopeless=False)

    def test_a_pod_of_a_users_job_that_fits_nowhere_does_not_end_a_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
        waiting = {
            "metadata": {"name": "train-worker-0", "namespace": "training"},
            "spec": {"containers": []},
            "status": {"phase": "Pending", "conditions": [condition]},
        }
        monkeypatch.setattr(inspection, "_client", lambda _: Cluster((Pod, waiting)))
        with inspection.pods_must_fit(Path("k"), "training") as hopeless:
            assert not hopeless.wait(0.1)
        with inspection.pods_must_fit(Path("k"), "elsewhere") as hopeless:
            assert hopeless.wait(120)
