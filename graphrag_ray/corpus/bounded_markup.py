"""A page written anew so that every parser reads it in linear time.

The rules of HTML make parsers slow on purpose-made pages: each start tag looks through all open elements,
each unclosed `<b>` is opened again in every paragraph, attributes are compared with each other. A page of
1 MB can take hours. Here the page keeps what its text depends on: elements up to a depth (browsers have
a limit, too), no attributes, no comments and scripts, no formatting.
"""

from __future__ import annotations

import re
from functools import cache

ORDINARY_TAGS = 1_000
"""A page with no more is harmless as it is."""
ORDINARY_RUN = 10_000
"""Characters from one `<` to the next, likewise."""
MAX_DEPTH = 512
"""Of elements. Chromium has the same."""

_TAG = re.compile(r"<(?:(/?)([a-zA-Z][^\s/>]*)|[!?/])")
# A quotation mark opens a value only after "=".
_REST_OF_TAG = re.compile(r"(?:[^>=]|=\s*+(?:\"[^\"]*+\"|'[^']*+')?)*+>")
_COMMENT_END = re.compile(r"--!?>")

_WITHOUT_CONTENT = frozenset(
    "area base basefont bgsound br col embed frame hr image img input keygen link meta param source track "  # noqa: SIM905
    "wbr".split()
)
_CLOSED_BY_OTHERS = frozenset(
    "body colgroup dd dt head html li p rb rp rt rtc tbody td tfoot th thead tr".split()  # noqa: SIM905
)
"""Closed by the next of their kind, so that they do not nest."""
_FORMATTING = frozenset(
    "a b big code em font i nobr s small strike strong tt u".split()  # noqa: SIM905
)
_DROPPED = _FORMATTING | {"option", "optgroup", "plaintext"}
_UNREAD = frozenset(("iframe", "script", "style"))
_VERBATIM = frozenset(("noembed", "noframes", "textarea", "title", "xmp"))
"""What they hold is text, whatever it looks like."""
_RENAMED = {"svg": "object", "math": "span"}
"""Inside them other rules hold. What is in an object is not read, as in an svg."""


def is_ordinary(html: str) -> bool:
    """Whether any parser reads the page in no time."""
    return html.count("<") <= ORDINARY_TAGS and max(map(len, html.split("<"))) <= ORDINARY_RUN


def bounded(html: str, breaking: frozenset[str]) -> str:
    """The page with tags that say the same and nest at most MAX_DEPTH deep.

    breaking: elements that begin a new line. Deeper ones become line breaks. Linear in the page.
    """
    parts: list[str] = []
    open_: list[str] = []
    at = 0
    while found := _TAG.search(html, at):
        # An escaped "<" cannot become a tag together with what follows a dropped one.
        parts.append(html[at : found.start()].replace("<", "&lt;"))
        if found[2] is None:
            at = _after_declaration(html, found.start(), parts)
            continue
        rest = _REST_OF_TAG.match(html, found.end())
        if rest is None:
            return "".join(parts)  # the file ends inside a tag
        name, at = found[2].lower(), rest.end()
        tag = html[found.start() : at]
        if found[1]:
            parts.append(_end_tag(name, open_))
        elif name in _UNREAD or name in _VERBATIM:
            end = _end_of(name).search(html, at)
            stop = end.start() if end else len(html)
            parts.append(_verbatim(name, html[at:stop]))
            at = html.find(">", stop) + 1 or len(html)
        else:
            parts.append(_start_tag(name, tag, open_, breaking))
    parts.append(html[at:].replace("<", "&lt;"))
    return "".join(parts)


def _after_declaration(html: str, start: int, parts: list[str]) -> int:
    """Where a comment, a declaration or a processing instruction ends, none of which is text."""
    if html.startswith("<!--", start):
        end = _COMMENT_END.search(html, start + 2)
        return end.end() if end else len(html)
    after = html.find(">", start) + 1 or len(html)
    if html[start : start + 9].lower() == "<!doctype" and after - start <= ORDINARY_RUN:
        parts.append(html[start:after])
    return after


def _start_tag(name: str, tag: str, open_: list[str], breaking: frozenset[str]) -> str:
    if name in _DROPPED:
        return ""
    if name == "meta":
        return tag if len(tag) <= ORDINARY_RUN else ""
    if name in _WITHOUT_CONTENT or name in _CLOSED_BY_OTHERS:
        return f"<{name}>"
    name = _RENAMED.get(name, name)
    if tag.endswith("/>") and name not in breaking:
        return f"<{name}></{name}>"
    if len(open_) >= MAX_DEPTH:
        return "<br>" if name in breaking else ""
    open_.append(name)
    return f"<{name}>"


def _end_tag(name: str, open_: list[str]) -> str:
    name = _RENAMED.get(name, name)
    if open_ and open_[-1] == name:
        # Only the innermost is closed for certain: an end tag of another may be ignored.
        open_.pop()
    return "" if name in _DROPPED else f"</{name}>"


def _verbatim(name: str, content: str) -> str:
    if name in _UNREAD:
        return ""
    if name in ("title", "textarea"):
        content = content.replace("<", "&lt;")
        return f"<{name}>{content}</{name}>"
    return content.replace("&", "&amp;").replace("<", "&lt;")


@cache
def _end_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
