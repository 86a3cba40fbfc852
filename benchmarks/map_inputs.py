"""What a map over many small inputs costs on Ray: `RayExecutor.map` with numpy slices as inputs.

python benchmarks/map_inputs.py --inputs 5000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.distributed.cluster import connected
from graphrag_ray.distributed.executor import RayExecutor
from graphrag_ray.engine.gateways import Models
from graphrag_ray.settings_file import parse_settings
from graphrag_ray.store.files import Store

INTS = 250


def added_up(store: Store, x: tuple[int, npt.NDArray[np.int64]]) -> Iterator[dict[str, pa.Table]]:
    number, values = x
    # One part for all: what is measured is how inputs get there.
    yield {"sums": pa.table({"sum": [int(values.sum()) - number * INTS]})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=5_000)
    args = parser.parse_args()
    inputs = [(i, np.full(INTS, i)) for i in range(args.inputs)]
    with tempfile.TemporaryDirectory() as folder, connected():
        executor = RayExecutor(Store(folder), Models.of(parse_settings({})))
        executor.map("warm", added_up, inputs[:2])
        started = time.monotonic()
        written = executor.map("sums", added_up, inputs)
        seconds = time.monotonic() - started
        assert all(len(w["sums"]) == 1 for w in written)
        assert len({w["sums"][0].path for w in written}) == 1
    print(f"{args.inputs} inputs: {seconds:.1f} s, {seconds / args.inputs * 1000:.2f} ms each")


if __name__ == "__main__":
    main()
