"""The offline engine on hand-labelled passages that were not used to create its word lists.

The passages are in the folder GRAPHRAG_RAY_TEST_DATA, or in shared/data next to the checkout.
"""

import os
from pathlib import Path

import pytest
from labelled import LABELS, Scores, read_labels, read_passages, score

DATA = Path(os.environ.get("GRAPHRAG_RAY_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")
PASSAGES = DATA / "2wiki" / "passages.jsonl.gz"
FLOORS = {
    "names, recall": 0.88,
    "names, precision": 0.93,
    "types right": 0.82,
    "pairs, recall": 0.58,
    "pairs, precision": 0.50,
}


def test_labels_name_the_ends_of_relations():
    for split, passages in read_labels(LABELS).items():
        assert len(passages) == {"tune": 30, "held_out": 60}[split]
        for id_, label in passages.items():
            listed = {n.split(" | ")[0] for k, v in label.items() if k not in ("pairs", "other") for n in v}
            related = {n for a, others in label.get("pairs", {}).items() for n in (a, *others)}
            assert related <= listed, (id_, related - listed)


def test_scores_are_shares():
    label = {
        "person": ["Orla Quist | Quist", "Bo Dahl"],
        "location": ["Ek"],
        "pairs": {"Orla Quist": ["Bo Dahl"]},
    }
    scores = score({"a": label}, {"a": "Orla Quist met Bo Dahl and Kestrel Ltd. Orla Quist is a painter."})
    assert scores.figures == {
        "names, recall": 2 / 3,
        "names, precision": 2 / 3,
        "types right": 1.0,
        "pairs, recall": 1.0,
        "pairs, precision": 1.0,
    }
    assert scores.mistakes == ["a no name Kestrel Ltd (ORGANIZATION)", "a missed Ek"]
    assert Scores().figures["types right"] == 0


@pytest.mark.skipif(not PASSAGES.exists(), reason=f"the passages of 2wiki are not here: {PASSAGES}")
def test_held_out_passages_score_well():
    figures = score(read_labels(LABELS)["held_out"], read_passages(PASSAGES)).figures
    assert {name: figures[name] >= floor for name, floor in FLOORS.items()} == dict.fromkeys(FLOORS, True), (
        figures
    )
