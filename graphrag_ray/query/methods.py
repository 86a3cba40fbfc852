"""The ways of answering, by the name that users give them; each is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from graphrag_ray.errors import UsageError
from graphrag_ray.query.method import Given, Method, Question

DEFAULT = "global"

FILES: Mapping[str, str] = {
    "global": "global_search",
    "text": "text_search",
    "local": "local_search",
    "vector": "vector_search",
    "hybrid": "hybrid_search",
    "drift": "drift_search",
}
"""Name -> module of this room whose function `search` it is."""


def method(name: str) -> Callable[[Question, Given], Method]:
    """Raises UsageError for a name that there is not."""
    if name not in FILES:
        raise UsageError(f"there is no method {name!r}; there are {', '.join(FILES)}")
    found: Callable[[Question, Given], Method] = import_module(f"graphrag_ray.query.{FILES[name]}").search
    return found
