"""Which jobs of a code host may take on a role on AWS: the conditions of a trust policy, and nothing looser.

A token of GitHub Actions or GitLab says in its subject which repository and which kind of job it was made for. These
functions write conditions that name both in full; what would let in others is refused here, not reviewed later.

- GitHub: https://docs.github.com/en/actions/reference/security/oidc. Repositories that were made or renamed since
  2026-07-15 carry the numbers of owner and repository in the subject
  (https://github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens/).
- GitLab: https://docs.gitlab.com/ci/cloud_services/aws/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infra.wiring.errors import WiringError

Host = Literal["github", "gitlab"]

GITHUB = "https://token.actions.githubusercontent.com"
GITLAB = "https://gitlab.com"
AUDIENCE = "sts.amazonaws.com"
"""Whom a token of GitHub is for: AWS's action asks for this one."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_GITHUB_REPOSITORY = re.compile(rf"{_NAME}/{_NAME}")
_GITLAB_PROJECT = re.compile(rf"{_NAME}(?:/{_NAME}){{1,20}}")
_ENVIRONMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BRANCH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,198}[A-Za-z0-9_-])?")
_URL = re.compile(r"https://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d{2,5})?")


@dataclass(frozen=True)
class Repository:
    """A repository, and what its jobs' tokens say of it."""

    host: Host
    path: str
    """`owner/name`; on GitLab with all groups before the project."""
    branch: str = "main"
    """What is deployed."""
    owner_id: int | None = None
    repository_id: int | None = None
    """GitHub's numbers, where its subjects have them: `gh api repos/OWNER/NAME --jq '.owner.id, .id'`."""
    url: str = ""
    """Of one's own GitLab; absent: gitlab.com."""

    def __post_init__(self) -> None:
        """Refuse what names more than one repository, or none.

        Raises:
            WiringError: with all that is wrong.
        """
        wrong = []
        pattern = _GITHUB_REPOSITORY if self.host == "github" else _GITLAB_PROJECT
        if not pattern.fullmatch(self.path):
            form = "owner/name" if self.host == "github" else "group/project"
            wrong.append(f"repository {self.path!r} is not of the form {form}: one repository, without wildcards")
        if not _BRANCH.fullmatch(self.branch) or ".." in self.branch or "//" in self.branch:
            wrong.append(f"branch {self.branch!r} names no branch; a role is for one, without wildcards")
        if (self.owner_id is None) != (self.repository_id is None):
            wrong.append("ownerId and repositoryId go together: give both numbers or none")
        if self.host == "gitlab" and self.owner_id is not None:
            wrong.append("ownerId and repositoryId are GitHub's; GitLab's subjects have no numbers")
        if self.url and self.host == "github":
            wrong.append("url is for a GitLab of one's own")
        if self.url and not _URL.fullmatch(self.url):
            wrong.append(f"url {self.url!r} is no address of the form https://gitlab.example.com")
        if wrong:
            raise WiringError("; ".join(wrong))

    @property
    def issuer(self) -> str:
        """Who signs the tokens."""
        return GITHUB if self.host == "github" else self.url or GITLAB

    @property
    def audience(self) -> str:
        """Whom tokens are for."""
        return AUDIENCE if self.host == "github" else self.issuer

    @property
    def subject(self) -> str:
        """How subjects of this repository begin."""
        if self.host == "gitlab":
            return f"project_path:{self.path}"
        if self.repository_id is None:
            return f"repo:{self.path}"
        owner, name = self.path.split("/")
        return f"repo:{owner}@{self.owner_id}/{name}@{self.repository_id}"


def preview_subjects(repository: Repository) -> tuple[str, ...]:
    """Whom the role that looks is for: the deployed branch, and on GitHub pull requests of branches of the repository.

    GitHub gives a pull request from a fork no token at all. GitLab's subject does not say that a job is about a merge
    request, so these are rehearsed there.
    """
    if repository.host == "github":
        return (f"{repository.subject}:pull_request", f"{repository.subject}:ref:refs/heads/{repository.branch}")
    return (_deployed_on_gitlab(repository),)


def deploy_subjects(repository: Repository, environments: Sequence[str]) -> tuple[str, ...]:
    """Whom the role that changes things is for.

    On GitHub: jobs of an environment, which asks reviewers and says from which branches it may be reached. On GitLab,
    whose subjects know no environment: jobs of the deployed branch, which must be a protected one.

    Raises:
        WiringError: no environment, or one with a wildcard.
    """
    if repository.host == "gitlab":
        if environments:
            raise WiringError("environments are GitHub's; on GitLab protect the branch that is deployed")
        return (_deployed_on_gitlab(repository),)
    if not environments:
        raise WiringError("environments names none: only a job of an environment, which asks reviewers, may deploy")
    if wrong := [one for one in environments if not _ENVIRONMENT.fullmatch(one)]:
        raise WiringError(f"{', '.join(map(repr, wrong))} is no environment: letters, digits, - _ ., without wildcards")
    return tuple(f"{repository.subject}:environment:{one}" for one in environments)


def _deployed_on_gitlab(repository: Repository) -> str:
    return f"{repository.subject}:ref_type:branch:ref:{repository.branch}"


def condition(repository: Repository, subjects: Sequence[str]) -> Mapping[str, Any]:
    """The condition under which a token may take on a role.

    Raises:
        WiringError: a subject does not begin with the repository, or has a wildcard.
    """
    provider = provider_name(repository)
    for one in subjects:
        head, rest = one[: len(repository.subject) + 1], one[len(repository.subject) + 1 :]
        if head != f"{repository.subject}:" or not rest or re.search(r"[*?]", rest):
            raise WiringError(f"{one!r} would let in others than {repository.path}")
    exact = {f"{provider}:aud": repository.audience}
    if repository.repository_id is not None:
        exact[f"{provider}:repository_id"] = str(repository.repository_id)
    return {"StringEquals": {**exact, f"{provider}:sub": list(subjects)}}


def provider_name(repository: Repository) -> str:
    """How AWS names the provider of the tokens: its address without the scheme."""
    return repository.issuer.removeprefix("https://")
