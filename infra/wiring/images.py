"""Which image of the matrix a stack runs where: by GPU and fabric of each pool, by torch of the settings.

What a row cannot do on a machine (its driver, its GPUs, its architecture) is decided by the rules of the matrix; what
the machine has comes from the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from images.errors import MatrixError
from images.matrix import Architecture, Kind, Row, Variant, matrix
from images.rules import Subject, violations
from infra.catalog.instance_types import instance_type
from infra.catalog.versions import versions
from infra.wiring.errors import WiringError
from infra.wiring.references import is_pinned, repository_of

if TYPE_CHECKING:
    from infra.settings import Settings
    from infra.settings.aws import Aws, AwsNodePool

PLATFORMS: dict[str, Architecture] = {"x86_64": "amd64", "arm64": "arm64"}
"""What container platforms call the architectures of EC2."""


def torch_of(torch: str | None) -> str:
    """The torch of a stack: what the settings say, or the newest of the matrix."""
    return torch or matrix().torch_releases[0].minor


def variant_of(pool: AwsNodePool) -> Variant:
    """Which variant of the training image a pool runs."""
    if pool.efa:
        return "efa"
    return "cuda" if pool.gpus_per_node else "cpu"


def row_for_pool(pool: AwsNodePool, torch: str | None) -> Row:
    """The training image of a pool.

    Args:
        pool: a GPU pool.
        torch: as in the settings; None: the newest of the matrix.

    Raises:
        MatrixError: the matrix has none.
    """
    return _row("training", variant_of(pool), torch_of(torch))


def rows_for_stack(settings: Settings) -> tuple[Row, ...]:
    """What is to be built for a stack: the controller, the training images of its pools, and NCCL's tests for EFA.

    The machines of a cluster that is there already are not known: its training image is the one for GPUs without EFA,
    which also runs on CPUs. The local target runs what it is given, see `trainyard images load`.

    Raises:
        MatrixError: the matrix lacks one of them.
    """
    torch = torch_of(settings.images.torch)
    rows = [matrix().row("controller")]
    if settings.aws is None:
        variant: Variant = "cpu" if settings.target == "local" else "cuda"
        return (*rows, _row("training", variant, torch))
    rows += [row_for_pool(pool, torch) for pool in settings.aws.node_pools]
    if any(pool.efa for pool in settings.aws.node_pools):
        rows.append(_row("nccl-tests", "efa", torch))
    return tuple({row.name: row for row in rows}.values())


def architectures_for(settings: Settings, row: Row) -> tuple[Architecture, ...]:
    """The platforms for which a stack needs a row: those of the machines on which it runs; else all of the row."""
    if settings.aws is None:
        return row.architectures
    aws = settings.aws
    if row.kind == "controller":
        machines = list(aws.system_pool.types)
    else:
        with_row = [pool for pool in aws.node_pools if row.kind == "nccl-tests" or _runs(pool, row, settings)]
        machines = [name for pool in with_row for name in pool.types if row.kind == "training" or pool.efa]
    wanted = {PLATFORMS[instance_type(name).architecture] for name in machines}
    return tuple(each for each in row.architectures if each in wanted) or row.architectures


def repository_for(row: Row, aws: Aws) -> str:
    """The repository of the stack's registry into which a row goes: the name in `aws.registry.repositories`.

    Raises:
        WiringError: the settings name no such repository.
    """
    if row.kind not in aws.registry.repositories:
        raise WiringError(
            f"image {row.name} goes into the repository {row.kind!r}, and trainyard:aws.registry.repositories does not"
            f" name it ({', '.join(aws.registry.repositories) or 'none'}). Add it there, and make it: trainyard up"
            " --only registry"
        )
    return row.kind


def why_not(pool: AwsNodePool, torch: str | None, *, driver: str | None) -> list[str]:
    """Why the machines of a pool could not run their training image: driver, GPUs, architecture; empty: they can.

    Args:
        pool: a GPU pool.
        torch: as in the settings; None: the newest of the matrix.
        driver: NVIDIA driver of the pool's machine image; None: not known.

    Raises:
        MatrixError: the matrix has no image for the pool at all.
    """
    row = row_for_pool(pool, torch)
    machines = {(PLATFORMS[each.architecture], each.compute_capability) for each in map(instance_type, pool.types)}
    found = [
        sentence
        for architecture, capability in sorted(machines, key=str)
        for sentence in _mistakes(Subject(row, architecture, driver, capability))
    ]
    return list(dict.fromkeys(found))


def fitting_torch(aws: Aws) -> str | None:
    """The newest torch whose images run on all pools; None where there is none."""
    drivers = [driver_of(aws, pool) for pool in aws.node_pools]

    def fits(torch: str) -> bool:
        try:
            return not any(map(lambda pool, driver: why_not(pool, torch, driver=driver), aws.node_pools, drivers))
        except MatrixError:  # there is no such image
            return False

    return next((release.minor for release in matrix().torch_releases if fits(release.minor)), None)


def unpinned_images(job: Mapping[str, Any], built: Mapping[str, str]) -> list[str]:
    """A sentence for each image of a job that is not named by digest.

    Args:
        job: manifest of an ElasticJob; it has a name.
        built: what was built for the stack: references with digests, by row.
    """
    pod: Any = job
    for key in ("spec", "replicaSpecs", "Worker", "template", "spec"):
        pod = pod.get(key) if isinstance(pod, Mapping) else None  # what has another shape, the API server refuses
    if not isinstance(pod, Mapping):
        return []
    groups = [pod.get(key) for key in ("initContainers", "containers")]
    containers = [each for group in groups if isinstance(group, list) for each in group if isinstance(each, Mapping)]
    images = dict.fromkeys(image for each in containers if isinstance(image := each.get("image"), str))
    return [_unpinned(str(job["metadata"]["name"]), image, built) for image in images if not is_pinned(image)]


def _unpinned(job: str, image: str, built: Mapping[str, str]) -> str:
    repository = repository_of(image)
    same = [(row, reference) for row, reference in built.items() if repository_of(reference) == repository]
    instead = "; ".join(f"{reference} ({row})" for row, reference in same)
    return f"job {job} names image {image} without a digest: workers that start later may get another one." + (
        f" Built for this stack: {instead}" if instead else " Take the reference with @sha256:…"
    )


def driver_of(aws: Aws, pool: AwsNodePool) -> str | None:
    """NVIDIA driver in the machine image of a pool."""
    kubernetes = aws.kubernetes_version or versions().default_kubernetes
    architecture = instance_type(pool.types[0]).architecture
    return versions().ami(kubernetes, pool.operating_system, architecture, gpu=True).driver


def _row(kind: Kind, variant: Variant, torch: str) -> Row:
    """A row by what it is for. NCCL's tests are for the CUDA of a torch, which several releases may share."""
    release = next((each for each in matrix().torch_releases if torch in (each.version, each.minor)), None)
    for row in matrix().rows:
        if release is None or row.kind != kind or row.variant != variant or row.torch is None or row.torch.bundled:
            continue
        if row.torch.version == release.version or (kind == "nccl-tests" and row.cuda == release.cuda):
            return row
    raise MatrixError(
        f"there is no image for {kind}, variant {variant}, of torch {torch}: `trainyard images matrix` shows all. Take"
        " another torch: trainyard:images.torch"
    )


def _mistakes(subject: Subject) -> list[str]:
    found = [violation.sentence for violation in violations(subject)]
    if not found and subject.architecture not in subject.row.architectures:
        found = [f"image {subject.row.name} is for {' and '.join(subject.row.architectures)} only"]
    return found


def _runs(pool: AwsNodePool, row: Row, settings: Settings) -> bool:
    return row_for_pool(pool, settings.images.torch).name == row.name
