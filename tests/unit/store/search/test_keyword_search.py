"""Keyword search in any script and text."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search import keyword_index
from graphrag_ray.store.search.keyword_index import K1, MAX_COUNT, B, KeywordShard
from graphrag_ray.store.search.mapped_arrays import InMemory, join_halves, valid_ids
from graphrag_ray.store.search.tokenizer import MAX_WORD, tokenize

TEXTS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=8), st.text(max_size=200), min_size=1, max_size=20
)
Hits = list[tuple[str, float]]


def make_id(name: str) -> str:
    """Return an id for a name of up to eight bytes. Ids sort like names."""
    return name.encode().ljust(8, b"\0").hex() * 2


def name_of(id_: str) -> str:
    return bytes.fromhex(id_[:16]).rstrip(b"\0").decode()


def build_shard(texts: dict[str, str], language: str = "") -> KeywordShard:
    data = keyword_index.build([make_id(name) for name in texts], list(texts.values()), language)
    return keyword_index.read(InMemory.of(data))


def search_shards(
    shards: list[KeywordShard], question: str, k: int = 10, among: list[str] | None = None
) -> Hits:
    only = None if among is None else [make_id(name) for name in among]
    return [(name_of(id_), score) for id_, score in keyword_index.search(shards, question, k, only)]


def search_texts(
    texts: dict[str, str],
    question: str,
    k: int = 10,
    among: list[str] | None = None,
    language: str = "",
) -> list[str]:
    return [name for name, _ in search_shards([build_shard(texts, language)], question, k, among)]


def brute_force(
    texts: dict[str, str], question: str, k: int, among: list[str] | None = None, language: str = ""
) -> Hits:
    """Compute BM25 of all records one by one."""
    counts = {name: Counter(tokenize(text, language)) for name, text in texts.items()}
    n, n_words = len(texts), sum(of.total() for of in counts.values())
    frequency = {w: sum(w in of for of in counts.values()) for w in set(tokenize(question, language))}
    idf = {w: math.log(1 + (n - f + 0.5) / (f + 0.5)) for w, f in frequency.items() if f}
    scores = {}
    for name in texts if among is None else set(among) & texts.keys():
        of, length = counts[name], counts[name].total() / (n_words / n or 1)
        scores[name] = math.fsum(
            idf[w] * min(of[w], MAX_COUNT) / (min(of[w], MAX_COUNT) + K1 * (1 - B + B * length)) for w in idf
        )
    return sorted(((name, s) for name, s in scores.items() if s > 0), key=lambda hit: (-hit[1], hit[0]))[:k]


def assert_same(hits: Hits, expected: Hits, every: Hits) -> None:
    """Compare with `every`, the brute-force result, up to rounding."""
    assert [score for _, score in hits] == pytest.approx([score for _, score in expected], rel=1e-9)
    scores = dict(every)
    assert all(score == pytest.approx(scores[name], rel=1e-9) for name, score in hits)
    assert len({name for name, _ in hits}) == len(hits)
    assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


def test_records_with_rarer_words_rank_first():
    texts = {"a": "the mill and the river", "b": "the mill", "c": "the river and the bridge", "d": "nothing"}
    assert search_texts(texts, "the bridge over the river") == ["c", "a", "b"]


def test_records_without_question_words_are_not_found():
    assert search_texts({"a": "mill", "b": "bridge"}, "harbour") == []


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
    assert search_texts({"a": "quite another text", "b": text, "c": "完全に別の文"}, question)[0] == "b"


def test_whole_word_ranks_above_a_shared_prefix():
    texts = {"a": "a microscope on the table", "b": "the microphone of a table", "c": "on a table microsoft"}
    assert search_texts(texts, "Microsoft")[0] == "c"


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
def test_inflected_forms_are_found(language: str, text: str, question: str):
    assert search_texts({"a": "nothing", "b": text}, question, language=language) == ["b"]


def test_stem_counts_once():
    texts = {"a": "developers and more words", "b": "develop and more words"}
    shard = build_shard(texts, "english")
    a, b = search_shards([shard], "development", 2)
    assert a[1] == b[1]


def test_document_frequency_covers_all_shards():
    mills = build_shard(
        {f"m{i}": "mill and water" for i in range(9)} | {"m9": "mill, and a bridge in passing"}
    )
    others = build_shard({f"o{i}": f"bridge and ferry {i}" for i in range(90)})
    assert [name for name, _ in search_shards([mills], "bridge mill", 1)] == ["m9"]
    (first, *_) = search_shards([mills, others], "water bridge", 3)
    assert first[0].startswith("m") and first[0] != "m9", "bridges are common in the corpus, and water is not"


@given(TEXTS, st.text(max_size=50), st.integers(1, 4), st.integers(1, 6))
def test_number_of_shards_does_not_change_results(texts: dict[str, str], question: str, n: int, k: int):
    question = f"{question} {next(iter(texts.values()))[:50]}"
    together = search_shards([build_shard(texts)], question, k)
    ids = list(texts)
    shards = [build_shard({i: texts[i] for i in ids[at::n]}) for at in range(n)]
    assert search_shards(shards, question, k) == together
    assert search_shards(shards[::-1], question, k) == together


@given(TEXTS, st.text(max_size=50), st.integers(1, 9), st.data())
def test_scores_follow_the_formula(texts: dict[str, str], question: str, k: int, data: st.DataObject):
    question = f"{question} {data.draw(st.sampled_from(list(texts.values())))}"
    among = data.draw(st.none() | st.lists(st.sampled_from([*texts, "unknown"])))
    language = data.draw(st.sampled_from(["", "english"]))
    expected = brute_force(texts, question, k, among, language)
    every = brute_force(texts, question, len(texts), None, language)
    assert_same(search_shards([build_shard(texts, language)], question, k, among), expected, every)


VOCABULARY = [f"w{n}" for n in range(60)]
WEIGHTS = 1 / np.arange(1, len(VOCABULARY) + 1)


def corpus(seed: int, n: int = 300) -> dict[str, str]:
    """Texts with few frequent and many rare words, some of them equal."""
    dice = np.random.default_rng(seed)
    lengths = dice.choice([1, 2, 5, 20, 80], n)
    drawn = dice.choice(VOCABULARY, lengths.sum(), p=WEIGHTS / WEIGHTS.sum())
    return {f"{at:03}": " ".join(words) for at, words in enumerate(np.split(drawn, np.cumsum(lengths)[:-1]))}


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 5), st.data())
def test_skipping_records_does_not_change_results(seed: int, k: int, n: int, data: st.DataObject):
    """For any k, any ids and any number of shards."""
    texts = corpus(seed)
    dice = np.random.default_rng(seed)
    names = dice.permutation(list(texts)).tolist()
    cut = sorted(dice.integers(0, len(names), n - 1).tolist())
    shards = [
        build_shard({name: texts[name] for name in names[a:b]})
        for a, b in zip([0, *cut], [*cut, len(names)], strict=True)
    ]
    for _ in range(5):
        question = " ".join(data.draw(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8)))
        among = data.draw(st.none() | st.integers(0, 60).map(lambda size: names[:size]))
        expected = brute_force(texts, question, k, among)
        assert_same(
            search_shards(shards, question, k, among), expected, brute_force(texts, question, len(texts))
        )


def test_records_that_cannot_be_among_the_best_are_skipped(monkeypatch: pytest.MonkeyPatch):
    """This makes long questions fast."""
    texts = {f"{at:03}": "rare thing" if at < 5 else "the frequent ones" for at in range(900)}
    scored: list[int] = []
    search = keyword_index._score

    def record_call(*args: Any) -> Any:
        positions, scores = search(*args)
        scored.append(len(positions))
        return positions, scores

    monkeypatch.setattr(keyword_index, "_score", record_call)
    shard = build_shard(texts)
    assert hit_names(search_shards([shard], "the rare thing and the frequent ones", 3)) == [
        "000",
        "001",
        "002",
    ]
    assert scored == [5]


def hit_names(hits: Hits) -> list[str]:
    return [name for name, _ in hits]


@pytest.mark.parametrize("among", [None, ["001", "150", "299"]])
def test_only_postings_of_question_words_are_read(watched: Any, among: list[str] | None):
    texts = corpus(7) | {f"x{n:04}": f"y{n}" for n in range(3_000)}
    data = keyword_index.build([make_id(name) for name in texts], list(texts.values()))
    source = watched(data)
    shard = keyword_index.read(source)
    source.forget()
    hits = search_shards([shard], "w50 w40 y77", 3, among)
    assert hits and hits == search_shards([keyword_index.read(InMemory.of(data))], "w50 w40 y77", 3, among)
    n_postings = sum(len({"w50", "w40", "y77"} & set(text.split())) for text in texts.values())
    for name, size in (("records", 4), ("counts", 2)):
        array = shard.arrays[name]
        assert source.needed[array.begin : array.begin + array.values.nbytes].sum() == n_postings * size
    for name in ("high", "low", "words"):
        array = shard.arrays[name]
        assert source.needed[array.begin : array.begin + array.values.nbytes].mean() < 0.2


def test_word_counts_are_capped():
    texts = {"a": "mill " * 70_000, "b": "mill " * 5, "c": "river"}
    expected = brute_force(texts, "mill", 5)
    assert_same(search_shards([build_shard(texts)], "mill", 5), expected, expected)


@pytest.mark.parametrize("k", [0, -1])
def test_k_of_zero_finds_nothing(k: int):
    assert search_texts({"a": "mill", "b": "mill"}, "mill", k) == []
    assert keyword_index.search([], "mill", 5) == []


def test_empty_shard_is_searched():
    assert search_texts({}, "mill") == []
    assert hit_names(search_shards([build_shard({}), build_shard({"a": "mill"})], "mill")) == ["a"]


def test_shards_of_several_languages_are_searched_together():
    shards = [build_shard({"a": "policies"}, "english"), build_shard({"b": "die Häuser"}, "german")]
    assert sorted(hit_names(search_shards(shards, "policy Haus"))) == ["a", "b"]


@pytest.mark.parametrize("bad", ["", "a", "z" * 32, "0" * 33, "0" * 31 + "é"])
def test_invalid_id_is_refused(bad: str):
    with pytest.raises(ValueError, match=r"hex"):
        keyword_index.build([bad], ["mill"])
    with pytest.raises(ValueError, match=r"hex"):
        keyword_index.search([build_shard({"a": "mill"})], "mill", 5, [bad])
    assert valid_ids([bad, make_id("a"), make_id("a")]) == [make_id("a")]


def test_ids_round_trip():
    ids = [hashlib.sha256(str(n).encode()).hexdigest()[:32] for n in range(50)] + ["0" * 32, "f" * 32]
    shard = keyword_index.read(InMemory.of(keyword_index.build(ids, ["mill"] * len(ids))))
    assert [id_ for id_, _ in keyword_index.search([shard], "mill", 100)] == sorted(ids)
    assert join_halves(np.zeros(0, np.uint64), np.zeros(0, np.uint64)) == []


def test_text_that_cannot_be_tokenized_is_reported_and_not_found(monkeypatch: pytest.MonkeyPatch):
    def broken(text: str, language: str) -> list[str]:
        if text == "broken":
            raise IndexError(text)
        return tokenize(text, language)

    monkeypatch.setattr(keyword_index, "tokenize", broken)
    failures: list[tuple[str, str]] = []
    ids, texts = [make_id("a"), make_id("b")], ["broken", "mill"]
    data = keyword_index.build(ids, texts, "", lambda id_, e: failures.append((name_of(id_), str(e))))
    assert failures == [("a", "broken")]
    shard = keyword_index.read(InMemory.of(data))
    assert len(shard) == 2 and hit_names(search_shards([shard], "broken mill")) == ["b"]
    with pytest.raises(IndexError, match="broken"):
        keyword_index.build(ids, texts)


def test_ties_are_sorted_by_id():
    assert search_texts({"c": "mill", "a": "mill", "b": "mill"}, "mill", k=2) == ["a", "b"]


def test_search_is_limited_to_given_ids():
    texts = {"a": "mill mill", "b": "mill", "c": "mill and more", "d": "bridge"}
    assert search_texts(texts, "mill", among=["b", "c", "d", "unknown"]) == ["b", "c"]
    assert search_texts(texts, "mill", among=[]) == []


@given(TEXTS, st.data())
def test_every_record_is_found_by_its_words(texts: dict[str, str], data: st.DataObject):
    id_ = data.draw(st.sampled_from(sorted(texts)))
    for word in tokenize(texts[id_])[:5]:
        question = word.removesuffix("*")
        expected = {i for i, text in texts.items() if set(tokenize(text)) & set(tokenize(question))}
        assert set(search_texts(texts, question, k=len(texts))) == expected


@given(TEXTS)
def test_bytes_do_not_depend_on_the_order_of_records(texts: dict[str, str]):
    ids, all_texts = [make_id(name) for name in texts], list(texts.values())
    assert keyword_index.build(ids, all_texts) == keyword_index.build(ids[::-1], all_texts[::-1])


@given(TEXTS, st.text(max_size=50), st.integers(1, 25))
def test_fewer_results_are_a_prefix_of_more(texts: dict[str, str], question: str, k: int):
    assert search_texts(texts, question, k) == search_texts(texts, question, 100)[:k]


@pytest.mark.parametrize(
    "hostile", ["\u0301" * 200_000, "a" * 200_000, "字" * 200_000, "\ud800", "ﷺ" * 5_000, "\0"]
)
def test_hostile_texts_are_processed_quickly(hostile: str):
    assert len(tokenize(hostile)) <= 20 * len(hostile)
    assert max(map(len, tokenize(hostile)), default=0) <= MAX_WORD
    search_texts({"a": "mill", "b": "x"}, hostile)


def test_shards_without_words_can_be_searched():
    assert search_texts({"a": "", "b": "…"}, "mill") == []
