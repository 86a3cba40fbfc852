"""An update makes what has changed, and comes to what a run that makes everything comes to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st
from machine import Small, machine
from world import World

from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import blocks, document_parts, embed_stage, instance_ranges, reports_stage
from graphrag_ray.store import snapshots
from graphrag_ray.store.snapshots import Manifest

NAMES = ["ANNA", "BERT", "CORA", "DIRK", "EDNA", "FRED", "GINA", "HANS", "INGE", "JOHN", "KATE", "LARS"]
SETTINGS = {"communities": {"max_size": 3, "small_component": 3}, "embeddings": {"enabled": True}}

sentences = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(
    lambda names: f"{' met '.join(names)} there. "
)
texts = st.lists(sentences, min_size=1, max_size=5).map("".join)
files = st.sampled_from([f"{c}.txt" for c in "abcdefgh"])
changes = st.dictionaries(files, st.one_of(texts, texts, st.none()), min_size=1, max_size=3)


@contextmanager
def tiny_parts() -> Iterator[None]:
    """As many parts as a large corpus has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_parts, "split_bytes", lambda total: 1)
        patch.setattr(instance_ranges, "n_ranges", lambda table, rows: 8)
        patch.setattr(blocks, "BLOCK_ROWS", 3)
        patch.setattr(reports_stage, "PART_ROWS", 2)
        patch.setattr(embed_stage, "PART_ROWS", 2)
        yield


@contextmanager
def everything_anew() -> Iterator[None]:
    """Of the parent snapshot no part is taken over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "before", lambda self, name: None)
        yield


def newest(world: World) -> Manifest:
    found = snapshots.latest(world.store)
    assert found is not None
    return found


def held(world: World, documents: Mapping[str, str]) -> None:
    """INPUT holds these; a file that does not change is not touched."""
    for path in world.input.iterdir():
        if path.name not in documents:
            path.unlink()
    world.write({n: t for n, t in documents.items() if not _is(world.input / n, t)})
    for path in world.input.iterdir():  # so long ago that its time tells it apart
        if path.stat().st_mtime > 1e9:
            os.utime(path, (1e8 + hash(path.read_bytes()) % 10**6,) * 2)


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


@given(
    st.dictionaries(files, texts, min_size=2, max_size=8),
    st.lists(changes, min_size=1, max_size=3),
    st.sampled_from(
        [{}, {"graph": {"prune": "on"}}, {"claims": {"enabled": True}}, {"reports": {"keep_below": 0}}]
    ),
)
@fewer(12)
def test_an_update_comes_to_what_a_run_comes_to_that_takes_nothing_over(corpus, history, more):
    with machine() as computer, Small() as world, Small() as other, tiny_parts():
        for one in (world, other):
            one.changes |= SETTINGS | more
        held(world, corpus)
        world.index()
        for step in history:
            corpus = {n: t for n, t in {**corpus, **step}.items() if t is not None} or corpus
            held(world, corpus)
            _copy(world, other)
            one = world.index(allow_deletes=True)
            with everything_anew():
                two = other.index(allow_deletes=True)
            assert one.committed == two.committed
            for name, parts in newest(other).tables.items():
                assert [p.path for p in newest(world).parts(name)] == [p.path for p in parts], name
        asked = len(computer.asked)
        assert not world.index(allow_deletes=True).committed and len(computer.asked) == asked


def _copy(world: World, to: World) -> None:
    for ours, theirs in ((to.input, world.input), (to.root, world.root)):
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(theirs, ours)
