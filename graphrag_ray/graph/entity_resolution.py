"""Entity resolution: which names stand for the same thing, and which stand for several.

Not in the GraphRAG paper, which merges names that are equal (3.1.3). Rules (`name_rules.py`,
`document_names.py`) and a model (`adjudication.py`) propose pairs of names. `merge_pairs` unites them step by
step, unless a guard forbids it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import relationship_id
from graphrag_ray.graph import merge
from graphrag_ray.graph.document_names import NameAlias
from graphrag_ray.graph.name_candidates import may_be_same
from graphrag_ray.graph.name_rules import may_merge, preferred

MODEL = "model"
"""The rule of pairs that a model confirmed."""
MAX_GROUP = 100
"""Maximum number of names that are merged into one entity. More usually follow from a chain of errors."""
_MAX_COMPARED = 12
"""Maximum number of names of each group that are compared before two groups are united."""


class NameUse(NamedTuple):
    """A name (entity key), its most frequent type ("" if unknown) and its number of mentions."""

    name: str
    type: str
    n: int


class NamePair(NamedTuple):
    """Two names that stand for the same thing, the rule that says so ("model", too), and its evidence."""

    a: NameUse
    b: NameUse
    rule: str
    evidence: str


class Refusal(NamedTuple):
    """A pair that was not merged because of other names in its groups."""

    a: str
    b: str
    reason: str


Members = Mapping[str, Set[str]]
"""Names that are kept apart from others, by the name that replaces them in some document."""


def keep_apart(
    decided: Iterable[tuple[str, str]],
    replaced: Iterable[tuple[str, str]],
    different: Iterable[tuple[str, str]],
) -> tuple[Members, set[tuple[str, str]]]:
    """Decide which names documents may replace, such that no two different names get the same title.

    Args:
        decided: (title, name) that the user decided, which are not refused.
        replaced: The others. Names that are not in `different` may be left out. The first ones count.
        different: Pairs of names that the user keeps apart.

    Returns:
        The names with each title, and the (title, name) that are refused.
    """
    partners = _partners(different)
    members: dict[str, set[str]] = {}
    refused: set[tuple[str, str]] = set()
    for title, name in decided:
        members.setdefault(title, {title}).add(name)
    for title, name in replaced:
        known = members.setdefault(title, {title})
        if partners.get(name, set()).isdisjoint(known):
            known.add(name)
        else:
            refused.add((title, name))
    return members, refused


def merge_pairs(
    pairs: Iterable[NamePair],
    different: Collection[tuple[str, str]] = (),
    canonical: Collection[str] = (),
    members_of: Members = MappingProxyType({}),
    closed_types: Set[str] = frozenset(),
) -> tuple[list[NameAlias], list[Refusal]]:
    """Unite the names of pairs in order, and return an alias for every name except the canonical ones.

    The order matters: when two pairs contradict each other through a third name, the first one counts.

    Args:
        pairs: The surest first.
        different: Pairs of names that must not end up in one group.
        canonical: Names chosen by the user. They become canonical before any other.
        members_of: Names that are in the group of a name because it replaces them in documents.
        closed_types: The types of a closed schema. No rule except spelling unites names with two of them.

    Returns:
        Aliases sorted by name, and the pairs that were refused.
    """
    group_of: dict[str, str] = {}
    groups: dict[str, list[NameUse]] = {}
    links: dict[str, tuple[str, str, str]] = {}
    refused: list[Refusal] = []
    partners = _partners(different)

    def objection(left: Sequence[NameUse], right: Sequence[NameUse], rule: str) -> str:
        if len(left) + len(right) > MAX_GROUP:
            return f"more than {MAX_GROUP} names would be merged"
        names, others = (
            set().union(*(members_of.get(use.name, {use.name}) for use in group)) for group in (left, right)
        )
        for name in sorted(partners.keys() & names):
            if found := sorted(others & partners[name]):
                return f"{name} and {found[0]} are different"
        for a in left[:_MAX_COMPARED]:
            for b in right[:_MAX_COMPARED]:
                is_rule = rule != MODEL
                allowed = (
                    may_merge(*a[:2], *b[:2], rule, closed_types) if is_rule else may_be_same(a[0], b[0])
                )
                if not allowed:
                    return f"{a.name} and {b.name} differ"
        return ""

    for pair in pairs:
        for use in (pair.a, pair.b):
            if use.name not in group_of:
                group_of[use.name], groups[use.name] = use.name, [use]
        a, b = group_of[pair.a.name], group_of[pair.b.name]
        if a == b:
            continue
        if reason := objection(groups[a], groups[b], pair.rule):
            refused.append(Refusal(pair.a.name, pair.b.name, reason))
            continue
        small, large = sorted((a, b), key=lambda name: (len(groups[name]), name))
        for use in groups[small]:
            group_of[use.name] = large
        groups[large] += groups.pop(small)
        links.setdefault(pair.a.name, (pair.b.name, pair.rule, pair.evidence))
        links.setdefault(pair.b.name, (pair.a.name, pair.rule, pair.evidence))
    aliases = []
    for group in groups.values():
        if len(group) > 1:
            chosen = [use for use in group if use.name in canonical] or group
            title = preferred(sorted(chosen))
            for use in group:
                if use.name != title:
                    partner, rule, evidence = links[use.name]
                    via = f"same as {partner}: " if partner != title else ""
                    aliases.append(NameAlias(use.name, title, rule, via + evidence))
    return sorted(aliases), refused


def _partners(different: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    partners: dict[str, set[str]] = {}
    for a, b in different:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    return partners


class Resolution(NamedTuple):
    """How names are replaced, in this order.

    Attributes:
        in_document: By document id and name.
        everywhere: By name.
        split: By document id and name, for names that stand for several things.
    """

    in_document: Mapping[tuple[str, str], str]
    everywhere: Mapping[str, str]
    split: Mapping[tuple[str, str], str]


def replace_names(names: pa.ChunkedArray, documents: pa.ChunkedArray, resolution: Resolution) -> pa.Array:
    """Return the resolved names of mentions [rows], given their documents [rows]."""
    names = _replace_in_documents(names, documents, resolution.in_document)
    encoded = names.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    titles = encoded.dictionary.to_pylist()
    replaced = pa.array([resolution.everywhere.get(title, title) for title in titles], pa.string())
    result = pa.chunked_array([replaced.take(encoded.indices)])
    return _replace_in_documents(result, documents, resolution.split).combine_chunks()


def _replace_in_documents(
    names: pa.ChunkedArray, documents: pa.ChunkedArray, titles: Mapping[tuple[str, str], str]
) -> pa.ChunkedArray:
    affected = pa.array(sorted({name for _, name in titles}), pa.string())
    rows = np.flatnonzero(pc.is_in(names, value_set=affected).to_numpy())
    if not len(rows):
        return names
    at = pa.array(rows)
    pairs = zip(documents.take(at).to_pylist(), names.take(at).to_pylist(), strict=True)
    mask = np.zeros(len(names), dtype=np.bool_)
    mask[rows] = True
    replacements = pa.array([titles.get(pair, pair[1]) for pair in pairs], pa.string())
    return pa.chunked_array([pc.replace_with_mask(names.combine_chunks(), pa.array(mask), replacements)])


def rename_entities(instances: pa.Table, titles: pa.Array) -> pa.Table:
    """Return instances of entities with other titles. The column name keeps the replaced ones."""
    names = pc.if_else(pc.equal(instances["title"], titles), None, instances["title"])
    instances = instances.set_column(instances.schema.get_field_index("name"), "name", names)
    return instances.set_column(0, "entity_id", merge.entity_ids(pa.chunked_array([titles]))).set_column(
        1, "title", titles
    )


def rename_relationships(instances: pa.Table, resolution: Resolution) -> tuple[pa.Table, int] | None:
    """Return instances of relationships with resolved ends, and the number of those that were dropped because
    both ends became one name; None if no end changes."""
    renamed = _replace_ends(instances, ("source", "target"), resolution)
    if renamed is None:
        return None
    changed, ends = renamed
    pairs = zip(*(end.filter(changed).to_pylist() for end in ends), strict=True)
    new = pa.array([relationship_id(*pair) for pair in pairs], pa.string())
    ids = pc.replace_with_mask(instances["relationship_id"].combine_chunks(), changed, new)
    for column, values in enumerate((ids, *ends)):
        instances = instances.set_column(column, instances.field(column), values)
    kept = instances.filter(pc.not_equal(*ends))
    return kept, len(instances) - len(kept)


def rename_claims(instances: pa.Table, resolution: Resolution) -> pa.Table | None:
    """Return instances of claims with resolved subjects and objects; None if none changes."""
    renamed = _replace_ends(instances, ("subject", "object"), resolution)
    if renamed is None:
        return None
    _, ends = renamed
    texts = (instances[name].to_pylist() for name in ("type", "description"))
    rows = zip(*(end.to_pylist() for end in ends), *texts, strict=True)
    columns = {
        "claim_id": pa.array([merge.id_of_claim(*row) for row in rows], pa.string()),
        "subject_entity_id": merge.entity_ids(pa.chunked_array([ends[0]])),
        "subject": ends[0],
        "object": ends[1],
    }
    for name, values in columns.items():
        instances = instances.set_column(instances.schema.get_field_index(name), name, values)
    return instances


def _replace_ends(
    instances: pa.Table, columns: tuple[str, str], resolution: Resolution
) -> tuple[pa.Array, list[pa.Array]] | None:
    """Return which rows change, and the resolved names of two columns; None if no row changes."""
    ends = [replace_names(instances[name], instances["document_id"], resolution) for name in columns]
    differ = (pc.not_equal(instances[name], end) for name, end in zip(columns, ends, strict=True))
    changed = pc.or_(*differ)
    if isinstance(changed, pa.ChunkedArray):
        changed = changed.combine_chunks()
    return (changed, ends) if pc.any(changed).as_py() else None
