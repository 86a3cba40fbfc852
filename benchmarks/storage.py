"""Requests to object storage, by kind, of an index run, the same run repeated, a status and a query.

    python benchmarks/storage.py demo/corpus

Uses the S3 server of the tests (moto by default; see tests/s3_server.py) behind a proxy that counts requests.
Prints one row per command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from s3_proxy import S3Proxy
from s3_server import BUCKET, running


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of the index")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder)) as server,
        S3Proxy(server.address) as proxy,
    ):
        keys = {"AWS_ACCESS_KEY_ID": server.owner.access, "AWS_SECRET_ACCESS_KEY": server.owner.secret}
        env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | keys
        root = ["--root", f"s3://{BUCKET}/index", "--set", f"storage.endpoint_url={proxy.address}"]
        sets = [word for setting in args.set for word in ("--set", setting)]
        commands = {
            "index": ["index", str(args.corpus), *root, *sets],
            "index, repeated": ["index", str(args.corpus), *root],
            "status": ["status", *root],
            "query": ["query", "What are the main themes?", *root],
        }
        counts = {}
        for name, command in commands.items():
            before = len(proxy.seen)
            subprocess.run(
                [sys.executable, "-m", "graphrag_ray", *command], env=env, check=True, stdout=sys.stderr
            )
            counts[name] = Counter(seen.kind for seen in proxy.seen[before:])
    kinds = sorted({kind for count in counts.values() for kind in count})
    print(f"| command | {' | '.join(kinds)} | all |\n{'| --- ' * (len(kinds) + 2)}|")
    for name, count in counts.items():
        print(f"| {name} | {' | '.join(f'{count[k]:,}' for k in kinds)} | {count.total():,} |")


if __name__ == "__main__":
    main()
