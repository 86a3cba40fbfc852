"""Answers that hop: personalised PageRank over names and chunks, in the way of HippoRAG 2 (Gutierrez et al.
2025), and further walks where the first one does not hold the answer.

A walk begins at the names that the question holds, and at the chunks that match its words
(`walked_chunks.py`); it goes from names to the chunks that hold them and from these to their names
(`walk.py`). So it finds the passage that shares no word with the question: the one on the husband of whom the
question asks about. The chunks where it is most often are read, in one context, and the answer ends in the
chain of links that led to it.

Steps: where they do not suffice, one call says what is known and asks what is to be looked up next ("Who was
her husband?"); each of these questions is walked, their chunks join the context, and the question is answered
again. So a question has at most 1 + 2 · `query.ppr_steps` calls, and one more with `query.ppr_facts`; each is
asked once more where its reply cannot be read.

Facts: one call picks, of the relationships nearest to the question, those that could lead to the answer; the
walk begins at what they link, too.

Where we differ from HippoRAG 2: the graph is of names and chunks, without facts and without links between
names that are near by meaning (`indexing/stages/walk_stage.py`); names are found in the question literally;
facts are picked only where that is asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from pydantic import Field

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import name_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.records import Reference, render_references, strip_references
from graphrag_ray.base.schema import WALKS
from graphrag_ray.graph.report_context import Context, clean, write
from graphrag_ray.query.methods.answer import Answer, ContextUsed
from graphrag_ray.query.methods.budget import asking, check_room, refuse_beyond
from graphrag_ray.query.methods.chain import checked, split_chain
from graphrag_ray.query.methods.filling import Share, fill, first_fitting
from graphrag_ray.query.methods.map_reduce import (
    NOTHING_FOUND,
    AnswerSpec,
    Reduced,
    asked_for_text,
    read_or_none,
    spec_of,
)
from graphrag_ray.query.methods.method import (
    Dialogues,
    Given,
    Hit,
    Method,
    NameCounts,
    Question,
    Ran,
    Rows,
    Search,
    WalkHit,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.one_context import (
    PHASE,
    answered,
    context_used,
    is_insufficient,
    numbered,
    result_of,
)
from graphrag_ray.query.methods.record_rows import loaded
from graphrag_ray.query.methods.walked_chunks import FACT_WEIGHT, rarity, walked
from graphrag_ray.query.methods.where import within

NAME = "ppr"
STEP_CHUNKS = 6
"""Of each further question."""
MOST_TIMES = 3
"""A context after some steps has so many times the chunks of the first one, at most."""
FACT_COLUMNS = ["id", "source", "target"]
SHORT_WORDS = 12
"""Of an answer in a short form."""
ADVICE = "Raise the budget, or lower query.ppr_steps, query.ppr_k or query.context_tokens."


def search(question: Question, given: Given) -> Method:
    """Answer from the chunks that walks come to. Raises UsageError for an index that cannot be walked, a
    question that leaves no room for data, and conditions that cannot be met; BudgetSpent."""
    if WALKS not in given.n_rows:
        raise UsageError(
            f"{NAME} search walks over names, and this index has none: it was made without a graph. "
            "`graphrag-ray index --build names` with another --root finds them without a model; a hierarchy "
            "over entities beside the one that is there (--set hierarchies=…,leiden) has a model find them"
        )
    text, query = question.text, given.settings.query
    answer, next_, facts = (step_spec(p, given.settings, given.prompts) for p in (ANSWER, NEXT, FACTS))
    _check(text, given, answer, next_, facts)
    chunks = yield from within(question.where)
    looked = _LookedUp()
    names = (yield from _facts(text, given, facts, looked)) if query.ppr_facts else {}
    hits = yield from walked([text], given, query.ppr_k, chunks, names)
    looked.add("", hits[0])
    step, last = 0, query.ppr_steps == 0
    while True:
        first = looked.first(query.ppr_k * min(1 + step, MOST_TIMES))
        records = yield from loaded((("text_unit", id_) for id_ in first), given)
        # What does not fit is just not among the first.
        context = replace(fill([Share(records)], query.context_tokens, given.count), left_out=0)
        said = Reduced(NOTHING_FOUND, found=False)
        if not context.numbering:
            break
        (ran,) = yield Dialogues(PHASE, [partial(walk_answer, text, context, last, answer)], last=last)
        said = result_of(ran)
        if last or not is_insufficient(said.text):
            break
        start = partial(next_questions, text, [text, *looked.asked], context, next_)
        ran_next: list[Ran[NextStep | None]] = yield Dialogues(STAGE, [start])
        asked, before = looked.note(ran_next[0]), len(looked.paths)
        if asked:
            looked.contexts.append(context_used(PHASE, context))
            more = yield from walked(asked, given, STEP_CHUNKS, chunks)
            for one, hits_of in zip(asked, more, strict=True):
                looked.add(one, hits_of)
        if len(looked.paths) == before:  # nothing that was not read
            (ran,) = yield Dialogues(PHASE, [partial(walk_answer, text, context, True, answer)], last=True)
            said = result_of(ran)
            break
        step += 1
        last = step == query.ppr_steps
    return (yield from _finished(text, said, context, looked))


METHOD = MethodKind(
    search,
    asks=("embed", "answer", "steps"),
    reads="passages that a walk over names comes to",
    graph=True,
    others=("hybrid", "local"),
    option=("steps", "ppr_steps"),
    by_replies=True,
)


@dataclass
class _LookedUp:
    """What the walks of a question came to so far.

    walks     the chunks of each, in order
    paths     of each chunk, how it was first reached: the further question that found it, or "", and the path
    asked     questions that were looked up after the first
    contexts  those that did not suffice; notes: what to tell of all that
    """

    walks: list[list[str]] = field(default_factory=list)
    paths: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    contexts: list[ContextUsed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, question: str, hits: Sequence[WalkHit]) -> None:
        for hit in hits:
            self.paths.setdefault(hit.id, (question, hit.path))
        self.walks.append([hit.id for hit in hits])

    def note(self, ran: Ran[NextStep | None]) -> Sequence[str]:
        """What is to be looked up next: questions; none where there are none, or the call failed."""
        if ran.result is None:
            why = f": {ran.error}" if ran.error else "."
            self.notes.append(f"What is to be looked up next could not be told{why}")
            return ()
        self.asked += ran.result.questions
        told = (("Known by then", ran.result.known), ("Looked up next", ran.result.questions))
        self.notes += [f"{what}: {' '.join(texts)}" for what, texts in told if texts]
        return ran.result.questions

    def first(self, most: int) -> list[str]:
        """Chunks by turns: the first of each walk, that of the newest one first, then the second of each, and
        so on. So no walk pushes out another."""
        rows = zip_longest(*reversed(self.walks))
        return list(dict.fromkeys(id_ for row in rows for id_ in row if id_ is not None))[:most]


def _check(text: str, given: Given, answer: AnswerSpec, next_: AnswerSpec, facts: AnswerSpec) -> None:
    """Raises UsageError or BudgetSpent before anything is asked."""
    query = given.settings.query
    n, told = 1 + query.ppr_steps, 2 * max(map(given.count, (INSUFFICIENT, LAST)))  # it stands there twice
    check_room(text, given, [answer], beside=told)
    most = asking(text, given, PHASE, answer, n, n * (query.context_tokens + told))
    if query.ppr_steps:
        before = query.ppr_steps * NEXT_QUESTIONS * MAX_TOKENS[NEXT]
        check_room(text, given, [next_], beside=before)
        shown = query.ppr_steps * (query.context_tokens + before)
        most += asking(text, given, STAGE, next_, query.ppr_steps, shown)
    if query.ppr_facts:
        check_room(text, given, [facts])
        most += asking(text, given, STAGE, facts, 1, query.context_tokens)
    refuse_beyond(most, query, ADVICE)


def _finished(text: str, said: Reduced, context: Context, looked: _LookedUp) -> Generator[Any, Any, Answer]:
    """The answer with its chain, each link checked against its passages."""
    body, links = split_chain(said.text)
    if is_insufficient(body):
        said, links = replace(said, found=False), []
    if not body and links:  # a chain alone
        body = strip_references(links[-1].found).strip()
    answer = yield from answered(text, NAME, context, replace(said, text=body or said.text), looked.notes)
    ids = list(dict.fromkeys(r.id for link in links for r in link.references if r.section == "Sources"))
    rows = (yield Rows("text_units", ["id", "text", "header"], ids)).to_pylist() if ids else []
    passages = {row["id"]: f"{row['header'] or ''}\n{row['text']}" for row in rows}
    ways = {r: looked.paths.get(r.id, ("", ())) for r in said.references}
    between = [Reference("Sources", id_) for _, way in ways.values() for id_ in way[-2::-2]]
    number = yield from numbered(dict.fromkeys([*said.references, *between]))
    chain = tuple(
        replace(link, found=render_references(link.found, number.get))
        for link in (checked(link, passages) for link in links)
    )
    paths = {}
    for reference, (asked, way) in ways.items():
        # `“Who was her husband?” → Saw Thanda → Sources (12) → Naratheinkha`: names, chunks between them.
        steps = list(way)
        for place in range(len(steps) - 2, -1, -2):
            n = number.get(Reference("Sources", steps[place]))
            steps[place] = "a passage" if n is None else f"Sources ({n})"
        shown = " → ".join([*([f"“{asked}”"] if asked else []), *steps])
        if shown and reference in number:
            paths[str(number[reference])] = shown
    contexts = (*looked.contexts, *answer.contexts)
    # A short answer without a chain cites nothing.
    found = answer.found or (said.found and len(body.split()) <= SHORT_WORDS)
    return replace(answer, chain=chain, paths=paths, contexts=contexts, found=found)


def _facts(
    text: str, given: Given, spec: AnswerSpec, looked: _LookedUp
) -> Generator[Any, Any, dict[str, float]]:
    """Names that are linked by the nearest facts that a model picks, the rarer the heavier."""
    if not given.n_rows.get("embeddings_relationship"):
        looked.notes.append("No facts were picked, since the index has no embeddings of relationships.")
        return {}
    hits: list[Hit] = yield Search("relationship", "vector", text, given.settings.query.ppr_facts)
    near = yield from loaded((("relationship", hit.id) for hit in hits), given)
    shown, _ = first_fitting(near, given.settings.query.context_tokens, given.count)
    if not shown:
        return {}
    start = partial(pick_facts, text, write(shown)[0], len(shown), spec)
    ran: list[Ran[tuple[int, ...] | None]] = yield Dialogues(STAGE, [start])
    picked = [shown[n - 1].id for n in ran[0].result or ()]
    if ran[0].result is None:
        looked.notes.append(f"No facts were picked, since the call failed. {ran[0].error}".strip())
    rows = (yield Rows("relationships", FACT_COLUMNS, picked)).to_pylist() if picked else []
    title = {name_id(row[end]): row[end] for row in rows for end in ("source", "target")}
    counts: dict[str, int] = yield NameCounts({id_: name for id_, name in title.items() if id_})
    return {id_: FACT_WEIGHT * rarity(n) for id_, n in counts.items()}


STAGE = "steps"
ANSWER, NEXT, FACTS = "walk_answer", "next_questions", "pick_facts"
"""Prompts. Stage `answer` asks the first one, STAGE the others."""
MAX_TOKENS: Mapping[str, int] = {NEXT: 400, FACTS: 100}
NEXT_QUESTIONS = 2
MOST_FACTS = 5
"""That are picked, as in HippoRAG 2."""
MOST_CHARACTERS = 400
"""Of a question, and of a sentence on what is known."""
MOST_KNOWN = 10

INSUFFICIENT = (
    "Where the passages do not hold the answer, or a link on the way to it is missing, the whole reply is "
    "the English word Insufficient, in every form and language: what is missing is looked up then."
)
LAST = (
    "Nothing can be looked up any more. Where a link is missing and all that the passages say leaves one "
    "answer alone, give it. Where they leave none, or several: in a short form the whole reply is the "
    "English word Insufficient; in any other form say what is known on the way to the answer, with "
    "references, and what is not."
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
    """What is known on the way to an answer, and what is to be looked up next."""

    known: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()


def step_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """prompt: ANSWER, NEXT or FACTS."""
    if prompt == ANSWER:
        return spec_of("answer", settings, prompts, settings.query.max_reduce_tokens, ANSWER)
    return spec_of(STAGE, settings, prompts, MAX_TOKENS[prompt], prompt)


def walk_answer(question: str, context: Context, last: bool, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Ask what passages say on the question, with the chain that leads to it. last: nothing is looked up
    after it. Raises DialogueFailed where the reply is empty twice."""
    shown = {"context": context.text, "if_missing": LAST if last else INSUFFICIENT}
    return (yield from asked_for_text(ANSWER, question, shown, context.numbering, spec))


def next_questions(
    question: str, asked: Sequence[str], context: Context, spec: AnswerSpec
) -> Dialogue[NextStep | None]:
    """Ask what is to be looked up next, and once more where the reply cannot be read; None where the second
    cannot either. asked: what was looked up already."""
    said = "\n".join(f"- {one}" for one in asked)
    shown = {"context": context.text, "asked": said, "n_questions": str(NEXT_QUESTIONS)}
    parse = partial(parse_next, asked=asked)
    return (yield from read_or_none(NEXT, question, spec, parse, NEXT_SCHEMA, **shown))


def pick_facts(question: str, facts: str, n: int, spec: AnswerSpec) -> Dialogue[tuple[int, ...] | None]:
    """Ask which facts lead to the answer: their numbers, from 1 to n. None where two replies cannot be
    read."""
    shown = {"context": facts, "n_facts": str(MOST_FACTS)}
    return (yield from read_or_none(FACTS, question, spec, partial(parse_facts, n=n), FACTS_SCHEMA, **shown))


def parse_next(reply: str, asked: Sequence[str]) -> NextStep | ReplyProblem:
    """What a reply says. A question that was asked already, or that says nothing, does not count: a model may
    break a question into itself."""
    said = read_reply(reply, NextReply)
    if isinstance(said, ReplyProblem) or not said.model_fields_set:
        return ReplyProblem(NO_NEXT)
    known, questions = (
        [text for one in listed if (text := clean(one[:MOST_CHARACTERS]).strip())]
        for listed in (said.known, said.next)
    )
    before = {name_id(one) for one in asked}
    new: dict[str, str] = {}
    for one in questions:
        if (id_ := name_id(one)) and id_ not in before:
            new.setdefault(id_, one)
    return NextStep(tuple(dict.fromkeys(known))[:MOST_KNOWN], tuple(new.values())[:NEXT_QUESTIONS])


def parse_facts(reply: str, n: int) -> tuple[int, ...] | ReplyProblem:
    """The numbers of a reply that are of facts, each once."""
    said = read_reply(reply, FactsReply)
    if isinstance(said, ReplyProblem):
        return ReplyProblem(NO_FACTS)
    return tuple(dict.fromkeys(number for number in said.facts if 1 <= number <= n))[:MOST_FACTS]
