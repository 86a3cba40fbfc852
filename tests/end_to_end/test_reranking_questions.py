"""Questions whose passages a model at an endpoint reranks."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from endpoint import BROKEN, NO_SUCH_MODEL, Status
from world import TOWN, World

from graphrag_ray.base.errors import ModelUnavailable
from graphrag_ray.query.batch import answer_batch
from graphrag_ray.query.methods.method import AskRequest

QUESTION = "Who sold the boat?"


@pytest.fixture
def reranked(world: World) -> tuple[World, dict[str, Any]]:
    world.write(TOWN)
    world.index()
    given = {"base_url": world.endpoint.base_url, "api_key_env": None}
    price = {"input_usd_per_mtok": 0, "usd_per_search": 0.25}
    model = {"provider": "openai", "model": "reranker", "endpoints": [given], "price": price}
    query = {"rerank_model": "rank", "ppr_steps": 0}
    return world, {"models": {"rank": model}, "query": query, "run": {"max_attempts": 2}}


@pytest.mark.parametrize("method", ["vector", "hybrid", "ppr", "local"])
def test_passages_are_reranked_and_accounted(reranked: tuple[World, dict[str, Any]], method: str):
    world, changes = reranked
    answer = world.open(**changes).ask(QUESTION, method=method)
    (sent,) = world.endpoint.bodies("/rerank")
    assert sent["model"] == "reranker" and sent["query"] == QUESTION and len(sent["documents"]) > 1
    words = set(QUESTION.split())
    best = max(sent["documents"], key=lambda text: len(words & set(text.split())))
    first = next(r.id for r in answer.contexts[0].records if r.section == "Sources")
    text = next(row["text"] for row in world.table("text_units") if row["id"] == first)
    assert text in best
    assert answer.phases["rerank"].calls == 1 and answer.phases["rerank"].cost_usd == 0.25
    assert not any("reranked" in note for note in answer.notes)


def test_a_cached_ranking_is_not_paid_for_again(reranked: tuple[World, dict[str, Any]]):
    world, changes = reranked
    index = world.open(**changes)
    index = type(index)(index.store, index.manifest, index.settings, cache=world.store)
    first, second = (index.ask(QUESTION, method="hybrid") for _ in range(2))
    assert len(world.endpoint.bodies("/rerank")) == 1 and "rerank" not in second.phases
    assert first.contexts == second.contexts


@pytest.mark.parametrize("fault", [BROKEN, Status(400, "a document is too long", "invalid")])
def test_a_failed_reranker_is_noted_and_the_order_kept(reranked: tuple[World, dict[str, Any]], fault: Status):
    world, changes = reranked
    plain = world.open().ask(QUESTION, method="hybrid")
    world.endpoint.rerank = lambda body: fault
    answer = world.open(**changes).ask(QUESTION, method="hybrid")
    assert answer.contexts == plain.contexts and answer.text == plain.text
    (note,) = [note for note in answer.notes if "not reranked" in note]
    assert fault.message in note


def test_an_unusable_reranker_is_an_error(reranked: tuple[World, dict[str, Any]]):
    world, changes = reranked
    world.endpoint.rerank = lambda body: NO_SUCH_MODEL
    with pytest.raises(ModelUnavailable, match="does not exist"):
        world.open(**changes).ask(QUESTION, method="hybrid")


def test_methods_without_passages_do_not_call_it(reranked: tuple[World, dict[str, Any]]):
    world, changes = reranked
    world.open(**changes).ask(QUESTION, method="global")
    assert world.endpoint.bodies("/rerank") == []


def test_a_batch_that_runs_again_does_not_rerank_again(reranked: tuple[World, dict[str, Any]]):
    world, changes = reranked
    path, out = world.root.parent / "questions.csv", world.root.parent / "answers.parquet"
    path.write_text(f"question\n{QUESTION}\n")
    first, again = (
        answer_batch(world.open(**changes), str(path), str(out), AskRequest(method="hybrid"))
        for _ in range(2)
    )
    assert first.failed == again.failed == 0 and len(world.endpoint.bodies("/rerank")) == 1
    (row,) = pq.read_table(out).to_pylist()
    assert not any("not reranked" in note for note in row["notes"])
