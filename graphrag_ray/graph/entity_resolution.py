"""Entity resolution: which names stand for the same thing, and which stand for several.

Not in the GraphRAG paper, which merges names that are equal (3.1.3). Rules (`name_rules.py`) and a model
(`adjudication.py`) propose pairs of names. `merge_pairs` unites them step by step, unless a guard forbids it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import relationship_id
from graphrag_ray.graph import merge
from graphrag_ray.graph.name_candidates import may_be_same
from graphrag_ray.graph.name_rules import NameAlias, may_merge, preferred

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


def merge_pairs(
    pairs: Iterable[NamePair],
    different: Collection[tuple[str, str]] = (),
    canonical: Collection[str] = (),
) -> tuple[list[NameAlias], list[Refusal]]:
    """Unite the names of pairs in order, and return an alias for every name except the canonical ones.

    The order matters: when two pairs contradict each other through a third name, the first one counts.

    Args:
        pairs: The surest first.
        different: Pairs of names, each in ascending order, that must not end up in one group.
        canonical: Names chosen by the user. They become canonical before any other.

    Returns:
        Aliases sorted by name, and the pairs that were refused.
    """
    group_of: dict[str, str] = {}
    members: dict[str, list[NameUse]] = {}
    links: dict[str, tuple[str, str, str]] = {}
    refused: list[Refusal] = []
    forbidden = _partners(different)
    for pair in pairs:
        for use in (pair.a, pair.b):
            if use.name not in group_of:
                group_of[use.name], members[use.name] = use.name, [use]
        a, b = group_of[pair.a.name], group_of[pair.b.name]
        if a == b:
            continue
        if reason := _objection(members[a], members[b], pair.rule, forbidden):
            refused.append(Refusal(pair.a.name, pair.b.name, reason))
            continue
        small, large = sorted((a, b), key=lambda name: (len(members[name]), name))
        for use in members[small]:
            group_of[use.name] = large
        members[large] += members.pop(small)
        links.setdefault(pair.a.name, (pair.b.name, pair.rule, pair.evidence))
        links.setdefault(pair.b.name, (pair.a.name, pair.rule, pair.evidence))
    aliases = []
    for group in members.values():
        if len(group) > 1:
            chosen = [use for use in group if use.name in canonical] or group
            title = preferred(sorted(chosen))
            for use in group:
                if use.name != title:
                    partner, rule, evidence = links[use.name]
                    via = f"same as {partner}: " if partner != title else ""
                    aliases.append(NameAlias(use.name, title, rule, via + evidence))
    return sorted(aliases), refused


def _partners(different: Collection[tuple[str, str]]) -> dict[str, set[str]]:
    partners: dict[str, set[str]] = {}
    for a, b in different:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    return partners


def _objection(
    left: Sequence[NameUse], right: Sequence[NameUse], rule: str, forbidden: Mapping[str, Collection[str]]
) -> str:
    """Say why two groups must not be united; "" if they may be."""
    if len(left) + len(right) > MAX_GROUP:
        return f"more than {MAX_GROUP} names would be merged"
    names = {use.name for use in right}
    for use in left:
        if found := sorted(names.intersection(forbidden.get(use.name, ()))):
            return f"{use.name} and {found[0]} are different"
    for a in left[:_MAX_COMPARED]:
        for b in right[:_MAX_COMPARED]:
            allowed = may_be_same(a.name, b.name) if rule == MODEL else may_merge(*a[:2], *b[:2], rule)
            if not allowed:
                return f"{a.name} and {b.name} differ"
    return ""


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


def rename_relationships(instances: pa.Table, resolution: Resolution) -> pa.Table | None:
    """Return instances of relationships with resolved ends, without self-loops; None if no end changes."""
    ends = [
        replace_names(instances[end], instances["document_id"], resolution) for end in ("source", "target")
    ]
    changed = pc.or_(pc.not_equal(instances["source"], ends[0]), pc.not_equal(instances["target"], ends[1]))
    if not pc.any(changed).as_py():
        return None
    pairs = zip(*(end.to_pylist() for end in ends), changed.to_pylist(), strict=True)
    new = iter([relationship_id(source, target) for source, target, is_new in pairs if is_new])
    ids = pc.replace_with_mask(
        instances["relationship_id"].combine_chunks(), changed.combine_chunks(), pa.array(list(new))
    )
    for column, values in enumerate((ids, *ends)):
        instances = instances.set_column(column, instances.field(column), values)
    return instances.filter(pc.not_equal(*ends))


def rename_claims(instances: pa.Table, resolution: Resolution) -> pa.Table | None:
    """Return instances of claims with resolved subjects and objects; None if none changes."""
    ends = [
        replace_names(instances[end], instances["document_id"], resolution) for end in ("subject", "object")
    ]
    changed = pc.or_(pc.not_equal(instances["subject"], ends[0]), pc.not_equal(instances["object"], ends[1]))
    if not pc.any(changed).as_py():
        return None
    texts = (instances[name].to_pylist() for name in ("type", "description"))
    rows = zip(*(end.to_pylist() for end in ends), *texts, strict=True)
    ids = [merge.id_of_claim(*row) for row in rows]
    columns = {
        "claim_id": pa.array(ids, pa.string()),
        "subject_entity_id": merge.entity_ids(pa.chunked_array([ends[0]])),
        "subject": ends[0],
        "object": ends[1],
    }
    for name, values in columns.items():
        instances = instances.set_column(instances.schema.get_field_index(name), name, values)
    return instances
