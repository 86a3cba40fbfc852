"""Forecasting the names in a corpus from a sample."""

from __future__ import annotations

import numpy as np
import pytest

from graphrag_ray.base.dates import period_sentence
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.corpus.tokens import count_tokens
from graphrag_ray.graph.descriptions import describe_spec
from graphrag_ray.graph.extraction_dialogue import EntityRecord, ExtractedRecords, RelationshipRecord
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts
from graphrag_ray.indexing.forecast.forecast import Evidence, Forecast, count_names, forecast

MODEL = {"models": {"default": {"provider": "openai", "model": "gpt-4o-mini"}}}
SETTINGS = parse_settings(MODEL)
PROMPTS = load_prompts()
SPEC = describe_spec(PROMPTS, SETTINGS)


def records(*entities: tuple[str, str], links: tuple[tuple[str, str, str], ...] = ()) -> ExtractedRecords:
    return ExtractedRecords(
        tuple(EntityRecord(name, "", text, 0) for name, text in entities),
        tuple(RelationshipRecord(a, b, text, 1.0, 0) for a, b, text in links),
        0,
        0,
    )


def zipf_chunks(n: int, seed: int, names: int = 200_000, exponent: float = 1.1) -> list[ExtractedRecords]:
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, names + 1) ** exponent
    chunks = (np.unique(rng.choice(names, size=12, p=weights / weights.sum())) for _ in range(n))
    return [records(*((f"N{i}", "A name.") for i in chunk)) for chunk in chunks]


def count_entities(chunks: list[ExtractedRecords]) -> float:
    return count_names("entities", chunks, "o200k_base", SPEC).distinct


def forecast_corpus(
    n_chunks: int, evidence: Evidence, assumptions: dict[str, float] | None = None, dated: int = 0
) -> Forecast:
    corpus = CorpusCounts(documents=10, dated=dated, chunks=n_chunks, prompt_tokens=2_000 * n_chunks)
    return forecast(SETTINGS, PROMPTS, corpus, evidence, assumptions or {})


def test_names_are_counted_by_chunk_and_description():
    chunks = [
        records(("A", "First."), ("B", "Second."), links=(("A", "B", "Met."), ("A", "A", "Itself."))),
        records(("A", "Another."), links=(("B", "A", "Met."), ("A", "C", ""))),
    ]
    counts = count_names("entities", chunks, "o200k_base", SPEC)
    assert (counts.distinct, counts.once, counts.pairs) == (3, 1, 5)
    assert (counts.descriptions, counts.single, counts.several) == (3, 1, 1)
    pairs = count_names("relationships", chunks, "o200k_base", SPEC)
    assert (pairs.distinct, pairs.once, pairs.pairs, pairs.descriptions) == (2, 1, 3, 1)


def test_many_descriptions_are_merged_by_the_model_and_few_are_joined():
    texts = [f"Description number {i} of a name." for i in range(5)]
    few, many = ([records(("A", text)) for text in texts[:n]] for n in (2, 5))
    assert count_names("entities", few, "o200k_base", SPEC).to_describe == 0
    counts = count_names("entities", many, "o200k_base", SPEC)
    assert counts.to_describe == 1 and counts.to_describe_tokens == pytest.approx(
        5 * (counts.description_tokens + 1)
    )


def test_quarter_of_a_corpus_predicts_its_names_within_ten_percent():
    chunks = zipf_chunks(2_000, seed=7)
    result = forecast_corpus(2_000, Evidence(chunks[:500], chunks[:500]))
    assert result.graph["entities"] == pytest.approx(count_entities(chunks), rel=0.1)


def test_complete_sample_is_not_extrapolated():
    chunks = zipf_chunks(100, seed=1)
    assert forecast_corpus(100, Evidence(chunks, chunks)).graph["entities"] == pytest.approx(
        count_entities(chunks)
    )


def test_corpus_without_names_is_forecast_to_have_none():
    for evidence in (Evidence([]), Evidence([records()]), Evidence([records()], [records()])):
        assert forecast_corpus(1_000, evidence).graph["entities"] == 0


def test_assumed_numbers_replace_counted_ones():
    chunks = zipf_chunks(100, seed=1)
    counts = forecast_corpus(1_000, Evidence(chunks), {"entities": 400.0, "communities_per_entity": 0.5})
    assert counts.graph["entities"] == 400 and counts.graph["communities"] == 200


def test_ratio_of_communities_is_taken_from_the_trial():
    chunks = zipf_chunks(100, seed=1)
    counts = forecast_corpus(1_000, Evidence(chunks, chunks, counts={"entities": 100, "communities": 30}))
    assert counts.graph["communities"] == pytest.approx(0.3 * counts.graph["entities"])


@pytest.mark.parametrize(("n", "levels"), [(1, 2), (100, 5)])
def test_hierarchy_has_no_more_levels_than_communities(n: int, levels: int):
    chunks = zipf_chunks(n, seed=1)
    counts = forecast_corpus(n, Evidence(chunks), {"communities_per_entity": 0.2, "entities": 8.0 * n})
    assert counts.graph["levels"] == levels


def test_prompts_of_reports_state_the_period_of_dated_documents():
    def report(dated: int) -> tuple[float, float]:
        chunks = zipf_chunks(100, seed=1)
        stages = forecast_corpus(100, Evidence(chunks, chunks), dated=dated).stages
        (volume,) = [s.volume for s in stages if s.volume.stage == "report"]
        return volume.calls, volume.prompt_tokens

    calls, undated = report(0)
    sentence = count_tokens(period_sentence("2023-01-01 to 2023-12-31"), "o200k_base")
    assert report(10)[1] - undated == pytest.approx(calls * sentence, rel=0.2)
    assert report(5)[1] - undated == pytest.approx((report(10)[1] - undated) / 2)
