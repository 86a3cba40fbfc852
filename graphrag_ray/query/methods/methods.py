"""The search methods, by the name that users give them.

A method is a `MethodKind` that its module calls METHOD, below the function `search`. The built-in ones are
listed here; another package adds one by an entry point of the group `graphrag_ray.methods`
(`base/plugins.py`). Choices and help of the command line, the service, evaluations, hints and refusals derive
from what is registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.plugins import PluginError, Registry

if TYPE_CHECKING:
    from graphrag_ray.query.methods.method import Given, Method, Question

_LOG = logging.getLogger(__name__)

DEFAULT = "global"

MOST_TOLD = 100
"""Characters of a condition that a message repeats."""


@dataclass(frozen=True)
class MethodKind:
    """A search method.

    search      answers a question (`method.py` says what it may ask for on the way)
    asks        the stages whose models it asks, beside those of `stages`
    reads       what it reads, in words
    levels      it reads reports of a level
    dynamic     it may select reports by rating them, where the settings say so
    graph       it needs entities
    reports     it needs communities and reports
    hierarchy   it needs this one
    instead     what answers most alike, where conditions on documents cannot restrict this one
    others      methods that read something else: hints where nothing was found
    option      what a question names that is its alone, and the setting under `query`
    by_replies  what it reads depends on what a model replies
    """

    search: Callable[[Question, Given], Method]
    asks: tuple[str, ...]
    reads: str
    levels: bool = False
    dynamic: bool = False
    graph: bool = False
    reports: bool = False
    hierarchy: str = ""
    instead: str = ""
    others: tuple[str, ...] = ()
    option: tuple[str, str] = ("", "")
    by_replies: bool = False


_FOLDER = "graphrag_ray.query.methods"
_BUILTIN = (
    *("global", "text", "local", "vector", "hybrid", "drift", "archrag", "fgrag", "ppr", "trex", "raptor"),
    *("lightrag", "auto"),
)
METHODS = Registry(
    "graphrag_ray.methods",
    "search method",
    MethodKind,
    {name: f"{_FOLDER}.{name}_search:METHOD" for name in _BUILTIN},
)
"""Those by which an index can be asked, in the order of `--help`. NAME is in the module NAME_search.py."""
BASELINES = Registry(
    "graphrag_ray.baselines", "baseline", MethodKind, {"none": f"{_FOLDER}.zero_shot:METHOD"}
)
"""To compare others with, and no way to ask an index: `evaluate` alone offers them."""


def find(name: str) -> MethodKind:
    """A method or baseline. Raises PluginError, a UsageError, for one that there is not, or that cannot be
    used."""
    return (BASELINES if name in BASELINES else METHODS)[name]


def usable() -> dict[str, MethodKind]:
    """All methods by name, but for those of other packages that cannot be used: these are logged."""
    found = {}
    for name in METHODS:
        try:
            found[name] = METHODS[name]
        except PluginError as e:
            _LOG.warning("%s", e)
    return found


def stages(name: str, dynamic: bool = False, following: bool = False) -> list[str]:
    """The stages whose models a question asks. following: it leans on earlier ones."""
    own = find(name)
    return [*own.asks, *["rate"] * (dynamic and own.dynamic), *["condense"] * following]


def check(name: str, level: str | int | None, where: Sequence[str], baselines: bool = False) -> None:
    """Raises UsageError for what a method cannot do, and for one that there is not. baselines: these may be
    asked, too."""

    def listed(names: Sequence[str]) -> str:
        return f"{', '.join(names[:-1])} and {names[-1]}"

    own = find(name)
    if name in BASELINES and not baselines:
        raise UsageError(
            f"method {name} reads {own.reads}: it is a baseline to compare others with, in `graphrag-ray "
            f"evaluate` alone (--condition {name}={name}). An index is asked by {', '.join(METHODS)}"
        )
    if level is not None and not own.levels:
        with_levels = [n for n, m in usable().items() if m.levels]
        raise UsageError(f"{name} search has no levels; {listed(with_levels)} search have")
    if where and own.instead:
        can = [n for n, m in usable().items() if not m.instead]
        raise UsageError(
            f"{name} search cannot be restricted to some documents ({where[0][:MOST_TOLD]!r}): "
            f"{listed(can)} search can. What it reads is written from many documents; nearest to "
            f"it under the same conditions is {own.instead} search (--method {own.instead})"
        )


def check_modes(name: str, asked: Mapping[str, object]) -> None:
    """Raises UsageError where a question has an option that is another method's. asked: by option."""
    said = {option for option, value in asked.items() if value is not None}
    for other, kind in usable().items() if said else ():
        option, setting = kind.option
        if option in said and find(name).option != kind.option:
            from graphrag_ray.base.index_settings import Query

            choices = get_args(Query.model_fields[setting].annotation)  # of a Literal
            modes = f" ({', '.join(choices)})" if choices else ""
            raise UsageError(f"{option} is for {other} search{modes}; {name} search has no use for it")
