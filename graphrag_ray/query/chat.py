"""A conversation with an index: one question after the other, warm from the first on, each with what was said
before."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from graphrag_ray.query.answer_streams import AnswerStream, Background, Say, Telling
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Ask
from graphrag_ray.query.session import Asker

REMEMBERED = 20
"""Questions with their answers; of these a model is shown what fits (`query/methods/condense.py`)."""


@dataclass
class Chat:
    """Connections, the limiter and what was read of the index stay from one question to the next. One
    question at a time.

    method, level, where   of the next question, as in `Index.ask`
    """

    index: Index
    method: str = methods.DEFAULT
    level: str | int | None = None
    where: tuple[str, ...] = ()
    turns: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _background: Background = field(default_factory=Background)
    _asker: Asker | None = None

    def __post_init__(self) -> None:
        self.open(self.index)

    def open(self, index: Index) -> None:
        """Ask this one from now on; what was said stays."""
        self._disconnect()
        self.index, self._asker = index, index.asker()
        self._background.run(asyncio.to_thread(index.warm, self.method, self.level))

    def stream(self, question: str) -> AnswerStream:
        """Raises UsageError for what cannot be asked."""
        answers = self.index.answering(Ask(question, self.level, self.where, tuple(self.turns), self.method))
        asker = self._asker
        assert asker is not None

        async def answering(say: Say) -> Answer:
            answer = await answers(asker, Telling(say))
            self.turns.append((answer.question, answer.text))
            return answer

        return AnswerStream(answering, self._background)

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
