"""Measure how many of the passages that an answer needs are among the first k chunks of the context.

    python benchmarks/retrieval.py ../shared/data/2wiki --root INDEX
    python benchmarks/retrieval.py ../shared/data/musique --root INDEX --methods hybrid local --half 1
    python benchmarks/retrieval.py --known-items 100 --root INDEX
    python benchmarks/retrieval.py --keywords questions.csv --root INDEX --methods hybrid local vector

A corpus is a folder with `questions.jsonl`, or such a file, as those in benchmarks/questions: its rows hold
`question`, and `supporting_titles` or `supporting_ids` (paths, where the documents are files), and maybe
`also`: passages of which one is enough. INDEX holds the passages, made with `input.id_column=id`. A method
may have settings behind it: local,local_pagerank=false. Chunks count in the order in which they stand in the
context; "keyword" and "vector" next to the methods are the plain result lists of the indexes.
--half 0 takes the questions with even numbers, for tuning; --half 1 the others, for reporting.

--known-items generates single-hop questions: the first sentence of a random document (fixed seed), without
            the words of its title and words that many documents have. The document must be found. --keywords
            takes any questions (column question_text), and reports the share of their content words that the
            context contains, and for how many questions it contains all. Content words have at least four
            letters and occur in at least one chunk, but in no more than half of them. They are compared by
            their English stems, then as written.

Uses the models of the index, so it is free with the offline engine. It measures the package that Python
imports: to compare with an earlier version, set PYTHONPATH and use an index of its own. Makes no assertions.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import Stemmer

from graphrag_ray import open_index
from graphrag_ray.base.index_settings import without_machine_settings
from graphrag_ray.base.schema import search_index_table
from graphrag_ray.base.settings_file import load_settings
from graphrag_ray.query.ask import Index

METHODS = ("keyword", "vector", "hybrid", "local")
CUTS = (1, 5, 10)
ALL_WITHIN = 8
MOST = 50
SEED, RARE_SHARE, FEWEST_WORDS = 20_261_125, 0.1, 4
TEXTS: Mapping[str, Sequence[str]] = {
    "text_units": ("text",),
    "entities": ("title", "description"),
    "relationships": ("description",),
    "community_reports": ("full_content",),
}


@dataclass(frozen=True)
class Question:
    """A question and the passages that answer it.

    Attributes:
        needed: Rows (`documents.row`) or paths of the passages that its answer needs.
        also: Alternative passages, each of which also answers it.
    """

    text: str
    needed: frozenset[str]
    also: frozenset[str] = frozenset()


def read_questions(corpus: Path, documents: Sequence[Mapping[str, Any]]) -> list[Question]:
    by_title = {d["title"]: d["row"] for d in documents}
    found = []
    file = corpus / "questions.jsonl" if corpus.is_dir() else corpus
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line)
        needed = row.get("supporting_ids") or [by_title[t] for t in row["supporting_titles"]]
        found.append(Question(row["question"], frozenset(needed), frozenset(row.get("also") or ())))
    return found


def known_items(documents: Sequence[Mapping[str, Any]], n: int) -> list[Question]:
    """The first sentences of n documents as questions."""
    held = Counter(word for d in documents for word in content(d["text"]))
    found: list[Question] = []
    for d in random.Random(SEED).sample(list(documents), len(documents)):
        body = d["text"].removeprefix(d["title"] or "").strip()
        said = content(re.split(r"(?<=[.!?])\s", body, maxsplit=1)[0])
        rest = said - content(d["title"] or "")
        rest = {word for word in rest if held[word] <= RARE_SHARE * len(documents)}
        if len(rest) >= FEWEST_WORDS and len(found) < n:
            found.append(Question(" ".join(sorted(rest)), frozenset({d["row"]})))
    return found


def content(text: str, stem: Callable[[str], str] = str) -> set[str]:
    """Words of four letters or more."""
    return {stem(word) for word in re.findall(r"[^\W_]{4,}", text.casefold())}


def keywords_held(index: Index, questions: Sequence[str], methods: Sequence[str]) -> None:
    """Print the share of the content words of questions that their contexts contain."""
    texts = {
        row["id"]: " ".join(row[c] or "" for c in columns)
        for table, columns in TEXTS.items()
        for row in index.table(table, ["id", *columns]).to_pylist()
    }
    chunks = set(index.table("text_units", ["id"])["id"].to_pylist())
    records = {
        method: [
            {r.id for c in index.ask(q, method=method).contexts for r in c.records} & texts.keys()
            for q in questions
        ]
        for method in methods
    }
    print(f"{len(questions)} questions\n\n| | words | in the context | all of them |")
    print("| --- | ---: | ---: | ---: |")
    for how, stem in (("stems", Stemmer.Stemmer("english").stemWord), ("as written", str)):
        words = {id_: content(text, stem) for id_, text in texts.items()}
        held = Counter(word for id_ in chunks for word in words[id_])
        wanted = [{w for w in content(q, stem) if 0 < held[w] <= len(chunks) / 2} for q in questions]
        for method in methods:
            pairs = [
                (w, set().union(*(words[i] for i in ids)))
                for w, ids in zip(wanted, records[method], strict=True)
            ]
            shares = [len(w & shown) / len(w) for w, shown in pairs if w]
            whole = sum(share == 1 for share in shares)
            print(f"| {method}, {how} | {sum(map(len, wanted)) / len(wanted):.1f} ", end="")
            print(f"| {sum(shares) / len(shares):.3f} | {whole / len(shares):.3f} |")


def by_keyword(index: Index, question: str) -> list[str]:
    from graphrag_ray.store.search import keyword_index

    return [
        id_
        for id_, _ in keyword_index.search(
            index.searcher.shards(search_index_table("text_unit", "keyword")), question, MOST
        )
    ]


def by_method(method: str) -> Callable[[Index, str], list[str]]:
    name, *changes = method.split(",")
    pairs = (change.removeprefix("query.").partition("=") for change in changes)
    forms = [f"query.{key}={value}" for key, _, value in pairs]

    def read(index: Index, question: str) -> list[str]:
        settings = load_settings(None, forms, without_machine_settings(index.manifest.settings))
        answer = index.open_snapshot(index.manifest, settings).ask(question, method=name)
        records = [r for context in answer.contexts for r in context.records if r.section == "Sources"]
        return [r.id for r in records][:MOST]

    return read


def found_share(question: Question, rows: Sequence[str]) -> float:
    if not question.also.isdisjoint(rows):
        return 1.0
    return len(question.needed.intersection(rows)) / len(question.needed)


def measured(
    read: Callable[[Index, str], list[str]],
    index: Index,
    questions: Sequence[Question],
    row_of: Mapping[str, str],
) -> list[float]:
    """Returns recall at each cut, the share of questions with all they need in ALL_WITHIN, and ms each."""
    sums, whole, began = [0.0] * len(CUTS), 0, time.monotonic()
    for question in questions:
        rows = list(dict.fromkeys(row_of[id_] for id_ in read(index, question.text)))
        for i, cut in enumerate(CUTS):
            sums[i] += found_share(question, rows[:cut])
        whole += found_share(question, rows[:ALL_WITHIN]) == 1
    n = len(questions)
    return [*(s / n for s in sums), whole / n, 1000 * (time.monotonic() - began) / n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--root", required=True)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--known-items", type=int, metavar="N")
    parser.add_argument("--keywords", type=Path, metavar="CSV")
    options = parser.parse_args()
    index = open_index(options.root)
    if options.keywords:
        with options.keywords.open(encoding="utf-8-sig", newline="") as file:
            texts = [row["question_text"] for row in csv.DictReader(file)]
        keywords_held(index, texts, options.methods)
        return
    documents = index.table("documents", ["row", "path", "title", "text", "text_unit_ids"]).to_pylist()
    row_of = {chunk: d["row"] or d["path"] for d in documents for chunk in d["text_unit_ids"]}
    if options.known_items:
        questions = known_items(documents, options.known_items)
    elif options.corpus:
        questions = read_questions(options.corpus, documents)
    else:
        parser.error("name a corpus, --known-items or --keywords")
    if options.half is not None:
        questions = questions[options.half :: 2]
    cuts = " | ".join(f"recall@{cut}" for cut in CUTS)
    print(f"{len(questions)} questions\n\n| | {cuts} | all within {ALL_WITHIN} | ms |")
    print("| --- |" + " ---: |" * (len(CUTS) + 2))
    for method in options.methods:
        read = by_keyword if method == "keyword" else by_method(method)
        *shares, ms = measured(read, index, questions, row_of)
        print(f"| {method} | {' | '.join(f'{s:.3f}' for s in shares)} | {ms:.0f} |")


if __name__ == "__main__":
    main()
