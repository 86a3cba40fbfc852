"""Compare reading the same Parquet files by path and as a Ray Data dataset: CPU time and driver memory.

    python benchmarks/dataset_input.py ../shared/data/2wiki/passages.jsonl.gz --tokens 2000000 10000000

The passages (.jsonl or .jsonl.gz with columns id, title and text) are repeated with different salts until the
number of tokens is reached, and written to Parquet files of 5,000 rows. Only the step `read`, from documents
to stored chunks, is measured, because all later steps are the same.

Prints the CPU time of all processes after Ray has started, and the driver's peak private memory. See
`processes.py` for how they are measured. Linux only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from processes import measure

ROWS_OF_A_FILE = 5000
WAYS = ("path", "dataset")


def write_rows(passages: Path, folder: Path, tokens: int) -> int:
    """Returns the number of rows."""
    from graphrag_ray.corpus.tokens import count_tokens

    with (gzip.open if passages.suffix == ".gz" else open)(passages, "rt") as stream:
        passage_rows = [json.loads(line) for line in stream]
    sizes = [count_tokens(row["text"], "cl100k_base") + 6 for row in passage_rows]

    def rows() -> Any:
        written = 0
        for salt in count():
            for row, size in zip(passage_rows, sizes, strict=True):
                if written >= tokens:
                    return
                written += size
                yield row | {"id": f"{row['id']}-{salt}", "text": f"{row['text']} (Copy {salt:04}.)"}

    n, every = 0, rows()
    while some := list(islice(every, ROWS_OF_A_FILE)):
        pq.write_table(pa.Table.from_pylist(some), folder / f"{n:08}.parquet")
        n += len(some)
    return n


def read_by(way: str, rows: str, root: str) -> None:
    """Read the rows in this process, started by `compare`."""
    from graphrag_ray.base.settings_file import parse_settings
    from graphrag_ray.corpus.parse import missing_column_fault
    from graphrag_ray.engine.input_rows import InputRows
    from graphrag_ray.engine.model_access import Models
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.engine.ray.cluster import connect
    from graphrag_ray.engine.ray.ray_executor import RayExecutor
    from graphrag_ray.indexing.run import Run
    from graphrag_ray.indexing.stages.read_stage import read_input
    from graphrag_ray.store.files import Store

    settings = parse_settings({"input": {"id_column": "id"}})
    with connect():
        executor = RayExecutor(Store(root), Models.from_settings(settings))
        source: str | InputRows = rows
        if way == "dataset":
            import ray.data

            source = InputRows(ray.data.read_parquet(rows))
            source.resolve(lambda columns: missing_column_fault(columns, settings.input))
        print("started", flush=True)
        began = time.monotonic()
        done = read_input(
            Run(executor, settings, {}, None, Observer()), source, add=False, allow_deletes=False
        )
        print("read", flush=True)
        parts = len(done.parts("documents"))
        print(json.dumps({**done.counts, "parts": parts, "seconds": time.monotonic() - began}), flush=True)
        executor.close()


def compare(passages: Path, tokens: int, ways: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        rows.mkdir()
        n = write_rows(passages, rows, tokens)
        size = sum(path.stat().st_size for path in rows.iterdir())
        print(f"{tokens:,} tokens, {n:,} rows, {size / 1e6:.1f} MB of parquet", flush=True)
        for way in ways:
            root = str(Path(folder) / way)
            command = [sys.executable, __file__, "--read-by", way, str(rows), root]
            used, printed = measure(
                command, lambda line: line.strip() if line[:4] in ("star", "read") else None
            )
            if used.exit_code:
                sys.exit(printed)
            done = json.loads(printed.strip().splitlines()[-1])
            lap = used.laps["read"]
            print(
                f"  by {way:8} {done['documents']:>8,} documents {done['chunks']:>8,} chunks "
                f"{done['parts']:>5,} parts {lap['wall_s']:>7.1f} s {lap['cpu_s']:>7.1f} CPU s "
                f"driver {used.laps['started']['driver_peak'] / 1e6:>5.0f} MB before, "
                f"{lap['driver_peak'] / 1e6:>5.0f} MB at its peak, "
                f"largest worker {used.worker_peak / 1e6:>5.0f} MB",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", type=Path, nargs="?")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000_000, 10_000_000])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--read-by", nargs=3, metavar=("WAY", "ROWS", "ROOT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read_by:
        read_by(*args.read_by)
        return
    for tokens in args.tokens:
        compare(args.passages, tokens, args.ways)


if __name__ == "__main__":
    main()
