"""Prometheus and Grafana in a cluster: the locked chart, and what it is told of Trainyard's own parts.

The operator behind the chart takes only monitors and rules that carry a certain label; others it passes over in
silence. Here label and selector are one constant; a test resolves every selector against the pods that are declared.
"""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi_kubernetes.apiextensions import CustomResource
from pulumi_kubernetes.core.v1 import (
    ConfigMap,
    ContainerArgs,
    ContainerPortArgs,
    HTTPGetActionArgs,
    ProbeArgs,
    ResourceRequirementsArgs,
    VolumeMountArgs,
)
from pulumi_kubernetes.helm.v3 import Release, ReleaseArgs, RepositoryOptsArgs
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.networking.v1 import (
    NetworkPolicy,
    NetworkPolicyIngressRuleArgs,
    NetworkPolicyPeerArgs,
    NetworkPolicyPortArgs,
    NetworkPolicySpecArgs,
)

from infra.catalog.versions import Chart
from infra.in_cluster.device_plugins import agent_daemon_set
from infra.in_cluster.namespaces import namespace_of_level
from infra.in_cluster.pods import MANAGED_BY, OwnPods, pod_field, restricted_container
from infra.monitoring.dashboards import DASHBOARDS
from infra.monitoring.rules import groups
from infra.monitoring.scraping import FABRIC, JOB_LABEL, SCRAPE_SECONDS, TARGETS, TRAINING, Target
from infra.wiring.etcd_layout import METRICS_PORT
from infra.wiring.monitoring_plan import MonitoringPlan
from infra.wiring.naming import MONITORING_NAMESPACE
from infra.wiring.node_agents import OnNodes
from infra.wiring.scheduling import POOL_LABEL
from training.metrics.fabric import PORT as FABRIC_PORT

_API = "monitoring.coreos.com/v1"
_RELEASE = "kube-prometheus-stack"
SELECTED = {"release": _RELEASE}
"""What Prometheus looks for; the chart gives it to its own monitors as well."""
_DASHBOARD = {"grafana_dashboard": "1"}
_CONTROLLER_PORT = 8080
_PRICED = f"nodes=[{POOL_LABEL},node.kubernetes.io/instance-type]"
"""Labels of nodes by which rules know what a machine costs."""


class Monitoring(pulumi.ComponentResource):
    """The chart, PodMonitors, rules, dashboards, and the doors that Prometheus needs."""

    def __init__(
        self, name: str, *, plan: MonitoringPlan, chart: Chart, pods: OwnPods, opts: pulumi.ResourceOptions
    ) -> None:
        """Makes them.

        Args:
            name: of the component.
            plan: what is kept, warned of, and what machines cost.
            chart: kube-prometheus-stack.
            pods: where pods without a machine of their own run, and the namespace that has closed doors.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:Monitoring", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        # The node exporter looks at the machine itself.
        namespace = namespace_of_level(MONITORING_NAMESPACE, {"enforce": "privileged"}, child)
        there = pulumi.ResourceOptions(parent=self, depends_on=[namespace])
        _doors(pods, there)
        release = Release(
            _RELEASE,
            ReleaseArgs(
                name=_RELEASE,
                chart=chart.reference,
                version=chart.version,
                repository_opts=None if chart.is_oci else RepositoryOptsArgs(repo=chart.repository),
                namespace=MONITORING_NAMESPACE,
                atomic=True,
                values=values(plan, dict(pods.node_selector)),
            ),
            opts=there,
        )
        after = pulumi.ResourceOptions(parent=self, depends_on=[release])  # the chart brings the definitions
        for target in TARGETS:
            _resource("PodMonitor", target.name, pod_monitor(target), after)
        _resource("PrometheusRule", "trainyard", groups(plan.limits, plan.prices), after)
        for dashboard in DASHBOARDS:
            ConfigMap(
                dashboard.uid,
                metadata=ObjectMetaArgs(
                    name=dashboard.uid, namespace=MONITORING_NAMESPACE, labels={**MANAGED_BY, **_DASHBOARD}
                ),
                data={f"{dashboard.uid}.json": dashboard.json()},
                opts=there,
            )
        self.register_outputs({})


class FabricExporter(pulumi.ComponentResource):
    """What the EFA interfaces of each machine have counted; from the controller's image."""

    def __init__(
        self, name: str, *, namespace: pulumi.Input[str], image: str, on: OnNodes, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainyard:in_cluster:FabricExporter", name, None, opts)
        probe = HTTPGetActionArgs(path="/healthz", port=FABRIC_PORT)
        container = ContainerArgs(
            name=FABRIC.name,
            image=image,
            command=["python", "-m", "training.metrics.fabric", "--sys=/host/sys"],
            env=[pod_field("POD_IP", "status.podIP")],
            ports=[ContainerPortArgs(name="metrics", container_port=FABRIC_PORT)],
            readiness_probe=ProbeArgs(http_get=probe, period_seconds=10),
            liveness_probe=ProbeArgs(http_get=probe, period_seconds=20),
            resources=ResourceRequirementsArgs(requests={"cpu": "10m", "memory": "32Mi"}, limits={"memory": "128Mi"}),
            security_context=restricted_container(),
            # A pod's own /sys shows interfaces without their counters.
            volume_mounts=[VolumeMountArgs(name="sys", mount_path="/host/sys", read_only=True)],
        )
        agent_daemon_set(FABRIC.name, namespace, on, container, ["sys"], parent=self)
        self.register_outputs({})


def values(plan: MonitoringPlan, system: dict[str, str]) -> dict[str, Any]:
    """The chart's values; what is not said here is its default.

    Args:
        plan: what is kept.
        system: labels of the machines on which the parts run.
    """
    claim = {
        "storageClassName": plan.storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{plan.storage_gib}Gi"}},
    }
    alertmanager: dict[str, Any] = {"nodeSelector": system}
    if plan.alertmanager_secret is not None:
        alertmanager |= {"useExistingSecret": True, "configSecret": plan.alertmanager_secret}
    selected = {"matchLabels": SELECTED}
    absent = {"enabled": False}
    return {
        "prometheus": {
            "prometheusSpec": {
                "nodeSelector": system,
                "scrapeInterval": f"{SCRAPE_SECONDS}s",
                "retention": f"{plan.retention_days}d",
                "retentionSize": f"{plan.storage_gib * 9 // 10}GiB",  # room for what is not compacted yet
                "storageSpec": {"volumeClaimTemplate": {"spec": claim}},
                "serviceMonitorSelector": selected,
                "podMonitorSelector": selected,
                "ruleSelector": selected,
                "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
            }
        },
        "alertmanager": {"alertmanagerSpec": alertmanager},
        "prometheusOperator": {
            "nodeSelector": system,
            # Its webhook would have to be let in, and holds objects to what the tests here hold them to.
            "admissionWebhooks": absent,
            "tls": absent,
        },
        "kube-state-metrics": {"nodeSelector": system, "metricLabelsAllowlist": [_PRICED]},
        "prometheus-node-exporter": {
            "tolerations": [{"operator": "Exists"}],
            "extraArgs": ["--collector.mountstats"],  # EFS
        },
        # EKS keeps these to itself: there would be nothing to scrape, and an alert for ever.
        **dict.fromkeys(("kubeControllerManager", "kubeScheduler", "kubeEtcd", "kubeProxy"), absent),
        "grafana": _grafana(system),
    }


def _grafana(system: dict[str, str]) -> dict[str, Any]:
    """Nobody logs in: who may forward a port sees everything and changes nothing. So there is no password to keep."""
    return {
        "nodeSelector": system,
        "grafana.ini": {
            "security": {"disable_initial_admin_creation": True},
            "auth": {"disable_login_form": True},
            "auth.basic": {"enabled": False},
            "auth.anonymous": {"enabled": True, "org_role": "Viewer"},
            "analytics": {"check_for_updates": False, "reporting_enabled": False},
        },
        "sidecar": {
            # Reloading asks for the administrator; Grafana looks at the folder by itself.
            "dashboards": {"enabled": True, "label": "grafana_dashboard", "labelValue": "1", "skipReload": True},
            "datasources": {"enabled": True, "initDatasources": True, "skipReload": True},
        },
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    }


def pod_monitor(target: Target) -> dict[str, Any]:
    """The `spec` of a PodMonitor: pods by their labels, ports by their names."""
    relabelings: list[dict[str, Any]] = [
        {"targetLabel": "job", "replacement": target.name},
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
    ]
    if target is TRAINING:
        relabelings.append({"sourceLabels": [meta_label(JOB_LABEL)], "targetLabel": "training_job"})
    return {
        "namespaceSelector": {"any": True} if target.namespace is None else {"matchNames": [target.namespace]},
        "selector": target.selector(),
        "podMetricsEndpoints": [
            {
                "port": port,
                "interval": f"{SCRAPE_SECONDS}s",
                "honorLabels": target.own_namespace,
                "relabelings": relabelings,
            }
            for port in target.ports
        ],
    }


def meta_label(label: str) -> str:
    """How Prometheus calls a pod's label while it looks for targets."""
    return "__meta_kubernetes_pod_label_" + "".join(each if each.isalnum() else "_" for each in label)


def _resource(kind: str, name: str, spec: dict[str, Any], opts: pulumi.ResourceOptions) -> None:
    CustomResource(
        f"{kind.lower()}-{name}",
        api_version=_API,
        kind=kind,
        metadata=ObjectMetaArgs(name=name, namespace=MONITORING_NAMESPACE, labels={**MANAGED_BY, **SELECTED}),
        spec=spec,
        opts=opts,
    )


def _doors(pods: OwnPods, opts: pulumi.ResourceOptions) -> None:
    """Prometheus reaches etcd and the controller; nobody outside of its namespace reaches Prometheus or Grafana."""

    def policy(name: str, namespace: pulumi.Input[str], rule: NetworkPolicyIngressRuleArgs) -> None:
        NetworkPolicy(
            name,
            metadata=ObjectMetaArgs(name=name, namespace=namespace, labels=MANAGED_BY),
            spec=NetworkPolicySpecArgs(pod_selector=LabelSelectorArgs(), policy_types=["Ingress"], ingress=[rule]),
            opts=opts,
        )

    monitoring = NetworkPolicyPeerArgs(
        namespace_selector=LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": MONITORING_NAMESPACE})
    )
    ports = [NetworkPolicyPortArgs(protocol="TCP", port=port) for port in (_CONTROLLER_PORT, METRICS_PORT)]
    policy("prometheus-scrapes", pods.namespace, NetworkPolicyIngressRuleArgs(from_=[monitoring], ports=ports))
    policy("monitoring-only-itself", MONITORING_NAMESPACE, NetworkPolicyIngressRuleArgs(from_=[monitoring]))
