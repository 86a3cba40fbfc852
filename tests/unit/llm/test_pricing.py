import socket

import pytest

from graphrag_ray.base.connection_settings import Endpoint, Model, Price
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.pricing import cost_pico_usd, cost_usd, highest_price, price_of

LOCAL = Endpoint(base_url="http://127.0.0.1:8000/v1")


def model(name, **more):
    return Model(provider="openai", model=name, **more)


def test_settings_override_the_price_table():
    price = Price(input_usd_per_mtok=7.0, output_usd_per_mtok=9.0)
    assert price_of(model("gpt-4o-mini", price=price), LOCAL) == price


def test_an_endpoint_can_have_its_own_price():
    cheap, dear = Price(input_usd_per_mtok=1.0), Price(input_usd_per_mtok=7.0)
    both = model("gpt-4o-mini", price=dear)
    assert price_of(both, Endpoint(price=cheap)) == cheap
    assert price_of(both, LOCAL) == dear


def test_the_highest_price_of_all_endpoints_is_used():
    one = Price(input_usd_per_mtok=1.0, output_usd_per_mtok=9.0)
    other = Price(input_usd_per_mtok=7.0, output_usd_per_mtok=2.0, cached_usd_per_mtok=1.0)
    both = model("m", endpoints=(Endpoint(price=one), Endpoint(price=other)))
    assert highest_price(both) == Price(input_usd_per_mtok=7.0, output_usd_per_mtok=9.0)
    assert highest_price(model("m", endpoints=(Endpoint(price=one), LOCAL))) is None
    assert highest_price(Model()) == Price(input_usd_per_mtok=0.0)


@pytest.mark.parametrize("name", ["gpt-4o-mini", "text-embedding-3-small", "o3-mini"])
def test_a_model_sold_by_its_maker_has_its_price_at_any_address(name):
    at_home = price_of(model(name), Endpoint())
    assert at_home is not None
    assert at_home.input_usd_per_mtok > 0
    assert price_of(model(name), LOCAL) == at_home


@pytest.mark.parametrize("name", ["no-such-model", "gpt-oss-20b", "meta-llama/Llama-3.1-8B-Instruct", "m"])
def test_the_price_of_an_unknown_model_or_of_open_weights_is_unknown_not_zero(name):
    assert price_of(model(name), LOCAL) is None
    assert cost_usd(Usage(1000, 1000), None) is None


def test_the_endpoints_model_name_determines_the_price():
    endpoint = Endpoint(model="gpt-4o-mini")
    assert price_of(model("cheap"), endpoint) == price_of(model("gpt-4o-mini"), Endpoint())


def test_the_offline_engine_is_free():
    assert cost_usd(Usage(10_000, 500, 200), price_of(Model())) == 0.0


def test_cached_tokens_cost_their_own_price():
    price = Price(input_usd_per_mtok=2.0, output_usd_per_mtok=8.0, cached_usd_per_mtok=0.5)
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=500_000, cached_tokens=400_000)
    assert cost_usd(usage, price) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)


def test_cached_tokens_without_a_price_cost_as_much_as_other_prompt_tokens():
    price = Price(input_usd_per_mtok=2.0)
    assert cost_usd(Usage(1_000_000, 0, 400_000), price) == pytest.approx(2.0)


def test_one_token_of_a_cheap_model_is_a_whole_number_of_picodollars():
    assert cost_pico_usd(Usage(1, 0), Price(input_usd_per_mtok=0.075)) == 75_000


def test_the_price_table_is_bundled_and_never_downloaded(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a price look-up opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    price_of.__globals__["_listed_price"].cache_clear()
    assert price_of(model("gpt-4o"), Endpoint()) is not None
