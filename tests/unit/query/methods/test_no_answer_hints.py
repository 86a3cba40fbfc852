"""Hints for answers that found nothing."""

from __future__ import annotations

import pytest

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query.ask import no_answer_hints
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import UNREADABLE, Answer, ContextUsed


def used(phase: str, section: str, *ids: str) -> ContextUsed:
    return ContextUsed(phase, tuple(Reference(section, id_) for id_ in ids), 9)


def nothing(method: str, *contexts: ContextUsed, level: int | None = None) -> Answer:
    return Answer("Who?", "Nothing.", method, level=level, found=False, contexts=contexts)


def test_hints_count_distinct_records_and_suggest_methods():
    contexts = [
        used("map", "Reports", "a", "b"),
        used("map", "Reports", "b", "c"),
        used("reduce", "Reports", "x"),
    ]
    read, hint = no_answer_hints(nothing("global", *contexts, level=0), restricted=False)
    assert read == "Read by global search: 3 reports of C0."
    assert hint.startswith(
        "Try --method local (entities near the question and their neighbourhood) or --method hybrid ("
    )


def test_all_kinds_of_records_are_named():
    context = ContextUsed("answer", tuple(Reference(s, "1") for s in ("Entities", "Claims", "Sources")), 9)
    (read, _) = no_answer_hints(nothing("local", context, used("answer", "Entities", "2")), restricted=False)
    assert read == "Read by local search: 2 entities, 1 claim, 1 chunk."


def test_rated_records_do_not_count_as_read():
    result = "Nothing was read: global search found nothing near the question."
    assert no_answer_hints(nothing("global", used("rate", "Reports", "a")), restricted=False)[0] == result


@pytest.mark.parametrize("method", [m for m in methods.METHODS if m != "auto"])
def test_suggestions_respect_conditions(method: str):
    free, restricted = (" ".join(no_answer_hints(nothing(method), restricted=r)[1:]) for r in (False, True))
    assert f"--method {method}" not in free and "--method global" not in restricted
    assert bool(free) == (method != "text")


def test_every_method_has_a_suggestion():
    assert {name for name in methods.METHODS if not methods.METHODS[name].suggestions} == {"text", "auto"}


def test_suggestions_respect_missing_graph():
    for method in methods.METHODS:
        result = " ".join(no_answer_hints(nothing(method), restricted=False, has_graph=False))
        assert "--method local" not in result and "--method drift" not in result


def test_found_or_failed_answer_has_no_hints():
    assert no_answer_hints(Answer("Who?", "Bea.", "global"), restricted=False) == ()
    hints = " ".join(no_answer_hints(nothing("hybrid"), restricted=False, has_reports=False))
    assert "--method" not in hints, "local and global read reports"
    failed = Answer("Who?", UNREADABLE, "global", found=False, failed_parts=2)
    assert no_answer_hints(failed, restricted=False) == ()
