"""AWS stacks rehearsed on the real engine and a real control plane: they come up, change as told, and leave nothing.

One rehearsal of each stack for all tests here, in the order of the file, driven by the command as a user would. What
AWS has is looked at with boto3 from outside, what the cluster has with a Kubernetes client.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import boto3
import psutil
import pytest
import yaml
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Node, Pod

from infra.clusters import CHECKOUT
from infra.errors import TrainyardError
from infra.local import ports
from infra.local.engines.cache import cache_directory
from infra.local.processes import MARK
from infra.local.state import State
from infra.rehearsal import inspection, nodes
from infra.rehearsal.connection import Connection
from infra.rehearsal.environment import Rehearsal
from infra.settings import Aws, read_stack_file
from infra.wiring.job_resources import standard_job
from infra.wiring.naming import cluster_name
from infra.wiring.placing import fits, node_kinds, pod_of
from infra.wiring.scheduling import POOL_LABEL

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200), pytest.mark.xdist_group("rehearsal")]

TRAINYARD = Path(sys.executable).with_name("trainyard")


class Rehearsed:
    """A rehearsal of one stack, by a user who has an account, a backend and a login of their own."""

    def __init__(self, stack: str, folder: Path) -> None:
        self.stack = stack
        self.home = folder / "home"
        self.home.mkdir()
        self.state = folder / "state"
        theirs = {
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "theirs",
            "AWS_PROFILE": "production",
            "PULUMI_HOME": str(self.home / "pulumi"),
            "PULUMI_BACKEND_URL": f"file://{self.home / 'backend'}",
            "PULUMI_CONFIG_PASSPHRASE": "theirs",
        }
        self.environment = {
            **os.environ,
            **theirs,
            "HOME": str(self.home),
            "TRAINYARD_CACHE_DIR": str(cache_directory()),
            "TRAINYARD_STATE_DIR": str(self.state),
        }
        settings = read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)
        assert settings.aws
        self.aws: Aws = settings.aws
        self.namespace = settings.namespace
        self.cluster = cluster_name(settings, stack)
        self.folder = self.state / f"rehearsal-{stack}"

    def run(self, *arguments: str, code: int = 0) -> Any:
        command = [str(TRAINYARD), *arguments, "-s", self.stack, "--rehearse", "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout)

    def plain_pulumi_preview(self, **changes: Any) -> tuple[list[dict[str, Any]], str]:
        """What plain `pulumi` in the rehearsal's own project would do with other settings: its steps and errors."""
        file = self.folder / f"project/Pulumi.{self.stack}.yaml"
        before = file.read_text()
        content = yaml.safe_load(before)
        settings = content["config"]["trainyard:aws"]
        for name, change in changes.items():
            change(settings[name])
        file.write_text(yaml.safe_dump(content))
        line = (
            f'eval "$({TRAINYARD} env -s {self.stack} --rehearse)";'
            f' pulumi -C "$TRAINYARD_REHEARSAL/project" preview -s {self.stack} --json --non-interactive'
        )
        try:
            done = subprocess.run(
                ["bash", "-c", line], env=self.environment, capture_output=True, text=True, timeout=900, check=False
            )
        finally:
            file.write_text(before)
        told = json.loads(done.stdout)
        errors = [one["message"] for one in told.get("diagnostics") or () if one["severity"] == "error"]
        assert (done.returncode == 0) == (errors == []), done.stderr
        return [step for step in told["steps"] if step["op"] != "same"], "\n".join(errors)

    @cached_property
    def connection(self) -> Connection:
        return Connection.read(self.folder)

    @cached_property
    def kubernetes(self) -> Client:
        return Client(config=KubeConfig.from_file(self.connection.kubeconfig), trust_env=False)

    def client(self, service: str) -> Any:
        """What a user's own script would use, after `env --rehearse`."""
        told = self.run("env")
        return boto3.session.Session(
            aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=told["AWS_SECRET_ACCESS_KEY"],
            region_name=told["AWS_REGION"],
        ).client(service, endpoint_url=told["AWS_ENDPOINT_URL"])

    def node_groups(self) -> dict[str, dict[str, Any]]:
        """The node groups that AWS has, by pool."""
        eks = self.client("eks")
        names = eks.list_nodegroups(clusterName=self.cluster)["nodegroups"]
        found = [eks.describe_nodegroup(clusterName=self.cluster, nodegroupName=name)["nodegroup"] for name in names]
        return {group["labels"][POOL_LABEL]: group for group in found}

    def template_of(self, group: dict[str, Any]) -> dict[str, Any]:
        answer = self.client("ec2").describe_launch_template_versions(
            LaunchTemplateId=group["launchTemplate"]["id"], Versions=[str(group["launchTemplate"]["version"])]
        )
        return cast(dict[str, Any], answer["LaunchTemplateVersions"][0]["LaunchTemplateData"])

    def pool_of_nodes(self) -> dict[str, str]:
        found = [node.to_dict()["metadata"] for node in self.kubernetes.list(Node)]
        return {metadata["name"]: metadata["labels"][POOL_LABEL] for metadata in found}

    def pods(self) -> list[dict[str, Any]]:
        return [pod.to_dict() for pod in self.kubernetes.list(Pod, namespace="*")]

    def processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK, "").startswith(str(self.folder)):
                    found.append(" ".join(process.cmdline())[:100])
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module", params=["dev", "prod"])
def rehearsed(request: pytest.FixtureRequest) -> Iterator[Rehearsed]:
    folder = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    one = Rehearsed(request.param, folder)
    yield one
    if one.folder.exists():  # a test failed
        Rehearsal(State(one.folder)).down()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_preview_from_nothing_leaves_nothing(rehearsed: Rehearsed) -> None:
    told = rehearsed.run("preview")
    assert told["rehearsal"] is True
    assert set(told["changes"]) == {"create"}
    assert len(told["steps"]) == told["changes"]["create"]
    assert rehearsed.processes() == []
    assert not rehearsed.folder.exists()


def test_it_comes_up_and_says_what_it_is(rehearsed: Rehearsed) -> None:
    stack_files = {path: path.read_bytes() for path in CHECKOUT.glob("Pulumi*.yaml")}
    told = rehearsed.run("up")
    assert told["rehearsal"] is True
    assert "no AWS account was touched" in told["note"]
    assert "1 Helm release was recorded, not rendered" in told["note"]
    assert set(told["changes"]) == {"create"}
    assert told["changes"]["create"] > 100
    assert told["aws_endpoint_url"].startswith("http://127.0.0.1:")
    assert Path(told["kubeconfig"]).exists()
    # The engine would write its salt into the stack file, and its state into the user's backend.
    assert {path: path.read_bytes() for path in CHECKOUT.glob("Pulumi*.yaml")} == stack_files
    assert not (rehearsed.home / "backend").exists()
    assert not (rehearsed.home / "pulumi").exists()


def test_a_second_run_changes_nothing(rehearsed: Rehearsed) -> None:
    assert set(rehearsed.run("up")["changes"]) == {"same"}


def test_status_shows_the_stand_ins_and_the_nodes(rehearsed: Rehearsed) -> None:
    told = rehearsed.run("status")
    assert told["healthy"]
    assert told["unscheduled_pods"] == []
    assert {"moto", "kube-apiserver", "kwok"} <= {part["name"] for part in told["processes"]}
    system = [node for node in told["nodes"] if node["pool"] == "system"]
    assert len(system) == rehearsed.aws.system_pool.min


def test_boto3_from_outside_finds_what_was_made(rehearsed: Rehearsed) -> None:
    groups = rehearsed.node_groups()
    assert set(groups) == {"system", *(pool.name for pool in rehearsed.aws.node_pools)}
    for pool in rehearsed.aws.node_pools:
        effects = {taint["key"]: taint["effect"] for taint in groups[pool.name]["taints"]}
        assert effects["nvidia.com/gpu"] == "NO_SCHEDULE"  # EKS's spelling, and no other
        assert ("trainyard.dev/spot" in effects) == (pool.capacity == "spot")
        template = rehearsed.template_of(groups[pool.name])
        kinds = [one.get("InterfaceType", "interface") for one in template.get("NetworkInterfaces", [])]
        assert kinds.count("efa-only") == (32 if pool.efa else 0)
        assert len(kinds) == (33 if pool.efa else len(kinds))
        assert template["MetadataOptions"]["HttpTokens"] == "required"
    if any(pool.efa for pool in rehearsed.aws.node_pools):
        rules = rehearsed.client("ec2").describe_security_group_rules()["SecurityGroupRules"]
        own = {
            (rule["GroupId"], rule["IsEgress"])
            for rule in rules
            if rule.get("ReferencedGroupInfo", {}).get("GroupId") == rule["GroupId"] and rule["IpProtocol"] == "-1"
        }
        assert any((group, True) in own and (group, False) in own for group, _ in own), "EFA needs both, to itself"
    if rehearsed.aws.storage.lustre:
        (system,) = rehearsed.client("fsx").describe_file_systems()["FileSystems"]
        assert system["StorageCapacity"] == rehearsed.aws.storage.lustre.capacity_gib
    if rehearsed.aws.storage.efs:
        assert len(rehearsed.client("efs").describe_file_systems()["FileSystems"]) == 1


def test_a_changed_pool_is_an_update_in_place_and_a_changed_subnet_a_replacement(rehearsed: Rehearsed) -> None:
    def larger(pools: list[dict[str, Any]]) -> None:
        pools[0]["max"] += 1

    steps, errors = rehearsed.plain_pulumi_preview(nodePools=larger)
    assert errors == ""
    groups = [step for step in steps if "aws:eks/nodeGroup:NodeGroup::" in step["urn"]]
    assert [(step["op"], "scalingConfig" in str(step.get("diffReasons"))) for step in groups] == [("update", True)]

    steps, errors = rehearsed.plain_pulumi_preview(network=lambda network: network.update(cidr="10.77.0.0/16"))
    subnets = [step["op"] for step in steps if "aws:ec2/subnet:Subnet::" in step["urn"]]
    assert subnets
    assert set(subnets) <= {"replace", "create-replacement", "delete-replaced"}
    # What holds data goes with its subnet only where the settings do not protect it.
    assert ("currently marked for protection" in errors) == rehearsed.aws.protect, errors


def test_the_real_scheduler_places_every_pod_where_the_pure_one_says(rehearsed: Rehearsed) -> None:
    kinds = node_kinds(rehearsed.aws, rehearsed.cluster)
    for pool, group in rehearsed.node_groups().items():
        if pool != "system":  # one machine each, as the autoscaler would add it for the job
            nodes.set_nodes(rehearsed.connection, as_asked_for(rehearsed, group), 1)
    jobs = {pool.name: a_worker_of(rehearsed, pool.name) for pool in rehearsed.aws.node_pools}
    for manifest in jobs.values():
        rehearsed.kubernetes.create(cast(Pod, Pod.from_dict(manifest)))
    # Everything that runs, and the agents that the new machines get.
    placed = wait_until_placed(rehearsed)
    pools = rehearsed.pool_of_nodes()
    assert {f"job-{pool}" for pool in jobs} <= {pod["metadata"]["name"] for pod in placed}
    for pod in placed:
        name, where = pod["metadata"]["name"], pools[pod["spec"]["nodeName"]]
        fitting = fits(pod_of(without_its_node(pod["spec"]), name=name), kinds).pools
        assert where in fitting, f"{name} runs in {where}; the pure scheduler says {fitting}"
        if name.startswith("job-"):
            assert fitting == (name.removeprefix("job-"),)
    plugins = [pod for pod in placed if pod["metadata"]["name"].startswith("nvidia-device-plugin")]
    on_gpu_machines = {pools[pod["spec"]["nodeName"]] for pod in plugins}
    assert on_gpu_machines == set(jobs), "each GPU machine has the device plugin"


def test_a_pod_that_fits_no_pool_ends_the_run_with_the_schedulers_reason(
    rehearsed: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "PATIENCE", 1.0)
    giant = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "9"}}}
    pod = Pod.from_dict({"metadata": {"name": "giant", "namespace": "default"}, "spec": {"containers": [giant]}})
    rehearsed.kubernetes.create(cast(Pod, pod))
    with pytest.raises(inspection.UnscheduledError, match=r"default/giant: .*Insufficient nvidia\.com/gpu"):
        run_until_hopeless(rehearsed)
    rehearsed.kubernetes.delete(Pod, "giant", namespace="default")


def test_down_leaves_nothing(rehearsed: Rehearsed) -> None:
    for pool in rehearsed.aws.node_pools:
        rehearsed.kubernetes.delete(Pod, f"job-{pool.name}", namespace=rehearsed.namespace)
    listening = [part["port"] for part in rehearsed.run("status")["processes"] if part["port"]]
    assert listening
    told = rehearsed.run("down")
    assert told["changes"]["delete"] > 100
    assert rehearsed.processes() == []
    assert [port for port in listening if not ports.becomes_free(port, seconds=60)] == []
    assert not rehearsed.folder.exists()
    assert not (rehearsed.home / "backend").exists()
    assert rehearsed.run("status", code=1)["processes"] == []
    assert rehearsed.run("down")["changes"] == {}  # of what is not there: fine


def run_until_hopeless(rehearsed: Rehearsed) -> None:
    """What the command does with an engine that waits for a pod."""
    with inspection.pods_must_fit(rehearsed.connection.kubeconfig) as hopeless:
        assert hopeless.wait(240)
        raise TrainyardError("the engine was interrupted")


def as_asked_for(rehearsed: Rehearsed, group: dict[str, Any]) -> nodes.Group:
    """A node group as AWS tells it, for whoever makes its nodes."""
    template = rehearsed.template_of(group)
    subnets = rehearsed.client("ec2").describe_subnets(SubnetIds=group["subnets"])["Subnets"]
    kinds = [one.get("InterfaceType") for one in template.get("NetworkInterfaces", [])]
    return {
        "name": group["nodegroupName"],
        "instanceType": template.get("InstanceType") or group["instanceTypes"][0],
        "capacityType": group["capacityType"],
        "labels": group["labels"],
        "taints": group["taints"],
        "zones": [subnet["AvailabilityZone"] for subnet in subnets],
        "efa": "efa-only" in kinds,
    }


def without_its_node(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod's spec without the one node that the DaemonSet controller has chosen: kinds of nodes are asked about."""
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    by_name = any(term.get("matchFields") for term in terms.get("nodeSelectorTerms", ()))
    return {key: value for key, value in spec.items() if key != "affinity"} if by_name else spec


def a_worker_of(rehearsed: Rehearsed, pool: str) -> dict[str, Any]:
    """The pod that the controller would make for a worker of a standard job on a pool."""
    (chosen,) = (one for one in rehearsed.aws.node_pools if one.name == pool)
    job = standard_job(
        chosen,
        name="train",
        image="registry.example.com/training:1",
        namespace=rehearsed.namespace,
        rdzv_endpoint="etcd.trainyard-system:2379",
        workers_min=1,
        workers_max=1,
    )
    template = job["spec"]["replicaSpecs"]["Worker"]["template"]
    return {"metadata": {"name": f"job-{pool}", "namespace": rehearsed.namespace}, "spec": template["spec"]}


def wait_until_placed(rehearsed: Rehearsed, seconds: float = 240.0) -> list[dict[str, Any]]:
    """All pods, as soon as each runs or has run."""
    deadline = time.monotonic() + seconds
    while True:
        time.sleep(1)
        found = rehearsed.pods()
        waiting = [pod for pod in found if pod["status"].get("phase") not in {"Running", "Succeeded"}]
        if not waiting:
            return found
        reasons = [(pod["metadata"]["name"], pod["status"].get("conditions")) for pod in waiting]
        assert time.monotonic() < deadline, f"never placed: {reasons}"
