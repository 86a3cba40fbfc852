"""Read published data sets: their questions in the columns of `evaluate qa`, and their corpora as input rows.

A layout is recognised by its columns, so files of the same form under other names work as well. Values of
unexpected types count as missing.

Example:
    ```python
    from graphrag_ray.evaluate import datasets

    datasets.write_corpus("hotpot_dev_distractor_v1.json", "passages.jsonl")
    questions = datasets.read_questions("hotpot_dev_distractor_v1.json")
    ```

Index the passages with `input.id_column=id`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.urls import display_path
from graphrag_ray.corpus.table_rows import TableRow
from graphrag_ray.evaluate.table_files import read_table_file
from graphrag_ray.store.files import Store

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """A form of files: data sets that have it, the columns that identify it, and a converter of rows."""

    names: str
    columns: AbstractSet[str]
    convert: Callable[[Row], Iterable[Row]]


def passage_id(title: str, text: str) -> str:
    """Return an id that a passage has in the question file and in the corpus file, whatever its position."""
    return stable_id("passage", title, text)


def _items(value: Any, kind: type) -> list[Any]:
    return [item for item in value if isinstance(item, kind)] if isinstance(value, list | tuple) else []


def _text(row: Row, *columns: str) -> str:
    values = (row.get(column) for column in columns)
    return next((str(v) for v in values if isinstance(v, str | int) and str(v).strip()), "")


def _pairs(value: Any, *keys: str) -> list[tuple[str, Any]]:
    """Return the entries of `[[title, x], …]` or, as on Hugging Face, `{"title": […], key: […]}`."""
    if isinstance(value, Mapping):
        value = [*map(list, zip(*(_items(value.get(key), object) for key in keys), strict=False))]
    entries = (entry for entry in _items(value, list) if len(entry) > 1)
    return [(entry[0], entry[1]) for entry in entries if isinstance(entry[0], str)]


def _sentences(row: Row) -> dict[str, list[str]]:
    context = _pairs(row.get("context"), "title", "sentences")
    return {title: _items(sentences, str) for title, sentences in context}


def _multi_hop(row: Row) -> Iterator[Row]:
    facts = _pairs(row.get("supporting_facts"), "title", "sent_id")
    sentences = _sentences(row)
    cited = [(sentences.get(title, []), n) for title, n in facts if isinstance(n, int)]
    evidence = [of_title[n] for of_title, n in cited if 0 <= n < len(of_title)]
    documents = [title for title, _ in facts]
    yield {**row, "id": _text(row, "_id", "id"), "documents": documents, "evidence": evidence}


def _passage(title: str, text: str) -> Row:
    """The text begins with the title, as in HippoRAG's experiments."""
    return {"id": passage_id(title, text), "title": title, "text": f"{title}\n{text}"}


def _multi_hop_passages(row: Row) -> Iterator[Row]:
    for title, sentences in _sentences(row).items():
        yield _passage(title, " ".join(sentence.strip() for sentence in sentences))


def _paragraphs(row: Row) -> Iterator[tuple[Row, bool]]:
    """Yield each passage of a question, and whether the answer needs it."""
    for p in _items(row.get("paragraphs"), Mapping):
        yield _passage(_text(p, "title"), _text(p, "paragraph_text", "text")), bool(p.get("is_supporting"))


def _musique(row: Row) -> Iterator[Row]:
    needed = {passage["id"]: passage["title"] for passage, is_needed in _paragraphs(row) if is_needed}
    hops = _text(row, "id").split("__")[0]  # 2hop, 3hop1, …
    kind = {"type": hops} if "hop" in hops else {}
    yield {**row, "documents": list(needed), "other_names": needed, **kind}


def _multihop_rag(row: Row) -> Iterator[Row]:
    evidence = _items(row.get("evidence_list"), Mapping)
    titles = {_text(e, "url", "title"): _text(e, "title") for e in evidence}
    columns = {
        "documents": list(titles),
        "other_names": titles,
        "evidence": [e.get("fact") for e in evidence],
    }
    yield {**row, **columns, "question": row.get("query")}


def _article(row: Row) -> Iterator[Row]:
    others = {key: value for key, value in row.items() if key not in ("body", "published_at")}
    date = _text(row, "published_at")
    yield {**others, "id": _text(row, "url", "title"), "date": date, "text": _text(row, "body")}


def _narrative(row: Row) -> Iterator[Row]:
    answers = [row.get("answer1"), row.get("answer2")]
    yield {"question": row.get("question"), "answers": answers, "documents": row.get("document_id")}


def _qed_question(row: Row) -> Iterator[Row]:
    attributes = row.get("attributes")
    assertions = attributes.get("assertions") if isinstance(attributes, Mapping) else None
    yield {**row, "question": row.get("text"), "assertions": assertions}


def _titled(id_column: str, text_column: str) -> Callable[[Row], Iterator[Row]]:
    def convert(row: Row) -> Iterator[Row]:
        id_ = _text(row, id_column)
        yield {"id": id_, "title": id_, "text": _text(row, text_column)}

    return convert


QUESTIONS = (
    Layout("HotpotQA and 2WikiMultihopQA", {"question", "answer", "supporting_facts"}, _multi_hop),
    Layout("MuSiQue", {"question", "answer", "paragraphs"}, _musique),
    Layout("MultiHop-RAG", {"query", "answer", "evidence_list"}, _multihop_rag),
    Layout("NarrativeQA (qaps.csv)", {"document_id", "question", "answer1", "answer2"}, _narrative),
    Layout("GraphRAG-Bench", {"question", "answer", "question_type", "source"}, lambda row: [row]),
    Layout("BenchmarkQED", {"id", "text", "question_type"}, _qed_question),
)
"""Question files, in the order in which they are tried. All other files have the columns of `evaluate qa`."""

CORPORA = (
    Layout("HotpotQA and 2WikiMultihopQA", {"supporting_facts", "context"}, _multi_hop_passages),
    Layout("MuSiQue", {"question", "paragraphs"}, lambda row: [p for p, _ in _paragraphs(row)]),
    Layout("MultiHop-RAG (corpus.json)", {"title", "body", "url"}, _article),
    Layout("GraphRAG-Bench", {"corpus_name", "context"}, _titled("corpus_name", "context")),
    Layout("NarrativeQA (summaries.csv)", {"document_id", "summary"}, _titled("document_id", "summary")),
    Layout(
        "HippoRAG (…_corpus.json)",
        {"title", "text"},
        lambda row: [_passage(_text(row, "title"), _text(row, "text"))],
    ),
)
"""Files with passages or documents."""


def _layout_of(rows: Sequence[TableRow], layouts: Sequence[Layout]) -> Layout | None:
    first = next((row.values for row in rows if row.values), {})
    return next((layout for layout in layouts if layout.columns <= first.keys()), None)


def to_question_rows(rows: Iterable[TableRow]) -> list[TableRow]:
    """Convert the rows of a recognised data set to the columns of `evaluate qa`, and return others unchanged.

    A repeated id gets a suffix: one of GraphRAG-Bench's ids belongs to two questions.
    """
    rows = list(rows)
    if (layout := _layout_of(rows, QUESTIONS)) is None:
        return rows
    seen = Counter[str]()
    converted = []
    for row in rows:
        values = None
        if row.values is not None:
            (values,) = layout.convert(row.values)
            id_ = _text(values, "id")
            seen[id_] += 1
            values = {**values, "id": f"{id_}#{seen[id_]}" if id_ and seen[id_] > 1 else id_}
        converted.append(replace(row, values=values))
    return converted


def _read(url: str, options: Mapping[str, Any] | None) -> list[TableRow]:
    rows = read_table_file(url, options or {})
    if unreadable := next((row for row in rows if row.values is None), None):
        raise UsageError(f"{display_path(url)}, row {unreadable.number}: {unreadable.error}")
    return rows


def read_questions(url: str, options: Mapping[str, Any] | None = None) -> list[Row]:
    """Read questions in the columns of `evaluate qa`, for example to filter them by `source` or `type`.

    Args:
        options: Storage options of the URL.

    Raises:
        UsageError: The file or one of its rows cannot be read.
    """
    return [row.values or {} for row in to_question_rows(_read(url, options))]


def read_corpus(url: str, options: Mapping[str, Any] | None = None) -> Iterator[Row]:
    """Read the distinct passages of a data set as input rows with the columns id, title and text.

    Raises:
        UsageError: The file or one of its rows cannot be read, or its layout is unknown.
    """
    rows = _read(url, options)
    if (layout := _layout_of(rows, CORPORA)) is None:
        known = ", ".join(layout.names for layout in CORPORA)
        raise UsageError(f"{display_path(url)} is not the corpus of a known data set. Known are: {known}.")
    seen = set[str]()
    for passage in (passage for row in rows for passage in layout.convert(row.values or {})):
        if passage["text"].strip() and passage["id"] not in seen:
            seen.add(passage["id"])
            yield passage


def write_corpus(url: str, out: str, options: Mapping[str, Any] | None = None) -> int:
    """Write the passages of a data set as .jsonl to a file or URL. Returns their number.

    Raises UsageError like `read_corpus`, and StoreError if the file cannot be written.
    """
    store, name = Store.for_file(out, options or {})
    rows, newline = read_corpus(url, options), orjson.OPT_APPEND_NEWLINE
    lines = [orjson.dumps(row, default=str, option=newline) for row in rows]
    store.write(name, b"".join(lines))
    return len(lines)
