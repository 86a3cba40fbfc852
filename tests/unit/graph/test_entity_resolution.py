from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_id, relationship_id
from graphrag_ray.base.schema import ENTITY_INSTANCES, RELATIONSHIP_INSTANCES
from graphrag_ray.graph.document_names import NameAlias
from graphrag_ray.graph.entity_resolution import (
    MAX_GROUP,
    MODEL,
    NamePair,
    NameUse,
    Resolution,
    keep_apart,
    merge_pairs,
    rename_claims,
    rename_entities,
    rename_relationships,
    replace_names,
)
from graphrag_ray.graph.merge import CLAIM_INSTANCES, id_of_claim
from graphrag_ray.graph.name_rules import numbers

NOWHERE = Resolution({}, {}, {})


def pair(a, b, rule=MODEL, evidence="e", type_="CONCEPT", n=1):
    return NamePair(NameUse(a, type_, n), NameUse(b, type_, n), rule, evidence)


def titles(aliases):
    return {alias.name: alias.canonical for alias in aliases}


def groups(aliases):
    found = {}
    for alias in aliases:
        found.setdefault(alias.canonical, {alias.canonical}).add(alias.name)
    return sorted(map(sorted, found.values()))


# Merging pairs


def test_no_pairs_give_no_aliases():
    assert merge_pairs([]) == ([], [])


def test_a_pair_gives_an_alias_of_the_fuller_name():
    aliases, refused = merge_pairs([pair("ORME", "JOHN ORME")])
    assert aliases == [NameAlias("ORME", "JOHN ORME", MODEL, "e")] and refused == []


def test_a_name_with_itself_gives_no_alias():
    assert merge_pairs([pair("A", "A")]) == ([], [])


CHAIN = ["OAK", "OAK ELM", "OAK ELM ASH", "OAK ELM ASH FIR"]


def test_names_in_a_chain_share_one_canonical_name():
    aliases, _ = merge_pairs(map(pair, CHAIN, CHAIN[1:]))
    assert titles(aliases) == dict.fromkeys(CHAIN[:3], CHAIN[3])


def test_every_alias_has_the_evidence_of_its_first_pair():
    one, two, three, four = CHAIN
    pairs = [pair(one, four, evidence="1"), pair(two, three, evidence="2"), pair(one, two, evidence="3")]
    evidence = {a.name: a.evidence for a in merge_pairs(pairs)[0]}
    assert evidence == {one: "1", two: f"same as {three}: 2", three: f"same as {two}: 2"}


def test_names_kept_apart_are_not_merged_directly():
    aliases, refused = merge_pairs([pair("A", "B")], [("A", "B")])
    assert aliases == [] and refused == [("A", "B", "A and B are different")]


@pytest.mark.parametrize("apart", [("A", "C"), ("A", "D"), ("B", "D")])
def test_names_kept_apart_are_not_merged_through_others(apart):
    pairs = [pair("A", "B"), pair("C", "D"), pair("B", "C")]
    aliases, refused = merge_pairs(pairs, [apart])
    assert groups(aliases) == [["A", "B"], ["C", "D"]]
    assert [r[:2] for r in refused] == [("B", "C")] and " and ".join(apart) in refused[0].reason


def test_the_first_of_two_contradictory_pairs_counts():
    first, second = pair("A", "B"), pair("B", "C")
    assert groups(merge_pairs([first, second], [("A", "C")])[0]) == [["A", "B"]]
    assert groups(merge_pairs([second, first], [("A", "C")])[0]) == [["B", "C"]]


def test_no_group_exceeds_the_maximum():
    names = [f"{'X' * n}Y" for n in range(MAX_GROUP + 5)]
    aliases, refused = merge_pairs(map(pair, names, names[1:]))
    assert max(map(len, groups(aliases))) == MAX_GROUP
    assert refused and f"more than {MAX_GROUP} names" in refused[0].reason


@pytest.mark.parametrize("rule", [MODEL, "spelling", "misspelling", "short_name"])
def test_names_with_different_numbers_are_not_merged(rule):
    assert merge_pairs([pair("REPORT 52", "REPORT 53", rule)])[0] == []


def test_names_with_different_numbers_are_not_merged_through_a_name_without_one():
    aliases, refused = merge_pairs([pair("REPORT", "REPORT 52"), pair("REPORT", "REPORT 53")])
    assert titles(aliases) == {"REPORT": "REPORT 52"} and "REPORT 53" in refused[0].reason


def test_a_rule_does_not_merge_a_person_with_a_place_but_a_model_does():
    uses = NameUse("LINCOLN", "PERSON", 3), NameUse("LINCOLNE", "LOCATION", 1)
    assert merge_pairs([NamePair(*uses, "misspelling", "")])[0] == []
    assert len(merge_pairs([NamePair(*uses, MODEL, "")])[0]) == 1


def test_a_name_that_the_user_chose_is_canonical():
    assert titles(merge_pairs([pair("ORME", "JOHN ORME")], canonical=["ORME"])[0]) == {"JOHN ORME": "ORME"}


def test_the_more_frequent_of_two_spellings_is_canonical():
    a, b = NameUse("FRIEDRICH-HALL", "", 2), NameUse("FRIEDRICH HALL", "", 9)
    assert titles(merge_pairs([NamePair(a, b, "spelling", "")])[0]) == {"FRIEDRICH-HALL": "FRIEDRICH HALL"}


@pytest.mark.parametrize("rule", ["abbreviation", "acronym", "short_name"])
def test_types_of_a_closed_schema_are_not_merged_through_a_name_without_one(rule):
    liver, unknown, disease = (
        NameUse("LIVER", "ORGAN", 9),
        NameUse("HEPAR", "", 1),
        NameUse("L", "DISEASE", 1),
    )
    pairs = [NamePair(liver, unknown, rule, ""), NamePair(unknown, disease, rule, "")]
    assert groups(merge_pairs(pairs)[0]) == [["HEPAR", "L", "LIVER"]]
    closed = merge_pairs(pairs, closed_types=frozenset({"ORGAN", "DISEASE"}))
    assert groups(closed[0]) == [["HEPAR", "LIVER"]] and closed[1][0][:2] == ("HEPAR", "L")


WORDS = ["", "ORME", "JOHN ORME", "J. ORME", "DR ORME", "ORME & CO", "ЮРИЙ ОРМ", "オーム", "1984", "ORME II"]
names = st.sampled_from([*WORDS, *"ABCDEFGH"])
uses = st.builds(NameUse, names, st.sampled_from(["", "PERSON", "LOCATION"]), st.integers(0, 9))
some_pairs = st.lists(
    st.builds(NamePair, uses, uses, st.sampled_from([MODEL, "spelling", "short_name"]), st.just("e")),
    max_size=25,
)
some_different = st.lists(st.tuples(names, names).filter(lambda p: p[0] < p[1]), max_size=8)


@given(some_pairs, some_different, st.lists(names, max_size=4))
def test_aliases_are_a_flat_map_that_respects_all_guards(pairs, different, canonical):
    aliases, refused = merge_pairs(pairs, different, canonical)
    found = titles(aliases)
    assert len(found) == len(aliases) and aliases == sorted(aliases)
    assert not set(found) & set(found.values()), "no name is both an alias and canonical"
    assert {*found, *found.values()} <= {use.name for p in pairs for use in p[:2]}
    for a, b in different:
        assert found.get(a, a) != found.get(b, b)
    for group in groups(aliases):
        stated = {numbers(name) for name in group if numbers(name)}
        assert len(stated) <= 1
        if chosen := set(group) & set(canonical):
            assert group and found.get(group[0], group[0]) in chosen
    assert {tuple(r[:2]) for r in refused} <= {(p.a.name, p.b.name) for p in pairs}


@given(some_pairs, some_different)
def test_merging_is_deterministic_and_ends_do_not_matter(pairs, different):
    first = merge_pairs(pairs, different)
    assert first == merge_pairs(iter(pairs), list(reversed(different)))
    swapped = [NamePair(p.b, p.a, p.rule, p.evidence) for p in pairs]
    uniform = {use.name: use for p in reversed(pairs) for use in (p.b, p.a)}

    def alike(ps):
        return [NamePair(uniform[p.a.name], uniform[p.b.name], p.rule, p.evidence) for p in ps]

    assert groups(merge_pairs(alike(pairs), different)[0]) == groups(
        merge_pairs(alike(swapped), different)[0]
    )


@given(
    st.lists(st.tuples(st.sampled_from("ABCDEFGH"), st.sampled_from("ABCDEFGH")), max_size=20), st.randoms()
)
def test_without_contradictions_the_order_of_pairs_does_not_matter(ends, rng: random.Random):
    pairs = [pair(a, b) for a, b in ends]
    mixed = list(pairs)
    rng.shuffle(mixed)
    assert titles(merge_pairs(pairs)[0]) == titles(merge_pairs(mixed)[0])


def test_a_model_that_confirms_everything_cannot_unite_everything():
    everyone = [f"PERSON {chr(65 + n // 26)}{chr(65 + n % 26)}" for n in range(300)]
    pairs = [pair(a, b) for n, a in enumerate(everyone) for b in everyone[n + 1 : n + 30]]
    aliases, refused = merge_pairs(pairs)
    assert all(len(group) <= MAX_GROUP for group in groups(aliases)) and refused


# Names that the user keeps apart

some_names = st.sampled_from("ABCDEF")
some_aliases = st.lists(st.tuples(st.sampled_from("12"), some_names, some_names), max_size=10)
apart = st.sets(st.tuples(some_names, some_names).filter(lambda p: p[0] < p[1]), max_size=4)


@given(some_aliases, some_aliases, st.lists(st.tuples(some_names, some_names), max_size=8), apart)
def test_no_two_names_kept_apart_get_one_title_in_a_document_or_in_the_corpus(user, rules, united, apart):
    decided = {("u" + document, name): title for document, name, title in user if name != title}
    _, contradictory = keep_apart([], ((title, name) for (_, name), title in decided.items()), apart)
    decided = {key: title for key, title in decided.items() if (title, key[1]) not in contradictory}
    found = {(document, name): title for document, name, title in rules if name != title}
    ends = ([(title, name) for (_, name), title in aliases.items()] for aliases in (decided, found))
    members, refused = keep_apart(*ends, apart)
    in_document = decided | {key: t for key, t in found.items() if (t, key[1]) not in refused}
    everywhere = titles(merge_pairs([pair(a, b) for a, b in united], apart, (), members)[0])
    resolution = Resolution(in_document, everywhere, {})
    mentions = [(name, document) for name in "ABCDEF" for document in ("1", "2", "3", "u1", "u2")]
    meant = {}
    for (name, _), title in zip(mentions, replaced(mentions, resolution), strict=True):
        meant.setdefault(name, set()).add(title)
    assert not [(a, b) for a, b in apart if meant[a] & meant[b]]


def test_names_that_are_not_kept_apart_are_all_replaced():
    assert keep_apart([], [("A", "B"), ("A", "C")], []) == ({"A": {"A", "B", "C"}}, set())
    assert keep_apart([], [("A", "B"), ("A", "C"), ("D", "C")], [("B", "C")])[1] == {("A", "C")}


def test_a_decision_about_a_document_is_an_exception_that_still_counts_for_other_names():
    members, refused = keep_apart([("A", "B")], [("A", "C")], [("A", "B"), ("B", "C")])
    assert members == {"A": {"A", "B"}} and refused == {("A", "C")}


# Replacing names


def column(values):
    return pa.chunked_array([pa.array(values, pa.string())])


def replaced(rows, resolution):
    return replace_names(column([n for n, _ in rows]), column([d for _, d in rows]), resolution).to_pylist()


def test_names_are_replaced_in_documents_then_everywhere_then_split():
    resolution = Resolution({("d1", "A"): "B"}, {"B": "C"}, {("d1", "C"): "C (ONE)", ("d2", "A"): "A (TWO)"})
    rows = [("A", "d1"), ("A", "d2"), ("A", "d3"), ("B", "d1"), ("B", "d2"), ("C", "d1"), ("C", "d2")]
    assert replaced(rows, resolution) == ["C (ONE)", "A (TWO)", "A", "C (ONE)", "C", "C (ONE)", "C"]


def test_a_replacement_is_not_replaced_again_in_the_same_step():
    assert replaced([("A", "d"), ("B", "d")], Resolution({("d", "A"): "B", ("d", "B"): "A"}, {}, {})) == [
        "B",
        "A",
    ]
    assert replaced([("A", "d")], Resolution({}, {"A": "B", "B": "C"}, {})) == ["B"]


short = st.sampled_from(["A", "B", "C", "Ł", "日本", ""])
documents = st.sampled_from(["d1", "d2"])
maps = st.dictionaries(st.tuples(documents, short), short, max_size=4)
resolutions = st.builds(Resolution, maps, st.dictionaries(short, short, max_size=4), maps)
rows = st.lists(st.tuples(short, documents), max_size=12)


@given(rows, resolutions, st.integers(0, 12))
def test_names_are_replaced_as_row_by_row_however_they_are_chunked(rows, resolution, cut):
    def one(name, document):
        name = resolution.in_document.get((document, name), name)
        name = resolution.everywhere.get(name, name)
        return resolution.split.get((document, name), name)

    expected = [one(*row) for row in rows]
    assert replaced(rows, resolution) == expected
    names, of = (pa.array([row[n] for row in rows], pa.string()) for n in (0, 1))
    chunked = (pa.chunked_array([a[:cut], a[cut:]], pa.string()) for a in (names, of))
    assert replace_names(*chunked, resolution).to_pylist() == expected


def instances(schema, records):
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | record for record in records], schema=schema)


def test_renamed_entities_keep_the_replaced_name_and_get_another_id():
    table = instances(
        ENTITY_INSTANCES, [{"entity_id": entity_id(t), "title": t, "type": "PERSON"} for t in ("A", "B")]
    )
    found = rename_entities(table, pa.array(["C", "B"]))
    assert found.schema.names == ENTITY_INSTANCES.names
    assert found.select(["entity_id", "title", "name", "type"]).to_pylist() == [
        {"entity_id": entity_id("C"), "title": "C", "name": "A", "type": "PERSON"},
        {"entity_id": entity_id("B"), "title": "B", "name": None, "type": "PERSON"},
    ]


def relationships(*ends):
    return instances(
        RELATIONSHIP_INSTANCES,
        [
            {"relationship_id": relationship_id(a, b), "source": a, "target": b, "document_id": d}
            for a, b, d in ends
        ],
    )


def test_relationships_follow_their_names_and_self_loops_are_dropped():
    table = relationships(("A", "B", "d"), ("B", "C", "d"), ("D", "A", "d"), ("X", "Y", "d"))
    found, dropped = rename_relationships(table, Resolution({}, {"A": "C"}, {})) or (table, -1)
    assert found.schema == table.schema and dropped == 0
    assert list(
        zip(*(found[c].to_pylist() for c in ("relationship_id", "source", "target")), strict=True)
    ) == [(relationship_id(a, b), a, b) for a, b in [("C", "B"), ("B", "C"), ("D", "C"), ("X", "Y")]]
    loops = rename_relationships(relationships(("A", "B", "d")), Resolution({}, {"A": "B"}, {}))
    assert loops is not None and (loops[0].num_rows, loops[1]) == (0, 1)


def test_relationships_are_split_by_document():
    table = relationships(("A", "B", "d1"), ("A", "B", "d2"))
    found = rename_relationships(table, Resolution({}, {}, {("d2", "A"): "A (X)"}))
    assert found is not None and found[0]["source"].to_pylist() == ["A", "A (X)"]
    assert found[0]["relationship_id"].to_pylist() == [
        relationship_id("A", "B"),
        relationship_id("A (X)", "B"),
    ]


@pytest.mark.parametrize(
    "resolution", [NOWHERE, Resolution({("d", "Q"): "R"}, {"Z": "A"}, {("d", "Z"): "A"})]
)
def test_tables_without_replaced_names_are_left_alone(resolution):
    assert rename_relationships(relationships(("A", "B", "d")), resolution) is None
    assert rename_relationships(relationships(), resolution) is None
    assert rename_claims(claims(("A", "B", "d")), resolution) is None
    assert rename_claims(claims(), resolution) is None


@given(st.lists(st.tuples(short, short, documents), max_size=10), resolutions)
def test_renamed_relationships_have_the_ids_of_their_ends(ends, resolution):
    table = relationships(*((a, b, d) for a, b, d in ends if a != b))
    found = rename_relationships(table, resolution)
    if found is None:
        return
    assert len(found[0]) + found[1] == len(table)
    for row in found[0].to_pylist():
        assert row["source"] != row["target"]
        assert row["relationship_id"] == relationship_id(row["source"], row["target"])


def claims(*ends):
    return instances(
        CLAIM_INSTANCES,
        [
            {
                "claim_id": id_of_claim(a, b, "FACT", "It is."),
                "subject_entity_id": entity_id(a),
                **{"subject": a, "object": b, "type": "FACT", "description": "It is.", "document_id": d},
            }
            for a, b, d in ends
        ],
    )


def test_claims_follow_their_names():
    table = claims(("A", "NONE", "d"), ("B", "A", "d"), ("B", "NONE", "d"))
    found = rename_claims(table, Resolution({}, {"A": "C"}, {}))
    assert found is not None and found.schema == table.schema
    assert found.to_pylist() == claims(("C", "NONE", "d"), ("B", "C", "d"), ("B", "NONE", "d")).to_pylist()
