"""Choose the hierarchy whose levels and reports a question reads, and check what an index contains."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphrag_ray.base.declarations import HIERARCHIES, SEARCHED_KINDS, HierarchyKind
from graphrag_ray.base.errors import ReportsMissing, UsageError
from graphrag_ray.query.methods.method import Kind, Rows, SearchEnv

NO_REPORTS = (
    "This index was made with --build names: it contains names and chunks, but no communities or reports. "
    "`graphrag-ray index` without --build names adds them, and reuses the embeddings of chunks."
)


def check_graph(env: SearchEnv) -> None:
    """Raise UsageError if the index has no entities."""
    if env.settings.hierarchies:
        resolve_hierarchy(env, over="entity")


def find_hierarchy(there: Sequence[str], name: str | None = None) -> HierarchyKind:
    """Look up a hierarchy of an index by name; None selects the first. Raises ReportsMissing, UsageError."""
    if name is not None and name not in HIERARCHIES:
        raise UsageError(f"Unknown hierarchy {name!r}. Choose from: {', '.join(HIERARCHIES)}.")
    if not there:
        raise ReportsMissing(NO_REPORTS)
    known = [own for own in there if own in HIERARCHIES] or ["leiden"]
    if name is not None and name not in known:
        raise UsageError(
            f"This index has no hierarchy {name!r}; {_which(known)}. To add it, run `graphrag-ray index` "
            f"with --set hierarchies={','.join([*known, name])}."
        )
    return HIERARCHIES[name or known[0]]


def find_hierarchy_or_empty(there: Sequence[str], name: str | None = None) -> HierarchyKind:
    """Like `find_hierarchy`, but treat an index of names as one whose Leiden hierarchy is empty."""
    return HIERARCHIES["leiden"] if not there and name is None else find_hierarchy(there, name)


def resolve_hierarchy(env: SearchEnv, name: str | None = None, *, over: str = "") -> HierarchyKind:
    """Choose the hierarchy for a question: `name`, else that of the settings, else the first suitable one.

    Raises:
        ReportsMissing: The index has no hierarchies.
        UsageError: The index lacks the hierarchy, or it is not built over records of the kind `over`.
    """
    there = env.settings.hierarchies
    name = name or env.settings.query.hierarchy
    if name is None and over:
        name = next((own for own in there if HIERARCHIES[own].member_kind == over), None)
    kind = find_hierarchy(there, name)
    if over and kind.member_kind != over:
        suitable = [name for name in there if HIERARCHIES[name].member_kind == over]
        if not suitable:
            raise UsageError(
                f"This index has no graph: none of its hierarchies ({', '.join(there)}) is built over {over} "
                "records"
            )
        raise UsageError(f"Hierarchy {kind.name!r} is not built over {over} records; {_which(suitable)}")
    return kind


def reports_of(kind: HierarchyKind) -> Rows:
    """All reports, with the columns that `levels` needs and their ids."""
    return Rows(kind.reports_table, ["id", "community", "n_tokens", "hierarchy"])


def communities_of(kind: HierarchyKind) -> Rows:
    """All communities, with the columns that `levels` needs."""
    return Rows(kind.communities_table, ["community", "level", "parent", "hierarchy"])


def _which(names: Collection[str]) -> str:
    return f"it has {', '.join(names)}"


def check_embedded(env: SearchEnv, method: str, kinds: Sequence[Kind]) -> None:
    """Raise UsageError if the snapshot has records of one of these kinds but no embeddings of it."""
    missing = [
        SEARCHED_KINDS[k].table.replace("_", " ")
        for k in kinds
        if env.n_rows.get(SEARCHED_KINDS[k].table) and not env.n_rows.get(f"embeddings_{k}")
    ]
    if missing:
        raise UsageError(
            f"{method} search needs embeddings of {' and '.join(missing)}, but this snapshot has none. Run "
            "`graphrag-ray index` again with embeddings.enabled: true: it requests only the embeddings and "
            "reuses all other replies."
        )
