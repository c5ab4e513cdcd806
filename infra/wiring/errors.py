"""What wiring raises when settings that are right one by one cannot be made into one machine or one network."""

from __future__ import annotations

from infra.errors import TrainyardError


class WiringError(TrainyardError):
    """The pieces do not fit together; the message says which, why, and which setting to change."""

    exit_code = 2
