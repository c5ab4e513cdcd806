"""The reference page says what the settings are."""

from __future__ import annotations

import re

import pytest

from infra.reference import PAGE, page
from infra.settings import Settings
from infra.settings.shape import Place


def keys(place: Place, prefix: str = "trainyard:") -> list[str]:
    """Every key of a section and of the sections in it, as the page writes them."""
    assert place.section is not None
    found = []
    for field in place.section.model_fields.values():
        inner = place.inner(str(field.alias))
        assert inner is not None
        found.append(f"{prefix}{field.alias}")
        entry = inner.inner(0)
        if inner.section:
            found += keys(inner, f"{found[-1]}.")
        elif entry and entry.section:
            found += keys(entry, f"{found[-1]}[].")
    return found


def row(key: str) -> list[str]:
    """The cells of a key's row."""
    (line,) = re.findall(rf"^\| `{re.escape(key)}` \|.*$", page(), re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_page_of_the_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m infra.reference"


def test_every_key_has_one_row_with_a_meaning() -> None:
    rows = re.findall(r"^\| `(trainyard:[^`]+)` \|.*\| (.+) \|$", page(), re.MULTILINE)
    assert sorted(key for key, _ in rows) == sorted(keys(Place(Settings)))
    assert [key for key, meaning in rows if not meaning.strip().endswith((".", '"'))] == []


@pytest.mark.parametrize(
    ("key", "value", "default"),
    [
        ("aws.region", "text, as `us-east-2`", "required"),
        ("aws.nodePools", "list of mappings", ""),
        ("aws.nodePools[].types", "list (1 to 20) of text, as `g6.xlarge`", "required"),
        ("aws.nodePools[].efa", "`true`, `false`", "`false`"),
        ("aws.nodePools[].reservation.id", "text, as `cr-0123456789abcdef0`", "required"),
        ("aws.nodePools[].zone", "text, as `us-east-2a`", ""),
        (
            "aws.logs.types",
            "list of `api`, `audit`, `authenticator`, `controllerManager`, `scheduler`",
            "`api`, `audit`, `authenticator`",
        ),
        ("aws.network.privateSubnets", "mapping of any key to text, as `subnet-0123456789abcdef0`", ""),
        ("aws.queues.dedicated", "mapping of any key to list (at least 1) of text, as `gpu-spot`", ""),
        ("aws.storage.lustre.throughput", "`125`, `250`, `500`, `1000`", "`250`"),
        ("etcd.members", "`1`, `3`", "`1`"),
        ("controller.replicas", "whole number, 1 to 3", "`1`"),
    ],
)
def test_a_row_says_what_may_stand_there(key: str, value: str, default: str) -> None:
    assert row(f"trainyard:{key}")[1:3] == [value, default]


def test_no_section_is_without_its_heading() -> None:
    headings = re.findall(r"^## trainyard:(.+)$", page(), re.MULTILINE)
    assert "aws.nodePools[].reservation" in headings
    assert "## trainyard:aws.storage.lustre\n\nFSx for Lustre: the file system for data sets" in page()
