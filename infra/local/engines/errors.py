"""What the engines room says when an engine cannot be had."""

from pathlib import Path

from infra.errors import TrainyardError

WAYS_OUT = (
    "Ways round a build: put the engine on PATH, unpack engines that another machine built"
    " (`trainyard engines unpack FILE`), or use an existing cluster (`target: kubeconfig` in the stack file)."
)


class EngineError(TrainyardError):
    """An engine cannot be found, built or unpacked; its text is meant for the user: what, why, what next."""


def cannot_write(folder: Path, error: OSError) -> EngineError:
    """The cache cannot be used: read-only, full, or no folder at all."""
    return EngineError(
        f"the engine cache {folder} cannot be written: {error.strerror or error}."
        " Free some space or fix its permissions, or name another folder in TRAINYARD_CACHE_DIR."
    )
