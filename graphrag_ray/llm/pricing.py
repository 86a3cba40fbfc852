"""The cost of calls, from prices in the settings or the table of the `genai-prices` package."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from graphrag_ray.base.connection_settings import Endpoint, Model, Price
from graphrag_ray.base.messages import Usage

# Picodollars per dollar. At 1 USD per million tokens, a token costs a million picodollars, so costs are
# integers, and their sums do not depend on the order of addition.
PICO_USD = 1_000_000_000_000

# Models sold only by their makers: the name determines the price at any address.
_SOLD_BY_MAKER = re.compile(r"(gpt-(?!oss)|chatgpt-|o\d|text-embedding-|claude|gemini)")


def price_of(model: Model, endpoint: Endpoint | None = None) -> Price | None:
    """Return the price of a model at an endpoint, or None if it is unknown (which does not mean free).

    The order is: the endpoint's price in the settings, the model's price in the settings, and the table's
    price for the provider with the endpoint's address. At an unknown address, the table is used for models
    that only their maker sells, but not for open weights, which anybody may serve at any price. If prices
    rise with prompt length, the lowest tier counts because our contexts are shorter than the next one.
    """
    if model.is_local:
        return Price(input_usd_per_mtok=0.0, cached_usd_per_mtok=0.0)
    if endpoint is not None and endpoint.price is not None:
        return endpoint.price
    if model.price is not None:
        return model.price
    name = (endpoint.model if endpoint else None) or model.model
    return _listed_price(name, endpoint.base_url if endpoint else "")


def highest_price(model: Model) -> Price | None:
    """Return the highest prices at any endpoint of a model, or None if one of the prices is unknown."""
    prices = [price_of(model, endpoint) for endpoint in model.endpoints] or [price_of(model)]
    known_prices = [p for p in prices if p is not None]
    if len(known_prices) < len(prices):
        return None
    return Price(
        input_usd_per_mtok=max(p.input_usd_per_mtok for p in known_prices),
        output_usd_per_mtok=max(p.output_usd_per_mtok for p in known_prices),
        usd_per_search=max(p.usd_per_search for p in known_prices),
    )


def cost_pico_usd(usage: Usage, price: Price | None) -> int | None:
    """Return the cost of a call in picodollars, or None if unknown. Cached tokens are part of the prompt."""
    if price is None:
        return None
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    cached_price = price.cached_usd_per_mtok
    used = (
        (usage.prompt_tokens - cached, price.input_usd_per_mtok),
        (cached, price.input_usd_per_mtok if cached_price is None else cached_price),
        (usage.completion_tokens, price.output_usd_per_mtok),
    )
    by_tokens = sum(tokens * round(usd_per_mtok * PICO_USD / 1_000_000) for tokens, usd_per_mtok in used)
    return by_tokens + usage.searches * round(price.usd_per_search * PICO_USD)


def cost_usd(usage: Usage, price: Price | None) -> float | None:
    """Return the cost of a call in US dollars, or None if the price is unknown."""
    pico = cost_pico_usd(usage, price)
    return None if pico is None else pico / PICO_USD


@lru_cache(maxsize=256)
def _listed_price(name: str, base_url: str) -> Price | None:
    from genai_prices.data_snapshot import get_snapshot

    def usd(value: Any) -> float | None:
        return None if value is None else float(getattr(value, "base", value))

    snapshot, lower = get_snapshot(), name.lower()
    sellers = [p for p in snapshot.providers if base_url and re.match(p.api_pattern, base_url)]
    if not sellers and _SOLD_BY_MAKER.match(lower):
        sellers = [p for p in snapshot.providers if p.model_match and p.model_match.is_match(lower)]
        sellers = sellers or [p for p in snapshot.providers if p.id == "openai"]
    for seller in sellers:
        listed = seller.find_model(lower, all_providers=snapshot.providers)
        if listed is not None:
            prices = listed.get_prices(datetime.now(UTC))
            if (input_usd := usd(prices.input_mtok)) is None:
                return None
            return Price(
                input_usd_per_mtok=input_usd,
                output_usd_per_mtok=usd(prices.output_mtok) or 0.0,
                cached_usd_per_mtok=usd(prices.cache_read_mtok),
            )
    return None
