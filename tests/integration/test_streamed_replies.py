"""A chat reply that is heard while it is written, from a real HTTP server on loopback."""

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

from graphrag_ray.base import index_settings
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
class Heard:
    """A listener that keeps what it hears, reply by reply."""

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
) -> tuple[Heard, CallResult[Any] | CallError, Accounts, list[dict[str, Any]]]:
    heard, accounts = Heard(), Accounts()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    async def one(endpoint: Endpoint) -> CallResult[Any] | CallError:
        at = index_settings.Endpoint(base_url=endpoint.base_url, api_key_env=None, max_in_flight=4)
        price = index_settings.Price(input_usd_per_mtok=1.0, output_usd_per_mtok=2.0)
        model = index_settings.Model(
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


def test_the_pieces_of_a_reply_are_heard_and_make_up_its_text():
    heard, got, accounts, (body,) = ask(TEXT)
    assert heard.replies == [pieces_of(TEXT)]
    assert got.reply.text == TEXT and got.reply.finish_reason == "stop"
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert got.reply.usage.reported and accounts.total.completion_tokens > 5


def test_a_reply_without_a_listener_is_not_streamed():
    with Endpoint() as endpoint:
        at = index_settings.Endpoint(base_url=endpoint.base_url, api_key_env=None)
        model = index_settings.Model(provider="openai", model="m", endpoints=(at,))
        (client,) = PROVIDER.connect(model, {})

        async def one() -> None:
            await client.chat(REQUEST)
            await client.close()

        asyncio.run(one())
        assert "stream" not in endpoint.bodies()[0]


def test_usage_that_a_stream_does_not_tell_is_counted():
    _, got, _, _ = ask(Answer(TEXT, usage=None))
    assert not got.reply.usage.reported and got.reply.usage.completion_tokens > 5


def test_a_reply_that_ends_at_its_limit_says_so():
    _, got, _, _ = ask(Answer(TEXT, finish_reason="length"))
    assert got.reply.finish_reason == "length"


@pytest.mark.parametrize("how", ["drop", "end", "error", "garbage"])
def test_a_stream_that_breaks_off_is_tried_again_and_heard_from_its_beginning(how):
    heard, got, accounts, bodies = ask(in_turn(Broken(TEXT, 3, how), TEXT))
    assert heard.texts == ["".join(pieces_of(TEXT)[:3]), TEXT]
    assert got.reply.text == TEXT and got.attempts == len(bodies) == 2
    # What was written before it broke off was paid for, as far as anybody knows.
    once = ask(TEXT)[2].total
    assert once.completion_tokens < accounts.total.completion_tokens < 2 * once.completion_tokens
    assert accounts.total.prompt_tokens > 1.5 * once.prompt_tokens


def test_an_endpoint_that_always_breaks_off_is_given_up_and_named():
    heard, got, accounts, bodies = ask(Broken(TEXT, 2), max_attempts=3)
    assert isinstance(got, RetriesExhausted) and "The reply broke off" in str(got)
    assert "http://127.0.0.1" in str(got) and "attempt 3 of 3" in str(got)
    assert len(heard.replies) == len(bodies) == 3 and accounts.total.failed == 1


def test_what_fails_before_its_first_piece_is_heard_once():
    heard, got, _, _ = ask(in_turn(BROKEN, Broken(TEXT, 0, "end"), TEXT))
    assert heard.texts == ["", "", TEXT] and got.attempts == 3


def test_an_endpoint_that_answers_at_once_all_the_same_is_heard_at_once():
    heard, got, _, (body,) = ask(TEXT, streams=False)
    assert heard.replies == [[TEXT]] and got.reply.text == TEXT and body["stream"]


@pytest.mark.parametrize("parameter", ["stream_options", "stream"])
def test_an_endpoint_that_refuses_a_parameter_of_streams_is_asked_without_it(parameter):
    def respond(body):
        return unsupported(parameter) if parameter in body else Answer(TEXT, usage=None)

    heard, got, _, bodies = ask(respond)
    assert heard.texts[-1] == TEXT and got.reply.text == TEXT
    assert len(bodies) == 2 and parameter not in bodies[1]


def test_a_refusal_is_told_as_without_a_stream():
    assert isinstance(ask(FORBIDDEN)[1], FatalCallError)
    filtered = Raw(b'{"choices": [{"message": {"content": null}, "finish_reason": "content_filter"}]}')
    assert isinstance(ask(filtered)[1], PermanentCallError)


def test_a_reply_that_is_heard_is_not_hedged():
    _, got, accounts, bodies = ask(TEXT, hedge=True)
    assert len(bodies) == 1 and accounts.total.hedged == 0 and got.reply.text == TEXT


def test_the_offline_engine_is_heard_in_one_piece():
    heard = Heard()
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
