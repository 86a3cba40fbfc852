"""Conditions: what is compared with what. NAME=METHOD[:LEVEL][,setting=value…], or NAME=FILE of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphrag_ray.base.errors import SettingsError, UsageError
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.settings_text import apply
from graphrag_ray.base.user_settings import require_known
from graphrag_ray.corpus.table_rows import OPENERS
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, communities_of, reports_of
from graphrag_ray.query.methods.levels import is_auto, levels

MAX_CONDITIONS = 50
MAX_NAME = 60
CHANGED = ("query", "models", "stages")
"""Sections of the settings that a condition may change."""
_NEXT_SETTING = re.compile(r",(?=\s*[a-z_]+(?:\.[\w-]+)+\s*=)")
_FORM = "write NAME=METHOD, NAME=METHOD:LEVEL or NAME=answers.csv, and settings behind it as ,query.a=b"


@dataclass(frozen=True)
class EvaluationCondition:
    """A way to come by answers.

    method, level   how this program answers; "" for answers that were made elsewhere
    changes         settings, as `a.b=c`
    answers         a file of answers that were made elsewhere; "" for none
    """

    name: str
    method: str = ""
    level: str | None = None
    changes: tuple[str, ...] = ()
    answers: str = ""

    def opened(self, index: Index) -> Index:
        """The index as this condition asks it. Raises UsageError, SettingsError for what cannot be asked."""
        if self.method in methods.BASELINES:
            index = replace(index, baselines=True)
        if not self.changes:
            return index
        said = index.settings.model_dump(mode="json")
        try:
            for change in self.changes:
                apply(said, change)
            return index.at(index.manifest, parse_settings(said), index.prompts)
        except SettingsError as e:
            raise UsageError(f"condition {self.name}: {e}") from e


def parse_condition(text: str) -> EvaluationCondition:
    """Raises UsageError, which names it."""
    name, equals, rest = (part.strip() for part in text.partition("="))
    told = f"condition {text[:MAX_NAME]!r}"
    if not (name and equals and rest):
        raise UsageError(f"{told}: {_FORM}")
    if len(name) > MAX_NAME:
        raise UsageError(f"{told}: its name has {len(name)} characters; {MAX_NAME} at most")
    if not name.isprintable():
        raise UsageError(f"{told}: its name holds what cannot be shown")
    if rest.lower().endswith(tuple(OPENERS)):
        return EvaluationCondition(name, answers=rest)
    way, *changes = (part.strip() for part in _NEXT_SETTING.split(rest))
    if wrong := [change for change in changes if change.partition(".")[0] not in CHANGED]:
        told = f"{told}: {wrong[0]!r} does not change how questions are answered"
        raise UsageError(f"{told}; {', '.join(f'{name}.…' for name in CHANGED)} do")
    method, _, level = (part.strip() for part in way.partition(":"))
    if method not in methods.METHODS and method not in methods.BASELINES:
        there = ", ".join([*methods.METHODS, *methods.BASELINES])
        raise UsageError(f"{told}: there is no method {method[:MAX_NAME]!r} ({there}); {_FORM}")
    return EvaluationCondition(name, method, level or None, tuple(changes))


def parse_conditions(texts: Sequence[str | EvaluationCondition], least: int = 1) -> list[EvaluationCondition]:
    """Raises UsageError, also where a name stands twice, or there are fewer than `least`."""
    found = [text if isinstance(text, EvaluationCondition) else parse_condition(text) for text in texts]
    names = [condition.name for condition in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two conditions have the same name: {', '.join(twice)}")
    if len(found) < least:
        raise UsageError(f"{len(found)} of at least {least} conditions (--condition): {_FORM}")
    if len(found) > MAX_CONDITIONS:
        raise UsageError(f"{len(found)} conditions; {MAX_CONDITIONS} at most can be compared together")
    return found


def check_conditions(index: Index, conditions: Sequence[EvaluationCondition]) -> None:
    """See before anything is paid for that each can be asked. Raises UsageError, LevelNotFound."""
    for condition in conditions:
        if not condition.method:
            continue
        opened = condition.opened(index)
        try:
            methods.check(condition.method, condition.level, (), opened.baselines)
            stages = methods.stages(condition.method, opened.settings.query.dynamic)
            require_known(opened.settings, stages)
            if methods.find(condition.method).levels:
                kind = asked_hierarchy(opened.given)
                needs = communities_of(kind), reports_of(kind)
                communities, reports = (opened.table(need.table, need.columns) for need in needs)
                known = levels(communities, reports, kind.name)
                level = None if is_auto(condition.level) else condition.level
                known.parse(level, opened.settings.query.context_tokens)
        except UsageError as e:
            raise type(e)(f"condition {condition.name}: {e}") from e
