"""What Pulumi.<account>.yaml beside this says, checked as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from infra.errors import UsageError
from infra.wiring.ci_rights import reaching_too_far
from infra.wiring.ci_trust import Repository
from infra.wiring.errors import WiringError

ROLES = "trainyard-ci"
"""How the names of CI's own roles begin."""
_PREFIX = "trainyard-ci:"
_CLUSTER = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
_STACK = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class SettingsError(UsageError):
    """The settings are wrong; all that is wrong is said."""


class Settings(BaseModel):
    """The program's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, str_strip_whitespace=True)

    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+){1,3}-\d$")
    host: Literal["github", "gitlab"] = "github"
    repository: str
    branch: str = "main"
    owner_id: int | None = Field(None, gt=0)
    repository_id: int | None = Field(None, gt=0)
    url: str = ""
    stacks: dict[_STACK, _CLUSTER] = Field(min_length=1)
    state_bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    state_key: str = Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+$")
    existing_provider: str | None = Field(None, pattern=r"^arn:aws[a-z-]*:iam::\d{12}:oidc-provider/[A-Za-z0-9./:_-]+$")

    @property
    def of_host(self) -> Repository:
        """The repository as the host knows it."""
        return Repository(self.host, self.repository, self.branch, self.owner_id, self.repository_id, self.url)

    @model_validator(mode="after")
    def _nothing_beyond(self) -> Settings:
        if wrong := reaching_too_far(tuple(self.stacks.values()), roles=ROLES, bucket=self.state_bucket):
            raise ValueError("; ".join(wrong))
        return self

    @model_validator(mode="after")
    def _one_repository(self) -> Settings:
        try:
            provider = self.of_host.issuer.removeprefix("https://")
        except WiringError as error:
            raise ValueError(str(error)) from None
        if self.existing_provider and not self.existing_provider.endswith(f"oidc-provider/{provider}"):
            raise ValueError(f"existingProvider is not that of {provider}")
        return self

    @classmethod
    def read(cls, config: Mapping[str, str], stack: str) -> Settings:
        """From what the engine tells: text, or JSON where a value has a structure.

        Raises:
            SettingsError: with every mistake, its key and the file.
        """
        found = {key.removeprefix(_PREFIX): _value(value) for key, value in config.items() if key.startswith(_PREFIX)}
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            lines = []
            for one in error.errors():
                key = ".".join(map(str, one["loc"]))
                said = one["msg"].removeprefix("Value error, ")
                lines.append(f"  {_PREFIX}{key}: {said}" if key else f"  {said}")
            raise SettingsError(
                f"Pulumi.{stack}.yaml of ci/aws:\n" + "\n".join(lines) + "\nCompare with Pulumi.example.yaml"
            ) from None


def _value(value: str) -> Any:
    return json.loads(value) if value.startswith(("{", "[")) else value
