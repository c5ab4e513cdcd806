"""Names of AWS clusters."""

from __future__ import annotations

import pytest

from infra.settings import Settings
from infra.settings.aws import Aws
from infra.wiring.errors import WiringError
from infra.wiring.naming import cluster_name, node_group_name


def stack_of(name: str | None = None) -> Settings:
    return Settings.model_construct(target="aws", aws=Aws.model_construct(region="us-east-2", cluster_name=name))


def test_a_cluster_is_named_after_its_stack_unless_it_has_a_name() -> None:
    assert cluster_name(stack_of(), "prod") == "trainyard-prod"
    assert cluster_name(stack_of("lab"), "prod") == "lab"


def test_a_stack_name_is_made_into_one_that_buckets_and_clusters_take() -> None:
    assert cluster_name(stack_of(), "Team_A.eu") == "trainyard-team-a-eu"


def test_a_name_that_would_be_too_long_is_not_cut_but_asked_for() -> None:
    with pytest.raises(WiringError, match=r"longer than 40.*pulumi config set --path trainyard:aws\.clusterName"):
        cluster_name(stack_of(), "a-very-long-name-of-a-stack-of-somebody")


def test_the_name_of_a_node_group_has_room_for_what_eks_takes() -> None:
    assert node_group_name("trainyard-prod", "gpu-spot") == "trainyard-prod-gpu-spot"
    with pytest.raises(WiringError, match=r"longer than the 63 characters.*aws\.clusterName"):
        node_group_name("c" * 40, "p" * 40)
