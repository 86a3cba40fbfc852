import pickle
from dataclasses import replace

import pytest

from graphrag_ray.base.messages import (
    CallParameters,
    ChatReply,
    ChatRequest,
    EmbeddingRequest,
    Message,
    item_key,
    join_surrogates,
)

CALL = CallParameters("default", "some-model", 0.0, 100)
REQUEST = ChatRequest("extract", (Message("system", "Be kind."), Message("user", "Hello")), CALL)


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, messages=(Message("system", "Be kind."), Message("user", "Hello "))),
        replace(REQUEST, messages=(Message("user", "Be kind."), Message("user", "Hello"))),
        replace(REQUEST, messages=(Message("user", "Be kind.Hello"),)),
        replace(REQUEST, call=replace(CALL, model_id="other-model")),
        replace(REQUEST, call=replace(CALL, temperature=None)),
        replace(REQUEST, call=replace(CALL, max_output_tokens=101)),
        replace(REQUEST, response="yes_no"),
        replace(REQUEST, sample=1),
    ],
)
def test_every_parameter_of_the_reply_changes_the_hash(other):
    assert other.hash != REQUEST.hash


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, prompt="glean"),
        replace(REQUEST, variables={"text": "x"}),
        replace(REQUEST, call=replace(CALL, model="cheap")),
        pickle.loads(pickle.dumps(REQUEST)),
    ],
)
def test_internal_names_are_not_part_of_the_key(other):
    assert other.hash == REQUEST.hash


def test_hashes_never_change():
    # Journals on disk contain these hashes, so a change would make users pay for all calls again.
    assert REQUEST.hash == "507363c65117abc65e2ef56a355a8810ccd079b7233dbb7cd3347f954a00eace"


def test_a_changed_copy_of_a_request_has_a_new_hash():
    assert REQUEST.hash
    changed = replace(REQUEST, messages=(Message("user", "Bye"),))
    assert changed.hash == ChatRequest("extract", (Message("user", "Bye"),), CALL).hash


def test_the_next_turn_contains_the_conversation_so_far():
    following = REQUEST.next_turn(ChatReply("Hi"), "glean_check", "Any more?", response="yes_no")
    assert following.prompt == "glean_check"
    assert following.response == "yes_no"
    assert following.messages == (*REQUEST.messages, Message("assistant", "Hi"), Message("user", "Any more?"))
    assert (following.call, following.variables) == (REQUEST.call, REQUEST.variables)


def test_an_item_key_is_the_hash_of_the_first_turn():
    assert item_key(REQUEST) == REQUEST.hash


def test_a_list_of_requests_is_one_turn():
    other = replace(REQUEST, sample=1)
    hashes = [item_key(t) for t in ([REQUEST], [REQUEST, other], [other, REQUEST], REQUEST)]
    assert len(set(hashes)) == 4
    assert item_key((REQUEST, other)) == item_key([REQUEST, other])


def test_an_embedding_is_keyed_by_text_model_and_dimensions():
    request = EmbeddingRequest("Hello", CALL)
    others = [
        replace(request, text="Hello "),
        replace(request, dimensions=256),
        replace(request, call=replace(CALL, model_id="other-model")),
    ]
    assert len({r.hash for r in (request, *others)}) == 4
    assert item_key(request) == request.hash
    assert replace(request, call=replace(CALL, temperature=1.0)).hash == request.hash


def test_requests_and_replies_survive_pickling():
    for value in (REQUEST, EmbeddingRequest("Hello", CALL), ChatReply("Hi", "length")):
        assert pickle.loads(pickle.dumps(value)) == value


def test_surrogates_are_joined_or_replaced():
    assert join_surrogates("caf\udce9 \ud83d\ude00 \ud83d") == "caf\ufffd \U0001f600 \ufffd"
    assert join_surrogates("plain, 漢字, \U0001f600") == "plain, 漢字, \U0001f600"
