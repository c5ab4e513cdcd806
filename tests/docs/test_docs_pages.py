"""What pages say can be done: links lead somewhere, commands and their options exist, and marked ones run."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from page_commands import PAGES, ROOT, Block, blocks, marked

from infra.cli import app
from infra.cli.reference import commands, options_of, page

COMMANDS = dict(commands(typer.main.get_command(app)))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
ROOMS = {"training", "infra", "images", "policies", "ci"}
GENERATED = ROOT / "docs/reference/cli.md"


def shown() -> list[tuple[str, list[str]]]:
    """Each command of each page, in words, up to what the shell makes of the rest."""
    found = []
    for block in blocks():
        for line in block.lines:
            try:
                words = shlex.split(line)
            except ValueError:  # a line of a program's output
                continue
            for number, word in enumerate(words):
                if word in {"|", "&&", ";", ">", "2>", "||"}:
                    words = words[:number]
                    break
            if words:
                found.append((block.page, words))
    return found


def test_every_command_of_trainyard_on_a_page_exists_with_its_options() -> None:
    assert sum(words[0] == "trainyard" for _, words in shown()) > 50  # or the pages are not read rightly
    wrong = []
    for where, words in shown():
        if words[0] != "trainyard" or any(word.endswith(("…", "...")) for word in words):
            continue
        name = next((name for end in (3, 2) if (name := " ".join(words[:end])) in COMMANDS), "")
        told = words[: words.index("--")] if "--" in words else words
        options = {word.split("=")[0] for word in told[1:] if re.match(r"--?[a-zA-Z]", word)} - {"--help", "-h"}
        groups = {known.rsplit(" ", 1)[0] for known in COMMANDS}
        if not name and not (options == set() and " ".join(words[:2]) in groups):
            wrong.append(f"{where}: {' '.join(words)}: there is no such command")
        elif name and (unknown := options - options_of(COMMANDS[name])):
            wrong.append(f"{where}: {' '.join(words)}: no {', '.join(sorted(unknown))}")
    assert wrong == []


def test_every_target_of_make_and_every_module_on_a_page_exists() -> None:
    wrong = []
    for where, words in shown():
        if words[0] == "make" and (
            unknown := [one for one in words[1:] if "=" not in one and one[0] != "-" and one not in TARGETS]
        ):
            wrong.append(f"{where}: make {unknown}")
        is_ours = words[:2] == ["python", "-m"] and words[2].split(".")[0] in ROOMS
        if is_ours and importlib.util.find_spec(words[2]) is None:
            wrong.append(f"{where}: python -m {words[2]}")
    assert wrong == []


def test_every_link_of_a_page_leads_to_a_file() -> None:
    wrong = []
    for file in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            there = (file.parent / target).resolve()
            if "://" not in target and not there.exists() and there != GENERATED:
                wrong.append(f"{file.relative_to(ROOT)}: {target}")
    assert wrong == []


@pytest.mark.parametrize("block", marked("run"), ids=lambda block: f"{block.page}: {block.lines[0]}")
def test_marked_commands_do_what_the_page_says(block: Block, tmp_path: Path) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(block.lines)],
        cwd=ROOT,
        env={**os.environ, "PATH": programs, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{block.page}: {block.lines}\n{done.stdout}{done.stderr}"


def test_the_page_of_the_commands_has_every_command_with_every_option() -> None:
    made = page()
    assert "trainyard simulate" in COMMANDS
    for name, command in COMMANDS.items():
        section = made.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
        for option in options_of(command):
            assert f"`{option}`" in section, name
        assert len(section.split("```")[2].strip()) > 20, f"{name} says nothing of itself"
