"""The settings of a stack in a VPC that exists."""

from __future__ import annotations

from recorded_program import Config

SUBNETS = {"us-east-2a": "subnet-0123456789abcdef0", "us-east-2b": "subnet-0123456789abcdef1"}
IN_A_GIVEN_VPC: Config = {
    "target": "aws",
    "images": {"controller": "registry.example/controller:1", "etcd": "registry.example/etcd:1"},
    "aws": {
        "region": "us-east-2",
        "network": {"vpcId": "vpc-0123456789abcdef0", "privateSubnets": SUBNETS},
        "nodePools": [
            {"name": "fabric", "types": ["p4d.24xlarge"], "efa": True, "zone": "us-east-2b"},
            {"name": "bottle", "types": ["g6.xlarge"], "operatingSystem": "bottlerocket"},
        ],
        "storage": {"lustre": {"zone": "us-east-2b"}},
    },
}
