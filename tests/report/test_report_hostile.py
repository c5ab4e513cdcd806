"""Whoever opens a pull request chooses names and tags: none makes a link, a mention, a tag, or a part of the report."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_previews import NODE_GROUP, broken_rule, lines, said, step, summary, urn

from infra.cli.report_shown import show_report
from infra.report.document import document
from infra.report.escape import code, in_html, plain, prose
from infra.report.markdown import markdown, marker
from infra.report.model import Report, build
from infra.report.preview import from_text
from infra.report.sarif import sarif

HOSTILE = {
    "a script": "<script>alert(1)</script>",
    "an image": '"><img src=x onerror=alert(1)>',
    "a link": "[click](https://evil.example)",
    "a picture": "![x](https://evil.example/x.png)",
    "an address": "https://evil.example/x",
    "an address without https": "www.evil.example",
    "a mention": "@octocat",
    "a team": "@org/team please approve",
    "a mail": "root@evil.example",
    "an issue": "fixes #1, GH-2 and org/repo#3",
    "a code span": "`code` and ``more`` and ```",
    "a fence": "```\n```diff\n# free",
    "a table": "a | b | c",
    "a bar with a backslash": "a\\|b",
    "a heading": "# Approved",
    "a heading below": "x\n===\n---",
    "a folded part's end": "</details></summary><h1>free",
    "a comment": "<!-- trainyard preview trainyard/prod -->",
    "half a comment": "<!--",
    "a quote": "> [!CAUTION]\n> x",
    "a list": "- [x] done",
    "characters by name": "&lt;b&gt; &#64;octocat",
    "control characters": "a\x00b\x07c\x1b[31md\x1b]8;;https://evil.example\x07e",
    "text that turns": "prod\u202etxt.exe",
    "text that is not to be seen": "a\u200bb\u2060c\ufeffd\U000e0041",
    "half a character": "a\ud800b",
    "heaps of accents": "a" + "\u0301" * 200,
    "a long name": "x" * 5000,
    "a long name of backticks": "`" * 5000,
    "lines": "a\r\nb\n\nc\u2028d",
    "emphasis": "**bold** _it_ ~~gone~~ $x$",
    "a diagram": 'end\n%%{init}%%\nclick a href "javascript:alert(1)"',
    "markup of the terminal": "[bold red]x[/bold red] [link=https://evil.example]y[/link]",
    "a reference": "[x]: https://evil.example",
    "nothing": "",
    "a space": " ",
    "a star that is bold": "*`*",
}
ALLOWED = {
    *("h2", "h3", "p", "strong", "em", "code", "pre", "ul", "li", "blockquote", "details", "summary", "sub", "br"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
TEXT = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])


class Page(HTMLParser):
    """Elements of a page, and its text outside of code."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.comments: list[str] = []
        self.text: list[str] = []
        self._code = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._code += tag in {"code", "pre"}
        assert tag not in {"a", "img", "script"}, attrs

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in {"code", "pre"}

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text.append(data)


def hostile_report(name: str) -> Report:
    inputs = {"tags": {name: name}, "nodeGroupName": name, "instanceTypes": [name], "capacityType": name, name: [name]}
    scaling = {"scalingConfig": {"minSize": 1, "maxSize": 2}}
    events = [
        step("create", name=name, new={"a": name}),
        step("update", NODE_GROUP, name, old=scaling, new={**inputs, **scaling}),
        step("replace", name=f"{name}2", old={name: name}, new={name: f"{name}3"}, keys=[name]),
        step("delete", "aws:s3/bucket:Bucket", name, old=inputs),
        step("create", f"evil:x:{name}", name, new={}),
        step("delete", f"evil:y:{name}", f"{name}4", old={}),
        said(name, "error", urn=urn("a:b:C", name)),
        said(name, "warning"),
        broken_rule(name, message=name, resourceUrn=urn("a:b:C", name), policyPackName=name),
        broken_rule("of-ours", "advisory", f"Title.\n{name} is wrong: {name}", severity=name),
        broken_rule("later", "advisory", f"cannot be judged before up: {name}"),
        summary("failed"),
    ]
    return build(from_text(lines(events)), note=name)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_name_is_only_shown(what: str) -> None:
    text = markdown([hostile_report(HOSTILE[what])])
    text.encode("utf-8")
    page = Page(TEXT.render(text))
    assert set(page.tags) <= ALLOWED
    assert page.comments == [" trainyard preview trainyard/dev "]
    assert page.tags.count("details") == page.tags.count("summary")
    assert page.tags.count("h2") == 1
    assert all(title in text for title in ("Policies", "Replaced and deleted", "Node pools"))
    outside = "".join(page.text)
    # What GitHub makes of plain text after Markdown: mentions, references, addresses.
    assert not re.search(r"@\w", outside)
    assert not re.search(r"(?:https?|ftp)://|www\.", outside)
    assert not re.search(r"\w#\d|(?:^|\s)#\d|GH-\d", outside)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff]", text)


@pytest.mark.parametrize("what", HOSTILE)
def test_tables_keep_their_columns(what: str) -> None:
    html = TEXT.render(markdown([hostile_report(HOSTILE[what])]))
    for table in re.findall(r"<table>.*?</table>", html, re.DOTALL):
        rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
        assert len({len(re.findall(r"<t[hd]", row)) for row in rows}) == 1
    assert html.count("<table>") >= 3


@pytest.mark.parametrize("what", HOSTILE)
def test_documents_hold_any_name(what: str) -> None:
    report = hostile_report(HOSTILE[what])
    for made in (document(report), sarif([report])):
        json.dumps(made).encode("utf-8")


@pytest.mark.parametrize("what", HOSTILE)
def test_a_terminal_is_not_taken_over(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_report(hostile_report(HOSTILE[what]), frozenset())
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)


@given(text=st.text(alphabet=st.characters(), max_size=300))
def test_a_code_span_is_one_whatever_is_in_it(text: str) -> None:
    html = TEXT.renderInline(f"x {code(text)} y")
    assert re.fullmatch(r"x <code>[^<]*</code> y", html), html


@given(text=st.text(alphabet=st.sampled_from("ab @#:/.`*_[]()<>&|\\!~-+=1\n\u202e$"), max_size=80))
def test_a_sentence_has_no_markup_but_code(text: str) -> None:
    html = TEXT.render(f"Said: {prose(text)}")
    page = Page(html)
    assert set(page.tags) <= {"p", "code"}, html
    assert not re.search(r"@\w|://|#\d", "".join(page.text))


@given(text=st.text(alphabet=st.sampled_from("-+=#1.) a\n>"), max_size=12))
def test_a_sentence_begins_no_list_and_no_heading(text: str) -> None:
    html = TEXT.render(f"- {prose(text)}x")
    assert html.count("<li>") == 1
    assert "<h" not in html
    assert "<blockquote" not in html


@given(text=st.text(max_size=100))
def test_html_is_text(text: str) -> None:
    assert not set(in_html(text)) & set("<>\"'")


def test_what_is_cut_says_how_long_it_was() -> None:
    assert plain("x" * 300, 100) == "x" * 100 + "… (300 characters)"


def test_letters_of_all_languages_stay() -> None:
    for name in ("größe", "東京", "Київ", "café", "مرحبا", "ไทย", "emoji 🚂"):
        assert plain(name) == name


@pytest.mark.parametrize("stack", ["--> <b>", "a--b", "organization/project/dev", "@x"])
def test_the_marker_is_a_comment_whatever_the_stack_is_called(stack: str) -> None:
    assert re.fullmatch(r"<!-- trainyard preview [\w/.-]* -->", marker("p", stack))
    assert "--" not in marker("p", stack)[4:-3]
