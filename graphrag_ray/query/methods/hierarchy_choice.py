"""Choose the hierarchy that a question reads, and check that an index contains the required records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphrag_ray.base.declarations import HIERARCHIES, SEARCHABLE_KINDS, HierarchyKind
from graphrag_ray.base.errors import ReportsMissing, UsageError
from graphrag_ray.query.methods.method import Kind, Rows, SearchEnv

NO_REPORTS = (
    "This index was made with --build names: it contains names and chunks, but no community reports. "
    "To add them, run `graphrag-ray index` without --build names; the embeddings of chunks are reused."
)


def check_graph(env: SearchEnv) -> None:
    """Raise UsageError if the index has no entities."""
    if env.settings.hierarchies:
        resolve_hierarchy(env, over="entity")


def find_hierarchy(names: Sequence[str], name: str | None = None) -> HierarchyKind:
    """Look up a hierarchy by name. None selects the first. Raises ReportsMissing, UsageError."""
    if name is not None and name not in HIERARCHIES:
        raise UsageError(f"Unknown hierarchy {name!r}. Choose from: {', '.join(HIERARCHIES)}.")
    if not names:
        raise ReportsMissing(NO_REPORTS)
    known = [other for other in names if other in HIERARCHIES] or ["leiden"]
    if name is not None and name not in known:
        raise UsageError(
            f"This index has no hierarchy {name!r}; {_it_has(known)}. To add it, run `graphrag-ray index` "
            f"with --set hierarchies={','.join([*known, name])}."
        )
    return HIERARCHIES[name or known[0]]


def find_hierarchy_or_empty(names: Sequence[str], name: str | None = None) -> HierarchyKind:
    """Like `find_hierarchy`, but an index made with --build names has a Leiden hierarchy without reports."""
    return HIERARCHIES["leiden"] if not names and name is None else find_hierarchy(names, name)


def resolve_hierarchy(env: SearchEnv, name: str | None = None, *, over: str = "") -> HierarchyKind:
    """Choose the hierarchy for a question: `name`, `query.hierarchy` or the first suitable one.

    Raises:
        ReportsMissing: The index has no hierarchies.
        UsageError: The index lacks the hierarchy, or it is not built over records of the kind `over`.
    """
    names = env.settings.hierarchies
    name = name or env.settings.query.hierarchy
    if name is None and over:
        name = next((other for other in names if HIERARCHIES[other].member_kind == over), None)
    kind = find_hierarchy(names, name)
    if over and kind.member_kind != over:
        suitable = [other for other in names if HIERARCHIES[other].member_kind == over]
        if not suitable:
            raise UsageError(
                f"This index has no graph: none of its hierarchies ({', '.join(names)}) is built over {over} "
                "records"
            )
        raise UsageError(f"Hierarchy {kind.name!r} is not built over {over} records; {_it_has(suitable)}")
    return kind


def reports_of(kind: HierarchyKind) -> Rows:
    """Request all reports, with their ids and the columns that `levels` needs."""
    return Rows(kind.reports_table, ["id", "community", "n_tokens", "hierarchy"])


def communities_of(kind: HierarchyKind) -> Rows:
    """Request all communities, with the columns that `levels` needs."""
    return Rows(kind.communities_table, ["community", "level", "parent", "hierarchy"])


def _it_has(names: Collection[str]) -> str:
    return f"it has {', '.join(names)}"


def check_embedded(env: SearchEnv, method: str, kinds: Sequence[Kind]) -> None:
    """Raise UsageError if the snapshot has records of one of these kinds without embeddings."""
    missing = [
        SEARCHABLE_KINDS[k].table.replace("_", " ")
        for k in kinds
        if env.n_rows.get(SEARCHABLE_KINDS[k].table) and not env.n_rows.get(f"embeddings_{k}")
    ]
    if missing:
        raise UsageError(
            f"{method} search needs embeddings of {' and '.join(missing)}, but this snapshot has none. Run "
            "`graphrag-ray index` again with embeddings.enabled: true. It requests only the embeddings and "
            "reuses all other replies."
        )
