"""Which exit code of several counts, which are final, and what the launcher exits with."""

import signal

import pytest

from training.launch import exit_codes
from training.launch.exit_codes import Rules


def test_exit_codes_are_those_of_the_contract() -> None:
    assert (exit_codes.FINISHED, exit_codes.FAILED, exit_codes.USAGE) == (0, 1, 64)
    assert (exit_codes.PREEMPTED, exit_codes.DO_NOT_RESTART, exit_codes.of_signal(15)) == (75, 78, 143)


@pytest.mark.parametrize(
    ("codes", "decisive"),
    [
        ([1, 78], 78),
        ([75, -15, 64], 64),
        ([-15, 75, 1], 75),
        ([-9, 1], -9),
    ],
)
def test_the_code_that_says_most_counts(codes: list[int], decisive: int) -> None:
    assert Rules().decisive(codes) == decisive


def test_siblings_that_the_agent_ended_decide_nothing() -> None:
    rules = Rules.parse(restart="", final="SIGTERM")
    assert rules.decisive([1, -15]) == 1
    assert rules.decisive([-15, -9]) == -15


def test_lists_name_codes_ranges_and_signals() -> None:
    rules = Rules.parse(restart="64, sigkill", final="10-12,3,")
    assert rules == Rules(restart=frozenset({64, 137}), final=frozenset({3, 10, 11, 12}))
    assert [code for code in (3, 9, 10, 12, 13, 64, 78, 137, -9) if rules.is_final(code)] == [3, 10, 12, 78]


def test_the_narrow_list_is_an_exception_from_the_wide_one() -> None:
    rules = Rules.parse(restart="75,SIGKILL", final="1-255")
    assert [code for code in (1, 2, 75, 137, -9, -11, 139) if not rules.is_final(code)] == [75, 137, -9]


@pytest.mark.parametrize("text", ["x", "0", "256", "5-3", "1-", "-9", "1-300", "1--2", "SIGNONE"])
def test_an_entry_that_is_no_code_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no exit code"):
        Rules.parse(restart="", final=text)


@pytest.mark.parametrize(
    ("codes", "final", "own"),
    [
        ([1], "", exit_codes.FAILED),
        ([-9, -15], "", exit_codes.FAILED),
        ([75], "", exit_codes.FAILED),
        ([64], "", exit_codes.USAGE),
        ([78, 1], "", exit_codes.DO_NOT_RESTART),
        ([3], "3", exit_codes.DO_NOT_RESTART),  # who starts the launcher again need not know our lists
    ],
)
def test_the_launcher_says_whether_to_start_it_again(codes: list[int], final: str, own: int) -> None:
    assert Rules.parse(restart="", final=final).of_failure(codes) == own


def test_failures_without_a_new_step_are_final_whatever_their_code() -> None:
    assert [Rules().of_failure([code], is_stuck=True) for code in (1, 64, 75, 78, -9)] == [78, 64, 78, 78, 78]


def test_a_code_that_was_made_harmless_is_an_ordinary_failure() -> None:
    assert Rules.parse(restart="78", final="").of_failure([78]) == exit_codes.FAILED


def test_signals_have_the_codes_of_shells() -> None:
    assert exit_codes.of_signal(signal.SIGKILL) == 137
