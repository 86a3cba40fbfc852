"""Vector and hybrid search: one context of the nearest records, and one call."""

from __future__ import annotations

import math
import random
from itertools import permutations
from typing import Any

import pytest
from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import Reference, parse_sections
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import entity_id, report_id
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.query.methods import hybrid_search, vector_search
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Dialogues, Question, Rows, Search
from graphrag_ray.query.methods.nearest import RecordId, fuse, fuse_ranks, nearest_context
from graphrag_ray.query.methods.single_context import PHASE


def chunk(n: int, text: str, *entities: str) -> dict[str, Any]:
    return {
        "id": f"t{n}",
        "human_readable_id": n,
        "text": text,
        "entity_ids": [entity_id(e) for e in entities],
    }


def corpus(n: int = 40, words: int = 20) -> dict[str, list[dict[str, Any]]]:
    return {
        "text_units": [
            chunk(i, f"ALICE wrote letter {i}. " + "So it went on. " * words, "ALICE") for i in range(n)
        ],
        "documents": [{"id": f"d{i}", "path": f"{i}.txt", "text_unit_ids": [f"t{i}"]} for i in range(n)],
    }


def by_number(search: Search) -> list[str]:
    """Find chunks in order by vector, and in reverse order by keywords."""
    ids = [f"t{i}" for i in range(1000)]
    return ids if search.by == "vector" else ids[::-1]


def ask(snap: Snapshot, way: Any, question: str, *where: str, **query: Any) -> Answer:
    return snap.run(way.search(Question(question, where=where), snap.given(**query)))


def searches(snap: Snapshot) -> list[Search]:
    return [n for n in snap.needs if isinstance(n, Search)]


def test_nearest_chunks_fill_context_in_order():
    snap = Snapshot(corpus(), by_number)
    answer = ask(snap, vector_search, "What did ALICE do?", context_tokens=1000)
    (used,) = answer.contexts
    n = len(used.records)
    assert used.records == tuple(Reference("Sources", f"t{i}") for i in range(n)) and 5 < n < 20
    assert 850 < used.n_tokens <= 1000 and used.left_out == 0 and used.phase == PHASE
    assert answer.found and answer.references == used.records[:3] and "[Data: Sources (1)]" in answer.text


@pytest.mark.parametrize("ratio", [0.2, 1, 4])
def test_context_is_filled_with_any_indexing_vocabulary(ratio: float):
    """`ratio` is the number of indexing tokens per answering token."""
    tables = corpus()
    for row in tables["text_units"]:
        row["n_tokens"] = round(ratio * COUNT(row["text"]))
    (used,) = ask(
        Snapshot(tables, by_number), vector_search, "What did ALICE do?", context_tokens=1000
    ).contexts
    assert 850 < used.n_tokens <= 1000


def test_reads_are_limited_to_chunks_that_may_fit():
    tables = corpus(200)
    for row in tables["text_units"]:
        row["n_tokens"] = COUNT(row["text"])
    snap = Snapshot(tables, by_number)
    (used,) = ask(snap, vector_search, "What did ALICE do?", context_tokens=1000).contexts
    read = {id_ for n in snap.needs if isinstance(n, Rows) and "text" in n.columns for id_ in n.ids or ()}
    assert len(used.records) < len(read) < 2 * len(used.records)


@pytest.mark.parametrize("reference", ["[Data: Sources 1, 2]", "[Sources: 1]", "(Data: Sources (2))"])
def test_unusual_citation_format_counts_as_found(reference):
    snap = Snapshot(corpus(), by_number, lambda request: ChatReply(f"ALICE wrote {reference}."))
    answer = ask(snap, vector_search, "What did ALICE do?")
    assert answer.found and answer.references and answer.dropped_references == 0
    assert "[Data: Sources (" in answer.text


def test_one_call_gives_the_answer():
    snap = Snapshot(corpus(), by_number)
    ask(snap, vector_search, "What did ALICE do?")
    (asked,) = [n for n in snap.needs if isinstance(n, Dialogues)]
    assert asked.is_answer and len(asked.factories) == 1


def test_search_widens_until_context_is_full():
    snap = Snapshot(corpus(n=300, words=3), by_number)
    answer = ask(snap, vector_search, "What did ALICE do?", context_tokens=2000)
    assert answer.contexts[0].n_tokens > 1950
    assert [s.k for s in searches(snap)] == [32, 128]


def test_small_corpus_is_read_completely():
    snap = Snapshot(corpus(n=3), lambda search: ["t2", "t0", "t1"])
    answer = ask(snap, vector_search, "What did ALICE do?")
    assert [r.id for r in answer.contexts[0].records] == ["t2", "t0", "t1"] and len(searches(snap)) == 1


def test_large_chunk_is_truncated_with_a_note():
    snap = Snapshot({"text_units": [chunk(0, "ALICE went on. " * 5000)]}, by_number)
    answer = ask(snap, vector_search, "What did ALICE do?", context_tokens=500)
    assert answer.contexts[0].cut == 1 and 480 < answer.contexts[0].n_tokens <= 500
    assert answer.notes == ("1 record was longer than its part of the context and was truncated.",)


def test_conditions_restrict_search():
    snap = Snapshot(corpus(), by_number)
    answer = ask(snap, vector_search, "What did ALICE do?", "path~1?.txt")
    assert {r.id for r in answer.contexts[0].records} == {f"t{i}" for i in range(10, 20)}
    assert searches(snap)[0].only_ids == sorted(f"t{i}" for i in range(10, 20))


@pytest.mark.parametrize("way", [vector_search, hybrid_search])
def test_missing_embeddings_are_reported_with_advice(way: Any):
    snap = Snapshot(corpus())
    given_ = snap.given()
    object.__setattr__(given_, "n_rows", {"text_units": 40})
    with pytest.raises(UsageError, match=r"needs embeddings of text units, .*embeddings\.enabled: true"):
        snap.run(way.search(Question("What?"), given_))


@pytest.mark.parametrize("way", [vector_search, hybrid_search])
def test_empty_index_makes_no_call(way: Any):
    snap = Snapshot({})
    answer = ask(snap, way, "What?")
    assert not answer.found and not any(isinstance(n, Dialogues) for n in snap.needs)


def of(**scores: float) -> dict[RecordId, float]:
    return {("text_unit", name): score for name, score in scores.items()}


def names(order: list[RecordId]) -> str:
    return "".join(name for _, name in order)


def test_lists_are_fused_by_scaled_scores():
    words, near = of(a=30.0, b=20.0, c=10.0), of(d=0.9, a=0.8, c=0.4)
    assert names(fuse([words, near], [0.5, 0.5])) == "adbc", "a 1 + .8, d 1, b .5, c 0"
    assert names(fuse([words, near], [0.1, 0.9])) == "dabc"
    assert names(fuse([words, near], [1.0, 0.0])) == "abcd"


def test_without_weights_the_list_whose_best_records_stand_out_counts_more():
    flat, steep = of(a=9.0, b=8.9, c=8.8, d=1.0), of(e=0.9, f=0.3, g=0.2, h=0.1)
    assert names(fuse([flat, steep]))[0] == "e" and names(fuse([steep, flat]))[0] == "e"
    near = of(a=0.5, b=0.49, c=0.48, d=0.4)
    words = of(e=20.0, f=14.0, g=12.0, h=10.0)
    assert names(fuse([near, words]))[0] == "e"
    assert names(fuse([near | of(a=0.9), words]))[0] == "a", "embeddings that separate gain weight"
    assert names(fuse([of(a=0.9, b=0.2, c=0.1), of(d=7.0)]))[0] == "d", "the only chunk with the words"


def test_constant_or_empty_lists_are_fused():
    assert names(fuse([of(a=2.0, b=2.0), of(b=0.1)])) == "ba" and names(fuse([{}, of(d=1.0)])) == "d"
    assert names(fuse([of(a=2.0, b=2.0), of(b=0.1)], [0.5, 0.5])) == "ba"
    assert fuse([], []) == [] and names(fuse([{}, of(d=1.0)], [0.5, 0.5])) == "d"


def test_agreement_of_lists_ranks_first():
    agreed = fuse([of(a=9.0, b=8.0, e=7.0, x=1.0), of(c=9.0, d=8.0, e=7.0, y=1.0)], [0.5, 0.5])
    assert names(agreed)[0] == "e"


SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-1, 60), max_size=8)


@given(st.lists(st.tuples(SCORES, st.floats(0.1, 1)), max_size=4))
def test_fusion_preserves_common_order(
    lists: list[tuple[dict[str, float], float]],
):
    scored = [of(**dict(sorted(scores.items(), key=lambda pair: -pair[1]))) for scores, _ in lists]
    weights = [weight for _, weight in lists]
    for fused in (fuse(scored, weights), fuse(scored), fuse_ranks(scored, weights), fuse_ranks(scored)):
        order = names(fused)
        assert sorted(order) == sorted({x for scores, _ in lists for x in scores})
        for x, y in permutations(order, 2):
            if all(y not in scores or scores.get(x, -math.inf) > scores[y] + 1e-6 for scores, _ in lists):
                assert order.index(x) < order.index(y)


WHOLE_SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-50, 50), max_size=8)


@given(st.lists(WHOLE_SCORES, max_size=3), st.integers(1, 16), st.integers(-64, 64))
def test_fusion_without_weights_ignores_the_units_of_scores(lists, factor: int, offset: int):
    changed = [{key: factor * score + offset for key, score in scores.items()} for scores in lists]
    assert fuse(changed) == fuse(lists)


def test_ranks_are_fused_with_their_reciprocals():
    lists = [list("abc"), list("cd")]
    scores = {"a": 1 / 61, "b": 1 / 62, "c": 1 / 63 + 1 / 61, "d": 1 / 62}
    assert fuse_ranks(lists) == sorted(scores, key=lambda key: -scores[key]) == list("cabd")
    assert fuse_ranks(lists, [1.0, 0.0]) == list("abcd") and fuse_ranks([]) == []


def test_hybrid_search_fuses_both_lists():
    snap = Snapshot(corpus(), lambda s: ["t1", "t2", "t3"] if s.by == "vector" else ["t3", "t9"])
    answer = ask(snap, hybrid_search, "What did ALICE do?")
    assert [r.id for r in answer.contexts[0].records] == ["t3", "t1", "t2", "t9"]
    assert [(s.kind, s.by) for s in searches(snap)] == [("text_unit", "vector"), ("text_unit", "keyword")]
    assert answer.method == "hybrid"


def everything() -> dict[str, list[dict[str, Any]]]:
    ends = {"source": "ALICE", "target": "BOB"}
    return corpus(2) | {
        "entities": [{"id": entity_id("ALICE"), "title": "ALICE", "description": "a mayor"}],
        "relationships": [{"id": "r1", **ends, "description": "they met"}],
        "community_reports": [{"id": report_id("k"), "title": "On ALICE", "full_content": "Of her."}],
    }


KINDS = ["text_unit", "entity", "relationship", "community_report"]
FINDS = {
    "text_unit": ["t0", "t1"],
    "entity": [entity_id("ALICE")],
    "relationship": ["r1"],
    "community_report": [report_id("k")],
}


def test_hybrid_search_uses_fixed_weights_and_ranks_on_request():
    snap = Snapshot(corpus(), lambda s: ["t1", "t2", "t3"] if s.by == "vector" else ["t3", "t9"])
    for changes, expected in (
        ({"hybrid_vector_weight": 0.5}, ["t1", "t3", "t2", "t9"]),
        ({"hybrid_vector_weight": 0.0}, ["t3", "t1", "t2", "t9"]),
        ({"fusion": "rrf"}, ["t3", "t1", "t2", "t9"]),
        ({"fusion": "rrf", "hybrid_vector_weight": 1.0}, ["t1", "t2", "t3", "t9"]),
    ):
        answer = ask(snap, hybrid_search, "What did ALICE do?", **changes)
        assert [r.id for r in answer.contexts[0].records] == expected, changes


def test_hybrid_search_covers_all_requested_kinds():
    snap = Snapshot(everything(), lambda s: FINDS[s.kind])
    context = snap.run(
        nearest_context([Search(k, by, "?", 0) for k in KINDS for by in ("vector", "keyword")], snap.given())
    )
    sections = parse_sections(context.text)
    assert {name: len(rows) for name, rows in sections.items()} == {
        "Reports": 1,
        "Entities": 1,
        "Relationships": 1,
        "Sources": 2,
    }
    answer = ask(
        snap, hybrid_search, "What did ALICE do?", hybrid_record_kinds=["entity", "text_unit", "entity"]
    )
    assert [r.section for r in answer.contexts[0].records] == ["Entities", "Sources", "Sources"]


def test_conditions_restrict_entities_and_their_descriptions():
    tables = everything()
    tables["entity_instances"] = [
        {"entity_id": entity_id("ALICE"), "title": "ALICE", "description": f"of {t}", "text_unit_id": t}
        for t in ("t0", "t1")
    ]
    snap = Snapshot(tables, lambda s: FINDS[s.kind])
    snap.answer = seen = Recording(snap.answer)
    ask(snap, hybrid_search, "What did ALICE do?", "path=1.txt", hybrid_record_kinds=["entity", "text_unit"])
    (context,) = seen.contexts
    assert context["Entities"] == [{"id": "1", "entity": "ALICE", "description": "of t1"}]
    assert [r["text"][:20] for r in context["Sources"]] == ["ALICE wrote letter 1"]


def test_reports_cannot_be_restricted_to_documents():
    snap = Snapshot(everything(), lambda s: FINDS[s.kind])
    with pytest.raises(UsageError, match=r"reports, which are written from many documents"):
        ask(snap, hybrid_search, "?", "path=1.txt", hybrid_record_kinds=["community_report"])


class Recording:
    """Answers like another model, and records the contexts in its prompts."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.contexts = answer, []

    def __call__(self, request: Any) -> Any:
        self.contexts.append(parse_sections(request.variables["context"]))
        return self.answer(request)


@given(st.randoms(use_true_random=False), st.integers(256, 5000), st.sets(st.sampled_from(KINDS), min_size=1))
def test_contexts_stay_within_budget(rng: random.Random, budget: int, kinds: set[str]):
    word = rng.choice(["word ", "für ", "数据", '", ', "🙂", "A-1 "])

    def text() -> str:
        return word * int(8000 ** rng.random())

    ids = [f"x{i}" for i in range(rng.randint(0, 200))]
    named = {"title": "T", "source": "A", "target": "B"}
    rows = [{"id": i, "text": text(), "description": text(), "full_content": text(), **named} for i in ids]
    tables = dict.fromkeys(("text_units", "entities", "relationships", "community_reports"), rows)
    snap = Snapshot(tables, lambda s: rng.sample(ids, len(ids)))
    find = [Search(k, by, "?", 0) for k in sorted(kinds) for by in ("vector", "keyword")]
    context = snap.run(nearest_context(find, snap.given(context_tokens=budget)))
    assert context.n_tokens == COUNT(context.text) <= budget
    assert bool(context.numbering) == bool(ids)
