"""The files of a batch: questions in, answers out."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Input
from graphrag_ray.base.messages import join_surrogates
from graphrag_ray.base.urls import display_path, redact_urls
from graphrag_ray.base.wording import spreadsheet_cell
from graphrag_ray.corpus.decode import NotText
from graphrag_ray.corpus.table_rows import OPENERS, WHOLE_FILE, TableRow
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.store.files import Store
from graphrag_ray.store.remote_files import is_storage_error, open_external

QUESTION_COLUMNS = ("question", "question_text")
ID_COLUMNS = ("id", "question_id")
MAX_LISTED_FAULTS = 5
ROWS_PER_BATCH = 1_000

_REFERENCE = pa.struct({"section": pa.string(), "id": pa.string(), "human_readable_id": pa.int64()})
_CONTEXT = pa.struct(
    [
        ("phase", pa.string()),
        ("records", pa.int64()),  # number of records in it
        *((name, pa.int64()) for name in ("n_tokens", "left_out", "cut")),
        ("score", pa.float64()),
    ]
)
_PASSAGE = pa.struct(
    [
        ("document", pa.string()),  # "file" or "file, row 3"
        *((name, pa.int64()) for name in ("start", "end")),  # in characters of the document
        ("text", pa.string()),
        ("words", pa.list_(pa.string())),  # words of the question in it
        ("number", pa.int64()),  # human_readable_id of its chunk
    ]
)
_LINK = pa.struct({"asked": pa.string(), "found": pa.string(), "stands": pa.bool_()})

ANSWERS = pa.schema(
    [
        # one row per question, in the order of the questions
        ("question_id", pa.string()),  # column `id` or `question_id`, otherwise the row number from 1
        ("question", pa.string()),
        ("method", pa.string()),
        ("level", pa.int64()),  # the k of C_k; null for methods without levels
        ("text", pa.string()),  # markdown, references with human_readable_ids; null if there is an error
        ("references", pa.list_(_REFERENCE)),  # every record that the text cites, in order
        ("found", pa.bool_()),  # false: the index has nothing on the question, and the text says so
        ("failed_parts", pa.int64()),  # contexts without a usable reply, whose part of the corpus is missing
        ("dropped_references", pa.int64()),  # citations of records not in the context, removed from the text
        ("contexts", pa.list_(_CONTEXT)),  # contexts sent to models, in order of use
        ("calls", pa.int64()),  # replies that the answer is based on, including reused ones
        ("tokens", pa.int64()),  # tokens of these replies and their prompts
        ("cost_usd", pa.float64()),  # cost of these replies; null if a price is unknown
        ("seconds", pa.float64()),  # from the start of the question to its answer, in this run
        ("chain", pa.list_(_LINK)),  # links of a multi-hop answer, and whether a passage supports each
        ("notes", pa.list_(pa.string())),
        ("passages", pa.list_(_PASSAGE)),  # passages that may help, if nothing was found
        ("error", pa.string()),  # why there is no answer; null if there is one
    ]
)
"""Columns of the answers file."""


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """A row of a question file. `fault` says why it cannot be asked, and is "" for a valid question.

    chunks: Ids of the chunks from which the baseline `oracle` answers.
    """

    id: str
    text: str
    fault: str = ""
    chunks: tuple[str, ...] = ()


def read_questions(url: str, options: Mapping[str, Any], max_characters: int) -> list[BatchQuestion]:
    """Read questions from a .csv, .jsonl or .parquet file.

    The question is in the column `question` or `question_text`, and its id in `id` or `question_id`, if
    present. A row without a valid question is returned with its fault.

    Args:
        options: Storage options of the URL.

    Raises:
        UsageError: The file cannot be read, has no such column or no valid question, or an id occurs twice.
    """
    source, content = display_path(url), read_file(url, options)
    extension = posixpath.splitext(source)[1].lower()
    if extension not in OPENERS:
        raise UsageError(f"{source}: Unsupported format {extension!r}. Choose from: {', '.join(OPENERS)}.")
    columns: Sequence[str] = ()
    for column in QUESTION_COLUMNS:
        table = OPENERS[extension](io.BytesIO(content), Input(text_column=column))
        if isinstance(table, NotText):
            raise UsageError(f"{source}: {table.reason}")
        if table.columns is None or column in table.columns:  # None: rows may differ
            return questions_of(table.rows, source, column if table.columns else "", max_characters)
        columns = table.columns
    wanted = " or ".join(QUESTION_COLUMNS)
    raise UsageError(f"{source} has no column {wanted}; it has {', '.join(columns) or 'none'}")


def questions_of(rows: Iterable[TableRow], source: str, column: str, max_length: int) -> list[BatchQuestion]:
    """Convert rows to questions. Raises UsageError like `read_questions`, naming `source`."""
    questions: list[BatchQuestion] = []
    number_of: dict[str, int] = {}
    for row in rows:
        if row.number == WHOLE_FILE:
            raise UsageError(f"{source}: {row.error}")
        question = _to_question(row, column, max_length)
        if earlier := number_of.get(question.id):
            raise UsageError(f"{source}: rows {earlier} and {row.number} have the same id {question.id!r}")
        number_of[question.id] = row.number
        questions.append(question)
    if all(q.fault for q in questions):
        faults = "; ".join(f"row {number_of[q.id]}: {q.fault}" for q in questions[:MAX_LISTED_FAULTS])
        raise UsageError(f"{source} contains no valid question{f': {faults}' if faults else ''}")
    return questions


def read_file(url: str, options: Mapping[str, Any]) -> bytes:
    """Read a file. Raises UsageError."""
    try:
        fs, path = open_external(url, options)
        return bytes(fs.cat_file(path))
    except (ImportError, ValueError) as e:
        raise UsageError(f"Cannot read {display_path(url)}: {redact_urls(str(e), url)}") from e
    except Exception as e:
        if not is_storage_error(e):
            raise
        missing = isinstance(e, FileNotFoundError)
        reason = "no such file" if missing else redact_urls(str(e), url) or type(e).__name__
        raise UsageError(f"Cannot read {display_path(url)}: {reason}") from e


def _to_question(row: TableRow, column: str, most_characters: int) -> BatchQuestion:
    if row.values is None:
        return BatchQuestion(str(row.number), "", row.error)
    ids = (str(row.values[c]).strip() for c in ID_COLUMNS if row.values.get(c) is not None)
    id_ = join_surrogates(next(filter(None, ids), str(row.number)))
    text = next((row.values[c] for c in ([column] if column else QUESTION_COLUMNS) if row.values.get(c)), "")
    fault = ""
    if not isinstance(text, str):
        text = repr(text)[:80]
        fault = f"the question is not a text: {join_surrogates(text)!r}"
    elif not text.strip():
        fault = "the question is empty"
    elif len(join_surrogates(text)) > most_characters:
        fault = f"the question has {len(text)} characters; at most {most_characters} are allowed"
    return BatchQuestion(id_, join_surrogates(text), fault)


def answer_row(question: BatchQuestion, answer: Answer, numbers: Mapping[Reference, int]) -> dict[str, Any]:
    """Build a row of ANSWERS. `numbers` has the human_readable_ids of the cited records."""
    phases = answer.phases.values()
    fields = ("method", "level", "text", "found", "failed_parts", "dropped_references", "cost_usd", "seconds")
    return {
        "question_id": question.id,
        "question": question.text,
        **{name: getattr(answer, name) for name in fields},
        "references": [
            {"section": r.section, "id": r.id, "human_readable_id": numbers.get(r)} for r in answer.references
        ],
        "contexts": [
            {name: getattr(c, name) for name in ("phase", "n_tokens", "left_out", "cut", "score")}
            | {"records": len(c.records)}
            for c in answer.contexts
        ],
        "calls": sum(p.calls for p in phases),
        "tokens": sum(p.prompt_tokens + p.completion_tokens for p in phases),
        "chain": [{"asked": k.asked, "found": k.found, "stands": k.stands} for k in answer.chain],
        "notes": list(answer.notes),
        "passages": [{**asdict(p), "words": list(p.words)} for p in answer.passages],
        "error": None,
    }


def failed_row(question: BatchQuestion, method: str, error: str) -> dict[str, Any]:
    """Build a row of ANSWERS for a question without an answer."""
    values = {"question_id": question.id, "question": question.text, "method": method, "error": error}
    lists: dict[str, Any] = {name: [] for name in ("references", "contexts", "chain", "notes", "passages")}
    return dict.fromkeys(ANSWERS.names) | lists | values


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, ROWS_PER_BATCH)):
        yield batch


def _write_parquet(rows: Iterable[Mapping[str, Any]], file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, ANSWERS, compression="zstd") as writer:
        for batch in _batches(rows):
            writer.write_table(pa.Table.from_pylist(batch, schema=ANSWERS))


def _write_jsonl(rows: Iterable[Mapping[str, Any]], file: BinaryIO) -> None:
    file.writelines(orjson.dumps({name: row[name] for name in ANSWERS.names}) + b"\n" for row in rows)


def _write_csv(rows: Iterable[Mapping[str, Any]], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ANSWERS.names)
    for row in rows:
        cells = (row[name] for name in ANSWERS.names)
        writer.writerow(
            orjson.dumps(cell).decode() if isinstance(cell, list) else spreadsheet_cell(cell)
            for cell in cells
        )
    text.detach()


ANSWER_FORMATS: Mapping[str, Callable[[Iterable[Mapping[str, Any]], BinaryIO], None]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
}
"""Formats of an answers file, with the same columns. Columns with lists are JSON text in CSV."""


@dataclass(frozen=True)
class AnswersFile:
    """The file of the answers, and `work`, the store next to it for the outcome and the journal."""

    store: Store
    name: str
    work: Store

    @classmethod
    def locate(cls, url: str, options: Mapping[str, Any]) -> AnswersFile:
        """Locate an answers file. Raises UsageError if the URL names no file of ANSWER_FORMATS."""
        name = posixpath.basename(url)
        if posixpath.splitext(name)[1].lower() not in ANSWER_FORMATS:
            raise UsageError(f"--out {url!r} must name a file that ends in {', '.join(ANSWER_FORMATS)}")
        store, _ = Store.for_file(url, options)
        return cls(store, name, store.child(f"{name}.work"))

    @property
    def url(self) -> str:
        return self.store.url_of(self.name)

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write all answers atomically, without holding them in memory. Raises StoreError."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / self.name
            with path.open("wb") as file:
                ANSWER_FORMATS[path.suffix.lower()](rows, file)
            self.store.upload(self.name, str(path))
