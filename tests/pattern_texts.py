"""Texts that make a regular expression slow if that is possible, built from the expression itself.

For each unbounded repetition, a text starts with what the pattern needs before it, repeats what the
repetition matches, and ends with characters that hardly any pattern expects. Characters that several classes
accept come first, because neighbouring repetitions that share one try every way to divide it between them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import regex

SAMPLES = "a_0 \nA!."
"""One character of each category, to try for classes that name none."""
ENDING = "!\x00"
LONG = 16
"""Repetitions that are bounded below this are not repeated."""
UNITS = 5
"""Texts that are tried for one repetition."""

Node = tuple[Any, Any]

_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_ONE_CHARACTER = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)


def growing(pattern: str, flags: int = 0) -> list[Callable[[int], str]]:
    """Functions that make texts of about a given length."""
    found = []
    for before, unit in _repetitions(_parser.parse(pattern, flags)):

        def once(length: int, before: str = before, unit: str = unit) -> str:
            return before + unit * (length // len(unit)) + ENDING

        def again(length: int, unit: str = before + unit) -> str:
            return unit * (length // len(unit)) + ENDING

        found += [once, again] if before else [once]
    return found


def patterns_of(module: ModuleType) -> dict[str, re.Pattern[str]]:
    """The patterns in a module and those that it passes to functions of `re`, by text."""
    found = {p.pattern: p for p in _compiled(vars(module).values()) if _can_be_parsed(p.pattern)}
    with open(str(module.__file__), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name("re" | "regex")), [ast.Constant(str(text)), *_]):
                if _can_be_parsed(text):
                    found.setdefault(text, re.compile(text))
    return found


def _compiled(values: Iterable[Any], depth: int = 2) -> Iterator[Any]:
    for value in values:
        if isinstance(value, re.Pattern | regex.Pattern) and isinstance(value.pattern, str):
            yield value
        elif depth and isinstance(value, list | tuple | set | frozenset):
            yield from _compiled(value, depth - 1)
        elif depth and isinstance(value, Mapping):
            yield from _compiled(value.values(), depth - 1)


def _can_be_parsed(pattern: str) -> bool:
    """Whether `re` can parse it: some syntax, such as \\X, is known only to the `regex` module."""
    try:
        _parser.parse(pattern)
    except re.error:
        return False
    return True


def _repetitions(pattern: Iterable[Node]) -> dict[tuple[str, str], None]:
    """What comes before each unbounded repetition, and what it matches."""
    classes = list(_classes(pattern))
    alphabet = {*SAMPLES, *(c for one in classes for c in _named(one))}
    wide = [one for one in classes if one[0] is not sre.LITERAL]
    likeliest = sorted(alphabet, key=lambda c: (-sum(_accepts(one, c) for one in wide), c))
    found: dict[tuple[str, str], None] = {}
    groups: list[dict[int, str]] = [{}, {}]

    def walk(nodes: Iterable[Node], befores: list[str]) -> None:
        for kind, value in nodes:
            if kind in _REPEATS and value[1] >= LONG:
                examples = (_example(value[2], likeliest, n, groups[n % 2]) for n in range(2 * UNITS))
                for unit in islice(dict.fromkeys(filter(None, examples)), UNITS):
                    found.update(dict.fromkeys((before, unit) for before in befores))
            for part in _parts(kind, value):
                walk(part, befores)
            befores = [b + _example([(kind, value)], likeliest, n, groups[n]) for n, b in enumerate(befores)]

    walk(pattern, ["", ""])
    return found


def _example(nodes: Iterable[Node], alphabet: list[str], choice: int, groups: dict[int, str]) -> str:
    """A text that these nodes match; other choices use other characters, branches and options.

    `groups` has what earlier groups matched, and is extended.
    """
    text = ""
    for kind, value in nodes:
        if kind in _ONE_CHARACTER:
            accepted = [c for c in alphabet if _accepts((kind, value), c)] or [""]
            text += accepted[choice % len(accepted)]
        elif kind in _REPEATS:
            least, most, body = value
            text += _example(body, alphabet, choice, groups) * max(least, min(most, choice % 2))
        elif kind is sre.GROUPREF:
            text += groups.get(value, "")
        elif kind is sre.ASSERT_NOT or (kind is sre.ASSERT and value[0] > 0):
            continue
        elif parts := _parts(kind, value):
            part = _example(parts[choice % len(parts)], alphabet, choice, groups)
            if kind is sre.SUBPATTERN and value[0] is not None:
                groups[value[0]] = part
            text += part
    return text


def _parts(kind: Any, value: Any) -> list[Any]:
    if kind in _REPEATS:
        return [value[2]]
    if kind is sre.SUBPATTERN:
        return [value[-1]]
    if kind is sre.ATOMIC_GROUP:
        return [value]
    if kind is sre.BRANCH or kind in (sre.ASSERT, sre.ASSERT_NOT):
        return list(value[1]) if kind is sre.BRANCH else [value[1]]
    return []


def _classes(nodes: Iterable[Node]) -> Iterator[Node]:
    for kind, value in nodes:
        if kind in _ONE_CHARACTER:
            yield kind, value
        for part in _parts(kind, value):
            yield from _classes(part)


def _named(one: Node) -> list[str]:
    """Characters that a class names explicitly."""
    kind, value = one
    if kind is sre.IN:
        return [c for item in value for c in _named(item)]
    if kind is sre.RANGE:
        return [chr(value[0])]
    return [chr(value)] if kind in (sre.LITERAL, sre.NOT_LITERAL) else []


def _accepts(one: Node, character: str) -> bool:
    kind, value = one
    if kind is sre.IN:
        negated = value[0][0] is sre.NEGATE
        return negated != any(_accepts(item, character) for item in value[negated:])
    if kind is sre.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if kind is sre.CATEGORY:
        return re.match(_CATEGORIES[value], character) is not None
    if kind is sre.ANY:
        return character != "\n"
    return (ord(character) == value) == (kind is sre.LITERAL)
