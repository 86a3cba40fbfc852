"""A conversation with an index that is loaded in advance and remembers earlier questions."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from graphrag_ray.query.answer_streams import AnswerStream, Background, Emit, ReplyStreamer
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import AskRequest
from graphrag_ray.query.model_calls import Asker

MAX_TURNS = 20
"""Maximum number of remembered turns. The model sees as many as fit (`query/methods/condense.py`)."""


@dataclass
class Chat:
    """A conversation, one question at a time. Reuses connections, limiter, cached rows and options."""

    index: Index
    method: str = methods.DEFAULT
    level: str | int | None = None
    where: tuple[str, ...] = ()
    turns: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MAX_TURNS))
    _background: Background = field(default_factory=Background)
    _asker: Asker | None = None

    def __post_init__(self) -> None:
        self.open(self.index)

    def open(self, index: Index) -> None:
        """Continue the conversation with another index."""
        self._disconnect()
        self.index, self._asker = index, index.asker()
        self._background.run(asyncio.to_thread(index.warm, self.method, self.level))

    def stream(self, question: str) -> AnswerStream:
        """Ask the next question. Raises UsageError."""
        answer_question = self.index.prepare(
            AskRequest(question, self.level, self.where, tuple(self.turns), self.method)
        )
        asker = self._asker
        assert asker is not None

        async def answer_turn(emit: Emit) -> Answer:
            answer = await answer_question(asker, ReplyStreamer(emit))
            self.turns.append((answer.question, answer.text))
            return answer

        return AnswerStream(answer_turn, self._background)

    def close(self) -> None:
        self._disconnect()
        self._background.close()

    def _disconnect(self) -> None:
        if self._asker is not None:
            self._background.run(self._asker.close()).result()
            self._asker = None

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
