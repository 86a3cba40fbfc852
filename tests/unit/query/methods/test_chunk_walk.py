"""Weights of the names and chunks at which a walk starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import name_id
from graphrag_ray.query.methods import chunk_walk as restarts
from graphrag_ray.query.methods.method import Hit
from graphrag_ray.query.methods.question_names import find_mentions


def weights(question: str, **counts: int) -> dict[str, float]:
    """Return weights by name. `counts` maps names, with _ for a space, to numbers of chunks."""
    names = {name_id(name.replace("_", " ")): name.replace("_", " ") for name in counts}
    of = dict(zip(names, counts.values(), strict=True))
    found = restarts.name_weights(find_mentions(question, name_id), of)
    return {names[id_]: weight for id_, weight in found.items()}


def test_rare_name_has_more_weight() -> None:
    found = weights("Did Ada Lind live in Paris?", Ada_Lind=1, Paris=100)
    assert found == {"Ada Lind": 1.0, "Paris": pytest.approx(0.001)}


def test_uncertain_name_has_less_weight() -> None:
    found = weights("Which church is in Bergen?", Church=2, Bergen=2)
    assert found["Church"] == pytest.approx(restarts.UNSURE_WEIGHT * found["Bergen"])


def test_name_within_longer_name_is_ignored() -> None:
    assert weights("Who wrote New York Stories?", New_York=3, New_York_Stories=1) == {"New York Stories": 1.0}


def test_names_are_found_in_any_script() -> None:
    assert weights("Кто такая Эмма Линд?", Эмма_Линд=1) == {"Эмма Линд": 1.0}
    assert weights("陳大文是誰?", 陳大文=1) == {"陳大文": 1.0}


def test_punctuation_and_case_are_ignored() -> None:
    assert weights("who was j r r tolkien?", **{"J.R.R._Tolkien": 1}) == {"J.R.R. Tolkien": 1.0}


def test_number_of_names_is_limited_to_rarest() -> None:
    counts = {f"Name{n}": n + 1 for n in range(80)}
    found = weights(f"Which of {' and '.join(counts)}?", **counts)
    assert list(found) == list(counts)[: restarts.MAX_NAMES]


def test_question_without_names_has_no_weights() -> None:
    assert weights("what are the main themes of it all", Bergen=1) == {}
    assert weights("", Bergen=1) == {}


def test_near_best_hits_have_near_full_weight() -> None:
    hits = [Hit("a", 10.0), Hit("b", 9.9), Hit("c", 5.0)]
    found = restarts.hit_weights(hits, 0.5, 20)
    assert found["a"] == 0.5
    assert 0.4 < found["b"] < 0.5
    assert found["c"] < 1e-6


@pytest.mark.parametrize("scores", [[], [0.0, 0.0], [-1.0]])
def test_zero_scores_have_no_weight(scores: list[float]) -> None:
    assert restarts.hit_weights([Hit(str(n), score) for n, score in enumerate(scores)], 1, 8) == {}


@given(st.dictionaries(st.text("abc", max_size=2), st.floats(0.1, 10)), st.integers(0, 5))
def test_weights_are_added_by_id(found: dict[str, float], n: int) -> None:
    both = restarts.add_weights(found, dict(list(found.items())[:n]))
    assert both.keys() == found.keys()
    assert all(both[k] in (found[k], 2 * found[k]) for k in found)


def test_negligible_weights_are_dropped() -> None:
    assert restarts.add_weights({"a": 1.0, "b": 1e-12}, {}) == {"a": 1.0}
