"""The double as a plugin: under the real engine, and its protocol in the small."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from little_engine import ACCOUNT, REGION, LittleEngine, RefusedError, little_engine
from pulumi.runtime.proto import provider_pb2 as messages

from infra.clusters import CHECKOUT
from infra.local import engines
from infra.local.engines.pulumi import pulumi_environment
from infra.local.state import State
from infra.rehearsal.connection import FOLDER_VARIABLE, Connection
from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.server import VERSION, Provider
from infra.rehearsal.double.values import SECRET, SIGNATURE, UNKNOWN, decode, encode

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"

PROGRAM = """
import pulumi
import pulumi_aws as aws
from pulumi_aws.ec2 import LaunchTemplate, LaunchTemplatePlacementArgs, PlacementGroup, Subnet, Vpc

config = pulumi.Config()
provider = aws.Provider("aws", region="us-east-2", default_tags={"tags": {"stack": "dev"}})
there = pulumi.ResourceOptions(provider=provider)
vpc = Vpc("vpc", cidr_block="10.0.0.0/16", tags={"Name": config.get("called") or "tiny"}, opts=there)
subnet = Subnet("subnet", vpc_id=vpc.id, cidr_block=config.get("block") or "10.0.1.0/24",
                opts=pulumi.ResourceOptions(provider=provider, delete_before_replace=True))
group = PlacementGroup("group", name="close", strategy=config.get("strategy") or "cluster", opts=there)
template = LaunchTemplate("template", name="tiny", instance_type=config.get("type") or "p5.48xlarge",
                          placement=LaunchTemplatePlacementArgs(group_name=group.name),
                          user_data=config.get_secret("data"), update_default_version=True, opts=there)
pulumi.export("arn", vpc.arn)
pulumi.export("tags", vpc.tags_all)
pulumi.export("version", template.latest_version)
pulumi.export("data", template.user_data)
"""


class Context(SimpleNamespace):
    def abort(self, _code: Any, message: str) -> None:
        raise RefusedError(message)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("server")) as engine:
        yield engine


@pytest.fixture
def rehearsal(engine: LittleEngine, short_tmp: Path) -> Path:
    """A rehearsal's folder, as the plugin looks for it."""
    engine.aws.connection.write(State(short_tmp / "rehearsal"))
    return short_tmp / "rehearsal"


@pytest.mark.engines
def test_the_real_engine_previews_makes_changes_refreshes_and_removes_with_it(
    engine: LittleEngine, rehearsal: Path, tmp_path: Path
) -> None:
    engines.ensure(["pulumi", "pulumi-language-python"])
    environment = os.environ | pulumi_environment(rehearsal) | {FOLDER_VARIABLE: str(rehearsal)}
    plugin = Path(environment["PULUMI_HOME"], "plugins", f"resource-aws-v{VERSION}", "pulumi-resource-aws")
    plugin.parent.mkdir(parents=True)
    plugin.write_text(f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m infra.rehearsal.double "$@"\n')
    plugin.chmod(0o700)
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: tiny\nruntime: python\n")
    (project / "__main__.py").write_text(PROGRAM)

    def pulumi(*arguments: str, fails: bool = False) -> str:
        command = ["pulumi", *arguments, "--non-interactive", "--color", "never"]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def outputs() -> Any:
        return json.loads(pulumi("stack", "output", "--json"))

    pulumi("stack", "init", "dev")
    pulumi("config", "set", "--secret", "data", "c2VjcmV0")
    pulumi("config", "set", "strategy", "near")
    said = pulumi("preview", fails=True)
    assert "AWS would refuse this: 'near' is not one of cluster, spread, partition" in said
    pulumi("config", "rm", "strategy")

    assert "+ 6 to create" in pulumi("preview")
    pulumi("up", "--yes", "--skip-preview")
    found = outputs()
    assert found["arn"].startswith(f"arn:aws:ec2:us-east-2:{ACCOUNT}:vpc/vpc-")
    assert found["tags"] == {"Name": "tiny", "stack": "dev"}
    assert (found["version"], found["data"]) == (1, "[secret]")
    assert "6 unchanged" in pulumi("up", "--yes", "--skip-preview")

    ec2 = engine.boto("ec2")
    ec2.create_tags(Resources=[found["arn"].rpartition("/")[2]], Tags=[{"Key": "Name", "Value": "by hand"}])
    assert "~ 1 updated" in pulumi("refresh", "--yes", "--skip-preview")

    pulumi("config", "set", "type", "p5e.48xlarge")
    pulumi("config", "set", "block", "10.0.2.0/24")
    said = pulumi("preview", "--diff")
    assert "cidrBlock" in said
    assert "~ 2 to update" in said  # the VPC's tags go back, the template gets a version
    assert "+-1 to replace" in said
    pulumi("up", "--yes", "--skip-preview")
    assert outputs()["version"] == 2
    assert [found["CidrBlock"] for found in ec2.describe_subnets()["Subnets"] if not found["DefaultForAz"]] == [
        "10.0.2.0/24"
    ]
    pulumi("destroy", "--yes", "--skip-preview")
    assert [vpc for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]] == []
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []


def test_the_plugin_prints_its_port_and_goes_with_who_started_it(rehearsal: Path) -> None:
    starter = (
        "import subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'infra.rehearsal.double']\n"
        "plugin = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "print(plugin.pid, plugin.stdout.readline().strip(), flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {FOLDER_VARIABLE: str(rehearsal), "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        [sys.executable, "-c", starter], env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        number, port = parent.stdout.readline().split()
        assert 1024 < int(port) < 65536
        plugin = psutil.Process(int(number))
        assert plugin.is_running()
        parent.kill()
    _, alive = psutil.wait_procs([plugin], timeout=120)
    assert not alive


def test_without_a_rehearsal_it_says_how_to_begin_one(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != FOLDER_VARIABLE}
    command = [sys.executable, "-m", "infra.rehearsal.double"]
    done = subprocess.run(
        command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Begin one: trainyard up -s <stack> --rehearse" in done.stderr


def test_a_region_that_is_none_is_refused(engine: LittleEngine, tmp_path: Path) -> None:
    def said(**settings: Any) -> list[str]:
        request = messages.CheckRequest(news=encode(settings))
        return [failure.reason for failure in engine.provider.CheckConfig(request, Context()).failures]

    assert said(region="us-east-2") == said(region=UNKNOWN) == []
    assert said(region="us-east-9") == ["AWS has no region 'us-east-9': set trainyard:aws.region, e.g. us-east-2"]
    assert "give each AWS resource the stack's own provider" in said()[0]
    with pytest.raises(AwsRefusedError, match="no region 'mars'"):
        Aws(engine.aws.connection, tmp_path, region="mars")


def test_a_rehearsal_never_calls_what_is_not_on_this_computer(tmp_path: Path) -> None:
    far = Connection("https://ec2.us-east-2.amazonaws.com", REGION, ACCOUNT, tmp_path, "", "")
    with pytest.raises(AwsRefusedError, match="not on this computer"):
        Aws(far, tmp_path)


def test_the_users_own_aws_profile_plays_no_part(rehearsal: Path) -> None:
    environment = os.environ | {"AWS_PROFILE": "not-there", FOLDER_VARIABLE: str(rehearsal)}
    program = (
        "from infra.rehearsal.connection import Connection, folder_of_environment as folder\n"
        "from infra.rehearsal.double.aws import Aws\n"
        "print(Aws(Connection.read(), folder()).call('sts', 'GetCallerIdentity')['Account'])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (ACCOUNT, "")


def test_what_the_stack_did_not_make_cannot_be_looked_up(engine: LittleEngine) -> None:
    with pytest.raises(RefusedError, match="vpc-0 cannot be imported or looked up"):
        engine.provider.Read(messages.ReadRequest(type=VPC, id="vpc-0"), Context())


def test_tags_of_the_provider_are_those_of_every_resource_below_its_own(engine: LittleEngine) -> None:
    provider = Provider(lambda _region: engine.aws)
    tags = json.dumps({"tags": {"stack": "dev", "owner": "all"}})  # nested settings come as texts
    provider.Configure(messages.ConfigureRequest(args=encode({"region": REGION, "defaultTags": tags})), Context())

    def tagged(**inputs: Any) -> Any:
        request = messages.CheckRequest(type=VPC, news=encode({"cidrBlock": "10.0.0.0/16", **inputs}))
        return decode(provider.Check(request, Context()).inputs).get("tags")

    assert tagged() == {"stack": "dev", "owner": "all"}
    assert tagged(tags={"owner": "me"}) == {"stack": "dev", "owner": "me"}
    assert tagged(tags=UNKNOWN) is UNKNOWN


def test_a_type_or_look_up_that_nobody_wrote_names_the_file_to_extend(engine: LittleEngine) -> None:
    assert "write a Kind for it in infra/rehearsal/double/ec2.py" in engine.refusal("aws:ec2/instance:Instance", {})
    said = engine.refusal("aws:sqs/queue:Queue", {})
    assert "infra/rehearsal/double/sqs.py and name that file in infra/rehearsal/double/registry.py" in said
    with pytest.raises(RefusedError, match=r"add it to infra/rehearsal/double/invokes\.py"):
        engine.provider.Invoke(messages.InvokeRequest(tok="aws:ec2/getAmi:getAmi"), Context())


def test_secrets_stay_secret_in_what_comes_back(engine: LittleEngine) -> None:
    inputs = encode({"cidrBlock": "10.0.0.0/16", "tags": {"password": "geheim"}}, frozenset({"tags"}))
    made = engine.provider.Create(messages.CreateRequest(type=VPC, properties=inputs, preview=True), Context())
    assert made.properties.fields["tags"].struct_value.fields[SIGNATURE].string_value == SECRET
    assert decode(made.properties)["tags"] == {"password": "geheim"}
    assert made.properties.fields["tagsAll"].struct_value.fields[SIGNATURE].string_value == SECRET


def test_a_difference_is_told_by_its_path_and_kind(engine: LittleEngine) -> None:
    def diff(old: dict[str, Any], new: dict[str, Any], token: str = SUBNET) -> Any:
        request = messages.DiffRequest(type=token, id="x", olds=encode(old), old_inputs=encode(old), news=encode(new))
        answer = engine.provider.Diff(request, Context())
        kinds = messages.PropertyDiff.Kind
        return {path: kinds.Name(change.kind) for path, change in answer.detailedDiff.items()}, answer

    same = {"vpcId": "vpc-0", "tags": {"a.b/c": "1", "d": "2"}}
    told, answer = diff(same, same)
    assert (told, answer.changes) == ({}, messages.DiffResponse.DIFF_NONE)
    told, answer = diff(same, {"vpcId": "vpc-0", "tags": {"a.b/c": "3", "e": "4"}, "mapPublicIpOnLaunch": True})
    assert told == {'tags["a.b/c"]': "UPDATE", "tags.d": "DELETE", "tags.e": "ADD", "mapPublicIpOnLaunch": "ADD"}
    assert not answer.replaces
    told, answer = diff(same, {**same, "vpcId": UNKNOWN})  # a network that is made anew
    assert (told, list(answer.replaces), answer.deleteBeforeReplace) == ({"vpcId": "UPDATE_REPLACE"}, ["vpcId"], False)
    group = "aws:ec2/securityGroup:SecurityGroup"
    told, answer = diff({"name": "g", "vpcId": "vpc-0"}, {"name": "g", "vpcId": "vpc-1"}, group)
    assert answer.deleteBeforeReplace  # two groups of one name cannot be
    nodes = "aws:eks/nodeGroup:NodeGroup"
    before = {"launchTemplate": {"id": "lt-0", "version": "1"}, "subnetIds": ["subnet-0"]}
    told, _ = diff(before, {**before, "launchTemplate": {"id": "lt-0", "version": UNKNOWN}}, nodes)
    assert told == {"launchTemplate.version": "UPDATE"}
    told, _ = diff(before, {**before, "subnetIds": ["subnet-0", "subnet-1"]}, nodes)
    assert told == {"subnetIds[1]": "ADD_REPLACE"}
    several = {**before, "subnetIds": ["subnet-0", "subnet-1"]}
    told, answer = diff(several, {**several, "subnetIds": ["subnet-1", "subnet-0"]}, nodes)
    assert told == {}  # to AWS they are a set


def test_records_are_private_and_survive_the_plugin(engine: LittleEngine, short_tmp: Path) -> None:
    aws = Aws(engine.aws.connection, short_tmp / "book")
    aws.book.put("placement-group", "p5", {"strategy": "cluster"})
    assert stat.S_IMODE((short_tmp / "book" / "aws-book.json").stat().st_mode) == 0o600
    again = Aws(engine.aws.connection, short_tmp / "book").book
    assert again.all("placement-group") == {"p5": {"strategy": "cluster"}}
    again.drop("placement-group", "p5")
    again.drop("placement-group", "p5")
    assert aws.book.get("placement-group", "p5") is None
