"""The few calls of GitHub's API that the workflows need, through pages, rate limits and bad minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Self

import httpx2
import tenacity

from ci.failures import StepError

TIMEOUT = timedelta(seconds=30)  # for an answer
LONGEST_WAIT = timedelta(minutes=5)
"""A rate limit that lasts longer ends the step: a runner costs money while it waits."""
ATTEMPTS = 6
PAGE = 100  # GitHub's greatest
MOST_PAGES = 100
_VERSION = "2022-11-28"  # of the REST API
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class GitHubError(StepError):
    """GitHub refused something, or did not answer."""


class UnclearError(GitHubError):
    """It is not known whether GitHub did what it was told: look before it is told again."""


class _AgainError(Exception):
    """The call may be repeated."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class GitHub:
    """A repository on GitHub, or on an enterprise server.

    Args:
        repository: `owner/name`.
        token: of the workflow.
        api: address of the API.
        sleep: waits that many seconds; tests wait less.
    """

    def __init__(
        self,
        repository: str,
        token: str,
        api: str = "https://api.github.com",
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.repository = repository
        self._api = httpx2.URL(api.rstrip("/"))
        self._sleep = sleep
        self._client = httpx2.Client(
            timeout=TIMEOUT.total_seconds(),
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {token}",
                "X-GitHub-Api-Version": _VERSION,
                "User-Agent": "trainyard-ci",
            },
        )

    @classmethod
    def of_workflow(cls) -> Self:
        """From the variables of a workflow.

        Raises:
            GitHubError: one is missing.
        """
        names = ("GITHUB_REPOSITORY", "GITHUB_TOKEN")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise GitHubError(f"{' and '.join(missing)} must be set: in a workflow by `env:` of the step")
        repository, token = (os.environ[name] for name in names)
        return cls(repository, token, os.environ.get("GITHUB_API_URL") or "https://api.github.com")

    def get(self, path: str, **parameters: str | int) -> Any:
        """One object below the repository: `get("pulls/7")`."""
        return self._call("GET", self._url(path), parameters=parameters).json()

    def pages(self, path: str, *, key: str | None = None, **parameters: str | int) -> Iterator[dict[str, Any]]:
        """Each object of a list, through all of its pages.

        Args:
            path: of the list, below the repository.
            key: the list in the answer, where that is no list itself.
            parameters: of the query.

        Raises:
            GitHubError: it does not end, or leads elsewhere.
        """
        url: httpx2.URL | None = self._url(path)
        query: Mapping[str, str | int] = {"per_page": PAGE, **parameters}
        for _ in range(MOST_PAGES):
            answer = self._call("GET", url, parameters=query)
            found = answer.json()
            yield from found[key] if key else found
            following = answer.links.get("next", {}).get("url")
            if not following:
                return
            url, query = httpx2.URL(following), {}
            if (url.scheme, url.host, url.port) != (self._api.scheme, self._api.host, self._api.port):
                raise GitHubError(f"the next page of {path} is at {url.host}, which does not get the token")
        raise GitHubError(f"{path} has more than {MOST_PAGES} pages")

    def create(self, path: str, content: Mapping[str, Any]) -> Any:
        """Make something; it is not repeated where GitHub may have done it.

        Raises:
            UnclearError: look whether it is there, then try again.
        """
        return self._call("POST", self._url(path), content=content).json()

    def change(self, path: str, content: Mapping[str, Any]) -> Any:
        """Change something; the same change twice is one change."""
        return self._call("PATCH", self._url(path), content=content).json()

    def delete(self, path: str) -> None:
        """Remove something, or find it gone."""
        self._call("DELETE", self._url(path), absent=True)

    def download(self, path: str, most: int) -> bytes:
        """A file that GitHub keeps elsewhere; the token does not go there.

        Args:
            path: below the repository; answered by a redirection.
            most: the most bytes.

        Raises:
            GitHubError: it has more.
        """
        answer = self._call("GET", self._url(path))
        location = answer.headers.get("location")
        if not location:
            raise GitHubError(f"{path} led to no file")
        parts: list[bytes] = []
        size = 0
        with (
            httpx2.Client(timeout=TIMEOUT.total_seconds()) as elsewhere,
            elsewhere.stream("GET", location) as stream,
        ):
            if stream.status_code != 200:
                raise GitHubError(f"the file of {path} is not to be had: HTTP {stream.status_code}")
            for part in stream.iter_raw(1 << 16):
                size += len(part)
                if size > most:
                    raise GitHubError(f"the file of {path} has more than {most:,} bytes")
                parts.append(part)
        return b"".join(parts)

    def _url(self, path: str) -> httpx2.URL:
        return httpx2.URL(f"{self._api}/repos/{self.repository}/{path}")

    def _call(
        self,
        method: str,
        url: httpx2.URL | None,
        *,
        parameters: Mapping[str, str | int] | None = None,
        content: Mapping[str, Any] | None = None,
        absent: bool = False,
    ) -> httpx2.Response:
        def once() -> httpx2.Response:
            try:
                answer = self._client.request(method, url or "", params=dict(parameters or {}) or None, json=content)
            except httpx2.ConnectError as error:  # nothing was sent
                raise _AgainError(str(error)) from error
            except httpx2.TransportError as error:
                raise self._unanswered(method, str(error) or type(error).__name__) from error
            if wait := _rate_limited(answer):
                raise _AgainError("the rate limit of GitHub's API", wait)
            if answer.status_code in _RETRIED:
                raise self._unanswered(method, f"HTTP {answer.status_code}")
            return answer

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_AgainError),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=_waiting,
            sleep=self._sleep,
            reraise=True,
        )
        what = f"{method} {url}"
        try:
            answer = retrying(once)
        except _AgainError as error:
            raise GitHubError(f"{what}: {error}, {ATTEMPTS} times") from error
        if absent and answer.status_code == 404:
            return answer
        if answer.status_code >= 400:
            raise GitHubError(f"{what}: HTTP {answer.status_code}: {_message(answer)}{_hint(answer)}")
        return answer

    @staticmethod
    def _unanswered(method: str, why: str) -> Exception:
        if method == "POST":
            return UnclearError(f"{why} in answer to POST; whether it was done is not known")
        return _AgainError(why)


def _waiting(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _AgainError) and error.wait is not None:
        return error.wait
    return tenacity.wait_exponential_jitter(initial=1, max=30)(state)


def _rate_limited(answer: httpx2.Response) -> float | None:
    """Seconds until GitHub listens again; None where this is no rate limit.

    Raises:
        GitHubError: that is too long.
    """
    if answer.status_code not in (403, 429):
        return None
    headers = answer.headers
    if after := headers.get("retry-after"):
        wait = float(after) if after.isdigit() else 60.0
    elif headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        wait = max(1.0, float(reset) - time.time() + 1) if reset.isdigit() else 60.0
    elif answer.status_code == 429 or "secondary rate limit" in answer.text.lower():
        wait = 60.0  # what GitHub asks for where it names no time
    else:
        return None
    if wait > LONGEST_WAIT.total_seconds():
        raise GitHubError(f"the rate limit of GitHub's API lasts {wait / 60:.0f} more minutes: run this job again then")
    return wait or 1.0


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["message"])[:300]
    except (ValueError, LookupError, TypeError):
        return answer.text[:300]


def _hint(answer: httpx2.Response) -> str:
    if answer.status_code in (401, 403, 404):
        return ". Has the job the `permissions:` that this needs?"
    return ""
