"""Index a folder of .txt files with nano-graphrag. Run with a Python in which it is installed.

    OPENAI_BASE_URL=… OPENAI_API_KEY=none python run_nano_graphrag.py INPUT WORK BASE_URL IN_FLIGHT

Uses nano-graphrag's defaults, except for concurrency, chunking and gleanings.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from vocabulary import use_cl100k


def main(source: str, folder: str, _: str, in_flight: str) -> int:
    use_cl100k()
    from nano_graphrag import GraphRAG

    rag = GraphRAG(
        working_dir=folder,
        chunk_token_size=600,
        chunk_overlap_token_size=100,
        entity_extract_max_gleaning=0,
        best_model_max_async=int(in_flight),
        cheap_model_max_async=int(in_flight),
        embedding_func_max_async=int(in_flight),
    )
    rag.insert([path.read_text("utf-8") for path in sorted(Path(source).glob("*.txt"))])
    graph = rag.chunk_entity_relation_graph._graph
    reports = json.loads((Path(folder) / "kv_store_community_reports.json").read_text("utf-8"))
    built = {
        "chunks": len(json.loads((Path(folder) / "kv_store_text_chunks.json").read_text("utf-8"))),
        "entities": graph.number_of_nodes(),
        "relationships": graph.number_of_edges(),
        "communities": len(reports),
        "reports": sum(bool(report["report_string"]) for report in reports.values()),
        "version": version("nano-graphrag"),
    }
    print("built " + json.dumps(built), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
