"""The quality of the offline engine on passages labelled by hand: names, types and pairs.

Labels are YAML files; tests/unit/offline/labelled/2wiki.yaml describes the format. Passages are .jsonl or
.jsonl.gz files with `id` and `text`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.messages import CallParameters, ChatRequest
from graphrag_ray.graph.delimited_records import DELIMITERS, Records, parse_records
from graphrag_ray.offline import answer

LABELS = Path(__file__).parents[1] / "tests" / "unit" / "offline" / "labelled" / "2wiki.yaml"
TYPES = "person, organization, location, event, work, concept"
_SPACED_HYPHEN = re.compile(r"(?<=\w)- (?=\w)")
_TITLED = re.compile(r"^(?:THE|SIR|KING|QUEEN|MR|MRS|MS|DR) ")


@dataclass
class Scores:
    """Sums over passages.

    `names`: labelled; `found`: by the engine, without terms; `right`: the correct ones among those found;
    `recalled`: labelled names that were found; `typed`: correct ones with the correct type. Pairs likewise,
    between labelled names.
    """

    n: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)

    def share(self, part: str, whole: str) -> float:
        return self.n[part] / max(1, self.n[whole])

    @property
    def figures(self) -> dict[str, float]:
        return {
            "names, recall": self.share("recalled", "names"),
            "names, precision": self.share("right", "found"),
            "types right": self.share("typed", "right"),
            "pairs, recall": self.share("pairs right", "pairs"),
            "pairs, precision": self.share("pairs right", "pairs found"),
        }


def read_labels(path: Path) -> dict[str, dict[str, Any]]:
    """Map from split to passage id to labels."""
    labels: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))
    return labels


def read_passages(path: Path) -> dict[str, str]:
    """Map from id to text."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8").strip().split("\n")
    return {row["id"]: row["text"] for row in map(json.loads, lines)}


def score(labels: Mapping[str, Mapping[str, Any]], passages: Mapping[str, str]) -> Scores:
    scores = Scores()
    for id_, label in labels.items():
        parameters = CallParameters("default", "offline")
        variables = {**DELIMITERS, "text": passages[id_], "header": "", "entity_types": TYPES}
        records = parse_records(answer(ChatRequest("extract", (), parameters, variables)).text)
        _score_passage(id_, label, records, scores)
    return scores


def plain(name: str) -> str:
    """A name in comparable form: in capitals, without article, honorific and the space after a hyphen."""
    return _TITLED.sub("", entity_key(_SPACED_HYPHEN.sub("-", name)).replace("’", "'"))


def _score_passage(id_: str, label: Mapping[str, Any], records: Records, scores: Scores) -> None:
    n = scores.n
    names: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    for kind, listed in label.items():
        for name in listed if kind not in ("pairs", "other") else ():
            first, *others = (form.strip() for form in name.split("|"))
            kinds[first] = kind.upper().split("/")
            for form in (first, *others):
                names.setdefault(plain(form), first)
    optional = {plain(name) for name in label.get("other", ())}
    matched: dict[str, str] = {}
    for entity in records.entities:
        key = plain(entity.title)
        if key in names:
            first = matched[entity.title] = names[key]
            typed = entity.type in kinds[first]
            n.update({"found": 1, "right": 1, "typed": typed})
            if not typed:
                scores.mistakes.append(f"{id_} type   {entity.title}: {entity.type}, not {kinds[first]}")
        elif key not in optional and entity.type != "CONCEPT":
            n["found"] += 1
            scores.mistakes.append(f"{id_} no name {entity.title} ({entity.type})")
    n.update({"names": len(kinds), "recalled": len(set(matched.values()))})
    scores.mistakes += [f"{id_} missed {name}" for name in kinds.keys() - set(matched.values())]
    wanted = {_pair(a, b) for a, others in label.get("pairs", {}).items() for b in others}
    ends = [(matched.get(r.source), matched.get(r.target)) for r in records.relationships]
    pairs = {_pair(a, b) for a, b in ends if a and b and a != b}
    n.update({"pairs": len(wanted), "pairs found": len(pairs), "pairs right": len(wanted & pairs)})


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)
