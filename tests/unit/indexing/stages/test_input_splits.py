"""Reading a large table file in splits gives the same tables as reading it whole."""

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
    url: str = "",
    storage: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Store, Result]:
    """Read INPUT at `url`, by default the folder `in`."""
    input_options = {**options, "storage": storage} if storage else options
    chunking = {"size": 20, "overlap": 4, "min_last_chunk_tokens": 2}
    settings = parse_settings({"input": input_options, "chunking": chunking})
    store = Store(str(folder / f"index {split}"))
    executor = LocalExecutor(store, Models.from_settings(settings))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(document_parts, "split_bytes", lambda total: limit)
        patched.setattr(read_stage, "SCAN_BYTES", scan_bytes)
        patched.setattr(read_stage, "_LINE_BYTES", 7)
        if not split:
            patched.setattr(read_stage.input_splits, "SPLITTABLE_EXTENSIONS", ())
        run = Run(executor, settings, PROMPTS, None, Observer())
        return store, read_stage.read_input(run, url or str(folder / "in"), add=False, allow_deletes=False)


def tables(stored: tuple[Store, Result]) -> dict[str, list[dict[str, Any]]]:
    store, result = stored
    rows = {n: read_table(store, result.parts(n), None, schema.TABLES[n]).to_pylist() for n in NAMES}
    for failure in rows["failures"]:  # Without the row's number, which is unknown across splits.
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
invalid = st.sampled_from(
    [b"", b"  \t", b"\r", b'{"text": "b"', b"[1]", b"null", "{é".encode("cp1252"), b"\x00"]
)
valid = rows.map(lambda row: json.dumps(row, ensure_ascii=False).encode())
lines = st.lists(st.one_of(valid, valid, invalid), max_size=25)


@given(lines, st.booleans(), st.sampled_from([None, "id"]), st.integers(200, 4000), st.integers(1, 300))
def test_any_lines_in_splits_of_any_size_give_the_same_tables(
    lines: list[bytes], ends: bool, id_column: str | None, limit: int, scan_bytes: int
) -> None:
    if id_column:  # Repeated ids are tested below.
        by_id: dict[bytes, bytes] = {}
        for n, line in enumerate(lines):
            by_id.setdefault(ids[0] if (ids := re.findall(rb'"id": "\w+"', line)) else b"%d" % n, line)
        lines = list(by_id.values())
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        first = b'{"id": "first", "text": "so that there is one"}'
        write(folder, "rows.jsonl", b"\n".join([first, *lines]) + b"\n" * ends)
        write(folder, "small.txt", b"BOB met CAROL.")
        whole = tables(read(folder, 10_000_000, False, id_column=id_column))
        assert tables(read(folder, limit, True, scan_bytes, id_column=id_column)) == whole


def test_large_file_is_split_and_a_new_line_changes_few_splits(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"row {i}", "text": f"text {i} " * (i % 9 + 1)}).encode() for i in range(250)]

    def read_splits(lines: list[bytes]) -> set[bytes]:
        data = b"\n".join(lines)
        write(tmp_path, "rows.jsonl", data)
        splits = set()
        with pytest.MonkeyPatch.context() as patched:
            read_split_bytes = read_stage.read_split_bytes

            def record(*args: Any) -> bytes:
                split = read_split_bytes(*args)
                splits.add(split)
                return split

            patched.setattr(read_stage, "read_split_bytes", record)
            _, result = read(tmp_path, 1250, True, 10_000, id_column="id")
        assert result.counts["documents"] == len(lines) and not result.parts("failures")
        assert sum(map(len, splits)) == len(data) and max(map(len, splits)) <= 1250
        return splits

    before = read_splits(lines)
    after = read_splits([*lines[:100], b'{"id": "new", "text": "new"}', *lines[100:]])
    assert len(before) > 15 and len(before - after) <= 8


def test_first_row_with_an_id_in_several_splits_becomes_a_document(tmp_path: Path) -> None:
    rows = [{"id": f"row {i}", "text": f"text {i} " * 9} for i in range(200)]
    rows[190]["id"] = rows[195]["id"] = "row 3"
    write(tmp_path, "rows.jsonl", b"\n".join(json.dumps(row).encode() for row in rows))
    store, result = read(tmp_path, 4000, True, 1500, id_column="id")
    read_tables = tables((store, result))
    documents = read_tables["documents"]
    assert result.counts["documents"] == 198 and len(result.parts("documents")) > 10
    (text,) = [row["text"] for row in documents if row["row"] == "row 3"]
    assert text.startswith("text 3 ") and len({row["id"] for row in documents}) == 198
    assert {row["document_id"] for row in read_tables["text_units"]} == {row["id"] for row in documents}
    failures = [(row["item"], row["document"]) for row in read_tables["failures"]]
    assert failures == [("row 3", "rows.jsonl")] * 2


def test_first_row_with_an_id_in_one_group_becomes_a_document(tmp_path: Path) -> None:
    """Files of a split are read one by one after one of them crashed a process."""
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
    remaining = tables((store, Result(both)))
    assert [row["text"] for row in remaining["documents"]] == ["the first", "another", "third"]
    assert len(remaining["text_units"]) == 3 and len(remaining["failures"]) == 1


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("limit", [1_000, 8_000])
def test_reading_row_groups_separately_gives_the_same_tables(
    tmp_path: Path, damaged: bool, limit: int
) -> None:
    write(tmp_path, "rows.parquet", b"")
    path = tmp_path / "in" / "rows.parquet"
    table = pa.table({"id": [i % 190 for i in range(200)], "text": [f"text {i} " * 20 for i in range(200)]})
    pq.write_table(table, path, row_group_size=20, compression="NONE", use_dictionary=False)
    if damaged:
        data = bytearray(path.read_bytes())
        # Overwrite the beginning of the row group with rows 81 to 100, and the first half of its texts.
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
def test_problem_of_a_whole_file_is_reported_once(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, "rows.jsonl", data)
    write(tmp_path, "small.txt", b"BOB met CAROL.")
    whole = tables(read(tmp_path, 100, False))
    assert tables(read(tmp_path, 100, True)) == whole
    assert len(whole["documents"]) + len(whole["failures"]) in (2, 100)


def test_splits_on_object_storage_are_read_by_range_requests(tmp_path: Path, s3_owner: S3Server) -> None:
    rows = [{"id": i % 90, "text": f"text {i} " * 9} for i in range(100)]
    write(tmp_path, "a.jsonl", b"\n".join(json.dumps(row).encode() for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "b.parquet", row_group_size=7)
    prefix = f"{BUCKET}/{uuid.uuid4().hex[:12]}"
    for path in (tmp_path / "in").iterdir():
        s3_owner.files().pipe_file(f"{prefix}/{path.name}", path.read_bytes())
    storage = {"endpoint_url": s3_owner.address}
    whole = tables(read(tmp_path, 1400, False, id_column="id"))
    store, result = read(tmp_path, 1400, True, 500, url=f"s3://{prefix}", id_column="id", storage=storage)
    assert tables((store, result)) == whole
    assert len(result.tables["documents"]) > 10 and len(whole["failures"]) == 20


NO_RANGES = "its server does not support HTTP range requests. Download it"


@pytest.mark.parametrize("block_bytes", [700, 5 << 20])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_web_server_without_range_requests_is_not_asked_for_the_file_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block_bytes: int
) -> None:
    monkeypatch.setattr(read_stage, "WHOLE_BYTES", 0)
    monkeypatch.setattr(table_rows, "HEAD_BYTES", 500)
    rows = [{"id": i, "text": f"text {i} " * 9} for i in range(100)]
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=7)
        data = (tmp_path / name).read_bytes()
    storage = {"options": {"block_size": block_bytes}}
    with serving({f"/{name}": data}) as web:

        def read_file() -> dict[str, list[dict[str, Any]]]:
            shutil.rmtree(tmp_path / "index True", ignore_errors=True)
            return tables(read(tmp_path, 1400, True, 500, url=f"http://{web.host}/{name}", storage=storage))

        in_splits = read_file()
        assert len(in_splits["documents"]) == 100 and not in_splits["failures"] and len(web.asked) > 5
        web.ranges, web.asked = False, []
        if block_bytes > len(data):
            assert read_file() == in_splits
        elif name.endswith(".jsonl"):
            (failure,) = read_file()["failures"]
            assert failure["document"] == name and failure["item"] == name and NO_RANGES in failure["error"]
        else:
            with pytest.raises(InputError, match=re.escape(NO_RANGES)):
                read_file()
        assert len(web.asked) <= 5
