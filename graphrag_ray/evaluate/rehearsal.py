"""Questions asked as a condition would, but with the offline engine in place of the model that answers: so
what a model would be shown is known, and what it would be asked, and nothing is paid for but embeddings of
questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from graphrag_ray.base.errors import GraphRagError, RunStopped, StoreError, UsageError
from graphrag_ray.base.messages import ChatRequest, Reply, Request
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.in_process import runner
from graphrag_ray.llm.model_client import Called
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Ask

T = TypeVar("T")
Asked = Sequence[tuple[str, ChatRequest]]
"""The stage and the request of each call that a model would have been asked."""


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
    from graphrag_ray.offline import answer as answer_offline

    errors: list[str] = []
    requests: list[tuple[str, ChatRequest]] = []

    async def offline(request: Request, stage: str) -> Called[Reply]:
        assert isinstance(request, ChatRequest), "only questions are embedded"
        requests.append((stage, request))
        return Called(answer_offline(request))

    async def ask_all() -> list[T | str]:
        found: list[T | str] = []
        async with index.asker() as asker:
            asker.instead = offline
            for question in questions:
                requests.clear()
                try:
                    answer = await index.answering(Ask(question, level, method=method))(asker, None)
                    found.append(kept(answer, list(requests)))
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
