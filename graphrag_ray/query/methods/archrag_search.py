"""ArchRAG (Wang et al. 2025): the nearest entities and the nearest communities of every level, each level's
points weighed, and merged.

Hierarchical search: k of each level, of level 0 entities with the relationships among them. Adaptive
filtering: one call a level lists points that answer the question, each with a score; those above 0 of all
levels are merged by one more call, the highest first, as many as fit. These are the dialogues of global
search by points.
"""

from __future__ import annotations

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.schema import ENDS
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, check_embedded
from graphrag_ray.query.methods.budget import asking, check_room, reducing, refuse_beyond
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.local_search import EDGES, MOST_EDGES, relationships_in_order
from graphrag_ray.query.methods.map_parts import Mapped, answered, map_contexts, merged
from graphrag_ray.query.methods.map_reduce import mapper, reduce_spec
from graphrag_ray.query.methods.method import Given, Hit, Kind, LevelSearch, Method, Question, Rows
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.record_rows import loaded

NAME = "archrag"
ADVICE = "Raise the budget, or lower query.archrag_k."


def search(question: Question, given: Given) -> Method:
    """Answer from what is nearest on each level of a hierarchy over entities. Raises UsageError for an index
    without a graph, or without embeddings of entities or reports, and for a question that leaves no room for
    data; BudgetSpent."""
    settings, query, text = given.settings, given.settings.query, question.text
    # The hierarchy of the settings, else the one by meaning; of an index that has none, another one.
    there = settings.hierarchies
    by_meaning = [own for own in there if HIERARCHIES[own].by_meaning and HIERARCHIES[own].of_graph]
    kind = asked_hierarchy(given, query.hierarchy or next(iter(by_meaning), None), over="entity")
    notes: list[str] = []
    if not query.hierarchy and not by_meaning:
        missing = next(own for own, other in HIERARCHIES.items() if other.by_meaning)
        notes = [
            f"Read by hierarchy {kind.name}, since this index has none by meaning: `graphrag-ray index` with "
            f"--set hierarchies={','.join([*there, missing])} adds it."
        ]
    check_embedded(given, NAME, [kind.reports, "entity"])
    spec, ask = mapper(settings, given.prompts, points=True)
    check_room(text, given, (spec, reduce_spec(settings, given.prompts)))
    found: list[list[Hit]] = yield LevelSearch(kind.name, text, query.archrag_k)
    entities, *above = ([hit.id for hit in hits] for hits in found)
    # The entities, then relationships that have both ends among them, those of the best connected first.
    place = {id_: n for n, id_ in enumerate(entities)}
    edges = (yield Rows("relationships", EDGES, entities, by=ENDS, most=MOST_EDGES)).to_pylist()
    inner = [row for row in edges if row["source_id"] in place and row["target_id"] in place]
    lowest: list[tuple[Kind, str]] = [("entity", id_) for id_ in entities]
    lowest += [("relationship", row["id"]) for row in relationships_in_order(inner, place, 0)]
    of_level = [(yield from loaded(lowest, given))]
    for ids in above:
        of_level.append((yield from loaded(((kind.reports, id_) for id_ in ids), given)))
    contexts = [fill([Share(records)], query.context_tokens, given.count) for records in of_level if records]
    shown = sum(context.n_tokens for context in contexts)
    most = asking(text, given, "map", spec, len(contexts), shown)
    refuse_beyond(most + reducing(text, given), query, ADVICE)
    said = Mapped()
    yield from map_contexts(text, contexts, spec, ask, said)
    what = yield from merged(text, given, said)
    if n := sum(context.left_out for context in contexts):
        notes.append(f"{plural(n, 'record')} of those found did not fit into the context of a level.")
    return (yield from answered(text, NAME, "records", what, notes=notes))


METHOD = MethodKind(
    search,
    asks=("embed", "map", "reduce"),
    reads="what is nearest on each level",
    graph=True,
    instead="local",
    others=("hybrid", "global"),
    reports=True,
)
