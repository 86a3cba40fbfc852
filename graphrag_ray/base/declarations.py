"""Declarations of the stages of a run, the record kinds and the hierarchies of communities.

Everything else is derived from them: settings, journals, replay, failures, the estimate and progress from the
stages; references, short ids, embeddings, search indexes and sources from the record kinds; the need for a
graph and the place of levels and reports from the hierarchies. `indexing/index.py` binds functions to their
names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage of indexing.

    Attributes:
        name: Name of the step in manifests and progress.
        reads: Stages whose results it reads. `merge` combines the results of several stages; a later stage
            that reads only a part of one of them names that one.
        dialogue: The dialogue it runs, which names its journal, its model under `stages` and its failures; ""
            if it calls no model. Stages of different hierarchies may run the same dialogue.
        prompts: Prompts of those turns whose replies inform an estimate.
        included_prompts: Prompts that are inserted into `prompts`.
        section: Settings section whose `enabled` turns the stage on; "" if it always runs.
        writes: What its model writes, and the snapshot count of their total (or "").
        module: File in `indexing/stages/`, if it is not named after the stage.
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
    def failure_stage(self) -> str:
        """Name of the stage in failures."""
        return self.dialogue or self.name


def _embed(name: str, *reads: str) -> Stage:
    return Stage(name, reads, "embed", section="embeddings", writes=("embeddings", ""), module="embed_stage")


def _report(name: str, *reads: str, module: str = "") -> Stage:
    return Stage(name, reads, "report", ("report",), writes=("reports", "reports"), module=module)


_STAGES = (
    Stage("read"),
    Stage(
        "extract",
        reads=("read",),
        dialogue="extract",
        prompts=("extract", "glean_check", "glean"),
        included_prompts=("extract_examples",),
        writes=("extractions", "text_units"),
    ),
    Stage(
        "claims",
        reads=("read", "extract"),
        dialogue="claims",
        prompts=("claims",),
        section="claims",
        writes=("claims of chunks", "text_units"),
        module="extract_stage",
    ),
    Stage("merge", reads=("read", "extract", "claims")),
    Stage("describe", ("extract",), "describe", prompts=("describe",), writes=("descriptions", "")),
    # Only if a hierarchy is built by meaning. `embed` reuses the vectors.
    _embed("embed_entities", "describe"),
    _embed("embed_chunks", "read"),
    Stage("communities", reads=("extract", "describe")),
    _report("reports", "claims", "describe", "communities"),
    Stage("entity_clusters", reads=("extract", "describe", "embed_entities"), module="attributed_stage"),
    _report("attributed", "claims", "describe", "entity_clusters", module="attributed_stage"),
    Stage(
        "tree",
        reads=("read", "embed_chunks"),
        dialogue="summary",
        prompts=("summary",),
        writes=("summaries", "summaries"),
    ),
    _embed("embed", "read", "describe", "embed_entities", "embed_chunks", "reports", "attributed", "tree"),
    Stage("walk", reads=("read", "extract")),
    Stage("search", reads=("read", "describe", "reports", "attributed", "tree", "embed")),
    Stage(
        "finish",
        reads=(
            "read",
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
"""The dialogue that describes the corpus once, before the first report. It is not a stage, since later runs
do not repeat it. It uses the model of reports."""

CORRECTION_PROMPT = "correct"
"""Prompt of correction turns in all dialogues."""

MODEL_STAGES_OF_INDEXING = tuple(
    {stage.dialogue: stage for stage in reversed(_STAGES) if stage.dialogue}.values()
)[::-1]
"""Stages that call models: the first of each dialogue."""

JOURNALS = (*(stage.dialogue for stage in MODEL_STAGES_OF_INDEXING), ABOUT_DIALOGUE)
"""The dialogues of indexing, each with a journal."""

INDEXING_PROMPTS = (
    *(name for s in MODEL_STAGES_OF_INDEXING for name in (*s.prompts, *s.included_prompts)),
    CORRECTION_PROMPT,
)
"""Prompts that an index is built with. Changing one repeats model calls."""

MODEL_STAGES = (
    *(stage.dialogue for stage in MODEL_STAGES_OF_INDEXING),
    *("map", "reduce", "answer", "rate", "drift", "fgrag", "keywords", "steps", "condense"),  # questions
    *("questions", "judge", "answer_claims"),  # `evaluate`
)
"""The dialogues of indexing, questions and `evaluate`: the keys of `stages` in the settings."""

FAILURE_STAGES = (*dict.fromkeys(stage.failure_stage for stage in _STAGES), ABOUT_DIALOGUE)


@dataclass(frozen=True)
class RecordKind:
    """A kind of record that contexts show and references cite.

    Attributes:
        name: Name in embeddings and search.
        section: Heading in contexts, and name in references.
        singular: Singular of `section`, which references may use for one record.
        table: The table that holds the records.
        word, words: What messages call one record, and several.
        content: Columns that may differ between snapshots for the same id.
        searched: Whether its texts are embedded and indexed for vector and keyword search.
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
    RecordKind("text_unit", "Sources", "Source", "text_units", "chunk", "chunks", ("header",)),
)
# fmt: on
"""In the order in which contexts show their sections. The id of a chunk is a hash of its text."""

RECORD_KIND_BY_SECTION: Mapping[str, RecordKind] = {kind.section: kind for kind in RECORD_KINDS}

SEARCHED_KINDS: Mapping[str, RecordKind] = {kind.name: kind for kind in RECORD_KINDS if kind.searched}


@dataclass(frozen=True)
class HierarchyKind:
    """A way to divide records into communities on several levels, each with a report.

    Attributes:
        name: Name in the setting `hierarchies`, in `--hierarchy` and in the column `hierarchy`.
        member_kind: The record kind of its members.
        stages: Stages that build it, in the order of the run.
        communities_table: Its table of communities, with at least community, level, parent and hierarchy.
        report_kind: The record kind of its reports. Their table has at least id, community, n_tokens,
            hierarchy.
        needs_embeddings: Whether its members are embedded before it is built.
    """

    name: str
    member_kind: str
    stages: tuple[str, ...]
    communities_table: str
    report_kind: str
    needs_embeddings: bool = False

    @property
    def section(self) -> str:
        """Context section of its reports."""
        return SEARCHED_KINDS[self.report_kind].section

    @property
    def needs_graph(self) -> bool:
        """Whether it needs an extracted graph."""
        return self.member_kind in ("entity", "relationship")

    @property
    def reports_table(self) -> str:
        return SEARCHED_KINDS[self.report_kind].table

    @property
    def reports_count(self) -> str:
        """Name of its reports in the counts of a snapshot."""
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

REPORT_SECTIONS = tuple(SEARCHED_KINDS[name].section for name in REPORT_KINDS)

COMPARED_TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "documents": ("documents", ("content_hash",)),
    **{
        k.table: (k.words, k.content)
        for k in (*RECORD_KINDS[-1:], *RECORD_KINDS[:-1])
        if k.name not in REPORT_KINDS
    },
    # The id of a community is a hash of its content, so a changed community is a new one.
    **{kind.communities_table: (kind.communities_table.replace("_", " "), ()) for kind in _HIERARCHIES},
    **{k.table: (k.words, k.content) for k in RECORD_KINDS if k.name in REPORT_KINDS},
}
"""Tables whose changes a run reports, in this order: what messages call the rows, and the columns to
compare."""


def affected_dialogues(prompt: str) -> Collection[str]:
    """The dialogues that a changed prompt affects: its own and those of the stages downstream.

    The correction prompt affects all.
    """
    affected: set[str] = set()
    for stage in _STAGES:  # in the order of the run
        if prompt in (*stage.prompts, *stage.included_prompts, CORRECTION_PROMPT) or affected.intersection(
            stage.reads
        ):
            affected.add(stage.name)
    return {STAGES[name].dialogue for name in affected if STAGES[name].dialogue}
