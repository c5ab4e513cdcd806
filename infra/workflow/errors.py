"""What can go wrong in a workflow."""

from infra.errors import TrainyardError


class DefinitionError(TrainyardError):
    """The file of a workflow cannot be used; the message lists every mistake."""

    exit_code = 2


class StepError(TrainyardError):
    """A step of a workflow failed."""


class StoreError(TrainyardError):
    """The place of published models cannot be used, or does not hold what was asked for."""


class GateError(TrainyardError):
    """A model is not good enough to become the current one."""
