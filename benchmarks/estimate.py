"""The accuracy of `graphrag-ray estimate`: compare its forecast with a finished index.

    python benchmarks/estimate.py INPUT --index ROOT [--learn ROOT] [--sample N]

--index is an index of INPUT that was built in a single run; its settings are used. --learn is a trial index
of a few documents of INPUT, whose replies calibrate the forecast. Without it, the forecast relies on its
assumptions.

Prints estimated and actual calls, tokens, cost and seconds by step. The total of the seconds includes steps
without model calls, but not the start of the process.
"""

from __future__ import annotations

import argparse
import time

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.stored_settings import without_machine_settings
from graphrag_ray.indexing.estimate import SAMPLE_CHUNKS, estimate
from graphrag_ray.indexing.status import index_status
from graphrag_ray.store.files import Store
from graphrag_ray.store.snapshots import open_latest

COLUMNS = ("calls", "prompt_tokens", "completion_tokens", "cost_usd", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input")
    parser.add_argument("--index", required=True, metavar="ROOT")
    parser.add_argument("--learn", metavar="ROOT")
    parser.add_argument("--sample", type=int, default=SAMPLE_CHUNKS)
    args = parser.parse_args()
    store = Store(args.index)
    settings = parse_settings(without_machine_settings(open_latest(store).settings))
    wall, cpu = time.perf_counter(), time.process_time()
    predicted = estimate(args.input, settings, root=args.learn, sample=args.sample)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    actual = index_status(store)
    rows = {s["stage"]: {**s, **s["volume"]} for s in map(as_row, predicted.stages)}
    print(f"{'':14}" + "".join(f"{c:>38}" for c in COLUMNS))
    print(f"{'':14}" + "estimate      actual  deviation".rjust(38) * len(COLUMNS))
    sums = {c: [0.0, 0.0] for c in COLUMNS}
    for used in actual["usage"]:
        row = rows.get(used["stage"], {})
        show(used["stage"], {c: (row.get(c) or 0.0, used[c] or 0.0) for c in COLUMNS})
        for c in COLUMNS:
            sums[c][0] += row.get(c) or 0.0
            sums[c][1] += used[c] or 0.0
    sums["seconds"] = [predicted.totals["seconds"] or 0.0, sum(actual["run"]["seconds"].values())]
    show("total", {c: (sums[c][0], sums[c][1]) for c in COLUMNS})
    tokens = [sums["prompt_tokens"][i] + sums["completion_tokens"][i] for i in (0, 1)]
    print(f"\ntotal tokens  {deviation(*tokens)}")
    for name in ("entities", "relationships", "communities"):
        print(
            f"{name:14}{predicted.graph[name]:>14,.0f}{actual['counts'][name]:>12,}"
            f"{deviation(predicted.graph[name], actual['counts'][name]):>12}"
        )
    print(f"\nthe forecast took {wall:.1f} s ({cpu:.1f} s of CPU)")


def as_row(stage) -> dict:
    v = stage.volume
    volume = {c: getattr(v, c) for c in COLUMNS[:3]}
    seconds = stage.bound.seconds if stage.bound else None
    return {"stage": v.stage, "cost_usd": stage.cost_usd, "seconds": seconds, "volume": volume}


def show(name: str, pairs: dict[str, tuple[float, float]]) -> None:
    cells = "".join(
        f"{number(a, c):>16}{number(b, c):>12}{deviation(a, b):>10}" for c, (a, b) in pairs.items()
    )
    print(f"{name:14}{cells}")


def number(value: float, column: str) -> str:
    return f"{value:,.4f}" if column == "cost_usd" else f"{value:,.0f}"


def deviation(estimated: float, actual: float) -> str:
    return f"{estimated / actual - 1:+.1%}" if actual else "-"


if __name__ == "__main__":
    main()
