"""Schemas of all stored tables. `docs/generate/tables.py` renders the comments as documentation.

Names and types follow Microsoft GraphRAG 3.x, so that an export is a copy. Columns below "Ours" are
additions. Ids are 32 hex characters (`ids.stable_id`). `human_readable_id` is the short number that people
see. A row keeps its number across snapshots, and numbers are never reused. Tables are sorted by `id` across
all parts unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from graphrag_ray.base.declarations import HIERARCHIES, SEARCHABLE_KINDS

_ids = pa.list_(pa.string())


def _table(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, type_) for name, type_ in fields])


REFERENCE = pa.struct([pa.field("section", pa.string()), pa.field("id", pa.string())])
"""A cited record: its section ("Entities", "Reports", …) and its id."""
_FINDING = pa.struct([pa.field("summary", pa.string()), pa.field("explanation", pa.string())])

DOCUMENTS = _table(
    # Sorted by path in INPUT, followed by documents that only the parent snapshot has.
    ("id", pa.string()),  # hash of path and row
    ("human_readable_id", pa.int64()),  # short number used in references
    ("title", pa.string()),  # title column, HTML title, heading or first line; otherwise the file name
    ("text", pa.large_string()),  # decoded, with line endings normalised to \n; offsets count its characters
    ("text_unit_ids", _ids),  # in order of position
    (
        "creation_date",
        pa.string(),
    ),  # date column as written, or the date found (date_source); null if there is none
    ("raw_data", pa.string()),  # other columns as a JSON object; null for plain files
    # Ours.
    ("path", pa.string()),  # path relative to INPUT, with forward slashes
    ("row", pa.string()),  # id or number of the row in a table file; "" if the file is one document
    ("content_hash", pa.string()),  # SHA-256 (hex) of text, title, date and raw_data
    ("encoding", pa.string()),  # encoding that the file was decoded with
    ("date_source", pa.string()),  # "metadata", "text" (first lines) or "file name"; null if there is no date
)

TEXT_UNITS = _table(
    # Sorted by document and position.
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # short number used in references
    ("text", pa.large_string()),  # exactly documents.text[start:end]
    ("n_tokens", pa.int64()),  # tokens of text, with the extraction model's tokenizer
    ("document_id", pa.string()),  # id in documents
    ("entity_ids", _ids),  # entities that it mentions
    ("relationship_ids", _ids),  # relationships that it states
    ("covariate_ids", _ids),  # claims that it states
    # Ours.
    ("position", pa.int64()),  # 0, 1, … within the document
    ("start", pa.int64()),  # character offset into documents.text
    ("end", pa.int64()),  # character offset after its last character
    ("header", pa.string()),  # document metadata prepended for extraction, or ""
)

ENTITY_INSTANCES = _table(
    # One row per extracted record, sorted by (entity_id, document_id, position, turn, ordinal).
    ("entity_id", pa.string()),  # id in entities
    ("title", pa.string()),  # entity key
    ("type", pa.string()),  # upper case; null if the name occurs only as an end of a relationship
    ("description", pa.string()),  # null if the name occurs only as an end of a relationship
    ("text_unit_id", pa.string()),  # id in text_units
    ("document_id", pa.string()),  # id in documents
    ("position", pa.int64()),  # position of the text unit in its document
    ("date", pa.string()),  # date of the document, if it is shown with descriptions that are merged
    ("turn", pa.int32()),  # 0: first reply; 1, 2, …: gleanings
    ("ordinal", pa.int32()),  # position among the records of the text unit
    ("name", pa.string()),  # entity key as extracted; null if it is the title (see `resolutions`)
)

RELATIONSHIP_INSTANCES = _table(
    # Sorted by (relationship_id, document_id, position, turn, ordinal).
    ("relationship_id", pa.string()),  # id in relationships
    ("source", pa.string()),  # entity key; order of the ends as extracted
    ("target", pa.string()),  # entity key
    ("description", pa.string()),  # as extracted; "" if there is none
    ("strength", pa.float64()),  # as stated; 1 if it could not be parsed
    ("text_unit_id", pa.string()),  # id in text_units
    ("document_id", pa.string()),  # id in documents
    ("position", pa.int64()),  # position of the text unit in its document
    ("date", pa.string()),  # date of the document, if it is shown with descriptions that are merged
    ("turn", pa.int32()),  # 0: first reply; 1, 2, …: gleanings
    ("ordinal", pa.int32()),  # position among the records of the text unit
    ("relation", pa.string()),  # type by the schema, from source to target; null without a schema
)

ENTITIES = _table(
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # short number used in references
    ("title", pa.string()),  # entity key, upper case
    (
        "type",
        pa.string(),
    ),  # most frequent type of the instances, ties broken alphabetically; "" if none has one
    ("description", pa.string()),  # one description, summarised from all instances; "" if none has one
    ("text_unit_ids", _ids),  # distinct, in document order
    ("frequency", pa.int64()),  # number of text_unit_ids
    ("degree", pa.int64()),  # number of relationships
    # Ours.
    ("n_instances", pa.int64()),  # number of extracted records
    ("description_failed", pa.bool_()),  # summary failed: description contains the first instances
)

RELATIONSHIPS = _table(
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # short number used in references
    ("source", pa.string()),  # entity key; source <= target
    ("target", pa.string()),  # entity key
    ("description", pa.string()),  # one description, summarised from all instances; "" if there is none
    ("weight", pa.float64()),  # number of text units that state it (paper 3.1.3), or the sum of strengths
    ("combined_degree", pa.int64()),  # degree of source + degree of target
    ("text_unit_ids", _ids),  # text units that state it
    # Ours.
    ("source_id", pa.string()),  # id in entities
    ("target_id", pa.string()),  # id in entities
    ("n_instances", pa.int64()),  # number of extracted records
    ("description_failed", pa.bool_()),  # summary failed: description contains the first instances
    ("relation", pa.string()),  # most frequent type of the instances, ties alphabetical; "" if none has one
    ("relation_reversed", pa.bool_()),  # whether the relation leads from target to source
)

COVARIATES = _table(
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # short number used in references
    ("covariate_type", pa.string()),  # "claim"
    ("type", pa.string()),  # type of the claim
    ("description", pa.string()),  # as stated; "" if there is none
    ("subject_id", pa.string()),  # entity key of the subject (not an id; the column name is Microsoft's)
    ("object_id", pa.string()),  # entity key, or "NONE"
    ("status", pa.string()),  # TRUE, FALSE or SUSPECTED
    ("start_date", pa.string()),  # as stated; null if it is not stated
    ("end_date", pa.string()),  # as stated; null if it is not stated
    ("source_text", pa.string()),  # quotations from the text unit, joined by " […] "
    ("text_unit_id", pa.string()),  # first text unit that states it
    # Ours.
    ("subject_entity_id", pa.string()),  # null if no entity has the subject's key
    ("text_unit_ids", _ids),  # all text units that state it
)

COMMUNITIES = _table(
    # Sorted by (level, community).
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # short number used in references
    ("community", pa.int64()),  # equals human_readable_id
    ("level", pa.int64()),  # 0 is the coarsest (C0 in the paper); a community is stored once, at its level
    ("parent", pa.int64()),  # community number; -1 at the root; the nearest of several parents in a tree
    ("children", pa.list_(pa.int64())),  # community numbers on the next finer level
    ("title", pa.string()),  # title in contexts and lists
    ("entity_ids", _ids),  # its entities
    ("relationship_ids", _ids),  # relationships with both ends inside
    ("text_unit_ids", _ids),  # text units of its entities and relationships
    ("period", pa.string()),  # date of the run that created it
    ("size", pa.int64()),  # number of members
    # Ours.
    ("hierarchy", pa.string()),  # "leiden", "attributed" or "tree"
    ("packed", pa.bool_()),  # true if it packs several small components into one report
    ("period_start", pa.string()),  # earliest date of the documents that it covers; null if none has a date
    ("period_end", pa.string()),  # latest date, as precise as the documents' dates
)

COMMUNITY_REPORTS = _table(
    # Sorted by (level, community). A community whose report failed has a row in `failures` instead.
    ("id", pa.string()),  # 32 hex characters
    ("human_readable_id", pa.int64()),  # short number used in references
    ("community", pa.int64()),  # community number
    ("level", pa.int64()),  # 0 is the coarsest
    ("parent", pa.int64()),  # community number; -1 at the root
    ("children", pa.list_(pa.int64())),  # community numbers on the next finer level
    ("title", pa.string()),  # title in contexts and lists
    ("summary", pa.string()),  # one paragraph
    ("full_content", pa.string()),  # Markdown; references use human_readable_ids
    ("rank", pa.float64()),  # rating from 0 to 10; null for summaries of a tree
    ("rating_explanation", pa.string()),  # reason for the rating
    ("findings", pa.list_(_FINDING)),
    ("full_content_json", pa.string()),  # the report as JSON
    ("period", pa.string()),  # date of the run that created its community
    ("size", pa.int64()),  # number of members
    # Ours.
    ("hierarchy", pa.string()),  # "leiden", "attributed" or "tree"
    ("references", pa.list_(REFERENCE)),  # records that the report cites, by string id
    ("n_tokens", pa.int64()),  # tokens of full_content without references, as a context shows it
    ("context_tokens", pa.int64()),  # tokens of the data it was written from
    ("context_left_out", pa.int64()),  # number of records that did not fit
    ("dropped_references", pa.int64()),  # number of citations of records not in the context
    ("composed", pa.bool_()),  # true if composed from its records without a model call (`reports.model_from`)
    ("period_start", pa.string()),  # earliest date of the documents that it covers; null if none has a date
    ("period_end", pa.string()),  # latest date, as precise as the documents' dates
)

PERIOD_COLUMNS = ("period_start", "period_end")
"""Columns of communities and reports with the period that they cover."""

RELATION_COLUMNS = ("relation", "relation_reversed")
"""Columns of relationships with their type by the schema, and its direction."""

EMBEDDINGS = {
    # One table per record kind, sorted by id. The model determines the dimension.
    kind: lambda dim: _table(("id", pa.string()), ("vector", pa.list_(pa.float32(), dim)))
    for kind in SEARCHABLE_KINDS
}


def search_index_table(kind: str, by: str) -> str:
    """Return the table whose parts are the shards of a search index (`store/search/`), which is not parquet.

    Args:
        kind: A searched record kind, or a hierarchy.
        by: "keyword" or "vector"; "levels" for a hierarchy.
    """
    return f"search_{kind}_{by}"


NAME_LINKS_TABLE = search_index_table("text_unit", "names")
"""The table whose parts are the shards of the index of name links (`store/search/name_links.py`)."""


def row_index_table(table: str) -> str:
    """Return the table whose parts index the rows of a table (`store/search/row_index.py`)."""
    return f"rows_{table}"


RESOLUTIONS = _table(
    # Names that were replaced by entity resolution, sorted by (id, document_id).
    ("id", pa.string()),  # id that an entity with this name has; not distinct
    ("entity_id", pa.string()),  # id in entities, which lack it if the entity was pruned
    ("title", pa.string()),  # entity key that replaced the name
    ("name", pa.string()),  # entity key as extracted
    ("document_id", pa.string()),  # id in documents; null if the name was replaced in all documents
    ("rule", pa.string()),  # rule that found it, "model", "split", or "alias" for a line of the aliases file
    ("evidence", pa.string()),  # why they are the same, in a phrase
    ("n_instances", pa.int64()),  # number of extracted records with the name
)

FAILURES = _table(
    # Items of the last run that have no result.
    ("stage", pa.string()),  # read, extract, claims, describe, report, embed, walk, search
    ("item", pa.string()),  # text unit id, entity title, community number, …
    ("document", pa.string()),  # path of the document, if there is one
    ("kind", pa.string()),  # "permanent": needs a change; "transient": the next run retries it
    ("error", pa.string()),
    ("attempts", pa.int64()),  # number of requests
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
    "resolutions": RESOLUTIONS,
    "failures": FAILURES,
}


INTERMEDIATE_TABLES: dict[str, str] = {
    "read/documents": "documents as read, or reused from the parent snapshot",
    "read/text_units": "their chunks, without the ids of extracted records",
    "read/failures": "files and rows that could not be read",
    "read/segments": "splits of large files",
    "read/seen": "ids and hashes of rows passed from Python",
    "repeats/paragraphs": "hashes and positions of the paragraphs of documents",
    "repeats/repeats": "occurrences of repeated paragraphs to leave out",
    "repeats/spans": "the same, by document: what extraction leaves out",
    "extract/found_entities": "ENTITY_INSTANCES in the order of the chunks",
    "extract/found_relationships": "RELATIONSHIP_INSTANCES in the order of the chunks",
    "extract/counts": "number of unusable records per chunk",
    "extract/failures": "chunks whose extraction failed",
    "claims/found_claims": "CLAIM_INSTANCES (`graph/merge.py`) in the order of the chunks",
    "claims/counts": "number of unusable records per chunk",
    "claims/failures": "chunks whose claim extraction failed",
    "resolve/names": "names by type, after aliases of documents",
    "resolve/aliases": "names to replace in a document",
    "resolve/pairs": "pairs of names that a rule merges, or that share a blocking key",
    "resolve/renamed": "replaced names of a group of documents",
    "resolve/resolutions": "RESOLUTIONS in ranges of ids",
    "resolve/counts": "numbers of merged and split names and of dropped relationships",
    "resolve/profiles": "names with what a model is shown of them",
    "resolve/keys": "blocking keys of names",
    "resolve/candidates": "pairs of names that a model decides about",
    "resolve/attached": "candidates with their profiles",
    "resolve/items": "names with their candidates, and names that may stand for several things",
    "resolve/verdicts": "what the model said about pairs of names",
    "resolve/splits": "names that the model split, by document",
    "resolve/found_entities": "ENTITY_INSTANCES with resolved names, if a name of the group was replaced",
    "resolve/found_relationships": "RELATIONSHIP_INSTANCES, likewise",
    "resolve/found_claims": "CLAIM_INSTANCES, likewise",
    "resolve/failures": "names about which the model gave no usable verdict",
    "merge/claim_instances": "CLAIM_INSTANCES sorted by claim",
    "merge/merged_entities": "entities without descriptions, before pruning",
    "merge/merged_relationships": "relationships without descriptions, before pruning",
    "merge/merged_covariates": "claims before they are matched with entities",
    "merge/entities": "entities without descriptions, after pruning",
    "merge/relationships": "relationships without descriptions, after pruning",
    "merge/covariates": "claims, with n_tokens and content",
    "merge/type_conflicts": "entities whose instances state several types, with the count of each",
    "merge/lower_words": "number of chunks per lower-case word",
    "describe/items": "batches of descriptions to summarise",
    "describe/texts": "ids that still have several descriptions",
    "describe/described": "one description per id",
    "describe/entities": "entities with one description, n_tokens and content (a hash)",
    "describe/relationships": "relationships with one description, n_tokens and content (a hash)",
    "describe/failures": "descriptions that failed",
    "communities/hierarchy": "a hierarchy as arrays: node order; level, parent, range and id of communities",
    "communities/block_entities": "entities in node order, as contexts show them",
    "communities/block_relationships": "relationships in node order",
    "communities/block_covariates": "claims in node order",
    "about/failures": "why the corpus description failed",
    "reports/reports": "reports with references by string id",
    "report/failures": "communities whose report failed",
    **{
        f"{step}/{table}": description
        for step in ("entity_clusters", "attributed")
        for table, description in {
            "levels": "each level as arrays: node ids, links, clusters and centroids",
            "block_entities": "ids and chunks of entities in the order of the hierarchy",
            "block_relationships": "ids and chunks of relationships",
            "block_covariates": "ids and chunks of claims",
        }.items()
    },
    "attributed/level_reports": "reports of a level, to embed",
    "attributed/embeddings_attributed_report": "their vectors, from which the next level is clustered",
    "attributed/reports": "reports with references by string id",
    "tree/levels": "each level as arrays: node ids, clusters and cluster ids",
    "tree/units": "chunks with the label of their document",
    "tree/level_reports": "summaries of a level, to embed",
    "tree/embeddings_tree_summary": "their vectors, from which the next level is clustered",
    "tree/reports": "summaries with references by string id",
    "tree/block_text_units": "chunks in the order of their clusters",
    "summary/failures": "clusters whose summary failed",
    "search/failures": "texts without a searchable word",
    "titles/titles": "titles of documents, without their part in brackets",
    "titles/mentions": "chunks that contain a title of another document",
    "titles/failures": "documents and chunks whose titles could not be read",
}
"""Contents of `intermediate/<stage>/<table>/`. Only later runs read these tables, and their columns may
change in every version."""


def table_location(step: str, table: str) -> str:
    """Return the name of a stage's table: `<table>` if it is finished, otherwise `<stage>/<table>`."""
    is_finished = table in ("entity_instances", "relationship_instances") or (
        table.startswith("embeddings_") and step.startswith("embed")
    )
    return table if step == "finish" or is_finished else f"{step}/{table}"


RELATIONSHIP_ENDS = ("source_id", "target_id")
"""Columns to look up relationships by."""

_Groups = Mapping[tuple[str, ...], tuple[str, ...]]

_BY_NUMBER: _Groups = {("human_readable_id",): ()}
_NUMBER: _Groups = {("id",): ("human_readable_id",), **_BY_NUMBER}
_REPORTS: _Groups = {("id",): ("human_readable_id", "rank"), **_BY_NUMBER}

ROW_INDEXES: Mapping[str, _Groups] = {
    "documents": _NUMBER,
    "text_units": {("id",): ("human_readable_id", "n_tokens", "document_id"), **_BY_NUMBER},
    "entities": {("id",): ("human_readable_id", "frequency"), **_BY_NUMBER},
    "relationships": {**_NUMBER, RELATIONSHIP_ENDS: ("combined_degree", "weight")},
    "resolutions": {("id",): ("entity_id",), ("entity_id",): ()},
    "covariates": {**_NUMBER, ("subject_entity_id",): ("text_unit_ids",)},
    **{
        kind.communities_table: {
            **_NUMBER,
            **({("entity_ids",): ("level",)} if kind.member_kind == "entity" else {}),
        }
        for kind in HIERARCHIES.values()
    },
    **{kind.reports_table: _REPORTS if kind.needs_graph else _NUMBER for kind in HIERARCHIES.values()},
}
"""Row indexes of each table: lookup columns -> extra columns.

Queries look up single rows by the lookup columns. The row index also stores the extra columns (ids, numbers
or list lengths), so that rows can be chosen without reading the table. Rows with the same lookup value are
sorted by these numbers, highest first.
"""


def row_index_columns(table: str) -> dict[tuple[str, ...], tuple[list[str], list[str]]]:
    """Return the columns that the row indexes of a table store as ids and as numbers, by lookup columns."""
    columns = {}
    for group, extra in ROW_INDEXES.get(table, {}).items():
        ids = [name for name in extra if TABLES[table].field(name).type == pa.string()]
        keys = [name for name in group if name != "human_readable_id"]
        columns[group] = list(dict.fromkeys(["id", *keys, *ids])), [name for name in extra if name not in ids]
    return columns
