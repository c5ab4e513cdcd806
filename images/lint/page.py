"""Writes the reference page of the rules, so that it says what the code does: `python -m images.lint.page`."""

from __future__ import annotations

import re
from pathlib import Path

from images.lint.rule import Rule
from images.lint.rules import TOPICS, of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "image-rules.md"
_HADOLINT = Path(__file__).parent / "hadolint.yaml"


def page() -> str:
    """The page's text."""
    parts = [_HEAD]
    for topic, module in TOPICS.items():
        parts.append(
            f"| {topic} | |\n| --- | --- |\n"
            + "".join(f"| [`{one.id}`](#{one.id}) | {one.title} |\n" for one in of(module))
        )
    for topic, module in TOPICS.items():
        parts.append(f"## {topic}\n")
        parts += [_rule(one) for one in of(module)]
    parts.append(_hadolint())
    return "\n".join(parts)


def _rule(one: Rule) -> str:
    kind = {"Dockerfile": "dockerfile", "image.json": "json"}.get(one.file, "text")
    about = f" Row of the examples: `{one.row}`; silent where no row is named." if one.row else ""
    return f"""### {one.id}

**{one.title}** ({one.severity}).{about}

{one.reason}

{one.remedy} Source: {_linked(one.source)}

Wrong:

```{kind}
{one.wrong.rstrip()}
```

Right:

```{kind}
{one.right.rstrip()}
```
"""


def _linked(source: str) -> str:
    return re.sub(r"(https://[^\s()]+)", r"<\1>", source).rstrip(".") + "."


def ignored() -> list[tuple[str, str]]:
    """The rules of hadolint that are off, each with its reason, as the comments of the file say."""
    found: list[tuple[str, str]] = []
    reason: list[str] = []
    for line in _HADOLINT.read_text(encoding="utf-8").splitlines():
        if line.startswith("  #"):
            reason.append(line.strip(" #"))
        elif line.startswith("  - "):
            if not reason and found:
                reason = [found[-1][1]]
            found.append((line.removeprefix("  - "), " ".join(reason)))
            reason = []
    return found


def _hadolint() -> str:
    rows = "".join(f"| {name} | {reason} |\n" for name, reason in ignored())
    return f"## Rules of hadolint that are off\n\n| rule | why |\n| --- | --- |\n{rows}"


_HEAD = """# Rules for Dockerfiles

Written by `python -m images.lint.page` from the rules themselves.

`trainyard images lint` holds every row's Dockerfile, or yours (`--file`), against these rules, against
[hadolint](https://github.com/hadolint/hadolint) and, for the shell text of every RUN,
[shellcheck](https://www.shellcheck.net), told which shell will run it. Errors end with exit code 1, warnings do not.

A rule is taken away for one instruction by a comment right above it, with a reason:

```dockerfile
# trainyard ignore=base-digest our mirror has no digests
FROM mirror.example/debian:bookworm
```

`# hadolint ignore=DL3003` does the same for hadolint and shellcheck.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
