"""The `trainyard` command: one module a topic. Heavy imports happen inside the commands, so that `--help` is quick."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import typer

from infra.cli import (
    check,
    cost,
    diagnose,
    diagram,
    doctor,
    drill,
    engines,
    explain,
    gpus,
    images,
    job_details,
    job_report,
    jobs,
    monitor,
    recommend,
    run,
    simulate,
    stack,
    template,
    top,
    verify,
    workflow,
)
from infra.errors import TrainyardError

app = typer.Typer(
    name="trainyard",
    help="GPU clusters for PyTorch training, as code, and the training on them kept alive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TOPICS = (
    stack,
    cost,
    diagram,
    jobs,
    job_details,
    top,
    job_report,
    recommend,
    diagnose,
    run,
    template,
    gpus,
    explain,
    doctor,
    simulate,
    verify,
    check,
    monitor,
)
for module in _TOPICS:
    module.register(app)
app.add_typer(drill.app, name="drill")
app.add_typer(engines.app, name="engines")
app.add_typer(images.app, name="images")
app.add_typer(workflow.app, name="workflow")


def main() -> None:
    """Run the command; a user's mistake ends with plain sentences and its exit code, never a traceback."""
    signal.signal(signal.SIGTERM, _terminated)
    _require_output()
    try:
        app()
        sys.stdout.flush()
    except TrainyardError as error:
        sys.stderr.write(f"trainyard: {error}\n")
        sys.exit(error.exit_code)
    except Exception as error:
        # A signal may arrive inside native code, which wraps the exit in an error of its own.
        if _signals:
            sys.exit(128 + _signals[0])
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EBADF, errno.EIO):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails once more when it ends
            sys.stderr.write(f"trainyard: output cannot be written: {error.strerror}\n")
            sys.exit(1)
        raise


def _require_output() -> None:
    """End where stdout is closed (`>&-`): the next file that is opened would be it. Who closes stderr wants no word.

    What the encoding of the output lacks, as in a log of ASCII, is written as its code point.
    """
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
    if sys.stdout is None:
        sys.stderr.write("trainyard: stdout is closed, so that no result can be shown; >/dev/null hides it as well\n")
        sys.exit(1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


_signals: list[int] = []


def _terminated(number: int, _: FrameType | None) -> None:
    """End in order, as on Ctrl-C: what runs below is told, locks are given back."""
    _signals.append(number)
    raise SystemExit(128 + number)
