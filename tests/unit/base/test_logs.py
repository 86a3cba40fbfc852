"""The format of log lines, and the removal of secrets and document text from them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphrag_ray.base import logs
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.logs import LogConfig

log = logging.getLogger("graphrag_ray.test")


@pytest.fixture
def told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """Return the new lines on stderr at each call. Restores the logging configuration afterwards."""
    ours = logging.getLogger(logs.PACKAGE_LOGGER)
    level = ours.level
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Ray may have added one
    monkeypatch.setattr(ours, "propagate", True)
    yield lambda: capsys.readouterr().err.splitlines()  # noqa: PLW0108 - at each call
    ours.setLevel(level)
    logs.reset()


def test_an_event_is_one_line_of_json_with_its_run_stage_item_and_numbers(told):
    logs.configure(LogConfig("info", "json", run="r1"))
    logs.set_item_context("extract", "k" * 64)
    logs.log_event(log, "step ended", seconds=1.5, counts={"entities": 3}, reused=False)
    (line,) = map(json.loads, told())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "logger": "graphrag_ray.test", "message": "step ended", "run": "r1",
        "stage": "extract", "item": "k" * 16, "seconds": 1.5, "counts": {"entities": 3}, "reused": False,
    }  # fmt: skip
    logs.set_item_context("")


def test_text_lines_append_names_and_values(told):
    logs.configure(LogConfig("info", run="r1"))
    logs.log_event(log, "worker joined", worker="r1-0", places=8, note="two words")
    (line,) = told()
    assert line.partition(" ")[2] == (
        'INFO graphrag_ray.test: worker joined run=r1 worker=r1-0 places=8 note="two words"'
    )


@given(st.text(), st.sampled_from(["text", "json"]))
@example("a\nb\r\u2028c\x1b[2J\x9b\u202e", "text")
def test_every_message_is_one_line_of_printable_characters(text, form):
    record = logging.LogRecord("graphrag_ray", logging.INFO, "", 0, "%s", (text,), None)
    line = logs._LineFormatter(LogConfig("info", form), []).format(record)
    assert line.isascii() and line.isprintable()


def test_secrets_in_the_environment_and_hidden_values_are_replaced(told, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "correct-horse")
    logs.redact_values(["battery-staple"])
    for form in ("text", "json"):
        logs.configure(LogConfig("debug", form))
        log.info("with correct-horse and %s", "battery-staple")
        logs.log_event(log, "nested", said={"a": ["Bearer abcdefghijkl", "correct-horse"]})
        shown = "\n".join(told())
        assert "***" in shown and not any(s in shown for s in ("horse", "staple", "abcdefghijkl"))


def test_an_exception_is_logged_as_type_and_location_unless_the_level_is_debug(told):
    def fail() -> None:
        raise ValueError("quoting the document")

    for level in ("info", "debug"):
        logs.configure(LogConfig(level, "json"))
        try:
            fail()
        except ValueError:
            log.exception("it failed")
        (line,) = map(json.loads, told())
        assert "ValueError" in line["exception"] and "test_logs.py" in line["exception"]
        assert ("quoting the document" in line["exception"]) == (level == "debug")


def test_messages_from_other_libraries_are_shortened_and_need_level_warning(told, monkeypatch):
    logs.configure(LogConfig("debug"))
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)  # other libraries may have done so
    other = logging.getLogger("some.library")
    other.info("POST https://host?key=value")
    other.warning("a task failed\nfuture: <exception=ValueError('a document')>")
    other.warning("x" * 5_000)
    first, second = told()
    assert first.endswith("a task failed") and len(second) < 300


def test_the_environment_sets_level_and_format_in_any_order():
    assert logs.from_environment({}) == LogConfig("warning", "text")
    assert logs.from_environment({"GRAPHRAG_RAY_LOG": "json,info"}) == LogConfig("info", "json")
    assert logs.from_environment({"GRAPHRAG_RAY_LOG": " Debug "}) == LogConfig("debug", "text")
    with pytest.raises(UsageError, match=r"'loud' in GRAPHRAG_RAY_LOG. Choose from: debug, info"):
        logs.from_environment({"GRAPHRAG_RAY_LOG": "loud"})


def test_workers_use_the_logging_configuration_of_their_driver(told):
    logs.follow_driver(None)
    assert logs.current_config() is None
    logs.follow_driver(LogConfig("info", run="r1"))
    log.info("here")
    assert told()[0].endswith("here run=r1")
