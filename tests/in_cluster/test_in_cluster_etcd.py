"""The jobs' etcd: one open member on a computer, three that trust nobody where it counts."""

from __future__ import annotations

import re
from typing import Any

import pulumi
import pytest
from component_recorder import Object, Recorded, record

from infra.in_cluster.elastic_controller import ElasticController
from infra.in_cluster.etcd import Etcd
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.storage_claims import LocalStorageClasses
from infra.wiring.etcd_layout import EtcdLayout
from infra.wiring.storage import Volume
from training.controller import certificates

SYSTEM = OwnPods("trainyard-system", "training", "ClusterFirst", {"trainyard.dev/pool": "system"})
KEYS = "registry.example/controller:1"


def etcd(members: int, keeper: str | None) -> Recorded:
    def make(opts: pulumi.ResourceOptions) -> None:
        classes = LocalStorageClasses("classes", names=(), opts=opts)
        volume = Volume("1Gi", "ReadWriteOnce", "fast")
        made = Etcd(
            "etcd",
            pods=SYSTEM,
            image="registry.example/etcd:1",
            volume=volume,
            classes=classes,
            members=members,
            keeper=keeper,
            opts=opts,
        )
        ElasticController(
            "controller", pods=SYSTEM, image="registry.example/controller:1", replicas=2, login=made.login, opts=opts
        )

    return record(make)


def pod(recorded: Recorded) -> Object:
    spec: Object = recorded.one("StatefulSet")["spec"]["template"]["spec"]
    return spec


def flag(spec: Object, name: str) -> str:
    """The value of a flag of etcd, by the variable that stands for it."""
    values: dict[str, str] = {each["name"]: each.get("value", "") for each in spec["containers"][0]["env"]}
    return values[f"ETCD_{name.upper().replace('-', '_')}"]


def test_etcd_s_own_image_starts_it() -> None:
    """It has a command and no entrypoint: arguments would take the command's place, and nothing would start."""
    (container,) = pod(etcd(3, KEYS))["containers"]
    assert "args" not in container
    assert "command" not in container


def test_one_open_member_needs_no_keys_no_budget_and_no_second_service() -> None:
    made = etcd(1, None)
    assert [each.name for each in made if each.type.endswith(":Service")] == ["etcd"]
    names = {each.type.split(":")[-1] for each in made} - {"Service", "StatefulSet"}
    assert not names & {"Job", "CronJob", "Secret"}
    assert not made.all("PodDisruptionBudget", "etcd")
    assert "volumes" not in pod(made)
    args = made.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not any(argument.startswith("--rendezvous") for argument in args)


def test_where_all_doors_are_closed_jobs_reach_an_open_etcd_too() -> None:
    clients, members = etcd(1, None).one("NetworkPolicy", "etcd")["spec"]["ingress"]
    (jobs,) = clients["from"]
    assert jobs == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "training"}}}
    assert [port["port"] for port in clients["ports"] + members["ports"]] == [2379, 2380]


class TestThreeMembers:
    @pytest.fixture(params=[None, KEYS], ids=["open", "secure"])
    def made(self, request: pytest.FixtureRequest) -> Recorded:
        return etcd(3, request.param)

    def test_each_knows_all_by_names_that_are_there_before_they_are_ready(self, made: Recorded) -> None:
        spec = made.one("StatefulSet")["spec"]
        peers = made.one("Service", spec["serviceName"])["spec"]
        assert peers["publishNotReadyAddresses"] is True
        cluster = flag(pod(made), "initial-cluster").split(",")
        assert [member.split("=")[0] for member in cluster] == ["etcd-0", "etcd-1", "etcd-2"]
        own = flag(pod(made), "initial-advertise-peer-urls")
        assert own.replace("$(POD_NAME)", "etcd-1") == cluster[1].split("=")[1], "a member finds itself in the list"
        assert spec["podManagementPolicy"] == "Parallel", (
            "one alone never becomes ready, and the next would wait for it"
        )

    def test_clients_never_meet_a_member_that_is_not_ready(self, made: Recorded) -> None:
        assert "publishNotReadyAddresses" not in made.one("Service", "etcd")["spec"]

    def test_no_two_share_a_machine_and_one_at_a_time_may_go(self, made: Recorded) -> None:
        (term,) = pod(made)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        labels = made.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
        assert (term["topologyKey"], term["labelSelector"]["matchLabels"]) == ("kubernetes.io/hostname", labels)
        budget = made.one("PodDisruptionBudget", "etcd")["spec"]
        assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
        assert pod(made)["nodeSelector"] == {"trainyard.dev/pool": "system"}


def test_another_layout_takes_other_volumes() -> None:
    """A member's data name the members and their URLs: with those of another layout it would not start."""
    layouts = [EtcdLayout(members, secure) for members in (1, 3) for secure in (False, True)]
    assert len({layout.volume for layout in layouts}) == len(layouts)


@pytest.fixture(scope="module")
def secure() -> Recorded:
    return etcd(3, KEYS)


class TestSecure:
    def test_no_url_but_that_of_the_metrics_is_plain(self, secure: Recorded) -> None:
        env = pod(secure)["containers"][0]["env"]
        assert [each["name"] for each in env if "http://" in each.get("value", "")] == ["ETCD_LISTEN_METRICS_URLS"]
        assert flag(pod(secure), "peer-client-cert-auth") == "true"

    def test_certificates_bear_every_name_that_members_and_clients_use(self, secure: Recorded) -> None:
        (job, _) = secure.all("Job")
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        peers = {argument.split("=")[1] for argument in arguments if argument.startswith("--peer-name=")}
        servers = {argument.split("=")[1] for argument in arguments if argument.startswith("--server-name=")}
        hosts = re.findall(r"https://([^:,]+):2380", flag(pod(secure), "initial-cluster"))
        assert set(hosts) <= peers
        assert "etcd.$(POD_NAMESPACE)" in servers
        assert flag(pod(secure), "advertise-client-urls").replace("$(POD_NAME)", "etcd-2")[8:-5] in servers

    def test_certificates_come_first_passwords_after_and_both_are_looked_after(self, secure: Recorded) -> None:
        assert "kubernetes:batch/v1:Job etcd-certificates" in secure.after("StatefulSet", "etcd")
        assert "kubernetes:apps/v1:StatefulSet etcd" in secure.after("Job", "etcd-authentication")
        upkeep = secure.one("CronJob", "etcd-upkeep")["spec"]["jobTemplate"]["spec"]
        assert upkeep == secure.one("Job", "etcd-authentication")["spec"]
        assert any(arg.startswith("--endpoint=https://") for arg in upkeep["template"]["spec"]["containers"][0]["args"])

    def test_a_job_that_failed_is_run_anew_by_the_next_up(self, secure: Recorded) -> None:
        jobs = secure.all("Job")
        assert len(jobs) == 2
        assert {job["metadata"]["annotations"]["pulumi.com/replaceUnready"] for job in jobs} == {"true"}

    def test_no_secret_is_the_program_s(self, secure: Recorded) -> None:
        assert not secure.all("Secret")
        assert "BEGIN" not in str(list(secure))

    def test_who_makes_the_keys_reads_and_writes_them_and_no_others(self, secure: Recorded) -> None:
        rights = {role["metadata"]["namespace"]: role["rules"] for role in secure.all("Role") if is_of_keys(role)}
        assert rights == {"trainyard-system": certificates.system_rules(), "training": certificates.client_rules()}
        assert {each["subjects"][0]["name"] for each in secure.all("RoleBinding") if is_of_keys(each)} == {
            "etcd-certificates"
        }

    def test_ports_are_open_to_jobs_the_keeper_of_the_keys_and_members(self, secure: Recorded) -> None:
        clients, members = secure.one("NetworkPolicy", "etcd")["spec"]["ingress"]
        assert [port["port"] for port in clients["ports"] + members["ports"]] == [2379, 2380]
        jobs, keeper = clients["from"]
        assert jobs == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "training"}}}
        labels = secure.one("Job", "etcd-certificates")["spec"]["template"]["metadata"]["labels"]
        assert keeper == {"podSelector": {"matchLabels": labels}}
        assert members["from"] == [
            {"podSelector": {"matchLabels": secure.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]}}
        ]

    def test_the_controller_lets_those_in_who_meet_here(self, secure: Recorded) -> None:
        deployment = secure.one("Deployment")["spec"]["template"]["spec"]
        assert deployment["containers"][0]["args"][-2:] == [
            "--rendezvous-secret=etcd-client",
            "--rendezvous-host=etcd.trainyard-system",
        ]

    def test_the_controller_has_the_time_and_the_name_it_needs_to_let_pods_go(self, secure: Recorded) -> None:
        """Else worker pods, and their namespaces, could not go once it has been removed (docs/decisions/0004)."""
        deployment = secure.one("Deployment")
        pod = deployment["spec"]["template"]["spec"]
        assert f"--deployment={deployment['metadata']['name']}" in pod["containers"][0]["args"]
        assert pod["terminationGracePeriodSeconds"] == 60


def is_of_keys(role: dict[str, Any]) -> bool:
    return str(role["metadata"]["name"]).startswith("etcd-certificates")


def test_controllers_stand_apart_and_one_stays() -> None:
    made = etcd(1, None)
    spec = made.one("Deployment")["spec"]["template"]["spec"]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in spec["affinity"]["podAntiAffinity"]
    assert made.one("PodDisruptionBudget", "elastic-controller")["spec"]["maxUnavailable"] == 1
