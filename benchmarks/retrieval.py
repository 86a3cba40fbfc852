"""Which passages a question finds: those that its answer needs, among the first k chunks of the context.

    python benchmarks/retrieval.py ../shared/data/2wiki --root INDEX
    python benchmarks/retrieval.py ../shared/data/musique --root INDEX --methods hybrid local --half 1

A corpus is a folder with `questions.jsonl`, whose rows hold `question` and `supporting_titles` or
`supporting_ids`; INDEX holds its passages, made with `input.id_column=id`. Chunks count in the order in which
they stand in the context; "keyword" and "vector" beside the methods are the bare lists that the index finds.
--half 0 takes the questions with even numbers, for tuning; --half 1 the others, for reporting. Asks the
models of the index, so it is free where that is the offline engine. Measures, asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphrag_ray import open_index
from graphrag_ray.ask import Index
from graphrag_ray.search import keyword

METHODS = ("keyword", "vector", "hybrid", "local")
CUTS = (5, 10)
ALL_WITHIN = 8
MOST = 50


@dataclass(frozen=True)
class Question:
    """needed: rows (`documents.row`) of the passages that its answer needs."""

    text: str
    needed: frozenset[str]


def read_questions(corpus: Path, documents: Sequence[Mapping[str, Any]]) -> list[Question]:
    by_title = {d["title"]: d["row"] for d in documents}
    found = []
    for line in (corpus / "questions.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        needed = row.get("supporting_ids") or [by_title[t] for t in row["supporting_titles"]]
        found.append(Question(row["question"], frozenset(needed)))
    return found


def by_keyword(index: Index, question: str) -> list[str]:
    return [id_ for id_, _ in keyword.search(index.searcher.keyword_shards("text_unit"), question, MOST)]


def by_method(method: str) -> Callable[[Index, str], list[str]]:
    def read(index: Index, question: str) -> list[str]:
        answer = index.ask(question, method=method)
        records = [r for context in answer.contexts for r in context.records if r.section == "Sources"]
        return [r.id for r in records][:MOST]

    return read


def measured(
    read: Callable[[Index, str], list[str]],
    index: Index,
    questions: Sequence[Question],
    row_of: Mapping[str, str],
) -> list[float]:
    """recall at each cut, share of questions with all they need within ALL_WITHIN, ms a question."""
    sums, whole, began = [0.0] * len(CUTS), 0, time.monotonic()
    for question in questions:
        rows = list(dict.fromkeys(row_of[id_] for id_ in read(index, question.text)))
        for i, cut in enumerate(CUTS):
            sums[i] += len(question.needed.intersection(rows[:cut])) / len(question.needed)
        whole += question.needed.issubset(rows[:ALL_WITHIN])
    n = len(questions)
    return [*(s / n for s in sums), whole / n, 1000 * (time.monotonic() - began) / n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--root", required=True)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--half", type=int, choices=(0, 1))
    options = parser.parse_args()
    index = open_index(options.root)
    documents = index.table("documents", ["row", "title", "text_unit_ids"]).to_pylist()
    row_of = {chunk: d["row"] for d in documents for chunk in d["text_unit_ids"]}
    questions = read_questions(options.corpus, documents)
    if options.half is not None:
        questions = questions[options.half :: 2]
    cuts = " | ".join(f"recall@{cut}" for cut in CUTS)
    print(f"{len(questions)} questions\n\n| | {cuts} | all within {ALL_WITHIN} | ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for method in options.methods:
        read = by_keyword if method == "keyword" else by_method(method)
        *shares, ms = measured(read, index, questions, row_of)
        print(f"| {method} | {' | '.join(f'{s:.3f}' for s in shares)} | {ms:.0f} |")


if __name__ == "__main__":
    main()
