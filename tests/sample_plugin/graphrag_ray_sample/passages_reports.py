"""Answer from passages of hybrid search and reports on the communities of their entities, in one context."""

from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.document_filters import matching_ids
from graphrag_ray.query.methods.hierarchy_choice import check_embedded
from graphrag_ray.query.methods.local_search import reports_around
from graphrag_ray.query.methods.method import Method, Question, Search, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import rank
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import answer_from

NAME = "passages-reports"


def search(question: Question, env: SearchEnv) -> Method:
    check_embedded(env, NAME, ["text_unit"])
    # Choose ids.
    passages = yield from rank(
        [Search("text_unit", "vector", question.text), Search("text_unit", "keyword", question.text)], env
    )
    entities = yield from matching_ids("entity", [id_ for _, id_ in passages])
    reports = yield from reports_around(entities, env)
    # Load the records, once.
    shares = [
        Share((yield from load_records(passages, env)), 0.7),
        Share((yield from load_records(reports, env)), 0.3),
    ]
    # Fill a context, and answer from it.
    context = fill(shares, env.settings.query.context_tokens, env.count)
    return (yield from answer_from(question.text, env, NAME, context))


METHOD = MethodKind(
    search,
    stages=("embed", "answer"),
    description="passages, and reports on what they name",
    reports=True,
    alternative="hybrid",
)
