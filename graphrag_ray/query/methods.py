"""The ways of answering, by the name that users give them; each is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.method import Given, Method, Question

DEFAULT = "global"

FILES: Mapping[str, str] = {
    "global": "global_search",
    "text": "text_search",
    "local": "local_search",
    "vector": "vector_search",
    "hybrid": "hybrid_search",
    "drift": "drift_search",
    "auto": "auto_search",
}
"""Name -> module of this room whose function `search` it is."""

ASKED: Mapping[str, tuple[str, ...]] = {
    "global": ("map", "reduce"),
    "text": ("map", "reduce"),
    "local": ("embed", "answer"),
    "vector": ("embed", "answer"),
    "hybrid": ("embed", "answer"),
    "drift": ("embed", "drift", "reduce"),
    "auto": ("embed", "answer", "map", "reduce"),
}
"""Name -> stages whose models it asks, beside those of `stages`."""

MOST_TOLD = 100
"""Characters of a condition that a message repeats."""
WITH_LEVELS = ("global", "local", "drift")
"""Methods that read reports of a level."""
WITH_DYNAMIC = ("global", "auto")
"""Methods that may select reports by rating them, where the settings say so."""
WITH_CONDITIONS = ("vector", "hybrid", "local", "text", "auto")
"""Methods that read chunks, so that conditions on documents can restrict them."""
INSTEAD: Mapping[str, str] = {"global": "text", "drift": "local"}
"""What answers most alike, of those that conditions can restrict."""


def method(name: str) -> Callable[[Question, Given], Method]:
    """Raises UsageError for a name that there is not."""
    if name not in FILES:
        raise UsageError(f"there is no method {name!r}; there are {', '.join(FILES)}")
    found: Callable[[Question, Given], Method] = import_module(f"graphrag_ray.query.{FILES[name]}").search
    return found


def stages(name: str, dynamic: bool = False, following: bool = False) -> list[str]:
    """The stages whose models a question asks. following: it leans on earlier ones."""
    more = [*(["rate"] if dynamic and name in WITH_DYNAMIC else []), *(["condense"] if following else [])]
    return [*ASKED[name], *more]


def check(name: str, level: str | int | None, where: Sequence[str]) -> None:
    """Raises UsageError for what a method cannot do: it is refused, not passed over."""
    if level is not None and name not in WITH_LEVELS:
        raise UsageError(f"{name} search has no levels; {_listed(WITH_LEVELS)} search have")
    if where and name not in WITH_CONDITIONS:
        raise UsageError(
            f"{name} search cannot be restricted to some documents ({where[0][:MOST_TOLD]!r}): "
            f"{_listed(WITH_CONDITIONS)} search can. Its reports are written from many documents; nearest to "
            f"it under the same conditions is {INSTEAD[name]} search (--method {INSTEAD[name]})"
        )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
