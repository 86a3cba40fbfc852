"""Extension points: the plugins of this package and of other installed packages.

Search methods, document readers, model providers and exporters are entry points. A package adds one in its
own `pyproject.toml`:

    [project.entry-points."graphrag_ray.methods"]
    passages = "my_package.passages:METHOD"

Built-in plugins have the same form but are listed in code, so that a checkout works without installation.
Plugins are imported on first use.
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
    """A plugin cannot be used. The message names the plugin and the package that provides it."""


class Registry(Generic[T]):
    """The plugins of one entry-point group, by name.

    Args:
        group: Entry-point group, such as `graphrag_ray.methods`.
        noun: What messages call a plugin, such as "search method".
        kind: The class that each plugin must be an instance of.
        builtins: "module:attribute" of each built-in plugin, by name, in the order to list them.
    """

    def __init__(self, group: str, noun: str, kind: type[T], builtins: Mapping[str, str]) -> None:
        self.group, self.noun, self._kind = group, noun, kind
        self._builtins = {name: EntryPoint(name, value, group) for name, value in builtins.items()}
        self._loaded: dict[str, T] = {}

    @cached_property
    def _entries(self) -> dict[str, list[EntryPoint]]:
        entries: dict[str, list[EntryPoint]] = {name: [entry] for name, entry in self._builtins.items()}
        for entry in sorted(entry_points(group=self.group), key=lambda e: (e.name, _package(e), e.value)):
            if entry.value not in [known.value for known in entries.get(entry.name, [])]:
                entries.setdefault(entry.name, []).append(entry)
        return entries

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names: first built-in plugins, then the plugins of other packages, sorted."""
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._builtins or name in self._entries

    def package_of(self, name: str) -> str:
        """Return `my-package 1.2` for a plugin of another package, or "" for a built-in or unknown name."""
        entries = [] if name in self._builtins else self._entries.get(name, [])
        return _package(entries[0]) if entries else ""

    def __getitem__(self, name: str) -> T:
        """Import a plugin. A built-in plugin shadows others of the same name, with a warning.

        Raises:
            PluginError: The name is unknown or invalid, two packages provide it, or the plugin cannot be
                imported or is not an instance of the group's class.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        entries = self._entries.get(name)
        if not entries:
            raise PluginError(f"Unknown {self.noun} {name[:100]!r}. Choose from: {', '.join(self)}")
        entry, is_builtin = entries[0], name in self._builtins
        what = f"The {self.noun} {name!r}"
        if len(entries) > 1:
            rival = f"the package {_package(entries[1])}"
            if not is_builtin:
                raise PluginError(
                    f"{what} is provided by both the package {_package(entry)} and {rival}. Uninstall one"
                )
            _LOG.warning("%s is built in; ignoring the one from %s (%s)", what, rival, entries[1].value)
        what += " (built in)" if is_builtin else f" from the package {_package(entry)} ({entry.value})"
        if not _NAME.fullmatch(name):
            raise PluginError(
                f"{what} has an invalid name. Use a letter followed by up to 39 of a-z, 0-9, '_', '-' and '.'"
            )
        try:
            loaded: Any = entry.load()
        except Exception as e:  # a third-party module may raise anything
            if is_builtin:
                raise
            raise PluginError(f"{what} cannot be imported: {type(e).__name__}: {e}") from e
        if not isinstance(loaded, self._kind):
            kind = f"{self._kind.__module__}.{self._kind.__qualname__}"
            raise PluginError(f"{what} must be an instance of {kind}, not {type(loaded).__qualname__}")
        return loaded


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "graphrag-ray"
