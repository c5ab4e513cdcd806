"""Hooks of the documentation site (`mkdocs.yml`): its navigation, the page of the commands, links into the code.

The navigation is that of the folders, in the order of what a reader wants (Diataxis: tutorial, how-to, reference,
explanation); a new page is in it without a word here. The page of the commands is made from the commands themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SECTIONS = {
    "Tutorial": "tutorial",
    "How to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Decisions": "decisions",
}
CLI_PAGE = "reference/cli.md"
_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation."""
    docs = Path(config.docs_dir)
    nav: list[Any] = [{"Trainyard": "index.md"}]
    for title, folder in SECTIONS.items():
        pages = {f"{folder}/{page.name}" for page in (docs / folder).glob("*.md")}
        if CLI_PAGE.startswith(f"{folder}/"):
            pages.add(CLI_PAGE)
        nav.append({title: sorted(pages)})
    nav.extend(sorted(page.name for page in docs.glob("*.md") if page.name != "index.md"))
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The page of the commands."""
    from infra.cli.reference import page  # noqa: PLC0415 - the site's other hooks do not need it

    files.append(File.generated(config, CLI_PAGE, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, **_: Any) -> str:
    """Links to files of the repository, which are no pages, become the names of those files."""
    folder = Path(config.docs_dir) / Path(page.file.src_uri).parent

    def outside(match: re.Match[str]) -> str:
        target = (folder / match["target"]).resolve()
        if (target.is_relative_to(config.docs_dir) and target.suffix == ".md") or not target.exists():
            return match[0]
        return f"{match['text']} (`{target.relative_to(ROOT)}`)"

    return _OUTSIDE.sub(outside, markdown)
