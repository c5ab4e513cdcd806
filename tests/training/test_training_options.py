"""The table of torchrun's options is what torch's own parser says, and a first look at a command line sees the same."""

import os
from argparse import SUPPRESS, ArgumentParser, Namespace

import pytest
import torch.distributed.run as torchrun

from training.launch import options
from training.launch.main import MASTER_PORT, parse
from training.launch.options import OWN, TORCHRUN, TorchrunOption

PARSED = {option.field: option for option in TORCHRUN}
IS_NEWEST = "--print-completion" in torchrun.get_args_parser().format_help()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PET_", "TRAINYARD_"))]:
        monkeypatch.delenv(name)


def test_no_option_of_torchs_parser_is_unknown() -> None:
    known = {action.dest for action in torchrun.get_args_parser()._actions} - {"help"}
    assert known - set(PARSED) == {"training_script", "training_script_args"}
    missing = set(PARSED) - known
    assert (not missing) == IS_NEWEST, f"torch has no {missing}; without --print-completion it is an old one"


@pytest.mark.parametrize("name", PARSED)
def test_the_table_says_what_torchs_parser_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    option = PARSED[name]
    actions = {action.dest: action for action in torchrun.get_args_parser()._actions}
    if name not in actions:
        assert not IS_NEWEST
        return
    action = actions[name]
    assert set(action.option_strings) == set(option.names)
    assert (action.nargs == 0) == option.is_flag
    assert name == "print_completion" or tuple(action.choices or ()) == option.choices
    assert action.default == option.default or (name, action.default) == ("master_port", MASTER_PORT)  # older ones
    if not option.is_flag and not name.startswith(("duplicate", "print")):
        assert action.type == option.type
    if option.variable:
        monkeypatch.setenv(option.variable, "1")
        again = {action.dest: action for action in torchrun.get_args_parser()._actions}
        assert again[name].default in {"1", True}


def test_every_option_has_a_word_on_what_becomes_of_it() -> None:
    assert [option.name for option in TORCHRUN if not option.here.endswith(".")] == []
    assert [option.name for option in OWN if not option.help.endswith(".")] == []


def value_of(option: TorchrunOption) -> list[str]:
    """The option with a value that it takes."""
    values = {"signals_to_handle": "SIGTERM", "local_ranks_filter": "0", "nnodes": "1:3"}
    value = values.get(option.field, option.choices[0] if option.choices else "1")
    return [] if option.is_flag else [value]


@pytest.mark.parametrize(
    "option", [one for one in TORCHRUN if one.name != "--print-completion"], ids=lambda one: one.name
)
def test_the_first_look_reads_what_torch_reads(
    option: TorchrunOption, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if option.name == "--print-completion":
        assert options.first_look([option.name, "bash", __file__]) is None  # it ends the program
        return
    script = "training.launch" if option.name == "--module" else __file__
    for spelling in option.names:
        command = [spelling, *value_of(option), script, "--nnodes", "7", "-m"]
        looked = options.first_look(command)
        assert looked is not None
        assert looked.training_script_args == ["--nnodes", "7", "-m"]
        parser = torchrun.get_args_parser()
        options.add_missing(parser)
        parsed = parser.parse_args(command)
        assert same(looked, parsed, option.field)


def same(looked: Namespace, parsed: Namespace, field: str) -> bool:
    one, other = getattr(looked, field), getattr(parsed, field)
    return other in (one, [one]) and bool(looked.training_script == parsed.training_script)


@pytest.mark.parametrize("command", [["--help"], ["--no-such-option", "x.py"], ["--max-restarts=x", "x.py"], []])
def test_what_only_torchs_parser_can_say_is_left_to_it(command: list[str]) -> None:
    assert options.first_look(command) is None


def test_our_options_are_in_a_group_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    _, _, group = capsys.readouterr().out.partition("\nTrainyard:\n")
    assert [option.name for option in OWN if f"  {option.name} " not in group or option.variable not in group] == []


@pytest.mark.parametrize("option", OWN, ids=lambda option: option.name)
def test_our_options_become_their_variables_and_the_command_line_wins(
    option: options.OwnOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = ArgumentParser()
    options.add_own(parser)
    options.export(parser.parse_args([]))
    assert option.variable not in os.environ

    first, other, *_ = [*option.choices, "8", "9"]
    monkeypatch.setenv(option.variable, other)
    parser = ArgumentParser()
    options.add_own(parser)
    assert getattr(parser.parse_args([]), option.field) == other
    options.export(parser.parse_args([option.name, first]))
    assert os.environ[option.variable] == first


def test_the_version_is_told_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options.first_look(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("Trainyard 0.")


def test_an_old_torch_lacks_an_option_and_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def old() -> ArgumentParser:
        parser = ArgumentParser(argument_default=SUPPRESS)
        for option in TORCHRUN:
            if option.field in {"virtual_local_rank", "shutdown_timeout", "print_completion"}:
                continue
            if option.is_flag:
                parser.add_argument(*option.names, action="store_true", default=False)
            else:
                parser.add_argument(*option.names, type=option.type, default=option.default)
        parser.add_argument("training_script")
        parser.add_argument("training_script_args", nargs="...")
        return parser

    monkeypatch.setattr(torchrun, "get_args_parser", old)
    assert parse(["--shutdown-timeout=5", __file__]).shutdown_timeout == 5  # the launcher's own agent keeps it
    with pytest.raises(Exception, match=r"--virtual-local-rank needs a newer torch than 2\."):
        parse(["--virtual-local-rank", __file__])
