"""The ways of answering, by the name that users give them; each is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeAlias

from graphrag_ray.base.errors import UsageError

if TYPE_CHECKING:
    from graphrag_ray.query.methods.method import Given, Method, Question

DEFAULT = "global"

MOST_TOLD = 100
"""Characters of a condition that a message repeats."""


@dataclass(frozen=True)
class MethodKind:
    """A way of answering.

    file        the module of this room whose function `search` it is
    asks        the stages whose models it asks, beside those of `stages`
    reads       what it reads, in words
    levels      it reads reports of a level
    dynamic     it may select reports by rating them, where the settings say so
    graph       it needs entities
    reports     it needs communities and reports
    hierarchy   it needs this one
    instead     what answers most alike, where conditions on documents cannot restrict this one
    others      ways that read something else: hints where nothing was found
    option      what a question names that is its alone, and the setting under `query`
    modes       those that the option chooses from; (): it is a number
    by_replies  what it reads depends on what a model replies
    baseline    to compare others with, and no way to ask an index: `evaluate` alone offers it
    """

    file: str
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
    modes: tuple[str, ...] = ()
    by_replies: bool = False
    baseline: bool = False


METHODS: Mapping[str, MethodKind] = {
    "global": MethodKind(
        "global_search",
        ("map", "reduce"),
        "what the reports say of the whole",
        levels=True,
        dynamic=True,
        instead="text",
        others=("local", "hybrid"),
        reports=True,
    ),
    "text": MethodKind("text_search", ("map", "reduce"), "all of the text"),
    "local": MethodKind(
        "local_search",
        ("embed", "answer"),
        "what stands around a name",
        levels=True,
        graph=True,
        others=("hybrid", "global"),
        reports=True,
    ),
    "vector": MethodKind(
        "vector_search", ("embed", "answer"), "passages, by meaning", others=("hybrid", "local")
    ),
    "hybrid": MethodKind(
        "hybrid_search", ("embed", "answer"), "passages, by words and meaning", others=("local", "global")
    ),
    "drift": MethodKind(
        "drift_search",
        ("embed", "drift", "reduce"),
        "reports, then what they leave open",
        levels=True,
        graph=True,
        instead="local",
        others=("hybrid", "global"),
        by_replies=True,
        reports=True,
    ),
    "archrag": MethodKind(
        "archrag_search",
        ("embed", "map", "reduce"),
        "what is nearest on each level",
        graph=True,
        instead="local",
        others=("hybrid", "global"),
        reports=True,
    ),
    "fgrag": MethodKind(
        "fgrag_search",
        ("embed", "fgrag", "reduce"),
        "what stands around each thing that a question is about",
        graph=True,
        instead="local",
        others=("hybrid", "global"),
        by_replies=True,
    ),
    "ppr": MethodKind(
        "ppr_search",
        ("embed", "answer", "steps"),
        "passages that a walk over names comes to",
        graph=True,
        others=("hybrid", "local"),
        option=("steps", "ppr_steps"),
        by_replies=True,
    ),
    "trex": MethodKind(
        "trex_search",
        ("embed", "answer"),
        "passages and summaries, by words and meaning",
        hierarchy="tree",
        instead="hybrid",
        others=("hybrid", "global"),
    ),
    "raptor": MethodKind(
        "raptor_search",
        ("embed", "answer"),
        "passages and summaries, by meaning",
        hierarchy="tree",
        instead="vector",
        others=("trex", "hybrid"),
        option=("traversal", "traversal"),
        modes=("collapsed", "tree"),
        reports=True,
    ),
    "lightrag": MethodKind(
        "lightrag_search",
        ("embed", "keywords", "answer"),
        "what its keywords are near to in the graph",
        graph=True,
        others=("hybrid", "global"),
        option=("mode", "lightrag_mode"),
        modes=("local", "global", "hybrid", "mix"),
        by_replies=True,
    ),
    "auto": MethodKind(
        "auto_search",
        ("embed", "answer", "map", "reduce"),
        "what one of these reads",
        dynamic=True,
        by_replies=True,
    ),
    "none": MethodKind("zero_shot", ("answer",), "nothing", baseline=True),
}
"""By the name that users give them."""

MODES: Mapping[str, tuple[str, ...]] = {kind.option[0]: kind.modes for kind in METHODS.values() if kind.modes}
"""By what a question names to choose one."""

if TYPE_CHECKING:
    LightragMode: TypeAlias = str
    Traversal: TypeAlias = str
else:  # so that what is none of them is refused with all that are
    LightragMode, Traversal = Literal[MODES["mode"]], Literal[MODES["traversal"]]

OFFERED = tuple(name for name, kind in METHODS.items() if not kind.baseline)
"""Those by which an index can be asked."""


def method(name: str) -> Callable[[Question, Given], Method]:
    """Raises UsageError for a name that there is not."""
    found: Callable[[Question, Given], Method] = import_module(
        f"graphrag_ray.query.methods.{_kind(name).file}"
    ).search
    return found


def without_reports() -> list[str]:
    """Those that an index of names alone can be asked by."""
    return [name for name in OFFERED if not METHODS[name].reports]


def stages(name: str, dynamic: bool = False, following: bool = False) -> list[str]:
    """The stages whose models a question asks. following: it leans on earlier ones."""
    own = _kind(name)
    more = [*(["rate"] if dynamic and own.dynamic else []), *(["condense"] if following else [])]
    return [*own.asks, *more]


def check(name: str, level: str | int | None, where: Sequence[str], baselines: bool = False) -> None:
    """Raises UsageError for what a method cannot do, and for one that there is not. baselines: these may be
    asked, too."""
    own = _kind(name)
    if own.baseline and not baselines:
        raise UsageError(
            f"method {name} reads {own.reads}: it is a baseline to compare others with, in `graphrag-ray "
            f"evaluate` alone (--condition {name}={name}). An index is asked by {', '.join(OFFERED)}"
        )
    if level is not None and not own.levels:
        with_levels = [n for n, m in METHODS.items() if m.levels]
        raise UsageError(f"{name} search has no levels; {_listed(with_levels)} search have")
    if where and own.instead:
        can = [n for n in OFFERED if not METHODS[n].instead]
        raise UsageError(
            f"{name} search cannot be restricted to some documents ({where[0][:MOST_TOLD]!r}): "
            f"{_listed(can)} search can. What it reads is written from many documents; nearest to "
            f"it under the same conditions is {own.instead} search (--method {own.instead})"
        )


def check_modes(name: str, asked: Mapping[str, object]) -> None:
    """Raises UsageError where a question has an option that is another method's. asked: by option."""
    for other, kind in METHODS.items():
        option = kind.option[0]
        if option and asked.get(option) is not None and _kind(name).option != kind.option:
            raise UsageError(f"{option} is for {other} search{_modes(kind)}; {name} search has no use for it")


def _modes(kind: MethodKind) -> str:
    return f" ({', '.join(kind.modes)})" if kind.modes else ""


def _kind(name: str) -> MethodKind:
    if name not in METHODS:
        raise UsageError(f"there is no method {name[:MOST_TOLD]!r}; there are {', '.join(OFFERED)}")
    return METHODS[name]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
