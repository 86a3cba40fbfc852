"""Files of published data sets, in the form in which they are published."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import UsageError
from graphrag_ray.corpus.table_rows import TableRow
from graphrag_ray.evaluate.datasets import (
    CORPORA,
    QUESTIONS,
    passage_id,
    read_corpus,
    read_questions,
    to_question_rows,
    write_corpus,
)
from graphrag_ray.evaluate.evaluation_files import gold_questions, read_imported_answers, to_gold_questions

HOTPOT = {
    "_id": "5a8b",
    "question": "Who built the mill of Hask?",
    "answer": "Mara Venn",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Hask", 1], ["Mara Venn", 0], ["Hask", 9]],
    "context": [
        ["Hask", ["Hask is a marsh.", " Its mill was built by a baker."]],
        ["Mara Venn", ["Mara Venn was a baker."]],
        ["Orla Quist", ["Orla Quist sailed."]],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "When was the founder of Hask born?",
    "answer": "1950",
    "answer_aliases": ["in 1950"],
    "paragraphs": [
        {"idx": 0, "title": "Hask", "paragraph_text": "Venn founded Hask.", "is_supporting": True},
        {"idx": 1, "title": "Hask", "paragraph_text": "Hask is also a film.", "is_supporting": False},
    ],
}
MULTIHOP_RAG = {
    "query": "Which paper wrote on both mills?",
    "answer": "The Courier",
    "question_type": "inference_query",
    "evidence_list": [
        {
            "title": "Mills",
            "fact": "The mill is sold.",
            "url": "https://example.org/1",
            "source": "The Courier",
        },
        {"title": "More mills", "fact": "The mill burned.", "url": "https://example.org/2"},
    ],
}
GRAPHRAG_BENCH = {
    "id": "Novel-55f0c0e2",
    "source": "Novel-47558",
    "question": "What is Hask?",
    "answer": "A marsh",
    "question_type": "Fact Retrieval",
    "evidence": ["Hask is a marsh."],
    "evidence_relations": "Hask is a marsh",
}
QED = {
    "id": "q1",
    "text": "What do people say about Hask?",
    "question_type": "data_global",
    "references": ["t1"],
    "attributes": {"assertions": ["Hask is wet.", {"statement": "Hask is flat.", "score": 9}]},
}


def written(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value), "utf-8")
    return str(path)


def test_hotpot_questions_have_their_type_titles_and_supporting_sentences(tmp_path: Path):
    (q,), warnings = gold_questions(written(tmp_path / "hotpot_dev.json", [HOTPOT]), {})
    assert (q.question.id, q.answers, q.type) == ("5a8b", ("Mara Venn",), "bridge")
    assert q.documents == ("Hask", "Mara Venn") and not warnings
    assert q.evidence == ("Its mill was built by a baker.", "Mara Venn was a baker.")


def test_hotpot_rows_of_hugging_face_are_the_same(tmp_path: Path):
    row = {k: v for k, v in HOTPOT.items() if k != "_id"} | {
        "id": "5a8b",
        "supporting_facts": {"title": ["Hask", "Mara Venn", "Hask"], "sent_id": [1, 0, 9]},
        "context": {
            "title": [title for title, _ in HOTPOT["context"]],  # type: ignore[attr-defined]
            "sentences": [sentences for _, sentences in HOTPOT["context"]],  # type: ignore[attr-defined]
        },
    }
    first, second = written(tmp_path / "a.json", [HOTPOT]), written(tmp_path / "b.json", [row])
    assert gold_questions(first, {}) == gold_questions(second, {})
    assert list(read_corpus(first)) == list(read_corpus(second))


def test_musique_documents_are_the_supporting_paragraphs_and_not_others_with_their_title(tmp_path: Path):
    file = written(tmp_path / "musique.json", [MUSIQUE])
    (q,), _ = gold_questions(file, {})
    assert q.answers == ("1950", "in 1950") and q.type == "2hop"
    passages = {row["id"]: row["text"] for row in read_corpus(file)}
    assert [passages[id_] for id_ in q.documents] == ["Hask\nVenn founded Hask."]
    assert q.other_names == {q.documents[0]: "Hask"}
    corpus = written(tmp_path / "musique_corpus.json", [{"title": "Hask", "text": "Venn founded Hask."}])
    assert [row["id"] for row in read_corpus(corpus)] == list(q.documents)


def test_multihop_rag_documents_are_articles_and_evidence_their_facts(tmp_path: Path):
    empty = {"query": "Who?", "answer": "Insufficient information.", "evidence_list": []}
    file = written(tmp_path / "MultiHopRAG.json", [MULTIHOP_RAG, empty])
    q, null = gold_questions(file, {})[0]
    assert q.question.text == MULTIHOP_RAG["query"] and q.type == "inference_query"
    assert q.documents == ("https://example.org/1", "https://example.org/2")
    assert q.other_names["https://example.org/1"] == "Mills"
    assert q.evidence == ("The mill is sold.", "The mill burned.") and not null.documents
    article = {"title": "Mills", "body": "The mill is sold.", "url": "https://example.org/1"}
    article |= {"source": "The Courier", "published_at": "2023-10-01T14:00:29+00:00", "category": "business"}
    (row,) = read_corpus(written(tmp_path / "corpus.json", [article]))
    assert (row["id"], row["date"], row["source"]) == (
        "https://example.org/1",
        "2023-10-01T14:00:29+00:00",
        "The Courier",
    )


def test_graphrag_bench_may_repeat_an_id(tmp_path: Path):
    other = GRAPHRAG_BENCH | {"question": "What is Venn?", "source": "Novel-4128"}
    file = written(tmp_path / "novel_questions.json", [GRAPHRAG_BENCH, other])
    gold, _ = gold_questions(file, {})
    assert [q.question.id for q in gold] == ["Novel-55f0c0e2", "Novel-55f0c0e2#2"]
    assert gold[0].type == "Fact Retrieval" and gold[0].evidence == ("Hask is a marsh.",)
    assert [row["source"] for row in read_questions(file)] == ["Novel-47558", "Novel-4128"]
    book = {"corpus_name": "Medical", "context": "Hask is a marsh."}
    for content in (book, [book]):  # medical.json is a single object.
        (row,) = read_corpus(written(tmp_path / "medical.json", content))
        assert row == {"id": "Medical", "title": "Medical", "text": "Hask is a marsh."}


def test_narrative_questions_have_two_answers_and_their_story(tmp_path: Path):
    file = tmp_path / "qaps.csv"
    header = "document_id,set,question,answer1,answer2,question_tokenized"
    file.write_text(f'{header}\nab12,test,"Who built it, and why?",Mara,A baker,who\n')
    (q,), _ = gold_questions(str(file), {})
    assert (q.answers, q.documents) == (("Mara", "A baker"), ("ab12",))
    summaries = tmp_path / "summaries.csv"
    summaries.write_text("document_id,set,summary,summary_tokenized\nab12,test,A baker builds a mill.,a\n")
    (row,) = read_corpus(str(summaries))
    assert (row["id"], row["text"]) == ("ab12", "A baker builds a mill.")


def test_benchmark_qed_questions_have_assertions(tmp_path: Path):
    (q,), _ = gold_questions(written(tmp_path / "selected_questions.json", [QED]), {})
    assert (q.question.text, q.type) == (QED["text"], "data_global")
    assert q.assertions == ("Hask is wet.", "Hask is flat.") and not q.answers
    listed = {
        "question_id": "q1",
        "question_text": QED["text"],
        "assertions": [{"statement": "Hask is wet."}],
    }
    (q,), _ = gold_questions(written(tmp_path / "assertions.json", [listed]), {})
    assert (q.question.id, q.assertions) == ("q1", ("Hask is wet.",))
    answers = written(tmp_path / "vector.json", [{"question_id": "q1", "answer": "It is wet."}])
    assert read_imported_answers(answers, {}, [q.question])[0] == {"q1": "It is wet."}


def test_corpus_is_written_as_input_rows_without_repeats(tmp_path: Path):
    other = HOTPOT | {"_id": "2"}
    out = tmp_path / "passages.jsonl"
    assert write_corpus(written(tmp_path / "h.json", [HOTPOT, other]), str(out)) == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["title"] for row in rows] == ["Hask", "Mara Venn", "Orla Quist"]
    assert rows[0]["text"] == "Hask\nHask is a marsh. Its mill was built by a baker."


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not JSON"),
        ('{"data": []}', "must contain a JSON array"),
        ('"text"', "must contain a JSON array"),
        ("[]", "contains no valid question"),
        ("[1, null]", "row 1: not a JSON object"),
        (
            '[{"prompt": "Who?", "answer": "I"}]',
            "no column question or question_text; it has prompt, answer. It is",
        ),
        ('[{"question": "Who?"}]', "neither answers nor documents nor assertions"),
        ("[" * 100_000, "not JSON|nested too deeply"),
        ("[" * 900 + "]" * 900, "nested too deeply|not a JSON object"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, content: str, told: str):
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(UsageError, match=told):
        gold_questions(str(tmp_path / "q.json"), {})


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path):
    text = json.dumps([HOTPOT]).replace("Hask is", "\\ud800 is")
    (tmp_path / "h.json").write_text(text)
    assert write_corpus(str(tmp_path / "h.json"), str(tmp_path / "out.jsonl")) == 3


def test_corpus_of_unknown_layout_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"not the corpus of a known data set. Known are: HotpotQA"):
        list(read_corpus(written(tmp_path / "c.json", [{"name": "Hask"}])))
    with pytest.raises(UsageError, match="row 2: not a JSON object"):
        list(read_corpus(written(tmp_path / "c.json", [{"title": "Hask", "text": "A marsh."}, 7])))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["title", "sentences", "sent_id", "url", "fact", "assertions", "is_supporting"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(st.data())
def test_any_values_in_a_known_layout_are_read_or_refused(data: st.DataObject):
    layout = data.draw(st.sampled_from([*QUESTIONS, *CORPORA]))
    row = {column: data.draw(VALUES, label=column) for column in sorted(layout.columns | {"context"})}
    for converted in layout.convert(row):
        assert "text" in converted or "question" in converted
    with suppress(UsageError):
        to_gold_questions(to_question_rows([TableRow(1, row)]), "f")


@given(st.text(), st.text())
def test_passage_ids_depend_on_title_and_text(title: str, text: str):
    assert passage_id(title, text) == passage_id(title, text) != passage_id(f"{title}x", text)
