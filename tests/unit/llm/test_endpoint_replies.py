import base64
import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import CallParameters, ChatRequest, EmbeddingRequest, Message, Usage
from graphrag_ray.llm.call_failures import PromptTruncated
from graphrag_ray.llm.endpoint_replies import (
    decode_object,
    read_chat,
    read_embeddings,
    read_rerank,
    split_proportionally,
)

CALL = CallParameters("default", "m")
REQUEST = ChatRequest("map", (Message("user", "Hello"),), CALL)
YES_NO = ChatRequest("glean_check", (Message("user", "More?"),), CALL, response="yes_no")


def body(content="Hi.", finish="stop", usage=None, **message):
    out = {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}
    return out | ({"usage": usage} if usage is not None else {})


def read(what, request=REQUEST, counted=10):
    return read_chat(what, request, counted, lambda text: len(text.split()), "host")


def test_text_finish_reason_and_tokens_are_parsed():
    usage = {
        "prompt_tokens": 120,
        "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 100},
    }
    reply = read(body("Hi.", "length", usage))
    assert (reply.text, reply.finish_reason) == ("Hi.", "length")
    assert reply.usage == Usage(120, 30, 100)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": None},
        {"prompt_tokens": "7"},
        {"prompt_tokens": 0},
        5,
        [],
        {"prompt_tokens": 2**63},
        {"prompt_tokens": 5, "completion_tokens": 2**70},
    ],
)
def test_our_own_counts_are_used_if_no_usage_is_reported(usage):
    reply = read(body("one two three", usage=usage))
    assert reply.usage == Usage(10, 3, 0, reported=False)


def test_content_parts_are_joined():
    parts = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": "x"},
        {"type": "text", "text": "b"},
    ]
    assert read(body(parts)).text == "ab"


@pytest.mark.parametrize(
    "nonsense", [{}, {"choices": []}, {"choices": [{}]}, {"choices": None}, {"choices": [{"message": "x"}]}]
)
def test_a_reply_without_a_message_is_a_transient_failure(nonsense):
    with pytest.raises(TransientCallError, match="host"):
        read(nonsense)


def test_an_empty_reply_due_to_a_content_filter_is_a_permanent_failure():
    with pytest.raises(PermanentCallError, match="content filter"):
        read(body(None, "content_filter"))
    with pytest.raises(PermanentCallError, match="I cannot help"):
        read(body(None, refusal="I cannot help with that"))


def test_a_prompt_that_the_endpoint_truncated_is_a_billed_failure():
    usage = {"prompt_tokens": 2048, "completion_tokens": 5}
    with pytest.raises(PromptTruncated, match=r"2048.*7000") as caught:
        read(body(usage=usage), counted=7000)
    assert caught.value.usage == Usage(2048, 5)


@pytest.mark.parametrize(("reported", "counted"), [(100, 400), (3600, 7000), (9000, 7000)])
def test_small_differences_and_short_prompts_do_not_count_as_truncation(reported, counted):
    assert read(body(usage={"prompt_tokens": reported, "completion_tokens": 1}), counted=counted).text


def test_a_one_token_yes_is_not_truncated():
    assert read(body("Yes", "length"), YES_NO).finish_reason == "stop"
    assert read(body("", "length"), YES_NO).finish_reason == "length"


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b"null", b'{"choices": [', b"\xff\xfe"])
def test_a_reply_that_is_not_json_is_a_transient_failure(content):
    with pytest.raises(TransientCallError, match="host"):
        decode_object(content, "host")


def test_an_error_with_status_200_is_an_error():
    with pytest.raises(TransientCallError):
        decode_object(b'{"error": {"message": "overloaded", "code": 429}}', "host")
    with pytest.raises(TransientCallError):
        decode_object(b'{"error": "overloaded"}', "host")
    with pytest.raises(FatalCallError):
        decode_object(b'{"error": {"message": "who are you", "code": 401}}', "host")


def embedding_requests(*texts, dimensions=None):
    return [EmbeddingRequest(t, CALL, dimensions) for t in texts]


def embedding_body(*vectors, usage=None):
    data = [{"index": i, "embedding": v} for i, v in enumerate(vectors)]
    return {"data": data[::-1]} | ({"usage": {"prompt_tokens": usage}} if usage else {})


def test_vectors_of_any_encoding_are_in_the_order_of_the_texts():
    as_text = base64.b64encode(np.array([3.0, 4.0], "<f4").tobytes()).decode()
    replies = read_embeddings(
        embedding_body([1.0, 2.0], as_text), embedding_requests("a", "b"), [1, 1], "host"
    )
    assert [np.frombuffer(r.vector, "<f4").tolist() for r in replies] == [[1.0, 2.0], [3.0, 4.0]]


def test_the_usage_of_a_call_is_divided_without_remainder():
    replies = read_embeddings(
        embedding_body([1.0], [1.0], [1.0], usage=100), embedding_requests("a", "b", "c"), [1, 1, 5], "host"
    )
    assert sum(r.usage.prompt_tokens for r in replies) == 100
    assert replies[2].usage.prompt_tokens > 60
    assert all(r.usage.reported for r in replies)


def test_without_reported_usage_each_text_has_its_own_count():
    replies = read_embeddings(embedding_body([1.0], [1.0]), embedding_requests("a", "b"), [3, 4], "host")
    assert [r.usage for r in replies] == [Usage(3, reported=False), Usage(4, reported=False)]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0]}]},
        embedding_body([1.0], [1.0, 2.0]),
        embedding_body([], []),
        embedding_body([float("nan")], [1.0]),
        embedding_body("not base64!", [1.0]),
        embedding_body(["x"], [1.0]),
    ],
)
def test_anything_but_one_vector_per_text_is_a_transient_failure(answer):
    with pytest.raises(TransientCallError):
        read_embeddings(answer, embedding_requests("a", "b"), [1, 1], "host")


def test_vectors_with_wrong_dimensions_stop_the_run():
    with pytest.raises(FatalCallError, match=r"2 dimensions instead of 512"):
        read_embeddings(embedding_body([1.0, 2.0]), embedding_requests("a", dimensions=512), [1], "host")


def scores_of(reply):
    return np.frombuffer(reply.vector, "<f4").tolist()


def test_relevance_scores_are_in_the_order_of_the_documents():
    results = [{"index": 2, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}]
    cohere = {"results": results, "meta": {"billed_units": {"search_units": 2.0}}}
    reply = read_rerank(cohere, 3, 40, "host")
    assert scores_of(reply) == pytest.approx([-3, math.nan, 0.9], nan_ok=True)
    assert reply.usage == Usage(40, reported=False, searches=2)
    voyage = {"data": results, "usage": {"total_tokens": 42}}
    assert read_rerank(voyage, 3, 40, "host").usage == Usage(42, searches=1)


def test_unusable_results_are_ignored_and_the_first_of_an_index_counts():
    results = [
        {"index": 1, "relevance_score": 0.5},
        {"index": 1, "relevance_score": 0.7},
        {"index": 0, "relevance_score": float("nan")},
        {"index": 0, "relevance_score": None},
        *({"index": index, "relevance_score": 1} for index in (-1, 3, True, "2", 1.0, None)),
        *({"index": 2, "relevance_score": score} for score in (True, "1", 10**400, 1e300)),
        {"index": 2, "score": 0.25},
        *("text", None, {}),
    ]
    assert scores_of(read_rerank({"results": results}, 3, 9, "host")) == pytest.approx(
        [math.nan, 0.5, 0.25], nan_ok=True
    )


@pytest.mark.parametrize(
    "answer", [{}, {"results": []}, {"results": None}, {"results": {"index": 0}}, {"data": [{"index": 0}]}]
)
def test_a_reply_without_relevance_scores_is_a_transient_failure(answer):
    with pytest.raises(TransientCallError, match="without relevance scores"):
        read_rerank(answer, 2, 9, "host")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
RESULT = st.fixed_dictionaries({"index": JSON, "relevance_score": JSON}) | JSON


@given(st.fixed_dictionaries({"results": st.lists(RESULT) | JSON, "usage": JSON, "meta": JSON}))
def test_no_rerank_reply_raises_another_error(answer):
    with contextlib.suppress(TransientCallError):
        reply = read_rerank(answer, 3, 9, "host")
        assert len(scores_of(reply)) == 3 and 0 <= reply.usage.searches <= 3


@given(st.integers(0, 10**7), st.lists(st.integers(0, 10**4), min_size=1, max_size=50))
def test_proportional_shares_add_up_and_are_within_one_of_exact(total, weights):
    shares = split_proportionally(total, weights)
    assert sum(shares) == total
    assert min(shares) >= 0
    if sum(weights):
        assert all(
            abs(s - total * w / sum(weights)) <= 1.0 + 1e-6 for s, w in zip(shares, weights, strict=True)
        )
