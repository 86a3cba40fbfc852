"""The answer to the question what the corpus is about: some titles, and the names that are linked most."""

from __future__ import annotations

from collections.abc import Mapping

from graphrag_ray.graph.about_corpus import NONE

SHOWN = 3
SHOWN_NAMES = 6


def about(variables: Mapping[str, str]) -> str:
    """One or two plain sentences; "" where there is neither title nor name."""
    titles, entities = _lines(variables["titles"]), _lines(variables["entities"])
    names = [line.partition(": ")[0] for line in entities]
    said = [
        f"Documents such as {_listed([f'“{t}”' for t in titles[:SHOWN]])}." if titles else "",
        f"The names that are linked most are {_listed(names[:SHOWN_NAMES])}." if names else "",
    ]
    return " ".join(filter(None, said))


def _lines(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.split("\n") if line and line != NONE]


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
