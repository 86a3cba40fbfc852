"""A dialogue of one call that sends the text of its row."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.store.files import Store


def echo(store: Store, row: Row) -> Generator[Any, Any, str]:
    reply = yield ChatRequest("p", (Message("user", row["text"]),), CallParameters("default", "m"))
    return reply.text


def label(row: Row) -> tuple[str, str]:
    return row["text"], ""


WORK = Work("echo", echo, label)
