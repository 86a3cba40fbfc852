"""A large table file that is read in pieces gives the tables that it gives as one."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_server import BUCKET, S3Server
from web_server import serving

from graphrag_ray.base import schema
from graphrag_ray.base.errors import InputError
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.corpus import table_rows
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import document_parts, read_stage
from graphrag_ray.indexing.stages import read_stage as read_step
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table

PROMPTS = load_prompts()
NAMES = ("documents", "text_units", "failures")


def read(
    folder: Path,
    limit: int,
    split: bool,
    scan_bytes: int = 100,
    at: str = "",
    storage: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Store, Result]:
    """at: where INPUT is, if not in the folder; storage: how it is reached."""
    given = {"input": {**options, "storage": storage} if storage else options}
    chunking = {"size": 20, "overlap": 4, "min_last_chunk_tokens": 2}
    read_as = parse_settings({**given, "chunking": chunking})
    store = Store(str(folder / f"index {split}"))
    executor = LocalExecutor(store, Models.from_settings(read_as))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(document_parts, "split_bytes", lambda total: limit)
        patched.setattr(read_stage, "SCAN_BYTES", scan_bytes)
        patched.setattr(read_stage, "_LINE_BYTES", 7)
        if not split:
            patched.setattr(read_stage.input_splits, "SPLITTABLE_EXTENSIONS", ())
        run = Run(executor, read_as, PROMPTS, None, Observer())
        return store, read_step.read_input(run, at or str(folder / "in"), add=False, allow_deletes=False)


def tables(found: tuple[Store, Result]) -> dict[str, list[dict[str, Any]]]:
    store, result = found
    rows = {n: read_table(store, result.parts(n), None, schema.TABLES[n]).to_pylist() for n in NAMES}
    for failure in rows["failures"]:  # rows that are read apart do not know each other's numbers
        failure["error"] = re.sub(r"^.* has the id ('.*' of an earlier row)$", r"\1", failure["error"])
    rows["failures"].sort(key=lambda f: (f["document"], f["item"], f["error"]))
    return rows


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_bytes(data)


texts = st.one_of(
    st.sampled_from(["", " ", "x", "Zoë met ALICE. "]), st.just("a longer text, in chunks, " * 12)
)
ids = st.sampled_from([*"abcdefghijklmnopqrstuvwxyz", "1", "2", "3", ""])
rows = st.fixed_dictionaries({}, optional={"id": ids, "text": texts, "k": st.integers(0, 9)})
odd = st.sampled_from([b"", b"  \t", b"\r", b'{"text": "b"', b"[1]", b"null", "{é".encode("cp1252"), b"\x00"])
written = rows.map(lambda row: json.dumps(row, ensure_ascii=False).encode())
lines = st.lists(st.one_of(written, written, odd), max_size=25)


@given(lines, st.booleans(), st.sampled_from([None, "id"]), st.integers(200, 4000), st.integers(1, 300))
def test_any_lines_in_pieces_of_any_size_give_the_tables_of_one(
    lines: list[bytes], ends: bool, id_column: str | None, limit: int, scan_bytes: int
) -> None:
    if id_column:  # of rows with one id see below
        named: dict[bytes, bytes] = {}
        for n, line in enumerate(lines):
            named.setdefault(found[0] if (found := re.findall(rb'"id": "\w+"', line)) else b"%d" % n, line)
        lines = list(named.values())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        first = b'{"id": "first", "text": "so that there is one"}'
        write(folder, "rows.jsonl", b"\n".join([first, *lines]) + b"\n" * ends)
        write(folder, "small.txt", b"BOB met CAROL.")
        whole = tables(read(folder, 10_000_000, False, id_column=id_column))
        assert tables(read(folder, limit, True, scan_bytes, id_column=id_column)) == whole


def test_a_large_file_is_read_by_many_and_a_line_more_changes_few_pieces(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"row {i}", "text": f"text {i} " * (i % 9 + 1)}).encode() for i in range(250)]

    def stretches(lines: list[bytes]) -> set[bytes]:
        data = b"\n".join(lines)
        write(tmp_path, "rows.jsonl", data)
        seen = set()
        with pytest.MonkeyPatch.context() as patched:
            inner = read_step.read_split_bytes

            def noted(*given: Any) -> bytes:
                found = inner(*given)
                seen.add(found)
                return found

            patched.setattr(read_step, "read_split_bytes", noted)
            _, result = read(tmp_path, 1250, True, 10_000, id_column="id")
        assert result.counts["documents"] == len(lines) and not result.parts("failures")
        assert sum(len(part) for part in seen) == len(data) and max(len(part) for part in seen) <= 1250
        return seen

    before = stretches(lines)
    after = stretches([*lines[:100], b'{"id": "new", "text": "new"}', *lines[100:]])
    assert len(before) > 15 and len(before - after) <= 8


def test_of_rows_with_one_id_in_several_stretches_the_first_is_a_document(tmp_path: Path) -> None:
    rows = [{"id": f"row {i}", "text": f"text {i} " * 9} for i in range(200)]
    rows[190]["id"] = rows[195]["id"] = "row 3"
    write(tmp_path, "rows.jsonl", b"\n".join(json.dumps(row).encode() for row in rows))
    store, result = read(tmp_path, 4000, True, 1500, id_column="id")
    found = tables((store, result))
    assert result.counts["documents"] == 198 and len(result.parts("documents")) > 10
    (text,) = [row["text"] for row in found["documents"] if row["row"] == "row 3"]
    assert text.startswith("text 3 ") and len({row["id"] for row in found["documents"]}) == 198
    assert {row["document_id"] for row in found["text_units"]} == {row["id"] for row in found["documents"]}
    assert [(row["item"], row["document"]) for row in found["failures"]] == [("row 3", "rows.jsonl")] * 2


def test_of_rows_with_one_id_that_one_split_holds_the_first_is_a_document(tmp_path: Path) -> None:
    """As where pieces were read one by one, since a process died of one."""
    write(tmp_path, "rows.jsonl", b'{"id": "a", "text": "the first"}\n{"id": "b", "text": "another"}')
    store, one = read(tmp_path, 4000, True, id_column="id")
    write(tmp_path, "rows.jsonl", b'{"id": "a", "text": "the second"}\n{"id": "c", "text": "third"}')
    _, two = read(tmp_path, 4000, True, id_column="id")
    names = ("documents", "text_units")
    both = {name: [[*one.parts(name), *two.parts(name)]] for name in names} | {"failures": []}
    executor = LocalExecutor(store, Models.from_settings(parse_settings({})))
    assert (
        read_stage._drop_repeated_ids(Run(executor, parse_settings({}), PROMPTS, None, Observer()), both) == 1
    )
    found = tables((store, Result(both)))
    assert [row["text"] for row in found["documents"]] == ["the first", "another", "third"]
    assert len(found["text_units"]) == 3 and len(found["failures"]) == 1


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("limit", [1_000, 8_000])
def test_row_groups_by_themselves_give_the_tables_of_one_file(
    tmp_path: Path, damaged: bool, limit: int
) -> None:
    write(tmp_path, "rows.parquet", b"")
    path = tmp_path / "in" / "rows.parquet"
    table = pa.table({"id": [i % 190 for i in range(200)], "text": [f"text {i} " * 20 for i in range(200)]})
    pq.write_table(table, path, row_group_size=20, compression="NONE", use_dictionary=False)
    if damaged:
        data = bytearray(path.read_bytes())
        # What the row group of rows 81 to 100 begins with, and the first half of its texts.
        start, end = data.index(b"text 80 ") - 100, data.index(b"text 90 ")
        data[start:end] = b"\xff" * (end - start)
        path.write_bytes(data)
    whole = tables(read(tmp_path, limit, False, id_column="id"))
    store, result = read(tmp_path, limit, True, id_column="id")
    assert tables((store, result)) == whole
    assert len(result.tables["documents"]) > 1
    assert len(whole["failures"]) == 10 + damaged and len(whole["documents"]) == 190 - 20 * damaged
    assert not damaged or any("rows 81 to 100 of 200" in f["error"] for f in whole["failures"])


@pytest.mark.parametrize(
    "data",
    [
        "\ufeff".encode() + b'{"text": "a"}\n' * 99,
        b"[\n" + b'{"text": "a"},\n' * 99 + b"]",
        b'{"other": "a"}\n' * 99,
        b"\x00" + b'{"text": "a"}\n' * 99,
    ],
    ids=["byte order mark", "array", "no text column", "binary"],
)
def test_what_is_told_of_a_whole_file_is_told_once(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, "rows.jsonl", data)
    write(tmp_path, "small.txt", b"BOB met CAROL.")
    whole = tables(read(tmp_path, 100, False))
    assert tables(read(tmp_path, 100, True)) == whole
    assert len(whole["documents"]) + len(whole["failures"]) in (2, 100)


def test_pieces_of_files_on_object_storage_are_read_by_ranges(tmp_path: Path, s3_owner: S3Server) -> None:
    rows = [{"id": i % 90, "text": f"text {i} " * 9} for i in range(100)]
    write(tmp_path, "a.jsonl", b"\n".join(json.dumps(row).encode() for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "b.parquet", row_group_size=7)
    at = f"{BUCKET}/{uuid.uuid4().hex[:12]}"
    for path in (tmp_path / "in").iterdir():
        s3_owner.files().pipe_file(f"{at}/{path.name}", path.read_bytes())
    storage = {"endpoint_url": s3_owner.address}
    whole = tables(read(tmp_path, 1400, False, id_column="id"))
    store, result = read(tmp_path, 1400, True, 500, at=f"s3://{at}", id_column="id", storage=storage)
    assert tables((store, result)) == whole
    assert len(result.tables["documents"]) > 10 and len(whole["failures"]) == 20


WHY = "its server does not support HTTP range requests. Download it"


@pytest.mark.parametrize("block_bytes", [700, 5 << 20])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_web_server_that_sends_only_whole_files_is_not_asked_for_one_as_often_as_it_has_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block_bytes: int
) -> None:
    monkeypatch.setattr(read_step, "WHOLE_BYTES", 0)
    monkeypatch.setattr(table_rows, "HEAD_BYTES", 500)
    rows = [{"id": i, "text": f"text {i} " * 9} for i in range(100)]
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=7)
        data = (tmp_path / name).read_bytes()
    storage = {"options": {"block_size": block_bytes}}
    with serving({f"/{name}": data}) as web:

        def found() -> dict[str, list[dict[str, Any]]]:
            shutil.rmtree(tmp_path / "index True", ignore_errors=True)
            return tables(read(tmp_path, 1400, True, 500, at=f"http://{web.host}/{name}", storage=storage))

        by_parts = found()
        assert len(by_parts["documents"]) == 100 and not by_parts["failures"] and len(web.asked) > 5
        web.ranges, web.asked = False, []
        if block_bytes > len(data):
            assert found() == by_parts
        elif name.endswith(".jsonl"):
            (failure,) = found()["failures"]
            assert failure["document"] == name and failure["item"] == name and WHY in failure["error"]
        else:
            with pytest.raises(InputError, match=re.escape(WHY)):
                found()
        assert len(web.asked) <= 5
