"""Questions to a metadata service: plain HTTP to an address of the link, or to a stand-in."""

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from training.launch.environment import METADATA_ENDPOINT

# All three clouds answer here.
LINK_LOCAL: Final = "http://169.254.169.254"
# The service is one hop away; where packets do not come back (a hop limit of 1, seen from a pod) nobody refuses either.
PATIENCE: Final = timedelta(seconds=2)
MOST_BYTES: Final = 256 * 1024


class MetadataError(Exception):
    """No answer, or none that makes sense."""


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: of HTTP.
        text: the body.
        headers: by lower-case name.
    """

    status: int
    text: str
    headers: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """The body as an object.

        Raises:
            MetadataError: it is none.
        """
        try:
            document = json.loads(self.text)
        except ValueError as error:
            raise MetadataError(f"no JSON: {self.text[:80]!r}") from error
        if not isinstance(document, dict):
            raise MetadataError(f"no JSON object: {self.text[:80]!r}")
        return document


def endpoint() -> str:
    """Where to ask: $TRAINYARD_METADATA_ENDPOINT, or the address of the link."""
    return os.environ.get(METADATA_ENDPOINT) or LINK_LOCAL


def ask(
    path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET", patience: timedelta = PATIENCE
) -> Answer:
    """Ask once. No proxy is used, whatever the environment says: the service is of this machine.

    Raises:
        MetadataError: nobody answers within `patience`, or what answers does not speak HTTP.
    """
    place = urlsplit(endpoint())
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=patience.total_seconds())
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        body = response.read(MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise MetadataError(f"{endpoint()}{path}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    named = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, body.decode(errors="replace"), named)
