"""Repeated points are removed before the answers are combined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from linear_time import too_slow

from graphrag_ray.base.context_records import Reference, parse_references, strip_references
from graphrag_ray.query.methods.distinct_points import distinct_points
from graphrag_ray.query.methods.map_reduce import MapAnswer


def answer(text: str, score: float = 50.0, position: int = 0) -> MapAnswer:
    return MapAnswer(text, score, tuple(parse_references(text)), position=position)


def texts(*answers: MapAnswer) -> list[str]:
    return [a.text for a in distinct_points(answers)]


def test_equal_points_merge_their_references():
    found = distinct_points(
        [
            answer("The mill burned in 1901 [Data: Sources (a)].", 40),
            answer("- **The mill** burned in 1901. [Data: Sources (b); Reports (c)]", 80),
        ]
    )
    assert [a.text for a in found] == ["- **The mill** burned in 1901. [Data: Sources (b, a); Reports (c)]"]
    assert found[0].score == 80 and Reference("Sources", "a") in found[0].references


def test_merged_reference_has_at_most_five_ids_per_table():
    same = [answer(f"Flour prices rose [Data: Sources (s{n})].", 90 - n) for n in range(8)]
    assert texts(*same) == ["Flour prices rose [Data: Sources (s0, s1, s2, s3, s4, +more)]."]


def test_longer_point_is_kept_with_the_highest_score():
    (found,) = distinct_points(
        [
            answer("Flour prices rose in every town [Data: Sources (a)].", 90),
            answer("Flour prices rose in every town after the merger [Data: Sources (b)].", 30),
        ]
    )
    assert found.text == "Flour prices rose in every town after the merger [Data: Sources (b, a)]."
    assert found.score == 90


def test_similar_points_that_differ_are_kept():
    for pair in (
        (
            "Profit rose last year by 5 [Data: Sources (a)]",
            "Profit rose last year by 5.5 [Data: Sources (b)]",
        ),
        (
            "Profit rose last year by 5 [Data: Sources (a)]",
            "Profit rose last year by 5 million [Data: Sources (b)]",
        ),
        (
            "Holt sold the mill [Data: Sources (a)]",
            "It is untrue that Holt sold the mill [Data: Sources (b)]",
        ),
        ("Margins changed by 5% [Data: Sources (a)]", "Margins changed by -5% [Data: Sources (b)]"),
    ):
        assert len(texts(*map(answer, pair))) == 2


def test_sentence_to_which_a_later_one_may_refer_is_kept():
    first = "Bob owned the mill [Data: Sources (a)]."
    second = f"{first} He sold it [Data: Sources (b)]."
    assert texts(answer(first, 90), answer(second, 50)) == [first, second]
    third = f"Arden has a bank [Data: Sources (c)]. {first}"
    assert texts(answer(first, 90), answer(third, 50)) == [first, "Arden has a bank [Data: Sources (c)]."]


def test_heading_of_a_follow_up_is_no_part_of_the_point():
    first = "**Who?** Bob owned the mill [Data: Sources (a)]."
    second = "**Who owned it?** Bob owned the mill [Data: Sources (a)].\n- It burned [Data: Sources (b)]."
    assert texts(answer(first, 90), answer(second, 50)) == [
        first,
        "**Who owned it?** - It burned [Data: Sources (b)].",
    ]


def test_text_that_looks_like_a_reference_is_not_cited():
    copied = MapAnswer("The mill burned [Data: Sources (forged)].", 20.0)
    (found,) = distinct_points([answer("The mill burned [Data: Sources (a)].", 90), copied])
    assert found.references == (Reference("Sources", "a"),) and "forged" not in found.text


POINTS = (
    "The mill burned",
    "The mill burned in 1901",
    "工厂在一九〇一年烧毁",
    "Bread was dear in all of Arden",
    "5",
)
point = st.tuples(st.sampled_from(POINTS), st.sampled_from("abcdefgh")).map(
    lambda p: f"{p[0]} [Data: Sources ({p[1]})]."
)
line = st.lists(point, min_size=1, max_size=4).map(" ".join)
written = st.lists(st.one_of(line, line.map(lambda t: f"- {t}"), st.text(max_size=30)), max_size=4).map(
    "\n".join
)
many = st.lists(st.builds(answer, written, st.integers(0, 100).map(float), st.integers(0, 5)), max_size=8)


@given(many)
def test_nothing_is_lost_or_invented(answers: list[MapAnswer]):
    found = distinct_points(answers)
    before = {r for a in answers if a.score > 0 and a.text for r in a.references}
    assert {r for a in found for r in a.references} <= before
    said = "\n".join(strip_references(a.text) for a in found)
    assert all(p in said for a in answers if a.score > 0 for p in POINTS if p in strip_references(a.text))
    assert max((a.score for a in found), default=0) == max((a.score for a in answers if a.text), default=0)


@given(many, st.randoms())
def test_order_of_replies_does_not_matter(answers: list[MapAnswer], random):
    mixed = random.sample(answers, len(answers))
    assert distinct_points(mixed) == distinct_points(answers)


@given(many)
def test_distinct_points_stay_as_they_are(answers: list[MapAnswer]):
    once = distinct_points(answers)
    assert sum(len(a.text) for a in distinct_points(once)) <= sum(len(a.text) for a in once)


def test_time_is_linear():
    def answers(n: int) -> list[MapAnswer]:
        return [answer("a b c d " * (i % 50) + f"[Data: Sources ({i})]. " * 20, 1 + i % 90) for i in range(n)]

    assert too_slow(distinct_points, answers, 200) == ""
