"""Images: where they are kept, and how pods name them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from policies.catalogue import locked_images
from policies.registry import Topic
from policies.rule import Finding, RawProps, Resource, Setting, Settings, Stack
from policies.values import UnknownMemberError
from policies.workloads import KUBERNETES, Container, containers, image_parts

REPOSITORY = "aws:ecr/repository:Repository"
topic = Topic("Images")
_NOWHERE = ".invalid"
"""Registries that stand for one that is to come: names that by RFC 2606 nobody has."""
_ECR = "https://docs.aws.amazon.com/AmazonECR/latest/userguide"


@topic.rule(
    "registry-tags-immutable",
    "Tags of the image registry cannot be moved.",
    severity="high",
    types=(REPOSITORY,),
    frameworks=("CKV_AWS_51",),
    why="A worker that is replaced in the middle of a job pulls the tag again. If it has moved meanwhile, one worker "
    "runs other code than the rest: wrong results, or a hang in a collective.",
    wrong="""
images: {type: "aws:ecr/repository:Repository", properties: {name: training, imageTagMutability: MUTABLE}}
""",
    right="""
images: {type: "aws:ecr/repository:Repository", properties: {name: training, imageTagMutability: IMMUTABLE}}
""",
    steps="Set imageTagMutability: IMMUTABLE, and give every build a tag of its own.",
    references=(f"{_ECR}/image-tag-mutability.html",),
    mend=lambda props: _changed(props, "imageTagMutability", "IMMUTABLE"),
)
def tags_immutable(repository: Resource, _: Settings) -> Iterator[str]:
    """MUTABLE is the default."""
    if not repository.props.at("imageTagMutability").text().startswith("IMMUTABLE"):
        yield "imageTagMutability is not IMMUTABLE"


@topic.rule(
    "registry-scans",
    "Images are scanned when they are pushed.",
    severity="medium",
    types=(REPOSITORY,),
    frameworks=("CKV_AWS_163",),
    why="Training images carry a whole distribution and two hundred Python packages. The scan is free and says which "
    "of them are known to be unsafe.",
    wrong="""
images: {type: "aws:ecr/repository:Repository", properties: {name: training}}
""",
    right="""
images: {type: "aws:ecr/repository:Repository", properties: {name: training,
    imageScanningConfiguration: {scanOnPush: true}}}
""",
    steps="Set imageScanningConfiguration.scanOnPush: true, or scan the whole registry (then switch the rule off).",
    references=(f"{_ECR}/image-scanning.html",),
    mend=lambda props: _changed(props, "imageScanningConfiguration", {"scanOnPush": True}),
)
def registry_scans(repository: Resource, _: Settings) -> Iterator[str]:
    """Basic scanning, on push."""
    if repository.props.at("imageScanningConfiguration", "scanOnPush").flag() is not True:
        yield "imageScanningConfiguration.scanOnPush is not true"


@topic.rule(
    "registry-encrypted",
    "Images are encrypted with a KMS key of yours.",
    severity="medium",
    types=(REPOSITORY,),
    frameworks=("CKV_AWS_136",),
    presence=("kmsKey",),
    why="Images hold your code. Encryption is decided on when the repository is made: to change it means to push "
    "everything again.",
    wrong="""
images: {type: "aws:ecr/repository:Repository", properties: {name: training}}
""",
    right="""
images:
  type: aws:ecr/repository:Repository
  properties: {name: training, encryptionConfigurations: [{encryptionType: KMS,
      kmsKey: "arn:aws:kms:us-east-2:111122223333:key/1"}]}
""",
    steps="Set encryptionConfigurations with encryptionType KMS and your key.",
    references=(f"{_ECR}/encryption-at-rest.html",),
)
def registry_encrypted(repository: Resource, _: Settings) -> Iterator[str]:
    """KMS, with a key."""
    of_kms = [
        one
        for one in repository.props.at("encryptionConfigurations").items()
        if one.at("encryptionType").text().startswith("KMS")
    ]
    if not any(one.at("kmsKey").is_set for one in of_kms):
        yield "encryptionConfigurations names no KMS key"


def _changed(props: RawProps, key: str, wanted: object) -> bool:
    if props.get(key) == wanted:
        return False
    props[key] = wanted
    return True


@topic.rule(
    "image-not-latest",
    "Pods name a version of their image.",
    severity="high",
    types=KUBERNETES,
    each=containers,
    frameworks=("CKV_K8S_14",),
    why="`latest`, and no tag at all, is whatever was pushed last: the job of yesterday cannot be run again, and two "
    "workers of one job may run different code.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    image: "registry.example/train:latest"}]}}}
""",
    right="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    image: "registry.example/train:1.4.2"}]}}}
""",
    steps="Name a tag, better a digest: `trainyard images build -s STACK --push` records it.",
    references=("https://kubernetes.io/docs/concepts/containers/images/",),
)
def not_latest(container: Container, _: Settings) -> Iterator[str]:
    """A digest alone is enough."""
    image = container.value.at("image").text()
    _repository, tag, digest = image_parts(image)
    if not digest and tag in ("", "latest"):
        yield f"container {container.name}: image {image or 'is not set'}{'' if tag else ' has no tag'}"


@topic.rule(
    "image-by-digest",
    "Pods name their image by digest, or by a tag that cannot move.",
    severity="medium",
    each=lambda stack: [(stack, one) for one in stack.of(*KUBERNETES)],
    frameworks=("CKV_K8S_43",),
    settings={
        "immutable": Setting(
            [], "Images whose tags do not move, with `*`: *.dkr.ecr.*.amazonaws.com/training:*.", "array"
        ),
        "localNames": Setting(False, "Whether names without a registry are fine (local cluster).", "boolean"),
    },
    why="What a digest names is the same on every machine and on every day. Repositories of the stack with immutable "
    "tags are as good, and so is what the version lock of the project lists.",
    wrong="""
controller:
  type: kubernetes:apps/v1:Deployment
  properties: {spec: {template: {spec: {containers: [{name: c, image: "registry.example/controller:1.0"}]}}}}
""",
    right="""
controller:
  type: kubernetes:apps/v1:Deployment
  properties:
    spec:
      template:
        spec:
          containers:
            - name: c
              image: registry.example/c:1.0@sha256:25cc340fe6fd53c101e16fc452f503e7a92c219c64a80ed5381784b522dbbf77
""",
    steps="Name the digest; or keep the image in a repository of the stack with imageTagMutability IMMUTABLE.",
    references=("https://kubernetes.io/docs/concepts/containers/images/#image-pull-policy",),
)
def by_digest(subject: tuple[Stack, Resource], settings: Settings) -> Iterator[Finding]:
    """Four ways to be sure."""
    stack, owner = subject
    for container in containers(owner):
        image = container.value.at("image").text()
        if not _is_fixed(stack, image, settings):
            yield Finding(f"container {container.name}: image {image} has no digest, and its tag can move", owner)


def _is_fixed(stack: Stack, image: str, settings: Settings) -> bool:
    repository, tag, digest = image_parts(image)
    if digest or tag in ("", "latest"):  # no version at all is another rule's matter
        return True
    if image.partition("/")[2] in locked_images():
        return True
    if any(fnmatch.fnmatchcase(image, one) for one in settings["immutable"]):
        return True
    if settings["localNames"] and "." not in image.partition("/")[0]:
        return True
    for one in stack.of(REPOSITORY):
        name = one.props.at("name").text()
        mutability = one.props.at("imageTagMutability").text()
        registry, _, path = repository.partition("/")
        if name and path == name and ".dkr.ecr." in registry and mutability.startswith("IMMUTABLE"):
            return True
    return False


@topic.rule(
    "image-from-known-registry",
    "Images come from registries that you chose.",
    severity="medium",
    types=KUBERNETES,
    each=containers,
    settings={
        "registries": Setting(
            [
                "*.dkr.ecr.*.amazonaws.com",
                "*.dkr.ecr.*.amazonaws.com.cn",
                "public.ecr.aws",
                "registry.k8s.io",
                "nvcr.io",
                "quay.io",
                "ghcr.io",
            ],
            "Registries, or beginnings of images, with `*` as wildcard.",
            "array",
        ),
        "localNames": Setting(False, "Whether names without a registry are fine (local cluster).", "boolean"),
    },
    why="A name without a registry is Docker Hub's, where the pull limit of one address ends the start of a large "
    "job, and where anybody may own the name next to the one you meant.",
    wrong="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train, image: "pytorch/pytorch:2.9"}]}}}
""",
    right="""
pod: {type: "kubernetes:core/v1:Pod", properties: {spec: {containers: [{name: train,
    image: "nvcr.io/nvidia/pytorch:26.08-py3"}]}}}
""",
    steps="Copy the image to your registry, or add the registry to `registries`.",
    references=("https://docs.docker.com/docker-hub/usage/",),
)
def known_registry(container: Container, settings: Settings) -> Iterator[str]:
    """The part before the first slash, or the whole beginning."""
    image = container.value.at("image").text()
    registry = image.partition("/")[0] if "/" in image else ""
    if registry.endswith(_NOWHERE):
        raise UnknownMemberError(f"{container.value.path}.image (not built yet)")
    if "." not in registry and ":" not in registry:
        if not settings["localNames"]:
            yield f"container {container.name}: image {image or 'is not set'} names no registry"
        return
    # A pattern with a path is about the image; one without about the registry only, since `*` takes slashes as well.
    if not any(fnmatch.fnmatchcase(image if "/" in one else registry, one) for one in settings["registries"]):
        yield f"container {container.name}: registry {registry} is not among those that are allowed"
