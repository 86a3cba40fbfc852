"""Extension points: what this package and other installed packages add by name.

Search methods, document readers, model providers and exporters are found through entry points. A package adds
one in its own `pyproject.toml`:

    [project.entry-points."graphrag_ray.methods"]
    passages = "my_package.passages:METHOD"

The built-in ones are entry points of the same form, listed in code so that a checkout works uninstalled.
Listing names imports nothing; a plug-in is imported when it is first used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from graphrag_ray.base.errors import UsageError

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}")


class PluginError(UsageError):
    """A plug-in cannot be used. The message names the plug-in and the package that provides it."""


class Registry(Generic[T]):
    """The plug-ins of one entry-point group, by name.

    Args:
        group: entry-point group, such as `graphrag_ray.methods`.
        noun: what one plug-in is called in messages, such as "search method".
        kind: the class that each plug-in object must be an instance of.
        builtins: name -> "module:attribute" of the built-in plug-ins, in the order in which they are listed.
    """

    def __init__(self, group: str, noun: str, kind: type[T], builtins: Mapping[str, str]) -> None:
        self.group, self.noun, self._kind = group, noun, kind
        self._builtins = {name: EntryPoint(name, value, group) for name, value in builtins.items()}
        self._loaded: dict[str, T] = {}

    @cached_property
    def _found(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {name: [entry] for name, entry in self._builtins.items()}
        for entry in sorted(entry_points(group=self.group), key=lambda e: (e.name, _package(e), e.value)):
            if entry.value not in [known.value for known in found.get(entry.name, [])]:
                found.setdefault(entry.name, []).append(entry)
        return found

    def __iter__(self) -> Iterator[str]:
        """All names: built-in ones first, then those of other packages, sorted."""
        return iter(self._found)

    def __contains__(self, name: object) -> bool:
        return name in self._builtins or name in self._found

    def package_of(self, name: str) -> str:
        """`my-package 1.2` for a plug-in of another package, "" for a built-in one or an unknown name."""
        entries = [] if name in self._builtins else self._found.get(name, [])
        return _package(entries[0]) if entries else ""

    def __getitem__(self, name: str) -> T:
        """Import a plug-in.

        Raises:
            PluginError: no plug-in has this name, two packages claim it, it cannot be imported, or it is not
                what its group asks for. A built-in plug-in wins over one of the same name, with a warning.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        entries = self._found.get(name)
        if not entries:
            known = ", ".join(self)
            raise PluginError(f"Unknown {self.noun} {name[:100]!r}. Choose from: {known}")
        entry, what = entries[0], f"The {self.noun} {name!r}"
        if len(entries) > 1:
            rival = f"the package {_package(entries[1])}"
            if name not in self._builtins:
                raise PluginError(
                    f"{what} comes from the package {_package(entry)} and from {rival}. Uninstall one"
                )
            _LOG.warning("%s is built in; the one of %s, %s, is ignored", what, rival, entries[1].value)
        source = (
            f"of the package {_package(entry)} ({entry.value})"
            if name not in self._builtins
            else "(built in)"
        )
        if not _NAME.fullmatch(name):
            raise PluginError(
                f"{what} {source} has a name that cannot be used: "
                f"use at most 40 of a-z, 0-9, '_', '-' and '.', beginning with a letter"
            )
        try:
            loaded: Any = entry.load()
        except Exception as e:  # whatever the module of a stranger raises while it is imported
            if name in self._builtins:
                raise
            raise PluginError(f"{what} {source} cannot be imported: {type(e).__name__}: {e}") from e
        if not isinstance(loaded, self._kind):
            raise PluginError(
                f"{what} {source} is no {self._kind.__module__}.{self._kind.__qualname__}: "
                f"it is a {type(loaded).__qualname__}"
            )
        return loaded


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "graphrag-ray"
