"""What an update costs in calls and tokens: 1% of the documents added, changed or deleted.

    python benchmarks/update_tokens.py CORPUS --set chunking.size=document
    python benchmarks/update_tokens.py CORPUS --endpoint --seeds 1 2 3 --share 0.01

The corpus is a folder of text files. The model is the offline engine or, with --endpoint, the simulated
endpoint at high speed and without limits, because only counts and tokens matter. Everything runs in this
process, without Ray. Tokens are those of calls that were actually made:

- *added*: an index of all but a random share of the documents, then one of all;
- *changed*: an index of all, then one after replacing the second halves of a share with those of others;
- *deleted*: an index of all, then one without a share;
- *reset*: as *added*, with --reset-communities: the cost of partitioning the changed graph from scratch.

Prints means over the seeds, relative to the full index. `modularity` is that of the coarsest level, next to
that of a new partition of the same graph.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from simulated import endpoint

from graphrag_ray import open_index
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import load_settings
from graphrag_ray.corpus.tokens import count_tokens, vocabulary_for
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph import report_context
from graphrag_ray.graph.communities import build_communities
from graphrag_ray.graph.integer_arrays import id_hash64
from graphrag_ray.indexing.index import IndexResult, index
from graphrag_ray.store.files import Store

STAGES = ("extract", "describe", "report", "embed")
ENDPOINT = ("--speed", "200", "--jitter", "0.1")


@dataclass(frozen=True)
class Cost:
    """Calls and tokens by stage, and counts of communities."""

    calls: Counter[str]
    tokens: Counter[str]
    communities: int
    kept: int
    modularity: float
    new_modularity: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--endpoint", action="store_true", help="use the simulated endpoint")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    texts = {p.name: p.read_text("utf-8-sig") for p in sorted(args.corpus.glob("*.txt"))}
    with _model(args.endpoint) as model, tempfile.TemporaryDirectory() as folder:
        settings = load_settings(None, [*args.set, *model])
        bench = Bench(Path(folder), settings)
        full = bench.run("full", texts)
        print(
            f"{len(texts)} documents, {full.communities} communities, share changed: {args.share}",
            flush=True,
        )
        costs: dict[str, list[Cost]] = {}
        for seed in args.seeds:
            for name, cost in bench.updates(texts, args.share, seed):
                costs.setdefault(name, []).append(cost)
                print(f"seed {seed}, {name}: {_line(cost, full)}", flush=True)
        _print(full, costs)


@contextmanager
def _model(simulated: bool) -> Iterator[list[str]]:
    """Options of the model."""
    with endpoint(*ENDPOINT) if simulated else nullcontext() as url:
        at = "models.default.endpoints.0"
        yield (
            [
                "models.default.provider=openai",
                "models.default.model=m",
                f"{at}.base_url={url}",
                f"{at}.api_key_env=null",
                f"{at}.max_in_flight=32",
            ]
            if url
            else []
        )


class Bench:
    """Indexes in a folder, all with the same settings."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings

    def updates(self, texts: Mapping[str, str], share: float, seed: int) -> Iterator[tuple[str, Cost]]:
        dice = random.Random(seed)
        some = dice.sample(sorted(texts), max(1, round(share * len(texts))))
        others = dice.sample(sorted(texts.keys() - set(some)), len(some))
        rest = {name: text for name, text in texts.items() if name not in some}
        self.run("rest", rest)
        for name, reset in (("added", False), ("reset", True)):
            yield name, self.run(self._copy("rest", "update"), texts, reset)
        halves = {a: _half(texts[a], 0) + _half(texts[b], 1) for a, b in zip(some, others, strict=True)}
        yield "changed", self.run(self._copy("full", "update"), {**texts, **halves})
        yield "deleted", self.run(self._copy("full", "update"), rest)
        for name in ("rest", "update"):
            shutil.rmtree(self.folder / name)

    def run(self, name: str, texts: Mapping[str, str], reset: bool = False) -> Cost:
        """Update the index of this name with these documents."""
        documents, root = self.folder / "documents", self.folder / name
        shutil.rmtree(documents, ignore_errors=True)
        documents.mkdir()
        for file, text in texts.items():
            (documents / file).write_text(text)
        before = _community_ids(root) if root.exists() else set()
        run = self.settings.run
        executor = LocalExecutor(
            Store(str(root)),
            Models.from_settings(self.settings),
            run.max_failed_fraction,
            run.journal_flush_s,
        )
        done = index(
            str(documents), executor, self.settings, Observer(), allow_deletes=True, reset_communities=reset
        )
        return _cost(done, root, before, self.settings)

    def _copy(self, name: str, to: str) -> str:
        shutil.rmtree(self.folder / to, ignore_errors=True)
        shutil.copytree(self.folder / name, self.folder / to)
        return to


def _half(text: str, which: int) -> str:
    words = text.split(" ")
    middle = len(words) // 2
    return " ".join([words[:middle], words[middle:]][which])


def _cost(done: IndexResult, root: Path, before: set[str], settings: Settings) -> Cost:
    calls: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for row in done.accounts.rows():
        calls[row["stage"]] += row["calls"]
        tokens[row["stage"]] += row["prompt_tokens"] + row["completion_tokens"]
    after = _community_ids(root)
    modularity = done.manifest.counts["modularity"]
    return Cost(calls, tokens, len(after), len(after & before), modularity, _reset(root, settings))


def _community_ids(root: Path) -> set[str]:
    return set(open_index(str(root)).table("communities")["id"].to_pylist())


def _reset(root: Path, settings: Settings) -> float:
    """The modularity of a new partition of the index's graph."""
    opened = open_index(str(root))
    entities, edges = opened.table("entities"), opened.table("relationships")
    model = settings.model(settings.model_name("report"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    rows = zip(entities["title"].to_pylist(), entities["description"].to_pylist(), strict=True)
    sizes = [
        report_context.count_record_tokens(
            report_context.entity_record("", *row), lambda text: count_tokens(text, vocabulary)
        )
        for row in rows
    ]
    places = (pc.index_in(edges[end], value_set=entities["id"]) for end in ("source_id", "target_id"))
    source, target = (place.to_numpy().astype(np.int64) for place in places)
    keys = id_hash64(entities["id"])
    weight = edges["weight"].cast(pa.float64()).to_numpy()
    half = settings.reports.context_tokens // 2
    n = entities.num_rows
    return build_communities(
        n, source, target, weight, settings.communities, np.array(sizes), half, node_keys=keys
    ).modularity


def _line(cost: Cost, full: Cost) -> str:
    shares = [f"{s} {cost.tokens[s] / full.tokens[s]:.1%}" for s in STAGES if full.tokens[s]]
    kept = f"{cost.kept} of {cost.communities} communities kept, {cost.calls['report']} reports written"
    modularity = f"modularity {cost.modularity:.4f} (new partition {cost.new_modularity:.4f})"
    return f"{', '.join(shares)}; {kept}; {modularity}"


def _print(full: Cost, costs: Mapping[str, Sequence[Cost]]) -> None:
    """A table of means over the seeds. Shares are relative to the tokens of the full index."""

    def row(name: str, of_full: str, cells: Sequence[str]) -> None:
        print(f"| {' | '.join([name, of_full, *cells])} |")

    print()
    row("mean over the seeds", "full index", list(costs))
    row("---", "---", ["---"] * len(costs))
    sums = {s: (s,) for s in STAGES} | {"extract and describe": STAGES[:2], "all": STAGES}
    for name, stages in sums.items():
        whole = sum(full.tokens[s] for s in stages)
        if whole:
            shares = [[sum(c.tokens[s] for s in stages) / whole for c in of] for of in costs.values()]
            cells = [f"{mean(of):.1%}" + (f" (max: {max(of):.1%})" if name == "all" else "") for of in shares]
            row(f"tokens, {name}", f"{whole:,}", cells)
    for title, of_cost in (
        ("reports written", lambda c: c.calls["report"]),
        ("communities", lambda c: c.communities),
        ("of which kept", lambda c: c.kept),
    ):
        row(title, str(of_cost(full)), [f"{mean(of_cost(c) for c in of):.0f}" for of in costs.values()])
    row(
        "modularity, relative to a new partition",
        f"{full.modularity:.4f}",
        [
            f"{mean(c.modularity for c in of) / mean(c.new_modularity for c in of) - 1:+.2%}"
            for of in costs.values()
        ],
    )


if __name__ == "__main__":
    main()
