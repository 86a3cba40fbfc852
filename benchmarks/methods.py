"""Compare all search methods on one index: time, calls, tokens and cost per question.

    python benchmarks/methods.py --root ./index --questions questions.csv --every 5

questions.csv has a column question_text. --every N uses every Nth question. --only limits the run to methods
whose names begin with one of its values. An index built with `hierarchies=leiden,attributed,tree` supports
all methods.

Prints one row per method. The cost is what the tokens of all calls would cost at --price, in US dollars per
million prompt and completion tokens. The offline engine itself makes no paid calls. Prints measurements;
asserts nothing.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from graphrag_ray import open_index
from graphrag_ray.base.index_settings import Query
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.methods import METHODS


@dataclass(frozen=True)
class Variant:
    """One row of the table: how the questions are asked.

    `changes` apply to the `query` section of the settings.
    """

    name: str
    method: str
    level: str | None = None
    changes: tuple[tuple[str, object], ...] = ()


def method_variants(index: Index) -> list[Variant]:
    """All methods that the index supports, with each of their modes."""
    variants = []
    if index.settings.has_graph:
        levels = [name for name in index.manifest.counts["levels"] if int(name[1:]) < 4]
        variants = [Variant(f"global {level}", "global", level) for level in levels]
        variants += [Variant("global, dynamic", "global", None, (("dynamic", True),))]
        variants += [Variant("global C0, points", "global", "C0", (("map_protocol", "points"),))]
    for name in METHODS:
        kind = METHODS[name]
        if name == "global" or (kind.graph and not index.settings.has_graph):
            continue
        if kind.hierarchy not in ("", *index.settings.hierarchies):
            continue
        setting = kind.option[1]
        modes = (
            [m for m in get_args(Query.model_fields[setting].annotation) if isinstance(m, str)]
            if setting
            else []
        )
        variants += [Variant(f"{name}, {mode}", name, None, ((setting, mode),)) for mode in modes]
        variants += [] if modes else [Variant(name, name)]
        if name == "lazy":
            variants.append(Variant("lazy, 500 tests", name, None, (("lazy_tests", 500),)))
    return variants


def answers_of(index: Index, variant: Variant, questions: Sequence[str]) -> list[Answer]:
    query = index.settings.query.model_copy(update=dict(variant.changes))
    variant_index = Index(index.store, index.manifest, index.settings.model_copy(update={"query": query}))
    variant_index.ask(
        questions[0], variant.level, method=variant.method
    )  # Warm up: load what is loaded once.
    return [variant_index.ask(q, variant.level, method=variant.method) for q in questions]


def line(variant: Variant, answers: Sequence[Answer], cpu_s: float, prices: tuple[float, float]) -> str:
    seconds = sorted(a.seconds or 0.0 for a in answers)
    phases = [[p for name, p in a.phases.items() if name != "embed"] for a in answers]
    calls = statistics.mean(sum(p.calls for p in ps) for ps in phases)
    prompt = statistics.mean(sum(p.prompt_tokens for p in ps) for ps in phases)
    completion = statistics.mean(sum(p.completion_tokens for p in ps) for ps in phases)
    cost = (prompt * prices[0] + completion * prices[1]) / 1e6
    references = statistics.median(len(a.references) for a in answers)
    columns = (
        variant.name,
        f"{statistics.median(seconds):.2f}",
        f"{seconds[int(0.95 * (len(seconds) - 1))]:.2f}",
        f"{cpu_s / len(answers):.2f}",
        f"{calls:,.1f}",
        f"{prompt:,.0f}",
        f"{completion:,.0f}",
        f"{cost:.4f}",
        f"{sum(a.found for a in answers)}/{len(answers)}",
        f"{references:.0f}",
        f"{sum(a.dropped_references for a in answers)}",
    )
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--every", type=int, default=1, help="use every Nth question")
    parser.add_argument("--only", nargs="*", default=(), help="beginnings of the names of methods to measure")
    parser.add_argument(
        "--price", type=float, nargs=2, default=(0.15, 0.60), metavar=("PROMPT", "COMPLETION")
    )
    args = parser.parse_args()
    with args.questions.open(encoding="utf-8-sig", newline="") as file:
        questions = [row["question_text"] for row in csv.DictReader(file)][:: args.every]
    index = open_index(args.root)
    print(f"{args.root}, snapshot {index.manifest.number}; {len(questions)} questions\n")
    print(
        "| method | s, median | s, p95 | CPU s | calls | prompt tokens | completion tokens | US dollars "
        "| answered | references, median | invalid references removed |"
    )
    print("| --- " * 11 + "|")
    chosen = [w for w in method_variants(index) if not args.only or w.name.startswith(tuple(args.only))]
    for variant in chosen:
        before = time.process_time()
        answers = answers_of(index, variant, questions)
        print(line(variant, answers, time.process_time() - before, tuple(args.price)), flush=True)


if __name__ == "__main__":
    main()
