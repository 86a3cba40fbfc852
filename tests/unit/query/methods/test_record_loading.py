"""Labels of chunks with the title and date of their document."""

from __future__ import annotations

from typing import Any

from driving import COUNT, Snapshot

from graphrag_ray.graph.report_context import Record
from graphrag_ray.query.methods.record_loading import LABEL_TOKENS, load_records


def document(id_: str, **told: Any) -> dict[str, Any]:
    return {"id": id_, "path": "minutes.jsonl", "row": "9", **told}


def told(text: str, **of: Any) -> Record:
    tables = {
        "text_units": [{"id": "t", "text": text, "document_id": "d"}],
        "documents": [document("other", title="Other"), document("d", **of)],
    }
    snap = Snapshot(tables)
    return snap.run(load_records([("text_unit", "t")], snap.given()))[0]


def test_chunk_has_title_and_date_of_document():
    record = told("It rained.", title="Minutes", creation_date="2023-09-14")
    assert record.fields == ("Minutes (2023-09-14)", "It rained.")


def test_label_is_equal_for_all_chunks():
    assert told("Minutes\nIt rained.", title="Minutes").fields == ("Minutes", "Minutes It rained.")


def test_first_passage_of_a_document_has_its_opening():
    header = "Title: Minutes\nOpening of the document: I, Mara Venn, say …\n\n"
    in_document = {"document_id": "d", "start": None, "end": None}
    units = [
        {"id": "a", "text": "It rained.", "header": header, **in_document},
        {"id": "b", "text": "It snowed.", "header": header, **in_document},
    ]
    snap = Snapshot({"text_units": units, "documents": [document("d", title="Minutes")]})
    wanted = [("text_unit", "b"), ("text_unit", "a")]
    labels = [r.fields[0] for r in snap.run(load_records(wanted, snap.given(), distinct_texts=True))]
    assert labels == ["Minutes; Opening of the document: I, Mara Venn, say …", "Minutes"]


def test_chunk_of_unknown_document_is_loaded():
    snap = Snapshot({"text_units": [{"id": "t", "text": "It rained.", "document_id": "gone"}]})
    assert snap.run(load_records([("text_unit", "t")], snap.given()))[0].fields[0] == ""


def test_long_title_is_truncated():
    (document_, text) = told("It rained.", title="会議の議事録 " * 60).fields
    assert LABEL_TOKENS - 5 <= COUNT(document_) <= LABEL_TOKENS and text == "It rained."
