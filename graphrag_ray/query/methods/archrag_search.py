"""ArchRAG (Wang et al. 2025): search every level of a hierarchy, score the points of each, and merge them.

Hierarchical search finds the k nearest records of each level. Level 0 consists of entities and the
relationships among them. For adaptive filtering, one call per level lists points that answer the question,
each with a score. One more call merges the points with a positive score, highest first, as many as fit. The
dialogues are those of global search with `map_protocol: points`. If there is no such point and
`query.general_knowledge` is on, the model answers without data.

The ablations of the paper: `query.archrag_levels` reads fewer levels, and without `query.archrag_filtering`,
one call answers from the records of all levels.
"""

from __future__ import annotations

from functools import partial

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.schema import RELATIONSHIP_ENDS
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods import zero_shot
from graphrag_ray.query.methods.budget import calls_bound, check_budget, check_context_fits, reduce_bound
from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.hierarchy_choice import check_embedded, resolve_hierarchy
from graphrag_ray.query.methods.local_search import EDGES, MAX_EDGES, relationships_in_order
from graphrag_ray.query.methods.map_reduce import ask_for_text, build_spec, mapper, reduce_spec
from graphrag_ray.query.methods.method import (
    Dialogues,
    Hit,
    Kind,
    LevelSearch,
    Method,
    Question,
    Rows,
    SearchEnv,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.partial_answers import (
    PartialAnswers,
    combined_answer,
    map_contexts,
    reduce_answers,
)
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import answer_from, result_of

NAME = "archrag"
ADVICE = "Raise the budget, or lower query.archrag_k."


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the nearest records of each level of a hierarchy over entities."""
    settings, query, text = env.settings, env.settings.query, question.text
    # Prefer the hierarchy of the settings, then one that clusters by embedding, then any over entities.
    hierarchies = settings.hierarchies
    kinds = [HIERARCHIES[name] for name in hierarchies]
    embedded = [kind.name for kind in kinds if kind.needs_embeddings and kind.needs_graph]
    kind = resolve_hierarchy(env, query.hierarchy or next(iter(embedded), None), over="entity")
    notes: list[str] = []
    if not query.hierarchy and not embedded:
        missing = next(name for name, other in HIERARCHIES.items() if other.needs_embeddings)
        notes = [
            f"Used the hierarchy {kind.name}, because this index has none that clusters by embedding. To "
            f"add one, run `graphrag-ray index` with --set hierarchies={','.join([*hierarchies, missing])}."
        ]
    check_embedded(env, NAME, [kind.report_kind, "entity"])
    spec, dialogue = mapper(settings, env.prompts, points=True)
    if query.archrag_filtering:
        check_context_fits(text, env, (spec, reduce_spec(settings, env.prompts)))
    hits_of: list[list[Hit]] = yield LevelSearch(kind.name, text, query.archrag_k, query.archrag_ef)
    entities, *above = ([hit.id for hit in hits] for hits in hits_of[: query.archrag_levels])
    # Level 0: the entities, then the relationships among them, most connected entities first.
    position = {id_: n for n, id_ in enumerate(entities)}
    edges = (
        yield Rows("relationships", EDGES, entities, by=RELATIONSHIP_ENDS, limit_per_id=MAX_EDGES)
    ).to_pylist()
    inner = [row for row in edges if row["source_id"] in position and row["target_id"] in position]
    lowest: list[tuple[Kind, str]] = [("entity", id_) for id_ in entities]
    lowest += [("relationship", row["id"]) for row in relationships_in_order(inner, position, 0)]
    levels = [(yield from load_records(lowest, env))]
    for ids in above:
        levels.append((yield from load_records(((kind.report_kind, id_) for id_ in ids), env)))
    if not query.archrag_filtering:
        shares = [Share(records, 1 / len(levels)) for records in levels]
        context = fill(shares, query.context_tokens, env.count)
        if context.left_out:
            notes.append(f"{plural(context.left_out, 'retrieved record')} did not fit into the context.")
        return (yield from answer_from(text, env, NAME, context, notes))
    contexts = [fill([Share(records)], query.context_tokens, env.count) for records in levels if records]
    n_shown_tokens = sum(context.n_tokens for context in contexts)
    bound = calls_bound(text, env, "map", spec, len(contexts), n_shown_tokens)
    check_budget(bound + reduce_bound(text, env), query, ADVICE)
    parts = PartialAnswers()
    yield from map_contexts(text, contexts, spec, dialogue, parts)
    answers_itself = settings.model(settings.model_name("reduce")).provider != "offline"
    nothing = not parts.errors and not any(a.score > 0 and a.text for a in parts.answers)
    if query.general_knowledge and nothing and answers_itself:
        without_data = build_spec("reduce", settings, env.prompts, query.max_reduce_tokens, zero_shot.PROMPT)
        ask = partial(ask_for_text, zero_shot.PROMPT, text, {}, {}, without_data)
        (outcome,) = yield Dialogues("reduce", [ask], is_answer=True, numbering={})
        parts.reduced = result_of(outcome)
        notes.append(f"No record answers the question. {zero_shot.NOTE}")
    else:
        yield from reduce_answers(text, env, parts)
    if n := sum(context.left_out for context in contexts):
        notes.append(f"{plural(n, 'retrieved record')} did not fit into the context of a level.")
    return (yield from combined_answer(text, NAME, "records", parts, notes=notes))


METHOD = MethodKind(
    search,
    stages=("embed", "map", "reduce", "answer"),
    description="the records nearest to the question on each level",
    graph=True,
    alternative="local",
    suggestions=("hybrid", "global"),
    reports=True,
)
