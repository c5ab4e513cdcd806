"""The Go toolchain that builds engines: found, new enough, or a plain error."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from infra.local.engines import cache
from infra.local.engines.catalogue import EngineSpec, version_numbers
from infra.local.engines.discovery import program_version
from infra.local.engines.errors import WAYS_OUT, EngineError

GO_AT_LEAST = (1, 26)  # the `go` line of the engines' modules
_GO = EngineSpec(
    name="go",
    purpose="builds engines",
    version="1.26",
    module=Path(),
    package="",
    ldflags="",
    seconds=0,
    megabytes=0,
    version_arguments=("version",),
    version_pattern=r"go version (go\S+)",
)


@dataclass(frozen=True)
class Go:
    """A toolchain: its command and what it calls itself (`go1.26.8`)."""

    path: Path
    version: str


def find_go(missing: list[str]) -> Go:
    """The `go` of PATH.

    Args:
        missing: the engines that are to be built, for the error.

    Raises:
        EngineError: there is none, or it is too old.
    """
    wanted = f"{', '.join(missing)} must be built first, and that needs Go {'.'.join(map(str, GO_AT_LEAST))} or newer"
    found = shutil.which("go")
    if not found:
        raise EngineError(f"{wanted}; there is no go on PATH. Install it and run this again. {WAYS_OUT}")
    version = program_version(Path(found), _GO)
    if version is None:
        raise EngineError(f"{wanted}; {found} does not tell its version. {WAYS_OUT}")
    numbers = version_numbers(version.removeprefix("go"))
    if numbers is not None and numbers < GO_AT_LEAST:
        raise EngineError(f"{wanted}; {found} is {version}. Install a newer one and run this again. {WAYS_OUT}")
    return Go(Path(found).absolute(), version.split("-")[0])


def build_environment(temporary: Path) -> dict[str, str]:
    """The environment of a build: the user's, less what would change the result.

    Args:
        temporary: for Go's own temporary files; /tmp may be small, and a killed build's rest is found here.
    """
    dropped = {"GOOS", "GOARCH", "GOAMD64", "GOARM64", "GO111MODULE", "GOEXPERIMENT", "GOTOOLDIR"}
    return {key: value for key, value in os.environ.items() if key not in dropped} | {
        "CGO_ENABLED": "0",
        "GOFLAGS": cache.BUILD_FLAGS,
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOTMPDIR": str(temporary),
    }


def go_env(go: Go, name: str) -> str:
    """One setting of the toolchain, such as `GOPROXY`."""
    answer = subprocess.run([str(go.path), "env", name], capture_output=True, text=True, check=False)
    return answer.stdout.strip()
