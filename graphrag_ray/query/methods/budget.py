"""Upper bounds on the cost and size of a question's calls, checked before any call is made.

The bounds are no forecasts: they assume that every reply reaches its length limit, and that contexts are
packed as badly as possible. Tables store sizes in tokens of the indexing model; `recount_tokens` scales them
by a sample if the answering model counts more. Corrections and repeated calls are not included:
`query/model_calls.py` stops before they exceed the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.connection_settings import Price
from graphrag_ray.base.declarations import REPORT_KINDS, SEARCHABLE_KINDS
from graphrag_ray.base.errors import BudgetSpent, SettingsError, UsageError
from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.wording import plural, price_hint
from graphrag_ray.graph.context_plan import HEADING_TOKENS, MIN_CONTEXT_TOKENS
from graphrag_ray.graph.report_context import Count, content_for_context
from graphrag_ray.query.methods.levels import Ints
from graphrag_ray.query.methods.map_reduce import AnswerSpec, mapper, prompt_variables, reduce_spec
from graphrag_ray.query.methods.method import Kind, Rows, SearchEnv, Steps

MESSAGE_TOKENS = 4
"""Approximate overhead of a chat template per message."""
LINE_TOKENS = 48
"""Overhead of a record for its number, title, period and quotation marks."""
LINE_SHARE = 0.05
"""Relative overhead of CSV escaping."""
SAMPLE_SIZE = 50
"""Number of rows that `recount_tokens` counts, evenly spaced to represent all documents or levels."""


@dataclass(frozen=True, slots=True)
class CostBound:
    """An upper bound on what some calls cost, which is unknown if `unpriced_model` has no price."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    unpriced_model: str = ""

    def __add__(self, other: CostBound) -> CostBound:
        known = self.cost_usd is not None and other.cost_usd is not None
        cost = (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None
        unpriced = self.unpriced_model or other.unpriced_model
        return CostBound(self.calls + other.calls, self.tokens + other.tokens, cost, unpriced)

    def __sub__(self, other: CostBound) -> CostBound:
        cost = None if other.cost_usd is None else -other.cost_usd
        return self + CostBound(-other.calls, -other.tokens, cost)

    def within(self, query: Query) -> bool:
        """Whether this is within the budget. Raises SettingsError for a budget in USD without prices."""
        if query.budget_usd is not None and self.cost_usd is None:
            raise _unpriced(self.unpriced_model)
        tokens = query.budget_tokens is None or self.tokens <= query.budget_tokens
        return tokens and (query.budget_usd is None or (self.cost_usd or 0.0) <= query.budget_usd)

    def __str__(self) -> str:
        cost = f", ${self.cost_usd:.4f}," if self.cost_usd else ""
        return f"at most {self.tokens:,} tokens{cost} in {plural(self.calls, 'call')}"


def has_budget(query: Query) -> bool:
    return query.budget_tokens is not None or query.budget_usd is not None


def check_prices(query: Query, prices: Mapping[str, Price | None]) -> None:
    """Raise SettingsError for a budget in USD if no answering model, by name, has a known price."""
    if query.budget_usd is not None and all(price is None for price in prices.values()):
        raise _unpriced(next(iter(prices)))


def _unpriced(model: str) -> SettingsError:
    return SettingsError(
        f"query.budget_usd is set, but the price of model {model!r} is unknown. Use {price_hint(model)}, or "
        "set query.budget_tokens instead."
    )


def describe_budget(query: Query) -> str:
    limits = (
        query.budget_tokens is not None and f"query.budget_tokens is {query.budget_tokens:,}",
        query.budget_usd is not None and f"query.budget_usd is {query.budget_usd:g}",
    )
    return " and ".join(limit for limit in limits if limit)


def check_budget(bound: CostBound, query: Query, advice: str, what: str = "The question") -> None:
    """Raise BudgetSpent if a question could exceed its budget."""
    if not bound.within(query):
        raise BudgetSpent(
            f"{what} would take {bound}, but {describe_budget(query)}. No call was made for the answer. "
            f"{advice}"
        )


def map_reduce_bound(question: str, env: SearchEnv, n_tokens: npt.ArrayLike) -> CostBound:
    """Bound the calls of map and reduce, given the size of each record's text."""
    spec, _ = mapper(env.settings, env.prompts)
    mapping = packed_bound(question, env, "map", spec, n_tokens)
    return mapping + reduce_bound(question, env) if mapping.calls else mapping


def packed_bound(
    question: str,
    env: SearchEnv,
    stage: str,
    spec: AnswerSpec,
    n_tokens: npt.ArrayLike,
    max_records: int | None = None,
) -> CostBound:
    """Bound the calls for contexts of `map_reduce.pack`, one per context of at most `max_records` records."""
    context_tokens = env.settings.query.context_tokens
    room = context_tokens - HEADING_TOKENS
    lines = np.minimum(line_tokens(n_tokens), room)
    calls = max_contexts(lines, room, max_records)
    data = min(int(lines.sum()) + calls * HEADING_TOKENS, calls * context_tokens)
    return calls_bound(question, env, stage, spec, calls, data)


def reduce_bound(question: str, env: SearchEnv) -> CostBound:
    """Bound the call that writes the answer from a full context."""
    spec = reduce_spec(env.settings, env.prompts)
    return calls_bound(question, env, "reduce", spec, 1, env.settings.query.context_tokens)


def calls_bound(
    question: str, env: SearchEnv, stage: str, spec: AnswerSpec, calls: int, data_tokens: int
) -> CostBound:
    """Bound the calls of one stage, whose prompts contain `data_tokens` of data in total."""
    if not calls:
        return CostBound()
    prompts = calls * instructions(question, spec, env.count) + data_tokens
    replies = calls * (reply_tokens(env, spec) + spec.call.reasoning_tokens)
    cost, price = None, env.prices.get(stage)
    if price is not None:
        cost = (prompts * price.input_usd_per_mtok + replies * price.output_usd_per_mtok) / 1e6
    return CostBound(calls, prompts + replies, cost, "" if price else spec.call.model)


def line_tokens(n_tokens: npt.ArrayLike) -> Ints:
    """Bound the size of each record in a context, given the size of its text."""
    texts = np.asarray(n_tokens, dtype=np.int64)
    return np.asarray(np.ceil(texts * (1 + LINE_SHARE)) + LINE_TOKENS, dtype=np.int64)


def max_contexts(lines: Ints, room: int, max_records: int | None = None) -> int:
    """Bound the number of contexts of `room` tokens into which `map_reduce.pack` divides lines.

    Every context but the last, together with the first line of the next one, exceeds `room`, and each line is
    the first at most once. So twice the total exceeds `room` times the number of these contexts. Each is also
    filled at least up to `room` minus the longest line.
    """
    if not len(lines):
        return 0
    total, longest = int(lines.sum()), int(lines.max())
    full = min(2 * total // (room + 1), (total - 1) // max(1, room - longest + 1))
    return min(len(lines), full + 1 + (len(lines) // max_records if max_records else 0))


_DATA = ["context", "answers", "asked", "follow_up", "n_follow_ups", "if_missing", "n_facts", "entity"]
_DATA += ["questions", "n_entities", "n_questions", "documents", "concepts"]


def instructions(question: str, spec: AnswerSpec, count: Count) -> int:
    """Count the tokens of a prompt without its data."""
    messages = spec.prompt.fill({**dict.fromkeys(_DATA, ""), **prompt_variables(question, spec)})
    return sum(count(m.content) + MESSAGE_TOKENS for m in messages)


def reply_tokens(env: SearchEnv, spec: AnswerSpec) -> int:
    return spec.call.max_output_tokens or env.settings.model(spec.call.model).max_output_tokens


def check_context_fits(
    question: str,
    env: SearchEnv,
    specs: Sequence[AnswerSpec],
    extra_tokens: int = 0,
    setting: str = "context_tokens",
) -> None:
    """Raise UsageError if a prompt with a full context would not fit into its model's context window.

    `query.<setting>` limits the context. `extra_tokens` adds to instructions, question and context.
    """
    data = getattr(env.settings.query, setting)
    for spec in specs:
        model = env.settings.model(spec.call.model)
        prompt = instructions(question, spec, env.count) + extra_tokens
        reply = reply_tokens(env, spec)
        if prompt + data + reply <= model.context_window:
            continue
        left = model.context_window - prompt - reply
        lower = f"Set query.{setting} to {left:,} or less."
        advice = lower if left >= MIN_CONTEXT_TOKENS else "Shorten it, or use a model with a larger window."
        raise UsageError(
            f"The question does not fit: the {spec.prompt.name!r} prompt has {prompt:,} tokens (the question "
            f"has {env.count(question):,} and appears twice), its data may have {data:,} and its reply "
            f"{reply:,}, but the context window of {model.model or 'the model'} is {model.context_window:,}. "
            f"{advice}"
        )


def recount_tokens(kind: Kind, rows: pa.Table, env: SearchEnv) -> Steps[pa.Table]:
    """Scale the column `n_tokens` of rows if the answering model counts more tokens than the indexing model.

    Without a budget, the rows are returned unchanged, because only bounds need the sizes.
    """
    if not rows.num_rows or not has_budget(env.settings.query):
        return rows
    positions = np.unique(np.linspace(0, rows.num_rows - 1, SAMPLE_SIZE).astype(np.int64))
    sample = rows.take(pa.array(positions))
    size = dict(zip(sample["id"].to_pylist(), sample["n_tokens"].to_pylist(), strict=True))
    column = "full_content" if kind in REPORT_KINDS else "text"
    texts = yield Rows(SEARCHABLE_KINDS[kind].table, ["id", column], list(size))
    factor = 1.0
    for id_, text in zip(texts["id"].to_pylist(), texts[column].to_pylist(), strict=True):
        n_tokens = env.count(content_for_context(text) if kind in REPORT_KINDS else text)
        factor = max(factor, n_tokens / max(1, size[id_]))
    scaled = np.ceil(rows["n_tokens"].to_numpy() * factor).astype(np.int64)
    return rows.set_column(rows.column_names.index("n_tokens"), "n_tokens", pa.array(scaled))
