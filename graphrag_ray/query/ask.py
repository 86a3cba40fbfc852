"""A question against a snapshot: in this process, without Ray, and without writing to the index."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from graphrag_ray.base.declarations import MODEL_STAGES
from graphrag_ray.base.errors import GraphRagError, NoReports, SnapshotRemoved, StoreError, UsageError
from graphrag_ray.base.index_settings import Query, Settings
from graphrag_ray.base.messages import whole
from graphrag_ray.base.prompts import Prompt, load_prompts
from graphrag_ray.base.records import Reference
from graphrag_ray.base.unforeseen import is_unforeseen, told
from graphrag_ray.base.user_settings import require_known
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.allowance import Allowance
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.in_process import awaited, together
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.llm.accounting import Accounts, CallTotals
from graphrag_ray.llm.pricing import dearest_price
from graphrag_ray.query import traces
from graphrag_ray.query.answer_streams import Answering, AnswerStream, AsyncAnswerStream, Say, Telling
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer, Phase
from graphrag_ray.query.methods.budget import has_budget, reducing
from graphrag_ray.query.methods.cited_numbers import numbered, shown_in
from graphrag_ray.query.methods.condense import following
from graphrag_ray.query.methods.levels import Units
from graphrag_ray.query.methods.method import (
    Given,
    LevelSearch,
    Method,
    NameCounts,
    Need,
    Notice,
    Question,
    Ran,
    Rows,
    Search,
    Walk,
)
from graphrag_ray.query.methods.unfound import unfound
from graphrag_ray.query.methods.written import Written
from graphrag_ray.query.reading import Kept, Reader
from graphrag_ray.query.searching import Searcher, Searching
from graphrag_ray.query.session import Asker, Asks, Connections
from graphrag_ray.query.sources import Cited, Source, named, specific, under
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table
from graphrag_ray.store.snapshots import Manifest, being_read, check_there

T = TypeVar("T")
log = logging.getLogger(__name__)

Answers: TypeAlias = Callable[[Asks, Telling | None], Coroutine[Any, Any, Answer]]

MAX_QUESTION_CHARACTERS = 20_000
COUNTED = 4_096
"""Texts whose tokens are counted once, if they are not too many: most records stand in the contexts of many
questions. Some 20 MB of reports; 130 MB where each text is a context."""


@dataclass(frozen=True)
class Index:
    """A snapshot, opened for reading. `settings` are those it was built with, or the caller's.

    cache: where replies of models are kept, and not asked for again; None: nowhere
    kept: rows that were read; None: of this index alone
    prompts: how models are asked; None: as the settings say
    followed: somebody else sees to it that a snapshot that was removed is not asked
    notice: told what a question is about to read, where that is much
    baselines: methods of evaluations may be asked, too
    """

    store: Store
    manifest: Manifest
    settings: Settings
    cache: Store | None = None
    kept: Kept | None = field(default=None, repr=False, compare=False)
    prompts: Mapping[str, Prompt] | None = field(default=None, repr=False, compare=False)
    followed: bool = field(default=False, repr=False, compare=False)
    notice: Callable[[str], object] = field(default=log.info, repr=False, compare=False)
    baselines: bool = field(default=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Index {self.store.url}, snapshot {self.manifest.number}>"

    @cached_property
    def reader(self) -> Reader:
        kept = Kept(self.settings.query.memory_mb << 20) if self.kept is None else self.kept
        return Reader(self.store, self.manifest, kept)

    @cached_property
    def searcher(self) -> Searcher:
        return Searcher(self.reader, self.settings)

    @cached_property
    def _replies(self) -> ReplyCache | None:
        return ReplyCache(self.cache) if self.cache else None

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of the snapshot (see schema.py), or some of its columns. Raises UsageError for a name or
        column that there is not, SnapshotRemoved where `gc` has taken the snapshot away meanwhile."""
        return self.reader.table(name, columns)

    def frame(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """`table`, or embeddings (`embeddings_entity`, …), as a DataFrame of pandas."""
        parts, of = self.reader.parts(name, columns)
        with being_read(self.store, self.manifest):
            found = read_table(self.store, parts, of.names, of)
        try:
            return found.to_pandas()
        except ImportError as e:
            raise UsageError(f"pandas is not installed ({e}): pip install pandas, or take `table`") from e

    def dataset(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """The same as a `ray.data.Dataset`, read in parallel by the nodes of the cluster, which have to reach
        the index. Without a cluster Ray starts one."""
        from graphrag_ray.engine.ray.datasets import dataset_of

        what = f"{name} of snapshot {self.manifest.number}"
        return dataset_of(self.store, what, *self.reader.parts(name, columns))

    def ask_all(
        self,
        questions: Any,
        level: str | int | None = None,
        *,
        method: str = methods.DEFAULT,
        where: Sequence[str] = (),
        out: str | None = None,
        on_ray: bool | None = None,
        address: str | None = None,
        observer: Observer | None = None,
    ) -> Any:
        """Answer many questions side by side, as `query --batch` does: each as `ask` would.

        questions  texts, or rows with a column `question`, and maybe `id`: dictionaries, a table of pandas or
                   Arrow, a `ray.data.Dataset`
        out        a .parquet file, where the answers are kept too, and beside it what models replied: asked
                   again with the same `out`, nothing is paid for twice. On a cluster of several machines all
                   of them have to reach it. None: nothing is kept
        on_ray     on Ray, at `address`, as `build_index` finds or starts one; None: where `questions` is a
                   dataset, else in this process

        Returns the rows of the answers (`asking/question_files.ANSWERS`) in the order of the questions: a
        list of dictionaries or, of a dataset, a dataset. Raises as `answer_batch`.
        """
        from graphrag_ray.query.batch import answer_all

        return answer_all(
            self,
            questions,
            out=out,
            method=method,
            level=level,
            where=where,
            on_ray=on_ray,
            address=address,
            observer=observer,
        )

    def ask(
        self,
        question: str,
        level: str | int | None = None,
        *,
        method: str = methods.DEFAULT,
        where: Sequence[str] = (),
        history: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """Answer a question from the index.

        method   one of query/methods/methods.py
        level    "C0", "C1", … or a number; "auto" or None: the finest within query.budget_tokens and
                 query.budget_usd; without a budget, the coarsest with enough reports to fill a context
        where    conditions on documents (see query/methods/where.py), for methods that look up chunks
        history  earlier questions and the texts of their answers, the oldest first, which this one may lean
                 on: what it takes from them is written into it first (query/methods/condense.py)
        Raises UsageError for what cannot be asked, LevelNotFound, ModelRefused, BudgetSpent.
        """
        return awaited(self.ask_async(question, level, method=method, where=where, history=history))

    async def ask_async(
        self,
        question: str,
        level: str | int | None = None,
        *,
        method: str = methods.DEFAULT,
        where: Sequence[str] = (),
        history: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """`ask`, for a caller with an event loop."""
        answering = self.answering(question, level, method, where, history)
        async with self.asker() as asker:
            return await answering(asker, None)

    def stream(
        self,
        question: str,
        level: str | int | None = None,
        *,
        method: str = methods.DEFAULT,
        where: Sequence[str] = (),
        history: Sequence[tuple[str, str]] = (),
    ) -> AnswerStream:
        """`ask`, whose text can be read while it is written: see streams.py."""
        return AnswerStream(self._alone(self.answering(question, level, method, where, history)))

    def stream_async(
        self,
        question: str,
        level: str | int | None = None,
        *,
        method: str = methods.DEFAULT,
        where: Sequence[str] = (),
        history: Sequence[tuple[str, str]] = (),
    ) -> AsyncAnswerStream:
        """`stream`, for a caller with an event loop."""
        return AsyncAnswerStream(self._alone(self.answering(question, level, method, where, history)))

    def asker(self, connections: Connections | None = None) -> Asker:
        """The way to the models; for several questions, one after the other, of one event loop.

        connections: shared with askers of other questions; None: of its own
        """
        asker = Asker(connections) if connections else Asker.of(Models.of(self.settings, self.manifest.usage))
        asker.cache = self._replies
        return asker

    def settle(self) -> None:
        """Write what is for the cache and was not yet written."""
        if self._replies:
            self._replies.flush()

    def at(
        self, manifest: Manifest, settings: Settings, prompts: Mapping[str, Prompt] | None = None
    ) -> Index:
        """Another snapshot of the same index. What was read and is in that one too need not be read again;
        what is open for search is opened there; the cache is the same, with what others added to it."""
        other = replace(self, manifest=manifest, settings=settings, prompts=prompts, kept=self.reader.kept)
        if "_replies" in vars(self) and self._replies:
            self._replies.look_again()
            vars(other)["_replies"] = self._replies
        if "searcher" in vars(self):
            other.searcher.open_as(self.searcher)
        return other

    def answering(
        self,
        question: str,
        level: str | int | None = None,
        method: str = methods.DEFAULT,
        where: Sequence[str] = (),
        history: Sequence[tuple[str, str]] = (),
        query: Query | None = None,
    ) -> Answers:
        """Check a question; what answers it then, told who asks and, where it is streamed, who hears.

        query: how it is asked; None: as the settings say
        Raises UsageError for what cannot be asked; SettingsError where this machine does not know where a
        model is.
        """
        question = whole(question)
        _check(question)
        search = methods.method(method)
        methods.check(method, level, where, self.baselines)
        if history:
            search = following(search)
        stages = methods.stages(method, (query or self.settings.query).dynamic, bool(history))
        require_known(self.settings, stages)
        given = self.given
        if query is not None:
            given = replace(given, settings=given.settings.model_copy(update={"query": query}))
        asked = Question(question, level, tuple(where), tuple(history))
        answered = partial(self._answered, search, asked, given)
        return traces.of_question(method, self.manifest.number, answered)

    def warm(self, method: str = methods.DEFAULT, level: str | int | None = None) -> None:
        """Load what a question takes, so that the first one does not wait for it. Where an answer costs
        nothing, that is a question: its tables and counts of tokens are those of others."""
        self.given.count(" ")
        if self._answers_offline:
            with suppress(GraphRagError):  # the first question will say it
                self.ask("What are the main themes?", level, method=method)

    def _alone(self, answering: Answers) -> Answering:
        async def answered(say: Say) -> Answer:
            async with self.asker() as asker:
                return await answering(asker, Telling(say))

        return answered

    def _check_there(self) -> None:
        """Storage that does not answer is no reason to lose what was paid: what is needed of it is not read
        then, either. Raises SnapshotRemoved."""
        try:
            check_there(self.store, self.manifest)
        except SnapshotRemoved:
            raise
        except StoreError as e:
            log.warning("nobody knows whether the snapshot is still there: %s", e)

    async def _answered(
        self,
        search: Callable[[Question, Given], Method],
        question: Question,
        given: Given,
        asker: Asks,
        telling: Telling | None,
    ) -> Answer:
        started = time.monotonic()
        asker.accounts, asker.kept = Accounts(), (0, 0)
        asker.allowance = self._allowance(question.text, given)
        searching = Searching(self.searcher, asker)
        failed: dict[str, int] = {}

        async def fulfil(need: Need) -> Any:
            if isinstance(need, Rows):
                return await asyncio.to_thread(self.reader.rows, need)
            if isinstance(need, Search):
                return await searching.find(need)
            if isinstance(need, LevelSearch):
                return await searching.find_levels(need)
            if isinstance(need, NameCounts):
                return await searching.count_names(need)
            if isinstance(need, Walk):
                return await searching.walk(need)
            if isinstance(need, Notice):
                return self.notice(need.text)
            if not self.followed:
                await asyncio.to_thread(self._check_there)
            if telling and need.last and need.numbering is not None:
                number = await _driven(numbered(shown_in(need.numbering)), fulfil)
                telling.expect(partial(Written, need.numbering, number))
            outcomes = await asker.run(need.phase, need.start, need.last, telling if need.last else None)
            failed[need.phase] = failed.get(need.phase, 0) + sum(o.result is None for o in outcomes)
            return [Ran(o.result, o.error) for o in outcomes]

        try:
            answer = await _driven(search(question, given), traces.of_needs(fulfil))
        except NoReports as e:
            more = await asyncio.to_thread(lambda: self._costs_of_all)
            raise NoReports(f"{e}. {more}") from e
        except SnapshotRemoved as e:
            raise e.after(asker.accounts.total.calls, asker.accounts.total.total_tokens) from e
        finally:
            await searching.close()
        if self._replies:
            await asyncio.to_thread(self._replies.settle)
        about_snapshot = self._notes(None if answer.found else question.text)
        has_graph = "entities" in self.manifest.tables
        missed = unfound(answer, bool(question.where), has_graph, bool(self.manifest.hierarchies))
        notes = (*answer.notes, *missed, *about_snapshot, *self._of_cache(*asker.kept))
        phases = _phases(asker.accounts, failed)
        if telling:
            telling.end(answer.text)
        return replace(answer, phases=phases, notes=notes, seconds=time.monotonic() - started)

    @cached_property
    def _costs_of_all(self) -> str:
        """Of an index of names alone: what it takes to make the whole index, roughly, and which ways of
        answering there are without, as sentences."""
        from graphrag_ray.indexing.estimate import estimate_again

        settings = self.settings.with_reports_of(self.manifest.settings)
        able = f"Without them there are: {', '.join(methods.without_reports())}"
        try:
            found = estimate_again(self.store, self.manifest, settings.model_copy(update={"build": "all"}))
        except GraphRagError as e:
            return f"What that costs could not be told ({e}). {able}"
        model = settings.model(settings.model_name("extract")).model_id
        if found.offline:
            return f"The offline engine makes them at no cost. {able}"
        totals = found.totals
        money = "" if totals["cost_usd"] is None else f", ${totals['cost_usd']:,.2f}"
        tokens = (totals["prompt_tokens"] + totals["completion_tokens"]) / 1e6
        return (
            f"That takes about {totals['calls']:,.0f} calls and {tokens:,.2f}M tokens of {model}{money} "
            f"(`graphrag-ray estimate` tells it closer). {able}"
        )

    @cached_property
    def given(self) -> Given:
        """What a way of answering knows beforehand."""
        model = self.settings.model(self.settings.model_name("map"))
        vocabulary = vocabulary_for(model.model, model.tokenizer).name
        before = self.manifest.settings
        settings = self.settings.with_reports_of(before)
        return Given(
            settings.with_hierarchies_of(self.manifest.hierarchies),
            self.prompts or load_prompts(self.settings.prompts_dir),
            lru_cache(COUNTED)(lambda text: count(text, vocabulary)),
            {name: sum(p.rows for p in parts) for name, parts in self.manifest.tables.items()},
            {s: dearest_price(self.settings.model(self.settings.model_name(s))) for s in MODEL_STAGES},
        )

    def _allowance(self, question: str, given: Given) -> Allowance | None:
        query = given.settings.query
        if not has_budget(query):
            return None
        return Allowance(query, self.settings.models, reducing(question, given))

    @property
    def _answers_offline(self) -> bool:
        return self.settings.model(self.settings.model_name("map")).provider == "offline"

    def _of_cache(self, kept: int, replies: int) -> Iterator[str]:
        """What the cache did for an answer, as sentences."""
        if kept and kept == replies:
            yield "Every reply was in the cache: no model was asked."
        elif kept:
            yield f"{kept} of {plural(replies, 'reply', 'replies')} were in the cache."
        if self._replies and self._replies.failure:
            yield f"Replies could not be kept in the cache: {self._replies.failure}"

    def _notes(self, unanswered: str | None) -> list[str]:
        """Those of the snapshot; what the offline engine had to do with index and answer.

        unanswered: the question, where nothing was found
        """
        notes = dict(self.manifest.notes)
        built = notes.pop("offline", None) is not None
        answered = self._answers_offline
        said = {
            (True, True): "The index was built, and the question answered, by the offline engine, without a "
            "language model.",
            (True, False): "The index was built by the offline engine, without a language model.",
            (False, True): "Answered by the offline engine, without a language model.",
        }.get((built, answered))
        why = None
        if unanswered and answered:
            from graphrag_ray.offline.question_terms import why_nothing  # not read for a model's answers

            why = why_nothing(unanswered)
        return [*notes.values(), *filter(None, (why, said))]

    def levels(self, hierarchy: str | None = None) -> list[Units]:
        """What each level of a hierarchy holds, and the source text: Table 2 of the paper for this index.
        None: the hierarchy of `query.hierarchy`. Raises UsageError for one that the index does not have."""
        from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, communities_of, reports_of
        from graphrag_ray.query.methods.levels import levels, units

        kind = asked_hierarchy(self.given, hierarchy)
        communities, reports = (
            self.table(need.table, need.columns) for need in (communities_of(kind), reports_of(kind))
        )
        known = levels(communities, reports, kind.name)
        return units(known, self.table("text_units", ["n_tokens"])["n_tokens"])

    def cited(self, references: Iterable[Reference]) -> list[Cited]:
        """Section, short number and name of each cited record, section by section."""
        return named(references, self._rows, self.given.settings.chunking.prepended_metadata)

    def numbers(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """The short number of each record; those that the snapshot does not hold are left out."""
        asking = numbered(references)
        try:
            asking.send([self.reader.rows(need) for need in next(asking)])
        except StopIteration as ended:
            found: dict[Reference, int] = ended.value
            return found
        raise AssertionError("it asks once")

    def sources(self, references: Iterable[Reference], answer: Answer | None = None) -> list[Source]:
        """What lies under cited records of any section: entities and relationships, and their chunks with
        positions.

        With the answer that cites them, what carries the answer comes first (see sources.specific). Raises
        SnapshotRemoved.
        """
        if not self.followed:
            self._check_there()
        contexts = answer.contexts if answer else ()
        shown = {r.id for used in contexts for r in used.records if r.section == "Sources"}
        columns = self.given.settings.chunking.prepended_metadata
        found = under(references, self._rows, shown=shown, columns=columns)
        return specific(found, answer) if answer else found

    def beside(self, answer: Answer, show: Callable[[], T], what: str) -> tuple[T | None, Answer]:
        """What is shown beside an answer. Where that fails the answer, which is paid for, says so instead.

        what: names it. Raises SnapshotRemoved: what `gc` has taken away is nobody's to see.
        """
        try:
            return show(), answer
        except SnapshotRemoved:
            raise
        except StoreError as e:
            why = str(e)
        except Exception as e:
            if not is_unforeseen(e):
                raise
            log.warning("%s cannot be shown beside an answer", what, exc_info=e)
            why = told(e, quoting=False)  # an answer may go to anybody
        return None, replace(answer, notes=(*answer.notes, f"{what} cannot be shown: {why}"))

    def _rows(self, name: str, ids: Iterable[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of a table with these ids, by id, in the table's order."""
        return {row["id"]: row for row in self.reader.rows(Rows(name, columns, list(ids))).to_pylist()}


async def _driven(method: Generator[Any, Any, T], fulfil: Callable[[Need], Coroutine[Any, Any, Any]]) -> T:
    """Give a method what it needs until it answers. It works in a thread: packing many contexts takes
    seconds, and others may share the event loop."""
    sent: Any = None
    while True:
        need, ended = await asyncio.to_thread(_step, method, sent)
        if ended is not None:
            result: T = ended.value
            return result
        if isinstance(need, tuple):
            sent = await together([fulfil(n) for n in need])
        else:
            sent = await fulfil(need)


def _step(method: Generator[Any, Any, Any], sent: Any) -> tuple[Any, StopIteration | None]:
    """What it needs next, or its end: a StopIteration cannot pass through a future."""
    try:
        return method.send(sent), None
    except StopIteration as ended:
        return None, ended


def _check(question: str) -> None:
    if not question.strip():
        raise UsageError("the question is empty")
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise UsageError(
            f"the question has {len(question)} characters; at most {MAX_QUESTION_CHARACTERS} can be asked"
        )


def _phases(accounts: Accounts, failed: Mapping[str, int]) -> dict[str, Phase]:
    by_stage: dict[str, CallTotals] = {}
    for (stage, _), totals in accounts.by_stage.items():
        by_stage.setdefault(stage, CallTotals()).absorb(totals)
    return {
        stage: Phase(
            t.calls, failed.get(stage, 0), t.prompt_tokens, t.completion_tokens, t.cached_tokens, t.cost_usd
        )
        for stage, t in by_stage.items()
    }
