"""Training jobs and what keeps them running: spot, elasticity, ends, rendezvous."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from policies.registry import Topic
from policies.rule import Finding, Resource, Setting, Settings, Stack
from policies.values import Value
from policies.workloads import KUBERNETES, NODE_AGENTS, Pod, namespace_of, pods

ELASTIC = "kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob"
PYTORCH = "kubernetes:kubeflow.org/v1:PyTorchJob"
TRAIN = "kubernetes:trainer.kubeflow.org/v1alpha1:TrainJob"
JOB, CRON = "kubernetes:batch/v1:Job", "kubernetes:batch/v1:CronJob"
REPLICATED = ("kubernetes:apps/v1:Deployment", "kubernetes:apps/v1:StatefulSet")
DISRUPTION = "kubernetes:policy/v1:PodDisruptionBudget"
topic = Topic("Jobs and their surroundings")
_NOTICE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"
_PDB = "https://kubernetes.io/docs/tasks/run-application/configure-pdb/"
_CHECKPOINT_WORD = re.compile(r"(?i)checkpoint|ckpt|output|save|snapshot")
_REMOTE = re.compile(r"^(s3|gs|az|abfs|hf)://")
_OF_THE_POD = ("secrets-store.csi.k8s.io", "csi.cert-manager.io", "image.csi.k8s.io")
"""CSI drivers whose volumes hold what the pod is given, not what it writes."""


def _training(pod: Pod) -> bool:
    return pod.is_elastic or pod.has_gpus()


@topic.rule(
    "spot-pods-have-time",
    "Training pods that may be reclaimed have two minutes to write a checkpoint.",
    severity="high",
    types=KUBERNETES,
    each=pods,
    settings={"seconds": Setting(120, "Fewest seconds of grace. Other clouds give 30, or 15 to a pod.")},
    why="A reclaim comes with two minutes of notice. A pod's own grace is 30 seconds unless it says otherwise: a "
    "checkpoint of 100 GB does not get done in that.",
    wrong="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties:
    spec:
      replicaSpecs:
        Worker:
          template:
            spec: {tolerations: [{key: trainyard.dev/spot, operator: Exists}], containers: [{name: train,
                image: "train:1"}]}
""",
    right="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties:
    spec:
      replicaSpecs:
        Worker:
          template:
            spec:
              terminationGracePeriodSeconds: 120
              tolerations: [{key: trainyard.dev/spot, operator: Exists}]
              containers: [{name: train, image: "train:1"}]
""",
    steps="Set terminationGracePeriodSeconds: 120 or more.",
    references=(_NOTICE,),
)
def spot_pods_have_time(pod: Pod, settings: Settings) -> Iterator[str]:
    """Training pods only."""
    if not pod.tolerates_spot() or not _training(pod):
        return
    grace = pod.spec.at("terminationGracePeriodSeconds").number()
    if grace is None or grace < settings["seconds"]:
        has = "not set (30)" if grace is None else f"{grace:.0f}"
        yield f"{pod.where or 'spec'}.terminationGracePeriodSeconds is {has}; at least {settings['seconds']}"


@topic.rule(
    "spot-pods-keep-checkpoints",
    "Training pods that may be reclaimed have a place for checkpoints that outlives them.",
    severity="high",
    types=KUBERNETES,
    each=pods,
    presence=("persistentVolumeClaim", "csi", "nfs"),
    why="What is on the machine's own disk goes with the machine.",
    wrong="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties:
    spec:
      replicaSpecs:
        Worker:
          template:
            spec:
              tolerations: [{key: trainyard.dev/spot, operator: Exists}]
              containers: [{name: train, volumeMounts: [{name: out, mountPath: /checkpoints}]}]
              volumes: [{name: out, emptyDir: {}}]
""",
    right="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties:
    spec:
      replicaSpecs:
        Worker:
          template:
            spec:
              tolerations: [{key: trainyard.dev/spot, operator: Exists}]
              containers: [{name: train, volumeMounts: [{name: out, mountPath: /checkpoints}]}]
              volumes: [{name: out, persistentVolumeClaim: {claimName: checkpoints}}]
""",
    steps="Mount the claim `checkpoints`, or write to a bucket and name it in the arguments or the environment.",
    references=(_NOTICE,),
)
def spot_pods_keep_checkpoints(pod: Pod, _: Settings) -> Iterator[str]:
    """A claim, a network volume, or a bucket that a variable or an argument names."""
    if not pod.tolerates_spot() or not _training(pod):
        return
    volumes = pod.volumes()
    for container in pod.containers(init=False):
        for mount in container.value.at("volumeMounts").items():
            volume = volumes.get(mount.at("name").text())
            if volume is not None and not mount.at("readOnly").flag() and _outlives(volume):
                return
        if any(
            _REMOTE.match(one.at("value").text())
            for name, one in container.variables()
            if _CHECKPOINT_WORD.search(name)
        ):
            return
        words = [*container.value.at("command").texts(), *container.value.at("args").texts()]
        if _names_bucket(" ".join(words).split()):
            return
    yield f"{pod.where or 'spec'} has neither a claim that it may write to nor a bucket for checkpoints"


def _outlives(volume: Value) -> bool:
    """Whether what is written to a volume is there when the pod is gone. A generic ephemeral volume goes with it."""
    for key in ("persistentVolumeClaim", "csi", "nfs"):
        one = volume.at(key)
        if one.is_unknown:
            return True  # it is set, and what it is called makes no difference
        if one.is_set and one.at("driver").text() not in _OF_THE_POD and not one.at("readOnly").flag():
            return True
    return False


def _names_bucket(words: list[str]) -> bool:
    """Whether a command line has a bucket for checkpoints: `--save-dir=s3://…`, `--output s3://…`, `s3://…/ckpt`."""
    for before, word in itertools.pairwise(["", *words]):
        option, _, value = word.rpartition("=")
        about = (option or before) + value
        if _REMOTE.match(value) and _CHECKPOINT_WORD.search(about):
            return True
    return False


@topic.rule(
    "control-off-spot",
    "What training depends on does not run on machines that can be reclaimed.",
    severity="high",
    types=REPLICATED,
    each=pods,
    settings={"agents": Setting(list(NODE_AGENTS), "Namespaces that are left alone.", "array")},
    why="With etcd, the controller or the autoscaler on the same machines as the job, one reclaim takes both, and "
    "nothing repairs them.",
    wrong="""
etcd:
  type: kubernetes:apps/v1:StatefulSet
  properties: {spec: {template: {spec: {tolerations: [{key: trainyard.dev/spot, operator: Exists}],
      containers: [{name: etcd, image: "etcd:3.6"}]}}}}
""",
    right="""
etcd:
  type: kubernetes:apps/v1:StatefulSet
  properties: {spec: {template: {spec: {nodeSelector: {trainyard.dev/pool: system}, containers: [{name: etcd,
      image: "etcd:3.6"}]}}}}
""",
    steps="Take the toleration away; select the system pool.",
)
def control_off_spot(pod: Pod, settings: Settings) -> Iterator[str]:
    """Deployments and StatefulSets without GPUs."""
    if not pod.has_gpus() and pod.tolerates_spot() and pod.namespace not in settings["agents"]:
        yield f"{pod.where or 'spec'}.tolerations lets it run on spot machines"


@topic.rule(
    "job-ends",
    "Jobs end: after so many failures, or after so long.",
    severity="medium",
    level="advisory",
    types=(JOB, CRON, ELASTIC, PYTORCH, TRAIN),
    settings={
        "ttl": Setting(
            False,
            "Whether jobs must be removed some time after their end; those that Pulumi made come back.",
            "boolean",
        )
    },
    why="A job that fails at its first step is started again for as long as it may be: eight GPUs for a weekend. One "
    "that hangs holds them until somebody looks.",
    wrong="""
job: {type: "kubernetes:batch/v1:Job", properties: {spec: {template: {spec: {containers: [{name: prepare,
    image: "prepare:1"}]}}}}}
""",
    right="""
job:
  type: kubernetes:batch/v1:Job
  properties:
    spec: {backoffLimit: 3, activeDeadlineSeconds: 3600, template: {spec: {containers: [{name: prepare,
        image: "prepare:1"}]}}}
""",
    steps="Set backoffLimit, and activeDeadlineSeconds for what has a known length.",
    references=(
        "https://kubernetes.io/docs/concepts/workloads/controllers/job/",
        "https://github.com/kubeflow/sdk/issues/696",
    ),
)
def job_ends(job: Resource, settings: Settings) -> Iterator[str]:
    """Where each kind has these members. A training job's length is not known: a budget of failures is enough."""
    spec = job.props.at("spec", "jobTemplate", "spec") if job.type == CRON else job.props.at("spec")
    places = [spec, spec.at("runPolicy"), spec.at("RunPolicy")]
    wanted = ["activeDeadlineSeconds"] if job.type == TRAIN else ["backoffLimit"]
    if job.type in (JOB, CRON):
        wanted.append("activeDeadlineSeconds")
    if settings["ttl"]:
        wanted.append("ttlSecondsAfterFinished")
    if missing := [key for key in wanted if all(one.at(key).number() is None for one in places)]:
        yield f"{spec.path} lacks {', '.join(missing)}"


@topic.rule(
    "elastic-bounds",
    "An elastic job says how few and how many workers it trains with, and its bounds make sense.",
    severity="high",
    types=(ELASTIC, PYTORCH),
    settings={"largest": Setting(1024, "Most workers of a job.")},
    why="Without bounds the job is not elastic: the loss of one worker stops all. With bounds that contradict each "
    "other the API server refuses it, or it waits for workers that never come.",
    wrong="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties: {spec: {minReplicas: 4, maxReplicas: 2, replicaSpecs: {Worker: {replicas: 2}}}}
""",
    right="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties: {spec: {minReplicas: 2, maxReplicas: 8, replicaSpecs: {Worker: {replicas: 4}}}}
""",
    steps="Set minReplicas <= replicas <= maxReplicas.",
    references=("reference/elasticjob.md",),
)
def elastic_bounds(job: Resource, settings: Settings) -> Iterator[str]:
    """PyTorchJobs are judged where they have an elastic policy."""
    spec = job.props.at("spec")
    bounds, workers = spec, spec.at("replicaSpecs", "Worker", "replicas")
    if job.type == PYTORCH:
        if not spec.at("elasticPolicy").is_set:
            return
        bounds, workers = spec.at("elasticPolicy"), spec.at("pytorchReplicaSpecs", "Worker", "replicas")
    least, most = bounds.at("minReplicas").number(), bounds.at("maxReplicas").number()
    wanted = workers.number() if workers.is_set else 1
    if least is None or most is None:
        missing = [key for key, one in (("minReplicas", least), ("maxReplicas", most)) if one is None]
        yield f"{bounds.path} lacks {' and '.join(missing)}"
        return
    if least < 1 or least > most:
        yield f"minReplicas is {least:g} and maxReplicas {most:g}"
    elif wanted is not None and not least <= wanted <= most:
        yield f"replicas is {wanted:g}, outside of {least:g} to {most:g}"
    if most > settings["largest"]:
        yield f"maxReplicas is {most:g}; at most {settings['largest']}"


@topic.rule(
    "elastic-restart-budget",
    "An elastic job has a budget of failures that is neither none nor endless.",
    severity="medium",
    types=(ELASTIC, PYTORCH),
    settings={"largest": Setting(100, "Most failures; reclaims are not counted.")},
    why="Reclaims are not failures here. What is counted are errors of the program: without a limit a program that "
    "cannot start is started for ever, with 0 the first flipped bit ends a month of training.",
    wrong="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties: {spec: {minReplicas: 2, maxReplicas: 8, replicaSpecs: {Worker: {replicas: 4}}}}
""",
    right="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties: {spec: {backoffLimit: 10, minReplicas: 2, maxReplicas: 8, replicaSpecs: {Worker: {replicas: 4}}}}
""",
    steps="Set backoffLimit to some failures a day.",
    references=("reference/elasticjob.md",),
)
def restart_budget(job: Resource, settings: Settings) -> Iterator[str]:
    """`backoffLimit`, in each of the places where it may stand; `maxRestarts` of an elastic policy as well.

    A PyTorchJob without an elastic policy is not elastic: whether it ends, another rule asks.
    """
    spec = job.props.at("spec")
    if job.type == PYTORCH and not spec.at("elasticPolicy").is_set:
        return
    places = [
        spec.at("backoffLimit"),
        spec.at("runPolicy", "backoffLimit"),
        spec.at("RunPolicy", "backoffLimit"),
        spec.at("elasticPolicy", "maxRestarts"),
    ]
    budget = next((number for one in places if (number := one.number()) is not None), None)
    if budget is None:
        yield "backoffLimit is not set: failures are not limited"
    elif not 1 <= budget <= settings["largest"]:
        yield f"backoffLimit is {budget:g}; from 1 to {settings['largest']}"


def _labels(value: Value) -> dict[str, str]:
    return {key: one.text() for key, one in value.members().items()}


def _budgets(stack: Stack, workload: Resource) -> list[Resource]:
    """Disruption budgets of a workload's pods."""
    template = workload.props.at("spec", "template")
    labels, namespace = _labels(template.at("metadata", "labels")), namespace_of(stack, workload)
    found = []
    for one in stack.of(DISRUPTION):
        selector = one.props.at("spec", "selector")
        if selector.is_set and _selects(selector, labels) and namespace_of(stack, one) == namespace:
            found.append(one)
    return found


def _selects(selector: Value, labels: Mapping[str, str]) -> bool:
    """Whether a label selector fits; an empty one fits everything, as Kubernetes has it."""
    if not _labels(selector.at("matchLabels")).items() <= labels.items():
        return False
    for one in selector.at("matchExpressions").items():
        value = labels.get(one.at("key").text())
        listed = value in one.at("values").texts()
        fits = {"In": listed, "NotIn": not listed, "Exists": value is not None, "DoesNotExist": value is None}
        if not fits.get(one.at("operator").text(), False):
            return False
    return True


@topic.rule(
    "replicated-has-budget",
    "What runs in several copies is not drained all at once, and can be drained.",
    severity="medium",
    each=lambda stack: [(stack, one) for one in stack.of(*REPLICATED)],
    settings={"agents": Setting(["kube-system"], "Namespaces that are left alone.", "array")},
    why="An update of the machines drains them one after the other, or several: without a budget all copies of the "
    "controller go together. A budget that allows none stops the update for ever.",
    wrong="""
controller:
  type: kubernetes:apps/v1:Deployment
  properties:
    metadata: {name: controller, namespace: system}
    spec: {replicas: 2, template: {metadata: {labels: {app: controller}}, spec: {containers: [{name: c,
        image: "c:1"}]}}}
""",
    right="""
controller:
  type: kubernetes:apps/v1:Deployment
  properties:
    metadata: {name: controller, namespace: system}
    spec: {replicas: 2, template: {metadata: {labels: {app: controller}}, spec: {containers: [{name: c,
        image: "c:1"}]}}}
budget:
  type: kubernetes:policy/v1:PodDisruptionBudget
  properties: {metadata: {namespace: system}, spec: {maxUnavailable: 1, selector: {matchLabels: {app: controller}}}}
""",
    steps="Add a PodDisruptionBudget with maxUnavailable: 1 for its labels.",
    references=(_PDB,),
)
def has_budget(subject: tuple[Stack, Resource], settings: Settings) -> Iterator[Finding]:
    """Deployments and StatefulSets with two or more replicas."""
    stack, workload = subject
    replicas = workload.props.at("spec", "replicas").number()
    if namespace_of(stack, workload) in settings["agents"]:
        return
    budgets = _budgets(stack, workload)
    if (replicas or 1) >= 2 and not budgets:
        yield Finding(f"has {replicas:g} replicas and no PodDisruptionBudget", workload)
    for one in budgets:
        spec = one.props.at("spec")
        least, most = spec.at("minAvailable"), spec.at("maxUnavailable")
        none_may_go = most.number() == 0 or most.text() == "0%"
        all_must_stay = least.text() == "100%" or (least.number() or 0) >= (replicas or 1)
        if none_may_go or all_must_stay:
            yield Finding("lets no pod go: machines cannot be drained", one)


@topic.rule(
    "etcd-durable",
    "etcd keeps its data, has an odd number of members, and no two on one machine.",
    severity="high",
    each=lambda stack: stack.of("kubernetes:apps/v1:StatefulSet"),
    why="Rendezvous of all running jobs is in it. Two of three members on one machine are lost together; an even "
    "number has no majority more than the odd one below; members without a volume start empty and do not find each "
    "other again.",
    wrong="""
etcd:
  type: kubernetes:apps/v1:StatefulSet
  properties:
    metadata: {name: etcd, namespace: system}
    spec: {replicas: 2, template: {spec: {containers: [{name: etcd, image: "registry.example/etcd:3.6"}]}}}
""",
    right="""
etcd:
  type: kubernetes:apps/v1:StatefulSet
  properties:
    metadata: {name: etcd, namespace: system}
    spec:
      replicas: 3
      template:
        spec:
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: etcd}}}
          containers: [{name: etcd, image: "registry.example/etcd:3.6"}]
      volumeClaimTemplates: [{metadata: {name: data}}]
""",
    steps="Three members with volumeClaimTemplates and required anti-affinity over kubernetes.io/hostname.",
    references=("https://etcd.io/docs/latest/faq/",),
)
def etcd_durable(etcd: Resource, _: Settings) -> Iterator[Finding]:
    """Recognised by the image's name."""
    if not _is_etcd(etcd):
        return
    spec = etcd.props.at("spec")
    members = spec.at("replicas").number() if spec.at("replicas").is_set else 1
    if members is None or members % 2 == 0:
        yield Finding(
            f"replicas is {'no number' if members is None else f'{members:g}'}; an odd number is needed", etcd
        )
    pod = spec.at("template", "spec")
    claims = [one for one in pod.at("volumes").items() if one.at("persistentVolumeClaim").is_set]
    if not spec.at("volumeClaimTemplates").items() and not (members == 1 and claims):
        yield Finding("has no volumeClaimTemplates: members start empty", etcd)
    if members and members > 1:
        terms = pod.at("affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution").items()
        spread = [
            one
            for one in pod.at("topologySpreadConstraints").items()
            if one.at("whenUnsatisfiable").text() != "ScheduleAnyway" and (one.at("maxSkew").number() or 1) <= 1
        ]
        if not any(one.at("topologyKey").text() == "kubernetes.io/hostname" for one in (*terms, *spread)):
            yield Finding(
                "has no required anti-affinity over kubernetes.io/hostname: two members may share a machine", etcd
            )


def _is_etcd(resource: Resource) -> bool:
    images = (one.value.at("image").text() for pod in pods(resource) for one in pod.containers(init=False))
    return any(re.search(r"(^|/)etcd(:|@|$)", one) for one in images)
