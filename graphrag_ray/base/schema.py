"""Every stored table: its columns, and a sentence on each.

Names and types follow Microsoft GraphRAG 3.x where it has the column, so that an export is a copy.
Columns that are ours stand under a line that says so. Ids are `ids.stable_id`s: 32 hex characters;
`human_readable_id` is the short number that people see: carried over from the parent snapshot, new ones
above the highest ever used, never used again.

Tables are sorted by `id` over all their parts unless a comment says otherwise. The journal's schema is
in `store/journal.py`, since it knows nothing of GraphRAG.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from graphrag_ray.base.declarations import HIERARCHIES, SEARCHED

_ids = pa.list_(pa.string())


def _table(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, type_) for name, type_ in fields])


REFERENCE = pa.struct([pa.field("section", pa.string()), pa.field("id", pa.string())])
"""A cited record: "Entities", "Relationships", "Claims", "Reports" or "Sources", and its id."""

DOCUMENTS = _table(
    # in the order of INPUT's paths; those kept from the parent snapshot come last
    ("id", pa.string()),  # of the path relative to INPUT, and the row inside a table of documents
    ("human_readable_id", pa.int64()),
    ("title", pa.string()),  # title column, HTML title, else the file's name
    ("text", pa.large_string()),  # decoded and normalised to \n line ends; offsets count its characters
    ("text_unit_ids", _ids),  # in order
    ("creation_date", pa.string()),  # date column as written; null where there is none
    ("raw_data", pa.string()),  # the other columns, as a JSON object; null for plain files
    # ours
    ("path", pa.string()),  # relative to INPUT, with forward slashes
    ("row", pa.string()),  # id or number of the row inside a table file; "" for a file that is one document
    ("content_hash", pa.string()),  # SHA-256 (hex) of text, title, date and raw_data
    ("encoding", pa.string()),  # what the bytes were decoded as
)

TEXT_UNITS = _table(
    # in the order of their documents and, within one, by position
    ("id", pa.string()),
    ("human_readable_id", pa.int64()),
    ("text", pa.large_string()),  # document.text[start:end], exactly
    ("n_tokens", pa.int64()),  # of text, in the extracting model's vocabulary
    ("document_id", pa.string()),
    ("entity_ids", _ids),
    ("relationship_ids", _ids),
    ("covariate_ids", _ids),
    # ours
    ("position", pa.int64()),  # 0, 1, … within the document
    ("start", pa.int64()),  # character offset into documents.text
    ("end", pa.int64()),
    ("header", pa.string()),  # what stands of its document above it for the model that extracts; or ""
)

ENTITY_INSTANCES = _table(
    # sorted by (entity_id, document_id, position, turn, ordinal): one row per record a model wrote
    ("entity_id", pa.string()),
    ("title", pa.string()),  # the entity key
    ("type", pa.string()),  # upper case; null for a name seen only as the end of a relationship
    ("description", pa.string()),  # null for a name seen only as the end of a relationship
    ("text_unit_id", pa.string()),
    ("document_id", pa.string()),
    ("position", pa.int64()),
    ("turn", pa.int32()),  # 0: first reply; 1, …: gleanings
    ("ordinal", pa.int32()),  # place among the records of this text unit
)

RELATIONSHIP_INSTANCES = _table(
    # sorted by (relationship_id, document_id, position, turn, ordinal)
    ("relationship_id", pa.string()),
    ("source", pa.string()),  # entity keys as the model ordered them
    ("target", pa.string()),
    ("description", pa.string()),
    ("strength", pa.float64()),  # as stated; 1 where it could not be read
    ("text_unit_id", pa.string()),
    ("document_id", pa.string()),
    ("position", pa.int64()),
    ("turn", pa.int32()),
    ("ordinal", pa.int32()),
)

ENTITIES = _table(
    ("id", pa.string()),
    ("human_readable_id", pa.int64()),
    ("title", pa.string()),  # the entity key: upper case
    ("type", pa.string()),  # majority of the instances, ties alphabetical; "" where no instance has one
    ("description", pa.string()),  # "" where no instance has one
    ("text_unit_ids", _ids),  # distinct, in document order
    ("frequency", pa.int64()),  # number of those text units
    ("degree", pa.int64()),  # number of relationships
    # ours
    ("n_instances", pa.int64()),
    (
        "description_failed",
        pa.bool_(),
    ),  # the summary failed; description holds the first instances as they are
)

RELATIONSHIPS = _table(
    ("id", pa.string()),
    ("human_readable_id", pa.int64()),
    ("source", pa.string()),  # titles; source <= target
    ("target", pa.string()),
    ("description", pa.string()),
    ("weight", pa.float64()),  # number of text units that state it (paper 3.1.3), or summed strength
    ("combined_degree", pa.int64()),  # degree of source + degree of target
    ("text_unit_ids", _ids),
    # ours
    ("source_id", pa.string()),
    ("target_id", pa.string()),
    ("n_instances", pa.int64()),
    ("description_failed", pa.bool_()),
)

COVARIATES = _table(
    ("id", pa.string()),
    ("human_readable_id", pa.int64()),
    ("covariate_type", pa.string()),  # "claim"
    ("type", pa.string()),
    ("description", pa.string()),
    ("subject_id", pa.string()),  # entity key of the subject (Microsoft's name for it; not an id)
    ("object_id", pa.string()),  # entity key, or "NONE"
    ("status", pa.string()),  # TRUE, FALSE or SUSPECTED
    ("start_date", pa.string()),
    ("end_date", pa.string()),
    ("source_text", pa.string()),  # quotes from the text unit, " […] " between several
    ("text_unit_id", pa.string()),  # the first that states it
    # ours
    ("subject_entity_id", pa.string()),  # null where no entity has the subject's key
    ("text_unit_ids", _ids),  # all that state it
)

COMMUNITIES = _table(
    # sorted by (level, community)
    ("id", pa.string()),
    ("human_readable_id", pa.int64()),
    ("community", pa.int64()),  # = human_readable_id
    ("level", pa.int64()),  # 0 is the coarsest (the paper's C0); a community is stored once, at its level
    ("parent", pa.int64()),  # community number; -1 at the root. Of several (a tree's): the nearest
    ("children", pa.list_(pa.int64())),
    ("title", pa.string()),
    ("entity_ids", _ids),
    ("relationship_ids", _ids),  # with both ends inside
    ("text_unit_ids", _ids),
    ("period", pa.string()),  # date of the run that made it
    ("size", pa.int64()),
    # ours
    ("hierarchy", pa.string()),  # "leiden", "attributed", "tree"
    ("packed", pa.bool_()),  # True: several small components that share this community's report
)

COMMUNITY_REPORTS = _table(
    # sorted by (level, community); a community whose report failed has no row, but a row in `failures`
    ("id", pa.string()),
    ("human_readable_id", pa.int64()),
    ("community", pa.int64()),
    ("level", pa.int64()),
    ("parent", pa.int64()),
    ("children", pa.list_(pa.int64())),
    ("title", pa.string()),
    ("summary", pa.string()),
    ("full_content", pa.string()),  # markdown, references with human_readable_ids
    ("rank", pa.float64()),  # the rating, 0–10; null for summaries of a tree
    ("rating_explanation", pa.string()),
    (
        "findings",
        pa.list_(pa.struct([pa.field("summary", pa.string()), pa.field("explanation", pa.string())])),
    ),
    ("full_content_json", pa.string()),
    ("period", pa.string()),
    ("size", pa.int64()),
    # ours
    ("hierarchy", pa.string()),
    ("references", pa.list_(REFERENCE)),  # every record the report cites, by string id
    ("n_tokens", pa.int64()),  # of full_content without references, as a context shows it
    ("context_tokens", pa.int64()),  # of the data it was written from
    ("context_left_out", pa.int64()),  # records that did not fit
    ("dropped_references", pa.int64()),  # cited, but not in the context
)

EMBEDDINGS = {
    # one table per kind, sorted by id; the dimension is the model's
    kind: lambda dim: _table(("id", pa.string()), ("vector", pa.list_(pa.float32(), dim)))
    for kind in SEARCHED
}


def search_table(kind: str, by: str) -> str:
    """The table whose parts are the shards of an index for search, no parquet (`search/`).

    kind: as of embeddings; by: "keyword" or "vector". Or the name of a hierarchy, and "levels"
    """
    return f"search_{kind}_{by}"


WALKS = search_table("text_unit", "names")
"""The table whose parts are the shards of the index for walks (`store/search/name_links.py`)."""


def rows_table(table: str) -> str:
    """The table whose parts tell where the rows of each part of a table lie (`store/search/row_index.py`)."""
    return f"rows_{table}"


FAILURES = _table(
    # items of the last run that have no result
    ("stage", pa.string()),  # read, extract, claims, describe, report, embed, walk, search
    ("item", pa.string()),  # text unit id, entity title, community number, …
    ("document", pa.string()),  # path of the document, where there is one
    ("kind", pa.string()),  # "permanent": needs a change; "transient": the next run tries again
    ("error", pa.string()),
    ("attempts", pa.int64()),
    ("first_at", pa.string()),  # ISO 8601, UTC
    ("last_at", pa.string()),
    ("key", pa.string()),  # item key in the journal; "" for stage read
)

TABLES: dict[str, pa.Schema] = {
    "documents": DOCUMENTS,
    "text_units": TEXT_UNITS,
    "entity_instances": ENTITY_INSTANCES,
    "relationship_instances": RELATIONSHIP_INSTANCES,
    "entities": ENTITIES,
    "relationships": RELATIONSHIPS,
    "covariates": COVARIATES,
    "communities": COMMUNITIES,
    "community_reports": COMMUNITY_REPORTS,
    "attributed_communities": COMMUNITIES,
    "attributed_reports": COMMUNITY_REPORTS,
    "tree_clusters": COMMUNITIES,
    "tree_summaries": COMMUNITY_REPORTS,
    "failures": FAILURES,
}

ENDS = ("source_id", "target_id")
"""Relationships are found by either."""

_Groups = Mapping[tuple[str, ...], tuple[str, ...]]

_BY_NUMBER: _Groups = {("human_readable_id",): ()}
_NUMBER: _Groups = {("id",): ("human_readable_id",), **_BY_NUMBER}
_BY_MEMBER: _Groups = {("entity_ids",): ("level",)}

LOOKED_UP: Mapping[str, _Groups] = {
    "documents": _NUMBER,
    "text_units": {("id",): ("human_readable_id", "n_tokens", "document_id"), **_BY_NUMBER},
    "entities": {("id",): ("human_readable_id", "frequency"), **_BY_NUMBER},
    "relationships": {**_NUMBER, ENDS: ("combined_degree", "weight")},
    "covariates": {**_NUMBER, ("subject_entity_id",): ("text_unit_ids",)},
    **{
        kind.communities: {**_NUMBER, **(_BY_MEMBER if kind.over == "entity" else {})}
        for kind in HIERARCHIES.values()
    },
    **{
        kind.reports_table: {("id",): ("human_readable_id", "rank"), **_BY_NUMBER}
        if kind.of_graph
        else _NUMBER
        for kind in HIERARCHIES.values()
    },
}
"""Tables of which questions read single rows: they are found by the ids or numbers in these columns. What the
columns beside them hold, ids or numbers, or how long their lists are, is read without the table: what rows
are chosen by. Of those that hold the same id, first come those with the highest numbers."""


def carried(table: str) -> dict[tuple[str, ...], tuple[list[str], list[str]]]:
    """By the columns that rows are found by: columns whose ids, and columns whose numbers, are read without
    the table then."""
    found = {}
    for group, beside in LOOKED_UP.get(table, {}).items():
        ids = [name for name in beside if TABLES[table].field(name).type == pa.string()]
        own = [name for name in group if name != "human_readable_id"]
        found[group] = list(dict.fromkeys(["id", *own, *ids])), [name for name in beside if name not in ids]
    return found
