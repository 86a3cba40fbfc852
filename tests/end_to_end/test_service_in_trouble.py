"""The service without Ray, with failing models and storage and with mistakes of its operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import toy_model
from endpoint import NO_QUOTA, Drop, Endpoint, rate_limited
from served import Served, until
from world import TOWN, Command, World, know

from graphrag_ray.cli.commands.serve_command import _problem
from graphrag_ray.query import model_calls

THEMES = "What are the THEMES?"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": THEMES}
Start = Callable[..., Served]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(tmp_path_factory.mktemp("attacked"), endpoint)
        world.write(TOWN)
        world.index(communities={"pack_components_below": 1})
        yield world


@pytest.fixture
def serve(town: World) -> Iterator[Start]:
    town.endpoint.respond = toy_model.respond
    know(town.endpoint, "m", "e", max_in_flight=16)
    made: list[Served] = []

    def start(token: str | None = None, **options: Any) -> Served:
        made.append(Served(token, **({"root": str(town.root)} | options)))
        return made[-1]

    yield start
    for served in made:
        served.close()


# Failing models


def test_a_model_that_rejected_calls_is_tried_again_later(
    town: World, serve: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model_calls, "RETRY_REFUSED_AFTER_S", 1.0)
    served = serve()
    town.endpoint.respond = lambda body: NO_QUOTA
    asked = town.asked()
    for _ in range(3):
        refused = served.ask(THEMES)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_unavailable"
    assert town.asked() < asked + 3
    town.endpoint.respond = toy_model.respond
    while served.ask(THEMES).status_code == 503:  # For as long as a test may take.
        pass
    assert served.ask(THEMES).json()["found"]


def test_an_answer_without_any_successful_call_is_an_error(town: World, serve: Start):
    town.endpoint.respond = lambda body: Drop()
    served = serve(max_seconds=60)
    with ThreadPoolExecutor(3) as pool:
        alone = pool.submit(served.ask, THEMES)
        streamed = pool.submit(lambda: list(served.stream(THEMES)))
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        asking: Any = {"model": "graphrag-ray", "messages": [USER]}
        chatted = pool.submit(client.chat.completions.create, **asking)
        error = alone.result()
        assert error.status_code == 503 and error.json()["error"]["code"] == "not_answered"
        assert "every call failed" in error.json()["error"]["message"]
        name, told = streamed.result()[-1]
        assert name == "error" and told["status"] == 503
        with pytest.raises(openai.InternalServerError, match="every call failed"):
            chatted.result()
    failed = served.measured("questions_total")['{method="global",replica="",status="503"}']
    assert failed == 3


def test_a_question_that_times_out_because_of_429s_says_so(town: World, serve: Start):
    town.endpoint.respond = lambda body: rate_limited("1")
    late = serve(max_seconds=2.5).ask(THEMES)
    assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
    assert "429, too many requests" in late.json()["error"]["message"]


# Mistakes of the operator


def test_a_missing_key_is_reported_before_the_first_question(
    town: World, serve: Start, caplog: pytest.LogCaptureFixture
):
    endpoint = f"{{base_url: '{town.endpoint.base_url}', api_key_env: NO_SUCH_KEY}}"
    served = serve(overrides=(f"models.default.endpoints=[{endpoint}]",))
    health = served.client.get("/healthz")
    assert health.status_code == 503 and health.json() == {"status": "no model key"}
    assert "NO_SUCH_KEY is not set" in served.client.get("/index").json()["problem"]
    assert "NO_SUCH_KEY is not set" in _problem(served.service.options, served.url)
    assert "NO_SUCH_KEY is not set" in caplog.text
    assert served.ask(THEMES).status_code == 503


def test_a_model_without_answer_stages_may_lack_its_key(town: World, serve: Start):
    endpoint = f"[{{base_url: '{town.endpoint.base_url}', api_key_env: NO_SUCH_KEY}}]"
    builder = f"models.builder={{provider: openai, model: m, endpoints: {endpoint}}}"
    served = serve(overrides=(builder, "stages.extract.model=builder"))
    assert served.client.get("/healthz").status_code == 200 and served.ask(THEMES).status_code == 200
    assert served.client.get("/index").json()["problem"] == ""


def test_a_key_added_later_is_found(town: World, serve: Start, tmp_path: Path):
    key = tmp_path / "key"
    endpoint = f"[{{base_url: '{town.endpoint.base_url}', api_key_env: null, api_key_file: '{key}'}}]"
    served = serve(overrides=(f"models.default.endpoints={endpoint}",), follow_s=0.05)
    assert served.client.get("/healthz").status_code == 503
    assert served.ask(THEMES).status_code == 503, "a question opened connections without a key"
    live = served.service.live
    before = live.require_current().connections
    before.n_questions += 1  # As if that question were still running.
    key.write_text("key-that-came-later")
    until(lambda: served.client.get("/healthz").status_code == 200)
    assert served.ask(THEMES).status_code == 200
    after = live.require_current().connections
    assert after is not before and after.n_questions == 0 and before in live._retired
    before.n_questions -= 1
    until(lambda: before not in live._retired)


def test_a_budget_in_usd_without_a_price_is_a_server_error(town: World, serve: Start, run: Command):
    told = "query.budget_usd is set, but the price of model 'default' is unknown"
    served = serve(overrides=("query.budget_usd=0.1",))
    assert served.client.get("/healthz").status_code == 503
    answer = served.ask(THEMES)
    assert answer.status_code == 503 and told in answer.json()["error"]["message"]
    refused = run("serve", "--root", town.root, "--budget-usd", "0.1")
    assert refused.exit_code == 2 and told in refused.output
    priced = ("models.default.price.input_usd_per_mtok=1", "models.default.price.output_usd_per_mtok=1")
    assert serve(overrides=("query.budget_usd=0.1", *priced)).ask(THEMES).status_code == 200
