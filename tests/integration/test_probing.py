"""Problems of an endpoint are reported before any other work."""

from __future__ import annotations

import socket

import pytest
from endpoint import BROKEN, NO_QUOTA, NO_SUCH_MODEL, Endpoint, Hang

from graphrag_ray.base.errors import FatalCallError, ModelUnavailable, NoEndpoint, NotConfigured
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models, check_endpoints, connect_clients, probe_endpoints
from graphrag_ray.llm import client

STAGES = ("extract", "report")


def asking(*urls, model="m", **more):
    endpoints = [{"base_url": url, "api_key_env": "MY_KEY", "max_in_flight": 2} for url in urls]
    return parse_settings(
        {"models": {"default": {"provider": "openai", "model": model, "endpoints": endpoints} | more}}
    )


def found(*urls, **more):
    settings = asking(*urls, **more)
    return probe_endpoints(Models.from_settings(settings), settings, STAGES)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-right-one")


@pytest.fixture
def nobody():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def test_listed_model_needs_no_further_request():
    with Endpoint(key="sk-right-one") as endpoint:
        assert found(endpoint.base_url) == [] and endpoint.requests == []


def test_unlisted_model_is_probed_with_one_token():
    with Endpoint(key="sk-right-one", lists=()) as endpoint:
        assert found(endpoint.base_url) == []
        (body,) = endpoint.bodies()
        assert body["max_tokens"] == 1
        settings = asking(endpoint.base_url)
        assert probe_endpoints(Models.from_settings(settings), settings, ["embed"]) == [], (
            "the offline engine is not probed"
        )


def test_wrong_key_is_reported_with_its_variable_but_not_its_value():
    with Endpoint(key="sk-another") as endpoint:
        (problem,) = found(endpoint.base_url)
    assert problem.final and "401" in problem.why and "MY_KEY" in problem.why
    assert "sk-right-one" not in problem.why and str(problem).startswith("models.default: ")


@pytest.mark.parametrize("fault", [NO_SUCH_MODEL, NO_QUOTA])
def test_missing_or_unpaid_model_is_reported(fault):
    with Endpoint(lambda body: fault, lists=()) as endpoint:
        (problem,) = found(endpoint.base_url)
    assert problem.final and fault.message in problem.why


@pytest.mark.parametrize("fault", [BROKEN, Hang()])
def test_temporary_failure_is_not_a_problem(fault, monkeypatch):
    monkeypatch.setattr(client, "PROBE_S", 0.5)
    with Endpoint(lambda body: fault, lists=()) as endpoint:
        assert found(endpoint.base_url) == []


def test_unreachable_endpoint_is_reported(nobody):
    (problem,) = found(nobody)
    assert not problem.final and nobody in problem.why


def test_run_without_working_endpoints_or_journal_ends_immediately(nobody):
    settings, said = asking(nobody), []
    with pytest.raises(ModelUnavailable, match=nobody):
        check_endpoints(Models.from_settings(settings), settings, STAGES, may_reuse=False, notify=said.append)
    models = check_endpoints(
        Models.from_settings(settings), settings, STAGES, may_reuse=True, notify=said.append
    )
    assert nobody in said[0] and "stops at the first request that needs this model" in said[1]
    (unusable,) = connect_clients(models, "default")
    assert isinstance(unusable, FatalCallError), "the first request that is needed ends the run"


def test_missing_key_is_a_usage_error(nobody, monkeypatch):
    monkeypatch.delenv("MY_KEY")
    settings, said = asking(nobody), []
    with pytest.raises(NotConfigured, match="MY_KEY is not set"):
        check_endpoints(Models.from_settings(settings), settings, STAGES, may_reuse=False, notify=said.append)
    models = check_endpoints(
        Models.from_settings(settings), settings, STAGES, may_reuse=True, notify=said.append
    )
    (unusable,) = connect_clients(models, "default")
    assert isinstance(unusable, NoEndpoint)


def test_one_working_endpoint_is_enough(nobody):
    with Endpoint(key="sk-another") as wrong, Endpoint() as right:
        settings, said = asking(nobody, wrong.base_url, right.base_url), []
        models = check_endpoints(
            Models.from_settings(settings), settings, STAGES, may_reuse=False, notify=said.append
        )
        kinds = [isinstance(c, FatalCallError) for c in connect_clients(models, "default")]
    assert len(said) == 2 and kinds == [False, True, False], "one that is not there may come back"


def test_offline_run_probes_no_endpoint():
    settings = parse_settings({})
    assert probe_endpoints(Models.from_settings(settings), settings, STAGES) == []
