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
    ("human_readable_id", pa.int64()),  # the short number in references
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
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # the short number in references
    ("text", pa.large_string()),  # document.text[start:end], exactly
    ("n_tokens", pa.int64()),  # of text, in the extracting model's vocabulary
    ("document_id", pa.string()),  # of documents
    ("entity_ids", _ids),  # entities that it names
    ("relationship_ids", _ids),  # relationships that it states
    ("covariate_ids", _ids),  # its claims
    # ours
    ("position", pa.int64()),  # 0, 1, … within the document
    ("start", pa.int64()),  # character offset into documents.text
    ("end", pa.int64()),  # offset behind its last character
    ("header", pa.string()),  # what stands of its document above it for the model that extracts; or ""
)

ENTITY_INSTANCES = _table(
    # sorted by (entity_id, document_id, position, turn, ordinal): one row per record a model wrote
    ("entity_id", pa.string()),  # of entities
    ("title", pa.string()),  # the entity key
    ("type", pa.string()),  # upper case; null for a name seen only as the end of a relationship
    ("description", pa.string()),  # null for a name seen only as the end of a relationship
    ("text_unit_id", pa.string()),  # of text_units
    ("document_id", pa.string()),  # of documents
    ("position", pa.int64()),  # of the text unit within its document
    ("turn", pa.int32()),  # 0: first reply; 1, …: gleanings
    ("ordinal", pa.int32()),  # place among the records of this text unit
)

RELATIONSHIP_INSTANCES = _table(
    # sorted by (relationship_id, document_id, position, turn, ordinal)
    ("relationship_id", pa.string()),  # of relationships
    ("source", pa.string()),  # entity keys as the model ordered them
    ("target", pa.string()),  # entity key
    ("description", pa.string()),  # one, written from all instances; "" where there is none
    ("strength", pa.float64()),  # as stated; 1 where it could not be read
    ("text_unit_id", pa.string()),  # of text_units
    ("document_id", pa.string()),  # of documents
    ("position", pa.int64()),  # of the text unit within its document
    ("turn", pa.int32()),  # 0: first reply; 1, …: gleanings
    ("ordinal", pa.int32()),  # place among the records of this text unit
)

ENTITIES = _table(
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # the short number in references
    ("title", pa.string()),  # the entity key: upper case
    ("type", pa.string()),  # majority of the instances, ties alphabetical; "" where no instance has one
    ("description", pa.string()),  # "" where no instance has one
    ("text_unit_ids", _ids),  # distinct, in document order
    ("frequency", pa.int64()),  # number of those text units
    ("degree", pa.int64()),  # number of relationships
    # ours
    ("n_instances", pa.int64()),  # records that a model wrote
    (
        "description_failed",
        pa.bool_(),
    ),  # the summary failed; description holds the first instances as they are
)

RELATIONSHIPS = _table(
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # the short number in references
    ("source", pa.string()),  # titles; source <= target
    ("target", pa.string()),  # entity key
    ("description", pa.string()),  # one, written from all instances; "" where there is none
    ("weight", pa.float64()),  # number of text units that state it (paper 3.1.3), or summed strength
    ("combined_degree", pa.int64()),  # degree of source + degree of target
    ("text_unit_ids", _ids),  # that state it
    # ours
    ("source_id", pa.string()),  # of entities
    ("target_id", pa.string()),  # of entities
    ("n_instances", pa.int64()),  # records that a model wrote
    ("description_failed", pa.bool_()),
)

COVARIATES = _table(
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # the short number in references
    ("covariate_type", pa.string()),  # "claim"
    ("type", pa.string()),  # of the claim
    ("description", pa.string()),  # one, written from all instances; "" where there is none
    ("subject_id", pa.string()),  # entity key of the subject (Microsoft's name for it; not an id)
    ("object_id", pa.string()),  # entity key, or "NONE"
    ("status", pa.string()),  # TRUE, FALSE or SUSPECTED
    ("start_date", pa.string()),  # as stated; null where it is not
    ("end_date", pa.string()),  # as stated; null where it is not
    ("source_text", pa.string()),  # quotes from the text unit, " […] " between several
    ("text_unit_id", pa.string()),  # the first that states it
    # ours
    ("subject_entity_id", pa.string()),  # null where no entity has the subject's key
    ("text_unit_ids", _ids),  # all that state it
)

COMMUNITIES = _table(
    # sorted by (level, community)
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # the short number in references
    ("community", pa.int64()),  # = human_readable_id
    ("level", pa.int64()),  # 0 is the coarsest (the paper's C0); a community is stored once, at its level
    ("parent", pa.int64()),  # community number; -1 at the root. Of several (a tree's): the nearest
    ("children", pa.list_(pa.int64())),  # community numbers one level below
    ("title", pa.string()),  # in contexts and lists
    ("entity_ids", _ids),  # entities that it names
    ("relationship_ids", _ids),  # with both ends inside
    ("text_unit_ids", _ids),  # that state it
    ("period", pa.string()),  # date of the run that made it
    ("size", pa.int64()),  # members
    # ours
    ("hierarchy", pa.string()),  # "leiden", "attributed", "tree"
    ("packed", pa.bool_()),  # True: several small components that share this community's report
)

COMMUNITY_REPORTS = _table(
    # sorted by (level, community); a community whose report failed has no row, but a row in `failures`
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # the short number in references
    ("community", pa.int64()),  # number of the community
    ("level", pa.int64()),  # 0 is the coarsest
    ("parent", pa.int64()),  # community number; -1 at the root
    ("children", pa.list_(pa.int64())),  # community numbers one level below
    ("title", pa.string()),  # in contexts and lists
    ("summary", pa.string()),  # one paragraph
    ("full_content", pa.string()),  # markdown, references with human_readable_ids
    ("rank", pa.float64()),  # the rating, 0–10; null for summaries of a tree
    ("rating_explanation", pa.string()),  # why it was rated so
    (
        "findings",
        pa.list_(pa.struct([pa.field("summary", pa.string()), pa.field("explanation", pa.string())])),
    ),
    ("full_content_json", pa.string()),  # the same as JSON
    ("period", pa.string()),  # date of the run that made its community
    ("size", pa.int64()),  # members
    # ours
    ("hierarchy", pa.string()),  # "leiden", "attributed", "tree"
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
    ("attempts", pa.int64()),  # requests that were made
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


INTERMEDIATE: dict[str, str] = {
    "read/documents": "documents as they were read, or kept from the parent snapshot",
    "read/text_units": "their chunks, without the ids of what they name",
    "read/failures": "files and rows that could not be read",
    "read/segments": "where large files are cut",
    "read/seen": "ids and hashes of rows that were given as such",
    "extract/found_entities": "ENTITY_INSTANCES in the order of the chunks",
    "extract/found_relationships": "RELATIONSHIP_INSTANCES in the order of the chunks",
    "extract/counts": "what could not be used of each chunk",
    "extract/failures": "chunks without an extraction",
    "claims/found_claims": "CLAIM_INSTANCES (`graph/merge.py`) in the order of the chunks",
    "claims/counts": "what could not be used of each chunk",
    "claims/failures": "chunks whose claims are not known",
    "merge/claim_instances": "CLAIM_INSTANCES sorted by claim",
    "merge/merged_entities": "entities with all their descriptions, before pruning",
    "merge/merged_relationships": "relationships with all their descriptions, before pruning",
    "merge/merged_covariates": "claims before they are matched with entities",
    "merge/entities": "entities that stay, with all their descriptions",
    "merge/relationships": "relationships that stay, with all their descriptions",
    "merge/covariates": "claims, with n_tokens and content",
    "merge/lower_words": "how often chunks hold a word in lower case",
    "describe/items": "batches of descriptions to be summarised",
    "describe/texts": "descriptions that are still several",
    "describe/described": "one description per id",
    "describe/entities": "entities with one description, n_tokens and content (a hash)",
    "describe/relationships": "relationships with one description, n_tokens and content (a hash)",
    "describe/failures": "descriptions that failed",
    "communities/hierarchy": "a hierarchy as arrays: the order of its nodes; level, parent, range, id",
    "communities/block_entities": "entities in that order, as contexts show them",
    "communities/block_relationships": "relationships in that order",
    "communities/block_covariates": "claims in that order",
    "about/failures": "why it is not known what the corpus is about",
    "reports/reports": "reports with references by string id",
    "report/failures": "communities without a report",
    **{
        f"{step}/{table}": says
        for step in ("entity_clusters", "attributed")
        for table, says in {
            "levels": "each level as arrays: what names its nodes, their links, clusters and centres",
            "block_entities": "ids and chunks of entities in the order of the hierarchy",
            "block_relationships": "those of relationships",
            "block_covariates": "those of claims",
        }.items()
    },
    "attributed/level_reports": "reports of a level, for embedding",
    "attributed/embeddings_attributed_report": "their vectors, by which the next level is clustered",
    "attributed/reports": "reports with references by string id",
    "tree/levels": "each level as arrays: what names its nodes; its clusters and their ids",
    "tree/level_reports": "summaries of a level, for embedding",
    "tree/embeddings_tree_summary": "their vectors, by which the next level is clustered",
    "tree/reports": "summaries with references by string id",
    "tree/block_text_units": "chunks in the order of their clusters",
    "summary/failures": "clusters without a summary",
    "search/failures": "texts that no word finds",
}
"""What lies in `intermediate/<stage>/<table>/`: later runs build on it; nobody else reads it, and it may
change with every version."""


def place_of(step: str, table: str) -> str:
    """The name under which `store/parts.py` writes a table of a step: finished ones lie in `tables/`, the
    others in `intermediate/<step>/`."""
    early = table in ("entity_instances", "relationship_instances") or (
        table.startswith("embeddings_") and step.startswith("embed")
    )
    return table if step == "finish" or early else f"{step}/{table}"


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
