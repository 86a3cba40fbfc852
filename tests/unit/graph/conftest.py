import pytest

from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts


def play_dialogue(dialogue, replies):
    """Run a dialogue with the given replies. Returns its result and its requests."""
    remaining, requests = list(replies), []
    try:
        request = next(dialogue)
        while True:
            requests.append(request)
            reply = remaining.pop(0)
            request = dialogue.send(reply if isinstance(reply, ChatReply) else ChatReply(reply))
    except StopIteration as stop:
        assert not remaining, f"unused replies: {remaining}"
        return stop.value, requests


@pytest.fixture
def play():
    return play_dialogue


@pytest.fixture(scope="session")
def prompts():
    return load_prompts()
