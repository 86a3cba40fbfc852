"""The readable text of an HTML page, with its title and date."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from graphrag_ray.corpus.bounded_markup import bounded, is_ordinary

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
    folded, except in <pre>. Linear in the page (see `bounded_markup.py`).
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(html if is_ordinary(html) else bounded(html, _PARAGRAPHS | _LINES))
    body = tree.body
    return Page(_title(tree), _date(tree), _text(body) if body is not None else "")


def _title(tree: Any) -> str | None:
    titles = [n for n in tree.css("title") if n.parent is None or n.parent.tag not in ("svg", "object")]
    for node in (*titles[:1], tree.css_first("h1")):
        title = " ".join(node.text().split()) if node is not None else ""
        if title:
            return title
    return None


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

    def open(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.end_line(2)
        elif tag in _LINES:
            self.end_line(1)
        elif tag == "br":
            self.line.append(_BREAK)
        elif tag in _CELLS and self.line:
            self.line.append(_CELL)
        self.preformatted += tag == "pre"

    def close(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.end_line(2)
        elif tag in _LINES:
            self.end_line(1)
        self.preformatted -= tag == "pre"


def _text(root: Any) -> str:
    """Depth-first without recursion: pages nest deeper than Python's stack."""
    writer = _Writer()
    node, depth = root.first_child, 0
    while node is not None:
        tag = node.tag or "-other"  # a processing instruction has none
        if tag == "-text":
            writer.line.append(node.text_content or "")
        elif tag not in _SKIPPED and not tag.startswith("-"):
            writer.open(tag)
            child = node.first_child
            if child is not None:
                node, depth = child, depth + 1
                continue
            writer.close(tag)
        while node.next is None and depth > 0:
            node, depth = node.parent, depth - 1
            writer.close(node.tag)
        node = node.next
    writer.end_line(0)
    return "".join(writer.parts)
