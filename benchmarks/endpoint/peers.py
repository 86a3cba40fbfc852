"""Calls of other GraphRAG tools (microsoft/graphrag, nano-graphrag and LightRAG), recognised by key phrases.

A call is translated to our prompt for the same task and answered, and the reply is converted to the tool's
format. The same passage therefore yields the same entities and relationships for every tool.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

TYPES = "person, organization, location, event"
"""The default entity types of all of these tools, in our terms."""
GEO = {"location": "geo"}
_OTHERS_RECORD = re.compile(r'\("(entity|relationship)"<\|>(.*)\)')
_SECTION = re.compile(r"^-{4,5}(Reports|Entities|Claims|Relationships)-----\n", re.MULTILINE)
_NAMED = re.compile(r"^(?:Entities:|(?:Entity|Relation) Name:) (.*)$", re.MULTILINE)
_COLUMNS = {
    "Reports": ("report", "full_content", "summary"),
    "Entities": ("entity", "title", "description"),
    "Relationships": ("source", "target", "description"),
}

Messages = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """A call in our format, and how to convert its reply to the format of the peer."""

    messages: Messages
    theirs: Callable[[str], str]


def kind_of(text: str) -> str:
    """The kind of a call, from its last message; "other" if it is not from a peer."""
    if "-Real Data-" in text or text.startswith("---Task---\nExtract entities"):
        return "extract"
    if text.startswith("MANY entities") and "missed in the last extraction" in text:
        return "glean"
    if text.startswith("---Task---\nBased on the last extraction"):
        return "glean"
    if text.startswith("It appears some entities"):
        return "glean_check"
    if "Description List:" in text and _NAMED.search(text):
        return "describe"
    if "# Grounding Rules" in text and "<report_title>" in text:
        return "report"
    if "high_level_keywords" in text and "low_level_keywords" in text:
        return "keywords"
    return "other"


def put_as_ours(messages: Messages) -> Peer | None:
    """Returns None for a conversation that is not from a peer or needs no translation."""
    last = messages[-1][1]
    kind = kind_of(last)
    if kind in ("extract", "glean"):
        return _extraction(messages, kind)
    if kind == "glean_check":
        asked = _ours("glean_check")
        return Peer([("user", asked)], _yes_no if "YES" in last else str)
    if kind == "describe":
        return Peer([("user", _description(last))], str)
    if kind == "report":
        return Peer([("user", _report(last))], str)
    if kind == "keywords":
        return Peer([("user", "")], _keywords)
    return None


def _ours(kind: str) -> str:
    """The beginning of our prompt for this task, by which the rest of the endpoint recognises it."""
    return {
        "extract": f"Extract entities of the types {TYPES} and their relationships from the passage below, "
        "with ## between records and <|COMPLETE|> at the end.\n\n"
        "----- passage -----\n",
        "glean_check": "Compare your records with the passage once more",
        "glean": "Some are missing",
        "describe": "The text to merge, one description per line, to the end of this message:\n\n",
        "report": "Write the report on the community whose records follow:\n\n",
    }[kind]


def _extraction(messages: Messages, kind: str) -> Peer:
    is_lightrag = "---Task---" in messages[-1][1]
    prompt = next((text for role, text in messages if role == "user"), "")
    ours = [("user", _ours("extract") + (_fenced(prompt) if is_lightrag else _real_data(prompt)))]
    if kind == "glean":
        earlier = "\n".join(text for role, text in messages if role == "assistant")
        ours += [
            ("assistant", _named_entities(earlier) if is_lightrag else earlier),
            ("user", _ours("glean")),
        ]
    return Peer(ours, _light_records if is_lightrag else _geo_records)


def _real_data(text: str) -> str:
    """The passage at the end of a prompt of graphrag or nano-graphrag, after their examples."""
    return text.rpartition("-Real Data-")[2].partition("Text: ")[2].rpartition("\n####")[0]


def _fenced(text: str) -> str:
    """The passage in a prompt of LightRAG."""
    return text.partition("---Input Text---\n```\n")[2].rpartition("\n```")[0]


def _geo_records(reply: str) -> str:
    """The records of graphrag and nano-graphrag have our format, except for the word for a location."""
    for ours, theirs in GEO.items():
        reply = reply.replace(f"<|>{ours}<|>", f"<|>{theirs}<|>")
    return reply


def _light_records(reply: str) -> str:
    """Convert to LightRAG's format: a record per line; names in title case; relationships with keywords and
    without strength."""
    out = []
    for kind, rest in _OTHERS_RECORD.findall(reply):
        fields = rest.split("<|>")
        if kind == "entity":
            name, type_, description = fields
            out.append("<|#|>".join(("entity", name.title(), type_.title(), description)))
        else:
            source, target, description, strength = fields
            keywords = f"shared mention,strength {strength}"
            out.append("<|#|>".join(("relation", source.title(), target.title(), keywords, description)))
    return "\n".join([*out, "<|COMPLETE|>"])


def _named_entities(reply: str) -> str:
    """The entities named by a reply in LightRAG's format, in our format."""
    names = [line.split("<|#|>")[1] for line in reply.split("\n") if line.startswith("entity<|#|>")]
    return "\n".join(f'("entity"<|>{name.upper()}<|>' for name in names)


def _yes_no(reply: str) -> str:
    return "YES" if reply == "Y" else "NO"


def _keywords(reply: str) -> str:
    words = list(dict.fromkeys(word.strip(".,") for word in reply.split()))
    return orjson.dumps({"high_level_keywords": words[:3], "low_level_keywords": words[3:8]}).decode()


def _description(text: str) -> str:
    before, _, after = text.rpartition("Description List:")
    name = _NAMED.findall(before)[-1].replace('"', "")
    listed = after.rpartition("---Output---")[0] or after.rpartition("\n####")[0]
    return f"The entity: {name}\n{_ours('describe')}" + "\n".join(_descriptions(listed.strip("`\n ")))


def _descriptions(listed: str) -> list[str]:
    """Parse a list written as JSON (graphrag), as Python (nano-graphrag), or as lines of JSON (LightRAG)."""
    try:
        if listed.startswith("{"):
            return [str(next(iter(orjson.loads(line).values()))) for line in listed.split("\n")]
        return [str(item) for item in orjson.loads(listed)]
    except orjson.JSONDecodeError:
        return [item for item in re.split(r"""['"], ?['"]""", listed.strip("[]'\"")) if item]


def _report(text: str) -> str:
    """The tables of a community, with our columns in our order."""
    out, places = [], list(_SECTION.finditer(text))
    ends = [m.start() for m in places[1:]] + [len(text)]
    for match, end in zip(places, ends, strict=True):
        name = match.group(1)
        rows = _table(text[match.end() : end])
        if name in _COLUMNS and len(rows) > 1:
            out.append(f"-----{name}-----\n{_csv([_kept(name, rows[0], row) for row in rows])}")
    return _ours("report") + "\n".join(out) + "\n----- end of the data -----\n"


def _table(text: str) -> list[list[str]]:
    """The header and numbered rows of a CSV table, without the rest of the prompt."""
    text = text.removeprefix("```csv\n").partition("\n```")[0].replace(",\t", ",")
    header, *rows = [row for row in csv.reader(io.StringIO(text)) if row] or [[]]
    return [header, *(row for row in rows if len(row) == len(header) and row[0].isdecimal())]


def _kept(table: str, header: Sequence[str], row: Sequence[str]) -> list[str]:
    """The id, followed by the columns that our table also has."""
    places: Mapping[str, int] = {name: i for i, name in enumerate(header)}
    kept = [row[places[name]] for name in _COLUMNS[table] if name in places]
    if table == "Reports" and kept:
        kept = [kept[0].split("\n")[0].lstrip("# ")[:80], kept[-1].replace("\n", " ")]
    return [row[0], *kept]


def _csv(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
