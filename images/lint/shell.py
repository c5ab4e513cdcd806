"""The programs that a RUN starts, as far as rules need them: no shell, but quotes, operators and here-documents."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass

from images.lint.document import Document, Instruction

_OPERATORS = re.compile(r"^[;&|()]+$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_WITH_OPTIONS = {"sudo", "env", "nice"}
_KEYWORDS = {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "}"}
_BEFORE = _KEYWORDS | {"exec", "time", "command"} | _WITH_OPTIONS


@dataclass(frozen=True)
class Call:
    """A program with its arguments."""

    name: str
    """Without its folder; `python3 -m pip` is `pip`, `uv pip` is `uv pip`."""
    arguments: tuple[str, ...]
    at: Instruction
    path: str = ""
    """The program as it is written."""
    piped: bool = False
    """It reads what the program before it writes."""

    def has(self, *options: str) -> bool:
        """Whether one of the options is given, also as `--option=value`."""
        return any(word == option or word.startswith(f"{option}=") for word in self.arguments for option in options)

    @property
    def text(self) -> str:
        """Its arguments as one text."""
        return " ".join(self.arguments)

    @property
    def plain(self) -> tuple[str, ...]:
        """Arguments that are no options."""
        return tuple(word for word in self.arguments if not word.startswith("-"))


def calls(instruction: Instruction) -> list[Call]:
    """The programs of a RUN, in order."""
    return list(_calls(instruction))


@functools.lru_cache(4096)
def _calls(instruction: Instruction) -> tuple[Call, ...]:
    if instruction.keyword != "RUN":
        return ()
    if instruction.json:
        return (_call(list(instruction.words), instruction, piped=False),) if instruction.words else ()
    scripts = [content for _, content in instruction.heredocs] or list(instruction.words)
    found = []
    for script in scripts:
        words: list[str] = []
        piped = False
        for part in [*_tokens(script), ";"]:
            if not _OPERATORS.match(part):
                words.append(part)
                continue
            if words:
                found.append(_call(words, instruction, piped=piped))
            words, piped = [], part == "|"
    return tuple(call for call in found if call.name)


def all_calls(document: Document) -> list[Call]:
    """The programs of all RUNs."""
    return [call for one in document.all("RUN") for call in calls(one)]


def _tokens(script: str) -> list[str]:
    # A line ends a command, but not after a backslash; a comment ends with its line.
    joined = re.sub(r"(?m)^\s*#.*$|\d*[<>]&[\d-]+", "", script.replace("\\\n", " "))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|()")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return [";" if token.strip("\n") == "" else token for token in _split_lines(list(lexer))]
    except ValueError:  # an open quote; shellcheck says so
        return [";" if token in {"&&", "||", "|", ";"} else token for token in joined.split()]


def _split_lines(tokens: list[str]) -> list[str]:
    found = []
    for token in tokens:
        parts = token.split("\n")
        # A quoted text over several lines is one word; only a word with a line at its edge ends a command.
        if len(parts) == 1:
            found.append(token)
            continue
        for number, part in enumerate(parts):
            if number:
                found.append(";")
            if part:
                found.append(part)
    return found


def _call(words: list[str], instruction: Instruction, *, piped: bool) -> Call:
    rest = list(words)
    while rest and (rest[0] in _BEFORE or _ASSIGNMENT.match(rest[0])):
        if rest.pop(0) in _WITH_OPTIONS:
            while rest and rest[0].startswith("-"):
                rest.pop(0)
    if not rest:
        return Call("", (), instruction)
    path = rest.pop(0)
    name = path.rsplit("/", 1)[-1]
    if re.fullmatch(r"python[\d.]*", name) and rest[:1] == ["-m"] and len(rest) > 1:
        name, rest = rest[1], rest[2:]
    if name == "uv" and rest[:1] == ["pip"]:
        name, rest = "uv pip", rest[1:]
    if re.fullmatch(r"pip[\d.]*", name):
        name = "pip"
    return Call(name, tuple(rest), instruction, path, piped)
