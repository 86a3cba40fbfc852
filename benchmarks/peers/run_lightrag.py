"""Index a folder of .txt files with LightRAG. Run with a Python in which it is installed.

    python run_lightrag.py INPUT WORK BASE_URL IN_FLIGHT

Uses LightRAG's defaults, except for the endpoint, chunking, gleanings and concurrency. Its default of 3
documents at a time cannot keep 25 calls in flight when each document has only two chunks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vocabulary import use_cl100k

DIMENSIONS = 1536


async def index(source: str, folder: str, base_url: str, in_flight: int) -> dict[str, Any]:
    from lightrag import LightRAG
    from lightrag.llm.openai import openai_complete_if_cache, openai_embed
    from lightrag.utils import EmbeddingFunc

    at = {"base_url": base_url, "api_key": "none"}

    async def complete(
        prompt: str, system_prompt: Any = None, history_messages: Any = None, **kw: Any
    ) -> str:
        return await openai_complete_if_cache(
            "gpt-4o-mini", prompt, system_prompt=system_prompt, history_messages=history_messages, **at, **kw
        )

    embed = partial(openai_embed.func, model="text-embedding-3-small", **at)
    rag = LightRAG(
        working_dir=folder,
        chunk_token_size=600,
        chunk_overlap_token_size=100,
        entity_extract_max_gleaning=0,
        llm_model_func=complete,
        llm_model_max_async=in_flight,
        embedding_func=EmbeddingFunc(embedding_dim=DIMENSIONS, max_token_size=8192, func=embed),
        embedding_func_max_async=in_flight,
        max_parallel_insert=in_flight,
        max_parallel_parse_native=in_flight,
        max_parallel_analyze=in_flight,
    )
    await rag.initialize_storages()
    paths = sorted(Path(source).glob("*.txt"))
    try:
        await rag.ainsert([p.read_text("utf-8") for p in paths], file_paths=[p.name for p in paths])
        nodes = await rag.chunk_entity_relation_graph.get_all_nodes()
        edges = await rag.chunk_entity_relation_graph.get_all_edges()
        status = await rag.get_processing_status()
    finally:
        await rag.finalize_storages()
    chunks = json.loads((Path(folder) / "kv_store_text_chunks.json").read_text("utf-8"))
    return {
        "chunks": len(chunks),
        "entities": len(nodes),
        "relationships": len(edges),
        "status": status,
        "version": version("lightrag-hku"),
    }


def main(source: str, folder: str, base_url: str, in_flight: str) -> int:
    use_cl100k()
    built = asyncio.run(index(source, folder, base_url, int(in_flight)))
    failed = built.pop("status").get("failed", 0)
    print("built " + json.dumps(built), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
