import asyncio

import pytest
from scripted import HELLO, FakeClient, World, chat, embedding, vectors

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.base.errors import (
    CallError,
    FatalCallError,
    PermanentCallError,
    RequestTooLarge,
    TransientCallError,
)
from graphrag_ray.base.messages import ChatReply, EmbeddingReply, Usage
from graphrag_ray.llm.accounting import InFlight
from graphrag_ray.llm.call_failures import NoAnswer, ParameterRefused, PromptTruncated, RetriesExhausted


def test_a_reply_is_settled_priced_and_recorded():
    world = World(FakeClient(HELLO))
    assert world.run(chat()) == [HELLO]
    (record,) = world.records
    assert (record.stage, record.prompt, record.model_id) == ("stage", "map", "gpt-4o-mini")
    assert (record.status, record.attempts, record.endpoint) == ("ok", 1, "http://a/v1")
    assert record.usage == Usage(100, 50)
    assert record.cost_usd == pytest.approx(200e-6)
    assert world.limiter.settled == [150 - world.limiter.asked[0][0]]
    assert world.in_flight() == 0


def test_an_unknown_price_is_an_unknown_cost():
    world = World(FakeClient(HELLO, price=None))
    world.run(chat())
    assert world.records[0].cost_usd is None


def test_all_waiters_share_one_request_for_permits():
    world = World(FakeClient(HELLO), endpoint=Endpoint(max_in_flight=1000))
    world.run(*[chat(f"Say hello {i}.") for i in range(40)])
    assert len(world.limiter.asked) <= 2
    assert sum(len(a) for a in world.limiter.asked) == 40


def test_reservations_adapt_to_the_length_of_replies():
    world = World(FakeClient(HELLO), endpoint=Endpoint(max_in_flight=1))
    world.run(*[chat() for _ in range(4)], chat(prompt="other"))
    firsts = [a[0] for a in world.limiter.asked]
    assert firsts[0] - firsts[-2] == 450, "500 at first, then 50"
    assert firsts[-1] == firsts[0], "each prompt has its own mean"


def test_reservations_do_not_use_the_maximum_reply_length():
    world = World(FakeClient(HELLO))
    world.run(chat(max_output_tokens=4000))
    assert world.limiter.asked[0][0] < 600


def test_transient_failures_are_retried_with_back_off():
    world = World(FakeClient(TransientCallError("down", status=503), TransientCallError("dropped"), HELLO))
    assert world.run(chat()) == [HELLO]
    assert world.records[0].attempts == 3
    assert world.records[0].status == "ok"
    assert 0 <= world.slept[0] <= 0.5
    assert 0 <= world.slept[1] <= 1.0
    assert world.in_flight() == 0


def test_back_offs_are_random_but_reproducible():
    def slept():
        world = World(FakeClient(TransientCallError("down")), max_attempts=6)
        world.run(chat(), chat())
        return world.slept

    assert slept() == slept()
    assert len(set(slept())) == len(slept()) == 10


def test_the_error_after_the_last_attempt_states_the_number_of_attempts():
    world = World(FakeClient(TransientCallError("down", status=503)), max_attempts=3)
    (error,) = world.run(chat())
    assert isinstance(error, RetriesExhausted)
    assert (error.attempts, error.status) == (3, 503)
    assert "down" in str(error)
    assert world.records[0].status == "transient"
    assert world.in_flight() == 0


def test_a_429_pauses_all_callers_through_the_limiter():
    world = World(FakeClient(TransientCallError("slow down", status=429, retry_after_s=0.05), HELLO))
    assert world.run(chat()) == [HELLO]
    assert world.limiter.penalties == [(0, 0.05)]
    assert world.slept == [], "the limiter waits, so the client does not sleep"
    assert world.records[0].rate_limited == 1
    assert world.limiter.settled[0] == -world.limiter.asked[0][0], "refused requests use no tokens"


def test_retry_after_of_an_overloaded_endpoint_is_respected():
    world = World(FakeClient(TransientCallError("busy", status=503, retry_after_s=0.05), HELLO))
    world.run(chat())
    assert world.limiter.penalties == [(0, 0.05)], "the pause is capped, affects all callers and is logged"
    assert world.records[0].rate_limited == 0


def test_permanent_failures_are_not_retried():
    client = FakeClient(PermanentCallError("too long", status=400))
    world = World(client)
    (error,) = world.run(chat())
    assert isinstance(error, PermanentCallError)
    assert len(client.seen) == 1
    assert world.records[0].status == "permanent"
    assert world.in_flight() == 0


def test_a_refused_parameter_does_not_count_as_an_attempt():
    world = World(FakeClient(ParameterRefused("no temperature"), HELLO), max_attempts=1)
    assert world.run(chat()) == [HELLO]
    assert world.slept == []


def test_a_truncated_prompt_is_paid_for():
    world = World(FakeClient(PromptTruncated("cut", usage=Usage(2000, 10))))
    world.run(chat())
    assert world.records[0].usage == Usage(2000, 10)
    assert world.records[0].cost_usd == pytest.approx(2020e-6)


def test_an_unanswered_request_is_assumed_to_be_billed():
    world = World(FakeClient(NoAnswer("too slow"), HELLO))
    assert world.run(chat()) == [HELLO]
    (record,) = world.records
    (lost,) = record.unanswered
    assert lost.completion_tokens == 500 and not lost.reported, "no reply to this prompt was seen yet"
    assert record.usage == Usage(100 + lost.prompt_tokens, 50 + 500, reported=False)
    assert record.cost_usd == pytest.approx((lost.prompt_tokens + 2 * 500 + 100 + 2 * 50) / 1e6)
    assert world.limiter.settled[0] == 0, "its reservation is not refunded"


def test_unanswered_attempts_count_towards_budgets_immediately():
    sent, seen = InFlight(), []

    class Silent(FakeClient):
        async def chat(self, request, prompt_tokens=None, listener=None):
            seen.append((sent.calls, sent.tokens // (500 + prompt_tokens), sent.cost_pico_usd > 0))
            raise NoAnswer("too slow")

    world = World(Silent(HELLO), max_attempts=3, in_flight=sent)
    (error,) = world.run(chat())
    assert isinstance(error, RetriesExhausted)
    assert seen == [(1, 1, True), (1, 2, True), (1, 3, True)]
    assert sent == InFlight(), "the record contains it after that"
    (record,) = world.records
    assert len(record.unanswered) == 3 and record.usage.completion_tokens == 1500


def test_a_cancelled_call_is_assumed_to_be_billed():
    async def scenario():
        started, sent = asyncio.Event(), InFlight()

        class Silent(FakeClient):
            async def chat(self, request, prompt_tokens=None, listener=None):
                started.set()
                await asyncio.sleep(60)

        world = World(Silent(HELLO), in_flight=sent)
        call = asyncio.ensure_future(world.gateway.ask(chat(), "stage"))
        await started.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await world.gateway.close()
        (record,) = world.records
        assert record.status == "cancelled"
        assert [u.completion_tokens for u in record.unanswered] == [500]
        assert sent == InFlight()

    asyncio.run(scenario())


def test_a_fatal_failure_of_the_only_endpoint_is_raised():
    client = FakeClient(FatalCallError("wrong key", status=401))
    world = World(client)
    errors = world.run(chat(), chat("Again."))
    assert all(isinstance(e, FatalCallError) for e in errors)
    assert {str(e) for e in errors} == {"wrong key"}
    assert len(client.seen) <= 2
    assert world.in_flight() == 0


def test_an_endpoint_that_refuses_the_key_is_dropped_as_long_as_another_remains():
    refusing = FakeClient(FatalCallError("wrong key", status=401), display_address="http://a/v1")
    working = FakeClient(HELLO, display_address="http://b/v1")
    world = World(refusing, working)
    assert world.run(*[chat(f"Say hello {i}.") for i in range(6)]) == [HELLO] * 6
    assert world.run(chat()) == [HELLO]
    assert len(working.seen) == 7
    assert len(refusing.seen) <= 3


def test_an_endpoint_without_its_key_is_not_called():
    working = FakeClient(HELLO)
    world = World(FatalCallError("no key: A_KEY is not set"), working)
    assert world.run(*[chat(f"Say hello {i}.") for i in range(6)]) == [HELLO] * 6


def test_missing_keys_are_reported():
    world = World(FatalCallError("no key: A_KEY is not set"))
    (error,) = world.run(chat())
    assert isinstance(error, FatalCallError)
    assert "A_KEY" in str(error)


def test_an_endpoint_that_keeps_failing_rests():
    failing = FakeClient(TransientCallError("down"), display_address="http://a/v1")
    working = FakeClient(HELLO, display_address="http://b/v1")
    world = World(failing, working, max_attempts=20, endpoint=Endpoint(max_in_flight=1))
    assert world.run(*[chat(f"Say hello {i}.") for i in range(30)]) == [HELLO] * 30
    assert len(failing.seen) <= 4


def test_a_call_that_failed_at_one_endpoint_goes_to_another():
    gone = FakeClient(TransientCallError("refused"), display_address="http://a/v1")
    working = FakeClient(HELLO, display_address="http://b/v1")
    world = World(gone, working, max_attempts=2)
    assert world.run(*[chat(f"Say hello {i}.") for i in range(6)]) == [HELLO] * 6


def test_a_prompt_that_does_not_fit_the_window_is_not_sent():
    client = FakeClient(HELLO)
    world = World(client, context_window=1000, max_output_tokens=500)
    (error,) = world.run(chat("word " * 600))
    assert isinstance(error, PermanentCallError)
    assert "60" in str(error)
    assert "500" in str(error)
    assert "1000" in str(error)
    assert client.seen == []
    assert world.limiter.asked == []


def test_a_prompt_above_the_limit_per_minute_is_an_error():
    client = FakeClient(HELLO)
    world = World(client, endpoint=Endpoint(tokens_per_minute=1000))
    (error,) = world.run(chat("word " * 2000))
    assert isinstance(error, RequestTooLarge)
    assert client.seen == []


def test_a_cancelled_call_leaves_nothing_in_flight():
    async def scenario():
        started = asyncio.Event()

        async def hang(request, prompt_tokens=None, listener=None):
            started.set()
            await asyncio.sleep(60)

        client = FakeClient(HELLO)
        client.chat = hang
        world = World(client, endpoint=Endpoint(max_in_flight=1))
        calls = [asyncio.ensure_future(world.gateway.ask(chat(), "stage")) for _ in range(3)]
        await started.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await world.gateway.close()
        assert world.in_flight() == 0
        assert [r.status for r in world.records] == ["cancelled"]
        assert client.closed

    asyncio.run(scenario())


def test_embedding_requests_are_packed_into_few_calls():
    client = FakeClient(vectors)
    world = World(client, embedding_batch_size=8)
    replies = world.run(*[embedding(f"text {i}") for i in range(20)])
    assert [r.vector for r in replies] == [f"text {i}".encode() for i in range(20)]
    assert sorted(len(pack) for pack in client.seen) == [4, 8, 8]
    assert [r.usage.prompt_tokens for r in world.records] == [2 * len(p) for p in client.seen]


def test_a_pack_stays_below_a_minutes_limit():
    client = FakeClient(vectors)
    world = World(client, endpoint=Endpoint(tokens_per_minute=60_000_000))
    long_text = "word " * 30_000
    world.run(*[embedding(f"{i} {long_text}") for i in range(5)])
    assert max(len(pack) for pack in client.seen) == 3


def test_one_bad_text_does_not_fail_its_pack():
    def refuse_bad(requests):
        bad = any(r.text == "bad" for r in requests)
        return PermanentCallError("too long", status=400) if bad else vectors(requests)

    world = World(FakeClient(refuse_bad))
    texts = [f"text {i}" for i in range(11)] + ["bad"] + [f"more {i}" for i in range(5)]
    replies = world.run(*[embedding(t) for t in texts])
    failed = [t for t, r in zip(texts, replies, strict=True) if isinstance(r, PermanentCallError)]
    assert failed == ["bad"]
    assert [r.vector.decode() for r in replies if isinstance(r, EmbeddingReply)] == [
        t for t in texts if t != "bad"
    ]


def test_an_error_of_a_pack_is_raised_for_all_its_texts():
    world = World(FakeClient(FatalCallError("wrong key", status=401)))
    errors = world.run(embedding("a"), embedding("b"))
    assert all(isinstance(e, FatalCallError) for e in errors)


def test_the_offline_engine_is_called_immediately_and_free():
    world = World(offline=lambda request: ChatReply("An answer of five words."))
    (reply,) = world.run(chat(model="offline"))
    assert reply.text == "An answer of five words."
    assert not reply.usage.reported
    (record,) = world.records
    assert record.cost_usd == 0.0
    assert record.usage.prompt_tokens > 0
    assert record.usage.completion_tokens == 6
    assert world.limiter.asked == []


def test_offline_embeddings_are_embedded_together():
    packs = []

    def embed(requests):
        packs.append(len(requests))
        return vectors(requests)

    world = World(offline_embed=embed)
    replies = world.run(*[embedding(f"text {i}", model="offline") for i in range(50)])
    assert [r.vector for r in replies] == [f"text {i}".encode() for i in range(50)]
    assert packs == [50]
    assert sum(r.usage.prompt_tokens for r in world.records) == sum(r.usage.prompt_tokens for r in replies)


def test_an_unexpected_error_is_not_retried_forever():
    client = FakeClient(CallError("a client of somebody else's raised what it may not"))
    (result,) = World(client).run(chat())
    assert isinstance(result, AssertionError) and len(client.seen) == 1
