"""Parse, check and rehearse evaluation conditions.

A condition is `NAME=METHOD[:LEVEL][,index=URL][,prompts=DIR][,setting=value…]`, or `NAME=FILE` for answers
made by another tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from graphrag_ray.base.errors import GraphRagError, RunStopped, StoreError, UsageError
from graphrag_ray.base.messages import ChatRequest, Reply, Request
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.settings_parsing import apply_override
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.base.user_settings import require_known_addresses
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.in_process import asyncio_runner
from graphrag_ray.evaluate.table_files import EXTENSIONS
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.query.ask import Index, open_index
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
KEYWORD = "keyword"  # Keyword search over chunks; a method for --retrieval-only.
ORACLE = "oracle"
_NEXT_SETTING = re.compile(r",(?=\s*(?:index|prompts|[a-z_]+(?:\.[\w-]+)+)\s*=)")
_SYNTAX = (
    "Write NAME=METHOD, NAME=METHOD:LEVEL or NAME=answers.csv, and append another index as ,index=URL, a "
    "folder of prompts as ,prompts=DIR and settings as ,query.a=b."
)


@dataclass(frozen=True)
class EvaluationCondition:
    """One way to get answers: a search method with changed settings (`a.b=c`), or a file of answers.

    Attributes:
        index: The index to ask: a folder or URL, an open index, or "" for the index of the evaluation.
            `open_conditions` replaces it with the open index with this condition's settings and prompts.
        prompts: A folder of prompts that replace those of the index, or "".
    """

    name: str
    method: str = ""
    level: str | None = None
    changes: tuple[str, ...] = ()
    answers: str = ""
    index: Index | str = ""
    prompts: str = ""

    @property
    def opened(self) -> Index:
        assert isinstance(self.index, Index), "`open_conditions` opens the index of a condition"
        return self.index

    def describe(self) -> dict[str, Any]:
        """Return the values that `evaluation.json` records."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.index, Index):
            values |= {"index": self.index.store.url, "snapshot": self.index.manifest.number}
        return values

    def _changed(self, index: Index) -> Index:
        """Return an index with this condition's settings and prompts. Raises SettingsError."""
        if self.method in methods.BASELINES:
            index = replace(index, baselines=True)
        if not (self.changes or self.prompts):
            return index
        settings = index.settings.model_dump(mode="json")
        for change in self.changes:
            apply_override(settings, change)
        prompts = load_prompts(self.prompts) if self.prompts else index.prompts
        return index.open_snapshot(index.manifest, parse_settings(settings), prompts)


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
    method_and_level, *options = (part.strip() for part in _NEXT_SETTING.split(rest))
    if method_and_level.lower().endswith(EXTENSIONS) and not options:
        return EvaluationCondition(name, answers=rest)
    places = {"index": "", "prompts": ""}
    changes: list[str] = []
    for option in options:
        key, _, value = (part.strip() for part in option.partition("="))
        if key not in places:
            changes.append(option)
        elif not value or places[key]:
            raise UsageError(f"{prefix}: {key}= needs one value. {_SYNTAX}")
        else:
            places[key] = value
    if wrong := [change for change in changes if change.partition(".")[0] not in CHANGEABLE_SECTIONS]:
        sections = ", ".join(f"{section}.…" for section in CHANGEABLE_SECTIONS)
        raise UsageError(
            f"{prefix}: {wrong[0]!r} does not affect how questions are answered. Choose from: {sections}"
        )
    method, _, level = (part.strip() for part in method_and_level.partition(":"))
    known = [*methods.METHODS, *methods.BASELINES, KEYWORD]
    if method not in known:
        raise UsageError(
            f"{prefix}: Unknown method {method[:MAX_NAME]!r}. Choose from: {', '.join(known)}. {_SYNTAX}"
        )
    return EvaluationCondition(name, method, level or None, tuple(changes), **places)


def open_conditions(
    index: Index, texts: Sequence[str | EvaluationCondition], min_count: int = 1, known_answers: bool = False
) -> list[EvaluationCondition]:
    """Parse conditions, open their indexes, and check that each can run, without calling a model.

    Args:
        index: The index of conditions that name none. Its storage settings also apply to the others.
        known_answers: Whether the questions have known answers or documents, which `oracle` needs.

    Raises:
        UsageError: A condition is invalid, its name is repeated, or there are too few or too many of them.
        StoreError: An index cannot be read.
    """
    opened = {"": index}
    ready = parse_conditions(texts, min_count)
    for n, condition in enumerate(ready):
        if condition.answers:
            continue
        place = condition.index
        try:
            if isinstance(place, str) and place not in opened:
                opened[place] = open_index(place, storage=index.settings.storage)
            changed = condition._changed(opened[place] if isinstance(place, str) else place)
            ready[n] = replace(condition, index=changed)
            _check_condition(ready[n], known_answers)
        except UsageError as e:
            raise type(e)(f"Condition {condition.name}: {e}") from e
    return ready


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


def _check_condition(condition: EvaluationCondition, known_answers: bool) -> None:
    """Check that a condition can run, without calling a model. Raises UsageError, LevelNotFound."""
    index = condition.opened
    if condition.method == KEYWORD:
        if condition.level:
            raise UsageError(f"{KEYWORD} search has no levels.")
        return
    if condition.method == ORACLE and not known_answers:
        raise UsageError(
            f"Method {ORACLE} answers from the documents that contain the answer. Use `evaluate qa` with "
            "questions that name their documents."
        )
    methods.check_method(condition.method, condition.level, (), index.baselines)
    require_known_addresses(index.settings, methods.stages(condition.method, index.settings.query))
    if methods.get_method(condition.method).levels:
        kind = resolve_hierarchy(index.env)
        needs = communities_of(kind), reports_of(kind)
        communities, reports = (index.table(need.table, need.columns) for need in needs)
        level = None if is_auto(condition.level) else condition.level
        known_levels = build_levels(communities, reports, kind.name)
        known_levels.parse(level, index.settings.query.context_tokens)


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

    results: list[T | str] = []
    errors: list[str] = []

    async def ask_all() -> None:
        async with index.asker() as asker:
            asker.override = offline
            for question in questions:
                requests.clear()
                request = AskRequest(question, level, method=method, query=query)
                try:
                    answer = await index.prepare(request)(asker, None)
                    results.append(extract(answer, list(requests)))
                except (StoreError, RunStopped):
                    raise
                except Exception as e:
                    if not (isinstance(e, GraphRagError) or is_unexpected(e)):
                        raise
                    errors.append(str(e) if isinstance(e, GraphRagError) else record_bug(e))
                    results.append(errors[-1])

    asyncio_runner()(ask_all())
    if errors and len(errors) == len(results):
        raise UsageError(f"{method} search cannot answer any of the questions: {errors[0]}")
    return results
