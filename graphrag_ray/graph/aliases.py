"""Aliases and blocked names, with which users correct the exact matching of entity names.

Both apply to entity keys (`ids.entity_key`) before the merge, so all aliases of an entity merge under one
key. Raw replies are stored, so changing the alias file causes no model calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.ids import entity_key


@dataclass(frozen=True, slots=True)
class EntityNames:
    """Resolved aliases and the block list."""

    aliases: Mapping[str, str] = field(default_factory=dict)  # entity key -> canonical key (not an alias)
    blocked: frozenset[str] = frozenset()  # entity keys that never become entities
    different: frozenset[tuple[str, str]] = frozenset()  # pairs of keys, ascending, that are never merged
    by_document: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (document id, key) -> key
    unsplit: frozenset[str] = frozenset()  # keys that a model never splits

    @property
    def canonical(self) -> frozenset[str]:
        """The names that the user chose for entities."""
        return frozenset([*self.aliases.values(), *self.by_document.values()])

    def key(self, name: str) -> str | None:
        """Return the key of a name as written, or None if it is empty or blocked."""
        return self.resolve(entity_key(name))

    def resolve(self, key: str) -> str | None:
        """Like `key`, for an entity key. `entity_key` unescapes HTML, so it must not be applied twice."""
        canonical = self.aliases.get(key, key)
        if not canonical or key in self.blocked or canonical in self.blocked:
            return None
        return canonical

    def to_json(self) -> str:
        """Return a canonical JSON text for the fingerprint of a step."""
        return json.dumps([dict(self.aliases), sorted(self.blocked)], sort_keys=True)


def parse_names(aliases_yaml: str | None, blocked_text: str | None) -> EntityNames:
    """Parse an alias file and a block list.

    Args:
        aliases_yaml: YAML `CANONICAL NAME: [alias, …]`. A single alias needs no brackets. Chains of aliases
            are resolved.
        blocked_text: One name per line. Empty lines and lines that start with # are skipped. Any other # is
            part of the name (C#).

    Raises:
        SettingsError: If the YAML is malformed, an alias has two canonical names, or aliases form a cycle.
    """
    aliases: dict[str, str] = {}
    for canonical, alias, line in _alias_pairs(aliases_yaml or ""):
        key, target = entity_key(alias), entity_key(canonical)
        if not key or not target:
            raise SettingsError(f"Aliases file, line {line}: empty name")
        if key != target and aliases.setdefault(key, target) != target:
            raise SettingsError(
                f"Aliases file, line {line}: {key!r} is an alias of both {aliases[key]!r} and {target!r}"
            )
    lines = (line.strip() for line in (blocked_text or "").splitlines())
    blocked = frozenset(entity_key(line) for line in lines if line and not line.startswith("#"))
    resolved = {}
    for alias in aliases:
        path = [alias]
        while path[-1] in aliases:
            path.append(aliases[path[-1]])
            if path[-1] in path[:-1]:
                raise SettingsError(f"Aliases file: aliases form a cycle: {' -> '.join(map(repr, path))}")
        resolved[alias] = path[-1]
    return EntityNames(resolved, blocked - {""})


def _alias_pairs(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (canonical name, alias, line).

    Reads YAML nodes rather than values, so that names such as NO or 1984 remain text and repeated canonical
    names do not overwrite each other.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as e:
        raise SettingsError(f"The aliases file is not valid YAML: {e}") from e
    if root is None:
        return
    usage = "write it as `CANONICAL NAME: [alias, …]`"
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"The aliases file is not a mapping: {usage}")
    for name, value in root.value:
        aliases = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for node in (name, *aliases):
            if not isinstance(node, yaml.ScalarNode):
                raise SettingsError(f"Aliases file, line {node.start_mark.line + 1}: {usage}")
        for alias in aliases:
            yield name.value, alias.value, alias.start_mark.line + 1
