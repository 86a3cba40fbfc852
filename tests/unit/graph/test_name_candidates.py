from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.name_candidates import (
    DIMENSIONS,
    KEYS,
    MAX_COMPARED_DOCUMENTS,
    MAX_DESCRIPTIONS,
    MAX_DOCUMENTS,
    MAX_NEIGHBOURS,
    MAX_RARE,
    MIN_IN_CONTEXT,
    MIN_SIMILARITY,
    PAIRS,
    WINDOW,
    DocumentUse,
    alike_pairs,
    block_pairs,
    blocking_keys,
    choose_candidates,
    is_candidate,
    key_rows,
    may_be_same,
    may_be_several,
    profile,
    reduced,
    similarities,
    split_texts,
)


def use(document="d1", type_="PERSON", n=1, descriptions=(), neighbours=(), title="Title"):
    return DocumentUse(document, title, type_, n, list(descriptions), list(neighbours))


# Profiles


def test_a_profile_shows_what_a_model_needs():
    uses = [use("d1", n=2, descriptions=["He drew.", "He left."], neighbours=["CITY", "BO"]), use("d2")]
    found = profile("JOHN ORME", uses)
    assert (found.type, found.n, found.documents) == ("PERSON", 3, ["d1", "d2"])
    assert found.text == (
        "JOHN ORME (PERSON)\n- He drew.\n- He left.\nDocuments: Title\nConnected with: CITY, BO"
    )
    assert found.summary == "JOHN ORME: He drew."


def test_a_profile_of_a_bare_name_is_the_name():
    found = profile("ORME", [use(type_="", title="")])
    assert found.text.splitlines()[0] == "ORME" and found.type == "" and found.summary == "ORME"


def test_the_most_frequent_stated_type_counts():
    uses = [use("d1", "", 9), use("d2", "PERSON", 2), use("d3", "LOCATION", 2), use("d4", "PERSON")]
    assert profile("A", uses).type == "PERSON"
    assert profile("A", [use("d1", "B"), use("d2", "A")]).type == "A"


def test_profiles_are_bounded():
    uses = [
        use(
            f"d{n:03}",
            descriptions=[f"{n} {m} " + "x" * 1_000 for m in range(9)],
            neighbours=map(str, range(99)),
        )
        for n in range(100)
    ]
    found = profile("A", uses)
    assert len(found.text) < 2_000 and found.text.count("\n- ") == MAX_DESCRIPTIONS
    assert len(found.neighbours) == MAX_NEIGHBOURS and len(found.documents) == MAX_COMPARED_DOCUMENTS


words = st.sampled_from(["He drew.", "She sails.", "It is.", "Они.", "日本。"])
document_uses = st.builds(
    lambda n, descriptions, neighbours: ("PERSON", n, descriptions, neighbours),
    st.integers(1, 5),
    st.lists(words, max_size=3),
    st.lists(st.sampled_from("ABCDEFGHIJ"), max_size=4),
)


@given(st.lists(document_uses, min_size=MAX_DOCUMENTS, max_size=6), st.lists(document_uses, max_size=4))
def test_documents_with_larger_ids_do_not_change_the_text_of_a_profile(before, after):
    uses = [use(f"d{n}", *rest) for n, rest in enumerate(before + after)]
    old, new = profile("A", uses[: len(before)]), profile("A", uses)
    assert (old.text, old.summary, old.neighbours) == (new.text, new.summary, new.neighbours)


def test_texts_of_documents_to_split_are_one_block_each():
    texts = split_texts([use("d1", descriptions=["He drew."]), use("d2", "LOCATION", title="River")])
    assert len(texts) == 2 and "He drew." in texts[0] and "River" in texts[1]


# Blocking

SAME = [
    ("JOHN ORME", "ORME, JOHN"),
    ("MÜLLER", "MÜLLER GMBH"),
    ("KESTREL MARINE", "KM"),
    ("KATHERINE HEPBURN", "KATHARINE HEPBURN"),
    ("ЧАЙКОВСКИЙ", "ПЁТР ЧАЙКОВСКИЙ"),
    ("東京大学", "東京大学大学院"),
    ("김구", "김구 선생"),
    ("महात्मा गांधी", "गांधी"),
    ("กรุงเทพ", "กรุงเทพมหานคร"),
    ("نجيب محفوظ", "محفوظ"),
    ("ΑΘΗΝΑ", "ΑΘΗΝΑ ΑΤΤΙΚΗΣ"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_names_that_may_be_the_same_share_a_key_in_all_scripts(a, b):
    assert set(blocking_keys(a)) & set(blocking_keys(b))


@given(st.text(max_size=60).map(entity_key))
def test_every_name_has_few_distinct_keys(name):
    keys = blocking_keys(name)
    assert 1 <= len(keys) == len(set(keys)) <= 16
    assert keys == blocking_keys(name)


def keyed(*names, neighbours=()):
    return key_rows([(n + 1, name, list(neighbours)) for n, name in enumerate(names)])


def pairs_of(rows):
    return {(r["a"], r["b"]): (round(r["similarity"]), r["shared"]) for r in block_pairs(rows).to_pylist()}


def test_no_names_have_no_keys_and_no_pairs():
    assert key_rows([]).schema == KEYS
    assert block_pairs(key_rows([])).schema == PAIRS
    assert pairs_of(keyed("ALONE")) == {}


@pytest.mark.parametrize(("a", "b"), SAME)
def test_names_with_a_common_key_are_paired_once(a, b):
    found = block_pairs(keyed(a, b)).to_pylist()
    assert [(r["a"], r["b"]) for r in found] == [(1, 2)] and found[0]["similarity"] >= MIN_IN_CONTEXT


def test_names_that_are_not_alike_are_paired_only_by_a_rare_neighbour():
    assert pairs_of(keyed("ORLA QUIST", "ORLA MARCHETTI")) == {}
    assert pairs_of(keyed("SAMUEL CLEMENS", "MARK TWAIN")) == {}
    assert pairs_of(keyed("SAMUEL CLEMENS", "MARK TWAIN", neighbours=["OLIVIA"])) == {(1, 2): (0, 1)}
    assert pairs_of(keyed("SAMUEL CLEMENS", "MARK TWAIN", neighbours=["OLIVIA", "NYC"])) == {(1, 2): (0, 2)}
    several = [f"{chr(65 + n) * 9}" for n in range(MAX_RARE + 1)]
    assert pairs_of(keyed(*several, neighbours=["HUB"])) == {}


def test_names_with_different_numbers_are_never_paired():
    assert pairs_of(keyed("REPORT 2023-052", "REPORT 2023-053", neighbours=["X"])) == {}
    assert pairs_of(keyed("REPORT", "REPORT 52"))
    assert may_be_same("APOLLO", "APOLLO 11") and not may_be_same("APOLLO 12", "APOLLO 11")


def test_pairs_do_not_depend_on_the_order_of_rows():
    rows = keyed(*(name for both in SAME for name in both), neighbours=["X"])
    mixed = rows.take(pa.array(np.random.default_rng(1).permutation(len(rows))))
    assert pairs_of(rows) == pairs_of(mixed)


def test_names_that_share_a_word_make_a_linear_number_of_pairs():
    n = 5_000
    rows = pa.table(
        {
            "key": np.full(n, 7, np.uint64),
            "is_neighbour": np.zeros(n, np.bool_),
            "id": np.arange(n, dtype=np.uint64),
            "name": [f"AIRPORT {i:06}X" for i in range(n)],
        },
        schema=KEYS,
    )
    assert block_pairs(rows).num_rows <= n * WINDOW


# Similarities


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        ("KATHERINE HEPBURN", "KATHARINE HEPBURN", True),
        ("ORME JOHN", "JOHN ORME", True),
        ("KESTREL MARINE", "KM", True),
        ("KM", "KESTREL MARINE", True),
        ("KESTREL MARINE", "KMX", False),
        ("ORLA QUIST", "BO DAHL", False),
        ("", "ORME", False),
        ("!!!", "???", False),
    ],
)
def test_names_are_alike_by_letters_words_or_initials(a, b, alike):
    assert (similarities([a], [b], True)[0] >= MIN_SIMILARITY) == alike


def test_a_name_that_contains_another_is_alike_only_if_their_key_is_rare():
    rare, common = (similarities(["MEMPHIS AIRPORT"], ["AIRPORT"], is_rare)[0] for is_rare in (True, False))
    assert rare >= MIN_SIMILARITY > common


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=5))
def test_similarities_are_symmetric_and_bounded(pairs):
    left, right = ([entity_key(p[n]) for p in pairs] for n in (0, 1))
    found = similarities(left, right, True)
    assert found.dtype == np.float32 and ((found >= 0) & (found <= 100)).all()
    assert found.tolist() == pytest.approx(similarities(right, left, True).tolist())


# Similar descriptions


def test_names_with_similar_vectors_are_paired_below_similar_spelling():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((40, DIMENSIONS)).astype(np.float32)
    vectors[7] = vectors[3] * 2
    found = alike_pairs(np.arange(100, 140, dtype=np.uint64), vectors, 3)
    rows = {(r["a"], r["b"]): r["similarity"] for r in found.to_pylist()}
    assert found.schema == PAIRS and set(rows) == {(103, 107)} and 50 <= rows[103, 107] < MIN_IN_CONTEXT


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_names_have_no_similar_descriptions(n):
    found = alike_pairs(np.arange(n, dtype=np.uint64), np.zeros((n, DIMENSIONS), np.float32), 5)
    assert found.num_rows == 0 and found.schema == PAIRS


def test_vectors_are_reduced_alike_in_every_process():
    vectors = np.eye(3, 256, dtype=np.float32)
    assert reduced(vectors).shape == (3, DIMENSIONS)
    assert (reduced(vectors)[1:] == reduced(vectors[1:])).all() and reduced(vectors[:0]).shape == (
        0,
        DIMENSIONS,
    )


# Choosing candidates


def table(*rows):
    return pa.table([list(c) for c in zip(*rows, strict=True)] if rows else [[]] * 4, PAIRS.names).cast(PAIRS)


def chosen(pairs, n_names=10, k=3, alike=(), n=None):
    ids = np.arange(n_names, dtype=np.uint64)
    mentions = np.ones(n_names, np.int64) if n is None else np.array(n)
    found = choose_candidates(table(*pairs), table(*alike), (ids, mentions), k)
    return list(zip(found["anchor"].to_pylist(), found["candidate"].to_pylist(), strict=True))


def test_without_pairs_nothing_is_chosen():
    assert chosen([]) == [] and chosen([], n_names=0) == []


def test_the_rarer_name_of_a_pair_is_the_anchor():
    assert chosen([(0, 1, 90, 0)], 2, n=[5, 1]) == [(1, 0)]
    assert chosen([(0, 1, 90, 0)], 2, n=[1, 5]) == [(0, 1)]


def test_pairs_that_are_only_alike_need_a_shared_neighbour():
    assert chosen([], alike=[(0, 1, 60, 0)]) == []
    assert chosen([(0, 1, 0, 1)], alike=[(0, 1, 60, 0)]) == [(1, 0)]
    assert chosen([(0, 1, 0, 5)]) == []


def test_the_most_similar_candidates_are_chosen():
    hub = [(0, other, 83 + other, 0) for other in range(1, 9)]
    assert {a for a, _ in chosen(hub, k=1)} == set(range(1, 9)), "each has only the hub as a candidate"
    found = chosen([*hub, *((a, a + 1, 99, 0) for a in range(1, 9, 2))], 10, k=1)
    assert (1, 0) not in found and (2, 1) in found


def test_each_pair_is_decided_once():
    assert chosen([(0, 1, 90, 0), (0, 1, 85, 2)], alike=[(0, 1, 70, 0)]) == [(1, 0)]


pairs_drawn = st.sets(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda p: p[0] < p[1]), max_size=30
)


@given(pairs_drawn, st.integers(1, 4), st.randoms(), st.lists(st.integers(1, 3), min_size=10, max_size=10))
def test_an_anchor_has_at_most_k_candidates_in_any_order_of_pairs(ends, k, rng: random.Random, n):
    rows = [(a, b, 82 + (a * 7 + b) % 18, (a + b) % 3) for a, b in sorted(ends)]
    found = chosen(rows, k=k, n=n)
    counts = [sum(a == anchor for a, _ in found) for anchor in range(10)]
    assert max(counts) <= k and found == sorted(set(found))
    assert {tuple(sorted(p)) for p in found} <= ends and len({frozenset(p) for p in found}) == len(found)
    assert {end for p in ends for end in p} == {end for p in found for end in p}, "everyone has a candidate"
    rng.shuffle(rows)
    assert chosen(rows, k=k, n=n) == found


def fields(name, documents=(), neighbours=(), type_="PERSON"):
    return {"name": name, "documents": list(documents), "neighbours": list(neighbours), "type": type_}


def test_names_spelled_almost_alike_are_always_candidates():
    assert is_candidate(fields("KATHERINE HEPBURN", ["d1"]), fields("KATHARINE HEPBURN", ["d2"]))


def test_a_person_whose_name_contains_another_is_always_a_candidate():
    assert is_candidate(fields("JOHN ORME", ["d1"], ["X"]), fields("ORME", ["d2"], ["Y"]))


@pytest.mark.parametrize(("a", "b"), [("MEMPHIS AIRPORT", "AIRPORT"), ("KESTREL MARINE", "KM")])
def test_contained_names_and_acronyms_need_a_document_or_neighbour_in_common(a, b):
    one = fields(a, ["d1"], ["X"], "EVENT")
    assert not is_candidate(one, fields(b, ["d2"], ["Y"], "EVENT"))
    assert is_candidate(one, fields(b, ["d2"], ["X"], "EVENT"))
    assert is_candidate(one, fields(b, ["d1"], ["Y"], "EVENT"))


@pytest.mark.parametrize("long", ["김구선생", "김구 선생", "동산김구선생기념사업회"])
def test_names_in_cjk_that_contain_others_need_a_document_or_neighbour_in_common(long):
    one = fields(long, ["d1"], ["X"])
    assert not is_candidate(one, fields("김구", ["d2"], ["Y"]))
    assert is_candidate(one, fields("김구", ["d2"], ["X"])) and is_candidate(
        one, fields("김구", ["d1"], ["Y"])
    )


def test_names_that_are_only_described_alike_must_come_from_different_documents():
    twain = fields("MARK TWAIN", ["d1"], ["OLIVIA"])
    assert is_candidate(twain, fields("SAMUEL CLEMENS", ["d2"], ["OLIVIA"]))
    assert not is_candidate(twain, fields("SAMUEL CLEMENS", ["d1", "d2"], ["OLIVIA"]))
    assert not is_candidate(twain, fields("SAMUEL CLEMENS", ["d2"], ["OLIVIA"], "LOCATION"))


# Names that stand for several things

NAME = "JOHN ORME"


def cosines(n, *alike):
    found = np.eye(n, dtype=np.float32)
    for i, j in alike:
        found[i, j] = found[j, i] = 0.9
    return found


def test_a_name_with_descriptions_that_fall_apart_may_be_several():
    uses = [use(f"d{n}") for n in range(4)]
    assert may_be_several(NAME, uses, cosines(4, (0, 1), (2, 3)))
    assert not may_be_several(NAME, uses, cosines(4, (0, 1), (2, 3), (1, 2))), "a chain holds them together"
    assert not may_be_several(NAME, uses, cosines(4, *combinations(range(4), 2)))


def test_a_name_of_exclusive_types_may_be_several_however_it_is_described():
    uses = [use("d1", "PERSON"), use("d2", "LOCATION")]
    assert may_be_several(NAME, uses, cosines(2, (0, 1)))
    assert not may_be_several(NAME, [use("d1", "PERSON"), use("d2", "EVENT")], cosines(2, (0, 1)))


def test_concepts_are_not_split():
    assert not may_be_several(NAME, [use(f"d{n}", "CONCEPT") for n in range(3)], cosines(3))


def test_a_name_that_is_the_title_of_several_documents_may_be_several():
    def titled(*titles):
        uses = [use(f"d{n}", "CONCEPT", title=title) for n, title in enumerate(titles)]
        return may_be_several(NAME, uses, np.ones((len(uses), len(uses)), np.float32))

    assert titled("John Orme (architect)", "John Orme (footballer)") and titled(
        "John Orme", "John Orme （建築家）"
    )
    assert not titled("John Orme", "John Orme")
    assert not titled("John Orme (architect)", "A life of John Orme")
