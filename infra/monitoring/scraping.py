"""Which pods are asked for metrics: by labels and names of ports, the same in a cluster and on the local stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.wiring.naming import NODE_AGENTS_NAMESPACE, SYSTEM_NAMESPACE
from training.controller.api import LABEL_OUR_JOB_NAME

NAME_LABEL = "app.kubernetes.io/name"
JOB_LABEL = LABEL_OUR_JOB_NAME
"""Names the job that a pod belongs to: ElasticJob and PyTorchJob alike."""
SCRAPE_SECONDS = 15


@dataclass(frozen=True)
class Target:
    """Pods that are asked alike.

    Attributes:
        name: the label `job` of their series.
        namespace: theirs; None: any.
        labels: of the pods, with their values.
        has_label: a label that they have, whatever its value.
        ports: names of the container ports that answer.
        own_namespace: whether a label `namespace` of the metric counts for more than the pod's.
    """

    name: str
    namespace: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    has_label: str | None = None
    ports: tuple[str, ...] = ("metrics",)
    own_namespace: bool = False

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod is one of them."""
        return (
            self.namespace in (None, namespace)
            and self.labels.items() <= labels.items()
            and (self.has_label is None or self.has_label in labels)
        )

    def selector(self) -> dict[str, object]:
        """As Kubernetes writes it."""
        selector: dict[str, object] = {"matchLabels": dict(self.labels)} if self.labels else {}
        if self.has_label is not None:
            selector["matchExpressions"] = [{"key": self.has_label, "operator": "Exists"}]
        return selector


def _own(name: str, namespace: str, *, own_namespace: bool = False) -> Target:
    return Target(name, namespace, {NAME_LABEL: name}, own_namespace=own_namespace)


TRAINING = Target("training", None, has_label=JOB_LABEL, ports=("metrics", "worker-metrics"))
CONTROLLER = _own("elastic-controller", SYSTEM_NAMESPACE, own_namespace=True)
ETCD = _own("etcd", SYSTEM_NAMESPACE)
DCGM = _own("dcgm-exporter", NODE_AGENTS_NAMESPACE)
FABRIC = _own("fabric-exporter", NODE_AGENTS_NAMESPACE)

TARGETS = (CONTROLLER, ETCD, TRAINING, DCGM, FABRIC)
