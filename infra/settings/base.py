"""What all sections of a stack file are made of: their base class, and the types of single values."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.alias_generators import to_camel

# What Kubernetes takes as an object name (RFC 1123 label).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# The subset of Kubernetes quantities that makes sense for storage and memory.
_SIZE = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti)")
# A value of the engine is text: this says so to the validators of numbers.
FROM_TEXT = "values are text"


class WrongValueError(ValueError):
    """What a validator raises when it knows what would have been right."""

    def __init__(self, reason: str, instead: str | None) -> None:
        super().__init__(reason)
        self.instead = instead
        """A right value for the command that fixes it; None where there is no better one than the usual example."""


def _name(value: str) -> str:
    if len(value) > 40 or not _NAME.fullmatch(value):
        raise ValueError(
            "must be a Kubernetes name: lower-case letters, digits and '-', beginning and ending with a letter or"
            " digit, at most 40 long"
        )
    return value


def _size(value: str) -> str:
    if not _SIZE.fullmatch(value):
        raise ValueError("must be a whole number with a unit Ki, Mi, Gi or Ti, for example 10Gi")
    return value


def _words(value: str) -> str:
    if not value or value != value.strip():
        raise ValueError("must not be empty, nor begin or end with a space")
    return value


def _whole(value: Any, info: ValidationInfo) -> int:
    if info.context == FROM_TEXT and isinstance(value, str) and re.fullmatch(r"[0-9]+", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number, without quotes")  # noqa: TRY004 - pydantic takes ValueErrors
    return value


def _switch(value: Any, info: ValidationInfo) -> bool:
    if info.context == FROM_TEXT and value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise ValueError("must be true or false, without quotes")  # noqa: TRY004 - pydantic takes ValueErrors
    return value


# The examples stand in the commands that fix a mistake, wherever there is no default.
Whole = BeforeValidator(_whole)
"""Beside `Field(ge=…, le=…)`: a whole number, of which YAML knows more spellings than people."""
Switch = Annotated[bool, BeforeValidator(_switch)]
"""True or false; neither `"true"` nor 1, which pydantic would take as well."""
Name = Annotated[str, AfterValidator(_name), Field(examples=["gpu-spot"])]
Size = Annotated[str, AfterValidator(_size), Field(examples=["16Gi"])]
Words = Annotated[str, AfterValidator(_words)]


class Section(BaseModel):
    """A mapping of the stack file: keys in camelCase, unknown keys refused, values of exactly the stated type."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,  # for Python code; a stack file is held to the camelCase keys
        use_attribute_docstrings=True,  # the reference page is made of them
    )
