"""Finding names as people write them: in any case, with or without accents, and not quite right."""

from __future__ import annotations

import difflib
import heapq
import unicodedata
from collections.abc import Sequence

MIN_RATIO = 0.6
"""Of difflib: names that are less alike are not suggested."""
_COMPARED = 500
"""Names that difflib compares: those that share most trigrams, since it takes some 20 µs a name."""
_GRAM = 3
_CHARACTERS = 200
"""Of a name, as far as names are compared: difflib's time grows with the square."""


def fold(text: str) -> str:
    """A name without case, accents, compatibility forms and surplus white space: names that fold to the
    same read the same to most people."""
    if text.isascii():
        return " ".join(text.lower().split())
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


def containing(text: str, names: Sequence[str]) -> list[int]:
    """Places of the names that hold a text, folded: those that are it, then those that begin with it, then
    the others, each in the order given."""
    wanted = fold(text)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    for at, name in enumerate(names):
        folded = fold(name)
        if wanted in folded:
            found[0 if folded == wanted else 1 if folded.startswith(wanted) else 2].append(at)
    return [at for places in found for at in places]


def near(text: str, names: Sequence[str], n: int = 5) -> list[int]:
    """Places of at most n names that somebody who wrote this text may have meant, the likeliest first:
    names that hold it, then names that difflib finds alike."""
    held = containing(text, names)[:n] if fold(text) else []
    return list(dict.fromkeys([*held, *_alike(text, names, n)]))[:n]


def _alike(text: str, names: Sequence[str], n: int) -> list[int]:
    wanted = fold(text)[:_CHARACTERS]
    grams = {wanted[i : i + _GRAM] for i in range(max(1, len(wanted) - _GRAM + 1))}
    folded = [fold(name)[:_CHARACTERS] for name in names]
    shared = [sum(gram in name for gram in grams) for name in folded]
    likely = heapq.nlargest(_COMPARED, range(len(names)), key=lambda at: (shared[at], -at))
    places: dict[str, list[int]] = {}
    for at in likely:
        places.setdefault(folded[at], []).append(at)
    matches = difflib.get_close_matches(wanted, places, n, MIN_RATIO)
    return [at for match in matches for at in places[match]][:n]
