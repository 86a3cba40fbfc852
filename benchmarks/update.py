"""What an update costs compared with the full index: `graphrag-ray index` after a change of the corpus.

    python benchmarks/update.py --tokens 1_000_000 10_000_000 --work /tmp/updates
    python benchmarks/update.py --tokens 1_000_000 --work /tmp/updates --endpoint --only nothing two-documents
    python benchmarks/update.py --tokens 1_000_000 --work /tmp/updates --s3
    python benchmarks/update.py --tokens 1_000_000 --work /tmp/updates --set communities.max_size=20 --rebuild

For each size, generates a corpus (`corpus.py`) and builds a full index, shown in the row "made". Each change
then starts from a copy of the full index and of the corpus:

- *nothing*: the same command again;
- *two-documents*: in one document, a fifth of the sentences are replaced with those of another; one is added;
- *one-percent*: 1% of the documents are changed in this way, 1% added and 1% deleted, in one run;
- *one-file*: all documents of one file get texts from another corpus, the one of the next seed.

Documents are identified by title (`input.id_column`), because deleting a line would otherwise renumber all
lines after it. Unchanged files keep their modification time.

The corpus and the full index, with its figures, stay in --work and are reused. The index is rebuilt if the
settings differ or with --rebuild, which is needed after a change of the code.

Measured (`processes.py`): wall time, CPU and peak memory of all processes; bytes read from files and pipes,
including the page cache and Python's modules; bytes written to disk. The endpoint and the S3 server do not
count. The command chooses whether to use Ray, unless --ray is set.

--endpoint  uses the simulated endpoint (`endpoint/`), without limits, instead of the offline engine
--s3        stores the index on a local S3 server (tests/s3_server.py), behind a proxy that counts requests
            and the bytes of their bodies. The local cache is empty before every run. Proxy and server share
            the cores with the run, so ignore wall time here

Prints tables for each size, and writes update-….json to --work. Rows are counted as changed / added /
deleted. Chunks are identified by their content, so a changed chunk counts as deleted and added.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from changed_corpus import SHARE, Corpus, edit, link_files, replace_file
from growth import MB, corpus, lap_of
from processes import Totals
from simulated import endpoint, measure_separately

from graphrag_ray.store import run_records, snapshots
from graphrag_ray.store.files import Store

TABLES = {
    "documents": "documents",
    "text_units": "chunks",
    "entities": "entities",
    "relationships": "relationships",
    "community_reports": "reports",
}
"""Tables whose changes are printed, and their names in the output."""
ENDPOINT = ("--speed", "200", "--jitter", "0.1")
BY_TITLE = "input.id_column=title"


@dataclass(frozen=True)
class Figures:
    """The resources used by a run and its effects.

    `calls` of models by stage; `changes`: changed, added and deleted rows by table, {} if there were none;
    `requests` to object storage by kind: number, bytes sent, bytes received.
    """

    used: Totals
    outcome: str
    calls: Mapping[str, int]
    changes: Mapping[str, Sequence[int]]
    requests: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Folder:
    """A local folder for indexes."""

    def __init__(self, work: Path) -> None:
        self.root = str(work / "index")
        self.options: Sequence[str] = ()
        self.env: dict[str, str] = {}

    def put(self, kept: Path | None) -> None:
        """Make the root a copy of a stored index, or empty."""
        shutil.rmtree(self.root, ignore_errors=True)
        if kept:
            # Hard links suffice: a store writes a new file and renames it, and never changes a file in place
            # (store/local_files.py), so the stored index does not change.
            link_files(kept, Path(self.root))

    def take(self, to: Path) -> None:
        """Store the index at the root."""
        link_files(Path(self.root), to)

    def store(self) -> Store:
        return Store(self.root)

    def requests(self) -> dict[str, tuple[int, int, int]]:
        """Requests since `put`."""
        return {}


class Bucket:
    """A bucket of an S3 server behind a proxy; both are those of the tests."""

    def __init__(self, work: Path, bucket: str, server: Any, proxy: Any) -> None:
        self.root, self._at = f"s3://{bucket}/index", f"{bucket}/index"
        self._server, self._proxy, self._cache = server, proxy, work / "cache"
        self.options = ("--set", f"storage.endpoint_url={proxy.address}")
        self.env = {
            "AWS_ACCESS_KEY_ID": server.owner.access,
            "AWS_SECRET_ACCESS_KEY": server.owner.secret,
            "GRAPHRAG_RAY_CACHE": str(self._cache),
        }
        os.environ |= self.env  # Read by `store`.
        self._before = self._counted()

    def put(self, kept: Path | None) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)
        files = self._server.files()
        if files.exists(self._at):
            files.rm(self._at, recursive=True)
        if kept:
            files.put(f"{kept}/", f"{self._at}/", recursive=True)
        self._before = self._counted()

    def take(self, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        self._server.files().get(f"{self._at}/", f"{to}/", recursive=True)

    def store(self) -> Store:
        return Store(self.root, {"endpoint_url": self._server.address})

    def requests(self) -> dict[str, tuple[int, int, int]]:
        self._proxy.wait_until_idle()
        now = [count - before for count, before in zip(self._counted(), self._before, strict=True)]
        return {kind: (now[0][kind], now[1][kind], now[2][kind]) for kind in sorted(now[0])}

    def _counted(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        proxy = self._proxy
        return proxy.counts(), Counter(proxy.sent), Counter(proxy.answered)


@contextmanager
def bucket(work: Path) -> Iterator[Bucket]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from s3_proxy import S3Proxy
    from s3_server import BUCKET, running

    folder = work / "s3-server"
    folder.mkdir(exist_ok=True)
    with running(folder) as server, S3Proxy(server.address) as proxy:
        yield Bucket(work, BUCKET, server, proxy)


class Bench:
    """Updates of the index of one corpus. `options` apply to every run."""

    def __init__(
        self, given: argparse.Namespace, tokens: int, at: Folder | Bucket, model: Sequence[str]
    ) -> None:
        self.given, self.tokens, self.at = given, tokens, at
        self.folder, self.planted = corpus(given.work, tokens, given.seed, given.exponent)
        kind = ("-endpoint" if given.endpoint else "") + ("-s3" if given.s3 else "")
        self.name = f"{self.folder.name}{kind}"
        self.kept = given.work / f"made-{self.name}"
        # The same path for all runs, because a different path would be a different INPUT.
        self.input = given.work / f"input-{self.name}"
        self.settings = [BY_TITLE, *given.set]
        self.options = [w for s in (BY_TITLE, *model, *given.set) for w in ("--set", s)]
        self.options += ["--ray"] if given.ray else []

    def changes(self) -> dict[str, Callable[[], None]]:
        """Functions that change INPUT, by name of the change."""
        files, seed = Corpus(self.folder), self.given.seed
        some = max(1, round(SHARE * sum(files.sizes)))

        def other_texts() -> None:
            other, _ = corpus(self.given.work, self.tokens, seed + 1, self.given.exponent)
            replace_file(files, self.input, Corpus(other))

        return {
            "nothing": lambda: None,
            "two-documents": lambda: edit(files, self.input, 1, 1, 0, seed),
            "one-percent": lambda: edit(files, self.input, some, some, some, seed),
            "one-file": other_texts,
        }

    def made(self) -> Figures:
        """Build the full index and store it, or reuse the stored one. Returns its figures."""
        figures = self.kept.with_suffix(".json")
        if figures.exists() and self.kept.exists() and not self.given.rebuild:
            stored = json.loads(figures.read_text("utf-8"))
            if stored.pop("settings") == self.settings:
                return Figures(**stored | {"used": Totals(**stored["used"])})
        shutil.rmtree(self.kept, ignore_errors=True)
        figures.unlink(missing_ok=True)
        link_files(self.folder, self.input)
        self.at.put(None)
        built = self.run()
        self.at.take(self.kept)
        figures.write_text(json.dumps(asdict(built) | {"settings": self.settings}, indent=2), "utf-8")
        return built

    def updated(self, change: Callable[[], None]) -> Figures:
        """Update a copy of the full index after a change."""
        link_files(self.folder, self.input)
        change()
        self.at.put(self.kept)
        return self.run()

    def run(self) -> Figures:
        command = [sys.executable, "-m", "graphrag_ray", "index", str(self.input), "--root", self.at.root]
        command += [*self.at.options, *self.options]
        env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | self.at.env
        # Do not reuse what an earlier run learned about the endpoint.
        env |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "GRAPHRAG_RAY_SETTINGS": str(self.given.work / "settings.yaml"),
        }
        used, printed = measure_separately(command, env, lap_of=lap_of)
        if used.exit_code:
            sys.exit(f"{' '.join(command)} ended with {used.exit_code}:\n{printed}")
        requests = self.at.requests()
        record, snapshot = run_records.latest_run(self.at.store()), snapshots.read_latest(self.at.store())
        assert record is not None
        assert snapshot is not None
        calls: dict[str, int] = {}
        for row in record.usage.get("stages", ()):
            calls[row["stage"]] = calls.get(row["stage"], 0) + row["calls"]
        counts = snapshot.run["changes"] if record.outcome == "committed" else {}
        rows = {name: [counts[name][n] for n in ("changed", "added", "removed")] for name in counts}
        return Figures(used, record.outcome, calls, rows, requests)


COLUMNS = (
    *("changed / added / deleted", *TABLES.values(), "model calls", "wall s", "of made", "CPU s", "of made"),
    *("driver MB", "largest worker MB", "all processes MB", "read MB", "written to disk MB"),
)
HEADER = f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|"


def figures_row(name: str, of: Figures, made: Figures) -> str:
    """A row of the table of runs, with the columns of `HEADER`."""
    used = of.used
    cells = [
        name,
        *(" / ".join(f"{n:,}" for n in of.changes.get(table, (0, 0, 0))) for table in TABLES),
        f"{sum(of.calls.values()):,}",
        f"{used.wall_s:.1f}",
        f"{used.wall_s / made.used.wall_s:.0%}",
        f"{used.total_cpu_s:.1f}",
        f"{used.total_cpu_s / made.used.total_cpu_s:.0%}",
        f"{used.driver_peak / MB:.0f}",
        f"{used.worker_peak / MB:.0f}",
        f"{used.all_peak / MB:.0f}",
        f"{used.read / MB:,.0f}",
        f"{used.written / MB:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def requests_table(runs: Mapping[str, Figures]) -> str:
    """Requests to object storage by run, and the bytes of their bodies."""
    kinds = sorted({kind for figures in runs.values() for kind in figures.requests})
    lines = [f"| | {' | '.join(kinds)} | all | MB sent | MB received |", "| --- " * (len(kinds) + 4) + "|"]
    for name, figures in runs.items():
        counts = [figures.requests.get(kind, (0, 0, 0)) for kind in kinds]
        n, sent, received = (sum(column) for column in zip(*counts, strict=True))
        cells = [*(f"{count[0]:,}" for count in counts), f"{n:,}", f"{sent / MB:.1f}", f"{received / MB:.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def laps_table(runs: Mapping[str, Figures]) -> str:
    """Wall time and CPU seconds by step and run."""
    names = list(dict.fromkeys(lap for figures in runs.values() for lap in figures.used.laps))
    head = " | ".join(f"{name}: wall s | CPU s" for name in runs)
    lines = [f"| step | {head} |", "| --- " * (1 + 2 * len(runs)) + "|"]
    for lap in names:
        of = [figures.used.laps.get(lap) for figures in runs.values()]
        cells = [f"{used['wall_s']:.1f} | {used['cpu_s']:.1f}" if used else " | " for used in of]
        lines.append(f"| {lap} | {' | '.join(cells)} |")
    return "\n".join(lines)


def model_settings(url: str | None) -> list[str]:
    """Options for the simulated endpoint at an address; None: the offline engine."""
    at = "models.default.endpoints.0"
    asked = [f"{at}.base_url={url}", f"{at}.api_key_env=null", f"{at}.max_in_flight=32"]
    return ["models.default.provider=openai", "models.default.model=m", *asked] if url else []


def main() -> None:
    args = _parser().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        at = stack.enter_context(bucket(args.work)) if args.s3 else Folder(args.work)
        url = stack.enter_context(endpoint(*ENDPOINT) if args.endpoint else nullcontext())
        for tokens in args.tokens:
            _measure(Bench(args, tokens, at, model_settings(url)))


def _measure(bench: Bench) -> None:
    runs = {"made": bench.made()}
    print(f"\n{bench.planted['tokens']:,} tokens, {bench.name}\n\n{HEADER}")
    print(figures_row("made", runs["made"], runs["made"]), flush=True)
    for name, change in bench.changes().items():
        if name in bench.given.only:
            runs[name] = bench.updated(change)
            print(figures_row(name, runs[name], runs["made"]), flush=True)
    print("", laps_table(runs), sep="\n")
    if bench.given.s3:
        print("", requests_table(runs), sep="\n", flush=True)
    result = {
        "tokens": bench.planted["tokens"],
        "settings": bench.settings,
        "runs": {n: asdict(f) for n, f in runs.items()},
    }
    (bench.given.work / f"update-{bench.name}.json").write_text(json.dumps(result, indent=2), "utf-8")
    bench.at.put(None)
    shutil.rmtree(bench.input)


def _parser() -> argparse.ArgumentParser:
    changes = ["nothing", "two-documents", "one-percent", "one-file"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--seed", type=int, default=1, help="seed of the corpus and of its changes")
    parser.add_argument(
        "--exponent", type=float, default=0.65, help="Heaps exponent of the vocabulary of names"
    )
    parser.add_argument("--work", type=Path, default=Path("updates"), help="folder for corpora and indexes")
    parser.add_argument(
        "--only", nargs="+", default=changes, choices=changes, help="changes to measure; all by default"
    )
    parser.add_argument("--endpoint", action="store_true", help="use the simulated endpoint")
    parser.add_argument("--s3", action="store_true", help="store the index on a local S3 server")
    parser.add_argument("--ray", action="store_true", help="use Ray in every run")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the full index")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of the index")
    return parser


if __name__ == "__main__":
    main()
