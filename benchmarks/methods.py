"""Compare all search methods on one index: seconds, calls, tokens and cost per question.

    python benchmarks/methods.py --root ./index --questions questions.csv --every 5

questions.csv has a column question_text; --every takes each n-th of them, --only some of the ways. An index
with `hierarchies=leiden,attributed,tree` can be asked in all ways. The cost is what the tokens of all
calls would cost at --price, US dollars per million prompt and completion tokens: the offline engine asks
nobody. Measures, asserts nothing.
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
class Asked:
    """One row of the table: how the questions are asked.

    `changes` apply to the section `query` of the settings.
    """

    name: str
    method: str
    level: str | None = None
    changes: tuple[tuple[str, object], ...] = ()


def ways(index: Index) -> list[Asked]:
    """All methods that the index supports, with each of their modes."""
    found = []
    if index.settings.has_graph:
        levels = [name for name in index.manifest.counts["levels"] if int(name[1:]) < 4]
        found = [Asked(f"global {level}", "global", level) for level in levels]
        found += [Asked("global, dynamic", "global", None, (("dynamic", True),))]
        found += [Asked("global C0, points", "global", "C0", (("map_protocol", "points"),))]
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
        found += [Asked(f"{name}, {mode}", name, None, ((setting, mode),)) for mode in modes]
        found += [] if modes else [Asked(name, name)]
    return found


def answers_of(index: Index, way: Asked, questions: Sequence[str]) -> list[Answer]:
    query = index.settings.query.model_copy(update=dict(way.changes))
    changed = Index(index.store, index.manifest, index.settings.model_copy(update={"query": query}))
    changed.ask(questions[0], way.level, method=way.method)  # Loads what is loaded once.
    return [changed.ask(q, way.level, method=way.method) for q in questions]


def line(way: Asked, answers: Sequence[Answer], cpu_s: float, prices: tuple[float, float]) -> str:
    seconds = sorted(a.seconds or 0.0 for a in answers)
    phases = [[p for name, p in a.phases.items() if name != "embed"] for a in answers]
    calls = statistics.mean(sum(p.calls for p in ps) for ps in phases)
    prompt = statistics.mean(sum(p.prompt_tokens for p in ps) for ps in phases)
    completion = statistics.mean(sum(p.completion_tokens for p in ps) for ps in phases)
    cost = (prompt * prices[0] + completion * prices[1]) / 1e6
    references = statistics.median(len(a.references) for a in answers)
    columns = (
        way.name,
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
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=(), help="Ways by the beginning of their names.")
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
        "| answered | references, median | references taken out |"
    )
    print("| --- " * 11 + "|")
    chosen = [w for w in ways(index) if not args.only or w.name.startswith(tuple(args.only))]
    for way in chosen:
        before = time.process_time()
        answers = answers_of(index, way, questions)
        print(line(way, answers, time.process_time() - before, tuple(args.price)), flush=True)


if __name__ == "__main__":
    main()
