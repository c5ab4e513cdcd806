"""Who may take on CI's roles: jobs of one repository, each as its token says, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from infra.wiring.ci_trust import (
    Host,
    Repository,
    condition,
    deploy_subjects,
    preview_subjects,
    provider_name,
)
from infra.wiring.errors import WiringError

GITHUB = Repository("github", "octo-org/octo-repo")
NUMBERED = Repository("github", "octo-org/octo-repo", owner_id=123456, repository_id=456789)
GITLAB = Repository("gitlab", "group/sub/project", url="https://gitlab.example.com")
NUMBERS = "repo:octo-org@123456/octo-repo@456789"


def lets_in(policy: Any, token: dict[str, str], provider: str) -> bool:
    """What AWS decides about a token."""
    for operator, wanted in policy.items():
        for key, values in wanted.items():
            claim = token.get(key.removeprefix(f"{provider}:"))
            patterns = [values] if isinstance(values, str) else values
            if claim is None:
                return False
            assert operator == "StringEquals", "no wildcards"
            if claim not in patterns:
                return False
    return True


def token(subject: str, audience: str = "sts.amazonaws.com", **claims: str) -> dict[str, str]:
    return {"sub": subject, "aud": audience, **claims}


def may(repository: Repository, kind: str, claims: dict[str, str], *environments: str) -> bool:
    subjects = (
        preview_subjects(repository) if kind == "preview" else deploy_subjects(repository, environments or ("prod",))
    )
    return lets_in(condition(repository, subjects), claims, provider_name(repository))


def test_a_pull_request_may_look_and_not_deploy() -> None:
    claims = token("repo:octo-org/octo-repo:pull_request")
    assert may(GITHUB, "preview", claims)
    assert not may(GITHUB, "deploy", claims)


def test_the_main_branch_may_look_and_deploys_only_through_its_environment() -> None:
    assert may(GITHUB, "preview", token("repo:octo-org/octo-repo:ref:refs/heads/main"))
    assert not may(GITHUB, "deploy", token("repo:octo-org/octo-repo:ref:refs/heads/main"))
    assert may(GITHUB, "deploy", token("repo:octo-org/octo-repo:environment:prod"))
    assert not may(GITHUB, "preview", token("repo:octo-org/octo-repo:environment:prod"))


@pytest.mark.parametrize("kind", ["preview", "deploy"])
@pytest.mark.parametrize(
    "subject",
    [
        "repo:mallory/octo-repo:pull_request",  # a fork, were it given a token of its own
        "repo:octo-org/octo-repo-2:pull_request",
        "repo:octo-org/octo:pull_request",
        "repo:octo-org/octo-repo:ref:refs/heads/feature",
        "repo:octo-org/octo-repo:ref:refs/heads/main-2",
        "repo:octo-org/octo-repo:ref:refs/tags/main",
        "repo:octo-org/octo-repo:environment:dev",
        "repo:octo-org/octo-repo:environment:prod-2",
        "repo:OCTO-ORG/octo-repo:environment:prod",
        "repo:octo-org@123456/octo-repo@456789:pull_request",
        "repo:octo-org/octo-repo:*",
        "",
    ],
)
def test_others_may_nothing(kind: str, subject: str) -> None:
    assert not may(GITHUB, kind, token(subject))


@pytest.mark.parametrize("kind", ["preview", "deploy"])
def test_a_token_for_somebody_else_is_none_for_aws(kind: str) -> None:
    subject = (
        "repo:octo-org/octo-repo:pull_request" if kind == "preview" else "repo:octo-org/octo-repo:environment:prod"
    )
    assert may(GITHUB, kind, token(subject))
    assert not may(GITHUB, kind, token(subject, "https://github.com/octo-org"))
    assert not may(GITHUB, kind, {"sub": subject})


def test_a_repository_with_numbers_is_known_by_them() -> None:
    numbers = {"repository_id": "456789"}
    assert may(NUMBERED, "preview", token(f"{NUMBERS}:pull_request", **numbers))
    assert may(NUMBERED, "deploy", token(f"{NUMBERS}:environment:prod", **numbers))
    # Somebody took the name over after it was given up.
    assert not may(NUMBERED, "preview", token("repo:octo-org@9/octo-repo@8:pull_request", repository_id="8"))
    assert not may(NUMBERED, "preview", token("repo:octo-org/octo-repo:pull_request", **numbers))
    assert not may(NUMBERED, "preview", token(f"{NUMBERS}:pull_request", repository_id="8"))
    assert not may(NUMBERED, "preview", token(f"{NUMBERS}:pull_request"))


def test_on_gitlab_only_the_protected_branch_looks_and_deploys() -> None:
    here = "project_path:group/sub/project:ref_type:branch:ref"

    def gitlab(subject: str) -> dict[str, str]:
        return token(subject, "https://gitlab.example.com")

    def deploys(subject: str) -> bool:
        policy = condition(GITLAB, deploy_subjects(GITLAB, ()))
        return lets_in(policy, gitlab(subject), "gitlab.example.com")

    assert not may(GITLAB, "preview", gitlab(f"{here}:feature"))
    assert may(GITLAB, "preview", gitlab(f"{here}:main"))
    assert not may(GITLAB, "preview", gitlab("project_path:mallory/project:ref_type:branch:ref:main"))
    assert not may(GITLAB, "preview", gitlab("project_path:group/sub/project-2:ref_type:branch:ref:main"))
    assert not may(GITLAB, "preview", gitlab("project_path:group/sub/project:ref_type:tag:ref:main"))
    assert not may(GITLAB, "preview", token(f"{here}:main", "https://gitlab.com"))
    assert deploys(f"{here}:main")
    assert not deploys(f"{here}:feature")
    assert not deploys("project_path:group/sub/project:ref_type:tag:ref:main")


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("github", "octo-org/*"),
        ("github", "*/octo-repo"),
        ("github", "octo-org/octo?repo"),
        ("github", "octo-org"),
        ("github", "octo-org/"),
        ("github", "octo-org/a/b"),
        ("github", "octo-org/octo-repo:pull_request"),
        ("github", "octo-org/octo-repo "),
        ("github", ""),
        ("gitlab", "group"),
        ("gitlab", "group/*"),
        ("gitlab", "group/project:ref_type:branch"),
    ],
)
def test_what_names_more_than_one_repository_is_refused(host: Host, path: str) -> None:
    with pytest.raises(WiringError, match="one repository, without wildcards"):
        Repository(host, path)


@pytest.mark.parametrize("branch", ["*", "main*", "feature/?", "", "a//b", "a..b", "a b", "refs/heads/*"])
def test_a_branch_with_a_wildcard_is_refused(branch: str) -> None:
    with pytest.raises(WiringError, match="names no branch"):
        Repository("github", "octo-org/octo-repo", branch)


@pytest.mark.parametrize("environments", [(), ("*",), ("prod", "d?v"), ("",), ("a b",), ("prod:x",)])
def test_a_deployment_without_one_named_environment_is_refused(environments: tuple[str, ...]) -> None:
    with pytest.raises(WiringError, match="environment"):
        deploy_subjects(GITHUB, environments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"owner_id": 1}, "go together"),
        ({"host": "gitlab", "owner_id": 1, "repository_id": 2}, "GitHub's"),
        ({"url": "https://gitlab.example.com"}, "for a GitLab of one's own"),
        ({"host": "gitlab", "url": "http://gitlab.example.com"}, "no address of the form"),
        ({"host": "gitlab", "url": "https://*.example.com"}, "no address of the form"),
    ],
)
def test_what_does_not_fit_together_is_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError, match=said):
        Repository(**{"host": "github", "path": "a/b", **arguments})


def test_environments_are_not_gitlabs() -> None:
    with pytest.raises(WiringError, match="protect the branch"):
        deploy_subjects(GITLAB, ("prod",))


@pytest.mark.parametrize(
    "subject",
    [
        "repo:octo-org/octo-repo:ref:*",
        "repo:*",
        "repo:octo-org/octo-repo:*",
        "repo:octo-org/octo-repo",
        "*",
        "repo:other/x:y",
    ],
)
def test_no_subject_can_be_smuggled_past_the_repository(subject: str) -> None:
    with pytest.raises(WiringError, match="would let in others"):
        condition(GITHUB, [subject])


@given(some.text(max_size=60))
def test_whatever_is_given_as_a_repository_is_refused_or_lets_in_only_itself(path: str) -> None:
    try:
        repository = Repository("github", path)
    except WiringError:
        return
    assert may(repository, "preview", token(f"repo:{path}:pull_request"))
    assert not may(repository, "preview", token("repo:mallory/any:pull_request")) or path == "mallory/any"
