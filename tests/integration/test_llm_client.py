"""Client, limiter and gateway against a real HTTP server on loopback."""

import asyncio
import itertools
import json
import logging
import pickle
import random
import socket
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from endpoint import (
    BROKEN,
    FORBIDDEN,
    GARBAGE,
    NO_QUOTA,
    NO_SUCH_MODEL,
    TOO_LONG,
    Answer,
    Drop,
    Endpoint,
    Hang,
    Raw,
    Status,
    in_turn,
    rate_limited,
    unsupported,
)

from graphrag_ray.base import connection_settings
from graphrag_ray.base.errors import FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import (
    CallParameters,
    ChatRequest,
    EmbeddingRequest,
    Message,
    RerankRequest,
    Usage,
)
from graphrag_ray.base.reasoning import DEFAULT_REASONING_TOKENS
from graphrag_ray.llm import client
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.call_failures import RetriesExhausted
from graphrag_ray.llm.gateway import Gateway
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.llm.openai_provider import PROVIDER

KEY = "sk-test-0123456789abcdef"
CALL = CallParameters("default", "gpt-4o-mini")


def chat(text="Say hello.", **more):
    return ChatRequest("map", (Message("user", text),), CALL, **more)


def embedding(text, dimensions=None):
    return EmbeddingRequest(text, CALL, dimensions)


class World:
    """A gateway with real clients of these endpoints."""

    def __init__(
        self,
        *endpoints,
        limits=None,
        environ=None,
        max_attempts=5,
        force_yes_no=None,
        start=64,
        hedge=False,
        quirks=None,
        **model,
    ):
        model = {"model": "gpt-4o-mini", "timeout_s": 10.0} | model
        described = [
            e
            if isinstance(e, connection_settings.Endpoint)
            else connection_settings.Endpoint(
                base_url=e.base_url, **({"max_in_flight": 100} if limits is None else limits)
            )
            for e in endpoints
        ]
        self.model = connection_settings.Model(provider="openai", endpoints=tuple(described), **model)
        self.accounts = Accounts()
        self.environ = {"OPENAI_API_KEY": KEY} if environ is None else environ
        self.max_attempts, self.force_yes_no = max_attempts, force_yes_no
        self.start, self.hedge, self.quirks = start, hedge, quirks

    def run(self, *requests):
        """The replies, errors as values."""

        async def all_of_them():
            models = {"default": self.model}
            gateway = Gateway(
                models,
                LocalLimiter(models, self.start),
                {"default": PROVIDER.connect(self.model, self.environ, None, self.force_yes_no, self.quirks)},
                max_attempts=self.max_attempts,
                on_call=self.accounts.add,
                rng=random.Random(3),
                hedge=self.hedge,
            )
            try:
                asked = [gateway.ask(r, "stage") for r in requests]
                return await asyncio.gather(*asked, return_exceptions=True)
            finally:
                await gateway.close()

        return asyncio.run(all_of_them())

    def run_one(self, request):
        return self.run(request)[0]


def test_chat_call_returns_the_reply():
    with Endpoint(lambda body: "Hello.", key=KEY) as endpoint:
        world = World(endpoint)
        reply = world.run_one(chat())
    assert (reply.text, reply.finish_reason) == ("Hello.", "stop")
    assert reply.usage == Usage(7, 2)
    (sent,) = endpoint.bodies()
    assert sent == {
        "model": "gpt-4o-mini",
        "messages": [{"role": "user", "content": "Say hello."}],
        "temperature": 0.0,
        "max_tokens": 4096,
    }
    total = world.accounts.total
    assert (total.calls, total.requests, total.failed, total.prompt_tokens) == (1, 1, 0, 7)
    assert total.cost_usd == pytest.approx(7 * 0.15e-6 + 2 * 0.6e-6)


def test_concurrent_calls_of_a_client_get_their_own_replies():
    with Endpoint(lambda body: Answer(body["messages"][0]["content"].upper(), delay_s=0.05)) as endpoint:
        replies = World(endpoint).run(*[chat(f"call {i} äöü 漢字") for i in range(200)])
    assert [r.text for r in replies] == [f"CALL {i} ÄÖÜ 漢字" for i in range(200)]
    assert 50 < endpoint.peak_in_flight <= 100


def test_truncated_reply_is_marked():
    with Endpoint(lambda body: Answer("cut off", "length")) as endpoint:
        assert World(endpoint).run_one(chat()).finish_reason == "length"


def test_missing_usage_is_counted_by_the_client():
    with Endpoint(lambda body: Answer("Hello.", usage=None)) as endpoint:
        reply = World(endpoint).run_one(chat())
    assert reply.usage == Usage(7, 2, reported=False)


@pytest.mark.parametrize(
    "fault", [BROKEN, Status(503), Status(408), Status(409), Drop(), GARBAGE, Raw(b""), Raw(b"{}")]
)
def test_transient_fault_is_retried(fault):
    with Endpoint(in_turn(fault, "Hello.")) as endpoint:
        world = World(endpoint)
        assert world.run_one(chat()).text == "Hello."
    assert len(endpoint.requests) == 2
    assert world.accounts.total.retries == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 \xff\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 9 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_malformed_response_is_retried(answer):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answer_all, server, answer, times=2)
        world = World(
            SimpleNamespace(base_url=f"http://127.0.0.1:{server.getsockname()[1]}/v1"), max_attempts=2
        )
        error = world.run_one(chat())
        assert isinstance(error, RetriesExhausted) and error.attempts == 2 and asked.result(10) == 2


def answer_all(server, answer, times):
    """Send the same bytes to each of `n` connections, and return the number of connections."""
    for _ in range(times):
        connection, _ = server.accept()
        with connection:
            connection.settimeout(10)
            connection.recv(1 << 16)
            connection.sendall(answer)
    return times


def test_unexpected_library_error_fails_one_call_and_is_retried(monkeypatch, caplog):
    read_chat, seen = client.read_chat, itertools.count()

    def read(*given):
        if next(seen) == 0:
            raise RuntimeError(f"the handler is closed, and {KEY} with it")
        return read_chat(*given)

    monkeypatch.setattr(client, "read_chat", read)
    with Endpoint(lambda body: "Hello.") as endpoint:
        world = World(endpoint)
        assert world.run_one(chat()).text == "Hello."
        monkeypatch.setattr(client, "read_chat", lambda *given: {}["nothing"])
        error = World(endpoint, max_attempts=1).run_one(chat())
    assert (world.accounts.total.retries, world.accounts.total.unanswered) == (1, 1)
    assert (
        isinstance(error, RetriesExhausted)
        and "No answer from" in str(error)
        and "KeyError: 'nothing'" in str(error)
    )
    assert "Unexpected error in a call" in caplog.text


def test_cookies_are_not_stored():
    kept = Answer("Hello.", headers={"Set-Cookie": "route=caf\u00e9; Path=/"})
    with Endpoint(in_turn(kept, "Hello.")) as endpoint:
        world = World(endpoint, limits={"max_in_flight": 1})
        assert [r.text for r in world.run(chat("a"), chat("b"))] == ["Hello."] * 2
    assert all("Cookie" not in r.headers for r in endpoint.requests)


@pytest.mark.parametrize("key", ["sk-caf\u00e9", "sk-one\nsk-two"])
def test_key_that_is_invalid_in_a_header_is_reported_without_the_key(key):
    with Endpoint(lambda body: "Hello.") as endpoint:
        error = World(endpoint, environ={"OPENAI_API_KEY": key}).run_one(chat())
    assert isinstance(error, FatalCallError) and "cannot be sent" in str(error)
    assert key not in str(error) and endpoint.requests == []


def test_request_that_cannot_be_encoded_fails_permanently():
    with Endpoint(lambda body: "Hello.") as endpoint:
        error = World(endpoint).run_one(chat("half a pair: \ud800"))
    assert isinstance(error, PermanentCallError) and "The request cannot be sent" in str(error)
    assert endpoint.requests == []


def test_hanging_call_times_out_and_is_retried():
    with Endpoint(in_turn(Hang(), "Hello.")) as endpoint:
        started = time.monotonic()
        world = World(endpoint, timeout_s=0.3)
        assert world.run_one(chat()).text == "Hello."
    assert 0.3 <= time.monotonic() - started < 3
    total = world.accounts.total
    assert (total.unanswered, total.prompt_tokens, total.completion_tokens) == (1, 14, 502)


def test_unreachable_endpoint_is_named_after_all_attempts():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        world = World(connection_settings.Endpoint(base_url=url), max_attempts=2)
        error = world.run_one(chat())
    assert isinstance(error, RetriesExhausted)
    assert error.attempts == 2
    assert url in str(error)
    assert "Connect" in str(error)
    assert (world.accounts.total.unanswered, world.accounts.total.total_tokens) == (0, 0), "it was never sent"


def test_connection_that_breaks_after_the_request_counts_as_possibly_billed():
    with Endpoint(in_turn(Drop(), "Hello.")) as endpoint:
        world = World(endpoint)
        assert world.run_one(chat()).text == "Hello."
    assert (world.accounts.total.unanswered, world.accounts.total.prompt_tokens) == (1, 14)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "1"}, 1.0),
        ({"retry_after_ms": "400"}, 0.4),
        ({"x_ratelimit_reset_requests": "300ms"}, 0.3),
    ],
)
def test_429_delays_all_calls_for_the_requested_time(headers, seconds):
    with Endpoint(in_turn(rate_limited(**headers), "Hello.")) as endpoint:
        world = World(endpoint, limits={"max_in_flight": 1})
        replies = world.run(chat("a"), chat("b"), chat("c"))
    assert [r.text for r in replies] == ["Hello."] * 3
    times = [r.at for r in endpoint.requests]
    assert times[1] - times[0] >= seconds * 0.99
    assert world.accounts.total.rate_limited == 1


@pytest.mark.parametrize("fault", [FORBIDDEN, NO_SUCH_MODEL, NO_QUOTA])
def test_rejection_of_all_requests_is_fatal_immediately(fault):
    with Endpoint(lambda body: fault) as endpoint:
        error = World(endpoint).run_one(chat())
    assert isinstance(error, FatalCallError)
    assert error.status == fault.status
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("fault", [TOO_LONG, Status(400, "filtered", "content_filter"), Status(400, "bad")])
def test_rejection_of_a_request_is_permanent(fault):
    with Endpoint(lambda body: fault) as endpoint:
        error = World(endpoint).run_one(chat())
    assert isinstance(error, PermanentCallError)
    assert len(endpoint.requests) == 1


def test_rejected_key_does_not_appear_anywhere(caplog):
    echo = Status(401, f"Incorrect API key provided: {KEY}. Bearer {KEY}", "invalid_api_key")
    with caplog.at_level(logging.DEBUG), Endpoint(lambda body: echo) as endpoint:
        world = World(endpoint)
        error = world.run_one(chat())
        clients = PROVIDER.connect(world.model, world.environ)
    assert isinstance(error, FatalCallError)
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = [
        str(error),
        repr(error),
        "".join(traceback.format_exception(error)),
        str(pickle.dumps(error)),
        repr(clients),
        caplog.text,
        json.dumps(world.accounts.to_dict()),
    ]
    assert not any(KEY in text for text in shown)
    assert "Incorrect API key" in str(error)


def test_error_for_a_missing_key_names_the_variable_and_the_node():
    with Endpoint() as endpoint:
        error = World(endpoint, environ={}).run_one(chat())
    assert isinstance(error, FatalCallError)
    assert "OPENAI_API_KEY" in str(error)
    assert socket.gethostname() in str(error)
    assert endpoint.requests == []


def test_endpoint_without_a_key_gets_no_authorization_header():
    with Endpoint() as endpoint:
        described = connection_settings.Endpoint(
            base_url=endpoint.base_url, api_key_env=None, headers={"X-Team": "graphs"}
        )
        assert World(described, environ={}).run_one(chat()).text == "Hello."
        assert World(described).run_one(chat()).text == "Hello."
        with_key = connection_settings.Endpoint(base_url=endpoint.base_url)
        World(with_key).run_one(chat())
    request = endpoint.requests[0]
    assert ["Authorization" in r.headers for r in endpoint.requests] == [False, False, True]
    assert request.headers["X-Team"] == "graphs"


@pytest.mark.parametrize("parameter", ["temperature", "max_tokens"])
def test_rejected_parameter_is_omitted_in_later_requests(parameter, monkeypatch):
    monkeypatch.setattr("graphrag_ray.llm.client.ALONE_S", 60)

    def respond(body):
        return unsupported(parameter) if parameter in body else "Hello."

    with Endpoint(respond) as endpoint:
        world = World(endpoint, max_attempts=1)
        replies = world.run(*[chat(f"call {i}") for i in range(50)])
        assert [r.text for r in replies] == ["Hello."] * 50
        assert len(endpoint.requests) == 51, "the first went alone"
        learned = world.accounts.quirks
        later = World(endpoint, quirks=learned["gpt-4o-mini"])
        later.run_one(chat())
        assert len(endpoint.requests) == 52, "and the next run knows"
    assert parameter in learned["gpt-4o-mini"][endpoint.base_url]
    if parameter == "max_tokens":
        assert endpoint.bodies()[-1]["max_completion_tokens"] == 4096 + DEFAULT_REASONING_TOKENS


def test_json_schema_falls_back_to_json_object_and_plain_text():
    def respond(body):
        if "response_format" in body:
            form = body["response_format"]["type"]
            return Status(400, f"Invalid parameter: 'response_format' of type '{form}' is not supported")
        return '{"a": 1}'

    request = chat(response="json", schema={"type": "object", "properties": {}})
    with Endpoint(respond) as endpoint:
        assert World(endpoint).run_one(request).text == '{"a": 1}'
    formats = [b.get("response_format", {}).get("type") for b in endpoint.bodies()]
    assert formats == ["json_schema", "json_object", None]


@pytest.mark.parametrize(
    ("model", "force", "forced"),
    [
        ("gpt-4o-mini", None, True),
        ("some-model", None, False),
        ("gpt-4o-mini", False, False),
        ("some-model", True, True),
    ],
)
def test_yes_or_no_is_forced_only_with_a_known_vocabulary_or_on_request(model, force, forced):
    with Endpoint(lambda body: Answer("Yes", "length")) as endpoint:
        world = World(endpoint, model=model, force_yes_no=force)
        reply = world.run_one(chat(response="yes_no"))
    (body,) = endpoint.bodies()
    assert ("logit_bias" in body) is forced
    assert body["max_tokens"] <= 8
    assert (reply.text, reply.finish_reason) == ("Yes", "stop")


def test_prompt_truncated_by_the_endpoint_is_a_failure():
    usage = {"prompt_tokens": 2048, "completion_tokens": 3}
    with Endpoint(lambda body: Answer("Hello.", usage=usage)) as endpoint:
        world = World(endpoint)
        error = world.run_one(chat("word " * 6000))
    assert isinstance(error, PermanentCallError)
    assert "2048" in str(error)
    assert "600" in str(error)
    assert world.accounts.total.prompt_tokens == 2048


def test_embeddings_are_batched_and_returned_in_order():
    texts = [f"text number {i}" for i in range(100)]
    with Endpoint(dimensions=16) as endpoint:
        together = World(endpoint, embedding_batch_size=32).run(*[embedding(t) for t in texts])
        alone = World(endpoint, embedding_batch_size=1).run(*[embedding(t) for t in texts[:5]])
    packs = [len(b["input"]) for b in endpoint.bodies("/embeddings")]
    assert sorted(packs[:4]) == [4, 32, 32, 32]
    assert [r.vector for r in together[:5]] == [r.vector for r in alone]
    assert np.frombuffer(together[0].vector, "<f4").shape == (16,)
    assert all(r.usage.prompt_tokens == 4 for r in together)


RERANKING = RerankRequest("red apple", ("a green pear", "a red apple", "a red car"), CALL)


def scores(reply):
    return np.frombuffer(reply.vector, "<f4").tolist()


def test_documents_are_reranked_in_one_call_that_is_accounted():
    with Endpoint() as endpoint:
        price = {"input_usd_per_mtok": 1.0, "usd_per_search": 0.002}
        world = World(endpoint, price=price)
        reply = world.run_one(RERANKING)
    assert scores(reply) == [0, 2, 1]
    (sent,) = endpoint.bodies("/rerank")
    assert sent == {"model": "gpt-4o-mini", "query": "red apple", "documents": list(RERANKING.documents)}
    total = world.accounts.total
    assert total.calls == 1 and total.prompt_tokens == reply.usage.prompt_tokens > 10
    assert total.cost_usd == pytest.approx(0.002 + total.prompt_tokens / 1e6)


def test_the_address_of_a_reranker_may_include_the_path():
    with Endpoint() as endpoint:
        described = connection_settings.Endpoint(base_url=endpoint.base_url + "/rerank")
        assert scores(World(described).run_one(RERANKING)) == [0, 2, 1]


def test_reranking_is_retried_and_fails_like_other_calls():
    with Endpoint(rerank=in_turn(BROKEN, GARBAGE, Raw(b'{"results": []}'), "")) as endpoint:
        assert scores(World(endpoint).run_one(RERANKING)) == [0, 2, 1] and len(endpoint.requests) == 4
    with Endpoint(rerank=lambda body: NO_SUCH_MODEL) as endpoint:
        assert isinstance(World(endpoint).run_one(RERANKING), FatalCallError)
    with Endpoint(rerank=lambda body: TOO_LONG) as endpoint:
        assert isinstance(World(endpoint).run_one(RERANKING), PermanentCallError)


def test_a_local_provider_without_reranking_says_so():
    async def ask():
        gateway = Gateway({}, LocalLimiter({}, 1), {}, max_attempts=1, on_call=Accounts().add)
        return await gateway.ask(RERANKING, "rerank")

    with pytest.raises(FatalCallError, match="cannot rerank"):
        asyncio.run(ask())


def test_embeddings_without_base64_are_accepted():
    def plain(body):
        return unsupported("encoding_format") if "encoding_format" in body else "embed"

    with Endpoint(embed=plain) as endpoint:
        (reply,) = World(endpoint).run(embedding("a text"))
    assert np.frombuffer(reply.vector, "<f4").shape == (8,)


def test_dimensions_are_requested():
    with Endpoint() as endpoint:
        reply = World(endpoint).run_one(embedding("a text", dimensions=24))
    assert np.frombuffer(reply.vector, "<f4").shape == (24,)


def test_known_limits_are_used_but_not_exceeded():
    with Endpoint(lambda body: Answer("Hello.", delay_s=0.2)) as endpoint:
        world = World(endpoint, limits={"requests_per_minute": 6000})
        world.run(*[chat(f"call {i}") for i in range(250)])
    times = [r.at for r in endpoint.requests]
    in_a_second = [sum(t <= u < t + 1.0 for u in times) for t in times]
    assert max(in_a_second) <= 100 + 10 + 40, "the rate, a burst, and what the loop was late by"
    assert endpoint.peak_in_flight > 15, "only the rate bounds calls in flight"


def test_max_in_flight_is_not_exceeded():
    with Endpoint(lambda body: Answer("Hello.", delay_s=0.05)) as endpoint:
        World(endpoint, limits={"max_in_flight": 7}).run(*[chat(f"call {i}") for i in range(50)])
    assert endpoint.peak_in_flight == 7


def test_calls_in_flight_grow_with_throughput_without_known_limits():
    with Endpoint(lambda body: Answer("Hello.", delay_s=0.1)) as endpoint:
        replies = World(endpoint, limits={}, start=4).run(*[chat(f"call {i}") for i in range(400)])
    assert [r.text for r in replies] == ["Hello."] * 400
    assert endpoint.peak_in_flight >= 12


def test_limits_from_headers_are_not_exceeded():
    used = itertools.count(1)

    def respond(body):
        n = next(used)
        told = {
            "x-ratelimit-limit-requests": "3000",
            "x-ratelimit-remaining-requests": str(3000 - n),
            "x-ratelimit-reset-requests": f"{20 * n}ms",
        }
        return Answer("Hello.", headers=told)

    with Endpoint(respond) as endpoint:
        World(endpoint, limits={}, start=2).run(*[chat(f"call {i}") for i in range(80)])
    times = [r.at for r in endpoint.requests]
    assert times[-1] - times[10] >= 0.9 * 69 / 50, "fifty a second"


def test_calls_wait_while_headers_report_an_exhausted_limit():
    told = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "600ms"}
    with Endpoint(in_turn(Answer("Hello.", headers=told), "Hello.")) as endpoint:
        World(endpoint, limits={"max_in_flight": 1}).run(chat("a"), chat("b"))
    first, second = [r.at for r in endpoint.requests]
    assert second - first >= 0.59


def test_slow_call_is_hedged_and_returns_one_reply():
    seen = itertools.count()

    def respond(body):
        slow = body["messages"][0]["content"] == "slow" and next(seen) == 0
        return Answer("late" if slow else "Hello.", delay_s=20.0 if slow else 0.01)

    with Endpoint(respond) as endpoint:
        world = World(endpoint, hedge=True, limits={"max_in_flight": 20}, timeout_s=30.0)
        started = time.monotonic()
        replies = world.run(*[chat(f"call {i}") for i in range(150)], chat("slow"))
    assert [r.text for r in replies] == ["Hello."] * 151
    assert time.monotonic() - started < 15
    total = world.accounts.total
    assert total.hedged >= 1
    assert total.requests == total.calls + total.hedged == len(endpoint.requests)
    assert total.retries == 0


def test_endpoints_have_their_own_key_model_name_and_price():
    with Endpoint(key="key-of-a") as a, Endpoint(key="key-of-b") as b:
        described = [
            connection_settings.Endpoint(base_url=a.base_url, api_key_env="A_KEY", max_in_flight=1),
            connection_settings.Endpoint(
                base_url=b.base_url, api_key_env="B_KEY", model="gpt-4o", max_in_flight=1
            ),
        ]
        world = World(*described, environ={"A_KEY": "key-of-a", "B_KEY": "key-of-b"})
        world.run(*[chat(f"call {i}") for i in range(40)])
    at_a, at_b = len(a.requests), len(b.requests)
    assert at_a + at_b == 40
    assert min(at_a, at_b) > 5
    assert {x["model"] for x in a.bodies()} == {"gpt-4o-mini"}
    assert {x["model"] for x in b.bodies()} == {"gpt-4o"}
    cheap, dear = 7 * 0.15e-6 + 2 * 0.6e-6, 7 * 2.5e-6 + 2 * 10e-6
    about = at_a * cheap + at_b * dear
    assert world.accounts.total.cost_usd == pytest.approx(about, rel=0.2)


def test_failed_endpoint_is_tried_again_after_a_while():
    broken = itertools.count()

    def respond(body):
        return BROKEN if next(broken) < 3 else Answer("a", delay_s=0.02)

    with Endpoint(respond) as recovering, Endpoint(lambda body: Answer("b", delay_s=0.02)) as steady:
        world = World(recovering, steady, limits={"max_in_flight": 1}, max_attempts=8)
        replies = world.run(*[chat(f"call {i}") for i in range(120)])
    assert {r.text for r in replies} == {"a", "b"}


def test_endpoint_that_rejects_the_key_is_dropped(caplog):
    with (
        caplog.at_level(logging.WARNING),
        Endpoint(lambda body: Answer("a", delay_s=0.02), key="another-key") as refusing,
        Endpoint(lambda body: Answer("b", delay_s=0.02), key=KEY) as one,
        Endpoint(lambda body: Answer("c", delay_s=0.02), key=KEY) as two,
    ):
        world = World(refusing, one, two, limits={"max_in_flight": 5})
        replies = world.run(*[chat(f"call {i}") for i in range(100)])
    assert {r.text for r in replies} == {"b", "c"}
    assert min(len(one.requests), len(two.requests)) >= 30
    assert len(refusing.requests) <= 5
    assert sum(refusing.base_url in r.getMessage() for r in caplog.records) == 1


def test_lost_endpoint_does_not_stop_the_work():
    with Endpoint(lambda body: Answer("b", delay_s=0.01)) as alive:
        gone = connection_settings.Endpoint(base_url="http://127.0.0.1:9/v1", max_in_flight=5)
        here = connection_settings.Endpoint(base_url=alive.base_url, max_in_flight=5)
        replies = World(gone, here, max_attempts=8).run(*[chat(f"call {i}") for i in range(60)])
    assert [r.text for r in replies] == ["b"] * 60


def test_many_faults_lose_no_reply():
    dice = random.Random(11)

    def respond(body):
        faults = [BROKEN, Drop(), GARBAGE, Hang(), rate_limited(retry_after="0.05")]
        return dice.choice(faults) if dice.random() < 0.15 else body["messages"][0]["content"]

    with Endpoint(respond) as endpoint:
        world = World(endpoint, limits={"max_in_flight": 50}, timeout_s=0.5, max_attempts=8)
        replies = world.run(*[chat(f"call {i}") for i in range(300)])
    assert [r.text for r in replies] == [f"call {i}" for i in range(300)]
    total = world.accounts.total
    assert (total.calls, total.failed) == (300, 0)
    # A request on a connection that the server is just closing never arrives, nor does one that timed out.
    assert 0 <= total.requests - len(endpoint.requests) <= total.unanswered


def test_event_loop_is_not_blocked_by_calls():
    async def scenario(endpoint):
        world = World(endpoint, limits={"requests_per_minute": 3000})
        models = {"default": world.model}
        gateway = Gateway(
            models,
            LocalLimiter(models, 64),
            {"default": PROVIDER.connect(world.model, world.environ)},
            max_attempts=3,
            on_call=world.accounts.add,
            rng=random.Random(3),
        )
        await gateway.ask(chat("warm up"), "stage")
        calls = [asyncio.ensure_future(gateway.ask(chat(f"call {i}"), "stage")) for i in range(40)]
        ticks = [time.monotonic()]
        while not all(c.done() for c in calls):
            await asyncio.sleep(0.005)
            ticks.append(time.monotonic())
        await gateway.close()
        return max(b - a for a, b in itertools.pairwise(ticks))

    with Endpoint(lambda body: Answer("Hello.", delay_s=0.1)) as endpoint:
        assert asyncio.run(scenario(endpoint)) < 0.4


def test_errors_can_be_pickled():
    with Endpoint(lambda body: BROKEN) as endpoint:
        error = World(endpoint, max_attempts=1).run_one(chat())
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, TransientCallError)
    assert (str(again), again.status, again.attempts) == (str(error), 500, 1)
