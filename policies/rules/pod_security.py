"""What pods may do on their machine, and what is written into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from policies.registry import Topic
from policies.rule import Finding, RawProps, Resource, Setting, Settings, Stack
from policies.values import Value
from policies.wording import named_like_secret, secrets_in
from policies.workloads import KUBERNETES, NODE_AGENTS, Container, Pod, containers, namespace_of, pods

NAMESPACE = "kubernetes:core/v1:Namespace"
topic = Topic("Pod security")
_AGENTS = Setting(list(NODE_AGENTS), "Namespaces of agents that need the machine itself.", "array")
_STANDARDS = "https://kubernetes.io/docs/concepts/security/pod-security-standards/"
_ENFORCE = "pod-security.kubernetes.io/enforce"


@topic.rule(
    "namespace-pod-security",
    "Namespaces enforce a pod security level.",
    severity="high",
    types=(NAMESPACE,),
    frameworks=("CIS Kubernetes Benchmark 5.2.1",),
    settings={"privileged": _AGENTS, "levels": Setting(["baseline", "restricted"], "Levels that are enough.", "array")},
    why="Rules of this pack see what Pulumi makes. Who submits a job with kubectl is stopped only by the level of the "
    "namespace.",
    wrong="""
training: {type: "kubernetes:core/v1:Namespace", properties: {metadata: {name: training}}}
""",
    right="""
training:
  type: kubernetes:core/v1:Namespace
  properties: {metadata: {name: training, labels: {pod-security.kubernetes.io/enforce: baseline}}}
""",
    steps=f"Add the label {_ENFORCE}: baseline (restricted where no pod needs more).",
    references=("https://kubernetes.io/docs/concepts/security/pod-security-admission/",),
    mend=lambda props: _enforce(props),  # noqa: PLW0108 - declared below
)
def namespace_level(namespace: Resource, settings: Settings) -> Iterator[str]:
    """`privileged` only where agents live."""
    level = namespace.props.at("metadata", "labels", _ENFORCE).text()
    if level in settings["levels"]:
        return
    if level == "privileged" and namespace.props.at("metadata", "name").text() in settings["privileged"]:
        return
    yield f"label {_ENFORCE} is {level or 'not set'}"


def _enforce(props: RawProps) -> bool:
    metadata: Any = props.setdefault("metadata", {})
    labels = metadata.setdefault("labels", {}) if isinstance(metadata, dict) else None
    if not isinstance(labels, dict) or labels.get(_ENFORCE):
        return False  # a level that somebody chose is not changed behind their back
    labels[_ENFORCE] = "baseline"
    return True


@topic.rule(
    "no-host-access",
    "Pods do not share the machine's network, processes or files, and are not privileged.",
    severity="critical",
    each=lambda stack: [(stack, one) for one in stack.of(*KUBERNETES)],
    frameworks=("CKV_K8S_16", "CKV_K8S_17", "CKV_K8S_18", "CKV_K8S_19", "CIS Kubernetes Benchmark 5.2.2"),
    settings={"agents": _AGENTS},
    why="A privileged training pod is root on a machine that others train on. EFA and GPUs do not need it: the device "
    "plugins hand them out.",
    wrong="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    metadata: {namespace: training}
    spec: {hostNetwork: true, containers: [{name: train, securityContext: {privileged: true}}]}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    metadata: {namespace: training}
    spec: {containers: [{name: train, securityContext: {privileged: false}}]}
""",
    steps="Take the members away; for devices ask the device plugin, for shared memory use an emptyDir.",
    references=(_STANDARDS,),
)
def no_host_access(subject: tuple[Stack, Resource], settings: Settings) -> Iterator[Finding]:
    """Everything that level `baseline` forbids of this kind."""
    stack, owner = subject
    found = [message for pod in pods(owner, patches=True) for message in _host_access(pod)]
    if found and namespace_of(stack, owner) not in settings["agents"]:
        yield from (Finding(message, owner) for message in found)


_LIKE_ROOT = {
    "ALL",
    "BPF",
    "DAC_READ_SEARCH",
    "NET_ADMIN",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_PTRACE",
    "SYS_RAWIO",
}
"""Capabilities by which a container reaches what is outside of it."""


def _added(context: Value) -> list[str]:
    return [one.upper().removeprefix("CAP_") for one in context.at("capabilities", "add").texts()]


def _host_access(pod: Pod) -> Iterator[str]:
    for key in ("hostNetwork", "hostIPC", "hostPID"):
        if pod.spec.at(key).flag():
            yield f"{key} is true"
    for name, one in pod.volumes().items():
        if one.at("hostPath").is_set:
            yield f"volume {name} is a hostPath"
    for container in pod.containers():
        context = container.value.at("securityContext")
        if context.at("privileged").flag():
            yield f"container {container.name} is privileged"
        if strong := [one for one in _added(context) if one in _LIKE_ROOT]:
            yield f"container {container.name} has {', '.join(strong)}: as good as privileged"


@topic.rule(
    "pod-runs-restricted",
    "Pods run without root, without capabilities and with the default seccomp profile.",
    severity="medium",
    types=KUBERNETES,
    each=pods,
    frameworks=("CKV_K8S_20", "CKV_K8S_23", "CKV_K8S_31", "CKV_K8S_37", "CIS Kubernetes Benchmark 5.2.6"),
    settings={
        "agents": _AGENTS,
        "capabilities": Setting(
            ["NET_BIND_SERVICE", "IPC_LOCK"], "Capabilities that may be added; InfiniBand wants IPC_LOCK.", "array"
        ),
    },
    why="It is what remains when an unpickled file or a dependency turns out to be hostile: a user without rights in "
    "a container.",
    wrong="""
pod:
  type: kubernetes:core/v1:Pod
  properties: {metadata: {namespace: training}, spec: {containers: [{name: train, image: "train:1"}]}}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    metadata: {namespace: training}
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers: [{name: train, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
""",
    steps="Set runAsNonRoot, seccompProfile RuntimeDefault, allowPrivilegeEscalation: false and capabilities.drop: "
    "[ALL].",
    references=(_STANDARDS,),
    mend=lambda props: _restrict(props, 0),
)
def runs_restricted(pod: Pod, settings: Settings) -> Iterator[str]:
    """Level `restricted`; of the pod or of the container, as Kubernetes reads it."""
    found = list(_unrestricted(pod, settings["capabilities"]))
    if found and pod.namespace not in settings["agents"]:
        yield from found


def _unrestricted(pod: Pod, capabilities: Sequence[str]) -> Iterator[str]:
    shared = pod.spec.at("securityContext")
    for container in pod.containers():
        own = container.value.at("securityContext")
        missing = []
        if own.at("runAsNonRoot").flag() is not True and not (
            shared.at("runAsNonRoot").flag() and own.at("runAsNonRoot").flag() is None
        ):
            missing.append("runAsNonRoot: true")
        if own.at("runAsUser").number() == 0:
            missing.append("a runAsUser other than 0")
        profile = own.at("seccompProfile", "type").text() or shared.at("seccompProfile", "type").text()
        if profile not in ("RuntimeDefault", "Localhost"):
            missing.append("seccompProfile RuntimeDefault")
        if own.at("allowPrivilegeEscalation").flag() is not False:
            missing.append("allowPrivilegeEscalation: false")
        if "ALL" not in own.at("capabilities", "drop").texts():
            missing.append("capabilities.drop: [ALL]")
        if missing:
            yield f"container {container.name} lacks {', '.join(missing)}"
        if more := [one for one in _added(own) if one not in capabilities]:
            yield f"container {container.name} adds the capabilities {', '.join(more)}"


_CHOSEN = {"privileged", "allowPrivilegeEscalation", "capabilities", "runAsUser"}
"""Members by which somebody has decided what a container may do."""


def _restrict(node: object, depth: int) -> bool:
    """Set what cannot break a program that runs without root: the seccomp profile and no escalation.

    Whether it can run without root and without capabilities only its author knows.
    """
    if depth > 12:
        return False
    changed = False
    if isinstance(node, dict):
        spec = node.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            shared = spec.setdefault("securityContext", {})
            if isinstance(shared, dict) and "seccompProfile" not in shared:
                shared["seccompProfile"], changed = {"type": "RuntimeDefault"}, True
            for key in ("containers", "initContainers"):
                several = spec.get(key)
                for one in several if isinstance(several, list) else []:
                    own = one.setdefault("securityContext", {}) if isinstance(one, dict) else None
                    if isinstance(own, dict) and not (own.keys() & _CHOSEN):
                        own["allowPrivilegeEscalation"], changed = False, True
    inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    for one in inner:
        changed = _restrict(one, depth + 1) or changed
    return changed


@topic.rule(
    "no-secrets-in-pod-environment",
    "Secrets are not written into the environment of pods.",
    severity="critical",
    types=KUBERNETES,
    each=lambda owner: containers(owner, patches=True),
    frameworks=("CKV_K8S_35",),
    why="Whoever may look at the pod reads it, it is in the record of the stack and in every crash report.",
    wrong="""
pod:
  type: kubernetes:core/v1:Pod
  properties: {spec: {containers: [{name: train, env: [{name: WANDB_API_KEY,
      value: 0123456789abcdef0123456789abcdef01234567}]}]}}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    spec: {containers: [{name: train, env: [{name: WANDB_API_KEY, valueFrom: {secretKeyRef: {name: wandb,
        key: api-key}}}]}]}
""",
    steps="Put it into a Secret (better: a store, through the CSI driver) and refer to it; make the old one invalid.",
    references=("https://kubernetes.io/docs/concepts/configuration/secret/",),
)
def no_secrets_in_environment(container: Container, _: Settings) -> Iterator[str]:
    """By the variable's name, and by the shape of the value; the value itself is never shown."""
    for name, one in container.variables():
        if not one.at("value").is_set:
            continue
        value = one.at("value").text()
        if found := next(secrets_in(value), None):
            yield f"container {container.name}: {name} holds what looks like {found}"
        elif named_like_secret(name, value):
            yield f"container {container.name}: {name} is called like a secret and has a value"
