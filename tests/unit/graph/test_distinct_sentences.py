"""Repeated sentences are removed from texts that a model sees together."""

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.corpus.boundaries import sentences
from graphrag_ray.graph.distinct_sentences import comparison_key, distinct_sentences

TEXTS = st.lists(st.text("aB .!?。\n“”\"'", max_size=30), max_size=6)
SENTENCES = ["Mara opened the mill.", "It burned in 2015!", "市长宣布了计划。", "मेयर ने कहा।", "Why?"]


def keys(text):
    return [comparison_key(" ".join(text[start:end].split())) for start, end in sentences(text)]


def test_only_the_first_of_equal_sentences_is_kept():
    texts = ["Mara opened the mill. It burned.", "Bob saw it. It burned.", "mara  opened the “mill”"]
    assert distinct_sentences(texts) == ["Mara opened the mill. It burned.", "Bob saw it.", ""]


def test_a_repeated_sentence_stays_before_a_new_one_that_may_refer_to_it():
    texts = ["Mara opened the mill.", "Mara opened the mill. It burned. Mara opened the mill."]
    assert distinct_sentences(texts) == ["Mara opened the mill.", "Mara opened the mill. It burned."]


def test_sentences_in_scripts_without_spaces_are_compared():
    assert distinct_sentences(["市长宣布了计划。桥关闭了。", "船来了。桥关闭了。"])[1] == "船来了。"


def test_an_abbreviation_does_not_end_a_sentence():
    assert distinct_sentences(["Dr. Venn came.", "Dr. Who came."]) == ["Dr. Venn came.", "Dr. Who came."]


@given(TEXTS)
def test_texts_keep_their_order_and_gain_nothing(texts):
    result = distinct_sentences(texts)
    assert len(result) == len(texts)
    for before, after in zip(texts, result, strict=True):
        assert before.startswith(after)


@given(st.lists(st.lists(st.sampled_from(SENTENCES), max_size=5), max_size=5))
def test_no_sentence_is_lost_and_every_text_ends_with_a_new_one(lists):
    seen: set[str] = set()
    for text, parts in zip(distinct_sentences([" ".join(parts) for parts in lists]), lists, strict=True):
        found = [text[start:end] for start, end in sentences(text)]
        assert not found or found[-1] not in seen
        seen.update(found)
        assert seen.issuperset(parts)


@given(st.lists(st.lists(st.sampled_from(SENTENCES), max_size=5), max_size=5))
def test_removing_repetitions_twice_changes_nothing(lists):
    once = distinct_sentences([" ".join(parts) for parts in lists])
    assert distinct_sentences(once) == once


@given(st.text(max_size=60))
def test_a_text_without_repetitions_is_unchanged(text):
    if len(set(keys(text))) == len(keys(text)):
        assert distinct_sentences([text]) == [text]
