"""Resolve names: merge names that stand for the same thing, and split a name that stands for several.

found_* (by chunk) ──► names, aliases per document ──shuffle by rule and key──► pairs ─► aliases (driver)
      mode model:  ──shuffle by name──► profiles ──shuffle by key──► candidates ─► sweep ─► more aliases
found_* with resolved names ◄── aliases

In `graph/`, the rules are in `name_rules.py` and `document_names.py`, the candidates in `name_candidates.py`
and the dialogues in `adjudication.py`. Later stages read the resolved tables in place of the extracted ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
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
from graphrag_ray.graph.document_names import NameAlias, document_aliases, merge_document_aliases
from graphrag_ray.graph.entity_resolution import (
    MODEL,
    NamePair,
    NameUse,
    Resolution,
    keep_apart,
    merge_pairs,
    rename_claims,
    rename_entities,
    rename_relationships,
    replace_names,
)
from graphrag_ray.graph.extraction_schema import parse_schema
from graphrag_ray.graph.merge import entity_ids
from graphrag_ray.graph.name_candidates import DocumentUse
from graphrag_ray.graph.name_rules import RULES, may_merge, rule_keys
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
_RENAMED_KEYS = ["document_id", "name", "title"]
_ALIAS, _SPLIT = "alias", "split"
"""The rules of names in the aliases file, and of names that a model split."""
_MAX_COMPARED = 20
"""Maximum number of names that a name is compared with, among those with the same key of a rule."""
_MAX_DESCRIPTIONS = 2
"""Descriptions of a name from each document."""


@dataclass(frozen=True)
class DocumentGroup:
    """Parts about the same documents: extracted records, chunks and documents.

    `refused` are the aliases, as (canonical, name), that would join names which the user keeps apart.
    """

    entities: list[Part]
    relationships: list[Part]
    claims: list[Part]
    units: list[Part]
    documents: list[Part]
    aliases: Sequence[Part] = ()
    refused: Set[tuple[str, str]] = frozenset()


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
    groups = [DocumentGroup(*parts) for parts in zip(*inputs, strict=True)]
    n = max(options.max_candidates, name_candidates.MAX_SPLIT_DOCUMENTS)
    spec = adjudication.resolve_spec(run.prompts, run.settings, n) if run.settings.asks_about_names else None
    closed_types = frozenset[str]()
    if (schema_text := run.settings.extraction.schema) and not (
        types := parse_schema(schema_text)
    ).open_entities:
        closed_types = frozenset(type_.name for type_ in types.entities)
    depends_on = [
        *inputs,
        options.model_dump(mode="json"),
        [names.decisions, sorted(closed_types)],
        spec_key(spec) if spec else None,
    ]
    resolver = _Resolver(run, groups, names, closed_types, spec, confirm)
    result = run.step("resolve", depends_on, resolver.resolve, "resolve" if spec else None)
    found = {name: result.tables[name] for name in ("found_entities", "found_relationships")}
    extraction = replace(extraction, tables=extraction.tables | found)
    if any(found_claims):
        claims = replace(claims, tables=claims.tables | {"found_claims": result.tables["found_claims"]})
    kept = {name: result.tables[name] for name in ("resolutions", "verdicts", "failures")}
    return extraction, claims, Result(kept, result.counts)


@dataclass(frozen=True)
class _Resolver:
    run: Run
    groups: Sequence[DocumentGroup]
    names: EntityNames
    closed_types: Set[str]
    spec: adjudication.ResolveSpec | None
    confirm: Callable[[Sequence[Part]], object]

    def resolve(self) -> Result:
        run, options, names = self.run, self.run.settings.resolution, self.names
        rules = [rule for rule in RULES if options.mode != "off" and rule in options.rules]
        plan = run.reuse_plan(
            "resolve",
            self.groups,
            [rules, names.decisions, sorted(self.closed_types)],
            ("names", "aliases"),
            identities=[[group.entities, group.units] for group in self.groups],
        )
        read = partial(_read_names, rules, names, self.closed_types)
        found = plan.merge_new(run.store, run.map("resolve", read, plan.new_inputs))
        in_documents = read_table(run.store, found.parts("aliases"), None, ALIASES)
        kept_apart = pa.array(sorted({name for pair in names.different for name in pair}), pa.string())
        of_kept_apart = in_documents.filter(pc.is_in(in_documents["name"], value_set=kept_apart)).to_pylist()
        of_kept_apart.sort(key=itemgetter("document_id", "name"))
        decided, replaced = (
            [(row["canonical"], row["name"]) for row in of_kept_apart if (row["rule"] == _ALIAS) == is_alias]
            for is_alias in (True, False)
        )
        members, refused = keep_apart(decided, replaced, names.different)
        groups = [
            replace(group, aliases=aliases, refused=refused)
            for group, aliases in zip(self.groups, found.tables["aliases"], strict=True)
        ]
        pairs = [*self._rule_pairs(found, rules), *self._document_pairs(found, in_documents)]
        guards = names.canonical, members, self.closed_types
        aliases, refused_pairs = merge_pairs(pairs, names.different, *guards)
        splits: list[tuple[str, NameAlias]] = []
        asked = Result({"verdicts": [], "splits": [], "failures": []})
        if self.spec is not None:
            everywhere = {alias.name: alias.canonical for alias in aliases}
            titles = {name: {everywhere.get(name, name)} for name in kept_apart.to_pylist()}
            for title, known in members.items():
                for name in known & titles.keys():
                    titles[name].add(everywhere.get(title, title))
            apart = {frozenset(ends) for a, b in names.different for ends in product(titles[a], titles[b])}
            asked = self._ask(groups, everywhere, apart)
            verdicts = read_table(run.store, asked.parts("verdicts"), None, VERDICTS).to_pylist()
            verdicts.sort(key=lambda row: (-row["n_a"] - row["n_b"], row["a"], row["b"]))
            for row in verdicts:
                if row["verdict"] == "same":
                    a, b = (NameUse(row[end], row[f"type_{end}"], row[f"n_{end}"]) for end in ("a", "b"))
                    pairs.append(NamePair(a, b, MODEL, row["reason"] or "confirmed by the model"))
            different = [(row["a"], row["b"]) for row in verdicts if row["verdict"] == "different"]
            aliases, refused_pairs = merge_pairs(pairs, [*names.different, *different], *guards)
            everywhere = {alias.name: alias.canonical for alias in aliases}
            rows = read_table(run.store, asked.parts("splits"), None, ALIASES).to_pydict().values()
            for document, name, label, rule, evidence in zip(*rows, strict=True):
                if (title := everywhere.get(name, name)) not in names.unsplit:
                    alias = NameAlias(title, title + label.removeprefix(name), rule, evidence)
                    splits.append((document, alias))
        applied = self._apply(groups, aliases, sorted(splits))
        n_refused = len(refused) + len(refused_pairs)
        counts = applied.counts | ({"refused_merges": n_refused} if n_refused else {})
        tables = found.tables | applied.tables | asked.tables
        is_final = not has_transient_failures(run.store, asked.tables)
        return Result(tables, counts, is_final, found.made_from)

    def _rule_pairs(self, found: Result, rules: Sequence[str]) -> list[NamePair]:
        """Return the pairs of names with equal keys, in the order of the rules."""
        run, groups = self.run, [parts for parts in found.tables["names"] if parts]
        if not rules or not groups:
            return []
        rows = count_rows(groups)
        n = n_ranges("entity_instances", rows)
        partition = partial(_partition_by_rule, rules, n)
        pair_up = partial(_pairs_in_blocks, self.closed_types)
        written = run.shuffle("resolve", partition, groups, pair_up, n, n_bundles(rows))
        parts = Result(parts_by_input(written, "pairs")).parts("pairs")
        columns = read_table(run.store, parts, None, _PAIRS).to_pydict().values()
        pairs = [
            NamePair(NameUse(*row[:3]), NameUse(*row[3:6]), row[6], RESOLUTION_RULES[row[6]])
            for row in zip(*columns, strict=True)
        ]
        return sorted(pairs, key=lambda pair: (RULES.index(pair.rule), -pair.a.n, pair.a, pair.b))

    def _document_pairs(self, found: Result, in_documents: pa.Table) -> list[NamePair]:
        """Return the aliases of documents that hold in the whole corpus."""
        columns = in_documents.select([*NameAlias._fields]).to_pydict().values()
        aliases = merge_document_aliases(
            NameAlias(*row) for row in zip(*columns, strict=True) if row[2] in RULES
        )
        types: dict[str, str] = {}
        if self.closed_types:
            wanted = pa.array(sorted({name for alias in aliases for name in alias[:2]}), pa.string())
            tables = (read_part(self.run.store, part) for part in found.parts("names"))
            of_wanted = [table.filter(pc.is_in(table["title"], value_set=wanted)) for table in tables]
            uses = _uses(pa.concat_tables([_NAMES.empty_table(), *of_wanted]), ["title"])
            types = {use.name: use.type for _, found_uses in uses for use in found_uses}
        ends = (
            (NameUse(a.canonical, types.get(a.canonical, ""), 1), NameUse(a.name, types.get(a.name, ""), 0))
            for a in aliases
        )
        return [NamePair(*pair, *alias[2:]) for pair, alias in zip(ends, aliases, strict=True)]

    def _ask(
        self,
        groups: Sequence[DocumentGroup],
        everywhere: Mapping[str, str],
        apart: Set[frozenset[str]],
    ) -> Result:
        """Have a model decide about candidates that are not kept apart.

        Returns tables verdicts, splits and failures.
        """
        assert self.spec is not None
        run, spec = self.run, self.spec
        rows = count_rows([group.entities for group in groups])
        n, bundles = n_ranges("entity_instances", rows), n_bundles(rows)
        read = partial(_partition_uses, run.executor.share(everywhere), n)
        described = run.shuffle("resolve", read, groups, partial(_profiles, self.names), n, bundles)
        tables = parts_by_input(described, "profiles", "keys", "items")
        profiles, keys = ([parts for parts in tables[name] if parts] for name in ("profiles", "keys"))
        compared = run.shuffle("resolve", partial(_partition_by_key, n), keys, _compare_blocks, n, bundles)
        parts = Result(parts_by_input(compared, "pairs")).parts("pairs")
        pairs = read_table(run.store, parts, None, name_candidates.PAIRS)
        k = run.settings.resolution.max_candidates
        columns = pa.schema([("id", pa.uint64()), ("n", pa.int64())])
        known = load_integer_columns(run.store, profiles, columns)
        ids, mentions = known["id"].to_numpy(), known["n"].to_numpy()
        vectors = read_table(run.store, [part for parts in profiles for part in parts], ["vector"])
        values = pc.list_flatten(vectors["vector"]).to_numpy().reshape(-1, name_candidates.DIMENSIONS)
        alike = name_candidates.alike_pairs(ids, np.asarray(values, np.float32), k)
        chosen = name_candidates.choose_candidates(pairs, alike, (ids, mentions), k)
        items = tables["items"]
        if candidates := run.write("resolve", "candidates", [chosen.cast(_CANDIDATES)]):
            # Join the candidates with their profiles, then with the names that they are candidates of.
            partition = partial(_partition_for_join, "candidate", n)
            joined = run.shuffle(
                "resolve", partition, [*profiles, candidates], _attach_candidates, n, bundles
            )
            attached = [parts for parts in parts_by_input(joined, "attached")["attached"] if parts]
            partition = partial(_partition_for_join, "anchor", n)
            attach = partial(_attach_anchors, apart)
            joined = run.shuffle("resolve", partition, [*profiles, *attached], attach, n, bundles)
            items = parts_by_input(joined, "items")["items"] + items
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

    def _apply(
        self,
        groups: Sequence[DocumentGroup],
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
        for kind in ("entities", "relationships", "claims"):
            tables[f"found_{kind}"] = [
                parts.get(f"found_{kind}", getattr(group, kind))
                for parts, group in zip(written, groups, strict=True)
            ]
        renamed = [parts["renamed"] for parts in written if parts.get("renamed")]
        rows = count_rows(renamed)
        n = n_ranges("entity_instances", rows)
        collected = run.shuffle("resolve", partial(_partition_renamed, n), renamed, _resolutions, n)
        tables["resolutions"] = parts_by_input(collected, "resolutions")["resolutions"]
        counts = parts_by_input([*written, *collected], "counts")
        return Result(tables, sum_counts(run.store, counts))


def _read_names(
    rules: Collection[str], names: EntityNames, closed_types: Set[str], store: Store, group: DocumentGroup
) -> Iterator[Tables]:
    """Find the aliases in each document, and count the names that remain."""
    keys = ["document_id", "title", "type"]
    rows = read_table(store, group.entities, keys, schema.ENTITY_INSTANCES)
    counted = rows.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    counted = counted.sort_by([(key, "ascending") for key in keys])
    units = read_table(store, group.units, ["document_id", "text"], schema.TEXT_UNITS)
    texts = defaultdict[str, list[str]](list)
    for document, text in zip(units["document_id"].to_pylist(), units["text"].to_pylist(), strict=True):
        texts[document].append(text)
    totals = Counter[tuple[str, str]]()
    found: list[tuple[str, ...]] = []
    canonical, decided = names.canonical, defaultdict[str, dict[str, NameAlias]](dict)
    for (document, name), title in names.by_document.items():
        decided[document][name] = NameAlias(name, title, _ALIAS, "in the aliases file")
    for document, uses in groupby(counted.to_pylist(), itemgetter("document_id")):
        types: dict[str, dict[str, int]] = {}
        for use in uses:
            types.setdefault(use["title"], {})[use["type"] or ""] = use["count_all"]
        mine = decided.get(document, {})
        aliases = dict(mine)
        majority = {name: min(votes, key=lambda t: (not t, -votes[t], t)) for name, votes in types.items()}
        for alias in document_aliases(majority, texts[document], rules, closed_types) if rules else ():
            title = mine[alias.canonical].canonical if alias.canonical in mine else alias.canonical
            if alias.name not in aliases and alias.name not in canonical and alias.name != title:
                aliases[alias.name] = alias._replace(canonical=title)
        found += ((document, *alias) for alias in aliases.values())
        for name, votes in types.items():
            title = aliases[name].canonical if name in aliases else name
            totals.update({(title, type_): n for type_, n in votes.items()})
    names_by_type = [(*key, n) for key, n in totals.items()]
    yield {"names": _table(names_by_type, _NAMES), "aliases": _table(found, ALIASES)}


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
    prefixes = np.array([int(stable_id("rule", *key)[:16], 16) for key in keys], dtype=np.uint64)
    yield pa.table(
        {
            PARTITION: pa.array(range_of(prefixes, n).astype(np.int32)),
            "rule": pa.array([rule for rule, _ in keys], pa.string()),
            "key": pa.array([key for _, key in keys], pa.string()),
            **{name: table[name].take(pa.array(rows, pa.int64())) for name in _NAMES.names},
        }
    )


def _pairs_in_blocks(closed_types: Set[str], rows: pa.Table) -> Tables:
    """Pair the names with an equal key, each with the most frequent one that it may be merged with."""
    pairs: list[tuple[Any, ...]] = []
    for (rule, _), uses in _uses(rows, ["rule", "key", "title"]):
        firsts: list[NameUse] = []
        for use in sorted(uses, key=lambda use: (-use.n, use.name)):
            compared = firsts[:_MAX_COMPARED]
            allowed = (x for x in compared if may_merge(*x[:2], *use[:2], rule, closed_types))
            if first := next(allowed, None):
                pairs.append((*first, *use, rule))
            else:
                firsts.append(use)
    return {"pairs": _table(pairs, _PAIRS)}


def _table(rows: Iterable[Sequence[Any]], columns: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], schema=columns)


def _uses(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], list[NameUse]]]:
    """Yield the names with equal columns `by` before the last one, `title`, each with its majority type."""
    columns = [*by, "type"]
    counted = rows.group_by(columns, use_threads=False).aggregate([("n", "sum")])
    counted = counted.sort_by([(name, "ascending") for name in columns])
    names = groupby(counted.to_pylist(), lambda row: tuple(row[name] for name in by))
    for block, in_block in groupby(names, lambda name: name[0][:-1]):
        uses = []
        for (*_, title), of_title in in_block:
            counts = list(of_title)
            stated = [row for row in counts if row["type"]] or counts
            type_ = min(stated, key=lambda row: (-row["n_sum"], row["type"]))["type"]
            uses.append(NameUse(title, type_, sum(row["n_sum"] for row in counts)))
        yield block, uses


def _aliases_of(store: Store, group: DocumentGroup) -> dict[tuple[str, str], NameAlias]:
    rows = read_table(store, group.aliases, None, ALIASES).to_pylist()
    aliases = {(row.pop("document_id"), row["name"]): NameAlias(**row) for row in rows}
    return {
        key: alias
        for key, alias in aliases.items()
        if alias.rule == _ALIAS or (alias.canonical, alias.name) not in group.refused
    }


def _partition_uses(
    shared: Callable[[], Mapping[str, str]], n: int, store: Store, group: DocumentGroup
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


def _neighbours(
    store: Store, group: DocumentGroup, resolution: Resolution
) -> dict[tuple[str, str], list[str]]:
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
        of_name = {field.name: getattr(found, field.name) for field in _PROFILE}
        profiles.append({"id": id_, "summary": found.summary, **of_name})
        described = [use for use in uses if use.descriptions][: name_candidates.MAX_SPLIT_DOCUMENTS]
        if name not in names.unsplit and len(described) > 1:
            vectors = _vectors([_without_name(use.descriptions[0], name) for use in described])
            if name_candidates.may_be_several(name, described, vectors @ vectors.T):
                of_documents = {"documents": [use.document_id for use in described]}
                of_documents["texts"] = name_candidates.split_texts(described)
                items.append({"kind": "split", "profile": of_name, **of_documents})
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


def _partition_by_key(n: int, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    for part in parts:
        table = read_part(store, part)
        ranges = range_of(table["key"].to_numpy(), n).astype(np.int32)
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
    attached = _join(rows).select(["anchor", "candidate", "profile"])
    return {"attached": attached.rename_columns(["anchor", "candidate", "other"])}


def _attach_anchors(apart: Set[frozenset[str]], rows: pa.Table) -> Tables:
    joined = _join(rows).sort_by([("anchor", "ascending"), ("candidate", "ascending")])
    items: dict[str, dict[str, Any]] = {}
    for row in joined.to_pylist():
        name, other = row["profile"], row["other"]
        if name_candidates.is_candidate(name, other) and {name["name"], other["name"]} not in apart:
            item = {"kind": "same", "profile": name, "candidates": []}
            items.setdefault(name["name"], item)["candidates"].append(other)
    return {"items": pa.Table.from_pylist([*items.values()], schema=_ITEMS)}


def _load(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    return (read_part(store, part) for part in parts)


def resolve_dialogue(row: Row, spec: adjudication.ResolveSpec) -> Dialogue[Any]:
    if row["kind"] == "split":
        return adjudication.split(row["profile"]["name"], row["texts"], spec)
    return adjudication.adjudicate(row["profile"]["text"], [c["text"] for c in row["candidates"]], spec)


def _collect(
    work: Work[Any], index: Callable[[], JournalIndex], store: Store, parts: list[Part]
) -> Iterator[Tables]:
    verdicts, splits = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    failures = [schema.FAILURES.empty_table()]
    for batch in replay_rows(work, index(), store, _load(store, parts)):
        failures.append(failure_rows("resolve", work, batch))
        for row, outcome in batch:
            if outcome.status != "complete" or outcome.result is None:
                continue
            profile = row["profile"]
            if row["kind"] == "split":
                evidence = f"the model found {len(set(outcome.result))} things with this name"
                splits += (
                    (document, *NameAlias(profile["name"], title, _SPLIT, evidence))
                    for document, title in zip(row["documents"], outcome.result, strict=True)
                    if title != profile["name"]
                )
                continue
            for other, verdict in zip(row["candidates"], outcome.result, strict=True):
                ends = sorted((profile, other), key=itemgetter("name"))
                verdicts.append((*(end[field] for end in ends for field in ("name", "type", "n")), *verdict))
    yield {
        "verdicts": _table(verdicts, VERDICTS),
        "splits": _table(splits, ALIASES),
        "failures": pa.concat_tables(failures),
    }


_Shared = Callable[[], tuple[Mapping[str, NameAlias], Mapping[tuple[str, str], NameAlias]]]


def _rename(shared: _Shared, store: Store, group: DocumentGroup) -> Iterator[Tables]:
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
        counted = counted.sort_by([(name, "ascending") for name in _RENAMED_KEYS])
        renamed = []
        for document, name, new, n in zip(*counted.to_pydict().values(), strict=True):
            local, general = in_document.get((document, name)), everywhere.get(name)
            if general and general.canonical == new:
                local = None  # the same in all documents
            title = local.canonical if local else name
            general = everywhere.get(title)
            separate = split.get((document, general.canonical if general else title))
            alias = separate or local or general
            assert alias is not None
            renamed.append(
                (new, name, document if separate or local else None, alias.rule, alias.evidence, n)
            )
        yield {"found_entities": rename_entities(rows, titles), "renamed": _table(renamed, _RENAMED)}
    instances = read_table(store, group.relationships) if group.relationships else None
    if instances is not None and (relationships := rename_relationships(instances, resolution)):
        counts = pa.table([["dropped_relationships"], [relationships[1]]], schema=COUNTS_SCHEMA)
        yield {"found_relationships": relationships[0], "counts": counts}
    claims = rename_claims(read_table(store, group.claims), resolution) if group.claims else None
    if claims is not None:
        yield {"found_claims": claims}


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
