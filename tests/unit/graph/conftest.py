import pytest

from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts


def play_dialogue(dialogue, replies):
    """Drive a dialogue with replies in order. Returns its value and the requests it made."""
    left, requests = list(replies), []
    try:
        request = next(dialogue)
        while True:
            requests.append(request)
            reply = left.pop(0)
            request = dialogue.send(reply if isinstance(reply, ChatReply) else ChatReply(reply))
    except StopIteration as stop:
        assert not left, f"not asked for: {left}"
        return stop.value, requests


@pytest.fixture
def play():
    return play_dialogue


@pytest.fixture(scope="session")
def prompts():
    return load_prompts()
