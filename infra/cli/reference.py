"""The reference of the `trainyard` command as a page, made from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

_HEAD = """\
# The `trainyard` command

Made from the commands themselves; `trainyard COMMAND --help` says the same.

| exit code | means |
| --- | --- |
| 0 | done |
| 1 | it failed, or the job that it waited for did |
| 2 | a mistake in the options, in a file or in the stack's settings: nothing was changed |
| 128 + signal | it was ended by a signal: 130 for Ctrl-C, 143 for SIGTERM |

Results are on stdout, progress is on stderr. With `--json` there is one JSON document on stdout and nothing else.
"""
_BOLD = re.compile(r"\[/?bold\]")


def page() -> str:
    """The page as Markdown: one section for each command, in the order of `--help`."""
    from infra.cli import app  # noqa: PLC0415 - which imports all commands, and may come to import this

    return _HEAD + "".join(_section(name, command) for name, command in commands(typer.main.get_command(app)))


def commands(root: Any, prefix: str = "trainyard") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its full name."""
    for name, command in root.commands.items():
        if command.hidden:
            continue
        full = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from commands(command, full)
        else:
            yield full, command


def options_of(command: Any) -> set[str]:
    """All spellings of the options of a command."""
    return {spelling for one in command.params for spelling in (*one.opts, *one.secondary_opts) if spelling[0] == "-"}


def _section(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(_argument(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    text = f"\n## {name}\n\n```\n{usage}\n```\n\n{_prose(command.help or '')}\n"
    if options or any(one.help for one in arguments):
        text += "\n| option | meaning |\n| --- | --- |\n"
        for one in arguments:
            text += f"| `{one.name}` | {_cell(one.help or '')} |\n"
        for one in options:
            spelling = ", ".join(f"`{each}`" for each in (*one.opts, *one.secondary_opts))
            value = "" if one.is_flag else f" `{one.metavar or one.name.upper()}`"
            text += f"| {spelling}{value} | {_cell(one.help or '')} |\n"
    return text


def _argument(one: Any) -> str:
    shown = one.name + ("..." if one.nargs != 1 or one.multiple else "")
    return shown if one.required else f"[{shown}]"


def _prose(text: str) -> str:
    """A docstring's paragraphs; what stands in bold there are commands."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.replace("\f", "").split("\n\n")]
    return "\n\n".join(_BOLD.sub("`", _escaped(paragraph)) for paragraph in paragraphs if paragraph)


def _cell(text: str) -> str:
    return _BOLD.sub("`", _escaped(" ".join(text.split()))).replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("\\[", "[").replace("<", "&lt;")
