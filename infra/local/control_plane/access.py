"""What the parts of the local cluster may do beyond Kubernetes' own roles."""

from pathlib import Path
from typing import Any, cast

from lightkube import Client, KubeConfig
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding

from infra.local.cloud import ROLE_RULES
from infra.local.cloud import USER as CLOUD_USER

# The API server's own user towards kubelets (logs, exec): nothing but Kubernetes' role for that.
KUBELET_CLIENT_USER = "trainyard:apiserver-kubelet-client"
_FIELD_MANAGER = "trainyard-local"


def grant(kubeconfig: Path) -> None:
    """Write roles and bindings (again is harmless), as the administrator."""
    client = Client(config=KubeConfig.from_file(kubeconfig), trust_env=False, field_manager=_FIELD_MANAGER)
    role = {"metadata": {"name": CLOUD_USER}, "rules": ROLE_RULES}
    client.apply(cast(ClusterRole, ClusterRole.from_dict(role)), force=True)
    for binding in (_binding(CLOUD_USER, CLOUD_USER), _binding(KUBELET_CLIENT_USER, "system:kubelet-api-admin")):
        client.apply(cast(ClusterRoleBinding, ClusterRoleBinding.from_dict(binding)), force=True)


def _binding(user: str, role: str) -> dict[str, Any]:
    return {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
