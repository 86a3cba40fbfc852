"""An index that is opened: questions to it, one or many, and its tables.

`ask`, batches, conversations, the service and evaluations all come to `Index.answering`. It runs in this
process, without Ray, and does not write to the index.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypedDict, TypeVar, Unpack

import pyarrow as pa

from graphrag_ray.base.declarations import MODEL_STAGES, OF_SECTION
from graphrag_ray.base.errors import GraphRagError, NoReports, SnapshotRemoved, StoreError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import whole
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.prompts import Prompt, load_prompts
from graphrag_ray.base.records import Reference
from graphrag_ray.base.unforeseen import is_unforeseen, told
from graphrag_ray.base.user_settings import require_known
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.in_process import runner, together
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.llm.accounting import Accounts, CallTotals
from graphrag_ray.llm.pricing import dearest_price
from graphrag_ray.query import traces
from graphrag_ray.query.answer_streams import (
    Answering,
    AnswerStream,
    AsyncAnswerStream,
    Say,
    Telling,
    Written,
)
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer, Phase
from graphrag_ray.query.methods.budget import has_budget, reducing
from graphrag_ray.query.methods.condense import following
from graphrag_ray.query.methods.levels import Units
from graphrag_ray.query.methods.method import (
    MAX_QUESTION_CHARACTERS,
    Ask,
    Dialogues,
    Given,
    LevelSearch,
    NameCounts,
    Need,
    Notice,
    Ran,
    Rows,
    Search,
    Walk,
)
from graphrag_ray.query.methods.one_context import numbered, shown_in
from graphrag_ray.query.reading import Kept, Reader
from graphrag_ray.query.searching import Searcher, Searching
from graphrag_ray.query.session import Allowance, Asker, Asks, Connections
from graphrag_ray.query.sources import Cited, Source, named, specific, under
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table
from graphrag_ray.store.snapshots import Manifest, being_read, check_there

T = TypeVar("T")
log = logging.getLogger(__name__)


COUNTED = 4_096
"""Texts whose tokens are counted once, if they are not too many: most records stand in the contexts of many
questions. Some 20 MB of reports; 130 MB where each text is a context."""


class AskOptions(TypedDict, total=False):
    """How a question is asked, but for its level.

    method   one of query/methods/methods.py
    where    conditions on documents (see query/methods/where.py), for methods that look up chunks
    history  earlier questions and the texts of their answers, the oldest first, which this one may lean on:
             what it takes from them is written into it first (query/methods/condense.py)
    """

    method: str
    where: Sequence[str]
    history: Sequence[tuple[str, str]]


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

    @cached_property
    def given(self) -> Given:
        """What a search method knows beforehand."""
        model = self.settings.model(self.settings.model_name("map"))
        vocabulary = vocabulary_for(model.model, model.tokenizer).name
        settings = self.settings.with_reports_of(self.manifest.settings)
        return Given(
            settings.with_hierarchies_of(self.manifest.hierarchies),
            self.prompts or load_prompts(self.settings.prompts_dir),
            lru_cache(COUNTED)(lambda text: count(text, vocabulary)),
            {name: sum(p.rows for p in parts) for name, parts in self.manifest.tables.items()},
            {s: dearest_price(self.settings.model(self.settings.model_name(s))) for s in MODEL_STAGES},
        )

    def asker(self, connections: Connections | None = None) -> Asker:
        """The way to the models; for several questions, one after the other, of one event loop.

        connections: shared with askers of other questions; None: of its own
        """
        connections = connections or Connections(Models.of(self.settings, self.manifest.usage))
        return Asker(connections, self._replies)

    def settle(self) -> None:
        """Write what is for the cache and was not yet written."""
        if self._replies:
            self._replies.flush()

    def answering(self, ask: Ask) -> Callable[[Asks, Telling | None], Coroutine[Any, Any, Answer]]:
        """Check a question; what answers it then, told who asks and, where it is streamed, who hears.

        Raises UsageError for what cannot be asked; SettingsError where this machine does not know where a
        model is.
        """
        ask = replace(ask, text=whole(ask.text), where=tuple(ask.where), history=tuple(ask.history))
        if not ask.text.strip():
            raise UsageError("the question is empty")
        if len(ask.text) > MAX_QUESTION_CHARACTERS:
            raise UsageError(
                f"the question has {len(ask.text)} characters; at most {MAX_QUESTION_CHARACTERS} can be asked"
            )
        methods.check(ask.method, ask.level, ask.where, self.baselines)
        query = ask.query or self.settings.query
        require_known(self.settings, methods.stages(ask.method, query.dynamic, bool(ask.history)))
        given = self.given
        if ask.query is not None:
            given = replace(given, settings=given.settings.model_copy(update={"query": query}))
        return partial(self._answered, ask, given)

    async def _answered(self, ask: Ask, given: Given, asker: Asks, telling: Telling | None) -> Answer:
        started = time.monotonic()
        asker.accounts, asker.kept, asker.allowance = Accounts(), (0, 0), None
        if has_budget(given.settings.query):
            kept_back = reducing(ask.text, given)
            asker.allowance = Allowance(given.settings.query, self.settings.models, kept_back)
        searching = Searching(self.searcher, asker)
        failed: Counter[str] = Counter()

        async def fulfil(need: Need) -> Any:
            if isinstance(need, Rows):
                return await asyncio.to_thread(self.reader.rows, need)
            if isinstance(need, Search):
                return await searching.find(need)
            if isinstance(need, LevelSearch):
                return await searching.find_levels(need)
            if isinstance(need, NameCounts):
                return await asyncio.to_thread(self.searcher.count_names, need)
            if isinstance(need, Walk):
                return await asyncio.to_thread(self.searcher.walk, need)
            if isinstance(need, Notice):
                return self.notice(need.text)
            if not self.followed:
                await asyncio.to_thread(self._check_there)
            if telling and need.last and need.numbering is not None:
                number = await _driven(numbered(shown_in(need.numbering)), fulfil)
                telling.expected = partial(Written, need.numbering, number)
            outcomes = await asker.run(need.phase, need.start, need.last, telling if need.last else None)
            failed[need.phase] += sum(o.result is None for o in outcomes)
            return [Ran(o.result, o.error) for o in outcomes]

        with traces.of_question(ask.method, self.manifest.number) as note:
            try:
                search = methods.find(ask.method).search
                answer = await _driven(following(search, ask, given), fulfil)
                if not isinstance(answer, Answer):
                    raise TypeError(f"it returned a {type(answer).__qualname__} instead of an Answer")
            except NoReports as e:
                able = ", ".join(n for n, kind in methods.usable().items() if not kind.reports)
                raise NoReports(
                    f"{e} (`graphrag-ray estimate` tells what that takes). Without them there are: {able}"
                ) from e
            except SnapshotRemoved as e:
                raise e.after(asker.accounts.total.calls, asker.accounts.total.total_tokens) from e
            except Exception as e:
                package = methods.METHODS.package_of(ask.method)
                if isinstance(e, GraphRagError) or not package:
                    raise
                what = f"The search method {ask.method!r} of the package {package} failed"
                raise PluginError(f"{what}: {type(e).__name__}: {e}") from e
            finally:
                await searching.close()
            if self._replies:
                await asyncio.to_thread(self._replies.settle)
            answer = self._completed(answer, ask, asker, failed)
            if telling:
                telling.end(answer.text)
            answer = replace(answer, seconds=time.monotonic() - started)
            note(answer)
            return answer

    def _completed(self, answer: Answer, ask: Ask, asker: Asks, failed: Mapping[str, int]) -> Answer:
        """An answer with what it cost, and notes on the snapshot. failed: dialogues of each phase."""
        has_graph, has_reports = "entities" in self.manifest.tables, bool(self.manifest.hierarchies)
        notes = (
            *answer.notes,
            *unfound(answer, bool(ask.where), has_graph, has_reports),
            *self._about_snapshot(None if answer.found else ask.text, *asker.kept),
        )
        totals: dict[str, CallTotals] = {}
        for (stage, _), one in asker.accounts.by_stage.items():
            totals.setdefault(stage, CallTotals()).absorb(one)
        phases = {
            stage: Phase(
                *(t.calls, failed.get(stage, 0), t.prompt_tokens, t.completion_tokens, t.cached_tokens),
                t.cost_usd,
            )
            for stage, t in totals.items()
        }
        return replace(answer, phases=phases, notes=notes)

    def _check_there(self) -> None:
        """Storage that does not answer is no reason to lose what was paid: what is needed of it is not read
        then, either. Raises SnapshotRemoved."""
        try:
            check_there(self.store, self.manifest)
        except SnapshotRemoved:
            raise
        except StoreError as e:
            log.warning("nobody knows whether the snapshot is still there: %s", e)

    @property
    def _answers_offline(self) -> bool:
        return self.settings.model(self.settings.model_name("map")).provider == "offline"

    def _about_snapshot(self, unanswered: str | None, kept: int, replies: int) -> Iterator[str]:
        """Notes of the snapshot; what the offline engine had to do with index and answer, and the cache.

        unanswered: the question, where nothing was found
        kept: replies that were in the cache, of all
        """
        notes = dict(self.manifest.notes)
        built, answered = notes.pop("offline", None) is not None, self._answers_offline
        yield from notes.values()
        if unanswered and answered:
            from graphrag_ray.offline.question_terms import why_nothing  # not read for a model's answers

            if why := why_nothing(unanswered):
                yield why
        if built and answered:
            yield (
                "The index was built, and the question answered, by the offline engine, without a language "
                "model."
            )
        elif built:
            yield "The index was built by the offline engine, without a language model."
        elif answered:
            yield "Answered by the offline engine, without a language model."
        if kept:
            cached = f"{kept} of {plural(replies, 'reply', 'replies')} were in the cache."
            yield "Every reply was in the cache: no model was asked." if kept == replies else cached
        if self._replies and self._replies.failure:
            yield f"Replies could not be kept in the cache: {self._replies.failure}"

    def numbers(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """The short number of each record; those that the snapshot does not hold are left out."""
        asking = numbered(references)
        try:
            asking.send([self.reader.rows(need) for need in next(asking)])
        except StopIteration as ended:
            found: dict[Reference, int] = ended.value
            return found
        raise AssertionError("it asks once")

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

    def ask(self, question: str, level: str | int | None = None, **how: Unpack[AskOptions]) -> Answer:
        """Answer a question from the index.

        level    "C0", "C1", … or a number; "auto" or None: the finest within query.budget_tokens and
                 query.budget_usd; without a budget, the coarsest with enough reports to fill a context
        how      see `AskOptions`
        Raises UsageError for what cannot be asked, LevelNotFound, ModelRefused, BudgetSpent.
        """
        return runner()(self.ask_async(question, level, **how))

    async def ask_async(
        self, question: str, level: str | int | None = None, **how: Unpack[AskOptions]
    ) -> Answer:
        """`ask`, for a caller with an event loop."""
        answering = self.answering(Ask(question, level, **how))
        async with self.asker() as asker:
            return await answering(asker, None)

    def stream(
        self, question: str, level: str | int | None = None, **how: Unpack[AskOptions]
    ) -> AnswerStream:
        """`ask`, whose text can be read while it is written: see answer_streams.py."""
        return AnswerStream(self._alone(Ask(question, level, **how)))

    def stream_async(
        self, question: str, level: str | int | None = None, **how: Unpack[AskOptions]
    ) -> AsyncAnswerStream:
        """`stream`, for a caller with an event loop."""
        return AsyncAnswerStream(self._alone(Ask(question, level, **how)))

    def _alone(self, ask: Ask) -> Answering:
        answering = self.answering(ask)

        async def answered(say: Say) -> Answer:
            async with self.asker() as asker:
                return await answering(asker, Telling(say))

        return answered

    def ask_all(
        self,
        questions: Any,
        level: str | int | None = None,
        *,
        out: str | None = None,
        on_ray: bool | None = None,
        address: str | None = None,
        observer: Observer | None = None,
        **how: Unpack[AskOptions],
    ) -> Any:
        """Answer many questions side by side, as `query --batch` does: each as `ask` would.

        questions  texts, or rows with a column `question`, and maybe `id`: dictionaries, a table of pandas or
                   Arrow, a `ray.data.Dataset`
        out        a .parquet file, where the answers are kept too, and beside it what models replied: asked
                   again with the same `out`, nothing is paid for twice. On a cluster of several machines all
                   of them have to reach it. None: nothing is kept
        on_ray     on Ray, at `address`, as `build_index` finds or starts one; None: where `questions` is a
                   dataset, else in this process

        Returns the rows of the answers (`question_files.ANSWERS`) in the order of the questions: a list of
        dictionaries or, of a dataset, a dataset. Raises as `answer_batch`.
        """
        from graphrag_ray.query.batch import answer_all

        ask = Ask("", level, **how)
        return answer_all(self, questions, ask, out=out, on_ray=on_ray, address=address, observer=observer)

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

    def warm(self, method: str = methods.DEFAULT, level: str | int | None = None) -> None:
        """Load what a question takes, so that the first one does not wait for it. Where an answer costs
        nothing, that is a question: its tables and counts of tokens are those of others."""
        self.given.count(" ")
        if self._answers_offline:
            with suppress(GraphRagError):  # the first question will say it
                self.ask("What are the main themes?", level, method=method)

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

    def _rows(self, name: str, ids: Iterable[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of a table with these ids, by id, in the table's order."""
        return {row["id"]: row for row in self.reader.rows(Rows(name, columns, list(ids))).to_pylist()}

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


_NEEDS = (Rows, Search, LevelSearch, NameCounts, Walk, Dialogues, Notice)


async def _driven(method: Generator[Any, Any, T], fulfil: Callable[[Need], Coroutine[Any, Any, Any]]) -> T:
    """Give a method what it needs until it answers. It works in a thread: packing many contexts takes
    seconds, and others may share the event loop."""

    def step() -> tuple[Any, StopIteration | None]:
        try:
            return method.send(sent), None
        except StopIteration as ended:  # which cannot pass through a future
            return None, ended

    async def traced(one: Need) -> Any:
        with traces.of_need(one):
            return await fulfil(one)

    sent: Any = None
    while True:
        need, ended = await asyncio.to_thread(step)
        if ended is not None:
            result: T = ended.value
            return result
        for one in need if isinstance(need, tuple) else (need,):
            if not isinstance(one, _NEEDS):
                raise TypeError(
                    f"it asked for {one!r:.80}, which is nothing that a search method can ask for"
                )
        sent = await (together(map(traced, need)) if isinstance(need, tuple) else traced(need))


NOT_READING = ("rate", "reduce")
"""Phases whose contexts hold no records to answer from, or those of other contexts."""


def unfound(
    answer: Answer, restricted: bool, has_graph: bool = True, has_reports: bool = True
) -> tuple[str, ...]:
    """Sentences to add to an answer; none to one that found something, or that lacks all that was asked.

    restricted: to some documents, which reports are not; has_graph, has_reports: of the index
    """
    if answer.found or answer.unread:
        return ()
    there = methods.usable()
    hints = [
        f"--method {name} ({there[name].reads})"
        for name in (there[answer.method].others if answer.method in there else ())
        if name in there
        and not (restricted and there[name].instead)
        and (has_graph or not there[name].graph)
        and (has_reports or not there[name].reports)
    ]
    ids = {r for c in answer.contexts if c.phase not in NOT_READING for r in c.records}
    counts = ((kind, sum(r.section == section for r in ids)) for section, kind in OF_SECTION.items())
    told = [plural(n, kind.word, kind.words) for kind, n in counts if n]
    of = f" of C{answer.level}" if answer.level is not None else ""
    read = f"Nothing was read: {answer.method} search found nothing near the question{of}."
    if told:
        read = f"Read by {answer.method} search: {', '.join(told)}{of}."
    return (read, *([f"Try {' or '.join(hints)}."] if hints else []))
