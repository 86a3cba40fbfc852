"""A question's budget while it is asked: a call that could exceed it is not sent.

What was answered counts as it was, at the dearest endpoint's price; what is in flight as the most that it
can come to. So calls that run at once cannot exceed the budget together; what can is a request that was never
answered and may be billed, a hedge, and what an endpoint counts otherwise than we do. The first of these is
counted when its call is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphrag_ray.base.errors import BudgetSpent, PermanentCallError
from graphrag_ray.base.index_settings import Model, Query
from graphrag_ray.base.messages import EmbeddingRequest, Reply, Request, Usage
from graphrag_ray.engine.gateways import Ask
from graphrag_ray.llm.accounting import CallRecord
from graphrag_ray.llm.model_client import Called
from graphrag_ray.llm.pricing import cost_usd, dearest_price
from graphrag_ray.llm.request_sizes import output_limit, prompt_size, text_size, thought_room
from graphrag_ray.query.methods.budget import Most, budget_in_words


@dataclass
class Allowance:
    """kept_back: for the call that writes the answer, without which all others were paid in vain."""

    query: Query
    models: Mapping[str, Model]
    kept_back: Most = field(default_factory=Most)
    _spent: Most = field(default_factory=Most)
    _in_flight: Most = field(default_factory=Most)

    def around(self, ask: Ask, last: bool) -> Ask:
        """The same way to the models, within the budget.

        last: the call writes the answer; it raises BudgetSpent where nothing is left for it, as an embedding
        does, without which nothing is found. Any other one fails for good, and the answer says that its part
        is missing.
        """

        async def within(request: Request, stage: str) -> Called[Reply]:
            own = self.admit(request, last)
            usage: Usage | None = None
            try:
                answer = await ask(request, stage)
                usage = answer.reply.usage
            finally:
                self.settle(own, request, usage)
            return answer

        return within

    def admit(self, request: Request, last: bool) -> Most:
        """Count a request as in flight, to be settled; the most that it can come to. Raises BudgetSpent where
        nothing is left for one that is needed, PermanentCallError for any other."""
        own = self._most(request)
        needed = last or isinstance(request, EmbeddingRequest)
        if not self._admits(own, needed):
            spent = (self._spent + self._in_flight).tokens
            message = f"{budget_in_words(self.query)}, and {spent:,} tokens are spent or asked for: not sent"
            raise BudgetSpent(message) if needed else PermanentCallError(message)
        self._in_flight += own
        return own

    def settle(self, own: Most, request: Request, usage: Usage | None) -> None:
        """It came back. own: as admitted; usage: of its reply, None where it has none."""
        self._in_flight -= own
        if usage is not None:
            self._spent += self._taken(request, usage)

    def note(self, call: CallRecord) -> None:
        """A call is over: its requests that were sent and never answered."""
        priced = [m for m in self.models.values() if m.model_id == call.model_id]
        for usage in call.unanswered:
            costs = [cost_usd(usage, dearest_price(model)) for model in priced]
            known = [cost for cost in costs if cost is not None]
            tokens = usage.prompt_tokens + usage.completion_tokens
            self._spent += Most(1, tokens, max(known, default=None))

    def _admits(self, own: Most, needed: bool) -> bool:
        later = Most() if needed else self.kept_back
        return (self._spent + self._in_flight + own + later).within(self.query)

    def _most(self, request: Request) -> Most:
        model = self.models.get(request.call.model, Model())
        if isinstance(request, EmbeddingRequest):
            return self._taken(request, Usage(text_size(request.text, model)))
        prompt = prompt_size(request, model)
        room = thought_room(request, model, prompt, request.call.reasoning_tokens)
        return self._taken(request, Usage(prompt, output_limit(request, model) + room))

    def _taken(self, request: Request, usage: Usage) -> Most:
        model = self.models.get(request.call.model, Model())
        usage = Usage(usage.prompt_tokens, usage.completion_tokens)  # what is cached may be cheaper
        return Most(1, usage.prompt_tokens + usage.completion_tokens, cost_usd(usage, dearest_price(model)))
