"""Aliases and blocked names: what a person knows about names that exact string matching cannot.

Both act on the entity key (`ids.entity_key`) and nowhere else: whatever a model wrote, the merge sees
one key per name. Since raw replies are kept, a changed alias file costs no call to a model.
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
    """aliases: entity key -> canonical entity key, no canonical key being an alias itself;
    blocked: entity keys that never become entities."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()

    def key(self, name: str) -> str | None:
        """The key of a name as written; None where it is empty or blocked."""
        return self.resolve(entity_key(name))

    def resolve(self, key: str) -> str | None:
        """The same for what is an entity key already (`entity_key` is not to be applied twice: it
        unescapes HTML)."""
        canonical = self.aliases.get(key, key)
        if not canonical or key in self.blocked or canonical in self.blocked:
            return None
        return canonical

    def to_json(self) -> str:
        """The same text for the same names: what a step's result depends on."""
        return json.dumps([dict(self.aliases), sorted(self.blocked)], sort_keys=True)


def parse_names(aliases_yaml: str | None, blocked_text: str | None) -> EntityNames:
    """Read the texts of an alias file and of a block list.

    aliases_yaml    YAML `CANONICAL NAME: [alias, …]`; one alias may stand without the brackets. An
                    alias may be the canonical name of further ones: these resolve to the end of the chain
    blocked_text    one name a line; empty lines and lines that start with # are skipped (a # further
                    on belongs to the name: C#)

    Raises SettingsError, naming the alias, for what is not such YAML, for an alias with two canonical
    names, and for aliases that lead back to themselves.
    """
    aliases: dict[str, str] = {}
    for canonical, alias, line in _alias_pairs(aliases_yaml or ""):
        key, target = entity_key(alias), entity_key(canonical)
        if not key or not target:
            raise SettingsError(f"aliases file, line {line}: an empty name")
        if key == target:
            continue
        if aliases.setdefault(key, target) != target:
            raise SettingsError(
                f"aliases file, line {line}: {key!r} is an alias of both {aliases[key]!r} and {target!r}"
            )
    lines = (line.strip() for line in (blocked_text or "").splitlines())
    blocked = frozenset(entity_key(line) for line in lines if line and not line.startswith("#"))
    ends = {}
    for alias in aliases:
        path = [alias]
        while path[-1] in aliases:
            path.append(aliases[path[-1]])
            if path[-1] in path[:-1]:
                circle = " -> ".join(repr(p) for p in path)
                raise SettingsError(f"aliases file: {alias!r} leads in a circle: {circle}")
        ends[alias] = path[-1]
    return EntityNames(ends, blocked - {""})


def _alias_pairs(text: str) -> Iterator[tuple[str, str, int]]:
    """(canonical name, alias, line). Read from YAML's nodes rather than its values: a name such as NO
    or 1984 stays what is written, and a canonical name that stands twice loses nothing."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as e:
        raise SettingsError(f"aliases file is not YAML: {e}") from e
    if root is None:
        return
    shape = "write it as `CANONICAL NAME: [alias, …]`"
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"aliases file is not a mapping: {shape}")
    for name, value in root.value:
        aliases = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for node in (name, *aliases):
            if not isinstance(node, yaml.ScalarNode):
                raise SettingsError(f"aliases file, line {node.start_mark.line + 1}: {shape}")
        for alias in aliases:
            yield name.value, alias.value, alias.start_mark.line + 1
