"""The look-ups that a program may make: whose credentials these are, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws, AwsRefusedError


def caller_identity(aws: Aws, arguments: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG001
    """Who moto says that we are."""
    found = aws.call("sts", "GetCallerIdentity")
    return {
        "accountId": found["Account"],
        "arn": found["Arn"],
        "userId": found["UserId"],
        "id": found["Account"],
    }


def partition(aws: Aws, arguments: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG001
    """The partition of the provider's region."""
    backwards = ".".join(reversed(aws.dns_suffix.split(".")))
    return {
        "partition": aws.partition,
        "dnsSuffix": aws.dns_suffix,
        "reverseDnsPrefix": backwards,
        "id": aws.partition,
    }


def region(aws: Aws, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The provider's region, or one that is named.

    Raises:
        AwsRefusedError: the region exists in no partition, or the program looks one up by its endpoint.
    """
    if arguments.get("endpoint"):
        raise AwsRefusedError("the rehearsal does not look regions up by their endpoint; name the region")
    name = arguments.get("region") or arguments.get("name") or aws.region
    found = aws.call("ec2", "DescribeRegions", absent=("InvalidParameterValue",), RegionNames=[name], AllRegions=True)
    if not (found and found["Regions"]):
        raise AwsRefusedError(f"AWS has no region {name!r}")
    endpoint = found["Regions"][0]["Endpoint"]
    return {"region": name, "name": name, "id": name, "endpoint": endpoint, "description": name}


def availability_zones(aws: Aws, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The zones of the provider's region that moto knows; local zones are none of them."""
    zones = aws.call(
        "ec2",
        "DescribeAvailabilityZones",
        AllAvailabilityZones=arguments.get("allAvailabilityZones"),
        Filters=[{"Name": one["name"], "Values": one["values"]} for one in arguments.get("filters") or ()] or None,
    )["AvailabilityZones"]
    without_names = set(arguments.get("excludeNames") or ())
    without_ids = set(arguments.get("excludeZoneIds") or ())
    state = arguments.get("state")
    wanted = sorted(
        (
            zone
            for zone in zones
            if zone["ZoneName"] not in without_names
            and zone["ZoneId"] not in without_ids
            and state in {None, zone["State"]}
        ),
        key=lambda zone: str(zone["ZoneName"]),
    )
    return {
        **arguments,
        "id": aws.region,
        "region": aws.region,
        "names": [zone["ZoneName"] for zone in wanted],
        "zoneIds": [zone["ZoneId"] for zone in wanted],
        "groupNames": sorted({zone.get("GroupName") or aws.region for zone in wanted}),
    }


INVOKES: Mapping[str, Callable[[Aws, Mapping[str, Any]], Mapping[str, Any]]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": caller_identity,
    "aws:index/getPartition:getPartition": partition,
    "aws:index/getRegion:getRegion": region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": availability_zones,
}
"""Token -> what answers it."""
