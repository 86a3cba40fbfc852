"""Command lines that cannot be run, and what they say all the same: where it is to be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import click

from graphrag_ray.base.errors import UsageError


class Misread:
    """The words of a command line, and why it is refused.

    error   to be told where the line says
    """

    def __init__(self, words: Sequence[str], error: click.UsageError | UsageError) -> None:
        self.error = error if isinstance(error, UsageError) else UsageError(error.format_message())
        self._words = [*takewhile(lambda word: word != "--", words), "--", "--"]
        # Of click's errors only that of words too many has no kind of its own.
        self._crowded = type(error) is click.UsageError

    def values(self, option: str) -> tuple[str, ...]:
        """Of an option, in order. Raises `error` where one of them is in doubt: it is empty, or an option
        itself; or words are too many and one follows it, so that it may be half a name with a blank in it."""
        found = []
        for value, after in self._given(option):
            cut = self._crowded and not after.startswith("-")
            if cut or not value.strip() or value.startswith("-"):
                raise self.error
            found.append(value)
        return tuple(found)

    def value(self, option: str) -> str | None:
        """Of an option that is given once, and names a place: a path that another word follows may be half a
        name, too. Raises as `values`; `error` where it is given several ones."""
        found = set(self.values(option))
        paths = [after for value, after in self._given(option) if "://" not in value]
        if len(found) > 1 or not all(after.startswith("-") for after in paths):
            raise self.error
        return next(iter(found), None)

    def _given(self, option: str) -> Iterator[tuple[str, str]]:
        """Each of its values, with the word after it."""
        for word, second, third in zip(self._words, self._words[1:], self._words[2:], strict=False):
            name, sep, value = word.partition("=")
            if name == option:
                yield (value, second) if sep else (second, third)
