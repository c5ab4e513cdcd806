"""Where figures go beside the progress lines: a file, TensorBoard, wandb.

    Loop(..., sinks=[JsonLines("figures.jsonl"), TensorBoard("runs/7"), Wandb("digits", mode="offline")])

Rank 0 writes. Who is rank 0 changes with the world, so a sink is opened by the rank 0 of each world, and goes on where
the one before has ended. TensorBoard and wandb are imported only where they are asked for; what is missing is said in a
sentence before the first step.
"""

import importlib
import json
import netrc
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from training.launch import environment

_WANDB: Final = "https://api.wandb.ai"


class SinkError(Exception):
    """Figures cannot be written as asked; the message says what to do."""


class Sink(Protocol):
    """A place for figures."""

    def open(self, step: int) -> None:
        """A world begins after this step; what was written of later ones is made anew.

        Raises:
            SinkError: a package, a key or a folder is missing.
        """

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step."""

    def close(self) -> None:
        """The world ends."""


class JsonLines:
    """One JSON object a line, appended: `step`, `time` (Unix seconds) and the figures.

    A step that is made again has a later line, which counts.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def open(self, step: int) -> None:  # noqa: ARG002
        """See `Sink`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise SinkError(f"figures cannot be written to {self._path}: {error.strerror}") from error

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Sink`."""
        self._file.write(json.dumps({"step": step, "time": round(time.time(), 3), **figures}) + "\n")

    def close(self) -> None:
        """See `Sink`."""
        self._file.close()


class TensorBoard:
    """Event files for TensorBoard; needs the package tensorboard."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)

    def open(self, step: int) -> None:
        """See `Sink`."""
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise SinkError(
                "TensorBoard is asked for and its package is not there: pip install tensorboard, or leave the sink out"
            ) from error
        self._writer = module.SummaryWriter(self._folder, purge_step=step + 1)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Sink`."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See `Sink`."""
        self._writer.close()


class Wandb:
    """A run at wandb, continued by each world; needs the package wandb.

    Args:
        project: its name there.
        run: id of the run; None: the job's (`TRAINYARD_RUN`), else a new one.
        mode: `offline` writes files that `wandb sync` sends later; None: `WANDB_MODE`, else online.
        options: more for `wandb.init`.
    """

    def __init__(
        self,
        project: str,
        *,
        run: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        **options: Any,
    ) -> None:
        self._project = project
        self._id = run or os.environ.get(environment.RUN, "").replace("/", "-") or None
        self._mode = mode or os.environ.get("WANDB_MODE", "online")
        self._options = options

    def open(self, step: int) -> None:  # noqa: ARG002
        """See `Sink`."""
        if self._mode == "online" and not _has_key():
            raise SinkError(
                "wandb is asked for and has no key: set WANDB_API_KEY, or WANDB_MODE=offline to write files that "
                "`wandb sync` sends later, or leave the sink out"
            )
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise SinkError(
                "wandb is asked for and its package is not there: pip install wandb, or leave the sink out"
            ) from error
        self._run = wandb.init(
            project=self._project,
            id=self._id,
            resume="allow" if self._id and self._mode == "online" else None,
            mode=self._mode,
            settings=wandb.Settings(silent=True, console="off"),
            **self._options,
        )

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Sink`."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """See `Sink`."""
        self._run.finish()


def _has_key() -> bool:
    """Whether wandb would find a key without asking for one."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", _WANDB)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
