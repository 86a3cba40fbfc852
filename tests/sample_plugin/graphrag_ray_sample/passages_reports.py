"""Passages that hybrid search finds, and the reports on the communities of what they name, in one context."""

from graphrag_ray.query.methods.asked_hierarchy import check_embedded
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.local_search import reports_around
from graphrag_ray.query.methods.method import Given, Method, Question, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import ranked
from graphrag_ray.query.methods.one_context import answer_from
from graphrag_ray.query.methods.record_rows import loaded
from graphrag_ray.query.methods.where import among

NAME = "passages-reports"


def search(question: Question, given: Given) -> Method:
    check_embedded(given, NAME, ["text_unit"])
    # Choose ids.
    passages = yield from ranked(
        [Search("text_unit", "vector", question.text), Search("text_unit", "keyword", question.text)], given
    )
    entities = yield from among("entity", [id_ for _, id_ in passages])
    reports = yield from reports_around(entities, given)
    # Load the records, once.
    shares = [
        Share((yield from loaded(passages, given)), 0.7),
        Share((yield from loaded(reports, given)), 0.3),
    ]
    # Fill a context, and answer from it.
    context = fill(shares, given.settings.query.context_tokens, given.count)
    return (yield from answer_from(question.text, given, NAME, context))


METHOD = MethodKind(
    search,
    asks=("embed", "answer"),
    reads="passages, and reports on what they name",
    reports=True,
    instead="hybrid",
)
