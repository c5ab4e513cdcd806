"""The one kind of error that the command shows as plain sentences instead of a traceback."""

from __future__ import annotations


class TrainyardError(Exception):
    """Something that the user can mend; the message says what happened, why, and what to do next.

    `exit_code` is what the command returns: 1 for a failure, 2 for wrong usage or settings.
    """

    exit_code = 1


class UsageError(TrainyardError):
    """The command was called in a way that cannot work."""

    exit_code = 2
