"""Retrieval quality: whether the passages that an answer needs are among the first k chunks of the context.

    python benchmarks/retrieval.py ../shared/data/2wiki --root INDEX
    python benchmarks/retrieval.py ../shared/data/musique --root INDEX --methods hybrid local --half 1
    python benchmarks/retrieval.py --known-items 100 --root INDEX
    python benchmarks/retrieval.py --keywords questions.csv --root INDEX --methods hybrid local vector
    python benchmarks/retrieval.py ../shared/data/musique --root INDEX --contexts passages.jsonl --methods ppr
    python benchmarks/retrieval.py ../shared/data/musique --root INDEX --raise-cosines 0.2

A corpus is a folder with `questions.jsonl`, or such a file, for example in benchmarks/questions. Its rows
have `question`, and `supporting_titles` or `supporting_ids` (paths if the documents are files). They may have
`also`: passages each of which suffices alone. INDEX contains the passages and was built with
`input.id_column=id`.

Settings can follow the name of a method: local,local_pagerank=false. Chunks are ranked by their order in the
context. "keyword" and "vector" are the plain result lists of the search indexes. --half 0 uses questions with
even numbers, for tuning; --half 1 uses the others, for reporting.

--known-items generates single-hop questions: the words of the first sentence of a random document (with a
fixed seed), without those in its title and those that are common in the corpus. The document must be found.

--keywords takes a CSV with a column question_text. It prints the share of the questions' content words that
the context contains, and the share of questions with all of them. Content words have at least four letters
and occur in at least one chunk and at most half of all chunks. They are compared both as English stems and
as written.

--contexts measures the context that a model is shown: its tokens, its chunks, the share of the required
passages with a sentence in it, the share of questions with all of them and, if the questions have an
`answer`, the share of answers that occur in it. "tokens per question" adds up the contexts of all steps.

--raise-cosines simulates stronger embeddings: it raises the cosine similarity between each question and the
chunks of its required passages by a normal deviate with this mean and a standard deviation of 0.1, if that is
positive (fixed seed). It shows how methods react to good lists, not how good a model is.

Queries use the models of the index, so they are free with the offline engine. Set PYTHONPATH to an earlier
version of the code, with an index built by it, to compare versions. Prints measurements; asserts nothing.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import Stemmer

from graphrag_ray import open_index
from graphrag_ray.base.schema import search_index_table
from graphrag_ray.base.settings_file import load_settings
from graphrag_ray.base.stored_settings import without_machine_settings
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import ppr_search, single_context
from graphrag_ray.query.methods.answer import ContextUsed
from graphrag_ray.query.methods.method import Hit, Search
from graphrag_ray.query.methods.single_context import context_used
from graphrag_ray.query.searcher import Searcher
from graphrag_ray.store.search.vector_index import Floats

METHODS = ("keyword", "vector", "hybrid", "local")
CUTS = (1, 5, 10)
ALL_WITHIN = 8
MOST = 50
SEED, RARE_SHARE, FEWEST_WORDS = 20_261_125, 0.1, 4
FEWEST_SENTENCE_WORDS = 5
TEXTS: Mapping[str, Sequence[str]] = {
    "text_units": ("text",),
    "entities": ("title", "description"),
    "relationships": ("description",),
    "community_reports": ("full_content",),
}


@dataclass(frozen=True)
class Question:
    """A question. needed: rows (`documents.row`) or paths of all passages that its answer needs. also: other
    passages, each of which suffices alone."""

    text: str
    needed: frozenset[str]
    also: frozenset[str] = frozenset()


def read_questions(corpus: Path, documents: Sequence[Mapping[str, Any]]) -> list[Question]:
    by_title = {d["title"]: d["row"] for d in documents}
    questions = []
    file = corpus / "questions.jsonl" if corpus.is_dir() else corpus
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line)
        needed = row.get("supporting_ids") or [by_title[t] for t in row["supporting_titles"]]
        questions.append(Question(row["question"], frozenset(needed), frozenset(row.get("also") or ())))
    return questions


def known_items(documents: Sequence[Mapping[str, Any]], n: int) -> list[Question]:
    """Questions made from the first sentences of n documents."""
    frequency = Counter(word for d in documents for word in content(d["text"]))
    questions: list[Question] = []
    for d in random.Random(SEED).sample(list(documents), len(documents)):
        body = d["text"].removeprefix(d["title"] or "").strip()
        words = content(re.split(r"(?<=[.!?])\s", body, maxsplit=1)[0])
        rest = words - content(d["title"] or "")
        rest = {word for word in rest if frequency[word] <= RARE_SHARE * len(documents)}
        if len(rest) >= FEWEST_WORDS and len(questions) < n:
            questions.append(Question(" ".join(sorted(rest)), frozenset({d["row"] or d["path"]})))
    return questions


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
    print(f"{len(questions)} questions\n\n| | words | share in the context | questions with all |")
    print("| --- | ---: | ---: | ---: |")
    for how, stem in (("stems", Stemmer.Stemmer("english").stemWord), ("as written", str)):
        words = {id_: content(text, stem) for id_, text in texts.items()}
        frequency = Counter(word for id_ in chunks for word in words[id_])
        wanted = [{w for w in content(q, stem) if 0 < frequency[w] <= len(chunks) / 2} for q in questions]
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


def words_of(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def contexts_shown(
    index: Index, corpus: Path, passages: Path, methods: Sequence[str], half: int | None
) -> None:
    """Print what the contexts that models are shown contain of the required passages and the answers."""
    rows = [json.loads(line) for line in passages.read_text("utf-8").splitlines()]
    text_of = {row["id"]: row["text"] for row in rows}
    id_of = {row["title"]: row["id"] for row in reversed(rows)}
    file = corpus / "questions.jsonl" if corpus.is_dir() else corpus
    asked = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    shown: list[Context] = []

    def keep(phase: str, context: Context) -> ContextUsed:
        shown.append(context)
        return context_used(phase, context)

    single_context.context_used = ppr_search.context_used = keep
    print("| | tokens | tokens per question | chunks | passages shown | all shown | answers | ms |")
    print("| --- |" + " ---: |" * 7)
    for method in methods:
        ask, sums, answers, started = by_method(method), [0.0] * 5, [], time.monotonic()
        questions = asked if half is None else asked[half::2]
        for question in questions:
            shown.clear()
            ask(index, question["question"])
            text = words_of(shown[-1].text) if shown else ""
            needed = question.get("supporting_ids") or [id_of[t] for t in question["supporting_titles"]]
            parts = ([words_of(s) for s in re.split(r"(?<=[.!?])\s+|\n", text_of[id_])] for id_ in needed)
            found = [
                any(s in text for s in part if len(s.split()) >= FEWEST_SENTENCE_WORDS) for part in parts
            ]
            n_chunks = sum(section == "Sources" for section, _ in shown[-1].numbering) if shown else 0
            n_tokens = [context.n_tokens for context in shown] or [0]
            new = (n_tokens[-1], sum(n_tokens), n_chunks, sum(found) / len(found), all(found))
            sums = [a + b for a, b in zip(sums, new, strict=True)]
            answers += [words_of(question["answer"]) in text] if question.get("answer") else []
        tokens, per_question, chunks, share, whole = (value / len(questions) for value in sums)
        answered = f"{sum(answers) / len(answers):.3f}" if answers else "–"
        ms = 1000 * (time.monotonic() - started) / len(questions)
        print(
            f"| {method} | {tokens:.0f} | {per_question:.0f} | {chunks:.1f} | {share:.3f} | {whole:.3f} ",
            end="",
        )
        print(f"| {answered} | {ms:.0f} |")


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
    """Recall at each cut, share of questions with all needed passages within ALL_WITHIN, ms per question."""
    sums, n_complete, started = [0.0] * len(CUTS), 0, time.monotonic()
    for question in questions:
        rows = list(dict.fromkeys(row_of[id_] for id_ in read(index, question.text)))
        for i, cut in enumerate(CUTS):
            sums[i] += found_share(question, rows[:cut])
        n_complete += found_share(question, rows[:ALL_WITHIN]) == 1
    n = len(questions)
    return [*(s / n for s in sums), n_complete / n, 1000 * (time.monotonic() - started) / n]


def raise_cosines(questions: Sequence[Question], row_of: Mapping[str, str], mean: float) -> None:
    """Make vector search for chunks return required passages with a higher score."""
    draw, search = random.Random(SEED), Searcher.search
    raised = {
        q.text: {
            id_: max(0.0, draw.gauss(mean, 0.1)) for id_, row in row_of.items() if row in q.needed | q.also
        }
        for q in questions
    }

    def search_raised(self: Searcher, need: Search, vector: Floats | None) -> list[Hit]:
        if need.kind != "text_unit" or vector is None:
            return search(self, need, vector)
        all_hits = search(self, replace(need, k=len(row_of)), vector)
        extra = raised.get(need.text, {})
        hits = [Hit(hit.id, hit.score + extra.get(hit.id, 0.0)) for hit in all_hits]
        return sorted(hits, key=lambda hit: -hit.score)[: need.k]

    Searcher.search = search_raised  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--root")
    parser.add_argument("--contexts", type=Path, metavar="JSONL", help="passages; measures contexts")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument(
        "--half", type=int, choices=(0, 1), help="use questions with even (0) or odd (1) numbers"
    )
    parser.add_argument("--known-items", type=int, metavar="N", help="number of generated questions")
    parser.add_argument(
        "--keywords", type=Path, metavar="CSV", help="questions for the shares of content words"
    )
    parser.add_argument(
        "--raise-cosines", type=float, metavar="MEAN", help="simulate stronger embeddings of chunks"
    )
    options = parser.parse_args()
    if not options.root:
        parser.error("pass --root")
    index = open_index(options.root)
    if options.contexts:
        contexts_shown(index, options.corpus, options.contexts, options.methods, options.half)
        return
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
        parser.error("pass a corpus, --known-items or --keywords")
    if options.half is not None:
        questions = questions[options.half :: 2]
    if options.raise_cosines:
        raise_cosines(questions, row_of, options.raise_cosines)
    cuts = " | ".join(f"recall@{cut}" for cut in CUTS)
    print(f"{len(questions)} questions\n\n| | {cuts} | all within {ALL_WITHIN} | ms |")
    print("| --- |" + " ---: |" * (len(CUTS) + 2))
    for method in options.methods:
        read = by_keyword if method == "keyword" else by_method(method)
        *shares, ms = measured(read, index, questions, row_of)
        print(f"| {method} | {' | '.join(f'{s:.3f}' for s in shares)} | {ms:.0f} |")


if __name__ == "__main__":
    main()
