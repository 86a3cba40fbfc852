"""Measure the rules of entity resolution on labelled pairs of names.

    python benchmarks/entity_resolution.py pairs.jsonl [--documents documents.jsonl] [--errors]

Each line of PAIRS is a JSON object with `id`, the names `a` and `b`, their types `type_a` and `type_b` ("" if
unknown), `label` (`same` or `different`; other lines are skipped) and `passages`, a list of texts around the
names. Without --documents, the passages of a pair are taken for one document with these two names.

Each line of --documents is a JSON object with `id`, `texts` (chunks) and `names` (name: type). The rules then
run as in an index: over all names of the corpus, and within each document. A pair counts as merged if both
names stand for the same thing in most of the documents that contain them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.document_names import document_aliases, merge_document_aliases
from graphrag_ray.graph.name_rules import RULES, may_merge, preferred, rule_keys


class Resolution:
    """The names of documents, merged by rules."""

    def __init__(self, documents: list[dict[str, Any]], rules: tuple[str, ...]) -> None:
        self.types: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.documents: dict[str, list[str]] = defaultdict(list)
        for document in documents:
            self.types |= document["names"]
            self.counts.update(list(document["names"]))
            for name in document["names"]:
                self.documents[name].append(document["id"])
        self.parents: dict[str, tuple[str, str]] = {}
        """name -> (name it is merged with anywhere, rule)"""
        groups = defaultdict(list)
        for name, type_ in sorted(self.types.items()):
            for key in rule_keys(name, type_, rules):
                groups[key].append(name)
        for (rule, _), members in groups.items():
            if len(members) > 1:
                self._join(rule, members)
        self.aliases: dict[tuple[str, str], tuple[str, str]] = {}
        """(document, name) -> (canonical name, rule)"""
        found = []
        for document in documents:
            for alias in document_aliases(document["names"], document["texts"], rules):
                self.aliases[document["id"], alias.name] = alias.canonical, alias.rule
                found.append(alias)
        self.everywhere = {a.name: (a.canonical, a.rule) for a in merge_document_aliases(found)}

    def _join(self, rule: str, members: list[str]) -> None:
        roots = {self.root(name)[0]: None for name in members}
        first = preferred([(n, self.types[n], self.counts[n]) for n in roots])
        for name in members:
            root = self.root(name)[0]
            if root != first and may_merge(name, self.types[name], first, self.types[first], rule):
                self.parents[root] = first, rule

    def root(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the name that stands for this one anywhere, and the rules that say so."""
        used: list[str] = []
        while name in self.parents:
            name, rule = self.parents[name]
            used.append(rule)
        return name, tuple(used)

    def meaning(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return what a name stands for in most of its documents, and by which rules."""
        found: Counter[str] = Counter()
        rules: dict[str, tuple[str, ...]] = {}
        for document in self.documents[name]:
            alias = self.aliases.get((document, name)) or self.everywhere.get(name)
            root, used = self.root(alias[0] if alias else name)
            found[root] += 1
            rules[root] = ((alias[1],) if alias else ()) + used
        if not found:
            return self.root(name)
        root, count = max(found.items(), key=lambda item: (item[1], item[0]))
        return (root, rules[root]) if 2 * count > found.total() else (name, ())

    def merged(self, a: str, b: str) -> tuple[str, ...]:
        """Return the rules by which two names are merged, or () if they are not."""
        (root_a, rules_a), (root_b, rules_b) = self.meaning(a), self.meaning(b)
        return tuple(dict.fromkeys(rules_a + rules_b)) if root_a == root_b else ()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def _of_passages(pair: dict[str, Any], rules: tuple[str, ...]) -> Resolution:
    names = {entity_key(pair[k]): pair.get(f"type_{k}") or "" for k in "ab"}
    return Resolution([{"id": "", "texts": pair.get("passages", []), "names": names}], rules)


@click.command()
@click.argument("pairs", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--documents", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rules", default=",".join(RULES), show_default=True, help="Rules to apply, comma-separated.")
@click.option("--errors", is_flag=True, help="Print the pairs that are wrong.")
def main(pairs: Path, documents: Path | None, rules: str, errors: bool) -> None:
    """Print precision and recall of the name rules on PAIRS."""
    names = tuple(rules.split(","))
    corpus = Resolution([*_lines(documents)], names) if documents else None
    counts: Counter[str] = Counter()
    by_rule: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in _lines(pairs):
        if pair["label"] not in ("same", "different"):
            continue
        resolution = corpus or _of_passages(pair, names)
        merged = resolution.merged(entity_key(pair["a"]), entity_key(pair["b"]))
        kinds = ("missed", "right") if pair["label"] == "same" else ("apart", "wrong")
        kind = kinds[bool(merged)]
        counts[kind] += 1
        by_rule["+".join(merged) or "none"][kind] += 1
        if errors and kind in ("wrong", "missed"):
            types = f"{pair.get('type_a')}/{pair.get('type_b')}"
            print(f"{kind:6} {pair['id']:>5} {pair['a']} | {pair['b']} | {types} | {', '.join(merged)}")
    merged_pairs, same = counts["right"] + counts["wrong"], counts["right"] + counts["missed"]
    print(
        f"precision {counts['right'] / max(merged_pairs, 1):.3f} ({counts['right']} of {merged_pairs} merged)"
    )
    print(f"recall    {counts['right'] / max(same, 1):.3f} ({counts['right']} of {same} same)")
    for rule, found in sorted(by_rule.items()):
        print(f"  {rule:30} " + ", ".join(f"{kind} {n}" for kind, n in sorted(found.items())))


if __name__ == "__main__":
    main()
