"""References of container images: `registry.example/training:1@sha256:…`."""

from __future__ import annotations

import re

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
# Registry with port, path and tag, as the distribution specification has them.
_WHOLE = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(@sha256:[0-9a-f]{64})?"
)


def is_reference(text: str) -> bool:
    """Whether a text is a reference."""
    return bool(_WHOLE.fullmatch(text))


def is_pinned(reference: str) -> bool:
    """Whether a reference names an image by digest, so that it is the same one tomorrow."""
    return bool(_DIGEST.search(reference))


def repository_of(reference: str) -> str:
    """Registry and repository of a reference, without tag and digest."""
    before, slash, last = reference.partition("@")[0].rpartition("/")
    return f"{before}{slash}{last.partition(':')[0]}"
