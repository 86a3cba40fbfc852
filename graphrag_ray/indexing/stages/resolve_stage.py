"""Resolve names: merge names that stand for the same thing, and split a name that stands for several.

found_* (by chunk) ──► names, aliases per document ──shuffle by rule and key──► pairs ─► aliases (driver)
      mode model:  ──shuffle by name──► profiles ──shuffle by key──► candidates ─► sweep ─► more aliases
found_* with resolved names ◄── aliases

Rules are in `graph/name_rules.py`, the candidates in `graph/name_candidates.py`, the dialogues in
`graph/adjudication.py`. Later stages read the resolved tables in place of the extracted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.ids import entity_id, name_words, stable_id
from graphrag_ray.base.index_settings import RESOLUTION_RULES
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.wording import collapse_whitespace
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph import adjudication, name_candidates
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.graph.entity_resolution import (
    MODEL,
    NamePair,
    NameUse,
    Refusal,
    Resolution,
    merge_pairs,
    rename_claims,
    rename_entities,
    rename_relationships,
    replace_names,
)
from graphrag_ray.graph.merge import entity_ids
from graphrag_ray.graph.name_candidates import DocumentUse
from graphrag_ray.graph.name_rules import (
    RULES,
    NameAlias,
    document_aliases,
    may_merge,
    merge_document_aliases,
    rule_keys,
)
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.stages.merge_stage import n_bundles, n_ranges, range_of
from graphrag_ray.indexing.stages.short_ids import id_keys, load_integer_columns
from graphrag_ray.indexing.step_result import (
    COUNTS_SCHEMA,
    Result,
    count_rows,
    has_transient_failures,
    parts_by_input,
    spec_key,
    sum_counts,
)
from graphrag_ray.offline import embed_many
from graphrag_ray.offline.static_embeddings import DIMENSIONS
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

ALIASES = pa.schema([(name, pa.string()) for name in ("document_id", *NameAlias._fields)])
"""Names to replace in a document."""
_NAMES = pa.schema([("title", pa.string()), ("type", pa.string()), ("n", pa.int64())])
_PAIRS = pa.schema(
    [
        *(("a", pa.string()), ("type_a", pa.string()), ("n_a", pa.int64())),
        *(("b", pa.string()), ("type_b", pa.string()), ("n_b", pa.int64()), ("rule", pa.string())),
    ]
)
_USES = pa.schema(
    [
        *((name, pa.string()) for name in ("name", "document_id", "title", "type")),
        ("n", pa.int64()),
        *((name, pa.list_(pa.string())) for name in ("descriptions", "neighbours")),
    ]
)
_PROFILES = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "name", "type")),
        ("n", pa.int64()),
        ("text", pa.string()),
        ("neighbours", pa.list_(pa.string())),
        ("documents", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), name_candidates.DIMENSIONS)),
    ]
)
_CANDIDATES = pa.schema([("anchor", pa.uint64()), ("candidate", pa.uint64())])
_PROFILE = pa.struct(
    [_PROFILES.field(name) for name in ("name", "type", "n", "text", "neighbours", "documents")]
)
_ITEMS = pa.schema(
    [
        ("kind", pa.string()),  # "same" or "split"
        ("profile", _PROFILE),
        ("candidates", pa.list_(_PROFILE)),
        ("documents", pa.list_(pa.string())),  # ids of the documents of a name to split
        ("texts", pa.list_(pa.string())),  # what they say of it
    ]
)
VERDICTS = pa.schema(
    [*_PAIRS.remove(_PAIRS.get_field_index("rule")), ("verdict", pa.string()), ("reason", pa.string())]
)
"""What a model said about two names."""
_RENAMED = schema.RESOLUTIONS.remove(0).remove(0)  # without ids
_SPLIT = "split"
"""The rule of names that a model split."""
_MAX_COMPARED = 20
"""Maximum number of names that a name is compared with, among those with the same key of a rule."""
_MAX_DESCRIPTIONS = 2
"""Descriptions of a name from each document."""


@dataclass(frozen=True)
class Group:
    """Parts about the same documents: extracted records, chunks and documents."""

    entities: list[Part]
    relationships: list[Part]
    claims: list[Part]
    units: list[Part]
    documents: list[Part]
    aliases: list[Part]


def resolve_names(
    run: Run,
    corpus: Result,
    extraction: Result,
    claims: Result,
    names: EntityNames,
    confirm: Callable[[Sequence[Part]], object] = lambda items: None,
) -> tuple[Result, Result, Result]:
    """Return extraction and claims with resolved names, and the result of this step.

    Tables of the step: resolutions (`schema.RESOLUTIONS`), verdicts (`VERDICTS`), and failures.

    Args:
        confirm: Receives the parts with the names to ask about. It raises an error to refuse.
    """
    options = run.settings.resolution
    if options.mode == "off" and not names.by_document:
        return extraction, claims, Result()
    none: list[list[Part]] = [[] for _ in extraction.tables["found_entities"]]
    found_claims = claims.tables.get("found_claims") or none
    inputs = (
        extraction.tables["found_entities"],
        extraction.tables["found_relationships"],
        found_claims,
        corpus.tables["text_units"],
        corpus.tables["documents"],
    )
    groups = [Group(*parts, []) for parts in zip(*inputs, strict=True)]
    n = max(options.max_candidates, name_candidates.MAX_SPLIT_DOCUMENTS)
    spec = adjudication.resolve_spec(run.prompts, run.settings, n) if options.mode == "model" else None
    depends_on = [
        *inputs,
        options.model_dump(mode="json"),
        names.decisions,
        spec_key(spec) if spec else None,
    ]
    resolver = _Resolver(run, groups, names, spec, confirm)
    result = run.step("resolve", depends_on, resolver.resolve, "resolve" if spec else None)
    kept = ("resolutions", "verdicts", "failures")
    found = {name: result.tables[name] for name in ("found_entities", "found_relationships")}
    extraction = replace(extraction, tables=extraction.tables | found)
    if any(found_claims):
        claims = replace(claims, tables=claims.tables | {"found_claims": result.tables["found_claims"]})
    return (
        extraction,
        claims,
        Result({n: result.tables[n] for n in kept}, result.counts),
    )


@dataclass(frozen=True)
class _Resolver:
    run: Run
    groups: Sequence[Group]
    names: EntityNames
    spec: adjudication.ResolveSpec | None
    confirm: Callable[[Sequence[Part]], object]

    def resolve(self) -> Result:
        run, options = self.run, self.run.settings.resolution
        rules = [rule for rule in RULES if options.mode != "off" and rule in options.rules]
        plan = run.reuse_plan(
            "resolve",
            self.groups,
            [rules, self.names.decisions],
            ("names", "aliases"),
            identities=[[group.entities, group.units] for group in self.groups],
        )
        written = run.map("resolve", partial(_read_names, rules, self.names), plan.new_inputs)
        found = plan.merge_new(run.store, written)
        groups = [
            replace(group, aliases=aliases)
            for group, aliases in zip(self.groups, found.tables["aliases"], strict=True)
        ]
        pairs = [*self._rule_pairs(found, rules), *self._document_pairs(found)]
        aliases, refused = self._merge(pairs, ())
        splits: list[tuple[str, NameAlias]] = []
        asked = Result({"verdicts": [], "splits": [], "failures": []})
        if self.spec is not None:
            asked = self._ask(groups, {alias.name: alias.canonical for alias in aliases})
            verdicts = read_table(run.store, asked.parts("verdicts"), None, VERDICTS).to_pylist()
            same = [row for row in verdicts if row["verdict"] == "same"]
            different = [(row["a"], row["b"]) for row in verdicts if row["verdict"] == "different"]
            aliases, refused = self._merge([*pairs, *map(_confirmed, sorted_by_mentions(same))], different)
            splits = self._splits(asked, {alias.name: alias.canonical for alias in aliases})
        applied = self._apply(groups, aliases, splits)
        counts = applied.counts | {"refused_merges": len(refused)} if refused else applied.counts
        tables = found.tables | applied.tables | asked.tables
        is_final = not has_transient_failures(run.store, asked.tables)
        return Result(tables, counts, is_final, found.made_from)

    def _merge(
        self, pairs: Sequence[NamePair], different: Sequence[tuple[str, str]]
    ) -> tuple[list[NameAlias], list[Refusal]]:
        """Unite the names of pairs, except those that the user or the model keeps apart."""
        return merge_pairs(pairs, [*self.names.different, *different], self.names.canonical)

    def _rule_pairs(self, found: Result, rules: Sequence[str]) -> list[NamePair]:
        """Return the pairs of names with equal keys, in the order of the rules."""
        run, groups = self.run, [parts for parts in found.tables["names"] if parts]
        if not rules or not groups:
            return []
        rows = count_rows(groups)
        n = n_ranges("entity_instances", rows)
        partition = partial(_partition_by_rule, rules, n)
        written = run.shuffle("resolve", partition, groups, _pairs_in_blocks, n, n_bundles(rows))
        parts = Result(parts_by_input(written, "pairs")).parts("pairs")
        columns = read_table(run.store, parts, None, _PAIRS).to_pydict().values()
        pairs = [
            NamePair(NameUse(*row[:3]), NameUse(*row[3:6]), row[6], RESOLUTION_RULES[row[6]])
            for row in zip(*columns, strict=True)
        ]
        return sorted(pairs, key=lambda pair: (RULES.index(pair.rule), -pair.a.n, pair.a, pair.b))

    def _document_pairs(self, found: Result) -> list[NamePair]:
        """Return the aliases of documents that hold in the whole corpus."""
        rows = read_table(self.run.store, found.parts("aliases"), [*NameAlias._fields], ALIASES)
        aliases = [NameAlias(*row) for row in zip(*rows.to_pydict().values(), strict=True)]
        return [
            NamePair(NameUse(alias.canonical, "", 1), NameUse(alias.name, "", 0), alias.rule, alias.evidence)
            for alias in merge_document_aliases([alias for alias in aliases if alias.rule in RULES])
        ]

    def _ask(self, groups: Sequence[Group], everywhere: Mapping[str, str]) -> Result:
        """Have a model decide about candidates. Returns tables verdicts, splits and failures."""
        assert self.spec is not None
        run, spec = self.run, self.spec
        rows = count_rows([group.entities for group in groups])
        n, bundles = n_ranges("entity_instances", rows), n_bundles(rows)
        read = partial(_partition_uses, run.executor.share(everywhere), n)
        described = run.shuffle("resolve", read, groups, partial(_profiles, self.names), n, bundles)
        tables = parts_by_input(described, "profiles", "keys", "items")
        profiles, keys = ([parts for parts in tables[name] if parts] for name in ("profiles", "keys"))
        partition = partial(_partition_by_prefix, "key", n)
        compared = run.shuffle("resolve", partition, keys, _compare_blocks, n, bundles)
        pairs = read_table(
            run.store, Result(parts_by_input(compared, "pairs")).parts("pairs"), None, name_candidates.PAIRS
        )
        items = self._items(profiles, self._choose(profiles, pairs), n, bundles) + tables["items"]
        work = Work(
            "resolve",
            lambda store, row: resolve_dialogue(row, spec),
            lambda row: (row["profile"]["name"], ""),
        )
        items = [parts for parts in items if parts]
        self.confirm([part for parts in items for part in parts])
        run.item_totals["resolve"] = count_rows(items), "names"
        index = run.sweep_rows(work, _load, items, count_rows(items))
        written = run.map("resolve", partial(_collect, work, index), items)
        return Result(parts_by_input(written, "verdicts", "splits", "failures"))

    def _choose(self, profiles: list[list[Part]], pairs: pa.Table) -> list[Part]:
        """Choose the candidates to ask about."""
        k = self.run.settings.resolution.max_candidates
        columns = pa.schema([("id", pa.uint64()), ("n", pa.int64())])
        known = load_integer_columns(self.run.store, profiles, columns)
        ids, n = known["id"].to_numpy(), known["n"].to_numpy()
        vectors = read_table(self.run.store, [part for parts in profiles for part in parts], ["vector"])
        alike = name_candidates.alike_pairs(ids, _matrix(vectors["vector"]), k)
        chosen = name_candidates.choose_candidates(pairs, alike, (ids, n), k)
        return self.run.write("resolve", "candidates", [chosen.cast(_CANDIDATES)])

    def _items(
        self, profiles: list[list[Part]], candidates: list[Part], n: int, bundles: int
    ) -> list[list[Part]]:
        """Join candidates with their profiles, then with the names that they are candidates of."""
        run = self.run
        if not candidates:
            return []
        inputs = [*profiles, candidates]
        by_candidate = run.shuffle(
            "resolve", partial(_partition_for_join, "candidate", n), inputs, _attach_candidates, n, bundles
        )
        attached = [parts for parts in parts_by_input(by_candidate, "attached")["attached"] if parts]
        inputs = [*profiles, *attached]
        by_anchor = run.shuffle(
            "resolve", partial(_partition_for_join, "anchor", n), inputs, _attach_anchors, n, bundles
        )
        return parts_by_input(by_anchor, "items")["items"]

    def _splits(self, asked: Result, everywhere: Mapping[str, str]) -> list[tuple[str, NameAlias]]:
        rows = read_table(self.run.store, asked.parts("splits"), None, ALIASES).to_pylist()
        splits = []
        for row in rows:
            name, label = row["name"], row["canonical"].removeprefix(row["name"])
            title = everywhere.get(name, name)
            if title not in self.names.unsplit:
                alias = NameAlias(title, title + label, row["rule"], row["evidence"])
                splits.append((row["document_id"], alias))
        return sorted(splits)

    def _apply(
        self,
        groups: Sequence[Group],
        aliases: Sequence[NameAlias],
        splits: Sequence[tuple[str, NameAlias]],
    ) -> Result:
        """Replace the names in all groups. Groups without such names keep their parts."""
        run = self.run
        everywhere = {alias.name: alias for alias in aliases}
        split = {(document, alias.name): alias for document, alias in splits}
        shared = run.executor.share((everywhere, split))
        written = run.map("resolve", partial(_rename, shared), groups)
        tables: dict[str, list[list[Part]]] = {}
        for name, kind in (
            ("entities", "entities"),
            ("relationships", "relationships"),
            ("claims", "claims"),
        ):
            originals = [getattr(group, kind) for group in groups]
            tables[f"found_{name}"] = [
                parts.get(f"found_{name}", original)
                for parts, original in zip(written, originals, strict=True)
            ]
        renamed = [parts["renamed"] for parts in written if parts.get("renamed")]
        rows = count_rows(renamed)
        n = n_ranges("entity_instances", rows)
        collected = run.shuffle("resolve", partial(_partition_renamed, n), renamed, _resolutions, n)
        tables["resolutions"] = parts_by_input(collected, "resolutions")["resolutions"]
        counts = sum_counts(run.store, {"counts": parts_by_input(collected, "counts")["counts"]})
        return Result(tables, counts)


def _confirmed(row: Mapping[str, Any]) -> NamePair:
    a, b = (NameUse(row[end], row[f"type_{end}"], row[f"n_{end}"]) for end in ("a", "b"))
    return NamePair(a, b, MODEL, row["reason"] or "confirmed by the model")


def sorted_by_mentions(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort confirmed pairs, the names with the most mentions first."""
    return sorted(rows, key=lambda row: (-row["n_a"] - row["n_b"], row["a"], row["b"]))


def _read_names(rules: Collection[str], names: EntityNames, store: Store, group: Group) -> Iterator[Tables]:
    """Find the aliases in each document, and count the names that remain."""
    columns = ["title", "type", "document_id"]
    rows = read_table(store, group.entities, columns, schema.ENTITY_INSTANCES)
    counted = rows.group_by(["document_id", "title", "type"], use_threads=False).aggregate(
        [([], "count_all")]
    )
    counted = counted.sort_by([("document_id", "ascending"), ("title", "ascending"), ("type", "ascending")])
    units = read_table(store, group.units, ["document_id", "text"], schema.TEXT_UNITS)
    texts: dict[str, list[str]] = {}
    for document, text in zip(units["document_id"].to_pylist(), units["text"].to_pylist(), strict=True):
        texts.setdefault(document, []).append(text)
    totals: dict[tuple[str, str], int] = {}
    found: list[dict[str, str]] = []
    canonical, decided = names.canonical, _by_document(names)
    for document, uses in groupby(counted.to_pylist(), itemgetter("document_id")):
        types: dict[str, dict[str, int]] = {}
        for use in uses:
            votes = types.setdefault(use["title"], {})
            votes[use["type"] or ""] = use["count_all"]
        mine = decided.get(document, {})
        aliases, together = dict(mine), dict[str, list[str]]()
        majority = {name: min(votes, key=lambda t: (not t, -votes[t], t)) for name, votes in types.items()}
        for alias in document_aliases(majority, texts.get(document, []), rules) if rules else ():
            title = mine[alias.canonical].canonical if alias.canonical in mine else alias.canonical
            same = together.setdefault(title, [title])
            apart = any(tuple(sorted((alias.name, name))) in names.different for name in same)
            is_taken = alias.name in aliases or alias.name in canonical or alias.name == title
            if alias.name in types and not apart and not is_taken:
                aliases[alias.name] = alias._replace(canonical=title)
                same.append(alias.name)
        found += ({"document_id": document, **alias._asdict()} for alias in aliases.values())
        for name, votes in types.items():
            title = aliases[name].canonical if name in aliases else name
            for type_, n in votes.items():
                totals[title, type_] = totals.get((title, type_), 0) + n
    columns_of = zip(*((title, type_, n) for (title, type_), n in totals.items()), strict=True)
    yield {
        "names": pa.table(list(map(pa.array, columns_of)) or [[], [], []], schema=_NAMES),
        "aliases": pa.Table.from_pylist(found, schema=ALIASES),
    }


def _by_document(names: EntityNames) -> dict[str, dict[str, NameAlias]]:
    """Return the user's aliases in one document, by document id and name."""
    decided: dict[str, dict[str, NameAlias]] = {}
    for (document, name), title in names.by_document.items():
        alias = NameAlias(name, title, "alias", "in the aliases file")
        decided.setdefault(document, {})[name] = alias
    return decided


def _partition_by_rule(
    rules: Sequence[str], n: int, store: Store, parts: Sequence[Part]
) -> Iterator[pa.Table]:
    """Yield `_NAMES` with each key of each name."""
    table = read_table(store, parts, None, _NAMES)
    titles, rows, keys = table["title"].to_pylist(), [], []
    for row, (title, type_) in enumerate(zip(titles, table["type"].to_pylist(), strict=True)):
        for key in rule_keys(title, type_, rules):
            rows.append(row)
            keys.append(key)
    prefixes = np.array([_prefix("rule", *key) for key in keys], dtype=np.uint64)
    yield pa.table(
        {
            PARTITION: pa.array(range_of(prefixes, n).astype(np.int32)),
            "rule": pa.array([rule for rule, _ in keys], pa.string()),
            "key": pa.array([key for _, key in keys], pa.string()),
            **{name: table[name].take(pa.array(rows, pa.int64())) for name in _NAMES.names},
        }
    )


def _prefix(*natural_key: str) -> int:
    return int(stable_id(*natural_key)[:16], 16)


def _pairs_in_blocks(rows: pa.Table) -> Tables:
    """Pair the names with an equal key, each with the most frequent one that it may be merged with."""
    columns = ["rule", "key", "title", "type"]
    counted = rows.group_by(columns, use_threads=False).aggregate([("n", "sum")])
    counted = counted.sort_by([(name, "ascending") for name in columns])
    pairs: list[tuple[Any, ...]] = []
    for (rule, _), block in groupby(counted.to_pylist(), itemgetter("rule", "key")):
        uses = [_use(list(of_title)) for _, of_title in groupby(block, itemgetter("title"))]
        if len(uses) > 1:
            pairs += ((*a, *b, rule) for a, b in _pair_up(uses, rule))
    found = list(zip(*pairs, strict=True)) or [()] * len(_PAIRS)
    return {"pairs": pa.table([pa.array(c, f.type) for c, f in zip(found, _PAIRS, strict=True)], _PAIRS)}


def _use(rows: Sequence[Mapping[str, Any]]) -> NameUse:
    """Return the use of a name from its counts by type."""
    stated = [row for row in rows if row["type"]] or rows
    type_ = min(stated, key=lambda row: (-row["n_sum"], row["type"]))["type"]
    return NameUse(rows[0]["title"], type_, sum(row["n_sum"] for row in rows))


def _pair_up(uses: Sequence[NameUse], rule: str) -> Iterator[tuple[NameUse, NameUse]]:
    """Pair each name with the most frequent earlier one that the guards allow."""
    firsts: list[NameUse] = []
    for use in sorted(uses, key=lambda use: (-use.n, use.name)):
        for first in firsts[:_MAX_COMPARED]:
            if may_merge(first.name, first.type, use.name, use.type, rule):
                yield first, use
                break
        else:
            firsts.append(use)


def _aliases_of(store: Store, group: Group) -> dict[tuple[str, str], NameAlias]:
    rows = read_table(store, group.aliases, None, ALIASES).to_pylist()
    return {(row.pop("document_id"), row["name"]): NameAlias(**row) for row in rows}


def _partition_uses(
    shared: Callable[[], Mapping[str, str]], n: int, store: Store, group: Group
) -> Iterator[pa.Table]:
    """Yield `_USES`: what each document says of each name."""
    in_document = {key: alias.canonical for key, alias in _aliases_of(store, group).items()}
    resolution = Resolution(in_document, shared(), {})
    columns = ["title", "type", "description", "document_id", "position", "turn", "ordinal"]
    rows = read_table(store, group.entities, columns, schema.ENTITY_INSTANCES)
    names = replace_names(rows["title"], rows["document_id"], resolution)
    rows = rows.set_column(0, "title", names)
    order = ["document_id", "title", "position", "turn", "ordinal"]
    rows = rows.sort_by([(name, "ascending") for name in order])
    documents = read_table(store, group.documents, ["id", "title"], schema.DOCUMENTS)
    titles = dict(zip(*(column.to_pylist() for column in documents.columns), strict=True))
    near = _neighbours(store, group, resolution)
    uses = []
    for (document, name), mentions in groupby(rows.to_pylist(), itemgetter("document_id", "title")):
        found = list(mentions)
        types = [row["type"] for row in found if row["type"]]
        descriptions = dict.fromkeys(
            collapse_whitespace(row["description"], name_candidates.MAX_DESCRIPTION_CHARS)
            for row in found
            if row["description"]
        )
        use = DocumentUse(
            document,
            titles.get(document) or "",
            min(types, key=lambda t: (-types.count(t), t)) if types else "",
            len(found),
            list(descriptions)[:_MAX_DESCRIPTIONS],
            near.get((document, name), [])[: name_candidates.MAX_NEIGHBOURS],
        )
        uses.append({"name": name, **use._asdict()})
    table = pa.Table.from_pylist(uses, schema=_USES)
    yield table.add_column(0, PARTITION, _name_ranges(table["name"], n))


def _neighbours(store: Store, group: Group, resolution: Resolution) -> dict[tuple[str, str], list[str]]:
    """Return the neighbours of each name in each document, those with most relationships first."""
    columns = ["source", "target", "document_id"]
    rows = read_table(store, group.relationships, columns, schema.RELATIONSHIP_INSTANCES)
    ends = [replace_names(rows[end], rows["document_id"], resolution).to_pylist() for end in columns[:2]]
    near: dict[tuple[str, str], dict[str, int]] = {}
    for source, target, document in zip(*ends, rows["document_id"].to_pylist(), strict=True):
        for name, other in ((source, target), (target, source)):
            if name != other:
                counts = near.setdefault((document, name), {})
                counts[other] = counts.get(other, 0) + 1
    return {key: sorted(counts, key=lambda n: (-counts[n], n)) for key, counts in near.items()}


def _name_ranges(names: pa.ChunkedArray, n: int) -> pa.Array:
    """Return the partition of each name, by the id of its entity."""
    prefixes = np.array([int(entity_id(name)[:16], 16) for name in names.to_pylist()], dtype=np.uint64)
    return pa.array(range_of(prefixes, n).astype(np.int32))


def _profiles(names: EntityNames, rows: pa.Table) -> Tables:
    """Summarise each name, and find those that may stand for several things."""
    rows = rows.sort_by([("name", "ascending"), ("document_id", "ascending")])
    profiles, keyed, items = [], [], []
    for name, uses_of_name in groupby(rows.to_pylist(), itemgetter("name")):
        uses = [DocumentUse(*(row[field] for field in DocumentUse._fields)) for row in uses_of_name]
        found = name_candidates.profile(name, uses)
        id_ = entity_id(name)
        keyed.append((int(id_[:16], 16), name, found.neighbours))
        of_name = {"name": name, "type": found.type, "n": found.n, "text": found.text}
        of_name |= {"neighbours": found.neighbours, "documents": found.documents}
        profiles.append({"id": id_, "summary": found.summary, **of_name})
        described = [use for use in uses if use.descriptions]
        described = described[: name_candidates.MAX_SPLIT_DOCUMENTS]
        if name not in names.unsplit and len(described) > 1:
            texts = [_without_name(use.descriptions[0], name) for use in described]
            vectors = _vectors(texts)
            if name_candidates.may_be_several(name, described, vectors @ vectors.T):
                items.append(
                    {
                        "kind": "split",
                        "profile": of_name,
                        "documents": [use.document_id for use in described],
                        "texts": name_candidates.split_texts(described),
                    }
                )
    vectors = name_candidates.reduced(_vectors([row.pop("summary") for row in profiles]))
    table = pa.Table.from_pylist(profiles, schema=_PROFILES.remove(_PROFILES.get_field_index("vector")))
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), name_candidates.DIMENSIONS)
    return {
        "profiles": table.append_column(_PROFILES.field("vector"), column).sort_by("id"),
        "keys": name_candidates.key_rows(keyed),
        "items": pa.Table.from_pylist(items, schema=_ITEMS),
    }


def _without_name(text: str, name: str) -> str:
    """Remove the words of a name from a description, because all descriptions of the name share them."""
    words = set(name_words(name))
    return " ".join(word for word in text.split() if not words.intersection(name_words(word.upper())))


def _vectors(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    vectors = np.frombuffer(b"".join(embed_many(texts)), dtype="<f4")
    return vectors.reshape(len(texts), DIMENSIONS)


def _matrix(column: pa.ChunkedArray) -> npt.NDArray[np.float32]:
    values = pc.list_flatten(column).to_numpy()
    return np.asarray(values.reshape(-1, name_candidates.DIMENSIONS), np.float32)


def _partition_by_prefix(name: str, n: int, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    for part in parts:
        table = read_part(store, part)
        ranges = range_of(table[name].to_numpy(), n).astype(np.int32)
        yield table.add_column(0, PARTITION, pa.array(ranges))


def _compare_blocks(rows: pa.Table) -> Tables:
    return {"pairs": name_candidates.block_pairs(rows)}


_JOINED = pa.schema([("key", pa.uint64()), *_CANDIDATES, ("profile", _PROFILE), ("other", _PROFILE)])


def _partition_for_join(by: str, n: int, store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    """Yield profiles and candidates in the same partitions, as `_JOINED`."""
    for part in parts:
        table = read_part(store, part)
        if "text" in table.column_names:
            key = id_keys(table["id"])
            profile = pa.StructArray.from_arrays(
                [table[f.name].combine_chunks() for f in _PROFILE], fields=list(_PROFILE)
            )
            columns = {"key": pa.array(key), "profile": profile}
        else:
            key = table[by].to_numpy()
            columns = {"key": pa.array(key), **{name: table[name] for name in table.column_names}}
        rows = [columns.get(f.name, pa.nulls(len(key), f.type)) for f in _JOINED]
        ranges = pa.array(range_of(key, n).astype(np.int32))
        yield pa.table([ranges, *rows], schema=_JOINED.insert(0, pa.field(PARTITION, pa.int32())))


def _join(rows: pa.Table) -> pa.Table:
    """Return the candidates of a partition with the profiles of their keys."""
    is_profile = rows["profile"].is_valid()
    profiles, candidates = rows.filter(is_profile), rows.filter(pc.invert(is_profile))
    position = pc.index_in(candidates["key"], value_set=profiles["key"].combine_chunks())
    candidates, position = candidates.filter(position.is_valid()), position.drop_null()
    column = candidates.schema.get_field_index("profile")
    return candidates.set_column(column, "profile", profiles["profile"].take(position))


def _attach_candidates(rows: pa.Table) -> Tables:
    joined = _join(rows)
    attached = joined.select(["anchor", "candidate", "profile"]).rename_columns(
        ["anchor", "candidate", "other"]
    )
    return {"attached": attached}


def _attach_anchors(rows: pa.Table) -> Tables:
    joined = _join(rows).sort_by([("anchor", "ascending"), ("candidate", "ascending")])
    items = []
    for _, group in groupby(joined.to_pylist(), itemgetter("anchor")):
        found = list(group)
        anchor = found[0]["profile"]
        candidates = [row["other"] for row in found if name_candidates.is_candidate(anchor, row["other"])]
        if candidates:
            items.append({"kind": "same", "profile": anchor, "candidates": candidates})
    return {"items": pa.Table.from_pylist(items, schema=_ITEMS)}


def _load(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    return (read_part(store, part) for part in parts)


def resolve_dialogue(row: Row, spec: adjudication.ResolveSpec) -> Dialogue[Any]:
    if row["kind"] == "split":
        return adjudication.split(row["profile"]["name"], row["texts"], spec)
    return adjudication.adjudicate(row["profile"]["text"], [c["text"] for c in row["candidates"]], spec)


def _collect(
    work: Work[Any], index: Callable[[], JournalIndex], store: Store, parts: list[Part]
) -> Iterator[Tables]:
    verdicts, splits, failures = [], [], [schema.FAILURES.empty_table()]
    for batch in replay_rows(work, index(), store, _load(store, parts)):
        failures.append(failure_rows("resolve", work, batch))
        for row, outcome in batch:
            if outcome.status != "complete" or outcome.result is None:
                continue
            profile = row["profile"]
            if row["kind"] == "split":
                splits += _split_rows(row, outcome.result)
                continue
            for other, verdict in zip(row["candidates"], outcome.result, strict=True):
                a, b = sorted((profile, other), key=itemgetter("name"))
                verdicts.append(
                    {
                        **{f"{key}a": a[name] for key, name in _ENDS},
                        **{f"{key}b": b[name] for key, name in _ENDS},
                        **verdict._asdict(),
                    }
                )
    yield {
        "verdicts": pa.Table.from_pylist(verdicts, schema=VERDICTS),
        "splits": pa.Table.from_pylist(splits, schema=ALIASES),
        "failures": pa.concat_tables(failures),
    }


_ENDS = (("", "name"), ("type_", "type"), ("n_", "n"))


def _split_rows(row: Row, titles: Sequence[str]) -> list[dict[str, str]]:
    name = row["profile"]["name"]
    evidence = f"the model found {len(set(titles))} things with this name"
    return [
        {"document_id": document, "name": name, "canonical": title, "rule": _SPLIT, "evidence": evidence}
        for document, title in zip(row["documents"], titles, strict=True)
        if title != name
    ]


_Shared = Callable[[], tuple[Mapping[str, NameAlias], Mapping[tuple[str, str], NameAlias]]]


def _rename(shared: _Shared, store: Store, group: Group) -> Iterator[Tables]:
    """Replace the names of a group. A table without such names is not written again."""
    everywhere, split = shared()
    in_document = _aliases_of(store, group)
    resolution = Resolution(
        {key: alias.canonical for key, alias in in_document.items()},
        {name: alias.canonical for name, alias in everywhere.items()},
        {key: alias.canonical for key, alias in split.items()},
    )
    rows = read_table(store, group.entities, None, schema.ENTITY_INSTANCES)
    titles = replace_names(rows["title"], rows["document_id"], resolution)
    changed = pc.not_equal(rows["title"], titles)
    if pc.any(changed).as_py():
        old = rows.filter(changed)
        counted = pa.table([old["document_id"], old["title"], titles.filter(changed)], _RENAMED_KEYS)
        counted = counted.group_by(_RENAMED_KEYS, use_threads=False).aggregate([([], "count_all")])
        renamed = [
            _renamed(row, in_document, everywhere, split)
            for row in counted.sort_by([(name, "ascending") for name in _RENAMED_KEYS]).to_pylist()
        ]
        yield {
            "found_entities": rename_entities(rows, titles),
            "renamed": pa.Table.from_pylist(renamed, schema=_RENAMED),
        }
    for kind, parts, rename in (
        ("relationships", group.relationships, rename_relationships),
        ("claims", group.claims, rename_claims),
    ):
        table = read_table(store, parts) if parts else None
        renamed_table = rename(table, resolution) if table is not None else None
        if renamed_table is not None:
            yield {f"found_{kind}": renamed_table}


_RENAMED_KEYS = ["document_id", "name", "title"]


def _renamed(
    row: Mapping[str, Any],
    in_document: Mapping[tuple[str, str], NameAlias],
    everywhere: Mapping[str, NameAlias],
    split: Mapping[tuple[str, str], NameAlias],
) -> dict[str, Any]:
    """Say why a name was replaced. `document_id` is null if it is replaced in all documents."""
    document, name = row["document_id"], row["name"]
    local = in_document.get((document, name))
    if name in everywhere and everywhere[name].canonical == row["title"]:
        local = None  # the same in all documents
    title = local.canonical if local else name
    general = everywhere.get(title)
    title = general.canonical if general else title
    separate = split.get((document, title))
    alias = separate or local or general
    assert alias is not None
    return {
        "title": row["title"],
        "name": name,
        "document_id": document if separate or local else None,
        "rule": alias.rule,
        "evidence": alias.evidence,
        "n_instances": row["count_all"],
    }


def _partition_renamed(n: int, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    table = read_table(store, parts, None, _RENAMED)
    yield table.add_column(0, PARTITION, _name_ranges(table["name"], n))


def _resolutions(rows: pa.Table) -> Tables:
    keys = ["title", "name", "document_id", "rule", "evidence"]
    summed = rows.group_by(keys, use_threads=False).aggregate([("n_instances", "sum")])
    ids = [entity_ids(summed[column]) for column in ("name", "title")]
    columns = [*ids, *(summed[key] for key in keys), summed["n_instances_sum"]]
    table = pa.table(columns, schema=schema.RESOLUTIONS)
    table = table.sort_by([("id", "ascending"), ("document_id", "ascending")])
    is_split = pc.equal(table["rule"], _SPLIT)
    n_merged = len(table.filter(pc.invert(is_split))["name"].unique())
    n_split = len(table.filter(is_split)["title"].unique())
    counts = pa.table([["merged_names", "split_names"], [n_merged, n_split]], schema=COUNTS_SCHEMA)
    return {"resolutions": table, "counts": counts}
