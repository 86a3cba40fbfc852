"""Finding the sentences that support passages of an answer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from linear_time import too_slow

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query.methods.evidence import MAX_SENTENCES, find_evidence, passages

CHUNKS = [
    "The ferry was late. Nobody minded, for it rained.",
    "On Monday the council met. The mayor rejected the harbour loan,\nwhich had been asked for twice. "
    "“So be it,” he said.",
    "Seven boats were sold in spring. The marsh was drained a year later.",
]


def test_passage_is_text_before_reference_in_paragraph():
    answer = (
        "# Harbour\n\nIt began early.\n\n**The mayor**: He said no [Data: Reports (4)]. Later he resigned "
        "[Data: Reports (4, 7); Entities (2)] [Data: Reports (9)].\n- The boats went. [Data: Reports (9)]"
    )
    assert passages(answer) == {
        Reference("Reports", "4"): ["He said no", ". Later he resigned"],
        Reference("Reports", "7"): [". Later he resigned"],
        Reference("Entities", "2"): [". Later he resigned"],
        Reference("Reports", "9"): [". Later he resigned", "- The boats went."],
    }


def test_passage_ends_before_any_form_of_reference():
    assert passages("He said no [Reports: 4]. The boats went (Data: Reports (9)).") == {
        Reference("Reports", "4"): ["He said no"],
        Reference("Reports", "9"): [". The boats went"],
    }


def test_reference_on_its_own_line_belongs_to_previous_paragraph():
    assert passages("The boats were sold.\n\n[Data: Reports (1)]\n") == {
        Reference("Reports", "1"): ["The boats were sold."]
    }


def test_quotation_is_found_despite_formatting():
    result = [
        'It is told that “the mayor rejected the harbour loan, which had been asked for twice. "So be it,"”'
    ]
    ((found,), shares) = find_evidence(result, CHUNKS)
    assert found.verbatim and found.text == 1 and shares[1] == 1.0
    quote = CHUNKS[1][found.start : found.end]
    assert quote.startswith("The mayor rejected") and quote.endswith("“So be it,”")


def test_quotation_with_omission_is_found_by_longest_part():
    ((found,), _) = find_evidence(["“Seven boats […] The marsh was drained a year later”"], CHUNKS)
    assert CHUNKS[found.text][found.start : found.end] == "The marsh was drained a year later"


def test_paraphrase_finds_most_similar_sentence():
    ((found,), shares) = find_evidence(["The harbour's loan was refused: a rejection by the mayor."], CHUNKS)
    assert not found.verbatim
    assert CHUNKS[found.text][found.start : found.end].startswith("The mayor rejected the harbour loan")
    assert max(shares) == shares[1]


def test_dissimilar_passage_has_no_evidence():
    assert find_evidence(["Prices of lasagne rose in Mongolia."], CHUNKS)[0] == []


def test_limit_applies_only_to_paraphrases():
    texts = [" ".join(f"Word{n} alpha{n} beta{n} gamma{n}." for n in range(12))]
    quotes = [f"“Word{n} alpha{n} beta{n} gamma{n}.”" for n in range(8)]
    found, _ = find_evidence([*quotes, "Gamma11 and beta11 and alpha11 and word11."], texts)
    assert len(found) == 8 and all(f.verbatim for f in found)
    assert (
        len(find_evidence([f"Gamma{n} or beta{n} or alpha{n}" for n in range(12)], texts)[0]) == MAX_SENTENCES
    )


@given(
    st.lists(st.text(alphabet='ab “”".!?\n…', max_size=60), max_size=3),
    st.lists(st.text(alphabet='ab “”".!?\n…', max_size=60), max_size=3),
)
def test_evidence_is_within_its_chunk_without_overlap(result, texts):
    found, shares = find_evidence(result, texts)
    assert len(shares) == len(texts)
    assert all(0 <= f.start < f.end <= len(texts[f.text]) and 0 < f.share <= 1.0001 for f in found)
    spans = sorted((f.text, f.start, f.end) for f in found)
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(spans))


def test_quotation_with_final_omission_includes_full_stop():
    (found, *_), _ = find_evidence(
        ["“The mayor rejected the harbour loan. […]”"], ["The mayor rejected the harbour loan. So."]
    )
    assert (found.start, found.end, found.verbatim) == (0, 36, True)


def test_evidence_search_is_fast_on_large_input():
    def found(sentences: list[str]) -> None:
        find_evidence(sentences, [" ".join(sentences)])

    assert not too_slow(found, lambda n: [f"Name{i} Surname met Other{i} Person." for i in range(n)], 400)


def test_texts_without_words_give_no_evidence():
    result = ["The mayor rejected the harbour loan for ever."]
    assert find_evidence(result, ["… --- !!!", " ", ""]) == ([], [0.0, 0.0, 0.0])
    found, _ = find_evidence(result, ["*** ", *CHUNKS])
    assert [f.text for f in found] == [2]
