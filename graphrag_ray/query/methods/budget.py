"""What a question may take at most, before anything is asked: its budget, and the room in a context window.

A bound and no forecast: every reply has the length that it is limited to, and no context is filled better
than it must be. Sizes from tables are in the indexing model's tokens; `recounted` raises them by
a sample where the answering model's are more. Corrections and calls that are sent again are not in it;
`query/session.py` stops before these exceed the budget.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.declarations import REPORTS, SEARCHED
from graphrag_ray.base.errors import BudgetSpent, SettingsError, UsageError
from graphrag_ray.base.index_settings import Price, Query
from graphrag_ray.base.wording import plural, price_setting
from graphrag_ray.graph.plan import HEADING_TOKENS, MIN_CONTEXT_TOKENS
from graphrag_ray.graph.report_context import Count, shown_content
from graphrag_ray.query.methods.map_reduce import AnswerSpec, mapper, reduce_spec, variables_of
from graphrag_ray.query.methods.method import Given, Kind, Rows

Ints = npt.NDArray[np.int64]

MESSAGE_TOKENS = 4
"""What a chat template adds to each message, roughly."""
LINE_TOKENS = 32
"""Of a record beside its text: number, title, quotation marks."""
LINE_SHARE = 0.05
"""What marks that CSV doubles may add to a text."""


@dataclass(frozen=True, slots=True)
class Most:
    """The most that some calls take. cost_usd: None where a price is unknown."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0

    def __add__(self, other: Most) -> Most:
        known = self.cost_usd is not None and other.cost_usd is not None
        cost = (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None
        return Most(self.calls + other.calls, self.tokens + other.tokens, cost)

    def __sub__(self, other: Most) -> Most:
        cost = None if other.cost_usd is None else -other.cost_usd
        return self + Most(-other.calls, -other.tokens, cost)

    def within(self, query: Query) -> bool:
        """Raises SettingsError for a budget in dollars where a price is unknown."""
        if query.budget_usd is not None and self.cost_usd is None:
            raise _unpriced()
        tokens = query.budget_tokens is None or self.tokens <= query.budget_tokens
        return tokens and (query.budget_usd is None or (self.cost_usd or 0.0) <= query.budget_usd)

    def __str__(self) -> str:
        cost = f", ${self.cost_usd:.4f}," if self.cost_usd else ""
        return f"at most {self.tokens:,} tokens{cost} in {plural(self.calls, 'call')}"


def has_budget(query: Query) -> bool:
    return query.budget_tokens is not None or query.budget_usd is not None


def check_prices(query: Query, prices: Iterable[Price | None]) -> None:
    """prices: of the models that write answers. Raises SettingsError where there is a budget in dollars and
    all of them are unknown: no question could be answered."""
    if query.budget_usd is not None and all(price is None for price in prices):
        raise _unpriced()


def _unpriced() -> SettingsError:
    return SettingsError(
        f"query.budget_usd is set, but the price of a model is unknown. Say it: {price_setting()}, or set "
        "query.budget_tokens instead"
    )


def budget_in_words(query: Query) -> str:
    limits = (
        query.budget_tokens is not None and f"query.budget_tokens is {query.budget_tokens:,}",
        query.budget_usd is not None and f"query.budget_usd is {query.budget_usd:g}",
    )
    return " and ".join(limit for limit in limits if limit)


def refuse_beyond(most: Most, query: Query, advice: str, what: str = "the question") -> None:
    """Raises BudgetSpent where a question could take more than its budget."""
    if not most.within(query):
        raise BudgetSpent(
            f"{what} would take {most}; {budget_in_words(query)}. No answer was asked for. {advice}"
        )


def reading(question: str, given: Given, n_tokens: npt.ArrayLike) -> Most:
    """Map and reduce over records whose texts have so many tokens."""
    spec, _ = mapper(given.settings, given.prompts)
    mapping = showing(question, given, "map", spec, n_tokens)
    return mapping + reducing(question, given) if mapping.calls else mapping


def showing(
    question: str,
    given: Given,
    stage: str,
    spec: AnswerSpec,
    n_tokens: npt.ArrayLike,
    most: int | None = None,
) -> Most:
    """Asking contexts that `map_reduce.pack` makes of such records, at most `most` in one."""
    context_tokens = given.settings.query.context_tokens
    room = context_tokens - HEADING_TOKENS
    lines = np.minimum(lines_of(n_tokens), room)
    calls = contexts_at_most(lines, room, most)
    data = min(int(lines.sum()) + calls * HEADING_TOKENS, calls * context_tokens)
    return asking(question, given, stage, spec, calls, data)


def reducing(question: str, given: Given) -> Most:
    """The call that writes the answer, from a context of any kind."""
    spec = reduce_spec(given.settings, given.prompts)
    return asking(question, given, "reduce", spec, 1, given.settings.query.context_tokens)


def asking(question: str, given: Given, stage: str, spec: AnswerSpec, calls: int, data: int) -> Most:
    """Calls of one stage that show `data` tokens together."""
    if not calls:
        return Most()
    prompts = calls * instructions(question, spec, given.count) + data
    replies = calls * (reply_tokens(given, spec) + spec.call.reasoning_tokens)
    cost, price = None, given.prices.get(stage)
    if price is not None:
        cost = (prompts * price.input_usd_per_mtok + replies * price.output_usd_per_mtok) / 1e6
    return Most(calls, prompts + replies, cost)


def lines_of(n_tokens: npt.ArrayLike) -> Ints:
    """Tokens of records in a context, at most, from those of their texts."""
    texts = np.asarray(n_tokens, dtype=np.int64)
    return np.asarray(np.ceil(texts * (1 + LINE_SHARE)) + LINE_TOKENS, dtype=np.int64)


def contexts_at_most(lines: Ints, room: int, most: int | None = None) -> int:
    """Contexts of `room` tokens that `map_reduce.pack` makes of lines of at most `room`, `most` in one.

    A context that is not the last has more than `room` together with the first line of the next, and each
    line is first once: so they are at most twice the total by `room`. Each is filled up to the longest line.
    """
    if not len(lines):
        return 0
    total, longest = int(lines.sum()), int(lines.max())
    full = min(2 * total // (room + 1), (total - 1) // max(1, room - longest + 1))
    return min(len(lines), full + 1 + (len(lines) // most if most else 0))


_DATA = ["context", "answers", "asked", "follow_up", "n_follow_ups", "if_missing", "n_facts", "entity"]
_DATA += ["questions", "n_entities", "n_questions"]


def instructions(question: str, spec: AnswerSpec, count: Count) -> int:
    """Tokens of a prompt without its data. Any data placeholder may be the spec's."""
    messages = spec.prompt.fill({**dict.fromkeys(_DATA, ""), **variables_of(question, spec)})
    return sum(count(m.content) + MESSAGE_TOKENS for m in messages)


def reply_tokens(given: Given, spec: AnswerSpec) -> int:
    return spec.call.max_output_tokens or given.settings.model(spec.call.model).max_output_tokens


def check_room(
    question: str,
    given: Given,
    specs: Sequence[AnswerSpec],
    beside: int = 0,
    setting: str = "context_tokens",
) -> None:
    """Raises UsageError where a prompt with a full context would not fit its model's window.

    beside: tokens that the prompt holds beside instructions, question and data
    setting: of `query`, which says how many tokens the context may have
    """
    data = getattr(given.settings.query, setting)
    for spec in specs:
        model = given.settings.model(spec.call.model)
        prompt, reply = instructions(question, spec, given.count) + beside, reply_tokens(given, spec)
        if prompt + data + reply <= model.context_window:
            continue
        left = model.context_window - prompt - reply
        lower = f"set query.{setting} to {left:,} or less"
        advice = lower if left >= MIN_CONTEXT_TOKENS else "ask a shorter one, or a model with a larger window"
        raise UsageError(
            f"the question does not fit: the {spec.prompt.name!r} prompt has {prompt:,} tokens (the question "
            f"has {given.count(question):,}, and stands in it twice), its data may have {data:,}, its reply "
            f"{reply:,}, and the context window of {model.model or 'the model'} is {model.context_window:,}: "
            f"{advice}"
        )


SAMPLE = 50
"""Rows that are counted, evenly over the table, so over its documents or levels."""


def recounted(kind: Kind, rows: pa.Table, given: Given) -> Generator[Any, Any, pa.Table]:
    """Rows with their `n_tokens` raised where the answering model counts more; as they are without a budget,
    which is all that the sizes are bounds for. rows: at least the columns id and n_tokens."""
    if not rows.num_rows or not has_budget(given.settings.query):
        return rows
    places = np.unique(np.linspace(0, rows.num_rows - 1, SAMPLE).astype(np.int64))
    sample = rows.take(pa.array(places))
    size = dict(zip(sample["id"].to_pylist(), sample["n_tokens"].to_pylist(), strict=True))
    column = "full_content" if kind in REPORTS else "text"
    texts = yield Rows(SEARCHED[kind].table, ["id", column], list(size))
    worst = 1.0
    for id_, text in zip(texts["id"].to_pylist(), texts[column].to_pylist(), strict=True):
        n_tokens = given.count(shown_content(text) if kind in REPORTS else text)
        worst = max(worst, n_tokens / max(1, size[id_]))
    raised = np.ceil(rows["n_tokens"].to_numpy() * worst).astype(np.int64)
    return rows.set_column(rows.column_names.index("n_tokens"), "n_tokens", pa.array(raised))
