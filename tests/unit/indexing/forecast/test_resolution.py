"""Forecasting the requests of entity resolution."""

from __future__ import annotations

import numpy as np
import pytest

from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.extraction_dialogue import EntityRecord, ExtractedRecords
from graphrag_ray.indexing.forecast.bounds import Replies
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts
from graphrag_ray.indexing.forecast.forecast import RESOLVE_PER_ENTITY, Evidence, Forecast, forecast

CHUNK = ExtractedRecords((EntityRecord("ALICE", "PERSON", "A baker.", 0),), (), 0, 0)
EVIDENCE = Evidence([CHUNK])
CALLS = Replies(np.full(5, 900.0), np.full(5, 50.0), np.ones(5), "measured on 5 calls")


def forecast_with(mode: str, evidence: Evidence = EVIDENCE, **assumptions: float) -> Forecast:
    settings = parse_settings(
        {
            "models": {"default": {"provider": "openai", "model": "gpt-4o-mini"}},
            "resolution": {"mode": mode},
        }
    )
    corpus = CorpusCounts(documents=10, chunks=100, prompt_tokens=200_000)
    return forecast(settings, load_prompts(), corpus, evidence, {"entities": 40.0, **assumptions})


def calls_of(found: Forecast) -> list[float]:
    return [s.volume.calls for s in found.stages if s.volume.stage == "resolve"]


@pytest.mark.parametrize("mode", ["off", "rules"])
def test_without_a_model_there_are_no_requests(mode: str):
    assert calls_of(forecast_with(mode)) == []


def test_requests_per_entity_are_assumed_and_the_source_says_so():
    found = forecast_with("model")
    assert calls_of(found) == [pytest.approx(40 * RESOLVE_PER_ENTITY)]
    facts = {a.name: a for a in found.assumptions}
    assert facts["resolve_per_entity"].source.startswith("assumed")
    stages = [s.volume.stage for s in found.stages]
    assert stages.index("extract") < stages.index("resolve") < stages.index("describe")


def test_users_can_replace_requests_per_entity():
    assert calls_of(forecast_with("model", resolve_per_entity=2.0)) == [pytest.approx(80)]


def test_requests_and_tokens_are_measured_on_an_index_that_has_some():
    evidence = Evidence(
        [CHUNK], replies={"resolve": CALLS}, items={"resolve": 5}, counts={"entities": 10, "communities": 0}
    )
    found = forecast_with("model", evidence)
    (volume,) = [s.volume for s in found.stages if s.volume.stage == "resolve"]
    assert volume.calls == pytest.approx(20)
    assert volume.prompt_tokens == pytest.approx(20 * 900) and volume.completion_tokens == pytest.approx(
        1_000
    )
    facts = {a.name: a for a in found.assumptions}
    assert "10 entities" in facts["resolve_per_entity"].source
