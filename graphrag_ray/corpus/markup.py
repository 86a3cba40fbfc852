"""Extract the readable text of an HTML page, with its title and date.

HTML's rules make parsers slow on hostile pages: each start tag searches all open elements, each unclosed
`<b>` is reopened in every paragraph. A page of 1 MB can take hours. So `bounded` first rewrites a page with
many tags without what its text does not depend on (attributes, comments, scripts, formatting) and limits its
depth, as browsers do. Every parser then reads it in linear time.
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

# Names of meta tags that hold a date, the most reliable first.
_DATES = (
    *("article:published_time", "og:published_time", "datepublished", "date", "dc.date", "dcterms.date"),
    *("dc.date.issued", "dcterms.issued", "publish-date", "publish_date", "publication_date", "pubdate"),
    "citation_publication_date",
)

_CHARSET = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f\v\xa0]+")
# Placeholders for a line break and the end of a cell until spaces are folded: the parser removes zero bytes,
# and pages do not show the other.
_BREAK = "\0"
_CELL = "\x1f"
_AROUND_MARK = re.compile(r" ?([\0\x1f]) ?")


@dataclass(frozen=True, slots=True)
class Page:
    """Title and date are None if the page states none."""

    title: str | None
    date: str | None
    text: str


def declared_charset(data: bytes) -> str | None:
    """Return the encoding that a meta tag near the start of the page names."""
    charset = _CHARSET.search(data[:4096])
    return charset[1].decode("ascii", "replace") if charset else None


def read_html(html: str) -> Page:
    """Parse a page as a browser would, in linear time (see `bounded`).

    Blocks become paragraphs, list items and table rows become lines, cells are separated by tabs; scripts,
    styles, navigation and interactive elements are dropped. White space is folded, except in <pre>.
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(html if is_ordinary(html) else bounded(html))
    titles = [n for n in tree.css("title") if n.parent is None or n.parent.tag not in ("svg", "object")]
    named = (" ".join(n.text().split()) for n in (*titles[:1], tree.css_first("h1")) if n is not None)
    title = next(filter(None, named), None)
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
    """Collects paragraphs and the breaks between them; the widest of several breaks counts."""

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

    def edge(self, tag: str, step: int) -> None:
        """Begin (step 1) or end (-1) an element."""
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
    """Walk depth-first, without recursion: pages nest deeper than Python's stack."""
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


# A page with at most this many tags, and characters from one `<` to the next, is harmless.
ORDINARY_TAGS = 1_000
ORDINARY_RUN = 10_000
MAX_DEPTH = 512  # of elements, as in Chromium

_TAG = re.compile(r"<(?:(/?)([a-zA-Z][^\s/>]*)|[!?/])")
# A quotation mark opens a value only after "=".
_REST_OF_TAG = re.compile(r"(?:[^>=]|=\s*+(?:\"[^\"]*+\"|'[^']*+')?)*+>")
_COMMENT_END = re.compile(r"--!?>")

_WITHOUT_CONTENT = frozenset(
    "area base basefont bgsound br col embed frame hr image img input keygen link meta param source track "  # noqa: SIM905
    "wbr".split()
)
# Closed by the next of their kind, so that they do not nest.
_CLOSED_BY_OTHERS = frozenset(
    "body colgroup dd dt head html li p rb rp rt rtc tbody td tfoot th thead tr".split()  # noqa: SIM905
)
_DROPPED = frozenset(
    "a b big code em font i nobr s small strike strong tt u option optgroup plaintext".split()  # noqa: SIM905
)
_UNREAD = frozenset(("iframe", "script", "style"))
_VERBATIM = frozenset(("noembed", "noframes", "textarea", "title", "xmp"))  # their content is text
_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _UNREAD | _VERBATIM}
# Other parsing rules hold inside these. The content of an object is skipped, like that of an svg.
_RENAMED = {"svg": "object", "math": "span"}


def is_ordinary(html: str) -> bool:
    """Return whether any parser reads the page quickly."""
    return html.count("<") <= ORDINARY_TAGS and max(map(len, html.split("<"))) <= ORDINARY_RUN


def bounded(html: str) -> str:
    """Rewrite a page with equivalent tags that nest at most MAX_DEPTH deep, in linear time.

    Deeper elements that begin a new line become line breaks.
    """
    parts: list[str] = []
    open_: list[str] = []
    position = 0
    while tag := _TAG.search(html, position):
        # Escaping prevents that a "<" becomes a tag together with what follows a dropped one.
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
        rest = _REST_OF_TAG.match(html, tag.end())
        if rest is None:
            return "".join(parts)  # the file ends inside a tag
        name, position = tag[2].lower(), rest.end()
        if tag[1]:
            name = _RENAMED.get(name, name)
            if open_ and open_[-1] == name:
                # Only the innermost is closed for certain: an end tag of another may be ignored.
                open_.pop()
            parts.append("" if name in _DROPPED else f"</{name}>")
        elif name in _UNREAD or name in _VERBATIM:
            end = _ENDS[name].search(html, position)
            stop = end.start() if end else len(html)
            content = html[position:stop]
            if name in ("title", "textarea"):
                parts.append(f"<{name}>{content.replace('<', '&lt;')}</{name}>")
            elif name not in _UNREAD:
                parts.append(content.replace("&", "&amp;").replace("<", "&lt;"))
            position = html.find(">", stop) + 1 or len(html)
        else:
            parts.append(_start_tag(name, html[start:position], open_))
    parts.append(html[position:].replace("<", "&lt;"))
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
