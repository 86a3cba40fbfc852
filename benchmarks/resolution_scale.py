"""What entity resolution costs before a model is asked, by number of names.

    python benchmarks/resolution_scale.py --names 1_000_000

Generates documents with names of one to five words, of which some are variants of others (other spelling, short
form, plural), with a description per mention and relationships between names of a document. Then runs stage
`resolve` with mode model up to the point where it would send its first request, and prints the CPU seconds, the
peak memory, and the numbers of requests and candidates. Asserts that no request has more candidates than
`resolution.max_candidates`.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.ids import document_id, entity_id, relationship_id, text_unit_id
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.resolve_stage import resolve_names
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, write_part

NAMES_PER_DOCUMENT = 20
DOCUMENTS_PER_GROUP = 500
SYLLABLES = [c + v + e for c in "bdfgklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "s")]
TYPES = ("PERSON", "ORGANIZATION", "LOCATION", "PRODUCT", "CONCEPT")


class Stop(Exception):
    """Ends the stage before its first request."""


def words(n: int, rng: np.random.Generator) -> list[str]:
    drawn = rng.choice(SYLLABLES, (n, 3))
    return ["".join(row).upper() for row in drawn]


def names(n: int, rng: np.random.Generator) -> list[str]:
    """Names of words with a Zipf distribution; a tenth are variants of earlier names."""
    vocabulary = np.array(words(max(100, n // 4), rng), object)
    rank = np.minimum(rng.zipf(1.3, (n, 4)) - 1, len(vocabulary) - 1)
    lengths = rng.integers(1, 5, n)
    made = [
        " ".join(vocabulary[rank[i, : lengths[i]]]) + f" {vocabulary[i % len(vocabulary)]}" for i in range(n)
    ]
    for i in range(10, n, 10):
        of = made[i - int(rng.integers(1, 10))]
        made[i] = (of + "S", of.rpartition(" ")[2], of[:-2] + of[-1], f"THE {of}")[int(rng.integers(4))] or of
    return made


def group(store: Store, number: int, made: Sequence[str], rng: np.random.Generator) -> list[list[Part]]:
    entities, relationships, units, documents = [], [], [], []
    for at in range(0, len(made), NAMES_PER_DOCUMENT):
        found = list(dict.fromkeys(made[at : at + NAMES_PER_DOCUMENT]))
        document = document_id(f"{number}/{at}")
        unit = text_unit_id(document, "text", 0)
        documents.append(
            {"id": document, "title": f"Document {number}/{at}", "path": f"{number}/{at}", "row": ""}
        )
        units.append({"id": unit, "document_id": document, "text": ". ".join(found), "position": 0})
        place = {"text_unit_id": unit, "document_id": document, "position": 0, "turn": 0}
        for n, name in enumerate(found):
            type_ = TYPES[len(name) % len(TYPES)]
            text = f"{name} is known for {made[int(rng.integers(len(made)))].lower()} and {found[0].lower()}."
            entities.append(
                {
                    "entity_id": entity_id(name),
                    "title": name,
                    "type": type_,
                    "description": text,
                    "ordinal": n,
                    **place,
                }
            )
            if n:
                pair = (found[n - 1], name)
                relationships.append(
                    {
                        "relationship_id": relationship_id(*pair),
                        "source": pair[0],
                        "target": pair[1],
                        "description": "",
                        "strength": 1.0,
                        "ordinal": n,
                        **place,
                    }
                )
    tables = (
        ("found_entities", entities, schema.ENTITY_INSTANCES),
        ("found_relationships", relationships, schema.RELATIONSHIP_INSTANCES),
        ("text_units", units, schema.TEXT_UNITS),
        ("documents", documents, schema.DOCUMENTS),
    )
    return [
        [write_part(store, name, pa.Table.from_pylist(rows, schema=columns))]
        for name, rows, columns in tables
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    rng = np.random.default_rng(40)
    made = names(options.names, rng)
    per_group = NAMES_PER_DOCUMENT * DOCUMENTS_PER_GROUP
    model = {"provider": "openai", "model": "any", "endpoints": [{"base_url": "http://127.0.0.1:9/v1"}]}
    settings = parse_settings({"models": {"default": model}, "resolution": {"mode": "model"}})
    with TemporaryDirectory() as root:
        store = Store(root)
        groups = [group(store, at, made[at : at + per_group], rng) for at in range(0, len(made), per_group)]
        entities, relationships, units, documents = (list(column) for column in zip(*groups, strict=True))
        extraction = Result({"found_entities": entities, "found_relationships": relationships})
        corpus = Result({"text_units": units, "documents": documents})
        del made
        executor = LocalExecutor(store, Models.from_settings(settings), pool=ProcessPool(options.processes))
        run = Run(executor, settings, load_prompts(), None, Observer())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter(), cpu()
        items: list[Part] = []

        def stop(parts: Sequence[Part]) -> None:
            items.extend(parts)
            raise Stop

        with suppress(Stop):
            resolve_names(run, corpus, extraction, Result(), EntityNames(), stop)
        seconds = time.perf_counter() - started[0]
        executor.pool.close()
        used = cpu() - started[1]
        rows = [row for part in items for row in read_part(store, part, ["kind", "candidates"]).to_pylist()]
        sizes = [len(row["candidates"] or ()) for row in rows if row["kind"] == "same"]
        assert max(sizes, default=0) <= settings.resolution.max_candidates
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print("| names | CPU s | s | peak MB (before) | per process MB | requests | candidates |")
        print(
            f"| {options.names:,} | {used:.0f} | {seconds:.0f} | {peak / 1024:.0f} ({before / 1024:.0f}) | "
            f"{child / 1024:.0f} | {len(rows):,} | {sum(sizes):,} |"
        )


def cpu() -> float:
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    main()
