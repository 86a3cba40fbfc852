"""Tracking which items have calls in flight."""

from __future__ import annotations

import asyncio

from graphrag_ray.engine.ray.worker import InFlightItems, current_item
from graphrag_ray.llm.accounting import InFlight

CALL = InFlight(1, 100, 7)


def test_two_requests_for_an_item_count_as_one_item():
    sent, answered = InFlightItems(), asyncio.Event()

    async def call() -> None:
        sent.add(CALL)
        await answered.wait()
        sent.add(CALL, -1)

    async def item(number: int, requests: int) -> None:
        current_item.set(number)
        await asyncio.gather(*(call() for _ in range(requests)))

    async def run() -> None:
        items = [
            asyncio.ensure_future(item(number, requests)) for number, requests in ((5, 2), (6, 1), (7, 0))
        ]
        await asyncio.sleep(0.01)
        assert InFlight.sum([sent]) == InFlight(3, 300, 21)
        assert dict(sent.items) == {5: 2, 6: 1} and sent.begun == {5, 6}
        answered.set()
        await asyncio.gather(*items)

    asyncio.run(run())
    assert InFlight.sum([sent]) == InFlight() and not sent.items
    assert sent.begun == {5, 6}, "it asked something, and may have journalled it"


def test_a_call_without_an_item_counts_as_in_flight():
    sent = InFlightItems()
    sent.add(CALL)
    assert sent.calls == 1 and not sent.items and not sent.begun
