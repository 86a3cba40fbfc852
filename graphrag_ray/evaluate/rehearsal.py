"""Questions asked as a condition would, but with the offline engine in place of the model that answers: so
what a model would be shown is known, and what it would be asked, and nothing is paid for but embeddings of
questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from graphrag_ray.base.errors import CallError, GraphRagError, RunStopped, StoreError, UsageError
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue, Listener, Request
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.drive import Driver, Open, note_bug
from graphrag_ray.engine.in_process import awaited
from graphrag_ray.engine.work import Outcome, outcome_of
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.ask import Index
from graphrag_ray.query.asking import Ask
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.session import Allowance, Asker

T = TypeVar("T")


@dataclass
class Rehearsal:
    """An asker (`session.Asks`). requests: what models would have been asked, with the reply that the offline
    engine gave, in order."""

    real: Asker
    accounts: Accounts = field(default_factory=Accounts)
    allowance: Allowance | None = None
    kept: tuple[int, int] = (0, 0)
    requests: list[tuple[str, ChatRequest, ChatReply]] = field(default_factory=list)

    async def run(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        last: bool = False,
        listener: Listener | None = None,
    ) -> list[Outcome[T]]:
        if stage == "embed":
            return await self.real.run(stage, start, last, listener)
        return [self._played(stage, one()) for one in start]

    def _played(self, stage: str, dialogue: Dialogue[T]) -> Outcome[T]:
        from graphrag_ray.offline import answer

        driver = Driver(dialogue)
        state = driver.state
        while isinstance(state, Open):
            replies = []
            for request in state.requests:
                reply = answer(_chat(request))
                self.requests.append((stage, _chat(request), reply))
                replies.append(reply)
            state = driver.send(replies)
        return outcome_of(driver.key, state, [])


def _chat(request: Request) -> ChatRequest:
    if not isinstance(request, ChatRequest):
        raise CallError("only questions are embedded")
    return request


@dataclass(frozen=True)
class Rehearsed:
    """A question: the answer, whose contexts are those that a model would be shown; or why there is none."""

    answer: Answer | None
    requests: Sequence[tuple[str, ChatRequest, ChatReply]] = ()
    error: str = ""


def rehearsed(
    index: Index,
    questions: Sequence[str],
    method: str,
    level: str | None,
    kept: Callable[[Rehearsed], T],
) -> list[T]:
    """kept: what is needed of each; what a model would be shown is much to hold. Raises UsageError where no
    question can be asked so, StoreError, RunStopped."""
    errors: list[str] = []

    async def ask_all() -> list[T]:
        found = []
        async with index.asker() as real:
            for question in questions:
                one = await _rehearsed(index, question, method, level, Rehearsal(real))
                errors.extend([one.error] if one.answer is None else [])
                found.append(kept(one))
        return found

    found = awaited(ask_all())
    if errors and len(errors) == len(found):
        raise UsageError(f"no question can be asked by {method} search: {errors[0]}")
    return found


async def _rehearsed(
    index: Index, question: str, method: str, level: str | None, rehearsal: Rehearsal
) -> Rehearsed:
    try:
        answer = await index.answering(Ask(question, level, method=method))(rehearsal, None)
    except (StoreError, RunStopped):
        raise
    except GraphRagError as e:
        return Rehearsed(None, error=str(e))
    except Exception as e:
        if not is_unforeseen(e):
            raise
        return Rehearsed(None, error=note_bug(e))
    return Rehearsed(answer, rehearsal.requests)
