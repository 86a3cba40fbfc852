"""The stages of an index run, the record kinds and the community hierarchies.

A stage is a step of an index run; a dialogue is the conversation with a model that it runs for each item.
Settings, journals, failures, estimates and progress are derived from the stages. References, embeddings,
search indexes and sources are derived from the record kinds. `indexing/index.py` maps each stage to its
function.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A step of an index run.

    Attributes:
        name: Name in manifests and progress.
        reads: Stages whose results this stage reads. A stage that needs only one input of `merge` names that
            input instead of `merge`.
        dialogue: The dialogue that it runs, or "" if it calls no model. Its journal, its model under `stages`
            and its failures have this name. Stages of different hierarchies may run the same dialogue.
        prompts: Prompts that the dialogue sends, apart from CORRECTION_PROMPT.
        included_prompts: Prompts that are inserted into `prompts`.
        section: Settings section whose `enabled` turns the stage on, or "" if no setting does.
        writes: What messages call its output, and the snapshot count that holds its total (or "").
        module: Module in `indexing/stages/`, if its name is not `NAME_stage`.
    """

    name: str
    reads: tuple[str, ...] = ()
    dialogue: str = ""
    prompts: tuple[str, ...] = ()
    included_prompts: tuple[str, ...] = ()
    section: str = ""
    writes: tuple[str, str] = ("", "")
    module: str = ""

    @property
    def failure_name(self) -> str:
        return self.dialogue or self.name


def _embed(name: str, *reads: str) -> Stage:
    return Stage(name, reads, "embed", section="embeddings", writes=("embeddings", ""), module="embed_stage")


def _report(name: str, *reads: str, module: str = "") -> Stage:
    return Stage(name, reads, "report", ("report",), writes=("reports", "reports"), module=module)


_STAGES = (
    Stage("read"),
    Stage("repeats", reads=("read",)),
    Stage("context", ("read",), "context", ("document_context",), writes=("notes on documents", "documents")),
    Stage(
        "extract",
        reads=("read", "repeats", "context"),
        dialogue="extract",
        prompts=(
            *("extract", "glean_check", "glean", "glean_missing"),
            *("extract_schema", "glean_schema", "correct_schema"),
        ),
        included_prompts=("extract_examples",),
        writes=("extractions", "text_units"),
    ),
    Stage(
        "claims",
        reads=("read", "repeats", "context", "extract"),
        dialogue="claims",
        prompts=("claims",),
        section="claims",
        writes=("claims of chunks", "text_units"),
        module="extract_stage",
    ),
    Stage(
        "resolve",
        reads=("read", "extract", "claims"),
        dialogue="resolve",
        prompts=("resolve", "resolve_split"),
        section="resolution",
        writes=("verdicts on names", ""),
    ),
    Stage("merge", reads=("read", "resolve")),
    Stage("describe", ("resolve",), "describe", prompts=("describe",), writes=("descriptions", "")),
    # These two run only if a hierarchy clusters by embedding. `embed` reuses their vectors.
    _embed("embed_entities", "describe"),
    _embed("embed_chunks", "read"),
    Stage("communities", reads=("resolve", "describe")),
    _report("reports", "resolve", "describe", "communities"),
    Stage("entity_clusters", reads=("resolve", "describe", "embed_entities"), module="attributed_stage"),
    _report("attributed", "resolve", "describe", "entity_clusters", module="attributed_stage"),
    Stage(
        "tree",
        reads=("read", "embed_chunks"),
        dialogue="summary",
        prompts=("summary",),
        writes=("summaries", "summaries"),
    ),
    _embed("embed", "read", "describe", "embed_entities", "embed_chunks", "reports", "attributed", "tree"),
    Stage("titles", reads=("read",)),
    Stage("walk", reads=("read", "resolve", "titles")),
    Stage("search", reads=("read", "describe", "reports", "attributed", "tree", "embed")),
    Stage(
        "finish",
        reads=(
            "read",
            "resolve",
            "merge",
            "describe",
            "communities",
            "reports",
            "attributed",
            "tree",
            "embed",
            "walk",
            "search",
        ),
    ),
)

STAGES: Mapping[str, Stage] = {stage.name: stage for stage in _STAGES}

ABOUT_DIALOGUE = "about"
"""The dialogue that describes the corpus before the first report. It is not a stage because it runs only once
per index. It uses the report model."""

CORRECTION_PROMPT = "correct"
"""The prompt that asks for a corrected reply, in every dialogue."""

DIALOGUE_STAGES = tuple({stage.dialogue: stage for stage in reversed(_STAGES) if stage.dialogue}.values())[
    ::-1
]
"""The first stage of each dialogue."""

JOURNALS = (*(stage.dialogue for stage in DIALOGUE_STAGES), ABOUT_DIALOGUE)
"""The dialogues of an index run. Each has a journal."""

INDEXING_PROMPTS = (
    *(name for s in DIALOGUE_STAGES for name in (*s.prompts, *s.included_prompts)),
    CORRECTION_PROMPT,
)
"""Prompts that snapshots store. Changing one repeats model calls."""

STAGE_SETTING_KEYS = (
    *(stage.dialogue for stage in DIALOGUE_STAGES),
    *("map", "reduce", "answer", "rate", "drift", "fgrag", "keywords", "steps", "condense"),  # query
    *("questions", "judge", "answer_claims"),  # evaluate
    "tune",
)
"""Keys of `stages` in the settings."""

FAILURE_NAMES = (*dict.fromkeys(stage.failure_name for stage in _STAGES), ABOUT_DIALOGUE)


@dataclass(frozen=True)
class RecordKind:
    """A kind of record that contexts show and references cite.

    Attributes:
        name: Name in embeddings and search.
        section: Heading in contexts and name in references.
        singular: Singular of `section`. References may use it for one record.
        table: The table that contains the records.
        word: What messages call one record.
        words: The plural of `word`.
        content: Columns to compare if two snapshots have a record with the same id.
        searched: Whether its texts are indexed for vector and keyword search.
    """

    name: str
    section: str
    singular: str
    table: str
    word: str
    words: str
    content: tuple[str, ...]
    searched: bool = True


_REPORT = ("title", "full_content", "rank")
_ENTITY = ("type", "description", "frequency")
_CLAIM = ("status", "start_date", "end_date", "source_text")
_RELATIONSHIP = ("description", "weight")
# fmt: off
RECORD_KINDS = (
    RecordKind("community_report", "Reports", "Report", "community_reports", "report", "reports", _REPORT),
    RecordKind("entity", "Entities", "Entity", "entities", "entity", "entities", _ENTITY),
    RecordKind("relationship", "Relationships", "Relationship", "relationships", "relationship",
               "relationships", _RELATIONSHIP),
    RecordKind("claim", "Claims", "Claim", "covariates", "claim", "claims", _CLAIM, searched=False),
    RecordKind("attributed_report", "Themes", "Theme", "attributed_reports", "theme", "themes", _REPORT),
    RecordKind("tree_summary", "Summaries", "Summary", "tree_summaries", "summary", "summaries",
               ("title", "full_content")),
    RecordKind("text_unit", "Sources", "Source", "text_units", "chunk", "chunks",
               ("header",)),  # The id of a chunk already covers its text.
)
# fmt: on
"""Record kinds, in the order of their sections in contexts."""

RECORD_KIND_BY_SECTION: Mapping[str, RecordKind] = {kind.section: kind for kind in RECORD_KINDS}

SEARCHABLE_KINDS: Mapping[str, RecordKind] = {kind.name: kind for kind in RECORD_KINDS if kind.searched}


@dataclass(frozen=True)
class HierarchyKind:
    """A way to divide records into communities on several levels. Each community has a report.

    Attributes:
        name: Name in the setting `hierarchies`, in `--hierarchy` and in the column `hierarchy`.
        member_kind: The record kind of its members.
        stages: Stages that build it, in the order of the run.
        communities_table: The table of its communities, with at least community, level, parent and hierarchy.
        report_kind: The record kind of its reports. Their table has at least id, community, n_tokens and
            hierarchy.
        needs_embeddings: Whether its members must be embedded first.
    """

    name: str
    member_kind: str
    stages: tuple[str, ...]
    communities_table: str
    report_kind: str
    needs_embeddings: bool = False

    @property
    def section(self) -> str:
        return SEARCHABLE_KINDS[self.report_kind].section

    @property
    def needs_graph(self) -> bool:
        """Whether it needs an extracted graph."""
        return self.member_kind in ("entity", "relationship")

    @property
    def reports_table(self) -> str:
        return SEARCHABLE_KINDS[self.report_kind].table

    @property
    def report_count_key(self) -> str:
        """The key of its report count in the counts of a snapshot."""
        return STAGES[self.stages[-1]].writes[1]


_HIERARCHIES = (
    HierarchyKind("leiden", "entity", ("communities", "reports"), "communities", "community_report"),
    HierarchyKind(
        name="attributed",
        member_kind="entity",
        stages=("entity_clusters", "attributed"),
        communities_table="attributed_communities",
        report_kind="attributed_report",
        needs_embeddings=True,
    ),
    HierarchyKind("tree", "text_unit", ("tree",), "tree_clusters", "tree_summary", needs_embeddings=True),
)

HIERARCHIES: Mapping[str, HierarchyKind] = {kind.name: kind for kind in _HIERARCHIES}

REPORT_KINDS = tuple(kind.report_kind for kind in _HIERARCHIES)
"""Record kinds that are reports. Their tables also have title, full_content, rank and references."""

REPORT_SECTIONS = tuple(SEARCHABLE_KINDS[name].section for name in REPORT_KINDS)

CHANGE_TRACKED_TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "documents": ("documents", ("content_hash",)),
    **{
        k.table: (k.words, k.content)
        for k in (*RECORD_KINDS[-1:], *RECORD_KINDS[:-1])  # Chunks come first: the others derive from them.
        if k.name not in REPORT_KINDS
    },
    # The id of a community is a hash of its members, so a changed community is a new one.
    **{kind.communities_table: (kind.communities_table.replace("_", " "), ()) for kind in _HIERARCHIES},
    **{k.table: (k.words, k.content) for k in RECORD_KINDS if k.name in REPORT_KINDS},
}
"""The tables whose changes a run reports, in this order. Each has a noun for its rows and the columns to
compare."""


def affected_dialogues(prompt: str) -> Collection[str]:
    """Return the dialogues that a changed prompt affects: its own and those of downstream stages.

    The correction prompt affects all dialogues.
    """
    affected: set[str] = set()
    for stage in _STAGES:  # in the order of the run
        if prompt in (*stage.prompts, *stage.included_prompts, CORRECTION_PROMPT) or affected.intersection(
            stage.reads
        ):
            affected.add(stage.name)
    return {STAGES[name].dialogue for name in affected if STAGES[name].dialogue}
