"""A Dockerfile as its builder reads it: BuildKit's own parser, stages, and variables where they stand.

The parser is a Go library inside this process, which ends the process on some text that is no text, and takes minutes
for gigabytes: what is handed to it was decoded and measured here before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from images.errors import DockerfileError

LONGEST = 512 * 1024
"""Bytes of a Dockerfile; BuildKit's own limit for a line is 64 KiB, and nobody writes a hundred of those."""
_MOST_INSTRUCTIONS = 5_000

_VARIABLE = re.compile(
    r"\\(?P<escaped>.)|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?::?(?P<how>[-+?])(?P<other>[^{}]*))?\})"
)
_PRAGMA = re.compile(r"^\s*#\s*trainyard:?\s+ignore=(?P<rules>[\w,-]+)(?P<reason>.*)$")
_HADOLINT_PRAGMA = re.compile(r"^\s*#\s*hadolint\s+ignore\s*=\s*(?P<rules>[\w,\s]+)$")
_SHELLS = {"sh": "dash", "dash": "dash", "ash": "busybox", "bash": "bash", "ksh": "ksh", "busybox": "busybox"}


@dataclass(frozen=True)
class Instruction:
    """One instruction with its place."""

    keyword: str
    words: tuple[str, ...]
    """As BuildKit splits them, variables in place; of ENV and LABEL names and values in turn."""
    expanded: tuple[str, ...]
    """The same with the defaults of ARG and the values of ENV put in."""
    flags: tuple[str, ...]
    json: bool
    line: int
    end: int
    heredocs: tuple[tuple[str, str], ...]
    """Name and content of each."""
    ignored: frozenset[str]
    """Rules that the comment above it takes away here."""
    shell: tuple[str, ...]
    """What a RUN that is no list is given to."""

    @property
    def text(self) -> str:
        """All that it runs or writes: words and here-documents."""
        return "\n".join([" ".join(self.words), *(content for _, content in self.heredocs)])

    def flag(self, name: str) -> str | None:
        """Value of `--name=value`; None where it is absent."""
        return next(iter(self.flags_of(name)), None)

    def flags_of(self, name: str) -> list[str]:
        """Values of a flag that may be given several times."""
        return [value for given in self.flags for key, _, value in [given.partition("=")] if key == f"--{name}"]

    def mounts(self) -> list[dict[str, str]]:
        """`--mount` of a RUN, each as its keys; a key without a value has an empty one."""
        return [
            {key.strip(): value for key, _, value in (part.partition("=") for part in mount.split(","))}
            for mount in self.flags_of("mount")
        ]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Names and values of ENV, LABEL and ARG; an ARG without a default has an empty value."""
        if self.keyword == "ARG":
            for word in self.expanded:
                name, _, value = word.partition("=")
                yield name, unquoted(value)
        else:
            for name, value in zip(self.expanded[::2], self.expanded[1::2], strict=False):
                yield unquoted(name), unquoted(value)


@dataclass(frozen=True)
class Stage:
    """From a FROM to the next."""

    index: int
    name: str | None
    base: str
    """What FROM names, with variables put in."""
    parent: Stage | None
    """The stage that it begins from; None: an image."""
    line: int
    instructions: tuple[Instruction, ...]
    """Without the FROM."""
    ignored: frozenset[str]

    @property
    def chain(self) -> tuple[Stage, ...]:
        """The stages whose layers it has, the first one first."""
        return (*(self.parent.chain if self.parent else ()), self)

    @property
    def image(self) -> str:
        """The image at the bottom of it."""
        return self.chain[0].base

    @property
    def label(self) -> str:
        """How a message names it."""
        return self.name or f"number {self.index}"

    def all(self, *keywords: str) -> list[Instruction]:
        """Its own instructions of these kinds."""
        return [one for one in self.instructions if one.keyword in keywords]

    def inherited(self, *keywords: str) -> list[Instruction]:
        """The instructions of these kinds, also of the stages that it begins from."""
        return [one for stage in self.chain for one in stage.all(*keywords)]

    def environment(self) -> dict[str, tuple[str, Instruction]]:
        """Variables that processes of the stage's image have, with the instruction that sets each."""
        return {name: (value, one) for one in self.inherited("ENV") for name, value in one.pairs()}


@dataclass(frozen=True)
class Document:
    """A whole Dockerfile."""

    text: str
    lines: tuple[str, ...]
    arguments: tuple[Instruction, ...]
    """ARG before the first FROM."""
    stages: tuple[Stage, ...]

    @property
    def last(self) -> Stage:
        """The stage whose image is the result."""
        return self.stages[-1]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All of them in order, without FROM."""
        return (*self.arguments, *(one for stage in self.stages for one in stage.instructions))

    def all(self, *keywords: str) -> list[Instruction]:
        """The instructions of these kinds, in order."""
        return [one for one in self.instructions if one.keyword in keywords]

    def stage(self, name: str) -> Stage | None:
        """A stage by its name, which has no case."""
        return next((stage for stage in self.stages if stage.name and stage.name.lower() == name.lower()), None)

    def stage_of(self, instruction: Instruction) -> Stage | None:
        """The stage in which an instruction stands."""
        return next((stage for stage in self.stages if instruction in stage.instructions), None)


def read(path: Path) -> str:
    """The text of a Dockerfile of a user.

    Raises:
        DockerfileError: there is no such file, it cannot be read, or it is no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise DockerfileError(f"{path} cannot be read: {error.strerror or error}") from None
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """The text in a Dockerfile's bytes.

    Args:
        data: content of the file.
        name: how messages name it.

    Raises:
        DockerfileError: it is no text, or far too long.
    """
    if len(data) > LONGEST:
        raise DockerfileError(f"{name} is longer than {LONGEST // 1024} KiB: that is no Dockerfile")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DockerfileError(f"{name} is not UTF-8 (line {line}): save it as UTF-8, or name another file") from None
    if "\0" in text:
        raise DockerfileError(f"{name} has NUL bytes: that is a binary file, no Dockerfile")
    return text


def parse(text: str, name: str = "Dockerfile") -> Document:
    """Read a Dockerfile.

    Args:
        text: as `decoded` gives it.
        name: how messages name it.

    Raises:
        DockerfileError: BuildKit would not read it either, or it has no stage.
    """
    import dockerfile  # noqa: PLC0415 - a shared object of Go: a runtime of its own that only checks need

    try:
        commands = dockerfile.parse_string(text)
    except dockerfile.GoParseError as error:
        raise DockerfileError(f"{name}: BuildKit's parser says: {error}") from None
    if len(commands) > _MOST_INSTRUCTIONS:
        raise DockerfileError(
            f"{name} has more than {_MOST_INSTRUCTIONS} instructions: no builder takes so many layers"
        )
    return _Reader(text, commands, name).document()


class _Reader:
    """Puts the parser's list together: stages, variables in force, shells, comments that take rules away."""

    def __init__(self, text: str, commands: list[object], name: str) -> None:
        self._text, self._commands, self._name = text, commands, name
        self._lines = tuple(text.splitlines())
        self._arguments: list[Instruction] = []
        self._globals: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._shell: tuple[str, ...] = ("/bin/sh", "-c")
        self._stages: list[Stage] = []
        self._known: dict[str, tuple[Stage, dict[str, str], tuple[str, ...]]] = {}
        self._open: list[Instruction] = []
        self._head: Instruction | None = None

    def document(self) -> Document:
        for command in self._commands:
            self._take(self._instruction(command))
        self._close()
        if not self._stages:
            raise DockerfileError(f"{self._name} has no FROM: that is no Dockerfile")
        return Document(
            text=self._text, lines=self._lines, arguments=tuple(self._arguments), stages=tuple(self._stages)
        )

    def _instruction(self, command: object) -> Instruction:
        keyword = str(getattr(command, "cmd")).upper()  # noqa: B009 - the package has no types
        words = tuple(getattr(command, "value"))  # noqa: B009
        variables = self._globals if keyword == "FROM" else self._variables
        line = int(getattr(command, "start_line"))  # noqa: B009
        # RUN and CMD have their variables from a shell, at the time at which they run.
        as_it_is = keyword in {"RUN", "CMD", "ENTRYPOINT", "SHELL", "HEALTHCHECK", "ONBUILD"}
        return Instruction(
            keyword=keyword,
            words=words,
            expanded=words if as_it_is else tuple(expand(word, variables) for word in words),
            flags=tuple(expand(flag, self._variables) for flag in getattr(command, "flags")),  # noqa: B009
            json=bool(getattr(command, "json")),  # noqa: B009
            line=line,
            end=int(getattr(command, "end_line")),  # noqa: B009
            heredocs=tuple((one.name, one.content) for one in getattr(command, "heredocs")),  # noqa: B009
            ignored=self._ignored(line),
            shell=self._shell,
        )

    def _take(self, one: Instruction) -> None:
        if one.keyword == "FROM":
            self._close()
            self._begin(one)
            return
        if self._head is None:
            if one.keyword != "ARG":
                raise DockerfileError(f"{self._name}, line {one.line}: {one.keyword} before the first FROM")
            self._arguments.append(one)
            self._globals.update((name, value) for name, value in one.pairs() if name)
            self._variables = dict(self._globals)
            return
        self._open.append(one)
        if one.keyword == "ARG":
            for word in one.words:
                name, equals, _ = word.partition("=")
                if equals:
                    self._variables[name] = dict(one.pairs()).get(name, "")
                elif name in self._globals:
                    self._variables[name] = self._globals[name]
        elif one.keyword == "ENV":
            self._variables.update(one.pairs())
        elif one.keyword == "SHELL" and one.words:
            self._shell = one.words

    def _begin(self, one: Instruction) -> None:
        if not one.expanded:
            raise DockerfileError(f"{self._name}, line {one.line}: FROM names no image")
        self._head = one
        known = self._known.get(one.expanded[0].lower())
        # An ARG ends with its stage; ENV and SHELL are the image's and go on in the stages that begin from it.
        self._variables = dict(known[1]) if known else {}
        self._shell = known[2] if known else ("/bin/sh", "-c")

    def _close(self) -> None:
        head = self._head
        if head is None:
            return
        named = len(head.words) >= 3 and head.words[1].upper() == "AS"
        parent = self._known.get(head.expanded[0].lower())
        stage = Stage(
            index=len(self._stages),
            name=head.words[2] if named else None,
            base=head.expanded[0],
            parent=parent[0] if parent else None,
            line=head.line,
            instructions=tuple(self._open),
            ignored=head.ignored,
        )
        self._stages.append(stage)
        kept = {name: value for name, (value, _) in stage.environment().items()}
        if stage.name:
            self._known[stage.name.lower()] = (stage, kept, self._shell)
        self._open, self._head = [], None

    def _ignored(self, line: int) -> frozenset[str]:
        """Rules that the comments right above an instruction name."""
        found: set[str] = set()
        for above in reversed(self._lines[: line - 1]):
            if not above.lstrip().startswith("#"):
                break
            if match := _PRAGMA.match(above):
                if len(match["reason"].strip()) < 4:
                    raise DockerfileError(
                        f"{self._name}, line {line - 1}: `ignore={match['rules']}` without a reason: say why behind it"
                    )
                found |= set(match["rules"].split(","))
            elif match := _HADOLINT_PRAGMA.match(above):
                found |= {rule.strip() for rule in match["rules"].split(",")}
        return frozenset(found)


def expand(word: str, variables: Mapping[str, str]) -> str:
    """Put variables into a word as BuildKit does; unknown ones stay as they are written."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0]
        name = match["plain"] or match["name"]
        known = variables.get(name)
        if match["how"] == "-" and not known:
            return expand(str(match["other"]), variables)
        if match["how"] == "+":
            return expand(str(match["other"]), variables) if known else ""
        return match[0] if known is None else known

    return _VARIABLE.sub(value, word)


def unquoted(word: str) -> str:
    """A word without the quotes around it."""
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "\"'":
        return word[1:-1]
    return word


def dialect(instruction: Instruction) -> str | None:
    """What shellcheck calls the shell that runs a RUN; None where it is no shell."""
    if instruction.json:
        return None
    runner = instruction.shell[0].rsplit("/", 1)[-1]
    if not instruction.heredocs:
        return _SHELLS.get(runner)
    before = instruction.words[0].split("<<", 1)[0].split() if instruction.words else []
    if before:
        return _SHELLS.get(before[0].rsplit("/", 1)[-1])
    first = instruction.heredocs[0][1].split("\n", 1)[0]
    if first.startswith("#!"):
        program = first[2:].split()
        name = program[-1] if program and program[0].endswith("/env") else (program or [""])[0]
        return _SHELLS.get(name.rsplit("/", 1)[-1])
    return _SHELLS.get(runner)
