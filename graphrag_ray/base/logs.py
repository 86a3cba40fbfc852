"""How a process logs: one line an event, as text or JSON, with the run, stage and item that it belongs to.

A line holds no secret and nothing that would break it or steer a terminal. At the level "info" and above it
holds no text of documents, questions or replies either: our own messages are made of names and counts, of an
exception only its type and where it came from are told, and of another library's message only the beginning
of its first line.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, TextIO, TypeAlias, cast, get_args

from graphrag_ray.base.errors import UsageError

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]

VARIABLE = "GRAPHRAG_RAY_LOG"
"""A level, a format, or both: "info,json"."""

OURS = "graphrag_ray"
OF_OTHERS = 200
"""Characters of another library's message."""
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_SHORTEST_SECRET = 8
_FIELDS = "graphrag_ray_fields"

_item: ContextVar[tuple[str, str]] = ContextVar("graphrag_ray_item", default=("", ""))
_question: ContextVar[str] = ContextVar("graphrag_ray_question", default="")


@dataclass(frozen=True)
class Logging:
    """What is logged, and how. Picklable: worker processes log as their driver does.

    run       what all records of a process bear; "" where it has no run
    """

    level: Level = "warning"
    format: Format = "text"
    run: str = ""


_current: Logging | None = None
_hidden: set[str] = set()


def current() -> Logging | None:
    """How this process logs; None where nobody said: its logging is somebody else's affair."""
    return _current


def as_json() -> bool:
    return _current is not None and _current.format == "json"


def configure(logging_: Logging | None = None, **changes: Any) -> None:
    """Log in this way from now on, to stderr. logging_: None: as before, else as the environment says;
    changes: of it. Raises UsageError for what the environment says wrongly."""
    global _current  # noqa: PLW0603 - as is the logging of a process
    _current = replace(logging_ or _current or from_environment(os.environ), **changes)
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(handler)
    handler = _Stderr()
    # Whatever level others have set: an address of a request may hold a secret.
    handler.addFilter(lambda record: _is_ours(record) or record.levelno >= logging.WARNING)
    handler.setFormatter(_Lines(_current, secrets_in(os.environ)))
    root.addHandler(handler)
    logging.getLogger(OURS).setLevel(_current.level.upper())


def forget() -> None:
    """What was said so far: the next `configure` begins with the environment."""
    global _current  # noqa: PLW0603 - see `configure`
    _current = None


def set_run(run: str) -> None:
    """What this process logs from now on belongs to this run."""
    if _current is not None:
        configure(run=run)


def follow(driver: Logging | None) -> None:
    """Log as the driver of this worker process does, if it said how."""
    if driver is not None and driver != _current:
        configure(driver)


def from_environment(environ: Mapping[str, str]) -> Logging:
    """Raises UsageError."""
    found = Logging()
    for word in filter(None, environ.get(VARIABLE, "").replace(" ", "").lower().split(",")):
        if word in get_args(Level):
            found = replace(found, level=cast(Level, word))
        elif word in get_args(Format):
            found = replace(found, format=cast(Format, word))
        else:
            known = ", ".join((*get_args(Level), *get_args(Format)))
            raise UsageError(f"{VARIABLE}: {word!r} is none of {known}")
    return found


def event(logger: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log that something happened, with what there is to know about it: numbers and names."""
    if logger.isEnabledFor(level):
        logger.log(level, message, extra={_FIELDS: fields})


def about(stage: str, item: str = "") -> None:
    """What this task logs from now on is about an item of a stage, by its key."""
    _item.set((stage, item))


def about_question(id_: str) -> None:
    """What this task and those that it starts log from now on is about a question to a service."""
    _question.set(id_)


def hide(secrets: Iterable[str]) -> None:
    """Values that no line shall hold, beside those of the environment."""
    _hidden.update(secrets)


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """The values of variables whose names say that they are secrets, the longest first."""
    named = {v for k, v in environ.items() if any(word in k.upper() for word in _SECRET_NAMES)}
    return sorted((v for v in named if len(v) >= _SHORTEST_SECRET), key=len, reverse=True)


def without_any_secret(text: str) -> str:
    """The text without the values of secret variables, without those that were hidden, and without what looks
    like a key."""
    from graphrag_ray.base.keys import scrub  # see `_Lines._clean`

    return scrub(text, (*secrets_in(os.environ), *_hidden))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None: ...


class HandedOn(logging.Handler):
    """For a logger of others, with handlers and forms of its own: each record as one line without secrets,
    and of an exception only its type and place. with_fields: whether a handler writes attributes of records
    beside the message, as one of JSON does."""

    def __init__(self, to: logging.Logger, with_fields: Callable[[logging.Handler], bool]) -> None:
        super().__init__()
        self._to, self._lines = to, _Lines(Logging(), secrets_in(os.environ))
        self._with_fields = with_fields

    def emit(self, record: logging.LogRecord) -> None:
        for handler in self._to.handlers:
            if record.levelno >= handler.level:
                handler.handle(self._told(record, self._with_fields(handler)))

    def _told(self, record: logging.LogRecord, with_fields: bool) -> logging.LogRecord:
        told = copy.copy(record)
        told.__dict__.pop(_FIELDS, None)
        if with_fields:
            told.msg, fields = self._lines.parts(record)
            for name, value in fields.items():
                told.__dict__.setdefault(name, value)
        else:
            told.msg = self._lines.text(record)
        told.args = ()
        told.exc_info = told.exc_text = told.stack_info = None
        return told


class _Lines(logging.Formatter):
    def __init__(self, how: Logging, secrets: list[str]) -> None:
        super().__init__()
        self._how, self._secrets = how, secrets

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        at = f"{moment}.{int(record.msecs):03}Z"
        if self._how.format == "json":
            message = self._message(record)
            head = {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": message}
            return json.dumps(self._clean({**self._fields(record), **head}), default=str)
        return f"{at} {record.levelname} {record.name}: {self.text(record)}"

    def text(self, record: logging.LogRecord) -> str:
        """The message, and what there is to know beside it."""
        pairs = [f"{name}={_shown(value)}" for name, value in self._clean(self._fields(record)).items()]
        line = " ".join([self._clean(self._message(record)), *pairs])
        # As JSON escapes it: control characters, line breaks of all kinds, what turns text around.
        return json.dumps(line)[1:-1].replace('\\"', '"')

    def parts(self, record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
        """The message, and what there is to know beside it, as JSON can hold it."""
        told = {"logger": record.name, **self._fields(record)}
        return self._clean(self._message(record)), json.loads(json.dumps(self._clean(told), default=str))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        stage, item = _item.get()
        found = {"run": self._how.run, "question": _question.get(), "stage": stage, "item": item[:16]}
        fields: dict[str, Any] = {k: v for k, v in found.items() if v} | dict(getattr(record, _FIELDS, {}))
        if record.exc_info and (error := record.exc_info[1]):
            fields["exception"] = self._told(error)
        return fields

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if _is_ours(record):
            return message
        first = (message.splitlines() or [""])[0]
        return first if len(first) <= OF_OTHERS else f"{first[:OF_OTHERS]}…"

    def _told(self, error: BaseException) -> str:
        """Its message may quote what it failed on."""
        if self._how.level == "debug":
            return "".join(traceback.format_exception(error))
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
        return f"{type(error).__name__} at {where}" if where else type(error).__name__

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            from graphrag_ray.base.keys import scrub  # it reads the settings' model, which --help needs not

            return scrub(value, (*self._secrets, *_hidden))
        if isinstance(value, Mapping):
            return {str(k): self._clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(v) for v in value]
        return value


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == OURS


def _shown(value: Any) -> str:
    """A value in a line of text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text and " " not in text and "=" not in text else json.dumps(text)
