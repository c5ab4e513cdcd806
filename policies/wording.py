"""Recognises secrets by their shape, without ever showing them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SHAPES = (
    ("a key of AWS", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a secret key of AWS", re.compile(r"(?i)aws_secret_access_key\s*[=:]\s*['\"]?[A-Za-z0-9/+]{40}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a token of Hugging Face", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    ("a token of GitHub", re.compile(r"\b(?:ghp|gho|ghs|ghu|github_pat)_[A-Za-z0-9_]{30,}")),
    ("a token of Slack", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("a key of an API", re.compile(r"\bsk-[A-Za-z0-9_-]{32,}")),
    ("a token (JWT)", re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.")),
    ("a password in an address", re.compile(r"[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/:@$]{4,}@")),
)
_NAMES = re.compile(
    r"(?i)(?:^|_)(?:(?:pg|db)?password|passwd|pwd|pass|passphrase|secret|token|credentials?"
    r"|(?:api|access|private|secret|signing|encryption|account)_?key)(?:$|_(?:value|id)?$)"
)
_HARMLESS = re.compile(r"^(?:|true|false|[0-9]+|/\S*|\$\([A-Z0-9_]+\)|https?://[^@\s]*)$", re.IGNORECASE)


def secrets_in(text: str) -> Iterator[str]:
    """What of secrets a text seems to hold, in words."""
    for what, shape in _SHAPES:
        if shape.search(text):
            yield what


def named_like_secret(name: str, value: str) -> bool:
    """Whether an environment variable is called like a secret and has a value that could be one.

    Paths, numbers, addresses and references to other variables are none.
    """
    return bool(_NAMES.search(name)) and not _HARMLESS.match(value)
