"""Digests from registries, and from there into the matrix; the registry is a function here, behind httpx2."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from images.builders import pins
from images.builders.pins import Pin
from images.builders.registry import Reference, UnreachableError, digest
from images.errors import BuildError
from images.matrix import load

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
TODAY = datetime.date(2026, 12, 1)
MATRIX = Path(__file__).parents[2] / "images" / "matrix.toml"

Answer = Callable[[httpx2.Request], httpx2.Response]


def asked(answer: Answer, reference: str = "debian:bookworm-slim") -> str:
    with httpx2.Client(transport=httpx2.MockTransport(answer), follow_redirects=True) as client:
        return digest(reference, client)


def found(digest: str | None) -> httpx2.Response:
    return httpx2.Response(200, headers={"Docker-Content-Digest": digest} if digest else {}, content=b"{}")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("debian:bookworm-slim", ("registry-1.docker.io", "library/debian", "bookworm-slim")),
        ("docker.io/library/debian", ("registry-1.docker.io", "library/debian", "latest")),
        ("nvidia/cuda:13.2.1-base", ("registry-1.docker.io", "nvidia/cuda", "13.2.1-base")),
        ("nvcr.io/nvidia/pytorch:26.08-py3", ("nvcr.io", "nvidia/pytorch", "26.08-py3")),
        ("localhost:5000/a/b", ("localhost:5000", "a/b", "latest")),
    ],
)
def test_references_are_read_as_docker_reads_them(text: str, parts: tuple[str, str, str]) -> None:
    assert Reference.parse(text) == Reference(*parts)


def test_a_public_tag_is_asked_for_with_a_token_for_nobody() -> None:
    seen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        if request.url.host == "auth.example":
            assert dict(request.url.params) == {"service": "hub", "scope": "repository:library/debian:pull"}
            return httpx2.Response(200, json={"token": "for-nobody"})
        if "Authorization" not in request.headers:
            challenge = 'Bearer realm="https://auth.example/token",service="hub",scope="repository:library/debian:pull"'
            return httpx2.Response(401, headers={"WWW-Authenticate": challenge})
        assert request.headers["Authorization"] == "Bearer for-nobody"
        return found(DIGEST)

    assert asked(answer) == DIGEST
    assert [request.method for request in seen] == ["HEAD", "GET", "HEAD"]
    assert str(seen[0].url) == "https://registry-1.docker.io/v2/library/debian/manifests/bookworm-slim"
    assert "application/vnd.oci.image.index.v1+json" in seen[0].headers["Accept"]


def test_a_registry_that_names_no_digest_is_asked_for_the_bytes() -> None:
    assert asked(lambda _: found(None)) == f"sha256:{hashlib.sha256(b'{}').hexdigest()}"


@pytest.mark.parametrize(
    ("code", "words"),
    [(404, "has no such tag"), (403, "without a login"), (429, "asked too often"), (500, "answers with 500")],
)
def test_a_refusal_is_a_sentence(code: int, words: str) -> None:
    with pytest.raises(BuildError, match=words):
        asked(lambda _: httpx2.Response(code))


@pytest.mark.parametrize("challenge", ["", 'Basic realm="x"', 'Bearer realm="http://plain.example/token"'])
def test_a_registry_that_wants_a_password_or_no_tls_is_refused(challenge: str) -> None:
    with pytest.raises(BuildError, match="wants a login"):
        asked(lambda _: httpx2.Response(401, headers={"WWW-Authenticate": challenge}))


@pytest.mark.parametrize("token", [None, "", 5, {}])
def test_a_token_that_is_none_is_a_sentence(token: object) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "auth.example":
            return httpx2.Response(200, json={"token": token, "access_token": token})
        return httpx2.Response(401, headers={"WWW-Authenticate": 'Bearer realm="https://auth.example/"'})

    with pytest.raises(BuildError, match=r"https://auth\.example/ gave no token"):
        asked(answer)


@pytest.mark.parametrize(("realm", "token"), [("https://auth.example/\x01", "t"), ("https://auth.example/", "é")])
def test_an_address_or_a_token_that_cannot_be_sent_is_a_sentence(realm: str, token: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "auth.example":
            return httpx2.Response(200, json={"token": token})
        return httpx2.Response(401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})

    with pytest.raises(BuildError, match="an address or a token that is none"):
        asked(answer)


def test_a_registry_may_lead_elsewhere_but_not_without_tls() -> None:
    def leads_to(address: str) -> Answer:
        return lambda request: (
            httpx2.Response(307, headers={"Location": address})
            if request.url.path.startswith("/v2/")
            else found(DIGEST)
        )

    assert asked(leads_to("https://cdn.example/manifest")) == DIGEST
    with pytest.raises(BuildError, match=r"leads to cdn\.example without TLS"):
        asked(leads_to("http://cdn.example/manifest"))


def test_no_way_to_a_registry_is_a_sentence() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("Name or service not known", request=request)

    with pytest.raises(UnreachableError, match=r"registry-1\.docker\.io cannot be reached.*HTTPS_PROXY"):
        asked(answer)


def test_every_base_of_the_matrix_can_be_pinned_and_nothing_else_changes() -> None:
    text = MATRIX.read_text(encoding="utf-8")
    looked, problems = pins.look(text, lambda _: DIGEST)
    assert problems == []
    changed = pins.written(text, looked, TODAY)
    for row in load(changed).rows:
        for base in filter(None, (row.base, row.builder, row.compiled_base)):
            assert base.digest == DIGEST
            assert base.unpinned is None
            assert base.checked == TODAY
    keys = ("digest", "unpinned", "checked")
    kept = [line for line in text.splitlines() if not line.startswith(keys)]
    assert [line for line in changed.splitlines() if not line.startswith(keys)] == kept
    assert pins.written(changed, pins.look(changed, lambda _: DIGEST)[0], TODAY) == changed


def test_comments_and_other_tables_stay() -> None:
    text = (
        '# what it is\n[base.a]  # first\nreference = "a:1"\n# why not\n'
        'unpinned = "no way there"\nchecked = 2026-01-01\n'
        '\n[torch."2"]\nchecked = 2026-01-01\n[base."b.c"]\nreference = "b:1"\ndigest = "'
        + DIGEST
        + '"\nchecked = 2026-01-01\n'
    )
    made = pins.written(text, [Pin("a", "a:1", None, OTHER), Pin("b.c", "b:1", DIGEST, None)], TODAY)
    assert made == text.replace('unpinned = "no way there"\nchecked = 2026-01-01', "checked = 2026-12-01").replace(
        '"a:1"\n', f'"a:1"\ndigest = "{OTHER}"\n'
    )


def test_what_is_new_what_has_moved_and_what_is_not_known() -> None:
    pairs = ((None, DIGEST), (OTHER, DIGEST), (DIGEST, DIGEST), (OTHER, None))
    assert [Pin("a", "a", *pair).state for pair in pairs] == ["new", "moved", "current", "unknown"]


def test_a_silent_registry_is_asked_once_and_the_others_all_the_same() -> None:
    calls = []

    def ask(reference: str) -> str:
        calls.append(reference)
        if not reference.startswith("nvcr.io"):
            raise UnreachableError("the hub cannot be reached")
        return DIGEST

    text = "".join(f'[base.{name}]\nreference = "{name}"\n' for name in ("a", "b"))
    looked, problems = pins.look(text + '[base.c]\nreference = "nvcr.io/c"\n', ask)
    assert calls == ["a", "nvcr.io/c"]
    assert problems == ["the hub cannot be reached"]
    assert [one.found for one in looked] == [None, None, DIGEST]
