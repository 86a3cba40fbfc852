"""Write questions about a whole corpus: personas, tasks, questions (GraphRAG 3.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import LANGUAGE_OF_TEXT, Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.evaluate.judging.judge_dialogue import asked_as_json, list_schema, texts_in
from graphrag_ray.query.methods.map_reduce import AnswerSpec, build_request, build_spec, prompt_variables
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues

STAGE = "questions"
DESCRIPTION = "corpus_description"
MAX_LIST_TOKENS = 2_000
MAX_DESCRIPTION_TOKENS = 300
TOP_REPORTS = 30  # maximum number of reports that a description is written from
TOP_REPORTS_TOKENS = 6_000

_LISTS = {"personas": "persona", "tasks": "task", "corpus_questions": "question"}
"""Field name of the list entries, by prompt."""


@dataclass(frozen=True, slots=True)
class CorpusQuestion:
    """A question. Its id numbers persona, task and question from 1, the same in every run."""

    question_id: str
    question: str
    persona: str
    task: str


def question_specs(settings: Settings, prompts: Mapping[str, Prompt]) -> dict[str, AnswerSpec]:
    """How each of the three lists is requested, by prompt name."""
    specs = {name: build_spec(STAGE, settings, prompts, MAX_LIST_TOKENS, name) for name in _LISTS}
    language = _language(settings, "description")
    return {name: replace(spec, language=language) for name, spec in specs.items()}


def _language(settings: Settings, source: str) -> str:
    """The output language of the settings, or that of the source text."""
    language = settings.output_language
    return f"the language of the {source}" if language == LANGUAGE_OF_TEXT else language


def corpus_questions(
    description: str, counts: tuple[int, int, int], specs: Mapping[str, AnswerSpec]
) -> Generator[Any, Any, tuple[list[CorpusQuestion], list[str]]]:
    """Write questions, yielding the `Dialogues` of each level at once; return them with failure messages.

    counts: personas, tasks per persona, questions per task. Raises DialogueFailed without a persona.
    """
    n_personas, n_tasks, n_questions = counts
    about = {"description": description}
    (personas,), failures = yield from _lists("personas", [about], n_personas, specs["personas"])
    if not personas:
        raise DialogueFailed(failures[0])
    users = [about | {"persona": persona} for persona in personas]
    tasks, failed = yield from _lists("tasks", users, n_tasks, specs["tasks"])
    failures += failed
    plans = [
        (f"{p}.{t}", user | {"task": task})
        for p, (user, listed) in enumerate(zip(users, tasks, strict=True), 1)
        for t, task in enumerate(listed, 1)
    ]
    spec = specs["corpus_questions"]
    asked, failed = yield from _lists("corpus_questions", [plan for _, plan in plans], n_questions, spec)
    written = [
        CorpusQuestion(f"{place}.{n}", question, plan["persona"], plan["task"])
        for (place, plan), listed in zip(plans, asked, strict=True)
        for n, question in enumerate(listed, 1)
    ]
    first = {question.question.casefold(): question for question in reversed(written)}
    return [q for q in written if first[q.question.casefold()] is q], failures + failed


def _lists(
    name: str, each: Sequence[Mapping[str, str]], n: int, spec: AnswerSpec
) -> Generator[Any, Any, tuple[list[list[str]], list[str]]]:
    """A list of n texts per set of variables, [] if it failed, and the errors."""
    dialogues = [partial(_list, name, variables, n, spec) for variables in each]
    ran: list[DialogueOutcome[list[str]]] = yield Dialogues(STAGE, dialogues)
    return [one.result or [] for one in ran], [one.error for one in ran if one.result is None]


def _list(name: str, variables: Mapping[str, str], n: int, spec: AnswerSpec) -> Dialogue[list[str]]:
    """At most n texts; fewer only if a second reply also has fewer."""
    entry = _LISTS[name]
    key = "questions" if name == "corpus_questions" else name
    best: list[str] = []
    replies = 0

    def read(reply: ChatReply) -> list[str] | ReplyProblem:
        nonlocal best, replies
        replies += 1
        texts = texts_in(reply, key, entry)
        if isinstance(texts, ReplyProblem):
            problem = texts
        else:
            best = max(best, texts, key=len)
            problem = ReplyProblem(f"it lists {len(texts)}, and not {n}")
        return best if len(best) >= n or (replies > 1 and best) else problem

    all_variables = {**variables, "n": str(n), "language": spec.language}
    texts = yield from asked_as_json(all_variables, spec, list_schema(key, entry), read)
    return texts[:n]


def description_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    spec = build_spec(STAGE, settings, prompts, MAX_DESCRIPTION_TOKENS, DESCRIPTION)
    return replace(spec, language=_language(settings, "reports"))


def corpus_description(reports: str, spec: AnswerSpec) -> Dialogue[str]:
    """Describe a corpus in a paragraph, from its top reports. Raises DialogueFailed for an empty reply."""
    variables = {**prompt_variables("", spec), "reports": reports}
    wanted = {name: variables[name] for name in ("reports", "language", "max_tokens", "max_words")}
    reply: ChatReply = yield build_request(DESCRIPTION, wanted, spec)
    if not (text := " ".join(reply.text.split())):
        raise DialogueFailed(f"{DESCRIPTION}: The reply is empty")
    return text
