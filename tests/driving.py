"""Drive a search method with tables and hits from memory, as `ask.py` does with a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import quicktok
import toy_model
from linked_names import Links, shard_of

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue, Reply, Request
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.offline.static_embeddings import similarities
from graphrag_ray.query.methods.method import (
    DialogueOutcome,
    Dialogues,
    Hit,
    LevelSearch,
    NameCounts,
    Need,
    Notice,
    Rows,
    Search,
    SearchEnv,
    Similarities,
    Walk,
    WalkHit,
)
from graphrag_ray.store.search.pagerank import count_holders, walk

T = TypeVar("T")

COUNT = quicktok.get_encoding("cl100k_base").count


class Snapshot:
    """An index in memory.

    `tables` has rows by table; missing columns are null. `links` says which chunks contain which names, by id
    and text (None: no walk index). `find` returns ids by descending similarity (None: nothing is found).
    `needs` records what was requested, in order.
    """

    def __init__(
        self,
        tables: Mapping[str, Sequence[Mapping[str, Any]]],
        find: Callable[[Search], Sequence[str]] | None = None,
        answer: Callable[[Request], Reply] = toy_model.answer,
        links: Links | None = None,
    ) -> None:
        self.tables = {name: [dict(row) for row in rows] for name, rows in tables.items()}
        self.find = find or (lambda search: [])
        self.answer = answer
        self.shards = [] if links is None else [shard_of(links, id_of=str)]
        self.needs: list[Need] = []

    def given(self, **query: Any) -> SearchEnv:
        """Settings as for a snapshot with embeddings of everything. `query` has settings of that section."""
        n_rows = {name: len(rows) for name, rows in self.tables.items()}
        embedded = {f"embeddings_{kind}": 1 for kind in schema.EMBEDDINGS}
        embedded |= {schema.search_index_table(kind, "keyword"): 1 for kind in schema.EMBEDDINGS}
        if self.shards:
            embedded[schema.NAME_LINKS_TABLE] = sum(map(len, self.shards))
        settings = parse_settings({"query": query})
        return SearchEnv(settings, load_prompts(), COUNT, embedded | n_rows)

    def run(self, method: Generator[Any, Any, T]) -> T:
        """Fulfil its needs until it returns."""
        sent: Any = None
        while True:
            try:
                need = method.send(sent)
            except StopIteration as ended:
                result: T = ended.value
                return result
            sent = [self._met(n) for n in need] if isinstance(need, tuple) else self._met(need)

    def _met(self, need: Need) -> Any:
        self.needs.append(need)
        if isinstance(need, Rows):
            return self.rows(need)
        if isinstance(need, Search):
            among = None if need.only_ids is None else set(need.only_ids)
            ids = [id_ for id_ in self.find(need) if among is None or id_ in among][: need.k]
            return [Hit(id_, 1 / (1 + n)) for n, id_ in enumerate(ids)]
        if isinstance(need, LevelSearch):
            kind = HIERARCHIES[need.hierarchy]
            searches = [Search(kind.member_kind, "vector", need.text, need.k)]
            levels = sorted({row["level"] for row in self.tables.get(kind.reports_table, [])}, reverse=True)
            for level in levels:
                ids = [row["id"] for row in self.tables[kind.reports_table] if row["level"] == level]
                searches.append(Search(kind.report_kind, "vector", need.text, need.k, ids))
            return [self._met(search) for search in searches]
        if isinstance(need, NameCounts):
            return count_holders(self.shards, list(need.names))
        if isinstance(need, Walk):
            hits = walk(self.shards, need.names, need.chunks, need.k, need.only_ids)
            return [WalkHit(*hit) for hit in hits]
        if isinstance(need, Similarities):
            return similarities(need.question, need.texts)
        if isinstance(need, Notice):
            return None
        assert isinstance(need, Dialogues)
        return [self._ran(start) for start in need.factories]

    def _ran(self, start: Callable[[], Any]) -> DialogueOutcome[Any]:
        try:
            return DialogueOutcome(run_dialogue(start(), self.answer))
        except DialogueFailed as failed:
            return DialogueOutcome(None, str(failed))

    def rows(self, need: Rows) -> pa.Table:
        wanted = None if need.ids is None else set(need.ids)

        def is_one(value: Any) -> bool:
            return wanted is None or not wanted.isdisjoint(value if isinstance(value, list) else [value])

        by = (need.by,) if isinstance(need.by, str) else need.by
        rows = [r for r in self.tables.get(need.table, []) if any(is_one(r.get(c)) for c in by)]
        if need.limit_per_id is not None and wanted is not None:
            rows = self._first(rows, by, need.limit_per_id, wanted, schema.ROW_INDEXES[need.table][by])
        fields = pa.schema([schema.TABLES[need.table].field(c) for c in need.columns])
        return pa.Table.from_pylist([{c: r.get(c) for c in need.columns} for r in rows], fields)

    def _first(
        self,
        rows: list[dict[str, Any]],
        by: Sequence[str],
        most: int,
        wanted: set[str],
        rank: Sequence[str],
    ) -> list[dict[str, Any]]:
        """Up to that many rows of each id, those with the highest numbers, in their order."""

        def number(value: Any) -> float:
            return -float(len(value) if isinstance(value, list) else value or 0)

        ranked = sorted(rows, key=lambda r: [number(r.get(c)) for c in rank])
        kept = [row for id_ in wanted for row in [r for r in ranked if id_ in (r.get(c) for c in by)][:most]]
        return [row for row in rows if any(row is one for one in kept)]


def drive(dialogue: Dialogue[T], *replies: ChatReply | str) -> tuple[T, list[ChatRequest]]:
    """The result of a dialogue with these replies, and its requests."""
    requests: list[ChatRequest] = []
    try:
        requests.append(next(dialogue))
        for reply in replies:
            requests.append(dialogue.send(ChatReply(reply) if isinstance(reply, str) else reply))
    except StopIteration as stop:
        return stop.value, requests
    raise AssertionError("the dialogue asks for more")
