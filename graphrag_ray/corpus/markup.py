"""Extract the readable text of an HTML page, with its title and date.

The rules of HTML make parsers slow on hostile pages: each start tag searches all open elements, and each
unclosed `<b>` is reopened in every paragraph. Parsing a 1 MB page can take hours. So `limit_nesting` first
rewrites pages with many tags: it removes everything that does not affect the text (attributes, comments,
scripts, formatting) and limits the depth, as browsers do. Any parser then takes linear time.
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

# Names of meta tags with a date, the most reliable first.
_DATES = (
    *("article:published_time", "og:published_time", "datepublished", "date", "dc.date", "dcterms.date"),
    *("dc.date.issued", "dcterms.issued", "publish-date", "publish_date", "publication_date", "pubdate"),
    "citation_publication_date",
)

_CHARSET = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f\v\xa0]+")
# Placeholders for a line break and the end of a cell until whitespace is collapsed. The parser removes zero
# bytes, and browsers do not display the other character.
_BREAK = "\0"
_CELL = "\x1f"
_AROUND_MARK = re.compile(r" ?([\0\x1f]) ?")


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page. Title and date are None if the page has none."""

    title: str | None
    date: str | None
    text: str


def declared_charset(data: bytes) -> str | None:
    """Return the encoding that a meta tag near the start of the page declares."""
    charset = _CHARSET.search(data[:4096])
    return charset[1].decode("ascii", "replace") if charset else None


def read_html(html: str) -> Page:
    """Parse a page as a browser would, in linear time (see `limit_nesting`).

    Blocks become paragraphs, list items and table rows become lines, and cells are separated by tabs.
    Scripts, styles, navigation and interactive elements are dropped. Outside <pre>, whitespace is collapsed.
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(html if is_ordinary(html) else limit_nesting(html))
    titles = [n for n in tree.css("title") if n.parent is None or n.parent.tag not in ("svg", "object")]
    names = (" ".join(n.text().split()) for n in (*titles[:1], tree.css_first("h1")) if n is not None)
    title = next(filter(None, names), None)
    return Page(title, _date(tree), _text(tree.body) if tree.body is not None else "")


def _date(tree: Any) -> str | None:
    contents: dict[str, str] = {}
    for meta in tree.css("meta[content]"):
        attributes = meta.attributes
        name = attributes.get("property") or attributes.get("name") or attributes.get("itemprop") or ""
        content = " ".join((attributes.get("content") or "").split())
        if content:
            contents.setdefault(name.strip().lower(), content)
    return next((contents[name] for name in _DATES if name in contents), None)


@dataclass(slots=True)
class _Writer:
    """Collects paragraphs and the breaks between them. The widest of several adjacent breaks applies."""

    parts: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    gap: int = 0
    preformatted: int = 0

    def end_line(self, gap: int) -> None:
        """End the line with at least `gap` line breaks (1: next line, 2: next paragraph)."""
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

    def handle_tag(self, tag: str, direction: int) -> None:
        """Begin (step 1) or end (-1) an element."""
        if tag in _PARAGRAPHS:
            self.end_line(2)
        elif tag in _LINES:
            self.end_line(1)
        elif direction > 0 and tag == "br":
            self.line.append(_BREAK)
        elif direction > 0 and tag in _CELLS and self.line:
            self.line.append(_CELL)
        self.preformatted += direction * (tag == "pre")


def _text(root: Any) -> str:
    """Return the text under an element, without recursion, because pages nest deeper than Python's stack."""
    writer = _Writer()
    node, depth = root.first_child, 0
    while node is not None:
        tag = node.tag or "-other"  # a processing instruction has no tag
        if tag == "-text":
            writer.line.append(node.text_content or "")
        elif tag not in _SKIPPED and not tag.startswith("-"):
            writer.handle_tag(tag, 1)
            child = node.first_child
            if child is not None:
                node, depth = child, depth + 1
                continue
            writer.handle_tag(tag, -1)
        while node.next is None and depth > 0:
            node, depth = node.parent, depth - 1
            writer.handle_tag(node.tag, -1)
        node = node.next
    writer.end_line(0)
    return "".join(writer.parts)


# Any parser is fast on a page with at most this many tags and characters between two `<`.
ORDINARY_TAGS = 1_000
ORDINARY_RUN = 10_000
MAX_DEPTH = 512  # maximum depth of elements, as in Chromium

_TAG = re.compile(r"<(?:(/?)([a-zA-Z][^\s/>]*)|[!?/])")
# A quotation mark opens a value only after "=".
_REST_OF_TAG = re.compile(r"(?:[^>=]|=\s*+(?:\"[^\"]*+\"|'[^']*+')?)*+>")
_COMMENT_END = re.compile(r"--!?>")

_WITHOUT_CONTENT = frozenset(
    "area base basefont bgsound br col embed frame hr image img input keygen link meta param source track "  # noqa: SIM905
    "wbr".split()
)
# An element of the same kind closes these, so they do not nest.
_CLOSED_BY_OTHERS = frozenset(
    "body colgroup dd dt head html li p rb rp rt rtc tbody td tfoot th thead tr".split()  # noqa: SIM905
)
_DROPPED = frozenset(
    "a b big code em font i nobr s small strike strong tt u option optgroup plaintext".split()  # noqa: SIM905
)
_IGNORED = frozenset(("iframe", "script", "style"))
_VERBATIM = frozenset(("noembed", "noframes", "textarea", "title", "xmp"))  # the content is plain text
_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _IGNORED | _VERBATIM}
# Different parsing rules apply inside these. Like an svg element, an object is skipped.
_RENAMED = {"svg": "object", "math": "span"}


def is_ordinary(html: str) -> bool:
    """Return whether any parser reads the page quickly."""
    return html.count("<") <= ORDINARY_TAGS and max(map(len, html.split("<"))) <= ORDINARY_RUN


def limit_nesting(html: str) -> str:
    """Rewrite a page with equivalent tags that nest at most MAX_DEPTH deep, in linear time.

    Deeper elements that begin a new line become line breaks.
    """
    parts: list[str] = []
    open_tags: list[str] = []
    position = 0
    while tag := _TAG.search(html, position):
        # Escape "<", which could otherwise form a new tag with the text after a dropped tag.
        start = tag.start()
        parts.append(html[position:start].replace("<", "&lt;"))
        if tag[2] is None:  # a comment, a declaration or a processing instruction
            if html.startswith("<!--", start):
                end = _COMMENT_END.search(html, start + 2)
                position = end.end() if end else len(html)
            else:
                position = html.find(">", start) + 1 or len(html)
                if html[start : start + 9].lower() == "<!doctype" and position - start <= ORDINARY_RUN:
                    parts.append(html[start:position])
            continue
        tag_end = _REST_OF_TAG.match(html, tag.end())
        if tag_end is None:
            return "".join(parts)  # the file ends inside a tag
        name, position = tag[2].lower(), tag_end.end()
        if tag[1]:
            name = _RENAMED.get(name, name)
            if open_tags and open_tags[-1] == name:
                # Only the end tag of the innermost element is certain to be honoured.
                open_tags.pop()
            parts.append("" if name in _DROPPED else f"</{name}>")
        elif name in _IGNORED or name in _VERBATIM:
            end = _ENDS[name].search(html, position)
            stop = end.start() if end else len(html)
            content = html[position:stop]
            if name in ("title", "textarea"):
                parts.append(f"<{name}>{content.replace('<', '&lt;')}</{name}>")
            elif name not in _IGNORED:
                parts.append(content.replace("&", "&amp;").replace("<", "&lt;"))
            position = html.find(">", stop) + 1 or len(html)
        else:
            parts.append(_start_tag(name, html[start:position], open_tags))
    parts.append(html[position:].replace("<", "&lt;"))
    return "".join(parts)


def _start_tag(name: str, tag: str, open_tags: list[str]) -> str:
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
    if len(open_tags) >= MAX_DEPTH:
        return "<br>" if breaks else ""
    open_tags.append(name)
    return f"<{name}>"
