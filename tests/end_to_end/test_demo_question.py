"""The question of `make demo` has an answer on the demo corpus, and its sources lead to the text."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from world import Silent

from graphrag_ray import open_index
from graphrag_ray.base.context_records import parse_references
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.cli import answer_output
from graphrag_ray.corpus.quotes import quotations_in
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.indexing.index import index
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.methods import METHODS
from graphrag_ray.store.files import Store

TOP = Path(__file__).parents[2]
QUESTION = re.search(r'query "(.+?)"', (TOP / "Makefile").read_text()).group(1)
REFERENCE = r"\[Data: Reports \((\d+)(?:, \d+)*\)\]"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Index:
    root = str(tmp_path_factory.mktemp("demo"))
    settings = Settings()
    executor = LocalExecutor(Store(root), Models.from_settings(settings))
    index(str(TOP / "demo" / "corpus"), executor, settings, Silent())
    return open_index(root)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_question_of_make_demo_is_answered_with_three_references(demo: Index):
    answer = demo.ask(QUESTION)
    assert answer.found and len(answer.references) >= 3


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].hierarchy])
def test_no_question_of_the_documentation_ends_empty_handed(demo: Index, method: str):
    documents = {d["path"]: d["text"] for d in demo.table("documents").to_pylist()}
    for question in (
        "Who opposed the harbour?",
        "What did the mayor promise?",
        "Which risks do they agree on?",
    ):
        answer = demo.ask(question, method=method)
        assert answer.found or answer.passages, question
        assert not (answer.found and answer.passages), question
        for passage in answer.passages:
            if ", row" not in passage.document:
                assert documents[passage.document][passage.start : passage.end] == passage.text


def test_passages_respect_conditions(demo: Index):
    answer = demo.ask("Who opposed the harbour?", method="hybrid", where=["date>=2018"])
    dates = {d["path"]: d["creation_date"] for d in demo.table("documents").to_pylist()}
    assert answer.passages and all(dates[p.document.partition(",")[0]] >= "2018" for p in answer.passages)


@pytest.mark.parametrize("level", ["C0", "C1"])
def test_quotations_of_an_answer_have_the_right_location(
    demo: Index, level: str, monkeypatch: pytest.MonkeyPatch
):
    answer = demo.ask(QUESTION, level)
    out = io.StringIO()
    monkeypatch.setattr(answer_output, "make_console", lambda: Console(file=out, width=80, soft_wrap=True))
    answer_output.print_answer(answer, demo, demo.sources(answer.references, answer))
    reports = dict(re.findall(r"^Report (\d+): .*\n((?:  .*\n)+)", out.getvalue(), re.MULTILINE))
    documents = {
        d["path"] + (f", row {d['row']}" if d["row"] else ""): d["text"]
        for d in demo.table("documents").to_pylist()
    }
    quotations = list(zip(quotations_in(answer.text), re.findall(REFERENCE, answer.text), strict=True))
    assert len(quotations) >= 10
    for quotation, report in quotations:
        printed = re.findall(r"^  (.+), character (\d+): “(.+)”$", reports[report], re.MULTILINE)
        ((place, start),) = {(p, int(s)) for p, s, quote in printed if quote == quotation}
        assert one_line(documents[place][start:]).startswith(quotation)


def whole(quotation: str) -> str:
    """The longest part of a quotation with an omission."""
    return max(quotation.split("[…]"), key=len).strip()


WAYS = ["vector", "hybrid", "local"]
ASKED = [
    "What happened to Hask Marsh?",
    "What did Professor Hedvika Sorley say?",
    "What are the main themes?",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("question", ASKED)
def test_every_cited_record_leads_to_the_location_of_its_quotation(demo: Index, way: str, question: str):
    answer = demo.ask(question, method=way)
    sources = {
        (s.record["section"], str(s.record["human_readable_id"])): s
        for s in demo.sources(answer.references, answer)
    }
    documents = {(d["path"], d["row"]): d["text"] for d in demo.table("documents").to_pylist()}
    said = list(re.finditer(r"“(.+?)” (\[Data: [^]]+\])", answer.text))
    assert len(said) >= 4
    for quotation, markers in (m.groups() for m in said):
        for reference in parse_references(markers):
            evidence = sources[reference.section, reference.id].evidence
            (found, *_) = [e for e in evidence if e["verbatim"] and one_line(e["quote"]) == whole(quotation)]
            text = documents[found["document"], found["row"]]
            assert text[found["start"] : found["end"]] == found["quote"]


@pytest.mark.parametrize("way", WAYS)
def test_lookup_methods_answer_a_plain_question(demo: Index, way: str):
    answer = demo.ask("Who is Professor Hedvika Sorley?", method=way)
    assert answer.found and "Hedvika Sorley" in answer.text
    assert answer.contexts[0].n_tokens <= demo.settings.query.context_tokens


@pytest.mark.parametrize("way", WAYS)
def test_lookup_methods_find_nothing_for_an_unrelated_question(demo: Index, way: str):
    answer = demo.ask("How do I prune roses in winter?", method=way)
    assert not answer.found and answer.references == ()
    assert any("found too few of these: prune, roses, winter." in note for note in answer.notes)


def test_sources_start_with_quoted_text(demo: Index):
    answer = demo.ask(QUESTION)
    for source in demo.sources(answer.references, answer):
        first, best = source.evidence[0], source.chunks[0]
        assert first["verbatim"] and one_line(first["quote"]) in answer.text
        assert first["chunk"] == best["human_readable_id"] and best["quote_start"] == first["start"]
    assert all(s.evidence == [] for s in demo.sources(answer.references))


def test_a_paraphrased_answer_leads_to_the_supporting_sentence(demo: Index):
    answer = demo.ask(QUESTION)
    number = next(
        c.number for c in demo.cited_records(answer.references) if "Friends of Hask Marsh" in c.name
    )
    told = replace(
        answer, text=f"The council was asked to guarantee a 14 million loan. [Data: Reports ({number})]"
    )
    cited = [s for s in demo.sources(answer.references, told) if s.record["human_readable_id"] == number]
    assert re.search(r"guarantee a loan of (14|fourteen) million crowns", cited[0].evidence[0]["quote"])


def test_a_plain_question_about_the_whole_corpus_is_answered(demo: Index):
    answer = demo.ask("Which people and organisations opposed each other, and why?", "C1")
    assert answer.found and "oppose" in answer.text


def test_an_unrelated_question_finds_nothing_and_says_why(demo: Index):
    answer = demo.ask("How do I prune roses in winter?")
    assert not answer.found
    assert any("found too few of these: prune, roses, winter." in note for note in answer.notes)


def test_an_answer_about_the_whole_corpus_quotes_no_questions(demo: Index):
    answer = demo.ask("What are the main themes?")
    assert len(answer.references) >= 5 and "?" not in "".join(quotations_in(answer.text))
