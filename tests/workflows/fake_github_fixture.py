"""The fixture `github`: a GitHub of the test's own."""

from collections.abc import Iterator

import pytest
from fake_github import REPOSITORY, TOKEN, FakeGitHub, fake_github


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    with fake_github() as fake:
        monkeypatch.setenv("GITHUB_REPOSITORY", REPOSITORY)
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.setenv("GITHUB_API_URL", fake.address)
        yield fake
