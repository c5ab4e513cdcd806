"""What a build reports while it runs; `infra.cli.engines` draws it."""

from typing import Protocol


class BuildProgress(Protocol):
    """Told about each engine that is built, from one thread."""

    def note(self, text: str) -> None:
        """A sentence about the whole: what it will take, or whom it waits for."""

    def started(self, name: str, seconds: int) -> None:
        """A build began; `seconds` is what it took on two cores with empty caches."""

    def log(self, name: str, line: str) -> None:
        """One line of a build's output: a module that is fetched, a package that is compiled."""

    def finished(self, name: str, seconds: float) -> None:
        """A build is done and installed."""


class NoProgress:
    """Nobody watches."""

    def note(self, text: str) -> None:
        """See `BuildProgress.note`."""

    def started(self, name: str, seconds: int) -> None:
        """See `BuildProgress.started`."""

    def log(self, name: str, line: str) -> None:
        """See `BuildProgress.log`."""

    def finished(self, name: str, seconds: float) -> None:
        """See `BuildProgress.finished`."""
