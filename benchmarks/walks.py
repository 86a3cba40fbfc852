"""CPU and memory of a walk over names and chunks in a large index, and its agreement with exact PageRank.

    python benchmarks/walks.py --links 1_000_000 10_000_000
    python benchmarks/walks.py --links 1_000_000 --exact
    python benchmarks/walks.py --titles 10_000 100_000 1_000_000

Builds an index with this many links in --work. Each chunk has 20 names drawn by Zipf's law, so the most
frequent name occurs in some percent of all chunks and most names in a few, and the title of its document. The
index is written in shards of 131,072 chunks, like a real one, and memory-mapped. Each question starts from
one to three names, drawn in proportion to their frequency, and from 100 chunks with weights like those of
keyword search.

Questions run in this process. Prints the median and the 95th percentile of CPU time over a hundred questions,
and the largest increase in private memory after a question. Memory-mapped files do not count.

--exact compares the first 10 and 100 chunks with those of igraph's personalised PageRank (prpack), and prints
igraph's CPU time. igraph holds the whole graph in memory.

--titles measures instead how long it takes to find this many titles, of one to four words, in a million words
of text, which are drawn by Zipf's law. Prints measurements; asserts nothing.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base.ids import name_id
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.search import name_links
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.pagerank import DAMPING, walk
from graphrag_ray.store.search.title_matcher import TitleMatcher

NAMES_OF_CHUNK = 20
SHARD_CHUNKS = 131_072
NAMES_FOR_LINKS = 0.35
"""Distinct names per link, as in indexes built with the offline engine."""
ZIPF = 1.05
TITLE_WEIGHT = 10
QUESTIONS, K = 100, 50
VOCABULARY = 200_000


def chunk_id(number: int) -> str:
    return f"{number:016x}" * 2


def draw_names(n_chunks: int, n_names: int, rng: np.random.Generator) -> Any:
    """[n_chunks, NAMES_OF_CHUNK] numbers of names."""
    ranks = np.arange(1, n_names + 1, dtype=np.float64)
    share = np.cumsum(ranks**-ZIPF)
    return np.searchsorted(share / share[-1], rng.random((n_chunks, NAMES_OF_CHUNK))).astype(np.int64)


def build_shards(store: Store, n_links: int) -> tuple[list[NameLinks], Any, list[str]]:
    """Shards, the names of each chunk, and the ids of all names."""
    n_chunks = n_links // (NAMES_OF_CHUNK + 1)
    n_names = int(n_links * NAMES_FOR_LINKS)
    of = draw_names(n_chunks, n_names, np.random.default_rng(1))
    names = [name_id(f"name {n}") for n in range(n_names)]
    shards = []
    for start in range(0, n_chunks, SHARD_CHUNKS):
        chunk_names = of[start : start + SHARD_CHUNKS]
        known, number = np.unique(chunk_names, return_inverse=True)
        texts = {names[n]: f"name {n}" for n in known.tolist()}
        texts |= {name_id(f"title {start + n}"): f"title {start + n}" for n in range(len(chunk_names))}
        chunk = np.repeat(np.arange(len(chunk_names)), NAMES_OF_CHUNK)
        titles = np.arange(len(chunk_names))
        data = name_links.build(
            [chunk_id(start + n) for n in range(len(chunk_names))],
            texts,
            np.concatenate([chunk, titles]),
            np.concatenate([number.reshape(-1), len(known) + titles]),
            np.concatenate([np.ones(len(chunk), np.int64), np.full(len(chunk_names), TITLE_WEIGHT)]),
        )
        part = index_files.write_index_file(store, "walks", f"{n_links:x}{start:x}", data, len(chunk_names))
        shards.append(name_links.read(index_files.open_part(store, part)))
    return shards, of, names


def question(of: Any, names: list[str], n: int) -> tuple[dict[str, float], dict[str, float]]:
    rng = np.random.default_rng(n)
    some = rng.integers(0, len(of), 3)
    common = [int(of[c, rng.integers(NAMES_OF_CHUNK)]) for c in some[: 1 + n % 3]]
    begin = {names[number]: float(rng.uniform(0.001, 1)) for number in common}
    scores = np.sort(rng.uniform(0.4, 1, 100))[::-1]
    chunks = rng.integers(0, len(of), 100)
    words = {chunk_id(c): 0.05 * float(s) ** 20 for c, s in zip(chunks.tolist(), scores, strict=True)}
    return begin, words


def peak_kb() -> int:
    """Private memory of this process in KB, without mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def exact_scores(of: Any, names: list[str]) -> Any:
    import igraph

    n_chunks, n_names = len(of), len(names)
    chunk = np.repeat(np.arange(n_chunks), NAMES_OF_CHUNK)
    pairs = np.unique(np.stack([chunk, n_chunks + of.reshape(-1)], axis=1), axis=0)
    titles = np.stack([np.arange(n_chunks), n_chunks + n_names + np.arange(n_chunks)], axis=1)
    graph = igraph.Graph(2 * n_chunks + n_names, np.concatenate([pairs, titles]))
    weights = np.concatenate([np.ones(len(pairs)), np.full(n_chunks, TITLE_WEIGHT)])
    place = {name: n_chunks + n for n, name in enumerate(names)}

    def scores(begin: dict[str, float], words: dict[str, float]) -> Any:
        reset = np.zeros(graph.vcount())
        for name, weight in begin.items():
            reset[place[name]] += weight
        for chunk_, weight in words.items():
            reset[int(chunk_[:16], 16)] += weight
        ranks = graph.personalized_pagerank(
            directed=False, damping=DAMPING, reset=reset.tolist(), weights=weights.tolist()
        )
        return np.array(ranks[:n_chunks])

    return scores


def measure_titles(n_titles: int) -> None:
    rng = np.random.default_rng(1)
    share = np.cumsum(np.arange(1, VOCABULARY + 1, dtype=np.float64) ** -1)

    def draw(n: int) -> list[str]:
        return [f"w{i:x}" for i in np.searchsorted(share / share[-1], rng.random(n)).tolist()]

    lengths = rng.integers(1, 5, n_titles)
    words, ends = draw(int(lengths.sum())), np.cumsum(lengths).tolist()
    titles = [" ".join(words[end - size : end]) for end, size in zip(ends, lengths.tolist(), strict=True)]
    texts = [" ".join(draw(100)) for _ in range(10_000)]
    before, started = peak_kb(), time.process_time()
    matcher = TitleMatcher.build(pa.array(titles))
    built = time.process_time()
    for first in range(0, len(texts), 500):
        matcher.find(texts[first : first + 500])
    found = time.process_time()
    size = (pa.total_allocated_bytes() + matcher.keys.nbytes) / 1e6
    print(
        f"| {n_titles:,} | {len(matcher):,} | {built - started:.1f} | {found - built:.1f} | {size:.0f} "
        f"| {(peak_kb() - before) / 1e3:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--work", type=Path, default=Path("/tmp/walks"))
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--titles", type=int, nargs="+")
    args = parser.parse_args()
    if args.titles:
        print("| titles | distinct | CPU s to hash them | CPU s per 1M words | size, MB | memory, MB |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        for n_titles in args.titles:
            measure_titles(n_titles)
        return
    print("| links | chunks | names | shards, MB | CPU ms, median | CPU ms, p95 | memory, MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n_links in args.links:
        store = Store(str(args.work / str(n_links)))
        shards, of, names = build_shards(store, n_links)
        size = sum(len(shard.source.data) for shard in shards) / 1e6
        walk(shards, *question(of, names, 10_000), K)
        before, times, most = peak_kb(), [], 0
        for n in range(QUESTIONS):
            started = time.process_time()
            walk(shards, *question(of, names, n), K)
            times.append(1e3 * (time.process_time() - started))
            most = max(most, peak_kb() - before)
        print(
            f"| {n_links:,} | {len(of):,} | {len(names) + len(of):,} | {len(shards)}, {size:,.0f} "
            f"| {np.median(times):.0f} | {np.percentile(times, 95):.0f} | {most / 1e3:.0f} |",
            flush=True,
        )
        if not args.exact:
            continue
        scores, overlaps, seconds = exact_scores(of, names), {10: list[float](), 100: list[float]()}, []
        for n in range(10):
            begin, words = question(of, names, n)
            started = time.process_time()
            best = np.argsort(-scores(begin, words), kind="stable")
            seconds.append(time.process_time() - started)
            for k, overlap in overlaps.items():
                walked = {int(id_[:16], 16) for id_, _, _ in walk(shards, begin, words, k)}
                overlap.append(len(walked & set(best[:k].tolist())) / k)
        shares = ", ".join(f"{np.mean(overlap):.3f} of the first {k}" for k, overlap in overlaps.items())
        print(f"\nAgreement with igraph: {shares}; igraph takes {np.median(seconds):.1f} CPU s\n")


if __name__ == "__main__":
    main()
