"""graphrag-ray: GraphRAG on Ray, for corpora that outgrow one process.

from graphrag_ray import build_index, open_index

build_index("./documents", "s3://bucket/index")
index = open_index("s3://bucket/index")
print(index.ask("What are the main themes?").text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphrag_ray.asking.ask import open_index
    from graphrag_ray.indexing.build import build_index

__all__ = ["build_index", "open_index"]


def __getattr__(name: str) -> Any:
    # Lazy: workers import this package for every task and need none of it.
    if name == "open_index":
        from graphrag_ray.asking.ask import open_index

        return open_index
    if name == "build_index":
        from graphrag_ray.indexing.build import build_index

        return build_index
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
