"""Digests of images in registries, by the registries' own HTTP API: no tool needed, nor a login for public ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from images.errors import BuildError

_DOCKER_HUB = "registry-1.docker.io"
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_SECONDS = 30.0


class UnreachableError(BuildError):
    """A registry does not answer at all: nothing else needs to be asked there."""


@dataclass(frozen=True)
class Reference:
    """The parts of `registry.example:5000/team/image:tag`."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference as docker does: no registry means Docker Hub, no tag `latest`."""
        path, _, tag = text.rpartition(":") if ":" in text.rpartition("/")[2] else (text, "", "latest")
        first, slash, rest = path.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry = _DOCKER_HUB if first == "docker.io" else first
            repository = rest
        else:
            registry, repository = _DOCKER_HUB, path
        if registry == _DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, tag)

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"


def digest(reference: str, client: httpx2.Client | None = None) -> str:
    """The digest that a tag has now: of the index of all architectures, else of the one manifest.

    Args:
        reference: `debian:bookworm-slim`, `nvcr.io/nvidia/pytorch:26.03-py3`.
        client: through which to ask; None: one that trusts this computer's authorities.

    Raises:
        UnreachableError: the registry cannot be reached, or does not answer.
        BuildError: it has no such tag, or does not show it.
    """
    wanted = Reference.parse(reference)
    try:
        if client is not None:
            return _ask(client, wanted)
        with httpx2.Client(timeout=_SECONDS, follow_redirects=True) as own:
            return _ask(own, wanted)
    except httpx2.TimeoutException:
        raise UnreachableError(f"{wanted.registry} did not answer in {_SECONDS:.0f} s about {reference}") from None
    except (httpx2.InvalidURL, UnicodeError):
        raise BuildError(
            f"{wanted.registry} answers about {reference} with an address or a token that is none"
        ) from None
    except httpx2.HTTPError as error:
        raise UnreachableError(
            f"{wanted.registry} cannot be reached, which knows the digest of {reference}"
            f" ({str(error) or type(error).__name__}). Run this where there is a way to it (HTTPS_PROXY and"
            " SSL_CERT_FILE are respected)"
        ) from None


def _ask(client: httpx2.Client, wanted: Reference) -> str:
    url = f"https://{wanted.registry}/v2/{wanted.repository}/manifests/{wanted.tag}"
    headers = {"Accept": ", ".join(_INDEXES + _MANIFESTS)}
    answer = client.head(url, headers=headers)
    if answer.status_code == httpx2.codes.UNAUTHORIZED:
        headers |= _anonymous(client, answer.headers.get("WWW-Authenticate", ""), wanted)
        answer = client.head(url, headers=headers)
    _require(answer, wanted)
    found = answer.headers.get("Docker-Content-Digest", "")
    if not _DIGEST.fullmatch(found):  # it is not obliged to say so; the digest is that of the bytes
        answer = client.get(url, headers=headers)
        _require(answer, wanted)
        found = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    return found


def _anonymous(client: httpx2.Client, challenge: str, wanted: Reference) -> Mapping[str, str]:
    """The header of a reader without a name."""
    said = dict(_CHALLENGE.findall(challenge))
    realm = said.get("realm", "")
    if not challenge.lower().startswith("bearer ") or not realm.startswith("https://"):
        raise BuildError(f"{wanted.registry} wants a login for {wanted.repository}; digests are read without one")
    scope = said.get("scope") or f"repository:{wanted.repository}:pull"
    answer = client.get(realm, params={"service": said.get("service", wanted.registry), "scope": scope})
    _require(answer, wanted)
    try:
        given = answer.json()
        token = given.get("token") or given.get("access_token")
    except (ValueError, AttributeError):
        token = None
    if not isinstance(token, str) or not token:
        raise BuildError(f"{realm} gave no token for {wanted.repository}")
    return {"Authorization": f"Bearer {token}"}


def _require(answer: httpx2.Response, wanted: Reference) -> None:
    if plain := next((one.url.host for one in (*answer.history, answer) if one.url.scheme != "https"), None):
        raise BuildError(f"{wanted}: the registry leads to {plain} without TLS, where anybody could answer")
    if answer.is_success:
        return
    code = answer.status_code
    reasons: dict[int, str] = {
        httpx2.codes.NOT_FOUND: "has no such tag (any more)",
        httpx2.codes.UNAUTHORIZED: "wants a login for it; digests are read without one",
        httpx2.codes.FORBIDDEN: "does not show it without a login",
        httpx2.codes.TOO_MANY_REQUESTS: "has been asked too often from here; try again in some hours",
    }
    raise BuildError(f"{wanted}: the registry {reasons.get(code, f'answers with {code}')}")
