"""The schema of a graph: which types of entities and relationships extraction may find.

A schema is YAML or JSON, in our form or that of a `GraphSchema` of Neo4j GraphRAG. It may come from a
stranger, so its size is limited. YAML anchors cannot make it larger, and cycles cannot trap the reader,
because it only descends where a schema has something.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import yaml

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.messages import join_surrogates

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
_USAGE = "See the page 'Use a schema' of the documentation."


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
    return _SEPARATORS.sub("_", " ".join(key.upper().split())).strip("_.,;:()[]'\"`*")


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
    try:
        root = yaml.compose(join_surrogates(text), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        where = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise SettingsError(f"Schema{where}: not valid YAML: {e.problem or e.context}") from e
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise SettingsError(f"The schema is not valid YAML: {getattr(e, 'reason', e)}") from e
    if root is None or (_is_null(root)):
        raise SettingsError(f"The schema is empty. Declare entity types under `entities:`. {_USAGE}")
    fields = _mapping(root, _TOP_LEVEL)
    names = ("entities", "relations")
    nodes, edges = (_declared(fields[name], name) if name in fields else [] for name in names)
    if not nodes:
        raise SettingsError(
            f"The schema declares no entity type. Declare at least one under `entities:`. {_USAGE}"
        )
    entities = {type_key(name): _entity_type(name, body) for name, body in nodes}
    types = {key: t.name for key, t in entities.items()}
    relations = {type_key(name): (name, body, _ends(body, types)) for name, body in edges}
    patterns: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {
        key: [ends] if ends != ((), ()) else [] for key, (_, _, ends) in relations.items()
    }
    for node in _list(fields["patterns"], MAX_PATTERNS, "patterns") if "patterns" in fields else ():
        source, relation, target = _pattern(node)
        if (key := type_key(_name(relation))) not in relations:
            _unknown(relation, "relation", [name for name, _, _ in relations.values()])
        patterns[key].append(((_known(source, types),), (_known(target, types),)))
    is_open = _flag(fields, "open", False)
    schema = ExtractionSchema(
        tuple(entities.values()),
        tuple(
            RelationType(name, _description(body), tuple(dict.fromkeys(patterns[key])))
            for key, (name, body, _) in relations.items()
        ),
        _flag(fields, "additional_node_types", is_open),
        _flag(fields, "additional_relationship_types", is_open),
        _flag(fields, "additional_patterns", is_open),
    )
    n = sum(map(len, (*(t.line for t in schema.entities), *(r.line for r in schema.relations))))
    if n > MAX_REQUEST_CHARACTERS:
        raise SettingsError(
            f"The types of the schema take {n:,} characters in every request, but at most "
            f"{MAX_REQUEST_CHARACTERS:,} are allowed. Shorten their descriptions or remove types."
        )
    return schema


_Body = Mapping[str, yaml.Node]

_TOP_LEVEL = {
    **{name: name for name in ("entities", "relations", "patterns", "open", "constraints")},
    **{
        name: name
        for name in (f"additional_{what}" for what in ("node_types", "relationship_types", "patterns"))
    },
    **{"node_types": "entities", "nodes": "entities"},
    **{"relationship_types": "relations", "relationships": "relations"},
}
"""Keys of a schema, and what they mean."""
_ENTITY = {
    **{name: name for name in ("description", "attributes", "examples", "additional_properties")},
    "properties": "attributes",
}
_RELATION = {
    **{name: name for name in ("description", "from", "to", "properties", "additional_properties")},
    **{"source": "from", "target": "to"},
}
_ATTRIBUTE = {name: name for name in ("description", "type", "required")}
_LABELS = ("label", "name")


def _fail(node: yaml.Node, problem: str) -> NoReturn:
    raise SettingsError(f"Schema, line {node.start_mark.line + 1}: {problem}")


def _unknown(node: yaml.Node, kind: str, declared: Iterable[str]) -> NoReturn:
    names = list(declared)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    _fail(
        node,
        f"{_text(node)!r} is not a declared {kind}. Declare it, or choose from: "
        f"{', '.join(names[:8]) or 'none'}{more}",
    )


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


def _list(node: yaml.Node, limit: int, what: str) -> list[yaml.Node]:
    """Return the members of a list. A single value needs no brackets."""
    if _is_null(node):
        return []
    values: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if len(values) > limit:
        _fail(
            node, f"{len(values):,} {what}, but at most {limit:,} are allowed. Keep the most important ones"
        )
    return values


def _mapping(node: yaml.Node, keys: Mapping[str, str]) -> dict[str, yaml.Node]:
    """Return the values of a mapping by what their keys mean."""
    known = ", ".join(keys)
    if not isinstance(node, yaml.MappingNode):
        _fail(node, f"expected a mapping with some of the keys {known}")
    values: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        if name not in keys:
            hint = "Quote a text with commas. " if " " in name else ""
            _fail(key, f"unknown key {name[:MAX_NAME_CHARACTERS]!r}. {hint}Choose from: {known}")
        if keys[name] in values:
            _fail(key, f"{name} is given twice. Merge the two")
        values[keys[name]] = value
    return values


def _declared(node: yaml.Node, what: str) -> list[tuple[str, _Body]]:
    """Return the name and the other fields of each declared type."""
    keys = _ENTITY if what == "entities" else _RELATION
    found, lines = list[tuple[str, _Body]](), dict[str, int]()
    for name_node, body_node in _named(node, f"types in {what}", MAX_TYPES):
        name = _name(name_node)
        if (key := type_key(name)) in lines:
            _fail(name_node, f"{name!r} is already declared in line {lines[key]}. Remove one of them")
        lines[key] = name_node.start_mark.line + 1
        found.append((name, _body(body_node, keys)))
    return found


def _named(node: yaml.Node, what: str, limit: int) -> Iterator[tuple[yaml.Node, yaml.Node | None]]:
    """Yield the nodes of the name and of the rest of each member.

    A member is a key and its value, a name, or a mapping with the key `label` or `name`.
    """
    if isinstance(node, yaml.MappingNode):
        if len(node.value) > limit:
            _fail(
                node,
                f"{len(node.value):,} {what}, but at most {limit:,} are allowed. Keep the ones that your "
                "questions are about",
            )
        yield from node.value
        return
    for member in _list(node, limit, what):
        if not isinstance(member, yaml.MappingNode):
            yield member, None
            continue
        labels = [v for k, v in member.value if isinstance(k, yaml.ScalarNode) and k.value in _LABELS]
        if len(labels) == 1:
            rest = [pair for pair in member.value if pair[1] is not labels[0]]
            yield labels[0], yaml.MappingNode(member.tag, rest, member.start_mark, member.end_mark)
        elif len(member.value) == 1 and not labels:
            yield member.value[0]
        else:
            _fail(member, "expected a name, or a mapping with the key `label`")


def _body(node: yaml.Node | None, keys: Mapping[str, str]) -> _Body:
    if node is None or _is_null(node):
        return {}
    return {"description": node} if isinstance(node, yaml.ScalarNode) else _mapping(node, keys)


def _description(body: _Body) -> str:
    return _text(body["description"]) if "description" in body else ""


def _entity_type(name: str, body: _Body) -> EntityType:
    attributes: dict[str, str] = {}
    if "attributes" in body and not _is_null(body["attributes"]):
        for name_node, rest in _named(body["attributes"], f"attributes of {name}", MAX_LISTED):
            attribute = _text(name_node, MAX_NAME_CHARACTERS)
            if not attribute or attribute in attributes:
                _fail(name_node, f"the attribute {attribute!r} of {name} is empty or given twice")
            attributes[attribute] = _description(_body(rest, _ATTRIBUTE))
    examples = _list(body["examples"], MAX_LISTED, f"examples of {name}") if "examples" in body else ()
    return EntityType(
        name, _description(body), tuple(attributes.items()), tuple(filter(None, map(_text, examples)))
    )


def _ends(body: _Body, types: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the allowed types of source and target under `from` and `to`."""
    source, target = (
        tuple(dict.fromkeys(_known(node, types) for node in _list(body[end], MAX_TYPES, "types")))
        if end in body
        else ()
        for end in ("from", "to")
    )
    return source, target


def _known(node: yaml.Node, types: Mapping[str, str]) -> str:
    if (key := type_key(_name(node))) not in types:
        _unknown(node, "entity type", types.values())
    return types[key]


def _pattern(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        keys = {"source": "source", "relationship": "relation", "relation": "relation", "target": "target"}
        fields = _mapping(node, keys)
        parts = [fields[name] for name in ("source", "relation", "target") if name in fields]
    else:
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
    if len(parts) != 3:
        _fail(node, "expected a pattern [SOURCE, RELATION, TARGET]")
    return parts


def _flag(fields: Mapping[str, yaml.Node], name: str, default: bool) -> bool:
    if name not in fields or _is_null(fields[name]):
        return default
    value = {"true": True, "yes": True, "false": False, "no": False}.get(_text(fields[name]).lower())
    if value is None:
        _fail(fields[name], f"{name} is true or false")
    return value


def _line(name: str, *texts: str) -> str:
    stated = [text if text.endswith((".", "!", "?", "。")) else f"{text}." for text in texts if text]
    return f"- {name}: {' '.join(stated)}" if stated else f"- {name}"
