"""How many words of text a token of a reply stands for, by kind of prompt.

    python benchmarks/reply_words.py REPLIES.jsonl[.gz]     # rows with `kind` and `reply`
    python benchmarks/reply_words.py INDEX                  # the journals of an index

Prompts limit replies in words, because models count words better than tokens, while endpoints cut replies at
a number of tokens. References, JSON syntax and names cost tokens but hardly any words. Words are counted as a
writer counts them: those of the text, without references, JSON keys and punctuation. The last column is the
lower decile over replies. `WORDS_PER_TOKEN` in `base/prompts.py` follows from these figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.context_records import strip_references
from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.corpus.tokens import count_tokens
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import list_parts

VOCABULARIES = ("cl100k_base", "o200k_base")
MIN_TOKENS = 30
"""Shorter replies, such as yes and no, say nothing about a limit."""
_WORD = re.compile(r"\w")


def read_replies(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, reply) of a file of replies, or of the journals of an index."""
    if path.is_dir():
        store, columns = Store(str(path)), ["kind", "prompt", "reply"]
        for part in (part for name in JOURNALS for part in list_parts(store, name)):
            for row in parquet.read_columns(store, part.path, columns, part.bytes).to_pylist():
                if row["kind"] == "turn":
                    yield row["prompt"], row["reply"] or ""
        return
    data = path.read_bytes()
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
        row = json.loads(line)
        yield row["kind"], row["reply"]


def texts_of(value: Any) -> list[str]:
    """All strings in a JSON value, without its keys."""
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return [text for child in children for text in texts_of(child)]
    return [value] if isinstance(value, str) else []


def count_words(reply: str) -> int:
    start, end = reply.find("{"), reply.rfind("}")
    try:
        text = " ".join(texts_of(json.loads(reply[start : end + 1])))
    except ValueError:
        text = reply
    return sum(bool(_WORD.search(word)) for word in strip_references(text).split())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("replies", type=Path)
    by_kind: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for kind, reply in read_replies(parser.parse_args().replies):
        tokens = [count_tokens(reply, vocabulary) for vocabulary in VOCABULARIES]
        if min(tokens) >= MIN_TOKENS:
            by_kind[kind].append((count_words(reply), *tokens))
    print("| prompt | replies | words | words per token, cl100k | o200k | lower decile |")
    print("|---|--:|--:|--:|--:|--:|")
    for kind, rows in sorted(by_kind.items()):
        counts: npt.NDArray[np.float64] = np.array(rows, dtype=np.float64)
        total, *tokens = counts.sum(axis=0)
        means = " | ".join(f"{total / n:.2f}" for n in tokens)
        decile = np.quantile(counts[:, 0] / np.max(counts[:, 1:], axis=1), 0.1)
        print(f"| {kind} | {len(rows)} | {total:,.0f} | {means} | {decile:.2f} |")


if __name__ == "__main__":
    main()
