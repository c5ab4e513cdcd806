"""How the local cluster tells what it is doing; the command line draws it, tests and programs ignore it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """What a long operation reports while it runs."""

    def step(self, name: str) -> AbstractContextManager[None]:
        """Span one named step; the time spent inside is the step's."""

    def note(self, text: str) -> None:
        """One line about the step that runs, or about something the user should know."""


class Silent:
    """Progress that nobody watches."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:  # noqa: ARG002 - the protocol's name
        """See `Progress.step`."""
        yield

    def note(self, text: str) -> None:
        """See `Progress.note`."""
