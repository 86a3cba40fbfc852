"""Streamed chat replies from a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from endpoint import (
    BROKEN,
    FORBIDDEN,
    Answer,
    Broken,
    Endpoint,
    Raw,
    Respond,
    in_turn,
    pieces_of,
    unsupported,
)
from scripted import Answers

from graphrag_ray.base import connection_settings
from graphrag_ray.base.errors import CallError, FatalCallError, PermanentCallError
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Message, Usage
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.call_failures import RetriesExhausted
from graphrag_ray.llm.gateway import Gateway
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.llm.openai_provider import PROVIDER

TEXT = "The ferry was sold; nobody was asked. Ünïcödé 🚢 too."
REQUEST = ChatRequest("reduce", (Message("user", "Say it."),), CallParameters("default", "gpt-4o-mini"))


@dataclass
class RecordingListener:
    """A listener that records the pieces of each reply."""

    replies: list[list[str]] = field(default_factory=list)

    def on_start(self) -> None:
        self.replies.append([])

    def on_text(self, text: str) -> None:
        self.replies[-1].append(text)

    @property
    def texts(self) -> list[str]:
        return ["".join(pieces) for pieces in self.replies]


def ask(
    respond: Respond | Any, hedge: bool = False, streams: bool = True, max_attempts: int = 4
) -> tuple[RecordingListener, CallResult[Any] | CallError, Accounts, list[dict[str, Any]]]:
    heard, accounts = RecordingListener(), Accounts()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    async def one(endpoint: Endpoint) -> CallResult[Any] | CallError:
        at = connection_settings.Endpoint(base_url=endpoint.base_url, api_key_env=None, max_in_flight=4)
        price = connection_settings.Price(input_usd_per_mtok=1.0, output_usd_per_mtok=2.0)
        model = connection_settings.Model(
            provider="openai", model="gpt-4o-mini", endpoints=(at,), timeout_s=10.0, price=price
        )
        gateway = Gateway(
            {"default": model},
            LocalLimiter({"default": model}, 64),
            {"default": PROVIDER.connect(model, {})},
            max_attempts=max_attempts,
            on_call=accounts.add,
            rng=random.Random(3),
            hedge=hedge,
            sleep=sleep,
        )
        try:
            return await gateway.answer(REQUEST, "stage", heard)
        except CallError as e:
            return e
        finally:
            await gateway.close()

    with Endpoint(respond if callable(respond) else in_turn(respond), streams=streams) as endpoint:
        got = asyncio.run(one(endpoint))
        return heard, got, accounts, endpoint.bodies()


def test_pieces_of_a_stream_add_up_to_the_reply():
    heard, got, accounts, (body,) = ask(TEXT)
    assert heard.replies == [pieces_of(TEXT)]
    assert got.reply.text == TEXT and got.reply.finish_reason == "stop"
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert got.reply.usage.reported and accounts.total.completion_tokens > 5


def test_reply_without_a_listener_is_not_streamed():
    with Endpoint() as endpoint:
        at = connection_settings.Endpoint(base_url=endpoint.base_url, api_key_env=None)
        model = connection_settings.Model(provider="openai", model="m", endpoints=(at,))
        (client,) = PROVIDER.connect(model, {})

        async def one() -> None:
            await client.chat(REQUEST)
            await client.close()

        asyncio.run(one())
        assert "stream" not in endpoint.bodies()[0]


def test_usage_missing_in_a_stream_is_counted():
    _, got, _, _ = ask(Answer(TEXT, usage=None))
    assert not got.reply.usage.reported and got.reply.usage.completion_tokens > 5


def test_truncated_stream_is_marked():
    _, got, _, _ = ask(Answer(TEXT, finish_reason="length"))
    assert got.reply.finish_reason == "length"


@pytest.mark.parametrize("how", ["drop", "end", "error", "garbage"])
def test_broken_stream_is_retried_and_restarted(how):
    heard, got, accounts, bodies = ask(in_turn(Broken(TEXT, 3, how), TEXT))
    assert heard.texts == ["".join(pieces_of(TEXT)[:3]), TEXT]
    assert got.reply.text == TEXT and got.attempts == len(bodies) == 2
    # Output before the connection broke counts as paid.
    once = ask(TEXT)[2].total
    assert once.completion_tokens < accounts.total.completion_tokens < 2 * once.completion_tokens
    assert accounts.total.prompt_tokens > 1.5 * once.prompt_tokens


def test_endpoint_that_always_breaks_off_is_abandoned_and_named():
    heard, got, accounts, bodies = ask(Broken(TEXT, 2), max_attempts=3)
    assert isinstance(got, RetriesExhausted) and "The reply broke off" in str(got)
    assert "http://127.0.0.1" in str(got) and "attempt 3 of 3" in str(got)
    assert len(heard.replies) == len(bodies) == 3 and accounts.total.failed == 1


def test_failure_before_the_first_piece_is_retried_silently():
    heard, got, _, _ = ask(in_turn(BROKEN, Broken(TEXT, 0, "end"), TEXT))
    assert heard.texts == ["", "", TEXT] and got.attempts == 3


def test_endpoint_that_ignores_streaming_is_accepted():
    heard, got, _, (body,) = ask(TEXT, streams=False)
    assert heard.replies == [[TEXT]] and got.reply.text == TEXT and body["stream"]


@pytest.mark.parametrize("parameter", ["stream_options", "stream"])
def test_rejected_stream_parameter_is_omitted(parameter):
    def respond(body):
        return unsupported(parameter) if parameter in body else Answer(TEXT, usage=None)

    heard, got, _, bodies = ask(respond)
    assert heard.texts[-1] == TEXT and got.reply.text == TEXT
    assert len(bodies) == 2 and parameter not in bodies[1]


def test_rejection_is_reported_as_without_a_stream():
    assert isinstance(ask(FORBIDDEN)[1], FatalCallError)
    filtered = Raw(b'{"choices": [{"message": {"content": null}, "finish_reason": "content_filter"}]}')
    assert isinstance(ask(filtered)[1], PermanentCallError)


def test_streamed_reply_is_not_hedged():
    _, got, accounts, bodies = ask(TEXT, hedge=True)
    assert len(bodies) == 1 and accounts.total.hedged == 0 and got.reply.text == TEXT


def test_offline_engine_streams_one_piece():
    heard = RecordingListener()
    gateway = Gateway(
        {},
        LocalLimiter({}, 1),
        {},
        local={"default": Answers(lambda request: ChatReply(TEXT, usage=Usage()))},
        max_attempts=1,
        on_call=Accounts().add,
        rng=random.Random(3),
    )
    assert asyncio.run(gateway.answer(REQUEST, "stage", heard)).reply.text == TEXT
    assert heard.replies == [[TEXT]]
