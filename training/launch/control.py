"""The launcher's end of its line to one worker that uses the hooks (`training.launch.elastic`).

A socket pair, JSON, one message a line. A worker that does not use the hooks says nothing, and is told nothing.

| message | from     | meaning |
| ------- | -------- | ------------------------------------------------------------------------------------------- |
| hello   | worker   | it uses the hooks, so it can be kept |
| halt    | launcher | stop: after the step, or at once when the world is broken (`hard`) |
| halting | worker   | it has heard of a broken world; `interrupted`: nothing holds it up in a collective any more |
| waiting | worker   | it has let go of the world of this generation, and waits for the next |
| world   | launcher | the next world, as environment variables |
| save    | launcher | this node may go soon: save after the step, and go on |
| leave   | launcher | this node goes: end after the step |
| pace    | worker   | answer to leave: seconds that the last step and the last checkpoint took, as far as known |
| mark    | worker   | a phase of the recovery has ended, at this moment of CLOCK_MONOTONIC |
| done    | worker   | training is finished; what the script still does is its own |
"""

import json
import socket
from collections.abc import Mapping
from typing import Any


class ControlLine:
    """One worker, as far as it has told."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.setblocking(False)
        self._buffer = b""
        self.uses_hooks = False
        self.is_waiting = False
        self.is_done = False
        self.is_interrupted = False
        self.is_open = True
        self.pace: tuple[float | None, float | None] | None = None
        """Seconds of the last step and of the last checkpoint; None until it has answered."""

    def fileno(self) -> int:
        """For select(2)."""
        return self._connection.fileno()

    def read(self) -> list[dict[str, Any]]:
        """What the worker has said since the last call."""
        while self.is_open:
            try:
                chunk = self._connection.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self._buffer += chunk
            self.is_open = bool(chunk)
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            self._note(message)
        return messages

    def halt(self, *, hard: bool) -> None:
        """The world is over."""
        self._tell(kind="halt", hard=hard)

    def save(self) -> None:
        """A checkpoint is wanted."""
        self._tell(kind="save")

    def leave(self) -> None:
        """This node goes."""
        self._tell(kind="leave")

    def world(self, environment: Mapping[str, str]) -> None:
        """Here is the next world."""
        self.is_waiting = self.is_interrupted = False
        self._tell(kind="world", environment=dict(environment))

    def _note(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "hello":
                self.uses_hooks = True
            case "halting":
                self.is_interrupted = bool(message["interrupted"])
            case "waiting":
                self.is_waiting = True
            case "pace":
                self.pace = message["step"], message["save"]
            case "done":
                self.is_done = True

    def _tell(self, **message: object) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # it has ended; or it reads nothing any more, and will be ended
            self.is_open = False
