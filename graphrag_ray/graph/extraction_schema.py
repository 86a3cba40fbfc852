"""The schema of a graph: which types of entities and relationships extraction may find.

A schema is YAML or JSON, in our form or that of a `GraphSchema` of Neo4j GraphRAG. It may come from a
stranger, so its size is limited. YAML anchors cannot make it larger, and cycles cannot trap the reader,
because it only descends where a schema has something.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import yaml

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.messages import join_surrogates
from graphrag_ray.base.yaml_errors import yaml_errors

MAX_CHARACTERS = 200_000
MAX_TYPES = 300
"""Maximum number of entity types, and of relation types. More would not fit into a request."""
MAX_PATTERNS = 3_000
MAX_LISTED = 50
"""Maximum number of attributes and of examples of a type."""
MAX_NAME_CHARACTERS = 80
MAX_TEXT_CHARACTERS = 1_000
MAX_REQUEST_CHARACTERS = 60_000
"""Maximum length of the types as a request lists them, which is about 15,000 tokens."""

ANY = "any"  # how requests and messages name an end that may have every type

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SEPARATORS = re.compile(r"[\s_\-\u2010-\u2015]+")
_NOT_IN_NAMES = re.compile(r"[,;:<>|()\[\]{}\"#]")


@dataclass(frozen=True, slots=True)
class EntityType:
    name: str  # upper case
    description: str = ""
    attributes: tuple[tuple[str, str], ...] = ()  # name, description
    examples: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The type as requests list it."""
        attributes = (f"{name} ({text})" if text else name for name, text in self.attributes)
        lists = (("Attributes", ", ".join(attributes)), ("Examples", "; ".join(self.examples)))
        return _line(self.name, self.description, *(f"{label}: {text}" for label, text in lists if text))


@dataclass(frozen=True, slots=True)
class RelationType:
    name: str  # upper case
    description: str = ""
    patterns: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Allowed types of the source and of the target. () allows all types, and so does a relation without
    patterns."""

    @property
    def ends(self) -> str:
        """The allowed ends: `DRUG → DISEASE or SYMPTOM; DEVICE → any`."""
        ends = (" → ".join(" or ".join(types) or ANY for types in pattern) for pattern in self.patterns)
        return "; ".join(ends) or f"{ANY} → {ANY}"

    @property
    def line(self) -> str:
        return _line(f"{self.name} ({self.ends})", self.description)

    def fits(self, source: Collection[str], target: Collection[str]) -> bool:
        """Whether a pattern allows ends with any of these types. An end without a type fits every pattern."""
        return not self.patterns or any(
            all(
                not allowed or not types or not set(types).isdisjoint(allowed)
                for allowed, types in zip(pattern, (source, target), strict=True)
            )
            for pattern in self.patterns
        )


@dataclass(frozen=True)
class ExtractionSchema:
    """Types of entities and relationships.

    Attributes:
        relations: Without any, relationships have no type.
        open_entities, open_relations: Whether other types are allowed.
        open_patterns: Whether relations may connect other types than their patterns.
    """

    entities: tuple[EntityType, ...]
    relations: tuple[RelationType, ...] = ()
    open_entities: bool = False
    open_relations: bool = False
    open_patterns: bool = False

    @cached_property
    def _by_key(self) -> tuple[Mapping[str, EntityType], Mapping[str, RelationType]]:
        return {type_key(t.name): t for t in self.entities}, {type_key(r.name): r for r in self.relations}

    def entity_type(self, name: str) -> EntityType | None:
        """Look up a type by its name in any case and width, with spaces, hyphens or underscores."""
        return self._by_key[0].get(type_key(name))

    def relation_type(self, name: str) -> RelationType | None:
        return self._by_key[1].get(type_key(name))


def type_key(name: str) -> str:
    """Normalise the name of a type, so that "Adverse event" equals ADVERSE_EVENT."""
    # Longer texts are no names, and NFKC could make them longer still.
    key = unicodedata.normalize("NFKC", entity_key(name[: 4 * MAX_NAME_CHARACTERS]))
    return fold_spelling(key).strip("_.,;:()[]'\"`*")


def fold_spelling(name: str) -> str:
    """Return a name in upper case, with underscores for spaces and hyphens."""
    return _SEPARATORS.sub("_", name.upper())


def parse_schema(text: str) -> ExtractionSchema:
    """Parse and check a schema. Raises SettingsError with the line and what to do.

    Ours: `entities: {NAME: {description, attributes, examples}}`,
    `relations: {NAME: {description, from, to}}`, `patterns: [[SOURCE, RELATION, TARGET]]`,
    `open: true | false`. A list of names may replace a mapping, and a text one with only a description.

    Neo4j's: `node_types: [{label, description, properties}]`, `relationship_types`, `patterns`,
    `additional_node_types`, `additional_relationship_types`, `additional_patterns`; constraints are ignored.
    """
    if len(text) > MAX_CHARACTERS:
        raise SettingsError(
            f"The schema has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are allowed. Keep the "
            "types that your questions are about."
        )
    with yaml_errors("The schema"):
        root = yaml.compose(join_surrogates(text), Loader=yaml.SafeLoader)
    fields = {} if root is None or _is_null(root) else _mapping(root, _TOP_LEVEL)
    entities = _declared(fields, "entities", _ENTITY)
    if not entities:
        raise SettingsError(
            "The schema declares no entity type. Declare at least one under `entities:`. See the page 'Use a "
            "schema' of the documentation."
        )
    relations = _declared(fields, "relations", _RELATION)
    patterns: dict[str, dict[tuple[tuple[str, ...], tuple[str, ...]], None]] = {}
    for key, (_, body, _) in relations.items():
        ends = [_list(body.get(end), MAX_TYPES, "types") for end in ("from", "to")]
        source, target = (
            tuple(dict.fromkeys(_known(node, entities, "entity type") for node in nodes)) for nodes in ends
        )
        patterns[key] = {(source, target): None} if source or target else {}
    for node in _list(fields.get("patterns"), MAX_PATTERNS, "patterns"):
        first, relation, last = _pattern(node)
        name = type_key(_known(relation, relations, "relation"))
        of_pattern = ((_known(end, entities, "entity type"),) for end in (first, last))
        patterns[name][next(of_pattern), next(of_pattern)] = None
    is_open = _flag(fields, "open", False)
    schema = ExtractionSchema(
        tuple(_entity_type(name, body) for name, body, _ in entities.values()),
        tuple(
            RelationType(name, _description(body), tuple(patterns[key]))
            for key, (name, body, _) in relations.items()
        ),
        _flag(fields, "additional_node_types", is_open),
        _flag(fields, "additional_relationship_types", is_open),
        _flag(fields, "additional_patterns", is_open),
    )
    n = sum(map(len, [*(t.line for t in schema.entities), *(r.line for r in schema.relations)]))
    if n > MAX_REQUEST_CHARACTERS:
        raise SettingsError(
            f"The types of the schema take {n:,} characters in every request, but at most "
            f"{MAX_REQUEST_CHARACTERS:,} are allowed. Shorten their descriptions or remove types."
        )
    return schema


_Body = Mapping[str, yaml.Node]

# Keys of a schema, and what they mean. "" is ignored.
_TOP_LEVEL = {
    **{name: name for name in ("entities", "relations", "patterns", "open")},
    **{"node_types": "entities", "relationship_types": "relations", "constraints": ""},
    **{f"additional_{n}": f"additional_{n}" for n in ("node_types", "relationship_types", "patterns")},
}
_DESCRIPTION = {"description": "description"}
_ENTITY = _DESCRIPTION | {"attributes": "attributes", "examples": "examples", "properties": "attributes"}
_RELATION = _DESCRIPTION | {"from": "from", "to": "to", "properties": ""}
_ATTRIBUTE = _DESCRIPTION | {"type": "", "required": ""}
_IGNORED = "additional_properties"
_PATTERN = {name: name for name in ("source", "relationship", "target")}
_LABELS = ("label", "name")


def _fail(node: yaml.Node, problem: str) -> NoReturn:
    raise SettingsError(f"Schema, line {node.start_mark.line + 1}: {problem}")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


def _text(node: yaml.Node, limit: int = MAX_TEXT_CHARACTERS) -> str:
    if not isinstance(node, yaml.ScalarNode):
        _fail(node, "expected a text")
    if _is_null(node):
        return ""
    text = " ".join(_CONTROL.sub(" ", join_surrogates(node.value)).split())
    if len(text) > limit:
        _fail(node, f"the text has {len(text):,} characters; shorten it to {limit:,}")
    if "<|" in text or "|>" in text:
        _fail(node, "remove <| and |>, which separate the fields of records")
    return text


def _name(node: yaml.Node) -> str:
    """Read the name of a type. The text is kept: NO and 1984 are names."""
    value = node.value if isinstance(node, yaml.ScalarNode) else None
    name = entity_key(value[: 4 * MAX_NAME_CHARACTERS]) if value and not _is_null(node) else ""
    if not name or not type_key(name):
        _fail(node, "expected the name of a type")
    if len(name) > MAX_NAME_CHARACTERS:
        _fail(node, f"the name is longer than {MAX_NAME_CHARACTERS} characters; move the rest to description")
    if found := _NOT_IN_NAMES.search(name):
        _fail(node, f"remove {found[0]!r} from the name {name!r}")
    return name


def _known(node: yaml.Node, declared: Mapping[str, tuple[str, _Body, int]], kind: str) -> str:
    """Return the declared name of a type."""
    if known := declared.get(type_key(_name(node))):
        return known[0]
    names = [name for name, _, _ in declared.values()]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    listed = f"choose from: {', '.join(names[:8])}{more}" if names else f"remove this; no {kind} is declared"
    _fail(node, f"{_text(node)!r} is not a declared {kind}. Declare it, or {listed}")


def _list(
    node: yaml.Node | None, limit: int, what: str, kind: type[yaml.Node] = yaml.SequenceNode
) -> list[Any]:
    """Return the members of a list or of another kind of node. A single value needs no brackets."""
    if node is None or _is_null(node):
        return []
    values: list[Any] = node.value if isinstance(node, kind) else [node]
    if len(values) > limit:
        _fail(node, f"{len(values):,} {what}, but at most {limit:,} are allowed. Keep the important ones")
    return values


def _mapping(node: yaml.Node, keys: Mapping[str, str]) -> dict[str, yaml.Node]:
    """Return the values of a mapping by what their keys mean."""
    known = ", ".join(keys)
    if not isinstance(node, yaml.MappingNode):
        _fail(node, f"expected a mapping with some of the keys {known}")
    values: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        meaning = "" if name == _IGNORED else keys.get(name)
        if meaning is None:
            hint = "Quote a text with commas. " if " " in name else ""
            _fail(key, f"unknown key {name[:MAX_NAME_CHARACTERS]!r}. {hint}Choose from: {known}")
        if meaning and meaning in values:
            _fail(key, f"{name} is given twice. Merge the two")
        values[meaning] = value
    return values


def _declared(fields: _Body, kind: str, keys: Mapping[str, str]) -> dict[str, tuple[str, _Body, int]]:
    """Return name, fields and line of each declared type, by key."""
    found: dict[str, tuple[str, _Body, int]] = {}
    for node, body in _members(fields.get(kind), f"types in {kind}", MAX_TYPES, keys):
        name = _name(node)
        if earlier := found.get(type_key(name)):
            _fail(node, f"{name!r} is already declared in line {earlier[2]}. Remove one of them")
        found[type_key(name)] = name, body, node.start_mark.line + 1
    return found


def _members(
    node: yaml.Node | None, what: str, limit: int, keys: Mapping[str, str]
) -> Iterator[tuple[yaml.Node, _Body]]:
    """Yield the node of the name and the other fields of each member.

    A member is a key and its value, a name, or a mapping with the key `label` or `name`.
    """
    for member in _list(node, limit, what, yaml.CollectionNode):
        rest: yaml.Node | None = None
        if isinstance(member, tuple):
            name, rest = member
        elif not isinstance(member, yaml.MappingNode):
            name = member
        else:
            labels = [v for k, v in member.value if isinstance(k, yaml.ScalarNode) and k.value in _LABELS]
            if len(labels) == 1:
                name = labels[0]
                others = [pair for pair in member.value if pair[1] is not name]
                rest = yaml.MappingNode(member.tag, others, member.start_mark, member.end_mark)
            elif len(member.value) == 1 and not labels:
                ((name, rest),) = member.value
            else:
                _fail(member, "expected a name, or a mapping with the key `label`")
        if rest is None or _is_null(rest):
            yield name, {}
        else:
            yield name, {"description": rest} if isinstance(rest, yaml.ScalarNode) else _mapping(rest, keys)


def _description(body: _Body) -> str:
    return _text(body["description"]) if "description" in body else ""


def _entity_type(name: str, body: _Body) -> EntityType:
    attributes: dict[str, str] = {}
    for node, rest in _members(body.get("attributes"), f"attributes of {name}", MAX_LISTED, _ATTRIBUTE):
        attribute = _text(node, MAX_NAME_CHARACTERS)
        if not attribute or attribute in attributes:
            _fail(node, f"the attribute {attribute!r} of {name} is empty or given twice")
        attributes[attribute] = _description(rest)
    examples = map(_text, _list(body.get("examples"), MAX_LISTED, f"examples of {name}"))
    return EntityType(name, _description(body), tuple(attributes.items()), tuple(filter(None, examples)))


def _pattern(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        fields = _mapping(node, _PATTERN)
        parts = [fields[name] for name in _PATTERN if name in fields]
    else:
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
    if len(parts) != 3:
        _fail(node, "expected a pattern [SOURCE, RELATION, TARGET]")
    return parts


def _flag(fields: _Body, name: str, default: bool) -> bool:
    if name not in fields or _is_null(fields[name]):
        return default
    value = {"true": True, "yes": True, "false": False, "no": False}.get(_text(fields[name]).lower())
    if value is None:
        _fail(fields[name], f"{name} must be true or false")
    return value


def _line(name: str, *texts: str) -> str:
    stated = [text if text.endswith((".", "!", "?", "。")) else f"{text}." for text in texts if text]
    return f"- {name}: {' '.join(stated)}" if stated else f"- {name}"
