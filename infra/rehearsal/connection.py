"""Where a rehearsal is: one file that its parts find by an environment variable, private to the user."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from infra.errors import TrainyardError
from infra.local.state import State

FOLDER_VARIABLE = "TRAINYARD_REHEARSAL"
"""Environment variable with the folder of the rehearsal, for the programs that the engine starts."""
FILE = "rehearsal.json"


class NoRehearsalError(TrainyardError):
    """There is no rehearsal where one was expected, or its record cannot be read."""


@dataclass(frozen=True)
class Connection:
    """How to reach the stand-ins of one rehearsal."""

    aws_endpoint_url: str
    """Where moto answers, e.g. `http://127.0.0.1:5123`."""
    region: str
    """The stack's region, e.g. `us-east-2`."""
    account: str
    """The account that moto plays, 12 digits."""
    kubeconfig: Path
    """The administrator's kubeconfig of the real API server."""
    server: str
    """That API server's address: what the double's EKS cluster gives as its endpoint."""
    certificate_authority: str
    """Its authority as base64 of PEM, as EKS gives it."""

    def write(self, state: State) -> None:
        """Write the record into the rehearsal's folder (mode 0600)."""
        state.write_json(state.path(FILE), {**dataclasses.asdict(self), "kubeconfig": str(self.kubeconfig)})

    @classmethod
    def read(cls, folder: Path | None = None) -> Connection:
        """Read the record.

        Args:
            folder: the rehearsal's folder; absent: what `TRAINYARD_REHEARSAL` names.

        Raises:
            NoRehearsalError: no folder is named, or there is no usable record in it.
        """
        where = folder or folder_of_environment()
        try:
            found = json.loads((where / FILE).read_text())
            if not all(isinstance(value, str) for value in found.values()):
                raise ValueError("values must be texts")  # noqa: TRY301
            return cls(**{**found, "kubeconfig": Path(found["kubeconfig"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise NoRehearsalError(
                f"there is no rehearsal in {where}: {FILE} cannot be read ({error})."
                " Begin one: trainyard up -s <stack> --rehearse"
            ) from error


def folder_of_environment() -> Path:
    """The folder that `TRAINYARD_REHEARSAL` names.

    Raises:
        NoRehearsalError: the variable is not set, so this program was not started by a rehearsal.
    """
    if not (named := os.environ.get(FOLDER_VARIABLE)):
        raise NoRehearsalError(
            f"{FOLDER_VARIABLE} is not set: this program is a part of a rehearsal and is started by one."
            " Begin one: trainyard up -s <stack> --rehearse"
        )
    return Path(named)
