"""Names and values that nobody vouches for, safe to show: in Markdown, in HTML, on a terminal.

A pull request may come from anybody, and whoever writes it chooses the names of resources and tags. None may make a
link, mention a person, open a tag, hide what follows, or pretend to be a part of the report.
"""

from __future__ import annotations

import html
import re
import unicodedata

LONG = 120
"""Characters of a name; what is longer is cut, and says so."""
_BIDI_AND_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufeff\uffa0]")
_VISIBLE = {"\n": "↵", "\r": "↵", "\t": "⇥"}
_HIDING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COMBINING_RUN = re.compile(r"(?:[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]){4,}")
_BEYOND = re.compile(r"[^ -~]")
_LIVELY = re.compile(r"@|://|www\.|#\d|\bGH-\d|:\w+:|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""What GitHub and GitLab make links, mentions, references and pictures of."""
_TOKEN = re.compile(r"\S+")
_LOOKALIKES = str.maketrans({"`": "\u02cb", "|": "\u00a6"})


def plain(text: str, limit: int | None = LONG) -> str:
    """Text on one line in which everything is to be seen: what hides or turns text is written as its code point.

    Args:
        text: any text.
        limit: the most characters; None: no limit.
    """
    cut = limit is not None and len(text) > limit
    kept = text[:limit] if cut else text
    if _BEYOND.search(kept):
        kept = _BEYOND.sub(lambda found: _seen(found[0]), kept)
        kept = _COMBINING_RUN.sub("…", unicodedata.normalize("NFC", kept))
    return f"{kept}… ({len(text)} characters)" if cut else kept


def _seen(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    if unicodedata.category(character) in _HIDING or _BIDI_AND_INVISIBLE.match(character):
        return f"⟨U+{ord(character):04X}⟩"
    return character


def code(text: str, limit: int | None = LONG) -> str:
    """A Markdown code span, also inside a table: nothing in it is markup, a link or a mention.

    Two signs could end the span or the table's cell, and cannot be escaped in all renderers: lookalikes stand for them.
    """
    shown = plain(text, limit).translate(_LOOKALIKES).strip()
    return f"`{shown}`" if shown else "`(empty)`"


def prose(text: str, limit: int | None = 600) -> str:
    """A sentence in Markdown: what is between backticks, or would become a link, is code; the rest is text."""
    shown = plain(" ".join(text.split()), limit)
    made = [
        code(part, None) if between else _sentence(part, first=not index)
        for index, part in enumerate(re.split(r"`([^`]+)`", shown))
        for between in [index % 2 == 1]
    ]
    return "".join(made).replace("|", "¦")


def _sentence(shown: str, *, first: bool) -> str:
    made, at = [], 0
    if _LIVELY.search(shown):
        for token in _TOKEN.finditer(shown):
            if _LIVELY.search(token[0]):  # with all that touches it
                made += [_inert(shown[at : token.start()], first=first and not at), code(token[0], None)]
                at = token.end()
    return "".join([*made, _inert(shown[at:], first=first and not at)])


def _inert(text: str, *, first: bool) -> str:
    """Text whose markup is none; what makes a list or a heading does so only where a line begins."""
    text = re.sub(r"([\\`*_\[\]~$])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    # A backslash before a bar is no escape for every table.
    return (
        re.sub(r"^([-+#=]|\d+(?=[.)](?:\s|$)))", r"\\\1" if not text[:1].isdigit() else r"\1\\", text)
        if first
        else text
    )


def fenced(lines: list[str], language: str = "") -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def in_html(text: str, limit: int | None = LONG) -> str:
    """Text inside an HTML element or attribute."""
    return html.escape(plain(text, limit), quote=True)
