"""What a user of the images can have got wrong."""

from infra.errors import TrainyardError, UsageError


class MatrixError(UsageError):
    """A combination that the matrix lacks or refuses; the sentence says which rule, and what to take instead."""


class BuildError(TrainyardError):
    """A build, an export or a push failed; the sentence names the tool, the step and what to do."""


class DockerfileError(UsageError):
    """A file that is no Dockerfile, or that cannot be read; the sentence names the file and the line."""


class CheckerError(TrainyardError):
    """A program that checks is absent or failed; the sentence names it and its package."""
