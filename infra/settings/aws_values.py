"""Types of single values in the settings of an AWS cluster: regions, zones, addresses, ARNs, ids, moments and more.

What a type checks is right or wrong by itself; what depends on other values is in aws_contradictions.py. The catalogue
is imported inside the checks: stacks of other targets don't pay for it.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator, Field

from infra.settings.base import Whole, WrongValueError
from infra.wiring.network import LARGEST_VPC, SMALLEST_VPC

NOT_PUBLIC = tuple(
    ipaddress.IPv4Network(block)
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8")
)
"""Addresses that nobody has on the internet; EKS refuses them as public ones. The first four may be a VPC's."""
_PRIVATE = NOT_PUBLIC[:4]

CLOUDWATCH_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
"""Times that CloudWatch can keep logs for (`PutRetentionPolicy` in the CloudWatch Logs API reference)."""

_TAGS_OF_OTHERS = {
    "aws:": "AWS's own",
    "eks:": "EKS's own",
    "trainyard.dev/": "Trainyard's own: the budget counts by them",
    "kubernetes.io/": "read by Kubernetes, which takes what carries them for its own",
    "k8s.io/": "read by Kubernetes and the autoscaler, which act on what carries them",
}
"""How tags begin that would mean more than a note, on every resource of the stack."""

_WIDEST = 8  # prefix length: two /1 are the whole internet as well


@functools.cache
def regions() -> frozenset[str]:
    """All regions of all partitions that botocore knows; its package is read, not imported for its client."""
    partitions = json.loads(resources.files("botocore").joinpath("data/partitions.json").read_text(encoding="utf-8"))
    return frozenset(
        region
        for partition in partitions["partitions"]
        for region in partition["regions"]
        if re.match(partition["regionRegex"], region)  # without pseudo-regions: `aws-global`
    )


def moment(text: str) -> datetime:
    """`2027-01-31T11:30:00Z` as a time.

    Raises:
        ValueError: it is not written so, or there is no such day or hour.
    """
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _region(value: str) -> str:
    if value not in regions():
        close = difflib.get_close_matches(value, sorted(regions()), n=1)
        meant = f"did you mean {close[0]!r}?" if close else "regions are named as in us-east-2"
        raise WrongValueError(f"is no region of AWS; {meant}", close[0] if close else None)
    return value


def _matching(pattern: str, sentence: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(sentence)
        return value

    return check


def _vpc_cidr(value: str) -> str:
    network = _network(value, "10.0.0.0/16")
    if not any(network.subnet_of(private) for private in _PRIVATE):
        blocks = ", ".join(str(block) for block in _PRIVATE)
        raise WrongValueError(f"must be private addresses, within one of {blocks}", "10.0.0.0/16")
    if not LARGEST_VPC <= network.prefixlen <= SMALLEST_VPC:
        raise WrongValueError(
            f"must be from /{LARGEST_VPC} (the largest that AWS makes) to /{SMALLEST_VPC} (smaller ones leave a zone"
            " too few addresses)",
            f"{network.network_address}/{LARGEST_VPC}",
        )
    return value


def _public_cidr(value: str) -> str:
    network = _network(value, "203.0.113.0/24")
    if network.prefixlen < _WIDEST:
        raise WrongValueError(
            "opens the Kubernetes API to the whole internet, or a good part of it; name the addresses of your office"
            " or VPN",
            "203.0.113.0/24",
        )
    if any(network.overlaps(block) for block in NOT_PUBLIC):
        raise WrongValueError(
            "is private: nobody comes from there over the internet, and EKS refuses it. From inside the VPC the API"
            " can always be reached",
            "203.0.113.0/24",
        )
    return value


def _network(value: str, instead: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(value)
    except ValueError:
        pass
    try:
        meant = str(ipaddress.IPv4Network(value, strict=False))
    except ValueError:
        raise WrongValueError(f"must be IPv4 addresses with a prefix length, as in {instead}", instead) from None
    raise WrongValueError(f"has bits set behind its prefix; the block is {meant}", meant)


def _principal(value: str) -> str:
    if ":assumed-role/" in value:
        account, role = value.split(":")[4], value.split("/")[1]
        raise WrongValueError(
            "is a session of a role; EKS wants the role itself", f"arn:aws:iam::{account}:role/{role}"
        )
    if not re.fullmatch(r"arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[\w+=,.@/-]+", value):
        raise ValueError("must be the ARN of an IAM role or user, as in arn:aws:iam::111122223333:role/admin")
    return value


def _moment(value: str) -> str:
    try:
        moment(value)
    except ValueError:
        raise ValueError("must be a time in UTC, in quotes, as in '2027-01-31T11:30:00Z'") from None
    return value


def _instance_type(value: str) -> str:
    from infra.catalog.instance_types import instance_types, left_out, nearest_names  # noqa: PLC0415

    if value not in instance_types():
        if reason := left_out(value):
            raise WrongValueError(f"is left out of the catalogue: {reason}; `trainyard gpus` shows all", None)
        names = nearest_names(value)
        nearest = f"nearest: {', '.join(names)}; " if names else ""
        raise WrongValueError(
            f"is no instance type of the catalogue; {nearest}`trainyard gpus` shows all", names[0] if names else None
        )
    return value


def _kubernetes(value: str) -> str:
    from infra.catalog.versions import versions  # noqa: PLC0415

    tested = versions().kubernetes
    if value not in tested:
        raise WrongValueError(f"is not in the version lock; tested: {', '.join(tested)}", versions().default_kubernetes)
    return value


def _retention(value: int) -> int:
    if value not in CLOUDWATCH_DAYS:
        near = min(CLOUDWATCH_DAYS, key=lambda days: (days < value, abs(days - value)))
        raise WrongValueError(
            f"is no time that CloudWatch can keep logs for; the next longer one is {near} days", str(near)
        )
    return value


def _lustre_capacity(value: int) -> int:
    larger = 1200 if value <= 1200 else value + -value % 2400
    if value != larger:
        raise WrongValueError(
            f"is no size of FSx for Lustre: 1200, 2400, then steps of 2400; the next larger one is {larger}",
            str(larger),
        )
    return value


def _tag_key(value: str) -> str:
    for beginning, whose in _TAGS_OF_OTHERS.items():
        if value.lower().startswith(beginning):
            raise ValueError(f"tags that begin with {beginning!r} are {whose}")
    if value == "Name":
        raise ValueError("each resource has a Name of its own")
    return _tag(value, 128)


def _tag_value(value: str) -> str:
    return _tag(value, 256)


def _tag(value: str, longest: int) -> str:
    # The characters that all services take (tagging rules in the AWS General Reference).
    if len(value) > longest or not re.fullmatch(r"[\w .:/=+@-]+", value):
        raise ValueError(f"must be letters, digits, spaces and . : / = + - @ _, at most {longest} long")
    return value


Region = Annotated[str, AfterValidator(_region), Field(examples=["us-east-2"])]
Zone = Annotated[
    str,
    AfterValidator(
        _matching(
            r"[a-z]{2,4}(-[a-z]+)+-[0-9][a-g]",
            "must be an availability zone, as in us-east-2a; local zones and zone ids (use2-az1) are none",
        )
    ),
    Field(examples=["us-east-2a"]),
]
VpcCidr = Annotated[str, AfterValidator(_vpc_cidr)]
PublicCidr = Annotated[str, AfterValidator(_public_cidr), Field(examples=["203.0.113.0/24"])]
VpcId = Annotated[
    str,
    AfterValidator(_matching(r"vpc-[0-9a-f]{8,17}", "must be the id of a VPC, as in vpc-0123456789abcdef0")),
    Field(examples=["vpc-0123456789abcdef0"]),
]
SubnetId = Annotated[
    str,
    AfterValidator(_matching(r"subnet-[0-9a-f]{8,17}", "must be the id of a subnet, as in subnet-0123456789abcdef0")),
    Field(examples=["subnet-0123456789abcdef0"]),
]
ReservationId = Annotated[
    str,
    AfterValidator(
        _matching(r"cr-[0-9a-f]{8,17}", "must be the id of a capacity reservation, as in cr-0123456789abcdef0")
    ),
    Field(examples=["cr-0123456789abcdef0"]),
]
Principal = Annotated[str, AfterValidator(_principal), Field(examples=["arn:aws:iam::111122223333:role/ml-team"])]
KeyArn = Annotated[
    str,
    AfterValidator(
        _matching(
            r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[0-9a-zA-Z-]+",
            "must be the ARN of a KMS key (not of an alias), as in"
            " arn:aws:kms:us-east-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        )
    ),
    Field(examples=["arn:aws:kms:us-east-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"]),
]
Moment = Annotated[str, AfterValidator(_moment), Field(examples=["2027-01-31T11:30:00Z"])]
InstanceTypeName = Annotated[str, AfterValidator(_instance_type), Field(examples=["g6.xlarge"])]
KubernetesVersion = Annotated[str, AfterValidator(_kubernetes), Field(examples=["1.36"])]
RetentionDays = Annotated[int, AfterValidator(_retention), Whole]
LustreCapacity = Annotated[int, AfterValidator(_lustre_capacity), Whole]
Email = Annotated[
    str,
    # As AWS Budgets takes it: no spaces, one @, a domain with a dot.
    AfterValidator(_matching(r"[^@\s]+@[^@\s]+\.[^@\s.]+", "must be a mail address, as in ml-platform@example.com")),
    Field(examples=["ml-platform@example.com"]),
]
RepositoryName = Annotated[
    str,
    AfterValidator(
        _matching(
            r"([a-z0-9]+([._-][a-z0-9]+)*/)*[a-z0-9]+([._-][a-z0-9]+)*",
            "must be a name that ECR takes: lower-case letters and digits, with single . _ - or / between them",
        )
    ),
    Field(examples=["training"]),
]
TagKey = Annotated[str, AfterValidator(_tag_key), Field(examples=["team"])]
TagValue = Annotated[str, AfterValidator(_tag_value), Field(examples=["research"])]
