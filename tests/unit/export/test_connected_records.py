"""Records lead to the words that they rest on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from graphrag_ray.base import schema
from graphrag_ray.export.connected_records import View, claim
from graphrag_ray.query.reading import Reader
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
def test_a_claim_leads_to_the_sentence_that_holds_most_of_its_quotes(tmp_path: Path, quotes, sentence):
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
    (chunk,) = claim(View(Reader(store, Manifest(1, None, "", "", tables))), "1")["chunks"]
    assert chunk["quote"] == sentence
