"""The choice of the earlier shard from which a new one is derived."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from graphrag_ray.indexing.stages import search_stage
from graphrag_ray.indexing.stages.embed_stage import TEXTS, Texts
from graphrag_ray.indexing.stages.search_stage import IndexType, _difference, _nearest, _Shard, _shards
from graphrag_ray.store.parts import Part


def shard_of(
    names: str,
    by: IndexType = "vector",
    rows: int = 10,
    span: tuple[float, float] = (0, 1),
    signs: bool = False,
    kind: str = "entity",
) -> _Shard:
    """Return a shard with a part of `rows` rows for each letter in `names`."""
    texts = [Texts(kind, [Part(name, rows, 100)]) for name in names]
    return _Shard(kind, by, texts, signs, names, "", span)


def nearest(shard: _Shard, *earlier: _Shard) -> str | None:
    (chosen,) = _nearest([shard], [(x, Part(x.made_from, x.rows, 1)) for x in earlier])
    return chosen[1].path if chosen else None


@pytest.mark.parametrize("by", ["keyword", "vector"])
def test_shard_that_shares_most_rows_in_parts_is_chosen(by: IndexType):
    apart = [shard_of(names, by, span=(0, 0)) for names in ("abxyz", "cdefg", "h")]
    assert nearest(shard_of("bcdefh", by), *apart) == "cdefg"
    assert nearest(shard_of("cdabxyz", by), *apart) == "abxyz"


def test_shard_with_less_than_half_of_the_rows_is_not_chosen():
    assert nearest(shard_of("abcd"), shard_of("abxx")) == "abxx"
    assert nearest(shard_of("abcde"), shard_of("abxx")) is None
    assert nearest(shard_of("abcde")) is None


def test_keyword_shards_are_also_compared_by_their_position_in_the_table():
    halves = [shard_of("ab", "keyword", span=(0, 0.5)), shard_of("cd", "keyword", span=(0.5, 1))]
    assert nearest(shard_of("xy", "keyword", span=(0.2, 0.6)), *halves) == "ab"
    assert nearest(shard_of("xy", "keyword", span=(0.4, 1)), *halves) == "cd"
    assert nearest(shard_of("xy", "keyword", span=(0, 1)), halves[1]) == "cd"
    assert nearest(shard_of("xy", "keyword", span=(0.2, 1)), halves[0]) is None
    assert nearest(shard_of("xy", "vector", span=(0, 0.5)), shard_of("ab", "vector", span=(0, 0.5))) is None


def test_shard_of_another_table_or_with_signs_is_not_chosen():
    assert nearest(shard_of("ab"), shard_of("ab", kind="relationship"), shard_of("ab", "keyword")) is None
    assert nearest(shard_of("ab"), shard_of("ab", signs=True)) is None
    assert nearest(shard_of("ab", signs=True), shard_of("ab", signs=True)) == "ab"


def test_shards_differ_if_documents_are_in_other_parts():
    """The documents' titles may have changed."""

    def shard_with(documents: str) -> _Shard:
        texts = [Texts("text_unit", [Part("a", 10, 100)], [Part(documents, 5, 50)])]
        return _Shard("text_unit", "keyword", texts, False, documents, "", (0, 0.1))

    assert shard_with("d").paths != shard_with("e").paths


def test_spans_of_shards_cover_the_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search_stage, "SHARD_BYTES", {"vector": 1_000})
    groups = [Texts("entity", [Part(f"{n}", 10 + n % 3, 300) for n in range(20)]), Texts("entity", [])]
    shards = _shards("entity", "vector", groups)
    assert len(shards) > 3 and shards[0].span[0] == 0 and shards[-1].span[1] == 1
    assert [x.span[1] for x in shards[:-1]] == [x.span[0] for x in shards[1:]]
    rows = sum(x.rows for x in shards)
    assert all(x.rows == pytest.approx(rows * (x.span[1] - x.span[0])) for x in shards)
    assert _shards("entity", "vector", []) == []


def rows_of(*texts: tuple[str, str | None]) -> pa.Table:
    rows = [{"id": id_, "kind": "entity", "text": text} for id_, text in texts]
    return pa.Table.from_pylist(rows, schema=TEXTS)


def test_difference_leaves_out_rows_with_unchanged_texts():
    before: Sequence[pa.Table] = [rows_of(("a", "mill"), ("b", "river")), rows_of(("c", "x"), ("d", None))]
    outdated, new = _difference(before, rows_of(("e", "new"), ("c", "x"), ("b", "rivers"), ("d", None)))
    assert outdated == ["a", "b", "d"]
    assert new["id"].to_pylist() == ["e", "b", "d"]
    assert _difference([], rows_of(("a", "mill")))[1]["id"].to_pylist() == ["a"]
    assert _difference(before, rows_of())[0] == ["a", "b", "c", "d"]
