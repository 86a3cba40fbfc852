"""HTML that is put together from text of any origin: whatever the text says, it stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

LONGEST_MARKDOWN = 100_000
"""Characters. A longer text is shown as it is: it is no prose, and might take seconds."""

# HTML has no control characters, and UTF-8 has no lone surrogates.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_WEB_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)
_VOID = ("meta", "input", "br")


class Markup(str):
    """HTML in which all text from outside is escaped."""

    __slots__ = ()


def clean(text: str) -> str:
    """The text with U+FFFD for each character that HTML or UTF-8 cannot hold."""
    return _NO_TEXT.sub("\ufffd", text)


def element(name: str, /, *inside: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element. Text inside is escaped unless it is Markup; None is left out.

    attributes: `class_` stands for class, `data_x` for data-x; True has no value; None and False are left out
    """
    tag = name
    for key, value in attributes.items():
        if value is not None and value is not False:
            tag += f" {key.rstrip('_').replace('_', '-')}"
            tag += "" if value is True else f'="{escape(clean(str(value)))}"'
    return Markup(f"<{tag}>" if name in _VOID else f"<{tag}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str | None]) -> Markup:
    texts = (part for part in parts if part is not None)
    return Markup("".join(part if isinstance(part, Markup) else escape(clean(part)) for part in texts))


def json_script(id_: str, value: Any) -> Markup:
    """Data for the page's script, which reads it by its id. All text in it should be clean."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Markup(text), type="application/json", id=id_)


def rendered_markdown(text: str) -> Markup:
    """HTML of a text that a model wrote. Images become their description, and links other than to a web
    address stay as they were written. Headings are of the levels 4 to 6: the page has those above."""
    text = clean(text)
    if len(text) > LONGEST_MARKDOWN:
        return element("pre", text)
    return Markup(_MARKDOWN.render(text))


def _restrict(state: StateCore) -> None:
    for block in state.tokens:
        for token in (block, *(block.children or ())):
            # Of what is left out, the `style` of table cells would be refused by the page's policy.
            token.attrs = {name: token.attrs[name] for name in ("href", "start") if name in token.attrs}
            if token.type == "image":
                token.type = "text"
            elif token.type == "fence":
                token.info = ""  # would become a class
            elif token.type == "link_open":
                token.attrs |= {"rel": "noopener noreferrer", "target": "_blank"}
            elif token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 3)}"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _WEB_ADDRESS.match(url) is not None  # type: ignore[method-assign]
    parser.core.ruler.push("restrict", _restrict)
    return parser


_MARKDOWN = _parser()
