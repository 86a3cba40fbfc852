"""The readable text of an HTML page, with its title and date.

The rules of HTML make parsers slow on purpose-made pages: each start tag looks through all open elements,
each unclosed `<b>` is opened again in every paragraph. A page of 1 MB can take hours. So `bounded` first
writes a page with many tags anew, without what its text does not depend on (attributes, comments, scripts and
formatting) and nested up to a depth, as in browsers. Every parser then reads it in linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_SKIPPED = frozenset(
    "script style nav noscript template iframe object svg canvas head title button select".split()  # noqa: SIM905
)
_PARAGRAPHS = frozenset(
    "address article aside blockquote body center details dialog div dl fieldset figcaption figure footer "  # noqa: SIM905
    "form h1 h2 h3 h4 h5 h6 header hgroup hr main ol p pre section summary table ul".split()
)
_LINES = frozenset(("caption", "dd", "dt", "legend", "li", "tr"))
_CELLS = frozenset(("td", "th"))

_DATES = (
    "article:published_time",
    "og:published_time",
    "datepublished",
    "date",
    "dc.date",
    "dcterms.date",
    "dc.date.issued",
    "dcterms.issued",
    "publish-date",
    "publish_date",
    "publication_date",
    "pubdate",
    "citation_publication_date",
)
"""Names of meta tags that hold a date, the surest first."""

_CHARSET = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f\v\xa0]+")
# Stand for a line break and for the end of a cell until spaces are folded: the parser lets no zero byte
# through, and no page shows the other.
_BREAK = "\0"
_CELL = "\x1f"
_AROUND_MARK = re.compile(r" ?([\0\x1f]) ?")


@dataclass(frozen=True, slots=True)
class Page:
    """title and date are None where the page does not say."""

    title: str | None
    date: str | None
    text: str


def declared_charset(data: bytes) -> str | None:
    """The encoding that a meta tag near the start of the page names."""
    found = _CHARSET.search(data[:4096])
    return found.group(1).decode("ascii", "replace") if found else None


def read_html(html: str) -> Page:
    """Parse a page as a browser would.

    Blocks become paragraphs, list items and table rows lines, cells are parted by tabs; scripts,
    styles, navigation and what only a browser shows go. Entities are decoded and white space is
    folded, except in <pre>. Linear in the page (see `bounded`).
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(html if is_ordinary(html) else bounded(html))
    titles = [n for n in tree.css("title") if n.parent is None or n.parent.tag not in ("svg", "object")]
    named = (" ".join(n.text().split()) for n in (*titles[:1], tree.css_first("h1")) if n is not None)
    title = next(filter(None, named), None)
    return Page(title, _date(tree), _text(tree.body) if tree.body is not None else "")


def _date(tree: Any) -> str | None:
    found: dict[str, str] = {}
    for meta in tree.css("meta[content]"):
        attributes = meta.attributes
        name = attributes.get("property") or attributes.get("name") or attributes.get("itemprop") or ""
        content = " ".join((attributes.get("content") or "").split())
        if content:
            found.setdefault(name.strip().lower(), content)
    return next((found[name] for name in _DATES if name in found), None)


@dataclass(slots=True)
class _Writer:
    """Collects paragraphs and the breaks between them; of several breaks the widest counts."""

    parts: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    gap: int = 0
    preformatted: int = 0

    def end_line(self, gap: int) -> None:
        """gap: line breaks that must follow (1: next line, 2: next paragraph)."""
        text = "".join(self.line)
        self.line.clear()
        if self.preformatted:
            text = text.replace(_BREAK, "\n").strip("\n").rstrip()
        else:
            text = _AROUND_MARK.sub(r"\1", _SPACE.sub(" ", text))
            text = text.replace(_BREAK, "\n").replace(_CELL, "\t").strip()
        if text:
            self.parts.append("\n" * self.gap if self.parts else "")
            self.parts.append(text)
            self.gap = 0
        self.gap = max(self.gap, gap)

    def edge(self, tag: str, step: int) -> None:
        """An element begins (step 1) or ends (-1)."""
        if tag in _PARAGRAPHS:
            self.end_line(2)
        elif tag in _LINES:
            self.end_line(1)
        elif step > 0 and tag == "br":
            self.line.append(_BREAK)
        elif step > 0 and tag in _CELLS and self.line:
            self.line.append(_CELL)
        self.preformatted += step * (tag == "pre")


def _text(root: Any) -> str:
    """Depth-first without recursion: pages nest deeper than Python's stack."""
    writer = _Writer()
    node, depth = root.first_child, 0
    while node is not None:
        tag = node.tag or "-other"  # a processing instruction has none
        if tag == "-text":
            writer.line.append(node.text_content or "")
        elif tag not in _SKIPPED and not tag.startswith("-"):
            writer.edge(tag, 1)
            child = node.first_child
            if child is not None:
                node, depth = child, depth + 1
                continue
            writer.edge(tag, -1)
        while node.next is None and depth > 0:
            node, depth = node.parent, depth - 1
            writer.edge(node.tag, -1)
        node = node.next
    writer.end_line(0)
    return "".join(writer.parts)


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
_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _UNREAD | _VERBATIM}
_RENAMED = {"svg": "object", "math": "span"}
"""Inside them other rules hold. What is in an object is not read, as in an svg."""


def is_ordinary(html: str) -> bool:
    """Whether any parser reads the page in no time."""
    return html.count("<") <= ORDINARY_TAGS and max(map(len, html.split("<"))) <= ORDINARY_RUN


def bounded(html: str) -> str:
    """The page with tags that say the same and nest at most MAX_DEPTH deep; deeper elements that begin a new
    line become line breaks. Linear in the page."""
    parts: list[str] = []
    open_: list[str] = []
    at = 0
    while found := _TAG.search(html, at):
        # An escaped "<" cannot become a tag together with what follows a dropped one.
        start = found.start()
        parts.append(html[at:start].replace("<", "&lt;"))
        if found[2] is None:  # a comment, a declaration or a processing instruction, none of which is text
            if html.startswith("<!--", start):
                end = _COMMENT_END.search(html, start + 2)
                at = end.end() if end else len(html)
            else:
                at = html.find(">", start) + 1 or len(html)
                if html[start : start + 9].lower() == "<!doctype" and at - start <= ORDINARY_RUN:
                    parts.append(html[start:at])
            continue
        rest = _REST_OF_TAG.match(html, found.end())
        if rest is None:
            return "".join(parts)  # the file ends inside a tag
        name, at = found[2].lower(), rest.end()
        if found[1]:
            name = _RENAMED.get(name, name)
            if open_ and open_[-1] == name:
                # Only the innermost is closed for certain: an end tag of another may be ignored.
                open_.pop()
            parts.append("" if name in _DROPPED else f"</{name}>")
        elif name in _UNREAD or name in _VERBATIM:
            end = _ENDS[name].search(html, at)
            stop = end.start() if end else len(html)
            content = html[at:stop].replace("<", "&lt;")
            if name in ("title", "textarea"):
                parts.append(f"<{name}>{content}</{name}>")
            elif name not in _UNREAD:
                parts.append(html[at:stop].replace("&", "&amp;").replace("<", "&lt;"))
            at = html.find(">", stop) + 1 or len(html)
        else:
            parts.append(_start_tag(name, html[start:at], open_))
    parts.append(html[at:].replace("<", "&lt;"))
    return "".join(parts)


def _start_tag(name: str, tag: str, open_: list[str]) -> str:
    if name in _DROPPED:
        return ""
    if name == "meta":
        return tag if len(tag) <= ORDINARY_RUN else ""
    if name in _WITHOUT_CONTENT or name in _CLOSED_BY_OTHERS:
        return f"<{name}>"
    name = _RENAMED.get(name, name)
    breaks = name in _PARAGRAPHS or name in _LINES
    if tag.endswith("/>") and not breaks:
        return f"<{name}></{name}>"
    if len(open_) >= MAX_DEPTH:
        return "<br>" if breaks else ""
    open_.append(name)
    return f"<{name}>"
