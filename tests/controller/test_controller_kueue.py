"""What a stack tells Kueue, and what the page about queues shows, is what Kueue's own definitions allow.

The definitions come with Kueue's Go module, fetched as the engines are; they are checked by a real API server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kueue_module import kueue_module
from real_api_server import ApiRefusalError, Cluster, eventually

from infra.in_cluster.queues import manifests
from infra.settings.aws import Aws
from infra.wiring.queue_plan import queue_plan

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines

PAGE = Path(__file__).parents[2] / "docs/how-to/queues.md"
API = "/apis/kueue.x-k8s.io/v1beta2"
PLURALS = {
    "Topology": "topologies",
    "ResourceFlavor": "resourceflavors",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "Cohort": "cohorts",
}
AWS = {
    "region": "us-east-2",
    "network": {"zones": ["us-east-2a", "us-east-2b"]},
    "nodePools": [
        {
            "name": "always",
            "types": ["p5.48xlarge"],
            "efa": True,
            "zone": "us-east-2b",
            "capacity": "on-demand",
            "min": 4,
            "max": 4,
        },
        {"name": "spot", "types": ["g5.xlarge"], "capacity": "spot", "max": 3},
    ],
    "queues": {"dedicated": {"foundation": ["always"]}},
}


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[Cluster]:
    """The control plane, while it knows Kueue's kinds."""
    bases = kueue_module() / "config/components/crd/bases"
    names = []
    for path in sorted(bases.glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        names.append(definition["metadata"]["name"])
    assert {f"{plural}.kueue.x-k8s.io" for plural in PLURALS.values()} <= set(names)

    def served() -> bool:
        return all(cluster.admin.get(f"{API}/{plural}").status_code == 200 for plural in PLURALS.values())

    eventually("Kueue's kinds are served", served)
    yield cluster
    for name in names:
        cluster.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")


def check(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """The API server takes it: no field is unknown, no value wrong."""
    namespace = manifest["metadata"].get("namespace")
    where = "/namespaces/default" if namespace else ""
    body = manifest | {"metadata": manifest["metadata"] | ({"namespace": "default"} if namespace else {})}
    cluster.create(f"{API}{where}/{PLURALS[manifest['kind']]}?dryRun=All&fieldValidation=Strict", body)


def test_what_a_stack_tells_kueue_is_allowed(kueue: Cluster) -> None:
    plan = queue_plan(Aws.model_validate(AWS, by_alias=True, by_name=False))
    assert plan is not None
    made = list(manifests(plan, "training"))
    assert {each["kind"] for each in made} == set(PLURALS) - {"Cohort"}
    for manifest in made:
        check(kueue, manifest)


def test_what_the_page_shows_is_allowed(kueue: Cluster) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = [each for block in blocks for each in yaml.safe_load_all(block)]
    of_kueue = [each for each in shown if each["apiVersion"].startswith("kueue.")]
    assert {each["kind"] for each in of_kueue} >= {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    for manifest in of_kueue:
        check(kueue, manifest)


def test_what_kueue_does_not_know_is_refused(kueue: Cluster) -> None:
    """Else the two tests above would say nothing."""
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "shared"}}
    with pytest.raises(ApiRefusalError, match="cohort"):
        check(kueue, queue | {"spec": {"cohort": "trainyard"}})  # its name before v1beta2
    with pytest.raises(ApiRefusalError, match="queueingStrategy"):
        check(kueue, queue | {"spec": {"queueingStrategy": "Random"}})
