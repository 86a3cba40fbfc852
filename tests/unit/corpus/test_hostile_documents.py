"""Malicious documents are read in linear time."""

import io
from collections.abc import Callable

import pytest
from linear_time import too_slow

from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.index_settings import Chunking, Input
from graphrag_ray.corpus.boundaries import sentences
from graphrag_ray.corpus.chunks import split_into_chunks
from graphrag_ray.corpus.markup import read_html
from graphrag_ray.corpus.readers import documents_in
from graphrag_ray.query.methods.evidence import find_evidence


def read(name: str) -> Callable[[str], object]:
    return lambda text: list(documents_in(name, io.BytesIO(text.encode()), Input()))


def cut(vocabulary: str) -> Callable[[str], object]:
    return lambda text: split_into_chunks(text, Chunking(), vocabulary)


PAGES = {
    "elements that are never closed": lambda n: "<div>" * n,
    "lists in lists": lambda n: "<ul><li>" * n,
    "tables in tables": lambda n: "<table><tr><td>" * n,
    "unknown elements, and ends of others": lambda n: "<x-y>" * n + "</z>" * n,
    "an end that an attribute hides": lambda n: '<div a="</div>">' * n,
    "an end that a comment hides": lambda n: "<div><!--</div>-->" * n,
    "an end that a script hides": lambda n: "<div><script><!--<script></script></div>--></script>" * n,
    "an end that an object hides": lambda n: "<div><object></div></object>" * n,
    "cells in drawings": lambda n: "<svg>" + "<td>" * n + "</x>" * n,
    "formatting to be opened again": lambda n: "".join(f"<b {i}><i {i}>" for i in range(n)) + "x</b>" * n,
    "formatting in each paragraph": lambda n: "".join(f"<b {i}>" for i in range(n)) + "<p>x" * n,
    "many attributes": lambda n: "<div " + " ".join(f"a{i}=1" for i in range(n)) + ">x",
    "attributes for one body": lambda n: "".join(f"<body a{i}=1>" for i in range(n)) + "x",
    "many options": lambda n: "<select>" + "<option>x</option>" * n,
    "comments without an end": lambda n: "<!--" * n,
    "values without an end": lambda n: "<a b='" * n + '<a b="' * n,
    "titles without an end": lambda n: "<title>" * n,
    "instructions": lambda n: "<?php x ?>" * n,
    "references to characters": lambda n: "&#" + "9" * n + "&amp" * n,
}


def mixed(unit: str) -> Callable[[int], str]:
    return lambda n: (unit * n)[:n]


UNITS = {
    "letters": "a",
    "digits": "12,345,",
    "spaces": " ",
    "lines": "\n",
    "stops": ".",
    "lines of a stop": ".\n",
    "quoted stops": '." ',
    "marks in turn": "\u0301\u0316",
    "characters with marks": "e\u0301",
    "flags": "🇩🇪",
    "a family": "👨\u200d👩\u200d👧",
    "joiners": "\u200d",
    "no spaces": "天气很好",
    "Thai": "สวัสดีครับ",
    "full stops": "。」",
    "hyphens": "-",
}
READERS = {
    "cut at sentences": cut("o200k_base"),
    "cut at sentences, normalised": cut("qwen3"),
    "sentences": sentences,
    "name": lambda text: entity_key("e" + text),
    "evidence": lambda text: find_evidence([text, f"“{text}”"], [text]),
}
FILES = {
    "spaces after a heading": ("a.md", lambda n: "# Title" + " " * n + "x"),
    "marks after a heading": ("a.md", lambda n: "# x" + "#" * n + "x"),
    "marks for a heading": ("a.md", lambda n: "# " + "#" * n),
    "fences": ("a.md", lambda n: "```\n~~~\n" * n),
    "a row of commas": ("a.csv", lambda n: "text,id\na" + "," * n),
    "a header of commas": ("a.csv", lambda n: "text" + "," * n + "\na" + "," * n),
    "quotes": ("a.csv", lambda n: "text,id\n" + '"' * n),
    "an array in an array": ("a.jsonl", lambda n: '{"text":' + "[" * n),
    "a number": ("a.jsonl", lambda n: '{"text": "x", "n": ' + "9" * n + "}"),
    "a number next to NaN": ("a.jsonl", lambda n: '{"text": "x", "m": NaN, "n": ' + "9" * n + "}"),
    "keys": ("a.jsonl", lambda n: '{"text": "x"' + "".join(f', "k{i}": 1' for i in range(n)) + "}"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_read_in_linear_time(page: str) -> None:
    assert not too_slow(read_html, PAGES[page], 4_000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("file", FILES)
def test_a_file_is_read_in_linear_time(file: str) -> None:
    name, make = FILES[file]
    assert not too_slow(read(name), make, 8_000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reader", READERS)
def test_text_is_split_in_linear_time(reader: str, unit: str) -> None:
    assert not too_slow(READERS[reader], mixed(UNITS[unit]), 8_000)
