"""The registry of search methods.

A method is a `MethodKind` that its module exports as METHOD. The built-in methods are listed here. Other
packages add methods through the entry-point group `graphrag_ray.methods` (`base/plugins.py`). The command
line, the service, evaluations, hints and error messages all take the available methods from this registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.plugins import PluginError, Registry

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Query
    from graphrag_ray.query.methods.method import Method, Question, SearchEnv

_LOG = logging.getLogger(__name__)

DEFAULT = "global"
_MAX_QUOTED_CHARACTERS = 100
"""Maximum length of a condition that is quoted in an error message."""


@dataclass(frozen=True)
class MethodKind:
    """A search method.

    Attributes:
        search: Answers a question. `method.py` lists the requests that it may yield.
        stages: Stages whose models it calls. "rerank" counts only with `query.rerank_model`.
        description: The data it reads, as a noun phrase.
        levels: Whether it reads reports of one level.
        dynamic: Whether it supports dynamic community selection.
        graph: Whether it needs entities.
        reports: Whether it needs communities and reports.
        hierarchy: Name of the hierarchy that it needs, or "".
        alternative: The most similar method that supports conditions on documents, or "" if this method does.
        period: Whether it supports conditions on dates nevertheless, which restrict it to reports whose whole
            period satisfies them.
        suggestions: Methods to suggest if this one finds nothing.
        option: A query option that only this method has, and its key under the `query` settings.
        reply_dependent: Whether the data it reads depends on replies of a model.
    """

    search: Callable[[Question, SearchEnv], Method]
    stages: tuple[str, ...]
    description: str
    levels: bool = False
    dynamic: bool = False
    graph: bool = False
    reports: bool = False
    hierarchy: str = ""
    alternative: str = ""
    period: bool = False
    suggestions: tuple[str, ...] = ()
    option: tuple[str, str] = ("", "")
    reply_dependent: bool = False


_PACKAGE = "graphrag_ray.query.methods"
_BUILTIN = (
    *("global", "text", "local", "vector", "hybrid", "drift", "archrag", "fgrag", "ppr", "trex", "raptor"),
    *("lightrag", "auto"),
)
METHODS = Registry(
    "graphrag_ray.methods",
    "search method",
    MethodKind,
    {name: f"{_PACKAGE}.{name}_search:METHOD" for name in _BUILTIN},
)
"""Methods for querying an index, in the order of `--help`. The module of a method is NAME_search.py."""
BASELINES = Registry(
    "graphrag_ray.baselines", "baseline", MethodKind, {"none": f"{_PACKAGE}.zero_shot:METHOD"}
)
"""Baselines for comparison, which only `evaluate` offers."""


def get_method(name: str) -> MethodKind:
    """Look up a method or baseline. Raises PluginError, a UsageError, if it is unknown or unusable."""
    return (BASELINES if name in BASELINES else METHODS)[name]


def load_all() -> dict[str, MethodKind]:
    """Load all methods by name. Methods of other packages that cannot be loaded are logged and left out."""
    kinds = {}
    for name in METHODS:
        try:
            kinds[name] = METHODS[name]
        except PluginError as e:
            _LOG.warning("%s", e)
    return kinds


def stages(name: str, query: Query, is_follow_up: bool = False) -> list[str]:
    """List the stages whose models a question calls. A follow-up question has a history."""
    kind = get_method(name)
    called = [stage for stage in kind.stages if stage != "rerank" or query.rerank_model]
    return [*called, *["rate"] * (query.dynamic and kind.dynamic), *["condense"] * is_follow_up]


def check_method(name: str, level: str | int | None, where: Sequence[str], baselines: bool = False) -> None:
    """Raise UsageError if a method is unknown, not allowed, or lacks support for level or conditions."""

    def enumerate_names(names: Sequence[str]) -> str:
        return f"{', '.join(names[:-1])} and {names[-1]}"

    kind = get_method(name)
    if name in BASELINES and not baselines:
        raise UsageError(
            f"Method {name!r} reads {kind.description}: it is a baseline for `graphrag-ray evaluate` "
            f"(--condition {name}={name}). To query an index, choose from: {', '.join(METHODS)}."
        )
    if level is not None and not kind.levels:
        with_levels = [n for n, m in load_all().items() if m.levels]
        raise UsageError(f"{name} search has no levels. Methods with levels: {enumerate_names(with_levels)}.")
    if where and kind.period:
        from graphrag_ray.query.methods.document_filters import is_about_period, parse

        where = [text for text in where if not is_about_period(parse(text))]
    if where and kind.alternative:
        restrictable = [n for n, m in load_all().items() if not m.alternative]
        raise UsageError(
            f"{name} search does not support conditions on documents "
            f"({where[0][:_MAX_QUOTED_CHARACTERS]!r}), because its records are written from many documents"
            f"{'; only date with =, <, <=, > or >= is possible' if kind.period else ''}. "
            f"The most similar method that does is --method {kind.alternative}. All methods that do: "
            f"{enumerate_names(restrictable)}."
        )


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Raise UsageError if a question sets an option (one that is not None) of another method."""
    present = {option for option, value in options.items() if value is not None}
    for other, kind in load_all().items() if present else ():
        option, setting = kind.option
        if option in present and get_method(name).option != kind.option:
            from graphrag_ray.base.index_settings import Query

            choices = get_args(Query.model_fields[setting].annotation)  # the values of a Literal
            modes = f" ({', '.join(choices)})" if choices else ""
            raise UsageError(f"{option} is an option of {other} search{modes}, not of {name} search")
