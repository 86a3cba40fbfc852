"""Multi-hop search: personalised PageRank over names and chunks, repeated for missing links.

After HippoRAG 2 (Gutierrez et al. 2025).

A walk starts at the names that the question mentions and at the chunks that match its keywords
(`chunk_walk.py`), and moves from names to the chunks that mention them and back (`pagerank.py`). So it finds
passages that share no word with the question, such as one about the husband of a person in the question. The
most visited chunks fill one context, and the answer ends with the chain of links that leads to it.

Steps: if the chunks do not suffice, one call lists what is known and which questions to look up next ("Who
was her husband?"). A walk from each of them adds chunks to the context, and the original question is asked
again. So a question makes at most 1 + 2 · `query.ppr_steps` calls, one more with `query.ppr_candidate_facts`,
and a correction for each unusable reply.

Facts: one call selects, from the relationships nearest to the question, those that could lead to the answer.
The walk also starts at the names that they link.

Where we differ from HippoRAG 2: the graph consists of names and chunks, without facts and without links
between similar names (`indexing/stages/walk_stage.py`). Names are matched literally in the question.
Selecting facts is optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from pydantic import Field

from graphrag_ray.base.context_records import Reference, render_references, strip_references
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import name_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.schema import NAME_LINKS_TABLE
from graphrag_ray.graph.report_context import Context, sanitize, write_sections
from graphrag_ray.query.methods.answer import Answer, ContextUsed
from graphrag_ray.query.methods.budget import calls_bound, check_budget, check_context_fits
from graphrag_ray.query.methods.chain import check_link, split_chain
from graphrag_ray.query.methods.chunk_walk import FACT_WEIGHT, rarity, walk_chunks
from graphrag_ray.query.methods.context_filling import Share, fill, records_that_fit
from graphrag_ray.query.methods.document_filters import matching_chunks
from graphrag_ray.query.methods.map_reduce import (
    NOTHING_FOUND,
    AnswerSpec,
    Reduced,
    ask_for_text,
    build_spec,
    parsed_or_none,
)
from graphrag_ray.query.methods.method import (
    DialogueOutcome,
    Dialogues,
    Hit,
    Method,
    NameCounts,
    Question,
    Rows,
    Search,
    SearchEnv,
    Steps,
    WalkHit,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import (
    PHASE,
    build_answer,
    context_used,
    is_insufficient,
    result_of,
    short_numbers,
)

NAME = "ppr"
STEP_CHUNKS = 6
"""Number of chunks for each further question."""
MAX_CONTEXT_GROWTH = 3
"""After several steps, a context has at most this many times the chunks of the first one."""
FACT_COLUMNS = ["id", "source", "target"]
MAX_SHORT_ANSWER_WORDS = 12
"""Maximum number of words of a short answer."""
ADVICE = "Raise the budget, or lower query.ppr_steps, query.ppr_k or query.context_tokens."


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the chunks that walks visit most often."""
    if NAME_LINKS_TABLE not in env.n_rows:
        raise UsageError(
            f"{NAME} search walks over names, but this index has none, because it was made without a graph. "
            "To extract names without a model, run `graphrag-ray index --build names` with another --root. "
            "To extract them with a model, add a hierarchy over entities (--set hierarchies=…,leiden)."
        )
    text, query = question.text, env.settings.query
    answer, next_, facts = (step_spec(p, env.settings, env.prompts) for p in (ANSWER, NEXT, FACTS))
    _check_room(text, env, answer, next_, facts)
    chunks = yield from matching_chunks(question.where)
    state = _Walks()
    names = (yield from _fact_names(text, env, facts, state)) if query.ppr_candidate_facts else {}
    hits = yield from walk_chunks([text], env, query.ppr_k, chunks, names)
    state.add("", hits[0])
    step, last = 0, query.ppr_steps == 0
    while True:
        ids = state.most_visited(query.ppr_k * min(1 + step, MAX_CONTEXT_GROWTH))
        records = yield from load_records((("text_unit", id_) for id_ in ids), env, distinct_texts=True)
        # Chunks that do not fit are visited less often, so they do not count as left out.
        context = replace(fill([Share(records)], query.context_tokens, env.count), left_out=0)
        reduced = Reduced(NOTHING_FOUND, found=False)
        if not context.numbering:
            break
        dialogue = partial(walk_answer, text, context, last, answer)
        (outcome,) = yield Dialogues(PHASE, [dialogue], is_answer=last)
        reduced = result_of(outcome)
        if last or not is_insufficient(reduced.text):
            break
        next_dialogue = partial(
            next_questions, text, [text, *state.asked], context, next_, query.ppr_max_questions
        )
        next_steps: list[DialogueOutcome[NextStep | None]] = yield Dialogues(STAGE, [next_dialogue])
        questions, before = state.note(next_steps[0]), len(state.paths)
        if questions:
            state.contexts.append(context_used(PHASE, context))
            hits = yield from walk_chunks(questions, env, STEP_CHUNKS, chunks)
            for next_question, visited in zip(questions, hits, strict=True):
                state.add(next_question, visited)
        if len(state.paths) == before:  # no new chunks
            (outcome,) = yield Dialogues(
                PHASE, [partial(walk_answer, text, context, True, answer)], is_answer=True
            )
            reduced = result_of(outcome)
            break
        step += 1
        last = step == query.ppr_steps
    return (yield from _build_answer(text, reduced, context, state))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "answer", "steps"),
    description="passages visited by a random walk over names",
    graph=True,
    suggestions=("hybrid", "local"),
    option=("steps", "ppr_steps"),
    reply_dependent=True,
)


@dataclass
class _Walks:
    """The walks of a question: their chunks, the first path to each chunk, and insufficient contexts."""

    walks: list[list[str]] = field(default_factory=list)
    paths: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    contexts: list[ContextUsed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, question: str, hits: Sequence[WalkHit]) -> None:
        for hit in hits:
            self.paths.setdefault(hit.id, (question, hit.path))
        self.walks.append([hit.id for hit in hits])

    def note(self, outcome: DialogueOutcome[NextStep | None]) -> Sequence[str]:
        """Record a next step, and return the questions to look up. Returns none if the call failed."""
        if outcome.result is None:
            reason = f": {outcome.error}" if outcome.error else "."
            self.notes.append(f"The next questions could not be determined{reason}")
            return ()
        self.asked += outcome.result.questions
        parts = (("Known so far", outcome.result.known), ("Looked up next", outcome.result.questions))
        self.notes += [f"{label}: {' '.join(texts)}" for label, texts in parts if texts]
        return outcome.result.questions

    def most_visited(self, limit: int) -> list[str]:
        """Merge the walks round-robin, newest first, so that none displaces another."""
        rows = zip_longest(*reversed(self.walks))
        return list(dict.fromkeys(id_ for row in rows for id_ in row if id_ is not None))[:limit]


def _check_room(text: str, env: SearchEnv, answer: AnswerSpec, next_: AnswerSpec, facts: AnswerSpec) -> None:
    """Check context windows and budget before the first call."""
    query = env.settings.query
    n = 1 + query.ppr_steps
    extra = 2 * max(map(env.count, (INSUFFICIENT, LAST)))  # the prompt contains it twice
    check_context_fits(text, env, [answer], extra_tokens=extra)
    bound = calls_bound(text, env, PHASE, answer, n, n * (query.context_tokens + extra))
    if query.ppr_steps:
        before = query.ppr_steps * MAX_TOKENS[NEXT]  # a reply holds all questions of a step
        check_context_fits(text, env, [next_], extra_tokens=before)
        data_tokens = query.ppr_steps * (query.context_tokens + before)
        bound += calls_bound(text, env, STAGE, next_, query.ppr_steps, data_tokens)
    if query.ppr_candidate_facts:
        check_context_fits(text, env, [facts])
        bound += calls_bound(text, env, STAGE, facts, 1, query.context_tokens)
    check_budget(bound, query, ADVICE)


def _build_answer(text: str, reduced: Reduced, context: Context, state: _Walks) -> Steps[Answer]:
    """Build the answer with its chain, verifying each link against the passages that it cites."""
    body, links = split_chain(reduced.text)
    if is_insufficient(body):
        reduced, links = replace(reduced, found=False), []
    if not body and links:  # only a chain
        body = strip_references(links[-1].found).strip()
    reduced = replace(reduced, text=body or reduced.text)
    answer = yield from build_answer(text, NAME, context, reduced, state.notes)
    ids = list(dict.fromkeys(r.id for link in links for r in link.references if r.section == "Sources"))
    rows = (yield Rows("text_units", ["id", "text", "header"], ids)).to_pylist() if ids else []
    passages = {row["id"]: f"{row['header'] or ''}\n{row['text']}" for row in rows}
    path_of = {r: state.paths.get(r.id, ("", ())) for r in reduced.references}
    between = [Reference("Sources", id_) for _, path in path_of.values() for id_ in path[-2::-2]]
    number = yield from short_numbers(dict.fromkeys([*reduced.references, *between]))
    chain = tuple(
        replace(link, found=render_references(link.found, number.get))
        for link in (check_link(link, passages) for link in links)
    )
    paths = {}
    for reference, (asked, path) in path_of.items():
        # Names with chunks between them: `“Who was her husband?” → Saw Thanda → Sources (12) → Naratheinkha`
        steps = list(path)
        for position in range(len(steps) - 2, -1, -2):
            n = number.get(Reference("Sources", steps[position]))
            steps[position] = "a passage" if n is None else f"Sources ({n})"
        rendered = " → ".join([*([f"“{asked}”"] if asked else []), *steps])
        if rendered and reference in number:
            paths[str(number[reference])] = rendered
    contexts = (*state.contexts, *answer.contexts)
    # A short answer without a chain has no references, but still counts as found.
    found = answer.found or (reduced.found and len(body.split()) <= MAX_SHORT_ANSWER_WORDS)
    return replace(answer, chain=chain, paths=paths, contexts=contexts, found=found)


def _fact_names(text: str, env: SearchEnv, spec: AnswerSpec, state: _Walks) -> Steps[dict[str, float]]:
    """Let a model select relevant facts near the question, and weight their names by rarity."""
    if not env.n_rows.get("embeddings_relationship"):
        state.notes.append("No facts were selected, because the index has no embeddings of relationships.")
        return {}
    hits: list[Hit] = yield Search("relationship", "vector", text, env.settings.query.ppr_candidate_facts)
    near = yield from load_records((("relationship", hit.id) for hit in hits), env)
    facts, _ = records_that_fit(near, env.settings.query.context_tokens, env.count)
    if not facts:
        return {}
    dialogue = partial(pick_facts, text, write_sections(facts)[0], len(facts), spec)
    outcomes: list[DialogueOutcome[tuple[int, ...] | None]] = yield Dialogues(STAGE, [dialogue])
    selected = [facts[n - 1].id for n in outcomes[0].result or ()]
    if outcomes[0].result is None:
        state.notes.append(f"No facts were selected, because the call failed. {outcomes[0].error}".strip())
    rows = (yield Rows("relationships", FACT_COLUMNS, selected)).to_pylist() if selected else []
    title = {name_id(row[end]): row[end] for row in rows for end in ("source", "target")}
    counts: dict[str, int] = yield NameCounts({id_: name for id_, name in title.items() if id_})
    return {id_: FACT_WEIGHT * rarity(n) for id_, n in counts.items()}


STAGE = "steps"
ANSWER, NEXT, FACTS = "walk_answer", "next_questions", "pick_facts"
"""Names of prompts. The first belongs to the stage `answer`, the others to STAGE."""
MAX_TOKENS: Mapping[str, int] = {NEXT: 600, FACTS: 100}
MAX_FACTS = 5
"""Maximum number of selected facts, as in HippoRAG 2."""
MAX_CHARACTERS = 400
"""Maximum length of a next question or known fact in characters."""
MAX_KNOWN = 10

INSUFFICIENT = (
    "If a link on the way to the answer is missing, or one of several things that the question asks for by "
    "name, the whole reply is the English word Insufficient, in every form and language: what is missing is "
    "looked up then. A broad question is answered with what the passages hold."
)
LAST = (
    "Nothing more can be looked up. If a part is missing, give what the passages hold and say what is "
    "missing: an incomplete list is an answer. If a link is missing but only one answer is possible, give "
    "it. Only if nothing was found is the whole reply, in a short form, the English word Insufficient."
)


class NextReply(JsonReply):
    known: list[str] = Field(default=[])
    next: list[str] = Field(default=[])


class FactsReply(JsonReply):
    facts: list[int]


NEXT_SCHEMA: Mapping[str, Any] = schema_of(NextReply)
FACTS_SCHEMA: Mapping[str, Any] = schema_of(FactsReply)
NO_NEXT = "it holds no JSON object with the lists `known` and `next`"
NO_FACTS = "it holds no JSON object with the list `facts`, whose members are numbers of facts"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The facts known so far, and the questions to look up next."""

    known: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()


def step_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """Build the spec of ANSWER, NEXT or FACTS."""
    if prompt == ANSWER:
        return build_spec("answer", settings, prompts, settings.query.max_reduce_tokens, ANSWER)
    return build_spec(STAGE, settings, prompts, MAX_TOKENS[prompt], prompt)


def walk_answer(question: str, context: Context, last: bool, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Ask for the answer and its chain. `last` means that nothing more will be looked up."""
    variables = {"context": context.text, "if_missing": LAST if last else INSUFFICIENT}
    return (yield from ask_for_text(ANSWER, question, variables, context.numbering, spec))


def next_questions(
    question: str, asked: Sequence[str], context: Context, spec: AnswerSpec, limit: int
) -> Dialogue[NextStep | None]:
    """Ask for the next questions, given those already asked. Returns None if no reply is usable."""
    listed = "\n".join(f"- {earlier}" for earlier in asked)
    variables = {"context": context.text, "asked": listed, "n_questions": str(limit)}
    parse = partial(parse_next, asked=asked, limit=limit)
    return (yield from parsed_or_none(NEXT, question, spec, parse, NEXT_SCHEMA, **variables))


def pick_facts(question: str, facts: str, n: int, spec: AnswerSpec) -> Dialogue[tuple[int, ...] | None]:
    """Ask which of the facts 1 to n lead to the answer. Returns None if no reply is usable."""
    variables = {"context": facts, "n_facts": str(MAX_FACTS)}
    parse = partial(parse_facts, n=n)
    return (yield from parsed_or_none(FACTS, question, spec, parse, FACTS_SCHEMA, **variables))


def parse_next(reply: str, asked: Sequence[str], limit: int) -> NextStep | ReplyProblem:
    """Parse the next step. Questions already asked are dropped, because a model may repeat them."""
    parsed = parse_reply(reply, NextReply)
    if isinstance(parsed, ReplyProblem) or not parsed.model_fields_set:
        return ReplyProblem(NO_NEXT)
    known, questions = (
        [text for item in items if (text := sanitize(item[:MAX_CHARACTERS]).strip())]
        for items in (parsed.known, parsed.next)
    )
    before = {name_id(question) for question in asked}
    new: dict[str, str] = {}
    for question in questions:
        if (id_ := name_id(question)) and id_ not in before:
            new.setdefault(id_, question)
    return NextStep(tuple(dict.fromkeys(known))[:MAX_KNOWN], tuple(new.values())[:limit])


def parse_facts(reply: str, n: int) -> tuple[int, ...] | ReplyProblem:
    """Parse the distinct numbers of facts in a reply."""
    parsed = parse_reply(reply, FactsReply)
    if isinstance(parsed, ReplyProblem):
        return ReplyProblem(NO_FACTS)
    return tuple(dict.fromkeys(number for number in parsed.facts if 1 <= number <= n))[:MAX_FACTS]
