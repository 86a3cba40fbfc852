"""Questions asked as a condition would, but with the offline engine in place of the model that answers: so
what a model would be shown is known, and what it would be asked, and nothing is paid for but embeddings of
questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from graphrag_ray.base.errors import GraphRagError, RunStopped, StoreError, UsageError
from graphrag_ray.base.messages import ChatRequest, Dialogue, Listener, Reply, Request
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.in_process import run_dialogues, runner
from graphrag_ray.engine.work import Outcome
from graphrag_ray.llm.model_client import Called
from graphrag_ray.query.ask import Index
from graphrag_ray.query.asking import Ask
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.session import Asker

T = TypeVar("T")
Asked = Sequence[tuple[str, ChatRequest]]
"""The stage and the request of each call that a model would have been asked."""


@dataclass
class _Rehearsal(Asker):
    """Embeds with the real model and answers everything else offline, without a cache."""

    requests: list[tuple[str, ChatRequest]] = field(default_factory=list)

    async def run(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        last: bool = False,
        listener: Listener | None = None,
    ) -> list[Outcome[T]]:
        if stage == "embed":
            return await super().run(stage, start, last, listener)
        return await run_dialogues(stage, [one() for one in start], self._offline)

    async def _offline(self, request: Request, stage: str) -> Called[Reply]:
        from graphrag_ray.offline import answer

        assert isinstance(request, ChatRequest), "only questions are embedded"
        self.requests.append((stage, request))
        return Called(answer(request))


def rehearsed(
    index: Index,
    questions: Sequence[str],
    method: str,
    level: str | None,
    kept: Callable[[Answer, Asked], T],
) -> list[T | str]:
    """What `kept` makes of each question's answer, whose contexts are those that a model would be shown, and
    of the requests; or why there is no answer. What a model would be shown is much to hold.

    Raises UsageError where no question can be asked so, StoreError, RunStopped."""
    errors: list[str] = []

    async def ask_all() -> list[T | str]:
        found: list[T | str] = []
        async with index.asker() as real:
            for question in questions:
                asker = _Rehearsal(real.connections, cache=real.cache)
                try:
                    answer = await index.answering(Ask(question, level, method=method))(asker, None)
                    found.append(kept(answer, asker.requests))
                    continue
                except (StoreError, RunStopped):
                    raise
                except GraphRagError as e:
                    error = str(e)
                except Exception as e:
                    if not is_unforeseen(e):
                        raise
                    error = note_bug(e)
                errors.append(error)
                found.append(error)
        return found

    found = runner()(ask_all())
    if errors and len(errors) == len(found):
        raise UsageError(f"no question can be asked by {method} search: {errors[0]}")
    return found
