"""Logging of a process: one line per event, as text or JSON, with its run, stage, item and question.

Lines contain no secrets and no control characters. Unless the configured level is "debug", they contain no
text of documents, questions or replies either: our messages consist of names and counts, an exception is
reduced to its type and location, and a message of another library to the start of its first line.
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
"""Environment variable with a level, a format, or both: "info,json"."""
PACKAGE_LOGGER = "graphrag_ray"
MAX_FOREIGN_CHARS = 200
"""Maximum length in characters of a message from another library."""
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_MIN_SECRET_CHARS = 8
_FIELDS = "graphrag_ray_fields"

_item: ContextVar[tuple[str, str]] = ContextVar("graphrag_ray_item", default=("", ""))
_question: ContextVar[str] = ContextVar("graphrag_ray_question", default="")


@dataclass(frozen=True)
class LogConfig:
    """Logging configuration. Workers use their driver's. A non-empty `run` is added to every record."""

    level: Level = "warning"
    format: Format = "text"
    run: str = ""


_current: LogConfig | None = None
_hidden: set[str] = set()


def current_config() -> LogConfig | None:
    """Return the configuration of this process, or None if the application configures logging itself."""
    return _current


def as_json() -> bool:
    return _current is not None and _current.format == "json"


def configure(logging_: LogConfig | None = None, **changes: Any) -> None:
    """Log to stderr.

    Args:
        logging_: The configuration. Defaults to the current one or, if there is none, to GRAPHRAG_RAY_LOG.
        changes: Fields to change.

    Raises:
        UsageError: GRAPHRAG_RAY_LOG is invalid.
    """
    global _current  # noqa: PLW0603 - logging is global to a process
    _current = replace(logging_ or _current or from_environment(os.environ), **changes)
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(handler)
    handler = _Stderr()
    # Drop other libraries' records below WARNING: they log request URLs, which may contain secrets.
    handler.addFilter(lambda record: _is_ours(record) or record.levelno >= logging.WARNING)
    handler.setFormatter(_LineFormatter(_current, secrets_in(os.environ)))
    root.addHandler(handler)
    logging.getLogger(PACKAGE_LOGGER).setLevel(_current.level.upper())


def reset() -> None:
    """Reset the configuration, so that the next `configure` reads the environment again."""
    global _current  # noqa: PLW0603 - logging is global to a process
    _current = None


def set_run(run: str) -> None:
    """Add this run to all later records of the process."""
    if _current is not None:
        configure(run=run)


def follow_driver(driver: LogConfig | None) -> None:
    """Use the logging configuration of this worker's driver, if the driver has one."""
    if driver is not None and driver != _current:
        configure(driver)


def from_environment(environ: Mapping[str, str]) -> LogConfig:
    """Read the configuration from GRAPHRAG_RAY_LOG. Raises UsageError if it is invalid."""
    config = LogConfig()
    for word in filter(None, environ.get(VARIABLE, "").replace(" ", "").lower().split(",")):
        if word in get_args(Level):
            config = replace(config, level=cast(Level, word))
        elif word in get_args(Format):
            config = replace(config, format=cast(Format, word))
        else:
            known = ", ".join((*get_args(Level), *get_args(Format)))
            raise UsageError(f"Unknown value {word!r} in {VARIABLE}. Choose from: {known}")
    return config


def log_event(logger: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. Its fields must be numbers or names, never document text."""
    if logger.isEnabledFor(level):
        logger.log(level, message, extra={_FIELDS: fields})


def set_item_context(stage: str, item: str = "") -> None:
    """Add a stage and item key to all later records of this task."""
    _item.set((stage, item))


def set_question_context(id_: str) -> None:
    """Add a question id to all later records of this task and of the tasks that it starts."""
    _question.set(id_)


def redact_values(secrets: Iterable[str]) -> None:
    """Remove these values from all lines, in addition to the secrets in the environment."""
    _hidden.update(secrets)


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are secrets by their names, longest first."""
    values = {v for k, v in environ.items() if any(word in k.upper() for word in _SECRET_NAMES)}
    return sorted((v for v in values if len(v) >= _MIN_SECRET_CHARS), key=len, reverse=True)


def scrub_secrets(text: str) -> str:
    """Remove secrets in the environment, hidden values and anything that looks like a key."""
    from graphrag_ray.base.keys import scrub  # imported lazily: --help needs no settings model

    return scrub(text, (*secrets_in(os.environ), *_hidden))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, even if it is replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class ForwardingHandler(logging.Handler):
    """Forwards records to another logger's handlers, as one line without secrets or tracebacks.

    `wants_fields(handler)` returns whether a handler also writes record attributes, as JSON handlers do.
    """

    def __init__(self, target: logging.Logger, wants_fields: Callable[[logging.Handler], bool]) -> None:
        super().__init__()
        self._target, self._lines = target, _LineFormatter(LogConfig(), secrets_in(os.environ))
        self._wants_fields = wants_fields

    def emit(self, record: logging.LogRecord) -> None:
        for handler in self._target.handlers:
            if record.levelno < handler.level:
                continue
            clean = copy.copy(record)
            clean.__dict__.pop(_FIELDS, None)
            if self._wants_fields(handler):
                clean.msg, fields = self._lines.parts(record)
                for name, value in fields.items():
                    clean.__dict__.setdefault(name, value)
            else:
                clean.msg = self._lines.text(record)
            clean.args = ()
            clean.exc_info = clean.exc_text = clean.stack_info = None
            handler.handle(clean)


class _LineFormatter(logging.Formatter):
    def __init__(self, config: LogConfig, secrets: list[str]) -> None:
        super().__init__()
        self._config, self._secrets = config, secrets

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        when, level = f"{seconds}.{int(record.msecs):03}Z", record.levelname
        if self._config.format == "json":
            message = self._message(record)
            head = {"time": when, "level": level.lower(), "logger": record.name, "message": message}
            return json.dumps(self._clean({**self._fields(record), **head}), default=str)
        return f"{when} {level} {record.name}: {self.text(record)}"

    def text(self, record: logging.LogRecord) -> str:
        pairs = []
        for name, value in self._clean(self._fields(record)).items():
            if isinstance(value, float):
                field = f"{value:.6g}"
            else:
                field = value if isinstance(value, str) else json.dumps(value, default=str)
                field = field if field and " " not in field and "=" not in field else json.dumps(field)
            pairs.append(f"{name}={field}")
        line = " ".join([self._clean(self._message(record)), *pairs])
        # JSON escapes control characters, all line breaks and text direction marks.
        return json.dumps(line)[1:-1].replace('\\"', '"')

    def parts(self, record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
        fields = self._clean({"logger": record.name, **self._fields(record)})
        return self._clean(self._message(record)), json.loads(json.dumps(fields, default=str))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        stage, item = _item.get()
        context = {"run": self._config.run, "question": _question.get(), "stage": stage, "item": item[:16]}
        fields: dict[str, Any] = {k: v for k, v in context.items() if v} | dict(getattr(record, _FIELDS, {}))
        if record.exc_info and (error := record.exc_info[1]):
            fields["exception"] = self._describe(error)
        return fields

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if _is_ours(record):
            return message
        first = (message.splitlines() or [""])[0]
        return first if len(first) <= MAX_FOREIGN_CHARS else f"{first[:MAX_FOREIGN_CHARS]}…"

    def _describe(self, error: BaseException) -> str:
        """Return type and location of an error, or its traceback at "debug". Messages may quote documents."""
        if self._config.level == "debug":
            return "".join(traceback.format_exception(error))
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
        return f"{type(error).__name__} at {where}" if where else type(error).__name__

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            from graphrag_ray.base.keys import scrub  # see `scrub_secrets`

            return scrub(value, (*self._secrets, *_hidden))
        if isinstance(value, Mapping):
            return {str(k): self._clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(v) for v in value]
        return value


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == PACKAGE_LOGGER
