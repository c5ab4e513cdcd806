"""The reference page of findings says what the code says."""

from __future__ import annotations

import re

from infra.diagnose.kinds import KINDS
from infra.diagnose.reference import PAGE, page


def test_the_page_of_findings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m infra.diagnose.reference"


def test_every_code_has_one_row_of_four_cells() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (?:error|warning|note) \| [^|]+ \| (?:[^|]|\\\|)+ \|$", page(), re.MULTILINE)
    assert rows == list(KINDS)
