"""Rules on labels: what the registry, the stack and people read without starting the image."""

from __future__ import annotations

from collections.abc import Iterator

from images.lint.document import Instruction
from images.lint.rule import Problem, Subject, rule

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_OCI = tuple(
    f"org.opencontainers.image.{name}"
    for name in ("title", "description", "licenses", "version", "revision", "created", "base.name")
)
DRIVER = "dev.trainyard.minimum-driver"
"""The label with the oldest driver."""
_ALL = " ".join(f'{name}="a"' for name in _OCI)


def labels(subject: Subject) -> dict[str, tuple[str, Instruction]]:
    """Labels of the last stage."""
    return {name: (value, one) for one in subject.document.last.inherited("LABEL") for name, value in one.pairs()}


@rule(
    "labels-oci",
    "The labels that everybody reads are there",
    reason="Without version and revision nobody knows what runs on a cluster; without the base's name nobody knows "
    "which images must be built anew when the base is mended.",
    source="https://specs.opencontainers.org/image-spec/annotations/#pre-defined-annotation-keys",
    remedy=f"Give {', '.join(name.removeprefix('org.opencontainers.') for name in _OCI)}.",
    row="torch2.15-cpu",
    wrong=f'{_BASE}\nUSER 65532\nLABEL org.opencontainers.image.title="a"\n',
    right=f"{_BASE}\nUSER 65532\nLABEL {_ALL}\n",
)
def labels_oci(subject: Subject) -> Iterator[Problem]:
    """Look every name up."""
    if subject.row is None:
        return
    found = labels(subject)
    missing = [name for name in _OCI if name not in found]
    if missing:
        yield Problem(subject.document.last, f"no label {', '.join(missing)}")


@rule(
    "labels-driver",
    "The label of the oldest driver is the matrix's",
    reason="Stack and policies refuse a pool whose machines have an older driver by this label, before any machine "
    "starts. A wrong number lets images through that fail at the first CUDA call.",
    source="`driver_floor` in infra/catalog/versions.toml.",
    remedy=f"Write the row's number into `{DRIVER}`, and no such label where nothing runs on GPUs.",
    row="torch2.15-cuda13.2",
    wrong=f'{_BASE}\nUSER 65532\nLABEL {DRIVER}="470"\n',
    right=f'{_BASE}\nUSER 65532\nLABEL {DRIVER}="{{driver}}"\n',
)
def labels_driver(subject: Subject) -> Iterator[Problem]:
    """Compare with the row."""
    row = subject.row
    if row is None:
        return
    value, at = labels(subject).get(DRIVER, (None, None))
    if value != row.minimum_driver:
        has = f"the row has {row.minimum_driver}" if row.minimum_driver else "the row runs on no GPU"
        yield Problem(at or subject.document.last, f"{DRIVER} is {value or 'absent'}; {has}")
