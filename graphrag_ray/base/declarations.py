"""What an index is made of, declared once: the stages of a run, in its order, the kinds of record, and the
hierarchies of communities.

Settings, journals, replay, retries, failures, the estimate, the cost of new prompts, and what people see of
a run are derived from the stages; functions are bound to the names in `indexing/index.py`, as are those of
hierarchies. References, short ids, embeddings, indexes for search and sources are derived from the kinds of
record; whether a run extracts a graph, and where a question finds levels and reports, from the hierarchies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage of indexing.

    name      of the step in manifests and progress
    reads     the stages whose results it reads. `merge` joins several results into one; a later stage that
              reads the part of one of them names that one
    dialogue  the dialogue that it runs: the name of its journal, of its model under `stages`, and of its
              failures; "" where no model is asked. Stages of several hierarchies may run the same one
    prompts   the prompts of the dialogue's turns whose replies teach an estimate something
    parts     prompts that are written into these
    section   the section of the settings whose `enabled` turns it on; "": it is always on
    writes    what its model writes, in words, and the count of a snapshot that tells how many there are of
              these in all, or ""
    module    its file in `indexing/stages/`; "": that of its name
    """

    name: str
    reads: tuple[str, ...] = ()
    dialogue: str = ""
    prompts: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    section: str = ""
    writes: tuple[str, str] = ("", "")
    module: str = ""

    @property
    def called(self) -> str:
        """In failures."""
        return self.dialogue or self.name


_STAGES = (
    Stage("read"),
    Stage(
        "extract",
        reads=("read",),
        dialogue="extract",
        prompts=("extract", "glean_check", "glean"),
        parts=("extract_examples",),
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
    Stage(
        "describe",
        reads=("extract",),
        dialogue="describe",
        prompts=("describe",),
        writes=("descriptions", ""),
    ),
    # Where a hierarchy is made by meaning; `embed` takes the vectors over.
    Stage(
        "embed_entities",
        reads=("describe",),
        dialogue="embed",
        section="embeddings",
        writes=("embeddings", ""),
        module="embed_stage",
    ),
    Stage(
        "embed_chunks",
        reads=("read",),
        dialogue="embed",
        section="embeddings",
        writes=("embeddings", ""),
        module="embed_stage",
    ),
    Stage("communities", reads=("extract", "describe")),
    Stage(
        "reports",
        reads=("claims", "describe", "communities"),
        dialogue="report",
        prompts=("report",),
        writes=("reports", "reports"),
    ),
    Stage("entity_clusters", reads=("extract", "describe", "embed_entities"), module="attributed_stage"),
    Stage(
        "attributed",
        reads=("claims", "describe", "entity_clusters"),
        dialogue="report",
        prompts=("report",),
        writes=("reports", "reports"),
        module="attributed_stage",
    ),
    Stage(
        "tree",
        reads=("read", "embed_chunks"),
        dialogue="summary",
        prompts=("summary",),
        writes=("summaries", "summaries"),
    ),
    Stage(
        "embed",
        reads=("read", "describe", "embed_entities", "embed_chunks", "reports", "attributed", "tree"),
        dialogue="embed",
        section="embeddings",
        writes=("embeddings", ""),
    ),
    # Which chunks hold which names, for walks.
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

ABOUT = "about"
"""The dialogue that tells once what the corpus is about, before the first report. It is no stage, since
later runs do not have it; its model is that of reports."""

CORRECT = "correct"
"""The prompt of the turn that asks for a correction, in all dialogues."""

ASKING_STAGES = tuple({stage.dialogue: stage for stage in reversed(_STAGES) if stage.dialogue}.values())[::-1]
"""Those that ask models: of each dialogue the first."""

JOURNALS = (*(stage.dialogue for stage in ASKING_STAGES), ABOUT)
"""The dialogues of indexing."""

INDEXING_PROMPTS = (*(name for s in ASKING_STAGES for name in (*s.prompts, *s.parts)), CORRECT)
"""Prompts that an index is made with: changed, its models are asked again."""

QUESTION_DIALOGUES = ("map", "reduce", "answer", "rate", "drift", "fgrag", "keywords", "steps", "condense")
"""The dialogues of questions, each with a model of its own under `stages`."""

EVALUATION_DIALOGUES = ("questions", "judge", "answer_claims")
"""The dialogues of `evaluate`: questions on a corpus, comparing answers, listing their claims."""

MODEL_STAGES = (*(stage.dialogue for stage in ASKING_STAGES), *QUESTION_DIALOGUES, *EVALUATION_DIALOGUES)
"""The keys of `stages` in the settings."""

FAILING = (*dict.fromkeys(stage.called for stage in _STAGES), ABOUT)
"""The stages of failures."""


@dataclass(frozen=True)
class RecordKind:
    """A kind of record that contexts show and references name.

    name       in embeddings and in search
    section    its heading in contexts, and its name in references
    singular   of the section: what a reference may call one record
    table      whose rows these are
    word, words  what people call one, and several
    content    columns in which a row with the same id may differ from one snapshot to the next
    searched   whether its texts are embedded, and found by vector and by keyword
    """

    name: str
    section: str
    singular: str
    table: str
    word: str
    words: str
    content: tuple[str, ...]
    searched: bool = True


RECORD_KINDS = (
    RecordKind(
        "community_report",
        "Reports",
        "Report",
        "community_reports",
        "report",
        "reports",
        content=("title", "full_content", "rank"),
    ),
    RecordKind(
        "entity",
        "Entities",
        "Entity",
        "entities",
        "entity",
        "entities",
        content=("type", "description", "frequency"),
    ),
    RecordKind(
        "relationship",
        "Relationships",
        "Relationship",
        "relationships",
        "relationship",
        "relationships",
        content=("description", "weight"),
    ),
    RecordKind(
        "claim",
        "Claims",
        "Claim",
        "covariates",
        "claim",
        "claims",
        content=("status", "start_date", "end_date", "source_text"),
        searched=False,
    ),
    RecordKind(
        "attributed_report",
        "Themes",
        "Theme",
        "attributed_reports",
        "theme",
        "themes",
        content=("title", "full_content", "rank"),
    ),
    RecordKind(
        "tree_summary",
        "Summaries",
        "Summary",
        "tree_summaries",
        "summary",
        "summaries",
        content=("title", "full_content"),
    ),
    # The id of a chunk is a hash of its text.
    RecordKind("text_unit", "Sources", "Source", "text_units", "chunk", "chunks", content=("header",)),
)
"""In the order in which sections are shown."""

OF_SECTION: Mapping[str, RecordKind] = {kind.section: kind for kind in RECORD_KINDS}

SEARCHED: Mapping[str, RecordKind] = {kind.name: kind for kind in RECORD_KINDS if kind.searched}


@dataclass(frozen=True)
class HierarchyKind:
    """A way to divide records into communities at levels, each with a report.

    name         in `hierarchies` of the settings, in `--hierarchy`, and in the tables' column `hierarchy`
    over         the kind of record that its communities hold
    stages       those that make it, in the order of the run
    communities  its table of communities: at least community, level, parent, hierarchy
    by_meaning   what it is over is embedded before it is built
    reports      the kind of record that its reports are; their table has at least id, community, n_tokens,
                 hierarchy
    """

    name: str
    over: str
    stages: tuple[str, ...]
    communities: str
    reports: str
    by_meaning: bool = False

    @property
    def section(self) -> str:
        """In which contexts show its reports."""
        return SEARCHED[self.reports].section

    @property
    def of_graph(self) -> bool:
        """Whether a graph must be extracted for it."""
        return self.over in ("entity", "relationship")

    @property
    def reports_table(self) -> str:
        return SEARCHED[self.reports].table

    @property
    def counted(self) -> str:
        """What the counts of a snapshot call its reports."""
        return STAGES[self.stages[-1]].writes[1]


_HIERARCHIES = (
    HierarchyKind("leiden", "entity", ("communities", "reports"), "communities", "community_report"),
    HierarchyKind(
        "attributed",
        "entity",
        ("entity_clusters", "attributed"),
        "attributed_communities",
        "attributed_report",
        by_meaning=True,
    ),
    HierarchyKind(
        "tree",
        "text_unit",
        ("tree",),
        "tree_clusters",
        "tree_summary",
        by_meaning=True,
    ),
)

HIERARCHIES: Mapping[str, HierarchyKind] = {kind.name: kind for kind in _HIERARCHIES}

REPORTS = tuple(kind.reports for kind in _HIERARCHIES)
"""The kinds of record that are reports: their tables have title, full_content, rank and references, too."""

REPORT_SECTIONS = tuple(SEARCHED[name].section for name in REPORTS)

_CHUNKS_FIRST = sorted(RECORD_KINDS, key=lambda kind: kind.table != "text_units")

COMPARED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "documents": ("documents", ("content_hash",)),
    **{k.table: (k.words, k.content) for k in _CHUNKS_FIRST if k.name not in REPORTS},
    # The id of a community is a hash of all that it is: another one is a new one.
    **{kind.communities: (kind.communities.replace("_", " "), ()) for kind in _HIERARCHIES},
    **{k.table: (k.words, k.content) for k in RECORD_KINDS if k.name in REPORTS},
}
"""Tables of which people are told what a run changed, in this order: what they call the rows, and the columns
that are compared."""


def concerned(prompt: str) -> Collection[str]:
    """The dialogues that a changed prompt concerns: its own and those of the stages that read what comes of
    it. One of corrections concerns all."""
    found: set[str] = set()
    for stage in _STAGES:  # in the order of the run
        if prompt in (*stage.prompts, *stage.parts, CORRECT) or found.intersection(stage.reads):
            found.add(stage.name)
    return {STAGES[name].dialogue for name in found if STAGES[name].dialogue}
