"""Common parts of the scripts in this folder: arguments, models, indexes, and tables of figures.

A script compares one table of a paper with our own run. Without --base-url it starts the simulated
endpoint, whose replies have no meaning: the run shows that everything works, and its figures about quality
mean nothing. Indexes and all replies are stored in --work, so a repeated run pays for nothing twice.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
from simulated import endpoint

from graphrag_ray import build_index, evaluate, open_index
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.evaluate import datasets
from graphrag_ray.query.ask import Index

SIMULATED = "simulated"
SHORT = "a name, a date, a number, yes or no, or a few words"

Figures = Mapping[str, Mapping[str, float]]
"""Figures by row and column."""


@dataclass(frozen=True)
class PaperRun:
    """What a script needs: its arguments, and the endpoint of its models."""

    args: argparse.Namespace
    base_url: str

    @property
    def work(self) -> str:
        return str(Path(self.args.work) / self.args.name)

    def index(self, name: str = "index", **settings: Any) -> Index:
        """Build the index `name` of the corpus, or continue it. settings: sections, as in a settings file."""
        root = f"{self.args.work}/{Path(self.args.corpus).stem}-{self.args.documents or 'all'}-{name}"
        key = {"api_key_env": None if self.args.base_url is None else self.args.api_key_env}
        address = [{"base_url": self.base_url, **key}]
        models = {"default": {"provider": "openai", "model": self.args.model, "endpoints": address}}
        models["judge"] = {**models["default"], "model": self.args.judge_model or self.args.model}
        if self.args.embedding_model:
            models["embedding"] = {**models["default"], "model": self.args.embedding_model}
        for model in models.values():
            if self.args.price:
                prompt, reply = self.args.price
                model["price"] = {"input_usd_per_mtok": prompt, "output_usd_per_mtok": reply}
        columns = {"id_column": "id"} if Path(self.args.corpus).suffix.startswith(".json") else {}
        merged = {"models": models, "stages": {"judge": {"model": "judge"}}, "input": columns, **settings}
        result = build_index(corpus_of(self.args), root, settings=merged, allow_deletes=True)
        if result.failed:
            print(f"{root}: {result.failed:,} items failed. Run again to retry them.", file=sys.stderr)
        return open_index(root, settings=parse_settings(merged))

    def questions(self) -> list[Mapping[str, Any]]:
        return questions_of(self.args)

    def compare(self, index: Index, conditions: Sequence[str], **options: Any) -> Mapping[str, Any]:
        """`evaluate.compare` on the questions of the run."""
        out = f"{self.work}/compare"
        return evaluate.compare(index, self.questions(), conditions, out=out, **options)

    def qa(self, index: Index, conditions: Sequence[str], **options: Any) -> Any:
        """`evaluate.qa` on the questions of the run: its summary by condition, with the costs of each."""
        tables = evaluate.qa(index, self.questions(), conditions, out=f"{self.work}/qa", **options)
        summary = tables["summary"].set_index("condition")
        return summary.join(tables["qa_conditions"].set_index("name"), rsuffix="_of_answers")


@contextmanager
def paper_run(
    description: str | None, corpus: str, questions: str = "", choices: Sequence[str] = ()
) -> Iterator[PaperRun]:
    """Parse the arguments of a script, start the simulated endpoint if there is no other, print the setup.

    Args:
        corpus: Describes the corpus of the paper, for --help.
        questions: Describes the questions; empty if the table needs none.
        choices: Choices of --dataset, whose first is the default; empty if the table has one data set.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", help=f"{corpus}: documents for `index`, or a published JSON file")
    if questions:
        parser.add_argument("--questions", required=True, help=f"{questions}, as published")
    if choices:
        parser.add_argument("--dataset", choices=choices, default=choices[0])
    parser.add_argument("--limit", type=int, help="use only the first N questions")
    parser.add_argument("--documents", type=int, help="use only the first N documents")
    parser.add_argument("--work", default="papers", help="folder for indexes and replies (default: papers)")
    parser.add_argument("--base-url", help="endpoint with the OpenAI API (default: the simulated endpoint)")
    parser.add_argument("--api-key-env", default="OPENAI_API_KEY", help="variable that holds the key")
    parser.add_argument("--model", default=SIMULATED)
    parser.add_argument("--judge-model", help="default: the same model")
    parser.add_argument("--embedding-model", help="default: the small bundled model")
    parser.add_argument(
        "--price", type=float, nargs=2, metavar=("PROMPT", "REPLY"), help="USD per million tokens"
    )
    args = parser.parse_args()
    args.name = Path(sys.argv[0]).stem
    if args.base_url:
        print(f"Model {args.model}, judge {args.judge_model or args.model}\n")
        yield PaperRun(args, args.base_url)
        return
    print("Simulated endpoint: figures about quality mean nothing.\n")
    with endpoint("--port", "0", "--latency", "0", "--embedding-s", "0") as url:
        yield PaperRun(args, url)


def paper_conditions(index: Index) -> list[str]:
    """The conditions of the GraphRAG paper (4.1.2), as far as the index has their levels."""
    levels = [name for name in ("C0", "C1", "C2", "C3") if name in index.manifest.counts["levels"]]
    return [*(f"{name}=global:{name}" for name in levels), "TS=text", "SS=vector"]


def corpus_of(args: argparse.Namespace) -> Any:
    """The documents of a run: a path for `build_index`, or the rows of a published file."""
    path = Path(args.corpus)
    if path.suffix == ".json":
        out = Path(args.work) / f"{path.stem}.jsonl"
        out.parent.mkdir(parents=True, exist_ok=True)
        datasets.write_corpus(str(path), str(out))
        path = out
    if args.documents is None:
        return str(path)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md"))[: args.documents]
        return [{"id": p.name, "title": p.stem, "text": p.read_text("utf-8")} for p in files]
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, args.documents)]


def questions_of(args: argparse.Namespace) -> list[Mapping[str, Any]]:
    """The first `--limit` questions of a run, as rows."""
    return datasets.read_questions(args.questions)[: args.limit]


def show(title: str, published: Figures, ours: Figures, digits: int = 1) -> None:
    """Print a table with the published figure and ours in each cell."""
    columns = list(dict.fromkeys(c for figures in (published, ours) for row in figures.values() for c in row))
    print(f"\n{title} (published / ours)\n\n| | {' | '.join(columns)} |\n{'| --- ' * (len(columns) + 1)}|")
    for name in dict.fromkeys([*published, *ours]):
        pairs = [(published.get(name, {}).get(c), ours.get(name, {}).get(c)) for c in columns]
        cells = [" / ".join(_number(value, digits) for value in pair) for pair in pairs]
        print(f"| {name} | {' | '.join(cells)} |")


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def answer_figures(summary: Any, columns: Mapping[str, str]) -> Figures:
    """Figures by condition from a summary of `PaperRun.qa`: shares in percent, and tokens as they are.

    Args:
        columns: Columns of the summary, and the names to show for them.
    """
    return {
        name: {
            shown: row[column] * (1 if column == "tokens" else 100)
            for column, shown in columns.items()
            if row.get(column) is not None
        }
        for name, row in summary.to_dict("index").items()
    }


def win_rates(table: Any, criteria: Sequence[str], against: str) -> dict[str, dict[str, float]]:
    """Win rates of each condition over `against`, by criterion, in percent."""
    rates: dict[str, dict[str, float]] = {}
    for row in table.to_dict("records"):
        pair, rate = (row["first"], row["second"]), row["win_rate"]
        if against in pair and row["criterion"] in criteria:
            name = pair[0] if pair[1] == against else pair[1]
            rates.setdefault(name, {})[row["criterion"]] = rate if pair[1] == against else 100 - rate
    return rates
