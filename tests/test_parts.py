"""A part of a stack is brought up alone only where nothing else is on record, and only by the command itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import parts
from infra.errors import UsageError

AWS = "urn:pulumi:dev::trainyard::trainyard:aws:AwsCluster"
OF_REGISTRY = [
    "urn:pulumi:dev::trainyard::pulumi:pulumi:Stack::trainyard-dev",
    "urn:pulumi:dev::trainyard::pulumi:providers:aws::aws",
    f"{AWS}::aws",
    f"{AWS}$trainyard:aws:Encryption::encryption",
    f"{AWS}$trainyard:aws:Encryption$aws:kms/key:Key::key",
    f"{AWS}$trainyard:aws:Registry$aws:ecr/repository:Repository::training-images",
]
OTHERS = [
    f"{AWS}$trainyard:aws:Network$aws:ec2/vpc:Vpc::vpc",
    "urn:pulumi:dev::trainyard::pulumi:providers:kubernetes::cluster",
    "urn:pulumi:dev::trainyard::trainyard:in_cluster:Namespaces::namespaces",
]


def test_a_stack_of_nothing_but_its_registry_is_alone() -> None:
    assert parts.is_alone("registry", [])
    assert parts.is_alone("registry", OF_REGISTRY)


@pytest.mark.parametrize("other", OTHERS)
def test_whatever_else_is_there_must_be_declared_beside_it(other: str) -> None:
    assert not parts.is_alone("registry", [*OF_REGISTRY, other])


def test_a_stack_that_was_begun_is_finished_first() -> None:
    for urns in ([], OF_REGISTRY, [*OF_REGISTRY, *OTHERS]):
        parts.require_one_or_the_other("registry", urns, "dev")
    with pytest.raises(UsageError, match=r"its cluster is not there: finish it.*: trainyard up -s dev"):
        parts.require_one_or_the_other("registry", [*OF_REGISTRY, OTHERS[0]], "dev")


def set_for(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_the_program_is_told_by_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_for(monkeypatch, parts.environment(None, tmp_path))
    assert parts.part_of_run() == (None, False)
    set_for(monkeypatch, parts.environment("registry", tmp_path, OF_REGISTRY))
    assert parts.part_of_run() == ("registry", True)
    set_for(monkeypatch, parts.environment("registry", tmp_path, OTHERS))
    assert parts.part_of_run() == ("registry", False)


def test_a_variable_left_in_a_shell_does_not_make_the_program_forget_the_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_for(monkeypatch, parts.environment("registry", tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of-another-run"))
    with pytest.raises(UsageError, match=r"would remove the rest of the stack\. Unset it: unset TRAINYARD_ONLY"):
        parts.part_of_run()
