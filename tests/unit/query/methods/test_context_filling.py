"""Filling one context from several lists of records with shares."""

from __future__ import annotations

import pytest
from driving import COUNT
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.context_plan import MIN_CONTEXT_TOKENS
from graphrag_ray.graph.report_context import (
    Record,
    entity_record,
    passage_record,
    source_record,
    write_sections,
)
from graphrag_ray.query.methods.context_filling import Neighbour, Share, fill, records_that_fit

texts = st.text(alphabet="abc dé\n-\"',;.中文  \u200d🙂12", max_size=400) | st.text(max_size=60)
long_texts = texts | st.builds(lambda t, n: t * n, texts, st.integers(1, 40))


@st.composite
def shares(draw: st.DrawFn) -> list[Share]:
    lists = draw(st.lists(st.lists(st.tuples(st.sampled_from("ES"), long_texts), max_size=8), max_size=4))
    parts = draw(st.lists(st.floats(0.01, 1), min_size=len(lists), max_size=len(lists)))
    number = iter(range(1000))
    return [
        Share(
            [
                (
                    entity_record(f"{next(number)}", "N", t)
                    if k == "E"
                    else source_record(f"{next(number)}", t)
                )
                for k, t in given_
            ],
            p / sum(parts),
        )
        for given_, p in zip(lists, parts, strict=True)
    ]


@given(shares(), st.integers(MIN_CONTEXT_TOKENS, 3000), st.integers(0, 5))
def test_context_stays_within_budget_and_counts_all_records(asked, budget, others):
    context = fill(asked, budget, COUNT, others)
    assert context.n_tokens == COUNT(context.text) <= budget
    n_shown = sum(len(rows) for rows in parse_sections(context.text).values())
    assert n_shown == len(context.numbering)
    assert n_shown + context.left_out == sum(len(s.records) for s in asked) + others


@given(shares(), st.integers(MIN_CONTEXT_TOKENS, 3000))
def test_each_list_contributes_a_prefix(asked, budget):
    shown = list(fill(asked, budget, COUNT).numbering.values())
    for share in asked:
        ids = [r.id for r in share.records]
        assert {i for i in ids if i in shown} == set(ids[: sum(i in shown for i in ids)])


@given(shares(), st.integers(MIN_CONTEXT_TOKENS, 3000))
def test_context_is_filled_as_far_as_possible(asked, budget):
    context = fill(asked, budget, COUNT)
    shown = [r for s in asked for r in s.records if r.id in set(context.numbering.values())]
    if context.cut:
        return
    for share in asked:
        rest = [r for r in share.records if r not in shown]
        if rest and COUNT(write_sections([*shown, rest[0]])[0]) <= budget:
            # only records longer than their share, which would be truncated if there were room
            assert COUNT(write_sections([rest[0]])[0]) > min(share.of * budget - 40, budget / 4 - 40)


@given(st.lists(long_texts, max_size=20), st.integers(0, 2000))
def test_leading_records_fit_and_are_reused_unchanged(told, budget):
    asked = [entity_record(f"{n}", "N", text) for n, text in enumerate(told)]
    shown, cut = records_that_fit(asked, budget, COUNT)
    assert [r.id for r in shown] == [r.id for r in asked[: len(shown)]]
    assert not shown or COUNT(write_sections(shown)[0]) <= budget
    assert cut == sum(a is not b for a, b in zip(shown, asked, strict=False))
    context = fill([Share(shown)], max(MIN_CONTEXT_TOKENS, 4 * budget), COUNT)
    assert (len(context.numbering), context.cut, context.left_out) == (len(shown), 0, 0)


def words(n: int, name: str) -> list[Record]:
    return [source_record(f"{name}{i}", f"{name} " * 50) for i in range(n)]


def test_a_long_paragraph_is_shown_once():
    notice = "This call may contain forward-looking statements. " * 5
    texts = [f"Call {i}.\n\n{notice}\n\nRevenue rose by {i} %." for i in range(3)]
    records = [passage_record(str(i), text) for i, text in enumerate(texts)]
    neighbour = Neighbour(passage_record("4", f"{notice}\nThank you."), "2", before=False)
    context = fill([Share(records[:2], 0.5), Share(records[2:], 0.5)], 1000, COUNT, 0, [neighbour])
    shown = [row["text"] for row in parse_sections(context.text)["Sources"]]
    assert context.text.count(notice.strip()) == 1 and notice.strip() in shown[0]
    assert [text.split() for text in shown[1:3]] == [
        f"Call {i}. […] Revenue rose by {i} %.".split() for i in (1, 2)
    ]
    assert shown[3].split() == ["[…]", "Thank", "you."] and context.cut == 0


def test_copies_of_a_whole_passage_are_shown():
    notice = "This call may contain forward-looking statements. " * 5
    records = [passage_record(str(i), notice, f"Call {i}") for i in range(3)]
    assert fill([Share(records)], 1000, COUNT).text.count(notice.strip()) == 3


def test_a_paragraph_that_was_cut_is_shown_again():
    notice = "This call may contain forward-looking statements. " * 5
    long = passage_record("long", "word " * 5000 + "\n\n" + notice)
    context = fill([Share([long], 0.25), Share([passage_record("short", notice)], 0.75)], 2000, COUNT)
    assert context.cut == 1 and notice.strip() in context.text


def test_each_list_gets_its_share():
    context = fill([Share(words(50, "many"), 0.5), Share(words(50, "more"), 0.5)], 2000, COUNT)
    shown = list(context.numbering.values())
    n_many = sum(i.startswith("many") for i in shown)
    assert abs(n_many - (len(shown) - n_many)) <= 1 and context.n_tokens > 1900


def test_unused_share_goes_to_other_lists():
    context = fill([Share(words(50, "many"), 0.2), Share(words(1, "few"), 0.8)], 2000, COUNT)
    assert context.n_tokens > 1900 and "few0" in context.numbering.values()


def test_long_record_is_truncated_to_its_share():
    long = source_record("long", "word " * 5000)
    context = fill([Share([long], 0.25), Share(words(50, "many"), 0.75)], 2000, COUNT)
    assert context.cut == 1 and context.n_tokens > 1900
    (row,) = [r for r in parse_sections(context.text)["Sources"] if r["text"].startswith("word")]
    assert 400 < COUNT(row["text"]) <= 500 and row["text"].endswith("…")


def test_long_single_record_fills_context():
    context = fill([Share([source_record("a", "word " * 50_000)])], 1000, COUNT)
    assert context.cut == 1 and context.left_out == 0 and 980 <= context.n_tokens <= 1000


def test_long_description_does_not_displace_others():
    entities = [entity_record("a", "A", "word " * 5000), entity_record("b", "B", "short")]
    context = fill([Share(entities)], 2000, COUNT)
    assert context.cut == 1 and context.left_out == 0 and context.n_tokens < 600


def test_no_records_make_an_empty_context():
    assert fill([], 1000, COUNT).text == "" and fill([Share([])], 1000, COUNT).n_tokens == 0


def test_too_small_budget_is_rejected():
    with pytest.raises(SettingsError, match=r"query\.context_tokens is 100"):
        fill([], 100, COUNT)
