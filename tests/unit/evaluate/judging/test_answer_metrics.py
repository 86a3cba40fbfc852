"""Answer metrics equal their reference definitions and implementations."""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from types import SimpleNamespace

import pytest
from hostile_text import SURROGATES, texts
from hypothesis import given
from hypothesis import strategies as st
from linear_time import too_slow
from nltk.translate.bleu_score import sentence_bleu
from nltk.translate.meteor_score import meteor_score
from rouge_score.rouge_scorer import RougeScorer

from graphrag_ray.evaluate.judging.answer_metrics import (
    FIXED_ANSWERS,
    MAX_WORDS,
    accuracy,
    answer_scores,
    bleu_1,
    exact_match,
    f1,
    meteor,
    normalise,
    recall,
    rouge_l,
    split_words,
)

SAYINGS = ["the", "The", "a", "an", "cat", "cats", "sat", "on", "mat", "don't", "U.S.", "3.5%", "(b)", "_x_"]
ASCII = st.lists(st.sampled_from([*SAYINGS, "\n", "-"]), max_size=15).map(" ".join) | st.text(
    string.printable.replace("\x0b", "").replace("\x0c", ""), max_size=60
)
HOSTILE = texts() | st.text(st.characters(), max_size=30) | st.lists(SURROGATES | st.text()).map("".join)


# normal forms


def squad(text: str) -> str:
    """Normalise like SQuAD: lower-case, then remove punctuation, articles and whitespace."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(ASCII)
def test_normal_form_of_ascii_text_equals_squad(text: str):
    assert normalise(text) == squad(text)


@given(HOSTILE)
def test_normalisation_is_idempotent_and_storable(text: str):
    form = normalise(text)
    assert normalise(form) == form
    form.encode()


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("The “Café”", "cafe\u0301"),
        ("Ｔｏｋｙｏ　２０２０", "tokyo 2020"),
        ("STRASSE", "Straße"),
        ("ΟΔΟΣ", "οδος"),
        ("l’homme", "l'homme"),
        ("1990–1995", "1990-1995"),
        ("Paris — London", "Paris—London"),
        ("東京。", "東京"),
        ("co\u00adoperate", "cooperate"),
        ("\ufeffMarch\u200b", "march"),
        ("❤️", "❤"),
        ("€ 5", "$ 5"),
        ("e\u200b\u0301", "é"),
    ],
)
def test_equivalent_texts_have_the_same_normal_form(text: str, other: str):
    assert normalise(text) == normalise(other) != ""


@pytest.mark.parametrize(("text", "other"), [("हिन्दी", "हनद"), ("🙂", "👍"), ("naïve", "naive"), ("a1", "1")])
def test_different_texts_have_different_normal_forms(text: str, other: str):
    assert normalise(text) != normalise(other)


@given(ASCII)
def test_words_of_ascii_text_are_runs_of_letters_and_digits(text: str):
    assert split_words(text) == re.findall("[a-z0-9]+", text.lower())


@given(HOSTILE)
def test_words_contain_no_whitespace_and_are_storable(text: str):
    for word in split_words(text):
        assert word and not any(c.isspace() for c in word)
        word.encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mary's café, 12½", ["mary", "s", "café", "121", "2"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("東京 Tokyo塔", ["東", "京", "tokyo", "塔"]),
        ("한국어 책", ["한국어", "책"]),
        ("עִבְרִית—العربية", ["עִבְרִית", "العربية"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("I ❤️ you", ["i", "you"]),
        ("snake_case", ["snake", "case"]),
    ],
)
def test_words_of_all_scripts(text: str, expected: list[str]):
    assert split_words(text) == expected


# measures


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("It was the Kestrel Marine company.", ["kestrel marine"], 1.0),
        ("It was Kestrel.", ["Kestrel Marine"], 0.0),
        ("It was Kestrel.", ["Kestrel Marine", "Kestrel"], 1.0),
        ("They gave a party.", ["art"], 1.0),  # substring test
        ("U.S.", ["US"], 1.0),
        ("在北京市。", ["北京"], 1.0),
        ("anything", ["?!"], 0.0),
        ("", ["the"], 1.0),
        ("", ["cat"], 0.0),
    ],
)
def test_answer_that_contains_a_gold_answer_is_accurate(text: str, gold: list[str], expected: float):
    assert accuracy(text, gold) == expected


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("the red cat", ["cat"], 1.0),
        ("the red cat", ["red red cat"], 2 / 3),
        ("a dog", ["cat", "dog and cat"], 1 / 3),
        ("yes", ["Yes."], 0.0),  # as in ArchRAG, whether right or wrong
        ("Yes, it did", ["yes"], 0.0),
        ("yes and no", ["no yes"], 1.0),
        ("no", ["no one came"], 0.0),
        ("yes", ["no"], 0.0),
        ("noanswer", ["the cat"], 0.0),
        ("yes", ["no", "yes it is"], 0.0),
        ("東京都", ["東京"], 1.0),
        ("", ["the"], 1.0),
        ("cat", ["the"], 0.0),
    ],
)
def test_recall_is_the_share_of_the_gold_words(text: str, gold: list[str], expected: float):
    assert recall(text, gold) == pytest.approx(expected)


def squad_f1(text: str, gold: str) -> float:
    result, wanted = squad(text).split(), squad(gold).split()
    if not result or not wanted:
        return float(result == wanted)
    common = sum((Counter(result) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, share = common / len(result), common / len(wanted)
    return 2 * precision * share / (precision + share)


@given(ASCII, st.lists(ASCII, min_size=1, max_size=3))
def test_exact_match_and_f1_of_ascii_text_equal_squad(text: str, gold: list[str]):
    assert exact_match(text, gold) == max(float(squad(text) == squad(answer)) for answer in gold)
    assert f1(text, gold) == pytest.approx(max(squad_f1(text, answer) for answer in gold))


def test_f1_equals_the_example_in_the_squad_paper():
    # Rajpurkar et al. 2016, figure 1: what causes precipitation to fall?
    assert f1("under gravity", ["gravity"]) == pytest.approx(2 / 3)
    assert f1("the gravity", ["gravity"]) == 1.0
    assert exact_match("Gravity!", ["a gravity"]) == 1.0


@given(ASCII, ASCII)
def test_rouge_l_of_ascii_text_equals_rouge_score(text: str, gold: str):
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    assert rouge_l(text, [gold]) == pytest.approx(scorer.score(gold, text)["rougeL"].fmeasure)


def test_rouge_l_of_long_texts_equals_rouge_score():
    chance = random.Random(5)
    text, gold = (" ".join(str(chance.randrange(600)) for _ in range(n)) for n in (700, 500))
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    assert rouge_l(text, [gold]) == pytest.approx(scorer.score(gold, text)["rougeL"].fmeasure)


def test_rouge_l_equals_the_example_in_the_paper():
    """Lin 2004, 3.1: the LCS of S1 with S2 has three words, with S3 two."""
    police = "police killed the gunman"
    assert rouge_l("police kill the gunman", [police]) == pytest.approx(3 / 4)
    assert rouge_l("the gunman kill police", [police]) == pytest.approx(1 / 2)


def test_rouge_l_reads_only_the_beginning_of_very_long_text():
    text = "cat " * MAX_WORDS
    assert rouge_l(text + "dog " * 50, [text]) == 1.0


@given(ASCII, ASCII)
def test_bleu_1_equals_nltk(text: str, gold: str):
    expected = (
        sentence_bleu([split_words(gold)], split_words(text), weights=(1,)) if split_words(text) else 0.0
    )
    assert bleu_1(text, [gold]) == pytest.approx(expected)


def test_bleu_1_clips_repeated_words_and_penalises_brevity():
    assert bleu_1("the the the the the the the", ["The cat is on the mat."]) == pytest.approx(2 / 7)
    assert bleu_1("the cat", ["the cat is here"]) == pytest.approx(2.718281828**-1)


class NoSynonyms:
    def synsets(self, word: str) -> list[object]:
        return []


@given(ASCII, st.lists(ASCII, min_size=1, max_size=3))
def test_meteor_equals_nltk(text: str, gold: list[str]):
    expected = meteor_score([split_words(answer) for answer in gold], split_words(text), wordnet=NoSynonyms())
    assert meteor(text, gold) == pytest.approx(expected)


def test_meteor_matches_synonyms_if_wordnet_is_given():
    class Synonyms:
        def synsets(self, word: str) -> list[object]:
            lemma = SimpleNamespace(name=lambda: "auto" if word == "car" else word)
            return [SimpleNamespace(lemmas=lambda: [lemma])]

    wordnet, text, gold = Synonyms(), "the red car", ["the red auto"]
    expected = meteor_score([split_words(gold[0])], split_words(text), wordnet=wordnet)
    assert meteor(text, gold, wordnet=wordnet) == pytest.approx(expected)
    assert expected > meteor(text, gold)
    assert answer_scores(text, gold, wordnet)["meteor"] == pytest.approx(expected)


def test_meteor_matches_words_with_the_same_stem():
    assert meteor("cats sitting", ["cat sits"]) == meteor("cat sits", ["cat sits"]) > 0.9
    assert meteor("dogs", ["cat"]) == 0.0


# all of them

MEASURES = [accuracy, recall, exact_match, f1, bleu_1, rouge_l, meteor]


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_need_an_answer(measure: object):
    with pytest.raises(ValueError, match="No answer to compare with"):
        measure("text", [])  # type: ignore[operator]


@given(HOSTILE, HOSTILE)
def test_scores_are_between_0_and_1(text: str, gold: str):
    for other in (gold, text):
        scores = answer_scores(text, [other])
        assert list(scores) == [measure.__name__ for measure in MEASURES]
        assert all(isinstance(score, float) and 0 <= score <= 1 for score in scores.values())


@given(HOSTILE)
def test_identical_text_scores_1(text: str):
    scores = answer_scores(text, [text])
    assert scores["accuracy"] == scores["exact_match"] == scores["f1"] == 1.0
    assert scores["recall"] == (normalise(text) not in FIXED_ANSWERS)
    if split_words(text):
        assert scores["rouge_l"] == scores["bleu_1"] == 1.0


@given(HOSTILE, st.lists(HOSTILE, min_size=2, max_size=3))
def test_best_of_several_answers_counts(text: str, gold: list[str]):
    each = [answer_scores(text, [answer]) for answer in gold]
    assert answer_scores(text, gold) == {name: max(one[name] for one in each) for name in each[0]}


UNITS = ["a ", "y", "ab", "\u0301", "\u0323\u0301", "\u200b\u0301", "字", "ﷺ", "’", "—", "ing ", "ß", "\x00"]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear_in_the_length_of_the_text(unit: str):
    slow = too_slow(lambda text: answer_scores(text, ["The cat sat."]), unit.__mul__, 2_000 // len(unit))
    assert not slow, slow
