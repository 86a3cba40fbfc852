"""An index that is opened: questions to it, one or many, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.records import Reference
from graphrag_ray.engine.in_process import runner
from graphrag_ray.engine.observer import Observer
from graphrag_ray.query.answer_streams import (
    Answering,
    AnswerStream,
    AsyncAnswerStream,
    Say,
    Telling,
)
from graphrag_ray.query.asking import Answers, Ask, Asking
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.levels import Units
from graphrag_ray.query.sources import Cited, Source, named, specific, under
from graphrag_ray.store.parts import read_table
from graphrag_ray.store.snapshots import Manifest, being_read


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


class Index(Asking):
    """A snapshot, opened for reading."""

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
        return AnswerStream(self._alone(self.answering(Ask(question, level, **how))))

    def stream_async(
        self, question: str, level: str | int | None = None, **how: Unpack[AskOptions]
    ) -> AsyncAnswerStream:
        """`stream`, for a caller with an event loop."""
        return AsyncAnswerStream(self._alone(self.answering(Ask(question, level, **how))))

    def _alone(self, answering: Answers) -> Answering:
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
