"""Names of a corpus from those of a part of it."""

from __future__ import annotations

import numpy as np
import pytest

from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
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
    drawn = (np.unique(rng.choice(names, size=12, p=weights / weights.sum())) for _ in range(n))
    return [records(*((f"N{i}", "A name.") for i in chunk)) for chunk in drawn]


def entities(chunks: list[ExtractedRecords]) -> float:
    return count_names("entities", chunks, "o200k_base", SPEC).distinct


def foretold(n_chunks: int, learned: Evidence, given: dict[str, float] | None = None) -> Forecast:
    corpus = CorpusCounts(chunks=n_chunks, prompt_tokens=2_000 * n_chunks)
    return forecast(SETTINGS, PROMPTS, corpus, learned, given or {})


def test_names_are_counted_by_chunk_and_description():
    chunks = [
        records(("A", "First."), ("B", "Second."), links=(("A", "B", "Met."), ("A", "A", "Itself."))),
        records(("A", "Another."), links=(("B", "A", "Met."), ("A", "C", ""))),
    ]
    found = count_names("entities", chunks, "o200k_base", SPEC)
    assert (found.distinct, found.once, found.pairs) == (3, 1, 5)
    assert (found.descriptions, found.single, found.several) == (3, 1, 1)
    pairs = count_names("relationships", chunks, "o200k_base", SPEC)
    assert (pairs.distinct, pairs.once, pairs.pairs, pairs.descriptions) == (2, 1, 3, 1)


def test_many_descriptions_are_asked_about_and_few_short_ones_are_joined():
    texts = [f"Description number {i} of a name." for i in range(5)]
    few, many = ([records(("A", text)) for text in texts[:n]] for n in (2, 5))
    assert count_names("entities", few, "o200k_base", SPEC).to_describe == 0
    found = count_names("entities", many, "o200k_base", SPEC)
    assert found.to_describe == 1 and found.to_describe_tokens == pytest.approx(
        5 * (found.description_tokens + 1)
    )


def test_a_quarter_of_a_corpus_tells_its_names_to_within_a_tenth():
    chunks = zipf_chunks(2_000, seed=7)
    told = foretold(2_000, Evidence(chunks[:500], chunks[:500]))
    assert told.graph["entities"] == pytest.approx(entities(chunks), rel=0.1)


def test_the_whole_corpus_is_not_extrapolated():
    chunks = zipf_chunks(100, seed=1)
    assert foretold(100, Evidence(chunks, chunks)).graph["entities"] == pytest.approx(entities(chunks))


def test_a_corpus_without_names_stays_without():
    for learned in (Evidence([]), Evidence([records()]), Evidence([records()], [records()])):
        assert foretold(1_000, learned).graph["entities"] == 0


def test_names_that_are_given_replace_what_was_counted():
    chunks = zipf_chunks(100, seed=1)
    found = foretold(1_000, Evidence(chunks), {"entities": 400.0, "communities_per_entity": 0.5})
    assert found.graph["entities"] == 400 and found.graph["communities"] == 200


def test_communities_and_contexts_are_those_of_the_trial():
    chunks = zipf_chunks(100, seed=1)
    found = foretold(1_000, Evidence(chunks, chunks, counts={"entities": 100, "communities": 30}))
    assert found.graph["communities"] == pytest.approx(0.3 * found.graph["entities"])


@pytest.mark.parametrize(("n", "levels"), [(1, 2), (100, 5)])
def test_a_hierarchy_has_no_more_levels_than_communities(n: int, levels: int):
    chunks = zipf_chunks(n, seed=1)
    found = foretold(n, Evidence(chunks), {"communities_per_entity": 0.2, "entities": 8.0 * n})
    assert found.graph["levels"] == levels
