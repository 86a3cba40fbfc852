"""A question against a snapshot: in this process, without Ray, and without writing to the index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray import schema
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.gateways import Models
from graphrag_ray.errors import GraphRagError, UsageError
from graphrag_ray.llm.accounting import Accounts, Totals
from graphrag_ray.patience import Asker
from graphrag_ray.prompts import load_prompts
from graphrag_ray.query import map_reduce
from graphrag_ray.query.answer import Answer, Phase
from graphrag_ray.query.global_search import compose
from graphrag_ray.query.levels import LevelReports, Levels, levels
from graphrag_ray.query.map_reduce import MapAnswer, map_spec, reduce_spec
from graphrag_ray.records import Reference
from graphrag_ray.reports.context import Record, report_record
from graphrag_ray.settings import Settings, Storage
from graphrag_ray.settings_file import parse_settings, storage_of
from graphrag_ray.sources import Source, specific, under
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.snapshots import Manifest, being_read, open_latest

REPORT_COLUMNS = ["id", "human_readable_id", "community", "title", "full_content", "n_tokens", "hierarchy"]
MAX_QUESTION_CHARACTERS = 20_000
PARTS_AT_ONCE = 8


@dataclass(frozen=True)
class Index:
    """A snapshot, opened for reading. `settings` are those it was built with, or the caller's."""

    store: Store
    manifest: Manifest
    settings: Settings

    def __repr__(self) -> str:
        return f"<Index {self.store.url}, snapshot {self.manifest.number}>"

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of the snapshot (see schema.py), or some of its columns. Raises UsageError for a name or
        column that there is not, SnapshotRemoved where `gc` has taken the snapshot away meanwhile."""
        if name not in schema.TABLES:
            raise UsageError(f"there is no table {name!r}; there are {', '.join(schema.TABLES)}")
        known = schema.TABLES[name].names
        if unknown := [c for c in columns or [] if c not in known]:
            raise UsageError(f"table {name} has no column {unknown[0]!r}; it has {', '.join(known)}")
        with being_read(self.store, self.manifest):
            return read_table(self.store, self.manifest.parts(name), columns, schema.TABLES[name])

    def ask(self, question: str, level: str | int | None = None) -> Answer:
        """Answer a question about the whole corpus from the reports of one level (global search).

        level: "C0", "C1", … or a number; None: the coarsest with enough reports to fill a context.
        Raises UsageError for a question that cannot be asked, LevelNotFound, ModelRefused.
        """
        return _run(self.ask_async(question, level))

    async def ask_async(self, question: str, level: str | int | None = None) -> Answer:
        """`ask`, for a caller with an event loop."""
        started = time.monotonic()
        _check(question)
        prompts = load_prompts(self.settings.prompts_dir)
        budget = self.settings.query.context_tokens
        reports = self.table("community_reports", REPORT_COLUMNS)
        known = self._levels(reports)
        chosen = known.at(known.parse(level, budget))
        number = _numbers(reports)

        model = self.settings.model(self.settings.model_name("map"))
        vocabulary = vocabulary_for(model.model, model.tokenizer).name

        def tokens(text: str) -> int:
            return count(text, vocabulary)

        shown = _records(reports, chosen)
        contexts = map_reduce.pack(shown, budget, self.settings.query.seed, tokens)
        accounts = Accounts()
        asker = Asker.of(Models.of(self.settings), accounts)
        spec = map_spec(self.settings, prompts)
        asked = [partial(map_reduce.map_answer, question, c, spec) for c in contexts]
        outcomes = await asker.run("map", asked)
        mapped: list[MapAnswer | None] = [o.result for o in outcomes]
        to_reduce = map_reduce.reduce_context([m for m in mapped if m], budget, tokens)
        dialogue = partial(map_reduce.reduce_answer, question, to_reduce, reduce_spec(self.settings, prompts))
        (reduced,) = await asker.run("reduce", [dialogue])
        if reduced.result is None:
            raise GraphRagError(f"the answer could not be put together: {reduced.error}")
        errors = [o.error for o in outcomes if o.result is None]
        answer = compose(question, chosen, contexts, mapped, to_reduce, reduced.result, number.get, errors)
        notes = (*answer.notes, *self._notes(None if answer.found else question))
        phases = _phases(accounts, {"map": len(errors)})
        return replace(answer, phases=phases, notes=notes, seconds=time.monotonic() - started)

    def _notes(self, unanswered: str | None) -> list[str]:
        """Those of the snapshot; what the offline engine had to do with index and answer.

        unanswered: the question, where nothing was found
        """
        notes = dict(self.manifest.notes)
        built = notes.pop("offline", None) is not None
        answered = self.settings.model(self.settings.model_name("map")).provider == "offline"
        said = {
            (True, True): "The index was built, and the question answered, by the offline engine, without a "
            "language model.",
            (True, False): "The index was built by the offline engine, without a language model.",
            (False, True): "Answered by the offline engine, without a language model.",
        }.get((built, answered))
        why = None
        if unanswered and answered:
            from graphrag_ray.offline.questions import why_nothing  # not read for a model's answers

            why = why_nothing(unanswered)
        return [*notes.values(), *filter(None, (why, said))]

    def titles(self, references: Iterable[Reference]) -> list[tuple[int, str]]:
        """Short id and title of each cited report, in the order of the answer."""
        reports = self.table("community_reports", ["id", "human_readable_id", "title"])
        known = {r["id"]: (r["human_readable_id"], r["title"]) for r in reports.to_pylist()}
        return [known[r.id] for r in references if r.section == "Reports" and r.id in known]

    def _levels(self, reports: pa.Table) -> Levels:
        communities = self.table("communities", ["community", "level", "parent", "hierarchy"])
        return levels(communities, reports)

    def sources(self, references: Iterable[Reference], answer: Answer | None = None) -> list[Source]:
        """What lies under cited reports: entities and relationships, and their chunks with positions.

        With the answer that cites them, what carries the answer comes first (see sources.specific).
        """
        columns = ["id", "human_readable_id", "title", "rank", "references"]
        by_id = {r["id"]: r for r in self.table("community_reports", columns).to_pylist()}
        wanted = [r.id for r in references if r.section == "Reports" and r.id in by_id]
        found = under(wanted, by_id, self._rows, has_ids=self._rows_have_ids)
        return specific(found, answer) if answer else found

    @property
    def _rows_have_ids(self) -> bool:
        given = self.manifest.settings.get("input") or {}
        return given.get("id_column") is not None

    def _rows(self, name: str, ids: Iterable[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of a table with these ids, by id, in the table's order. It is read part by part: a table
        may be as large as the corpus, what a question cites is not."""
        wanted = pa.array(sorted(set(ids)), pa.string())
        parts = self.manifest.parts(name) if len(wanted) else []

        def rows(part: Part) -> list[dict[str, Any]]:
            table = read_part(self.store, part, columns)
            found: list[dict[str, Any]] = table.filter(pc.is_in(table["id"], value_set=wanted)).to_pylist()
            return found

        reading = being_read(self.store, self.manifest)
        with reading, ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="parts") as pool:
            return {row["id"]: row for found in pool.map(rows, parts) for row in found}


def open_index(
    url: str,
    *,
    snapshot: int | None = None,
    settings: Settings | None = None,
    storage: Storage | Mapping[str, Any] | None = None,
) -> Index:
    """Open the newest snapshot of an index, or the one with a number, for questions.

    settings   how to ask; None: those that the index was built with
    storage    how the index is reached, as in settings.Storage; None: as `settings.storage`, else the
               environment, says

    Raises IndexNotFound where there is none, or none finished; StoreError.
    """
    reached = storage_of(settings, storage)
    store = Store(url, reached.of(url))
    manifest = open_latest(store, snapshot)
    known = settings or parse_settings(manifest.settings)
    return Index(store, manifest, known.model_copy(update={"storage": reached}))


def _run(answering: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait for an answer, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(answering)
    with ThreadPoolExecutor(1, thread_name_prefix="ask") as thread:
        return thread.submit(asyncio.run, answering).result()


def _check(question: str) -> None:
    if not question.strip():
        raise UsageError("the question is empty")
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise UsageError(
            f"the question has {len(question)} characters; at most {MAX_QUESTION_CHARACTERS} can be asked"
        )


def _records(reports: pa.Table, chosen: LevelReports) -> list[Record]:
    rows = reports.take(pa.array(chosen.rows)).select(["id", "title", "full_content"]).to_pylist()
    return [report_record(r["id"], r["title"], r["full_content"]) for r in rows]


def _numbers(reports: pa.Table) -> dict[Reference, int | None]:
    ids, numbers = reports["id"].to_pylist(), reports["human_readable_id"].to_pylist()
    return {Reference("Reports", id_): n for id_, n in zip(ids, numbers, strict=True)}


def _phases(accounts: Accounts, failed: Mapping[str, int]) -> dict[str, Phase]:
    by_stage: dict[str, Totals] = {}
    for (stage, _), totals in accounts.by_stage.items():
        by_stage.setdefault(stage, Totals()).absorb(totals)
    return {
        stage: Phase(
            t.calls, failed.get(stage, 0), t.prompt_tokens, t.completion_tokens, t.cached_tokens, t.cost_usd
        )
        for stage, t in by_stage.items()
    }
