"""Aliases and blocked names, with which users correct which names stand for the same thing.

They apply to entity keys (`ids.entity_key`) and take precedence over entity resolution
(`indexing/stages/resolve_stage.py`). Raw replies are stored, so changing the aliases file costs model calls
only for descriptions and reports that change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.ids import document_id, entity_key
from graphrag_ray.base.yaml_errors import yaml_errors


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

    @property
    def decisions(self) -> list[Any]:
        """Everything that only entity resolution uses, for the fingerprint of its step."""
        by_document = sorted([*key, title] for key, title in self.by_document.items())
        return [sorted(self.different), by_document, sorted(self.unsplit), sorted(self.canonical)]


def parse_names(aliases_yaml: str | None, blocked_text: str | None) -> EntityNames:
    """Parse an alias file and a block list.

    Args:
        aliases_yaml: YAML `CANONICAL NAME: [alias, …]`. A single alias needs no brackets. Chains of aliases
            are resolved. In place of an alias, `{not: NAME}` keeps two names apart, `{name: NAME, document:
            PATH}` is an alias in one document only (with `row: ID` in a row of a table file), and
            `{split: false}` keeps the name in one piece.
        blocked_text: One name per line. Empty lines and lines that start with # are skipped. Any other # is
            part of the name (C#).

    Raises:
        SettingsError: If the YAML is malformed, an alias has two canonical names, aliases form a cycle, names
            are aliases and different, or an alias in one document is blocked or an alias in all documents.
    """
    aliases: dict[str, str] = {}
    by_document: dict[tuple[str, str], str] = {}
    different: dict[tuple[str, str], int] = {}
    unsplit: set[str] = set()
    for canonical, entry, line in _entries(aliases_yaml or ""):
        target = entity_key(canonical)
        key = entity_key(entry.get("name") or entry.get("not") or "")
        if not target or not (key or "split" in entry):
            raise SettingsError(f"Aliases file, line {line}: empty name")
        where: dict[Any, str] = aliases
        place: Any = key
        if "split" in entry:
            unsplit.add(target)
            continue
        if "not" in entry:
            different.setdefault((min(key, target), max(key, target)), line)
            continue
        if "document" in entry:
            where, place = by_document, (document_id(entry["document"], entry.get("row", "")), key)
        if key != target and where.setdefault(place, target) != target:
            raise SettingsError(
                f"Aliases file, line {line}: {key!r} is an alias of both {where[place]!r} and {target!r}"
            )
    lines = (line.strip() for line in (blocked_text or "").splitlines())
    blocked = frozenset(entity_key(line) for line in lines if line and not line.startswith("#"))
    resolved = _resolved(aliases)
    kept_apart = set()
    for (a, b), line in different.items():
        first, second = sorted((resolved.get(a, a), resolved.get(b, b)))
        if first == second:
            raise SettingsError(f"Aliases file, line {line}: {a!r} and {b!r} are both aliases and different")
        kept_apart.add((first, second))
    in_document: dict[str, dict[str, str]] = {}
    for (document, key), target in by_document.items():
        if key in resolved and resolved[key] != resolved.get(target, target):
            raise SettingsError(
                f"Aliases file: {key!r} is an alias of {resolved[key]!r} in all documents, so it cannot be "
                f"one of {target!r} in a document"
            )
        if target in blocked:
            raise SettingsError(f"Aliases file: {key!r} is an alias of {target!r}, which is blocked")
        in_document.setdefault(document, {})[key] = target
    chosen = {
        (document, key): resolved.get(title, title)
        for document, found in in_document.items()
        for key, title in _resolved(found).items()
        if key not in resolved
    }
    return EntityNames(resolved, blocked - {""}, frozenset(kept_apart), chosen, frozenset(unsplit))


def _resolved(aliases: Mapping[str, str]) -> dict[str, str]:
    """Return the end of the chain of each alias. Raises SettingsError if aliases form a cycle."""
    ends: dict[str, str] = {}
    for alias in aliases:
        name, path = alias, dict[str, None]()
        while name in aliases and name not in ends:
            if name in path:
                names = " -> ".join(map(repr, [*path, name]))
                raise SettingsError(f"Aliases file: aliases form a cycle: {names}")
            path[name] = None
            name = aliases[name]
        ends |= dict.fromkeys(path, ends.get(name, name))
    return ends


def _entries(text: str) -> Iterator[tuple[str, Mapping[str, str], int]]:
    """Yield (canonical name, entry, line). An alias is an entry with only a name.

    Reads YAML nodes rather than values, so that names such as NO or 1984 remain text and repeated canonical
    names do not overwrite each other.
    """
    with yaml_errors("The aliases file"):
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return
    usage = "write it as `CANONICAL NAME: [alias, {not: NAME}, {name: NAME, document: PATH}, {split: false}]`"
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"The aliases file is not a mapping: {usage}")
    for name, value in root.value:
        aliases = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for node in (name, *aliases):
            line = node.start_mark.line + 1
            entry = _entry(node)
            if entry is None or (node is name and entry.keys() != {"name"}):
                raise SettingsError(f"Aliases file, line {line}: {usage}")
            if node is not name:
                yield name.value, entry, line


_ENTRY_KEYS = ({"name"}, {"not"}, {"split"}, {"name", "document"}, {"name", "document", "row"})


def _entry(node: yaml.Node) -> dict[str, str] | None:
    """Return the entry of a YAML node, or None if it is not one."""
    if isinstance(node, yaml.ScalarNode):
        return {"name": node.value}
    if not isinstance(node, yaml.MappingNode):
        return None
    scalars = [n for pair in node.value for n in pair if isinstance(n, yaml.ScalarNode)]
    entry = {key.value: value.value for key, value in zip(scalars[::2], scalars[1::2], strict=False)}
    if len(scalars) != 2 * len(node.value) or entry.keys() not in _ENTRY_KEYS:
        return None
    return entry if "split" not in entry or entry["split"].lower() == "false" else None
