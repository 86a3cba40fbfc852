"""Keyword search: any script, any text, ties by id."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.search import keyword
from graphrag_ray.search.mapped_arrays import packed
from graphrag_ray.search.words import MAX_WORD, words

TEXTS = st.dictionaries(st.text("abcdef", min_size=1), st.text(max_size=200), min_size=1, max_size=20)


def shard_of(texts: dict[str, str], language: str = "") -> keyword.KeywordShard:
    shard = keyword.read(keyword.build(list(texts), list(texts.values()), language))
    keyword.check(shard)
    return shard


def found(
    texts: dict[str, str],
    question: str,
    k: int = 10,
    among: list[str] | None = None,
    language: str = "",
) -> list[str]:
    only = None if among is None else pa.array(among, pa.string())
    return [id_ for id_, _ in keyword.search([shard_of(texts, language)], question, k, only)]


def test_the_record_that_holds_the_rarer_words_comes_first():
    texts = {"a": "the mill and the river", "b": "the mill", "c": "the river and the bridge", "d": "nothing"}
    assert found(texts, "the bridge over the river") == ["c", "a", "b"]


def test_records_without_a_word_of_the_question_are_not_found():
    assert found({"a": "mill", "b": "bridge"}, "harbour") == []


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("Die Straße nach Köln", "STRASSE"),
        ("Ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("東京都庁に行きました", "東京"),
        ("水は命です", "水"),
        ("서울에서 만났다", "서울"),
        ("वह हिन्दी बोलता है", "हिन्दी"),
        ("ฉันรักภาษาไทย", "ภาษาไทย"),
        ("كَتَبَ الرسالة", "الرسالة"),
        ("many companies there", "which company?"),
        ("nai\u0308ve", "naïve"),
        ("𝔊𝔯𝔞𝔭𝔥", "graph"),
    ],
)
def test_words_are_found_in_any_script(text: str, question: str):
    assert found({"a": "quite another text", "b": text, "c": "完全に別の文"}, question)[0] == "b"


def test_a_whole_word_is_nearer_than_one_that_begins_like_it():
    texts = {"a": "a microscope on the table", "b": "the microphone of a table", "c": "on a table microsoft"}
    assert found(texts, "Microsoft")[0] == "c"


@pytest.mark.parametrize(
    ("language", "text", "question"),
    [
        ("english", "the policy of the innovators", "policies innovator"),
        ("english", "one planet", "planets"),
        ("german", "die Häuser der Städte", "Haus Stadt"),
        ("french", "des chevaux nationaux", "national"),
        ("russian", "в городах и сёлах", "город"),
        ("english", "東京都庁に行きました", "東京"),
        ("", "one planet", "planets"),
    ],
)
def test_a_word_is_found_in_its_other_forms(language: str, text: str, question: str):
    assert found({"a": "nothing", "b": text}, question, language=language) == ["b"]


def test_a_stem_counts_once():
    texts = {"a": "developers and more words", "b": "develop and more words"}
    shard = shard_of(texts, "english")
    (a, b) = keyword.search([shard], "development", 2)
    assert a[1] == b[1]


def test_what_is_rare_in_the_corpus_counts_as_rare_in_a_shard_where_it_is_common():
    mills = shard_of({f"m{i}": "mill and water" for i in range(9)} | {"m9": "mill, and a bridge in passing"})
    others = shard_of({f"o{i}": f"bridge and ferry {i}" for i in range(90)})
    alone = [id_ for id_, _ in keyword.search([mills], "bridge mill", 1)]
    assert alone == ["m9"]
    (first, *_) = keyword.search([mills, others], "water bridge", 3)
    assert first[0].startswith("m") and first[0] != "m9", "bridges are common in the corpus, and water is not"


@given(TEXTS, st.text(max_size=50), st.integers(1, 4))
def test_into_how_many_shards_records_are_put_changes_nothing(texts: dict[str, str], question: str, n: int):
    together = keyword.search([shard_of(texts)], question, 10)
    ids = list(texts)
    apart = keyword.search([shard_of({i: texts[i] for i in ids[at::n]}) for at in range(n)], question, 10)
    assert [id_ for id_, _ in apart] == [id_ for id_, _ in together]
    assert [score for _, score in apart] == pytest.approx([score for _, score in together])


def test_a_shard_of_an_earlier_version_is_searched_by_the_scores_that_it_holds():
    hashes = keyword._asked("mill river", "")
    before = packed(
        {
            "ids": pa.array(["a", "b"], pa.string()),
            "words": pa.array(hashes),
            "ends": pa.array([1, 3], pa.int64()),
            "records": pa.array([0, 0, 1], pa.int32()),
            "scores": pa.array([0.5, 0.25, 2.0], pa.float32()),
        }
    )
    shard = keyword.read(before)
    keyword.check(shard)
    assert keyword.search([shard], "the mill by the river", 5) == [("b", 2.0), ("a", 0.75)]


def test_equal_records_come_in_the_order_of_their_ids():
    assert found({"c": "mill", "a": "mill", "b": "mill"}, "mill", k=2) == ["a", "b"]


def test_only_records_among_the_wanted_ones_count():
    texts = {"a": "mill mill", "b": "mill", "c": "mill and more", "d": "bridge"}
    assert found(texts, "mill", among=["b", "c", "d", "unknown"]) == ["b", "c"]
    assert found(texts, "mill", among=[]) == []


@given(TEXTS, st.data())
def test_whatever_holds_a_word_is_found_by_it(texts: dict[str, str], data: st.DataObject):
    id_ = data.draw(st.sampled_from(sorted(texts)))
    for word in words(texts[id_])[:5]:
        question = word.removesuffix("*")
        expected = {i for i, text in texts.items() if set(words(text)) & set(words(question))}
        assert set(found(texts, question, k=len(texts))) == expected


@given(TEXTS, st.text())
def test_the_order_of_records_changes_no_byte_of_a_shard(texts: dict[str, str], question: str):
    once = keyword.build(list(texts), list(texts.values()))
    again = keyword.build(list(texts)[::-1], list(texts.values())[::-1])
    assert once.equals(again)


@given(TEXTS, st.text(max_size=50), st.integers(1, 25))
def test_fewer_hits_are_the_first_of_more(texts: dict[str, str], question: str, k: int):
    assert found(texts, question, k) == found(texts, question, 100)[:k]


@pytest.mark.parametrize(
    "hostile", ["\u0301" * 200_000, "a" * 200_000, "字" * 200_000, "\ud800", "ﷺ" * 5_000, "\0"]
)
def test_hostile_texts_take_no_time_and_do_no_harm(hostile: str):
    assert len(words(hostile)) <= 20 * len(hostile)
    assert max(map(len, words(hostile)), default=0) <= MAX_WORD
    found({"a": "mill", "b": "x"}, hostile)


def test_shards_without_a_single_word_can_be_searched():
    assert found({"a": "", "b": "…"}, "mill") == []
