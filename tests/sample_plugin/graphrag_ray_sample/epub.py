"""Read .epub books, which are zip files of XHTML pages. Each page with text becomes a document."""

import zipfile
from collections.abc import Iterator
from typing import BinaryIO
from xml.etree import ElementTree

from graphrag_ray.corpus.readers import Document, Input, Reader, Unreadable

XHTML = "{http://www.w3.org/1999/xhtml}"


def read(stream: BinaryIO, path: str, options: Input) -> Iterator[Document | Unreadable]:
    with zipfile.ZipFile(stream) as book:
        for page in book.namelist():
            if not page.endswith((".xhtml", ".html")):
                continue
            try:
                root = ElementTree.fromstring(book.read(page))
            except ElementTree.ParseError as e:
                yield Unreadable(path, page, f"page {page} is not XHTML: {e}")
                continue
            title = root.findtext(f".//{XHTML}title", "")
            paragraphs = ("".join(p.itertext()) for p in root.iter(f"{XHTML}p"))
            if text := "\n\n".join(p for p in paragraphs if p.strip()):
                yield Document(path, page, title, text, metadata={"page": page})


READER = Reader(read)
