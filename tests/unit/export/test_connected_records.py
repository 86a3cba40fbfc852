"""Records with quotes from the chunks that they are based on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from graphrag_ray.base import schema
from graphrag_ray.export.connected_records import RecordView, show_claim, show_entity
from graphrag_ray.query.row_reader import Reader
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import write_part
from graphrag_ray.store.snapshots import Manifest

TEXT = "ACME met BOB. ACME hired BOB in May. Nobody minded. So he left ACME again."


@pytest.mark.parametrize(
    ("quotes", "sentence"),
    [
        ("hired BOB in May", "ACME hired BOB in May."),
        ("Nobody minded. […] So he left […] again", "So he left ACME again."),
        ("Nobody … [...] left ACME again.", "So he left ACME again."),
    ],
)
def test_the_quote_for_a_claim_is_the_sentence_with_most_of_its_quotations(tmp_path: Path, quotes, sentence):
    about = {"id": "c", "human_readable_id": 1, "subject_id": "ACME", "object_id": "NONE"}
    rows = {
        "covariates": {**about, "source_text": quotes, "text_unit_ids": ["u"]},
        "text_units": {"id": "u", "document_id": "d", "start": 0, "end": len(TEXT), "text": TEXT},
        "documents": {"id": "d", "path": "a.txt", "row": ""},
    }
    store = Store(str(tmp_path))
    tables = {
        name: [write_part(store, name, pa.Table.from_pylist([row], schema=schema.TABLES[name]))]
        for name, row in rows.items()
    }
    (chunk,) = show_claim(RecordView(Reader(store, Manifest(1, None, "", "", tables))), "1")["chunks"]
    assert chunk["quote"] == sentence


def test_only_displayed_relationships_of_a_hub_are_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    n = 50
    claim_of = {"subject_id": "HUB", "object_id": "NONE", "description": "said"}
    rows = {
        "entities": [
            {"id": f"{at:032x}", "human_readable_id": at, "title": f"E{at}" if at else "HUB", "degree": 1,
             "text_unit_ids": []}
            for at in range(n + 1)
        ],
        "relationships": [
            {"id": f"{n + at:032x}", "human_readable_id": at, "source": "HUB", "target": f"E{at}",
             "source_id": f"{0:032x}", "target_id": f"{at:032x}", "weight": float(at), "description": "met"}
            for at in range(1, n + 1)
        ],
        "covariates": [{"id": f"{3 * n + at:032x}", "human_readable_id": at, **claim_of} for at in range(n)],
    }  # fmt: skip
    store = Store(str(tmp_path))
    tables = {
        name: [write_part(store, name, pa.Table.from_pylist(some, schema=schema.TABLES[name]))]
        for name, some in rows.items()
    }
    view = RecordView(Reader(store, Manifest(1, None, "", "", tables)), limit=3)
    described, real = [], RecordView.rows

    def counted(view, table, columns, ids, by="id"):
        found = real(view, table, columns, ids, by if isinstance(by, str) else by[0])
        described.extend(row for row in found if table != "entities" and "description" in row)
        return found

    monkeypatch.setattr(RecordView, "rows", counted)
    found = show_entity(view, "HUB")
    assert [r["weight"] for r in found["relationships"]] == [50.0, 49.0, 48.0]
    assert [c["human_readable_id"] for c in found["claims"]] == [0, 1, 2]
    assert found["totals"] == {"names": 0, "relationships": n, "claims": n, "chunks": 0}
    assert len(described) == 6
