"""Parse, check and rehearse evaluation conditions.

A condition is `NAME=METHOD[:LEVEL][,setting=value…]`, or `NAME=FILE` for answers made by another tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from graphrag_ray.base.errors import GraphRagError, RunStopped, SettingsError, StoreError, UsageError
from graphrag_ray.base.messages import ChatRequest, Reply, Request
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.settings_parsing import apply_override
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.base.user_settings import require_known_addresses
from graphrag_ray.corpus.table_rows import OPENERS
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.in_process import asyncio_runner
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.hierarchy_choice import communities_of, reports_of, resolve_hierarchy
from graphrag_ray.query.methods.levels import build_levels, is_auto
from graphrag_ray.query.methods.method import AskRequest

T = TypeVar("T")
Requests = Sequence[tuple[str, ChatRequest]]
"""Stage and request of each call that would have been sent to a model."""

MAX_CONDITIONS = 50
MAX_NAME = 60
CHANGEABLE_SECTIONS = ("query", "models", "stages")  # Settings sections that a condition may change.
_NEXT_SETTING = re.compile(r",(?=\s*[a-z_]+(?:\.[\w-]+)+\s*=)")
_SYNTAX = "Write NAME=METHOD, NAME=METHOD:LEVEL or NAME=answers.csv, and append settings as ,query.a=b."


@dataclass(frozen=True)
class EvaluationCondition:
    """One way to get answers: a search method with changed settings (`a.b=c`), or a file of answers."""

    name: str
    method: str = ""
    level: str | None = None
    changes: tuple[str, ...] = ()
    answers: str = ""

    def apply_to(self, index: Index) -> Index:
        """Return the index with this condition's settings. Raises UsageError for invalid settings."""
        if self.method in methods.BASELINES:
            index = replace(index, baselines=True)
        if not self.changes:
            return index
        settings = index.settings.model_dump(mode="json")
        try:
            for change in self.changes:
                apply_override(settings, change)
            return index.open_snapshot(index.manifest, parse_settings(settings), index.prompts)
        except SettingsError as e:
            raise UsageError(f"Condition {self.name}: {e}") from e


def parse_condition(text: str) -> EvaluationCondition:
    """Parse one condition. Raises UsageError."""
    name, equals, rest = (part.strip() for part in text.partition("="))
    prefix = f"Condition {text[:MAX_NAME]!r}"
    if not (name and equals and rest):
        raise UsageError(f"{prefix} is incomplete. {_SYNTAX}")
    if len(name) > MAX_NAME:
        raise UsageError(f"{prefix}: The name has {len(name)} characters; at most {MAX_NAME} are allowed")
    if not name.isprintable():
        raise UsageError(f"{prefix}: The name contains unprintable characters")
    if rest.lower().endswith(tuple(OPENERS)):
        return EvaluationCondition(name, answers=rest)
    method_and_level, *changes = (part.strip() for part in _NEXT_SETTING.split(rest))
    if wrong := [change for change in changes if change.partition(".")[0] not in CHANGEABLE_SECTIONS]:
        sections = ", ".join(f"{section}.…" for section in CHANGEABLE_SECTIONS)
        raise UsageError(
            f"{prefix}: {wrong[0]!r} does not affect how questions are answered. Choose from: {sections}"
        )
    method, _, level = (part.strip() for part in method_and_level.partition(":"))
    if method not in methods.METHODS and method not in methods.BASELINES:
        known = ", ".join([*methods.METHODS, *methods.BASELINES])
        raise UsageError(f"{prefix}: Unknown method {method[:MAX_NAME]!r}. Choose from: {known}. {_SYNTAX}")
    return EvaluationCondition(name, method, level or None, tuple(changes))


def parse_conditions(
    texts: Sequence[str | EvaluationCondition], min_count: int = 1
) -> list[EvaluationCondition]:
    """Parse conditions. Raises UsageError, also for repeated names or fewer than `min_count` conditions."""
    conditions = [text if isinstance(text, EvaluationCondition) else parse_condition(text) for text in texts]
    names = [condition.name for condition in conditions]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"Several conditions have the same name: {', '.join(repeated)}")
    if len(conditions) < min_count:
        raise UsageError(f"Got {len(conditions)} of at least {min_count} conditions (--condition). {_SYNTAX}")
    if len(conditions) > MAX_CONDITIONS:
        raise UsageError(
            f"Got {len(conditions)} conditions. At most {MAX_CONDITIONS} can be compared at once."
        )
    return conditions


def check_conditions(index: Index, conditions: Sequence[EvaluationCondition]) -> None:
    """Check that each condition can run, without calling a model. Raises UsageError, LevelNotFound."""
    for condition in conditions:
        if not condition.method:
            continue
        changed = condition.apply_to(index)
        try:
            methods.check_method(condition.method, condition.level, (), changed.baselines)
            stages = methods.stages(condition.method, changed.settings.query)
            require_known_addresses(changed.settings, stages)
            if methods.get_method(condition.method).levels:
                kind = resolve_hierarchy(changed.env)
                needs = communities_of(kind), reports_of(kind)
                communities, reports = (changed.table(need.table, need.columns) for need in needs)
                level = None if is_auto(condition.level) else condition.level
                known_levels = build_levels(communities, reports, kind.name)
                known_levels.parse(level, changed.settings.query.context_tokens)
        except UsageError as e:
            raise type(e)(f"Condition {condition.name}: {e}") from e


def rehearse(
    index: Index,
    questions: Sequence[str],
    method: str,
    level: str | None,
    extract: Callable[[Answer, Requests], T],
) -> list[T | str]:
    """Answer questions with the offline engine instead of the model. Only question embeddings are paid for.

    Returns, per question, the result of `extract` for the answer and the requests that would have been sent
    to a model, or an error message. Raises UsageError if every question fails, StoreError, RunStopped.
    """
    from graphrag_ray.offline import answer as answer_offline

    requests: list[tuple[str, ChatRequest]] = []

    async def offline(request: Request, stage: str) -> CallResult[Reply]:
        assert isinstance(request, ChatRequest), "only questions are embedded"
        requests.append((stage, request))
        return CallResult(answer_offline(request))

    query = index.settings.query.model_copy(update={"rerank_model": None})

    async def ask_all() -> tuple[list[T | str], list[str]]:
        results: list[T | str] = []
        errors: list[str] = []
        async with index.asker() as asker:
            asker.override = offline
            for question in questions:
                requests.clear()
                try:
                    answer = await index.prepare(AskRequest(question, level, method=method, query=query))(
                        asker, None
                    )
                    results.append(extract(answer, list(requests)))
                    continue
                except (StoreError, RunStopped):
                    raise
                except GraphRagError as e:
                    errors.append(str(e))
                except Exception as e:
                    if not is_unexpected(e):
                        raise
                    errors.append(record_bug(e))
                results.append(errors[-1])
        return results, errors

    results, errors = asyncio_runner()(ask_all())
    if errors and len(errors) == len(results):
        raise UsageError(f"{method} search cannot answer any of the questions: {errors[0]}")
    return results
