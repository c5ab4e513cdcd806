"""A Pulumi engine of thirty lines, in front of the real provider double and a real moto server: for stories about one
resource type that take milliseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from urllib.request import Request, urlopen

import boto3
from moto.server import ThreadedMotoServer
from pulumi.runtime.proto import provider_pb2 as messages

from infra.rehearsal.connection import Connection
from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.server import Provider
from infra.rehearsal.double.values import decode, encode

REGION = "us-east-2"
ACCOUNT = "123456789012"  # moto's own


class RefusedError(Exception):
    """The provider refused a request; the message is what a user would read."""


class Resource:
    """One resource of the little engine's state."""

    def __init__(self, engine: LittleEngine, token: str, name: str) -> None:
        self.engine, self.token, self.name = engine, token, name
        self.id, self.there = "", False
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def __getitem__(self, output: str) -> Any:
        return self.outputs[output]

    def up(self, **inputs: Any) -> str:
        """Bring it to these inputs; returns what that took: create, same, update or replace."""
        checked = self.engine.check(self.token, inputs, self.inputs if self.there else None)
        if not self.there:
            self._create(checked)
            return "create"
        request = messages.DiffRequest(
            type=self.token, id=self.id, olds=encode(self.outputs), old_inputs=encode(self.inputs), news=encode(checked)
        )
        diff = self.engine.provider.Diff(request, _Context())
        if diff.changes == messages.DiffResponse.DIFF_NONE:
            return "same"
        if diff.replaces:
            self.down()
            self._create(checked)
            return "replace"
        update = messages.UpdateRequest(
            type=self.token, id=self.id, olds=encode(self.outputs), old_inputs=encode(self.inputs), news=encode(checked)
        )
        self.outputs = decode(self.engine.provider.Update(update, _Context()).properties)
        self.inputs = checked
        return "update"

    def refresh(self) -> str:
        """Look at it again; returns what was found: same, changed (then what its inputs are now) or gone."""
        request = messages.ReadRequest(
            type=self.token, id=self.id, properties=encode(self.outputs), inputs=encode(self.inputs)
        )
        answer = self.engine.provider.Read(request, _Context())
        if not answer.id:
            return "gone"
        before, self.inputs, self.outputs = self.inputs, decode(answer.inputs), decode(answer.properties)
        return "same" if self.inputs == before else "changed"

    def down(self) -> None:
        """Remove it."""
        request = messages.DeleteRequest(type=self.token, id=self.id, properties=encode(self.outputs))
        self.engine.provider.Delete(request, _Context())
        self.there = False

    def _create(self, inputs: dict[str, Any]) -> None:
        request = messages.CreateRequest(type=self.token, name=self.name, properties=encode(inputs))
        made = self.engine.provider.Create(request, _Context())
        self.id, self.there, self.inputs, self.outputs = made.id, True, inputs, decode(made.properties)


class LittleEngine:
    """The double with one region of moto behind it."""

    def __init__(self, endpoint: str, folder: Path, region: str = REGION) -> None:
        self._clients: dict[str, Any] = {}
        self._endpoint, self.region, self.account = endpoint, region, ACCOUNT
        connection = Connection(endpoint, region, ACCOUNT, folder / "kubeconfig", "https://127.0.0.1:6443", "")
        self.aws = Aws(connection, folder)
        self.provider = Provider(lambda _region: self.aws)
        self.configure({"region": region})

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Give the provider its settings, as the program has them."""
        self.provider.Configure(messages.ConfigureRequest(args=encode(settings)), _Context())

    def boto(self, service: str) -> Any:
        """AWS seen from outside the double."""
        if service not in self._clients:  # one takes up to a second to make
            session = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name=self.region)
            self._clients[service] = session.client(service, endpoint_url=self._endpoint)
        return self._clients[service]

    def made(self, token: str, **inputs: Any) -> Resource:
        """A new resource with these inputs."""
        resource = Resource(self, token, token.rsplit(":", 1)[-1].lower())
        resource.up(**inputs)
        return resource

    def check(self, token: str, inputs: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The inputs as the provider takes them, after old ones where it is there; RefusedError with all mistakes."""
        olds = None if old is None else encode(old)
        answer = self.provider.Check(messages.CheckRequest(type=token, olds=olds, news=encode(inputs)), _Context())
        if answer.failures:
            raise RefusedError("\n".join(f"{failure.property}: {failure.reason}" for failure in answer.failures))
        return decode(answer.inputs)

    def refusal(self, token: str, inputs: Mapping[str, Any]) -> str:
        """Why the provider refuses these inputs; empty: it doesn't."""
        try:
            self.check(token, inputs)
        except RefusedError as error:
            return str(error)
        return ""

    def preview(self, token: str, **inputs: Any) -> dict[str, Any]:
        """What a preview knows of the outputs."""
        checked = self.check(token, inputs)
        request = messages.CreateRequest(type=token, properties=encode(checked), preview=True)
        return decode(self.provider.Create(request, _Context()).properties)

    def subnet(self, block: str = "10.0.1.0/24", *, zone: str = "a", vpc: str | None = None) -> str:
        """A subnet in moto, in a VPC of its own where none is given."""
        ec2 = self.boto("ec2")
        vpc = vpc or ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        zone_name = f"{self.region}{zone}"
        return str(ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone_name)["Subnet"]["SubnetId"])

    def vpc_of(self, subnet: str) -> str:
        """The VPC of a subnet."""
        return str(self.boto("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"])


@contextmanager
def little_engine(folder: Path, *, region: str = REGION) -> Iterator[LittleEngine]:
    """An engine with an empty moto of its own."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://127.0.0.1:{port}" if host == "0.0.0.0" else f"http://{host}:{port}"  # noqa: S104
        _reset(endpoint)
        yield LittleEngine(endpoint, folder, region)
        _reset(endpoint)  # all motos of a process share their state
    finally:
        server.stop()


def _reset(endpoint: str) -> None:
    with urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")):  # noqa: S310 - our own server
        pass


class _Context(SimpleNamespace):
    """What gRPC hands to a servicer, as far as the double uses it."""

    def abort(self, _code: Any, message: str) -> NoReturn:
        raise RefusedError(message)
