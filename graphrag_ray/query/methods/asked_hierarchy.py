"""The hierarchy whose levels and reports a question reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphrag_ray.base.declarations import HIERARCHIES, SEARCHED, HierarchyKind
from graphrag_ray.base.errors import NoReports, UsageError
from graphrag_ray.query.methods.method import Given, Kind, Rows

NO_REPORTS = (
    "this index was made with --build names: it holds names and chunks, and no communities or reports. "
    "`graphrag-ray index` without --build names makes them, and pays for no embedding of a chunk again"
)


def check_graph(given: Given) -> None:
    """Raises UsageError for an index without entities."""
    if given.settings.hierarchies:
        asked_hierarchy(given, over="entity")


def hierarchy_of(there: Sequence[str], name: str | None = None) -> HierarchyKind:
    """That of this name; None: the first of those that an index has. Raises NoReports where it has none,
    UsageError where it lacks this one."""
    if name is not None and name not in HIERARCHIES:
        raise UsageError(f"there is no hierarchy {name!r}; there is {', '.join(HIERARCHIES)}")
    if not there:
        raise NoReports(NO_REPORTS)
    known = [own for own in there if own in HIERARCHIES] or ["leiden"]
    if name is not None and name not in known:
        raise UsageError(
            f"this index has no hierarchy {name!r}; {_which(known)}. `graphrag-ray index` with --set "
            f"hierarchies={','.join([*known, name])} adds it"
        )
    return HIERARCHIES[name or known[0]]


def looked_at(there: Sequence[str], name: str | None = None) -> HierarchyKind:
    """The same for who looks into an index: one of names alone is shown as Leiden's without communities."""
    return HIERARCHIES["leiden"] if not there and name is None else hierarchy_of(there, name)


def asked_hierarchy(given: Given, name: str | None = None, *, over: str = "") -> HierarchyKind:
    """That of this name; None: that of the settings, else the first that is fit. over: the kind of record
    that it must be over, where the method needs one.

    Raises NoReports for an index of names alone; UsageError where the snapshot does not have it, or it is
    over records of another kind.
    """
    there = given.settings.hierarchies
    name = name or given.settings.query.hierarchy
    if name is None and over:
        name = next((own for own in there if HIERARCHIES[own].over == over), None)
    kind = hierarchy_of(there, name)
    if over and kind.over != over:
        fitting = [name for name in there if HIERARCHIES[name].over == over]
        if not fitting:
            raise UsageError(
                f"this index has no graph: its hierarchies ({', '.join(there)}) are not over {over} records"
            )
        raise UsageError(f"hierarchy {kind.name!r} is not over {over} records; {_which(fitting)}")
    return kind


def reports_of(kind: HierarchyKind) -> Rows:
    """All reports: what `levels` needs of them, and their ids."""
    return Rows(kind.reports_table, ["id", "community", "n_tokens", "hierarchy"])


def communities_of(kind: HierarchyKind) -> Rows:
    """All communities: what `levels` needs of them."""
    return Rows(kind.communities, ["community", "level", "parent", "hierarchy"])


def _which(names: Collection[str]) -> str:
    return f"it has {', '.join(names)}" if names else "it has none that could be asked"


def check_embedded(given: Given, method: str, kinds: Sequence[Kind]) -> None:
    """Raises UsageError where the snapshot has rows of a kind but no embedding of any."""
    missing = [
        SEARCHED[k].table.replace("_", " ")
        for k in kinds
        if given.n_rows.get(SEARCHED[k].table) and not given.n_rows.get(f"embeddings_{k}")
    ]
    if missing:
        raise UsageError(
            f"{method} search needs embeddings of {' and '.join(missing)}, and this snapshot has none: run "
            "`graphrag-ray index` again, with embeddings.enabled: true. Only the embeddings are asked for; "
            "nothing that was answered is paid for again"
        )
