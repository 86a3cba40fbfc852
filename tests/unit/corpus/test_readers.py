"""Plugin readers yield documents, or failures that name the package."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path

import pytest
from installed import SAMPLE, install

from graphrag_ray.base.index_settings import Input
from graphrag_ray.base.plugins import Registry
from graphrag_ray.corpus import readers
from graphrag_ray.corpus.readers import Document, Reader, Unreadable, documents_in, extensions


def epub(**pages: str) -> bytes:
    """A minimal .epub file with pages only."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        for name, page in pages.items():
            book.writestr(f"{name}.xhtml", page)
    return out.getvalue()


def page(title: str, *paragraphs: str) -> str:
    body = "".join(f"<p>{p}</p>" for p in paragraphs)
    return f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{title}</title></head>{body}</html>'


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Registry[Reader]:
    """The registry in a new process."""
    old = readers.READERS
    builtins = {name: entry.value for name, entry in old._builtins.items()}
    monkeypatch.setattr(readers, "READERS", Registry(old.group, old.noun, Reader, builtins))
    return readers.READERS


def read(path: str, data: bytes, package: str = "", **options: object) -> list[Document | Unreadable]:
    return list(documents_in(path, io.BytesIO(data), Input.model_validate(options), package))


def test_plugin_reader_adds_a_format(
    fresh: Registry[Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))
    assert extensions()[-1] == ".epub" and "graphrag_ray_sample" not in sys.modules
    one, two, broken = read(
        "b/Book.EPUB", epub(one=page("I", "Snow.", "Ice."), two=page("", "Rain."), x="<p>")
    )
    assert isinstance(one, Document) and isinstance(two, Document) and isinstance(broken, Unreadable)
    assert (one.path, one.row, one.title, one.text) == ("b/Book.EPUB", "one.xhtml", "I", "Snow.\n\nIce.")
    assert two.title == "Book two.xhtml"
    assert broken.reason.startswith("the .epub reader of the package graphrag-ray-sample 1.0: page x.xhtml")
    (bad,) = read("bad.epub", b"no zip")
    assert isinstance(bad, Unreadable) and bad.row == ""
    assert bad.reason.startswith(
        "the .epub reader of the package graphrag-ray-sample 1.0 failed: BadZipFile: File is not a zip file"
    )
    (large,) = read("large.epub", b"x" * 11, max_bytes=10)
    assert isinstance(large, Unreadable) and "input.max_bytes (10)" in large.reason


def test_file_without_its_reader_names_the_package_to_install(fresh: Registry[Reader]):
    (found,) = read("a.epub", b"", "graphrag-ray-sample 1.0")
    assert isinstance(found, Unreadable)
    assert found.reason.startswith("no reader for .epub: install the package graphrag-ray-sample 1.0")


NONSENSE = {
    "return None": "TypeError: 'NoneType' object is not iterable",
    "return ['text']": "it yielded a str, not a Document or Unreadable",
    "return [Document('x', '', 'T', None)]": "text of a document is a NoneType, not a str",
    "return [Document('x', '', 'T', 't', 3)]": "date of a document must be a str or None",
    "return [Document('x', '', 'T', 't')] * 2": "two documents with the row ''",
    "return []": "found no document",
    "return [Unreadable('x', '', 3)]": "failed: TypeError",
    "raise KeyError('k\\nl')": "failed: KeyError: 'k\\nl'",
    "raise OSError('gone')": "failed: OSError: gone",
}


@pytest.mark.parametrize("body", NONSENSE)
def test_faulty_reader_is_a_failure_that_names_its_package(
    fresh: Registry[Reader], body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / "project"
    (project / "odd").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        (SAMPLE / "pyproject.toml").read_text("utf-8").replace("graphrag_ray_sample", "odd"), "utf-8"
    )
    (project / "odd" / "__init__.py").write_text("", "utf-8")
    (project / "odd" / "epub.py").write_text(
        "from graphrag_ray.corpus.readers import Document, Reader, Unreadable\n"
        f"def read(stream, path, options):\n    {body}\nREADER = Reader(read)\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", project)))
    *_, found = read("a.epub", b"x")
    for name in ("odd", "odd.epub"):
        sys.modules.pop(name, None)
    assert isinstance(found, Unreadable) and found.path == "a.epub"
    assert NONSENSE[body] in found.reason and "graphrag-ray-sample 1.0" in found.reason
    (fine,) = read("a.txt", b"Text.")
    assert isinstance(fine, Document)


def test_documents_of_plugin_readers_are_normalised(fresh: Registry[Reader]):
    odd = Document("other", " a\nb ", " T\n", "x\r\ny\ud800", "", {"when": float("nan")}, "utf-8")
    found = readers._normalised(odd, "a.epub", "")
    assert found == Document("a.epub", "a b", "T", "x\ny\ufffd", None, {"when": None}, "utf-8")
    blank = readers._normalised(Document("a", "r", "T", " \n"), "a.epub", "")
    assert isinstance(blank, Unreadable) and blank.row == "r"


@pytest.mark.parametrize(
    "page", ["README.md", "docs/guides/documents.md", "graphrag_ray/cli/commands/index_command.py"]
)
def test_documentation_and_help_list_the_built_in_formats(page: str, fresh: Registry[Reader]):
    text = (SAMPLE.parents[1] / page).read_text("utf-8").replace("`", "")
    text = re.sub(r"\s+", " ", text)
    named = re.search(r"(?:\.[a-z]+, )+\.[a-z]+(?: or \.[a-z]+)?", text)
    assert named and re.findall(r"\.[a-z]+", named[0]) == [
        f".{name}" for name in fresh._builtins if name != "htm"
    ]
