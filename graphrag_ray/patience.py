"""How long a question waits for an endpoint: long for one that answers, briefly for one that is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from graphrag_ray.engine.allowance import Allowance
from graphrag_ray.engine.gateways import Ask, Models, open_gateway
from graphrag_ray.engine.local import run_dialogues
from graphrag_ray.engine.work import Answer, Outcome
from graphrag_ray.errors import CallError
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.messages import Dialogue, Request

T = TypeVar("T")

FIRST_ATTEMPTS = 4
"""With waits of 0.5, 1 and 2 s at most between them. A run of hours should outlast an endpoint that is
restarted; somebody who waits for one answer should rather be told that nothing listens there."""


@dataclass(frozen=True)
class Asker:
    """Runs the dialogues of one question, phase after phase, under one limiter and one account.

    allowance: the question's budget; None: it has none
    """

    models: Models
    limiter: Limiter
    accounts: Accounts
    allowance: Allowance | None = None

    @classmethod
    def of(cls, models: Models, accounts: Accounts, allowance: Allowance | None = None) -> Asker:
        limiter = LocalLimiter(models.online, models.default_in_flight, lend_first=True)
        return cls(models, limiter, accounts, allowance)

    async def run(
        self, stage: str, start: Sequence[Callable[[], Dialogue[T]]], last: bool = False
    ) -> list[Outcome[T]]:
        """Start and run dialogues at once, each with FIRST_ATTEMPTS. Those whose calls failed are started
        again with all attempts of the settings, unless no endpoint has answered at all, were it with an
        error. last: they write the answer. Raises ModelRefused when no request will succeed, BudgetSpent."""
        outcomes, heard = await self._round(stage, start, FIRST_ATTEMPTS, last)
        failed = [i for i, o in enumerate(outcomes) if o.status == "retry"]
        if failed and heard and self.models.max_attempts > FIRST_ATTEMPTS:
            again, _ = await self._round(stage, [start[i] for i in failed], self.models.max_attempts, last)
            for i, outcome in zip(failed, again, strict=True):
                outcomes[i] = outcome
        return outcomes

    async def _round(
        self, stage: str, start: Sequence[Callable[[], Dialogue[T]]], attempts: int, last: bool
    ) -> tuple[list[Outcome[T]], bool]:
        heard = False

        def listening(ask: Ask) -> Ask:
            async def listen(request: Request, stage: str) -> Answer:
                nonlocal heard
                try:
                    answer = await ask(request, stage)
                except CallError as e:
                    heard = heard or e.status is not None
                    raise
                heard = True
                return answer

            return listen

        models = replace(self.models, max_attempts=min(attempts, self.models.max_attempts))
        async with open_gateway(models, self.limiter, self.accounts) as ask:
            heeding = self.allowance.around(listening(ask), last) if self.allowance else listening(ask)
            return await run_dialogues(stage, [s() for s in start], heeding), heard
