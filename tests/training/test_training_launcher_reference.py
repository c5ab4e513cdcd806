"""The reference page of the launcher says what the launcher knows."""

import re

from training.launch.options import OWN, TORCHRUN
from training.launch.reference import PAGE, page


def test_the_page_of_the_launcher_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m training.launch.reference"


def test_every_option_has_one_row() -> None:
    rows = re.findall(r"^\| ((?:`-{1,2}[a-z-]+`(?:, )?)+) \|", page(), re.MULTILINE)
    named = [row.split(", ")[-1].strip("`") for row in rows]
    assert named == [option.name for option in (*TORCHRUN, *OWN)]


def test_exit_codes_progress_lines_and_settings_of_etcd_are_there() -> None:
    text = page()
    for expected in ("| 78 | DO_NOT_RESTART |", "| recovery |", "| join_timeout |", "| file, file:// |", "- `c10d`: "):
        assert expected in text
