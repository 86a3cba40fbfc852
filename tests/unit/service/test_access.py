"""Access control of the service."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.commands.serve_command import _restrict_access, is_loopback
from graphrag_ray.service.access import Guard, find_token
from graphrag_ray.service.service_options import ServiceOptions

OPTIONS = ServiceOptions(root="./index")
INSIDE: ASGIApp = PlainTextResponse("inside")


def client(
    token: str | None = "s3cret", hosts: tuple[str, ...] = (), open_metrics: bool = False
) -> TestClient:
    options = OPTIONS.model_copy(update={"hosts": hosts, "open_metrics": open_metrics})
    return TestClient(Guard(INSIDE, SecretStr(token) if token else None, options))


@pytest.mark.parametrize(
    "header", [None, "s3cret", "Bearer", "Bearer s3cre", "Bearer s3cret1", "Basic s3cret", "Bearer \xfc"]
)
def test_requests_without_the_token_are_refused(header: str | None):
    headers = {"Authorization": header.encode("latin-1")} if header else {}
    answer = client().get("/query", headers=headers)
    assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key" and "s3cret" not in answer.text


def test_requests_with_the_token_are_accepted():
    assert client().get("/query", headers={"Authorization": "bearer s3cret"}).text == "inside"
    assert client(token=None).get("/query").text == "inside"


def test_health_needs_no_token_and_metrics_need_none_with_open_metrics():
    assert client().get("/healthz").status_code == 200
    assert client().get("/metrics").status_code == 401
    assert client(open_metrics=True).get("/metrics").status_code == 200
    assert client().get("/healthz/../query").status_code == 401


def test_access_control_ignores_the_prefix_of_paths():
    below = TestClient(Guard(INSIDE, SecretStr("s3cret"), OPTIONS), root_path="/rag")
    assert below.get("/rag/healthz").status_code == 200 and below.get("/rag/query").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]:8000"])
def test_an_unknown_host_header_is_refused(host: str):
    guarded = client(None, ("localhost", "127.0.0.1", "::1"))
    assert guarded.get("/query", headers={"Host": host}).status_code == 421
    for own in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert guarded.get("/query", headers={"Host": own}).status_code == 200


def test_a_token_comes_from_the_environment_or_else_from_asking():
    found = find_token(OPTIONS, {"GRAPHRAG_RAY_TOKEN": " abc \n"})
    assert found is not None and found.get_secret_value() == "abc" and "abc" not in repr(found)
    asked = find_token(OPTIONS, {}, {"GRAPHRAG_RAY_TOKEN": "xyz"}.get)
    assert asked is not None and asked.get_secret_value() == "xyz"


def test_a_missing_token_is_an_error_unless_anonymous_access_is_allowed():
    with pytest.raises(UsageError, match="GRAPHRAG_RAY_TOKEN is not set"):
        find_token(OPTIONS, {"GRAPHRAG_RAY_TOKEN": "  "})
    assert find_token(OPTIONS.model_copy(update={"allow_anonymous": True}), {}) is None


HERE = ("localhost", "127.0.0.1", "127.8.8.8", "::1")
ELSEWHERE = ("0.0.0.0", "::", "10.0.0.1", "example.org", "")


@pytest.mark.parametrize("host", [*HERE, *ELSEWHERE])
def test_loopback_addresses_are_recognised(host: str):
    assert is_loopback(host) == (host in HERE)


def test_without_a_token_the_host_header_must_be_the_listening_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GRAPHRAG_RAY_TOKEN", raising=False)
    for host in HERE:
        assert host in _restrict_access(OPTIONS, host).hosts
    with pytest.raises(UsageError, match="other machines"):
        _restrict_access(OPTIONS, "0.0.0.0")


def test_without_a_token_origins_must_not_be_a_wildcard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GRAPHRAG_RAY_TOKEN", raising=False)
    of_all = OPTIONS.model_copy(update={"origins": ("*",)})
    with pytest.raises(UsageError, match="every web page"):
        _restrict_access(of_all, "127.0.0.1")
    with pytest.raises(UsageError, match="every web page"):
        _restrict_access(OPTIONS.model_copy(update={"origins": ("null",)}), "127.0.0.1")
    monkeypatch.setenv("GRAPHRAG_RAY_TOKEN", "s3cret")
    assert _restrict_access(of_all, "0.0.0.0").origins == ("*",)


@pytest.mark.parametrize(
    "origin", ["https://chat.example.org/", "chat.example.org", "https://A.org", "ftp://a"]
)
def test_an_invalid_origin_is_refused(origin: str):
    with pytest.raises(ValidationError, match="is not an origin"):
        ServiceOptions(root="./index", origins=(origin,))
    good = ("https://chat.example.org", "http://localhost:3000")
    assert ServiceOptions(root="./index", origins=good).origins == good
