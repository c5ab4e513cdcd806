"""Pods with GPUs: what they ask for, where they may run, what they set."""

from __future__ import annotations

import re
from collections.abc import Iterator

from policies.registry import Topic
from policies.rule import Setting, Settings
from policies.workloads import GPU, KUBERNETES, NODE_AGENTS, Container, Pod, Toleration, containers, pods, quantity

topic = Topic("Pods and GPUs")
_GPU_DOCS = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"
_PLUGIN_VARIABLES = "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md"
_PINS = re.compile(
    r"^(node\.kubernetes\.io/instance-type|nvidia\.com/gpu\.(product|family|memory)|k8s\.amazonaws\.com/accelerator"
    r"|trainyard\.dev/pool|eks\.amazonaws\.com/(nodegroup|instance-.*)|karpenter\.(sh/nodepool|k8s\.aws/instance-.*)"
    r"|cloud\.google\.com/gke-(accelerator|nodepool)|kubernetes\.azure\.com/agentpool|agentpool)$"
)


@topic.rule(
    "gpu-in-limits",
    "GPUs stand in the limits, and requests say the same or nothing.",
    severity="high",
    types=KUBERNETES,
    each=containers,
    why="GPUs cannot be shared by overcommitment: Kubernetes refuses a pod whose requests and limits differ, and one "
    "with requests only, when the controller makes it: the job exists and has no pods.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    resources: {requests: {nvidia.com/gpu: 8}}}]}}}
""",
    right="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    resources: {limits: {nvidia.com/gpu: 8}}}]}}}
""",
    steps="Write resources.limits.nvidia.com/gpu; leave it out of requests, or write the same number.",
    references=(_GPU_DOCS,),
)
def gpu_in_limits(container: Container, _: Settings) -> Iterator[str]:
    """Of any device of NVIDIA, MIG slices as well."""
    for which in ("requests", "limits"):
        for key in container.value.at("resources", which).members():
            if not key.startswith("nvidia.com/"):
                continue
            limit, request = quantity(container.asked("limits", key)), quantity(container.asked("requests", key))
            if limit is None:
                yield f"container {container.name}: {key} is not in the limits"
            elif which == "limits" and (
                limit != int(limit) or (container.asked("requests", key).is_set and request != limit)
            ):
                asked = "nothing" if request is None else f"{request:g}"
                yield f"container {container.name}: {key} is {limit:g} in the limits and {asked} in the requests"


@topic.rule(
    "resources-set",
    "Containers ask for CPU and memory, and have a memory limit.",
    severity="medium",
    types=KUBERNETES,
    each=containers,
    frameworks=("CKV_K8S_10", "CKV_K8S_12", "CKV_K8S_13"),
    why="Without requests a pod counts as nothing: it lands where there is no room, the autoscaler adds no machine "
    "for it, and the kernel ends it first. A data loader without a memory limit takes the machine with it.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train, image: "train:1"}]}}}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties: {spec: {containers: [{name: train, resources: {requests: {cpu: 8, memory: 64Gi},
      limits: {memory: 64Gi}}}]}}
""",
    steps="Set requests.cpu, requests.memory and limits.memory: `trainyard template POOL` has those of a whole "
    "machine.",
    references=("https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",),
)
def resources_set(container: Container, _: Settings) -> Iterator[str]:
    """A limit stands for the request. A CPU limit only slows down, and is not asked for."""
    missing = [
        f"{which}.{key}"
        for which, key in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory"))
        if quantity(container.asked(which, key)) is None and quantity(container.asked("limits", key)) is None
    ]
    if missing:
        yield f"container {container.name} lacks {', '.join(missing)}"


@topic.rule(
    "gpu-pods-tolerate-taint",
    "Pods with GPUs tolerate the taint of GPU machines.",
    severity="high",
    types=KUBERNETES,
    each=pods,
    settings={"key": Setting(GPU, "Key of the taint.", "string")},
    why="GPU machines are tainted so that nothing else runs there. A job without the toleration waits forever, next "
    "to idle machines.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    resources: {limits: {nvidia.com/gpu: 1}}}]}}}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    spec:
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      containers: [{name: train, resources: {limits: {nvidia.com/gpu: 1}}}]
""",
    steps="Add the toleration; Kueue adds it by itself where its flavour names the taint (then switch the rule off).",
    references=("https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",),
)
def tolerate_taint(pod: Pod, settings: Settings) -> Iterator[str]:
    """Whatever value the taint has."""
    if pod.has_gpus() and not any(_answers(one, settings["key"]) for one in pod.tolerations()):
        yield f"{pod.where or 'spec'}.tolerations has none for {settings['key']}"


@topic.rule(
    "only-gpu-pods-tolerate-taint",
    "Pods without GPUs stay off GPU machines.",
    severity="medium",
    types=KUBERNETES,
    each=pods,
    settings={
        "key": Setting(GPU, "Key of the taint.", "string"),
        "agents": Setting(list(NODE_AGENTS), "Namespaces of agents of the machines.", "array"),
    },
    why="A dashboard that tolerates everything keeps a machine of 50 USD an hour from being taken away.",
    wrong="""
board:
  type: kubernetes:apps/v1:Deployment
  properties: {spec: {template: {spec: {tolerations: [{operator: Exists}], containers: [{name: board,
      image: "board:1"}]}}}}
""",
    right="""
board: {type: "kubernetes:apps/v1:Deployment", properties: {spec: {template: {spec: {containers: [{name: board,
    image: "board:1"}]}}}}}
""",
    steps="Take the toleration away. Agents that belong on every machine are DaemonSets.",
)
def only_gpu_pods(pod: Pod, settings: Settings) -> Iterator[str]:
    """DaemonSets and namespaces of agents are left alone; so are pods whose devices come by claims (DRA)."""
    if pod.owner.kind == "DaemonSet" or pod.has_gpus() or pod.spec.at("resourceClaims").is_set:
        return
    if any(_answers(one, settings["key"]) for one in pod.tolerations()) and pod.namespace not in settings["agents"]:
        yield f"{pod.where or 'spec'}.tolerations lets it run where {settings['key']} bars, and it asks for no GPU"


def _answers(toleration: Toleration, key: str) -> bool:
    if toleration.effect not in ("", "NoSchedule"):
        return False
    return (not toleration.key and toleration.operator == "Exists") or toleration.key == key


@topic.rule(
    "gpu-pods-pin-hardware",
    "Pods with GPUs say which GPUs.",
    severity="medium",
    level="advisory",
    types=KUBERNETES,
    each=pods,
    why="`nvidia.com/gpu: 8` is any eight: of a job with eight workers one may land on other GPUs, and all wait for "
    "the slowest, or the batch does not fit into its memory.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    resources: {limits: {nvidia.com/gpu: 8}}}]}}}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    spec:
      nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}
      containers: [{name: train, resources: {limits: {nvidia.com/gpu: 8}}}]
""",
    steps="Select the pool, the instance type or the GPU product; or send the job through Kueue, which does.",
    references=("https://github.com/nebari-dev/nebari/issues/2392",),
)
def pin_hardware(pod: Pod, _: Settings) -> Iterator[str]:
    """Node selector, required affinity, or a queue of Kueue."""
    if not pod.has_gpus():
        return
    keys = set(pod.spec.at("nodeSelector").members())
    required = pod.spec.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.at("nodeSelectorTerms").items():
        keys |= {one.at("key").text() for one in term.at("matchExpressions").items()}
    queued = any(
        "kueue.x-k8s.io/queue-name" in labels.members()
        for labels in (pod.metadata.at("labels"), pod.owner.props.at("metadata", "labels"))
    )
    if not queued and not any(_PINS.match(key) for key in keys):
        yield f"{pod.where or 'spec'} selects neither an instance type nor a GPU product nor a pool"


OBSOLETE = {
    "FI_PROVIDER": "the plugin picks efa itself and falls back where there is none; set, it fails there",
    "FI_EFA_USE_DEVICE_RDMA": "has had no effect since libfabric 1.18",
    "FI_EFA_FORK_SAFE": "the plugin sets it",
    "RDMAV_FORK_SAFE": "breaks newer kernels",
    "RDMAV_HUGEPAGES_SAFE": "breaks newer kernels",
    "FI_EFA_ENABLE_SHM_TRANSFER": "the plugin switches it off itself",
    "FI_EFA_SET_CUDA_SYNC_MEMOPS": "only for installers before 1.29.1",
    "NCCL_PROTO": "takes the choice from the plugin's tuner; in plugin 1.16.2 it breaks the start",
    "NCCL_ALGO": "takes the choice from the plugin's tuner",
    "NCCL_TUNER_PLUGIN": "the plugin points NCCL to itself",
    "NCCL_TOPO_FILE": "the plugin brings the files that are needed",
    "NCCL_MIN_NCHANNELS": "starves EFA",
    "NCCL_SOCKET_NTHREADS": "is for TCP",
    "NCCL_NSOCKS_PERTHREAD": "is for TCP",
    "NCCL_BUFFSIZE": "the plugin sets it by the type of machine",
    "NCCL_P2P_NET_CHUNKSIZE": "the plugin sets it by the type of machine",
    "NCCL_NVLS_ENABLE": "needed only before NCCL 2.18.5",
    "NCCL_IB_GID_INDEX": "means nothing to EFA, and RoCE finds it by itself",
    "NCCL_ASYNC_ERROR_HANDLING": "is called TORCH_NCCL_ASYNC_ERROR_HANDLING, whose default is right",
    "NCCL_BLOCKING_WAIT": "is called TORCH_NCCL_BLOCKING_WAIT",
}


@topic.rule(
    "no-obsolete-nccl-variables",
    "Pods set no NCCL and libfabric variables that do nothing any more, or harm.",
    severity="medium",
    level="advisory",
    types=KUBERNETES,
    each=containers,
    settings={"keep": Setting([], "Variables that you set on purpose.", "array")},
    why="Lists of variables are copied from samples of 2022. Most do nothing today, and some switch off what makes "
    "EFA fast.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train, env: [{name: FI_PROVIDER,
    value: efa}]}]}}}
""",
    right="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train, env: [{name: NCCL_DEBUG,
    value: WARN}]}]}}}
""",
    steps="Take them away; measure with the NCCL tests before you set one again.",
    references=(_PLUGIN_VARIABLES, "https://github.com/aws/aws-ofi-nccl/issues/982"),
)
def no_obsolete_variables(container: Container, settings: Settings) -> Iterator[str]:
    """By name."""
    for name, _one in container.variables():
        if name in OBSOLETE and name not in settings["keep"]:
            yield f"container {container.name}: {name} {OBSOLETE[name]}"


@topic.rule(
    "shared-memory-volume",
    "Pods with GPUs have a /dev/shm that is large enough, and bounded.",
    severity="medium",
    level="advisory",
    types=KUBERNETES,
    each=pods,
    why="A container's own /dev/shm has 64 MB: data loaders with several workers and NCCL's shared-memory transport "
    "end with a bus error. An emptyDir without a size limit counts against the memory of the machine.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    resources: {limits: {nvidia.com/gpu: 8}}}]}}}
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    spec:
      containers:
        - {name: train, resources: {limits: {nvidia.com/gpu: 8}}, volumeMounts: [{name: shm, mountPath: /dev/shm}]}
      volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]
""",
    steps="Add an emptyDir with medium: Memory and a sizeLimit, mounted at /dev/shm.",
    references=("https://docs.pytorch.org/docs/stable/multiprocessing.html",),
)
def shared_memory(pod: Pod, _: Settings) -> Iterator[str]:
    """Of each container with GPUs."""
    volumes = pod.volumes()
    for container in pod.containers(init=False):
        if not container.gpus():
            continue
        mounted = [
            one.at("name").text()
            for one in container.value.at("volumeMounts").items()
            if one.at("mountPath").text().rstrip("/") == "/dev/shm"  # noqa: S108 - the pod's
        ]
        if not mounted or mounted[0] not in volumes:
            yield f"container {container.name} has no volume at /dev/shm"
            continue
        directory = volumes[mounted[0]].at("emptyDir")
        if directory.at("medium").text() != "Memory":
            yield f"volume {mounted[0]} at /dev/shm is no emptyDir with medium Memory"
        elif quantity(directory.at("sizeLimit")) is None:
            yield f"volume {mounted[0]} at /dev/shm has no sizeLimit"
