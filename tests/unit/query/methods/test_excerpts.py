"""Excerpts of long records: size, order, breadth, and texts in all scripts."""

from __future__ import annotations

from itertools import pairwise

from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.report_context import Record, source_record
from graphrag_ray.query.methods.excerpts import (
    GAP,
    SEGMENT_TOKENS,
    Segment,
    choose,
    excerpts,
    join,
    relevance,
    segments,
    word_shares,
)
from graphrag_ray.query.methods.record_loading import distinct, without_overlaps

SENTENCES = (
    "The mill was sold in 1904. ",
    "Die Mühle wurde 1904 verkauft! ",
    "磨坊于1904年出售。",
    "Мельница продана в 1904 году. ",
    "تم بيع المطحنة عام 1904؟ ",
    "x" * 900,
    "🙂👩‍👩‍👧 ",
    "Who knows? ",
)
texts = st.lists(st.sampled_from(SENTENCES), max_size=60).map("".join) | st.text(max_size=300)


def shortened(given_: list[str], question: str, tokens: int | None = 64, size: float = 1.0) -> list[Record]:
    snap = Snapshot({})
    records = [source_record(str(n), text) for n, text in enumerate(given_)]
    return snap.run(excerpts(records, question, snap.given(passage_tokens=tokens), size))


@given(texts, st.integers(8, 200))
def test_segments_cover_the_text_within_the_limit(text: str, limit: int):
    parts = segments(text, 3, limit, COUNT)
    assert all(p.text == 3 and p.start < p.end for p in parts)
    assert all(not text[a.end : b.start].strip() and a.end <= b.start for a, b in pairwise(parts))
    assert all(p.n_tokens <= max(limit, SEGMENT_TOKENS) or p.end - p.start == 1 for p in parts)
    shown = "".join(text[p.start : p.end] for p in parts)
    assert "".join(shown.split()) == "".join(text.split())


parts_of = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.floats(0, 1)), max_size=40)


@given(parts_of, st.integers(0, 600), st.integers(0, 200))
def test_each_text_keeps_its_best_segment_and_more_room_adds_segments(
    given_: list[tuple[int, int, float]], room: int, more: int
):
    parts = [Segment(text, n, n + 1, tokens) for n, (text, tokens, _) in enumerate(given_)]
    relevant = [score for *_, score in given_]
    chosen = choose(parts, relevant, room)
    best = {t: max(s for text, _, s in given_ if text == t) for t, *_ in given_}
    assert {p.text for p in chosen} == set(best)
    assert all(any(relevant[p.start] == best[t] for p in chosen if p.text == t) for t in best)
    n_tokens = sum(p.n_tokens for p in chosen)
    assert n_tokens <= max(room, sum(max(n for text, n, _ in given_ if text == t) for t in best))
    assert set(chosen) <= set(choose(parts, relevant, room + more))


@given(st.lists(texts, max_size=5), texts, st.sampled_from([0.5, 1.0]))
def test_long_texts_shrink_and_short_ones_stay(given_: list[str], question: str, size: float):
    before, after = shortened(given_, question, None), shortened(given_, question, size=size)
    assert [r.id for r in before] == [r.id for r in after]
    for whole, part in zip(before, after, strict=True):
        if COUNT(whole.fields[-1]) <= 64:
            assert part == whole
        else:
            assert part.fields[-1].strip()
            assert all(p.strip() in whole.fields[-1] for p in part.fields[-1].split(GAP.strip()))
    assert after == shortened(given_, question, size=size)


def test_excerpt_shows_the_sentences_nearest_to_the_question():
    filler = [
        f"Visitors came in year {n} to see the garden and the old walls of the castle. " for n in range(30)
    ]
    filler[17] = "Tobin Hask bought the mill from Mara Venn for ninety crowns. "
    filler[3] = "Mara Venn later regretted that the mill had been sold. "
    (record,) = shortened(["".join(filler)], "Who bought the mill from Mara Venn?", 80)
    assert "Tobin Hask bought the mill" in record.fields[-1] and GAP.strip() in record.fields[-1]
    assert COUNT(record.fields[-1]) < 100


def test_relevant_texts_show_more_of_themselves():
    about = " ".join(f"The mill on the river was repaired in year {n} by the miller." for n in range(30))
    other = " ".join(f"Visitors came in year {n} to see the castle garden." for n in range(30))
    first, second = shortened([about, other], "When was the mill repaired?", 120)
    assert COUNT(first.fields[-1]) > 2 * COUNT(second.fields[-1]) > 0


def test_scores_are_scaled_to_their_maximum():
    assert relevance([0.2, 0.4, -1.0], [0.0, 0.0, 0.0]) == [0.25, 0.5, 0.0]
    assert word_shares("mill", ["a mill", "a castle"]) == [1.0, 0.0]
    assert word_shares("磨坊", ["磨坊出售", "城堡"])[0] == 1.0
    assert word_shares("?", ["a"]) == [0.0] and relevance([], []) == []


def test_gaps_mark_everything_that_is_left_out():
    text = "One. Two. Three. Four."
    assert join(text, [Segment(0, 0, 4, 1), Segment(0, 5, 9, 1)]) == "One. Two. […]"
    assert join(text, [Segment(0, 5, 9, 1), Segment(0, 17, 22, 1)]) == "[…] Two. […] Four."


def chunk(id_: str, document: str, start: int, end: int, text: str) -> dict[str, object]:
    return {"id": id_, "document_id": document, "start": start, "end": end, "text": text[start:end]}


@given(
    st.text(min_size=1, max_size=80), st.lists(st.tuples(st.integers(0, 79), st.integers(1, 30)), max_size=8)
)
def test_overlapping_chunks_show_each_character_once(text: str, spans: list[tuple[int, int]]):
    size = 30  # as in an index, no chunk lies strictly inside another
    rows = [chunk(str(n), "d", start, start + size, text) for n, (start, _) in enumerate(spans)]
    shown = without_overlaps(rows)
    covered = {c for start, _ in spans for c in range(start, min(start + size, len(text)))}
    assert sum(len(row["text"]) for row in shown) <= len(covered)
    assert {row["id"] for row in shown} <= {row["id"] for row in rows}
    first = [row for row in rows[:1] if str(row["text"]).strip()]
    assert shown[: len(first)] == first


def test_chunks_of_other_documents_are_not_cut():
    text = "abcdefghij"
    rows = [chunk("a", "d", 0, 6, text), chunk("b", "d", 4, 10, text), chunk("c", "e", 4, 10, text)]
    assert [row["text"] for row in without_overlaps(rows)] == ["abcdef", "ghij", "efghij"]


def test_equal_texts_are_shown_once():
    same = [Record("Sources", "a", ("", "The mill.")), Record("Sources", "b", ("", "the  MILL"))]
    assert [r.id for r in distinct(same)] == ["a"]
    entities = [Record("Entities", n, (n, "Both met.")) for n in "ab"]
    assert [r.fields for r in distinct(entities)] == [("a", "Both met."), ("b", "")]
    empty = [Record("Relationships", n, ("X", "Y", "")) for n in "ab"]
    assert distinct(empty) == empty
