"""Keywords of a question on two levels: its names and rare words; what else it is about."""

from __future__ import annotations

import json
from collections.abc import Mapping

from graphrag_ray.offline.question_terms import RARE, read_question


def list_terms(variables: Mapping[str, str]) -> str:
    """Low: names, numbers and words that are not ordinary, as the question writes them; high: its other
    words. Of one without any content word, the question itself is high."""
    question = read_question(variables["question"])
    written = dict(zip(question.terms, question.words, strict=True))
    low = [word for term, word in written.items() if question.terms[term] >= RARE]
    high = [word for term, word in written.items() if question.terms[term] < RARE]
    if not written:
        high = [variables["question"]]
    return json.dumps({"high_level": high, "low_level": low}, ensure_ascii=False)


def without_data(variables: Mapping[str, str]) -> str:
    """What the engine says where it is shown nothing: it knows nothing itself."""
    return "No data were shown with this question, and the offline engine knows nothing beside data."
