"""The corpus of the growth benchmark: planted names can be found, and growth matches its description."""

import json
from itertools import islice

import pytest
from corpus import HUB, documents, write_corpus

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatRequest
from graphrag_ray.corpus.chunks import split_into_chunks
from graphrag_ray.graph.delimited_records import COMPLETION, DELIMITERS, parse_records
from graphrag_ray.offline import answer

TOKENS = 60_000
TYPES = "person, organization, location, event, work, concept"


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("growth") / "corpus"
    return out, write_corpus(out, TOKENS, seed=3)


@pytest.fixture(scope="module")
def chunks(written):
    options = Settings().chunking
    texts = [row["text"] for part in sorted(written[0].iterdir()) for row in rows(written[0], part.name)]
    return [text[c.start : c.end] for text in texts for c in split_into_chunks(text, options, "cl100k_base")]


@pytest.fixture(scope="module")
def found(chunks):
    entities, pairs = {}, set()
    for text in chunks:
        variables = {
            **DELIMITERS,
            "completion": COMPLETION,
            "text": text,
            "header": "",
            "entity_types": TYPES,
        }
        request = ChatRequest("extract", (), CallParameters("default", "offline-1"), variables)
        records = parse_records(answer(request).text)
        entities |= {e.title.upper(): e.type for e in records.entities}
        pairs |= {frozenset((r.source.upper(), r.target.upper())) for r in records.relationships}
    return entities, pairs


def test_corpus_depends_only_on_the_seed(written, tmp_path):
    write_corpus(tmp_path / "again", TOKENS, seed=3)
    write_corpus(tmp_path / "other", TOKENS, seed=4)
    assert files(tmp_path / "again") == files(written[0])
    assert files(tmp_path / "other") != files(written[0])


def test_larger_corpus_starts_with_the_smaller_one():
    small = [d for d, _ in documents(20_000, seed=5)]
    large = [d for d, _ in islice(documents(40_000, seed=5), len(small))]
    assert small == large


def test_nearly_all_planted_names_are_found_with_their_types(written, found):
    truth = rows(written[0].with_name("corpus.truth"), "entities.jsonl")
    assert len({t["name"] for t in truth}) == len(truth) == written[1]["entities"] - 1
    types = [found[0].get(t["name"].upper()) for t in truth]
    assert sum(type_ is not None for type_ in types) >= 0.98 * len(truth)
    right = sum(type_ == t["type"].upper() for t, type_ in zip(truth, types, strict=True))
    assert right >= 0.95 * len(truth)


def test_nearly_all_planted_relationships_are_found(written, found):
    truth = rows(written[0].with_name("corpus.truth"), "relationships.jsonl")
    pairs = {frozenset((t["source"].upper(), t["target"].upper())) for t in truth}
    assert len(pairs) == written[1]["relationships"]
    assert len(pairs & found[1]) >= 0.97 * len(pairs)


def test_hub_occurs_in_about_half_of_all_chunks(chunks):
    share = sum(HUB[0] in text for text in chunks) / len(chunks)
    assert 0.35 < share < 0.65


def test_names_grow_more_slowly_than_the_text(written):
    half = list(documents(TOKENS // 2, seed=3))[-1][1]
    assert len(half.graph.names) + 1 < written[1]["entities"] < 2 * (len(half.graph.names) + 1)
