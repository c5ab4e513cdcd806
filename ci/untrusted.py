"""What a fork's own code has written, made harmless before it stands under our name.

The text is a report in Markdown and may say anything. It must not mention people, refer to issues, fetch pictures, lead
anywhere, hide something, or pretend to be another comment.
"""

from __future__ import annotations

import re
import unicodedata

MOST = 59_000
"""Characters of a fork's report; with what stands above it the comment stays below 60,000."""
_TAGS = frozenset({"details", "summary", "b", "br", "sub", "sup", "table", "thead", "tbody", "tr", "th", "td"})
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)\s*/?>")  # without attributes
_GAP = "\u200b"  # nobody sees it, and it ends what GitHub would make a link or a mention of
_KEPT_CONTROLS = "\n\t"
# Links begin in the middle of a word as well (`_https://`, `1https://`), and a backslash before a sign is not seen.
_SCHEME = re.compile(r"(?i)(https?|ftp|mailto|javascript|data|vbscript|file)(?=\\?:)")
_HOST = re.compile(r"(?i)www(?=\\?\.)")
_REFERENCE = re.compile(r"(?i)#(?=\d)|GH(?=\\?-\d)")
_COMMIT = re.compile(r"(?i)[0-9a-f]{6}(?=[0-9a-f])")  # seven digits are enough for a link to a commit
_ENTITY = re.compile(r"&(?=#|[A-Za-z])")  # `&#64;` would be read as @ by whatever looks for mentions
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def harmless(text: str) -> str:
    """The text without what lives in it; what it says stays readable.

    Raises:
        ValueError: it is too long.
    """
    if len(text) > MOST:
        raise ValueError(f"it has {len(text):,} characters; the most is {MOST:,}")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(sign for sign in text if sign in _KEPT_CONTROLS or unicodedata.category(sign)[0] != "C")
    lines = [_line(line) for line in text.split("\n")]
    return "\n".join([*lines, *_open_ends(lines)])


def _line(line: str) -> str:
    line = "".join(_bracket(line, at) for at in range(len(line))) if "<" in line else line
    line = (
        _ENTITY.sub(f"&{_GAP}", line)
        .replace("@", f"@{_GAP}")
        .replace("](", f"]{_GAP}(")
        .replace("]:", f"]{_GAP}:")
        .replace("][", f"]{_GAP}[")
    )
    for living in (_SCHEME, _HOST, _REFERENCE, _COMMIT):
        line = living.sub(lambda found: f"{found[0]}{_GAP}", line)
    return line


def _bracket(line: str, at: int) -> str:
    """A character; `<` only where it opens one of the tags that reports have, without attributes."""
    if line[at] != "<":
        return line[at]
    tag = _TAG.match(line, at)
    return "<" if tag and tag[1].lower() in _TAGS else f"<{_GAP}"


def _open_ends(lines: list[str]) -> list[str]:
    """What closes a fence and the `<details>` that the text leaves open, so that nothing after it is swallowed."""
    fence, depth = "", 0
    for line in lines:
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not line.strip(" `~"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            lowered = line.lower()
            depth = max(0, depth + lowered.count("<details>") - lowered.count("</details>"))
    return [*([fence] if fence else []), *(["", *["</details>"] * depth] if depth else [])]
