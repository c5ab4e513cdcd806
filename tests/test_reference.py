"""The reference page says what the settings are."""

from __future__ import annotations

from infra.reference import PAGE, page


def test_the_page_of_the_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m infra.reference"
