"""A gateway whose clients follow a script. Everything else is real."""

import asyncio
import random

from graphrag_ray.base.connection_settings import Endpoint, Model, Price
from graphrag_ray.base.messages import (
    CallParameters,
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Message,
    Usage,
)
from graphrag_ray.base.providers import LocalProvider
from graphrag_ray.llm.accounting import InFlight
from graphrag_ray.llm.gateway import Gateway
from graphrag_ray.llm.limit_headers import LimitHeaders
from graphrag_ray.llm.limiter import LocalLimiter

PRICE = Price(input_usd_per_mtok=1.0, output_usd_per_mtok=2.0)
HELLO = ChatReply("Hello.", usage=Usage(100, 50))


class FakeClient:
    """Answer with each item of `script` in turn, the last one repeatedly; raise errors, call functions."""

    def __init__(self, *script, display_address="http://a/v1", price=PRICE):
        self.script, self.display_address, self.price = list(script), display_address, price
        self.limits = LimitHeaders()
        self.seen = []
        self.closed = False

    async def _next(self, what):
        self.seen.append(what)
        await asyncio.sleep(0)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        step = step(what) if callable(step) else step
        if isinstance(step, Exception):
            raise step
        return step

    async def chat(self, request, prompt_tokens=None, listener=None):
        return await self._next(request)

    async def embed(self, requests):
        return await self._next(list(requests))

    quirks = frozenset()

    def add_quirks(self, quirks): ...

    async def close(self):
        self.closed = True


class Limiter(LocalLimiter):
    """A real limiter that records what it was told."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked, self.settled, self.penalties, self.ended = [], [], [], []

    async def acquire(self, model, wants, usable, holder=""):
        self.asked.append(list(wants))
        return await super().acquire(model, wants, usable, holder)

    def settle(self, model, endpoint, delta_tokens, ended=None, holder=""):
        self.settled.append(delta_tokens)
        self.ended.append(ended)
        super().settle(model, endpoint, delta_tokens, ended, holder)

    def penalise(self, model, endpoint, retry_after_s):
        self.penalties.append((endpoint, retry_after_s))
        super().penalise(model, endpoint, retry_after_s)


class Answers(LocalProvider):
    """Answer by functions."""

    def __init__(self, chat=None, embed=None):
        self.chat_by, self.embed_by = chat, embed

    def chat(self, request):
        return self.chat_by(request)

    def embed(self, requests):
        return self.embed_by(requests)


class World:
    """A gateway with one model `default` and scripted clients."""

    def __init__(
        self,
        *clients,
        max_attempts=4,
        offline=None,
        offline_embed=None,
        endpoint=None,
        hedge=False,
        in_flight=None,
        **model,
    ):
        endpoints = tuple(endpoint or Endpoint(max_in_flight=50) for _ in clients)
        self.model = Model(provider="openai", model="gpt-4o-mini", endpoints=endpoints, **model)
        self.models = {"default": self.model} if clients else {}
        self.limiter = Limiter(self.models, 64)
        self.records, self.slept = [], []
        self.gateway = Gateway(
            self.models,
            self.limiter,
            {"default": clients},
            local={"offline": Answers(offline, offline_embed)},
            max_attempts=max_attempts,
            on_call=self.records.append,
            rng=random.Random(7),
            sleep=self._sleep,
            hedge=hedge,
            in_flight=in_flight or InFlight(),
        )

    async def _sleep(self, seconds):
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def run(self, *requests):
        """The replies, with errors as values."""

        async def all_of_them():
            asked = [self.gateway.ask(r, "stage") for r in requests]
            try:
                return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
            finally:
                await self.gateway.close()

        return asyncio.run(all_of_them())

    def in_flight(self):
        return sum(self.limiter.in_flight("default"))


def chat(text="Say hello.", prompt="map", max_output_tokens=None, model="default", **more):
    call = CallParameters(model, "gpt-4o-mini", max_output_tokens=max_output_tokens)
    return ChatRequest(prompt, (Message("user", text),), call, **more)


def embedding(text, model="default"):
    return EmbeddingRequest(text, CallParameters(model, "gpt-4o-mini"))


def vectors(requests):
    return [EmbeddingReply(r.text.encode(), Usage(2)) for r in requests]
