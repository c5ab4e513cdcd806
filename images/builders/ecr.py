"""Amazon's registry: its login, which lasts twelve hours, and what a stack's repositories hold."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from images.builders.built import Tool
from images.errors import BuildError


@dataclass(frozen=True)
class Ecr:
    """The registry of an account in a region, with the credentials of the environment."""

    client: Any
    """boto3's client of the service."""

    @classmethod
    def of(cls, region: str) -> Ecr:
        """The registry of whoever the credentials belong to.

        Raises:
            BuildError: no such region or profile.
        """
        import boto3  # noqa: PLC0415 - a third of a second
        from botocore.config import Config  # noqa: PLC0415

        with _told():
            config = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=10, read_timeout=60)
            return cls(boto3.Session().client("ecr", region_name=region, config=config))

    def login(self, tool: Tool) -> None:
        """Give a tool a login. The password goes to it by stdin, so that no list of processes shows it.

        Raises:
            BuildError: AWS gives none, or the tool does not take it.
        """
        with _told():
            given = self.client.get_authorization_token()["authorizationData"][0]
        user, _, password = base64.b64decode(given["authorizationToken"]).decode().partition(":")
        tool.login(given["proxyEndpoint"].removeprefix("https://"), user, password)

    def repository(self, name: str, remedy: str) -> str:
        """The address of a repository.

        Args:
            name: as the stack gave it: `trainyard-prod/training`.
            remedy: what makes it where it is missing.

        Raises:
            BuildError: there is none, or AWS cannot be asked.
        """
        with _told({"RepositoryNotFoundException": f"there is no repository {name} in ECR yet. {remedy}"}):
            found = self.client.describe_repositories(repositoryNames=[name])["repositories"]
        uri: str = found[0]["repositoryUri"]
        return uri

    def digest(self, repository: str, tag: str) -> str | None:
        """The digest of an image that is there already; None: it is not. Tags of a stack's registry never change."""
        missing = "ImageNotFoundException"
        try:
            with _told({missing: missing}):
                found = self.client.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
        except BuildError as error:
            if str(error) == missing:
                return None
            raise
        digest: str = found["imageDetails"][0]["imageDigest"]
        return digest


@contextlib.contextmanager
def _told(known: dict[str, str] | None = None) -> Iterator[None]:
    """What AWS refuses, as a sentence; the codes in `known` have theirs."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise BuildError((known or {}).get(code) or f"ECR does not do it: {error}") from None
    except NoCredentialsError:
        raise BuildError(
            "there are no AWS credentials, which the stack's registry wants. Log in (aws sso login, or set"
            " AWS_PROFILE), then this again"
        ) from None
    except BotoCoreError as error:
        raise BuildError(f"ECR cannot be asked: {error}") from None
