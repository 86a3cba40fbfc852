import pickle
import socket

import pytest

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.keys import STARS, find_key, scrub
from graphrag_ray.base.urls import display_url

KEY = "sk-proj-abc123DEF456"


def test_a_key_is_looked_up_in_the_environment_then_the_file_then_by_asking(tmp_path):
    file = tmp_path / "key"
    file.write_text("from-file\n")
    endpoint = Endpoint(api_key_env="MY_KEY", api_key_file=str(file))
    ask = {"MY_KEY": "from-holder"}.get
    assert find_key(endpoint, {"MY_KEY": "from-env"}, ask).get_secret_value() == "from-env"
    assert find_key(endpoint, {}, ask).get_secret_value() == "from-file"
    file.unlink()
    assert find_key(endpoint, {}, ask).get_secret_value() == "from-holder"


def test_an_endpoint_may_need_no_key():
    assert find_key(Endpoint(api_key_env=None), {"OPENAI_API_KEY": KEY}) is None


def test_the_error_for_a_missing_key_names_variable_file_and_node():
    endpoint = Endpoint(api_key_env="MY_KEY", api_key_file="/nowhere/key")
    with pytest.raises(FatalCallError) as caught:
        find_key(endpoint, {}, lambda name: None)
    message = str(pickle.loads(pickle.dumps(caught.value)))
    assert "MY_KEY" in message
    assert "/nowhere/key" in message
    assert socket.gethostname() in message


def test_an_empty_variable_counts_as_missing():
    with pytest.raises(FatalCallError, match="OPENAI_API_KEY"):
        find_key(Endpoint(), {"OPENAI_API_KEY": "  "})


def test_printing_a_key_does_not_reveal_it():
    key = find_key(Endpoint(), {"OPENAI_API_KEY": KEY})
    assert KEY not in f"{key} {key!r} {[key]}"


@pytest.mark.parametrize(
    "text",
    [
        f"wrong key {KEY}.",
        f"Authorization: Bearer {KEY}",
        "Incorrect API key provided: sk-proj-*****F456",
        "http://host/?key=sk-proj-abc123DEF456",
    ],
)
def test_keys_are_removed_from_messages(text):
    clean = scrub(text, [find_key(Endpoint(), {"OPENAI_API_KEY": KEY})])
    assert STARS in clean
    assert "F456" not in clean


def test_a_key_of_any_shape_is_removed():
    assert scrub("token=p4ss w0rd%", ["p4ss w0rd%"]) == "token=***"


def test_ordinary_text_is_left_alone():
    text = "the task-force asked for sk, and none of it was a key"
    assert scrub(text, ["x", None]) == text


def test_an_address_is_shown_without_its_credentials():
    assert display_url("https://me:secret@host:8000/v1?key=abc") == "https://host:8000/v1"
