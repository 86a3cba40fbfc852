"""Index a folder of .txt files with microsoft/graphrag. Run with a Python in which it is installed.

    python run_graphrag.py INPUT WORK BASE_URL IN_FLIGHT

Runs the standard pipeline with its defaults, except for the endpoint, concurrency, chunking and gleanings.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from vocabulary import use_cl100k

DIMENSIONS = 1536


def settings(source: Path, work: Path, base_url: str, in_flight: int) -> dict[str, Any]:
    model = {"model_provider": "openai", "api_base": base_url, "api_key": "none",
             "retry": {"type": "exponential_backoff"}}  # fmt: skip
    return {
        "completion_models": {"default_completion_model": model | {"model": "gpt-4o-mini"}},
        "embedding_models": {"default_embedding_model": model | {"model": "text-embedding-3-small"}},
        "concurrent_requests": in_flight,
        "async_mode": "asyncio",
        "chunking": {"type": "tokens", "size": 600, "overlap": 100, "encoding_model": "cl100k_base"},
        "extract_graph": {"max_gleanings": 0},
        "input": {"type": "text"},
        "input_storage": {"type": "file", "base_dir": str(source)},
        "output_storage": {"type": "file", "base_dir": str(work / "output")},
        "cache": {"type": "json", "storage": {"type": "file", "base_dir": str(work / "cache")}},
        "reporting": {"type": "file", "base_dir": str(work / "logs")},
        "vector_store": {"type": "lancedb", "db_uri": str(work / "lancedb"), "vector_size": DIMENSIONS},
    }


def main(source: str, folder: str, base_url: str, in_flight: str) -> int:
    use_cl100k()
    from graphrag.api import build_index
    from graphrag.config.load_config import load_config

    work = Path(folder)
    config = settings(Path(source), work, base_url, int(in_flight))
    (work / "settings.yaml").write_text(json.dumps(config))
    outputs = asyncio.run(build_index(load_config(root_dir=work)))
    errors = [f"{o.workflow}: {o.error}" for o in outputs if o.error is not None]
    tables = ("text_units", "entities", "relationships", "communities", "community_reports")
    rows = {t: len(pd.read_parquet(work / "output" / f"{t}.parquet", columns=["id"])) for t in tables}
    built = {
        "chunks": rows["text_units"],
        "entities": rows["entities"],
        "relationships": rows["relationships"],
        "communities": rows["communities"],
        "reports": rows["community_reports"],
        "version": version("graphrag"),
    }
    print("\n".join(errors))
    print("built " + json.dumps(built), flush=True)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
