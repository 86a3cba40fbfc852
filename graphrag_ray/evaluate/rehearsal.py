"""Answer questions with the offline engine in place of the model, to see what a model would be shown.

Nothing is paid for except the embeddings of the questions.
"""

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
Requests = Sequence[tuple[str, ChatRequest]]
"""Stage and request of each call that a model would have received."""


def rehearsed(
    index: Index,
    questions: Sequence[str],
    method: str,
    level: str | None,
    extract: Callable[[Answer, Requests], T],
) -> list[T | str]:
    """What `extract` takes from each question's answer and requests, or an error message.

    Raises UsageError if every question fails, StoreError, RunStopped.
    """
    from graphrag_ray.offline import answer as answer_offline

    requests: list[tuple[str, ChatRequest]] = []

    async def offline(request: Request, stage: str) -> Called[Reply]:
        assert isinstance(request, ChatRequest), "only questions are embedded"
        requests.append((stage, request))
        return Called(answer_offline(request))

    async def ask_all() -> tuple[list[T | str], list[str]]:
        results: list[T | str] = []
        errors: list[str] = []
        async with index.asker() as asker:
            asker.instead = offline
            for question in questions:
                requests.clear()
                try:
                    answer = await index.answering(Ask(question, level, method=method))(asker, None)
                    results.append(extract(answer, list(requests)))
                    continue
                except (StoreError, RunStopped):
                    raise
                except GraphRagError as e:
                    errors.append(str(e))
                except Exception as e:
                    if not is_unforeseen(e):
                        raise
                    errors.append(note_bug(e))
                results.append(errors[-1])
        return results, errors

    results, errors = runner()(ask_all())
    if errors and len(errors) == len(results):
        raise UsageError(f"{method} search cannot answer any of the questions: {errors[0]}")
    return results
