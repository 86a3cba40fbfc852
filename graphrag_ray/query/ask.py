"""An open index: ask one or many questions, and read its tables.

`ask`, batches, conversations, the service and evaluations all answer questions with `Index.prepare`, which
runs in this process, without Ray, and does not write to the index.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypedDict, TypeVar, Unpack

import pyarrow as pa

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, STAGE_SETTING_KEYS
from graphrag_ray.base.errors import GraphRagError, ReportsMissing, SnapshotRemoved, StoreError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import RERANK, join_surrogates
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.prompts import Prompt, load_prompts
from graphrag_ray.base.stored_settings import with_stored_settings
from graphrag_ray.base.unexpected_errors import describe_unexpected_error, is_unexpected
from graphrag_ray.base.user_settings import require_known_addresses
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.tokens import count_tokens, vocabulary_for
from graphrag_ray.engine.in_process import asyncio_runner, gather_all
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.llm.accounting import Accounts, CallTotals
from graphrag_ray.llm.pricing import highest_price
from graphrag_ray.offline.static_embeddings import similarities
from graphrag_ray.query import traces
from graphrag_ray.query.answer_streams import (
    AnswerFunction,
    AnswerStream,
    AsyncAnswerStream,
    Emit,
    ReplyStreamer,
    StreamedText,
)
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer, Phase
from graphrag_ray.query.methods.budget import has_budget, reduce_bound
from graphrag_ray.query.methods.condense import with_history
from graphrag_ray.query.methods.levels import LevelSize
from graphrag_ray.query.methods.method import (
    MAX_QUESTION_CHARACTERS,
    AskRequest,
    DialogueOutcome,
    Dialogues,
    LevelSearch,
    NameCounts,
    Need,
    Notice,
    Rows,
    Search,
    SearchEnv,
    Similarities,
    Steps,
    Walk,
)
from graphrag_ray.query.methods.single_context import records_in, short_numbers
from graphrag_ray.query.model_calls import Asker, BaseAsker, Connections, QuestionBudget
from graphrag_ray.query.row_reader import ColumnCache, Reader
from graphrag_ray.query.searcher import Searcher, Searching
from graphrag_ray.query.sources import Cited, Source, cited_records, rank_by_answer, sources_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table
from graphrag_ray.store.snapshots import Manifest, check_not_removed, detect_removal

T = TypeVar("T")
log = logging.getLogger(__name__)

TOKEN_COUNT_CACHE_SIZE = 4_096
"""Number of texts whose token counts are cached, because many questions use the same records. The cache takes
about 20 MB for reports, or 130 MB if each text is a whole context."""


class AskOptions(TypedDict, total=False):
    """How to ask a question, apart from its level.

    Attributes:
        method: Name of a search method (query/methods/methods.py).
        where: Conditions on documents (query/methods/document_filters.py), for methods that look up chunks.
            Global search supports conditions on dates, which the whole period of a report must satisfy.
        history: Earlier questions and the texts of their answers, oldest first, for follow-up questions
            (query/methods/condense.py).
    """

    method: str
    where: Sequence[str]
    history: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Index:
    """A snapshot, opened for reading.

    Attributes:
        settings: Settings of the index, or the caller's.
        cache: Store for cached replies of models. None disables the cache.
        row_cache: Cache of rows. None creates one for this index.
        prompts: Prompts by name. None loads them from the settings' prompts directory.
        followed: Skip the check that the snapshot still exists, because the owner makes it.
        notice: Callback for notices of search methods about expensive steps.
        baselines: Allow the baselines of `evaluate` as methods.
    """

    store: Store
    manifest: Manifest
    settings: Settings
    cache: Store | None = None
    row_cache: ColumnCache | None = field(default=None, repr=False, compare=False)
    prompts: Mapping[str, Prompt] | None = field(default=None, repr=False, compare=False)
    followed: bool = field(default=False, repr=False, compare=False)
    notice: Callable[[str], object] = field(default=log.info, repr=False, compare=False)
    baselines: bool = field(default=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Index {self.store.url}, snapshot {self.manifest.number}>"

    @cached_property
    def reader(self) -> Reader:
        cache = ColumnCache(self.settings.query.cache_mb << 20) if self.row_cache is None else self.row_cache
        return Reader(self.store, self.manifest, cache)

    @cached_property
    def searcher(self) -> Searcher:
        return Searcher(self.reader, self.settings)

    @cached_property
    def _replies(self) -> ReplyCache | None:
        return ReplyCache(self.cache) if self.cache else None

    @cached_property
    def env(self) -> SearchEnv:
        model = self.settings.model(self.settings.model_name("map"))
        vocabulary = vocabulary_for(model.model, model.tokenizer).name
        settings = with_stored_settings(self.settings, self.manifest.settings)
        return SearchEnv(
            settings.with_hierarchies_of(self.manifest.hierarchies),
            self.prompts or load_prompts(self.settings.prompts_dir),
            lru_cache(TOKEN_COUNT_CACHE_SIZE)(lambda text: count_tokens(text, vocabulary)),
            {name: sum(p.rows for p in parts) for name, parts in self.manifest.tables.items()},
            {s: highest_price(self.settings.model(self.settings.model_name(s))) for s in STAGE_SETTING_KEYS},
        )

    def asker(self, connections: Connections | None = None) -> Asker:
        """Create an Asker, which calls the models for consecutive questions of one event loop."""
        connections = connections or Connections(Models.from_settings(self.settings, self.manifest.usage))
        return Asker(connections, self._replies)

    def flush_cache(self) -> None:
        if self._replies:
            self._replies.flush()

    def prepare(
        self, ask: AskRequest
    ) -> Callable[[BaseAsker, ReplyStreamer | None], Coroutine[Any, Any, Answer]]:
        """Validate a question.

        Returns:
            A coroutine function that answers it, given an asker and an optional listener for streaming.

        Raises:
            UsageError: The question is not valid for this index.
            SettingsError: The address of a model is not known on this machine.
        """
        ask = replace(ask, text=join_surrogates(ask.text), where=tuple(ask.where), history=tuple(ask.history))
        if not ask.text.strip():
            raise UsageError("The question is empty")
        if len(ask.text) > MAX_QUESTION_CHARACTERS:
            raise UsageError(
                f"The question has {len(ask.text)} characters; at most {MAX_QUESTION_CHARACTERS} are allowed"
            )
        methods.check_method(ask.method, ask.level, ask.where, self.baselines)
        query = ask.query or self.settings.query
        asked = self.settings.model_copy(update={"query": query})
        require_known_addresses(asked, methods.stages(ask.method, query, bool(ask.history)))
        env = self.env
        if ask.query is not None:
            env = replace(env, settings=env.settings.model_copy(update={"query": query}))
        return partial(self._answer, ask, env)

    async def _answer(
        self, ask: AskRequest, env: SearchEnv, asker: BaseAsker, streamer: ReplyStreamer | None
    ) -> Answer:
        started = time.monotonic()
        asker.accounts, asker.cached, asker.budget = Accounts(), (0, 0), None
        if has_budget(env.settings.query):
            reserve = reduce_bound(ask.text, env)
            asker.budget = QuestionBudget(env.settings.query, self.settings.models, reserve)
        searching = Searching(self.searcher, asker)
        failed: dict[str, list[str]] = defaultdict(list)

        async def fulfil(need: Need) -> Any:
            match need:
                case Rows() | NameCounts() | Walk() | Similarities():
                    return await asyncio.to_thread(self._look_up, need)
                case Search():
                    return await searching.find(need)
                case LevelSearch():
                    return await searching.find_levels(need)
                case Notice():
                    return self.notice(need.text)
            if not self.followed:
                await asyncio.to_thread(self._check_snapshot_exists)
            if streamer and need.is_answer and need.numbering is not None:
                number = await _run_method(short_numbers(records_in(need.numbering)), fulfil)
                streamer.create_parser = partial(StreamedText, need.numbering, number)
            outcomes = await asker.run(
                need.phase, need.factories, need.is_answer, streamer if need.is_answer else None
            )
            failed[need.phase] += [o.error for o in outcomes if o.result is None]
            return [DialogueOutcome(o.result, o.error) for o in outcomes]

        with traces.question_span(ask.method, self.manifest.number) as note:
            try:
                search = methods.get_method(ask.method).search
                answer = await _run_method(with_history(search, ask, env), fulfil)
                if not isinstance(answer, Answer):
                    raise TypeError(f"it returned a {type(answer).__qualname__} instead of an Answer")
            except ReportsMissing as e:
                usable = ", ".join(n for n, kind in methods.load_all().items() if not kind.reports)
                raise ReportsMissing(
                    f"{e} `graphrag-ray estimate` predicts the cost. These methods work without reports: "
                    f"{usable}."
                ) from e
            except SnapshotRemoved as e:
                raise e.with_usage(asker.accounts.total.calls, asker.accounts.total.total_tokens) from e
            except Exception as e:
                package = methods.METHODS.package_of(ask.method)
                if isinstance(e, GraphRagError) or not package:
                    raise
                summary = f"The search method {ask.method!r} of the package {package} failed"
                raise PluginError(f"{summary}: {type(e).__name__}: {e}") from e
            finally:
                await searching.close()
            if self._replies:
                await asyncio.to_thread(self._replies.flush_if_due)
            answer = self._add_usage_and_notes(answer, ask, asker, failed)
            if streamer:
                streamer.end(answer.text)
            answer = replace(answer, seconds=time.monotonic() - started)
            note(answer)
            return answer

    def _look_up(self, need: Rows | NameCounts | Walk | Similarities) -> Any:
        match need:
            case Rows():
                return self.reader.rows(need)
            case NameCounts():
                return self.searcher.count_names(need)
            case Walk():
                return self.searcher.walk(need)
        return similarities(need.question, need.texts)

    def _add_usage_and_notes(
        self, answer: Answer, ask: AskRequest, asker: BaseAsker, failed: Mapping[str, Sequence[str]]
    ) -> Answer:
        """Add usage and notes to an answer. `failed` has the errors of the failed dialogues of each phase."""
        has_graph, has_reports = "entities" in self.manifest.tables, bool(self.manifest.hierarchies)
        notes = (
            *answer.notes,
            *(f"Passages were not reranked: {error}" for error in dict.fromkeys(failed.get(RERANK, ()))),
            *no_answer_hints(answer, bool(ask.where), has_graph, has_reports),
            *self._snapshot_notes(None if answer.found else ask.text, *asker.cached),
        )
        totals: dict[str, CallTotals] = {}
        for (stage, _), usage in asker.accounts.by_stage.items():
            totals.setdefault(stage, CallTotals()).merge(usage)
        phases = {
            stage: Phase(
                *(t.calls, len(failed.get(stage, ())), t.prompt_tokens, t.completion_tokens, t.cached_tokens),
                t.cost_usd,
            )
            for stage, t in totals.items()
        }
        return replace(answer, phases=phases, notes=notes)

    def _check_snapshot_exists(self) -> None:
        """Raise SnapshotRemoved if it is gone. Only log storage errors, to keep replies that are paid for."""
        try:
            check_not_removed(self.store, self.manifest)
        except SnapshotRemoved:
            raise
        except StoreError as e:
            log.warning("Could not check whether the snapshot still exists: %s", e)

    @property
    def _answers_offline(self) -> bool:
        return self.settings.model(self.settings.model_name("map")).provider == "offline"

    def _snapshot_notes(self, unanswered: str | None, cached: int, replies: int) -> Iterator[str]:
        """Yield notes on the snapshot, an unanswered question, the offline engine and the cache."""
        notes = dict(self.manifest.notes)
        built, answered = notes.pop("offline", None) is not None, self._answers_offline
        yield from notes.values()
        if unanswered and answered:
            from graphrag_ray.offline.question_terms import explain_no_match  # only needed offline

            if explanation := explain_no_match(unanswered):
                yield explanation
        if built and answered:
            yield ("The offline engine built the index and answered the question, without a language model.")
        elif built:
            yield "The offline engine built the index, without a language model."
        elif answered:
            yield "The offline engine answered the question, without a language model."
        if cached:
            partly = f"{cached} of {plural(replies, 'reply', 'replies')} came from the cache."
            yield "Every reply came from the cache: no model was called." if cached == replies else partly
        if self._replies and self._replies.failure:
            yield f"Replies could not be cached: {self._replies.failure}"

    def short_numbers(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """Look up the short number of each record. Records missing from the snapshot are left out."""
        lookup = short_numbers(references)
        try:
            lookup.send([self.reader.rows(need) for need in next(lookup)])
        except StopIteration as ended:
            numbers: dict[Reference, int] = ended.value
            return numbers
        raise AssertionError("short_numbers yields once")

    def show_or_note(self, answer: Answer, show: Callable[[], T], what: str) -> tuple[T | None, Answer]:
        """Compute something to show with an answer. If that fails, add a note about `what` to the answer.

        Raises:
            SnapshotRemoved: Removed data must not be shown.
        """
        try:
            return show(), answer
        except SnapshotRemoved:
            raise
        except StoreError as e:
            reason = str(e)
        except Exception as e:
            if not is_unexpected(e):
                raise
            log.warning("%s could not be shown with an answer", what, exc_info=e)
            reason = describe_unexpected_error(
                e, include_message=False
            )  # the answer may be public, and messages may quote text
        return None, replace(answer, notes=(*answer.notes, f"{what} could not be shown: {reason}"))

    def ask(self, question: str, level: str | int | None = None, **options: Unpack[AskOptions]) -> Answer:
        """Answer a question from the index.

        Args:
            level: "C0", "C1", … or a number. "auto" or None chooses the finest level within
                query.budget_tokens and query.budget_usd or, without a budget, the coarsest level with enough
                reports to fill a context.
            **options: See `AskOptions`.

        Raises:
            UsageError: The question is not valid for this index.
            LevelNotFound: The index has no such level.
            ModelUnavailable: The endpoint refuses all requests.
            BudgetSpent: The question could exceed its budget.

        Example:
            >>> index = graphrag_ray.open_index("my-index")
            >>> print(index.ask("What are the main themes?").text)
        """
        return asyncio_runner()(self.ask_async(question, level, **options))

    async def ask_async(
        self, question: str, level: str | int | None = None, **options: Unpack[AskOptions]
    ) -> Answer:
        """Like `ask`, for a caller with an event loop."""
        answer_fn = self.prepare(AskRequest(question, level, **options))
        async with self.asker() as asker:
            return await answer_fn(asker, None)

    def stream(
        self, question: str, level: str | int | None = None, **options: Unpack[AskOptions]
    ) -> AnswerStream:
        """Like `ask`, but stream the text while it is written (see answer_streams.py)."""
        return AnswerStream(self._streaming(AskRequest(question, level, **options)))

    def stream_async(
        self, question: str, level: str | int | None = None, **options: Unpack[AskOptions]
    ) -> AsyncAnswerStream:
        """Like `stream`, for a caller with an event loop."""
        return AsyncAnswerStream(self._streaming(AskRequest(question, level, **options)))

    def _streaming(self, ask: AskRequest) -> AnswerFunction:
        answer_fn = self.prepare(ask)

        async def answered(emit: Emit) -> Answer:
            async with self.asker() as asker:
                return await answer_fn(asker, ReplyStreamer(emit))

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
        **options: Unpack[AskOptions],
    ) -> Any:
        """Answer many questions concurrently, each as `ask` would, like `query --batch`.

        Args:
            questions: Texts, or rows with a column `question` and optionally `id`: dictionaries, a pandas or
                Arrow table, or a `ray.data.Dataset`.
            out: A .parquet file for the answers. The replies of models are stored next to it, and repeating
                the call with the same `out` reuses them. All machines need access to it. None stores nothing.
            on_ray: Run on Ray at `address`, which is found or started as by `build_index`. None runs on Ray
                if `questions` is a dataset, and in this process otherwise.

        Returns:
            The rows of the answers (`question_files.ANSWERS`) in the order of the questions: a list of
            dictionaries, or a dataset if `questions` is one.

        Raises:
            GraphRagError: See `answer_batch`.
        """
        from graphrag_ray.query.batch import answer_all

        ask = AskRequest("", level, **options)
        return answer_all(self, questions, ask, out=out, on_ray=on_ray, address=address, observer=observer)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table (see schema.py), or some of its columns. Raises UsageError, SnapshotRemoved."""
        return self.reader.table(name, columns)

    def to_pandas(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Read a table, or embeddings (`embeddings_entity`, …), as a pandas DataFrame."""
        parts, schema = self.reader.parts(name, columns)
        with detect_removal(self.store, self.manifest):
            table = read_table(self.store, parts, schema.names, schema)
        try:
            return table.to_pandas()
        except ImportError as e:
            raise UsageError(
                f"pandas is not installed ({e}). Run `pip install pandas`, or use `table`."
            ) from e

    def dataset(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Read a table as a `ray.data.Dataset`, in parallel on cluster nodes with access to the index."""
        from graphrag_ray.engine.ray.datasets import dataset_of_parts

        what = f"{name} of snapshot {self.manifest.number}"
        return dataset_of_parts(self.store, what, *self.reader.parts(name, columns))

    def open_snapshot(
        self, manifest: Manifest, settings: Settings, prompts: Mapping[str, Prompt] | None = None
    ) -> Index:
        """Open another snapshot of the same index, reusing its caches and open search indexes."""
        other = replace(
            self, manifest=manifest, settings=settings, prompts=prompts, row_cache=self.reader.cache
        )
        if "_replies" in vars(self) and self._replies:
            self._replies.refresh()
            vars(other)["_replies"] = self._replies
        if "searcher" in vars(self):
            other.searcher.open_as(self.searcher)
        return other

    def warm(self, method: str = methods.DEFAULT, level: str | int | None = None) -> None:
        """Load tokeniser, rows and indexes before the first question, by asking one if answers are free."""
        self.env.count(" ")
        if self._answers_offline:
            with suppress(GraphRagError):  # the first real question will raise it
                self.ask("What are the main themes?", level, method=method)

    def levels(self, hierarchy: str | None = None) -> list[LevelSize]:
        """Describe the levels of a hierarchy and the source text (the paper's Table 2). Raises UsageError."""
        from graphrag_ray.query.methods.hierarchy_choice import communities_of, reports_of, resolve_hierarchy
        from graphrag_ray.query.methods.levels import build_levels, level_sizes

        kind = resolve_hierarchy(self.env, hierarchy)
        communities, reports = (
            self.table(need.table, need.columns) for need in (communities_of(kind), reports_of(kind))
        )
        levels = build_levels(communities, reports, kind.name)
        return level_sizes(levels, self.table("text_units", ["n_tokens"])["n_tokens"])

    def cited_records(self, references: Iterable[Reference]) -> list[Cited]:
        """Look up the section, short number and name of each cited record, grouped by section."""
        return cited_records(references, self._rows, self.env.settings.chunking.prepended_metadata)

    def _rows(self, name: str, ids: Iterable[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.reader.rows(Rows(name, columns, list(ids))).to_pylist()}

    def sources(self, references: Iterable[Reference], answer: Answer | None = None) -> list[Source]:
        """Trace cited records of any section to entities, relationships, and chunks with their positions.

        Args:
            answer: The answer that cites them. Its evidence comes first (see sources.rank_by_answer).

        Raises:
            SnapshotRemoved: `gc` has removed the snapshot.
        """
        if not self.followed:
            self._check_snapshot_exists()
        contexts = answer.contexts if answer else ()
        in_context = {r.id for used in contexts for r in used.records if r.section == "Sources"}
        columns = self.env.settings.chunking.prepended_metadata
        sources = sources_of(references, self._rows, used=in_context, columns=columns)
        return rank_by_answer(sources, answer) if answer else sources


_NEEDS = (Rows, Search, LevelSearch, NameCounts, Walk, Similarities, Dialogues, Notice)


async def _run_method(method: Steps[T], fulfil: Callable[[Need], Coroutine[Any, Any, Any]]) -> T:
    """Run a method in a thread, because packing many contexts takes seconds, and fulfil its needs."""

    def step() -> tuple[Any, StopIteration | None]:
        try:
            return method.send(sent), None
        except StopIteration as ended:  # a future cannot raise StopIteration
            return None, ended

    async def traced(need: Need) -> Any:
        with traces.need_span(need):
            return await fulfil(need)

    sent: Any = None
    while True:
        need, ended = await asyncio.to_thread(step)
        if ended is not None:
            result: T = ended.value
            return result
        for item in need if isinstance(need, tuple) else (need,):
            if not isinstance(item, _NEEDS):
                raise TypeError(f"it yielded {item!r:.80}, which is not a request of a search method")
        sent = await (gather_all(map(traced, need)) if isinstance(need, tuple) else traced(need))


_WITHOUT_EVIDENCE = ("rate", "reduce")
"""Phases whose contexts contain no evidence, or only repeat the records of other contexts."""


def no_answer_hints(
    answer: Answer, restricted: bool, has_graph: bool = True, has_reports: bool = True
) -> tuple[str, ...]:
    """Explain an answer that found nothing (possibly under conditions): what was read, and what to try."""
    if answer.found or answer.unread:
        return ()
    kinds = methods.load_all()
    hints = [
        f"--method {name} ({kinds[name].description})"
        for name in (kinds[answer.method].suggestions if answer.method in kinds else ())
        if name in kinds
        and not (restricted and kinds[name].alternative)
        and (has_graph or not kinds[name].graph)
        and (has_reports or not kinds[name].reports)
    ]
    ids = {r for c in answer.contexts if c.phase not in _WITHOUT_EVIDENCE for r in c.records}
    counts = (
        (kind, sum(r.section == section for r in ids)) for section, kind in RECORD_KIND_BY_SECTION.items()
    )
    counted = [plural(n, kind.word, kind.words) for kind, n in counts if n]
    level = f" of C{answer.level}" if answer.level is not None else ""
    summary = f"Nothing was read: {answer.method} search found nothing near the question{level}."
    if counted:
        summary = f"Read by {answer.method} search: {', '.join(counted)}{level}."
    return (summary, *([f"Try {' or '.join(hints)}."] if hints else []))
