"""Monitoring of an AWS stack: every selector finds what is declared; a monitor that finds nothing says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from recorded_program import Recorded, run_stack_file

from infra.clusters import CHECKOUT
from infra.in_cluster.monitoring import meta_label, values
from infra.monitoring.dashboards import DASHBOARDS
from infra.monitoring.scraping import TARGETS, TRAINING
from infra.settings.aws import Aws
from infra.wiring.monitoring_plan import monitoring_plan
from training.controller.api import ElasticJob
from training.controller.pods import worker_pod

pytest_plugins = ["stacks_fixture"]


@pytest.fixture(scope="module")
def prod() -> Recorded:
    """The example stack `prod`, with monitoring."""
    config = yaml.safe_load((CHECKOUT / "Pulumi.prod.yaml").read_text(encoding="utf-8"))["config"]
    return run_stack_file("prod", aws=config["trainyard:aws"] | {"monitoring": {"enabled": True}})


Pod = tuple[str, dict[str, str], list[dict[str, Any]]]


def pods(stack: Recorded) -> list[Pod]:
    """Namespace, labels and container ports of all pods: the stack's own, and a worker of a job."""
    found = []
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        for each in stack.of(kind):
            template = each.inputs["spec"]["template"]
            found.append((each.inputs["metadata"]["namespace"], template["metadata"]["labels"], template["spec"]))
    spec = {"containers": [{"name": "elastic", "image": "training"}]}
    job = ElasticJob.model_validate(
        {
            "metadata": {"name": "digits", "namespace": "training", "uid": "01234567-89"},
            "spec": {
                "rdzvEndpoint": "etcd:2379",
                "replicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": spec}}},
            },
        }
    )
    worker = worker_pod(job, 0, 1, "1:1")
    found.append(("training", worker["metadata"]["labels"], worker["spec"]))
    return [
        (namespace, labels, [p for c in pod["containers"] for p in c.get("ports", [])])
        for namespace, labels, pod in found
    ]


def selected(monitor: dict[str, Any], every: list[Pod]) -> list[Pod]:
    """The pods that a PodMonitor selects, as Kubernetes resolves its selectors."""
    names, selector = monitor["namespaceSelector"], monitor["selector"]
    return [
        pod
        for pod in every
        if (names.get("any") or pod[0] in names["matchNames"])
        and selector.get("matchLabels", {}).items() <= pod[1].items()
        and all(each["operator"] == "Exists" and each["key"] in pod[1] for each in selector.get("matchExpressions", ()))
    ]


def chart(stack: Recorded) -> dict[str, Any]:
    return dict(stack.one("Release", "kube-prometheus-stack").inputs)


def test_every_monitor_finds_pods_with_the_ports_that_it_names(prod: Recorded) -> None:
    every = pods(prod)
    monitors = {each.inputs["metadata"]["name"]: each.inputs["spec"] for each in prod.of("PodMonitor")}
    assert set(monitors) == {target.name for target in TARGETS}
    for name, monitor in monitors.items():
        found = selected(monitor, every)
        assert len(found) == 1, f"{name} selects {len(found)} kinds of pods"
        ports = {port["name"] for port in found[0][2]}
        assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports, name
    for target in TARGETS:
        plain = [pod for pod in every if target.selects(pod[0], pod[1])]
        assert plain == selected(monitors[target.name], every), "the local stack looks for the same pods"


def test_prometheus_takes_the_monitors_and_the_rules(prod: Recorded) -> None:
    """The operator passes over what does not carry the label, in silence."""
    spec = chart(prod)["values"]["prometheus"]["prometheusSpec"]
    wanted = {
        "PodMonitor": spec["podMonitorSelector"]["matchLabels"],
        "PrometheusRule": spec["ruleSelector"]["matchLabels"],
        "ServiceMonitor": spec["serviceMonitorSelector"]["matchLabels"],
    }
    for kind in ("PodMonitor", "PrometheusRule"):
        assert prod.of(kind)
        for each in prod.of(kind):
            labels, namespace = each.inputs["metadata"]["labels"], each.inputs["metadata"]["namespace"]
            assert wanted[kind].items() <= labels.items(), each.name
            assert namespace == chart(prod)["namespace"]
    # The chart labels its own by the name of its release.
    assert wanted["ServiceMonitor"] == {"release": chart(prod)["name"]}


def test_series_name_the_job_that_they_are_of(prod: Recorded) -> None:
    monitor = next(each.inputs["spec"] for each in prod.of("PodMonitor") if each.name.endswith(TRAINING.name))
    for endpoint in monitor["podMetricsEndpoints"]:
        rules = {each["targetLabel"]: each for each in endpoint["relabelings"]}
        (label,) = rules["training_job"]["sourceLabels"]
        assert (
            label == "__meta_kubernetes_pod_label_elastic_pytorch_org_job_name" == meta_label(TRAINING.has_label or "")
        )
        assert rules["job"]["replacement"] == "training"


def test_closed_doors_are_open_for_what_prometheus_asks(prod: Recorded) -> None:
    """In a namespace without another way in every port that a monitor names must be let through."""
    closed = {
        each.inputs["metadata"]["namespace"]
        for each in prod.of("NetworkPolicy")
        if not each.inputs["spec"].get("ingress")
    }
    assert closed
    policy = next(each for each in prod.of("NetworkPolicy") if each.name == "prometheus-scrapes")
    assert policy.inputs["metadata"]["namespace"] in closed
    (rule,) = policy.inputs["spec"]["ingress"]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": chart(prod)["namespace"]}}}
    ]
    every = pods(prod)
    for monitor in (each.inputs["spec"] for each in prod.of("PodMonitor")):
        asked = {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]}
        for namespace, _, ports in selected(monitor, every):
            if namespace in closed:
                numbers = {port["containerPort"] for port in ports if port["name"] in asked}
                assert numbers <= {each["port"] for each in rule["ports"]}


def test_each_dashboard_is_where_grafana_looks(prod: Recorded) -> None:
    sidecar = chart(prod)["values"]["grafana"]["sidecar"]["dashboards"]
    found = {
        name: json.loads(text)
        for each in prod.of("ConfigMap")
        if each.inputs["metadata"].get("labels", {}).get(sidecar["label"]) == sidecar["labelValue"]
        for name, text in each.inputs["data"].items()
    }
    assert found == {f"{dashboard.uid}.json": dashboard.model() for dashboard in DASHBOARDS}


def test_grafana_has_no_password_that_everybody_knows(prod: Recorded) -> None:
    ini = chart(prod)["values"]["grafana"]["grafana.ini"]
    assert ini["security"]["disable_initial_admin_creation"]
    assert not ini["auth.basic"]["enabled"]
    assert ini["auth.anonymous"] == {"enabled": True, "org_role": "Viewer"}


def test_rules_know_what_the_machines_cost(prod: Recorded) -> None:
    rules = prod.one("PrometheusRule", "prometheusrule-trainyard").inputs["spec"]["groups"][0]["rules"]
    prices = {
        each["labels"]["pool"]: each["expr"] for each in rules if each["record"] == "trainyard:machine_usd_per_hour"
    }
    assert set(prices) == {"gpu-block", "gpu-spot"}
    allowed = chart(prod)["values"]["kube-state-metrics"]["metricLabelsAllowlist"]
    assert allowed == ["nodes=[trainyard.dev/pool,node.kubernetes.io/instance-type]"]


def test_no_monitoring_without_being_asked(dev: Recorded) -> None:
    assert not dev.of("PodMonitor")
    assert "fabric-exporter" not in {each.name for each in dev.of("DaemonSet")}


@pytest.mark.parametrize(
    ("given", "size", "retention", "secret"),
    [
        ({}, "50Gi", 15, None),
        ({"storageGib": 100, "retentionDays": 30, "alertmanagerSecret": "pager"}, "100Gi", 30, "pager"),
    ],
)
def test_what_is_kept_and_who_is_told_is_the_stacks(
    given: dict[str, Any], size: str, retention: int, secret: str | None
) -> None:
    text = {"region": "us-east-2", "network": {"zones": ["us-east-2a", "us-east-2b"]}}
    aws = Aws.model_validate(text | {"monitoring": {"enabled": True, **given}}, by_alias=True, by_name=False)
    plan = monitoring_plan(aws)
    assert plan is not None
    made = values(plan, {})
    spec = made["prometheus"]["prometheusSpec"]
    claim = spec["storageSpec"]["volumeClaimTemplate"]["spec"]
    assert (claim["resources"]["requests"]["storage"], spec["retention"]) == (size, f"{retention}d")
    assert made["alertmanager"]["alertmanagerSpec"].get("configSecret") == secret
