"""moto's server, the stand-in for AWS's own services: how it is started, and how to ask it."""

from __future__ import annotations

import sys
import urllib.request

NAME = "moto"
ACCOUNT = "123456789012"  # the account that moto plays
LOOPBACK = "127.0.0.1"
_ANSWER_SECONDS = 5.0

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "rehearsal", "AWS_SECRET_ACCESS_KEY": "rehearsal"}
"""moto takes any; these are nobody's."""


def command(port: int) -> list[str]:
    """The command that serves moto on a loopback port."""
    return [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)]


def environment() -> dict[str, str]:
    """Its variables: with AWS's own policies, which roles name; without machine images, which nobody asks for."""
    return {
        "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
        "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
        "PYTHONUNBUFFERED": "1",
    }


def answers(endpoint: str) -> bool:
    """Whether moto answers at an address."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint}/moto-api/config", timeout=_ANSWER_SECONDS) as answer:
            return bool(answer.status < 300)
    except OSError:
        return False


def aws_environment(endpoint: str, region: str) -> dict[str, str]:
    """Variables with which AWS tools and boto3 ask moto, and cannot reach an account."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        **CREDENTIALS,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
