"""What a call costs, from the settings or from the price table of the `genai-prices` package.

The table is the package's bundled one: nothing is fetched.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from graphrag_ray.base.index_settings import Endpoint, Model, Price
from graphrag_ray.base.messages import Usage

PICO_USD = 1_000_000_000_000
"""One dollar in picodollars. One token at 1 USD per million is a million of them, so that costs are
whole numbers and their sums do not depend on the order."""

_SOLD_BY_ONE = re.compile(r"(gpt-(?!oss)|chatgpt-|o\d|text-embedding-|claude|gemini)")
"""Models that no one runs on a machine of their own: their name tells the price at any address."""


def price_of(model: Model, endpoint: Endpoint | None = None) -> Price | None:
    """The price of a model at an endpoint; None where it is unknown, which is not free.

    The settings' own price decides, the endpoint's before the model's. Else the table's, for the seller
    with that address. At an address that the table does not know, the name decides if the model is sold by
    its maker alone; open weights, which anybody may serve at any cost, are unknown there. Prices that rise
    with the length of a prompt count at their lowest tier, which begins at a length that no context of ours
    reaches.
    """
    if model.is_local:
        return Price(input_usd_per_mtok=0.0, cached_usd_per_mtok=0.0)
    if endpoint is not None and endpoint.price is not None:
        return endpoint.price
    if model.price is not None:
        return model.price
    name = (endpoint.model if endpoint else None) or model.model
    return _listed_price(name, endpoint.base_url if endpoint else "")


def dearest_price(model: Model) -> Price | None:
    """The most that a token costs at any endpoint of a model; None where one's price is unknown."""
    prices = [price_of(model, endpoint) for endpoint in model.endpoints] or [price_of(model)]
    known = [p for p in prices if p is not None]
    if len(known) < len(prices):
        return None
    return Price(
        input_usd_per_mtok=max(p.input_usd_per_mtok for p in known),
        output_usd_per_mtok=max(p.output_usd_per_mtok for p in known),
    )


def cost_pico_usd(usage: Usage, price: Price | None) -> int | None:
    """The cost of one call in whole picodollars; None where the price is unknown.

    Cached tokens are part of the prompt and cost their own price; the prompt's where there is none.
    """
    if price is None:
        return None
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    cached_price = price.cached_usd_per_mtok
    used = (
        (usage.prompt_tokens - cached, price.input_usd_per_mtok),
        (cached, price.input_usd_per_mtok if cached_price is None else cached_price),
        (usage.completion_tokens, price.output_usd_per_mtok),
    )
    return sum(tokens * round(usd_per_mtok * PICO_USD / 1_000_000) for tokens, usd_per_mtok in used)


def cost_usd(usage: Usage, price: Price | None) -> float | None:
    """The cost of one call in US dollars; None where the price is unknown."""
    pico = cost_pico_usd(usage, price)
    return None if pico is None else pico / PICO_USD


@lru_cache(maxsize=256)
def _listed_price(name: str, base_url: str) -> Price | None:
    from genai_prices.data_snapshot import get_snapshot

    def usd(value: Any) -> float | None:
        return None if value is None else float(getattr(value, "base", value))

    snapshot, lower = get_snapshot(), name.lower()
    sellers = [p for p in snapshot.providers if base_url and re.match(p.api_pattern, base_url)]
    if not sellers and _SOLD_BY_ONE.match(lower):
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
