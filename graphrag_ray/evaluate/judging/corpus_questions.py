"""Questions about a whole corpus: users, their tasks, what they would ask (GraphRAG 3.2, Algorithm 1)."""

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
from graphrag_ray.query.methods.map_reduce import AnswerSpec, request_of, spec_of, variables_of
from graphrag_ray.query.methods.method import Dialogues, Ran

STAGE = "questions"
DESCRIPTION = "corpus_description"
MAX_LIST_TOKENS = 2_000
MAX_DESCRIPTION_TOKENS = 300
TOP_REPORTS = 30
"""Reports that a description is written from, at most."""
TOP_REPORTS_TOKENS = 6_000

_LISTS = {"personas": "persona", "tasks": "task", "corpus_questions": "question"}
"""What the entries of each prompt's list hold."""


@dataclass(frozen=True, slots=True)
class CorpusQuestion:
    """question_id: from its place: persona, task and question, from 1; the same in every run."""

    question_id: str
    question: str
    persona: str
    task: str


def question_specs(settings: Settings, prompts: Mapping[str, Prompt]) -> dict[str, AnswerSpec]:
    """How each of the three lists is asked for, by the name of its prompt."""
    specs = {name: spec_of(STAGE, settings, prompts, MAX_LIST_TOKENS, name) for name in _LISTS}
    language = _language(settings, "description")
    return {name: replace(spec, language=language) for name, spec in specs.items()}


def _language(settings: Settings, shown: str) -> str:
    """That of the settings, or else of what the model is shown."""
    own = settings.output_language
    return f"the language of the {shown}" if own == LANGUAGE_OF_TEXT else own


def corpus_questions(
    description: str, counts: tuple[int, int, int], specs: Mapping[str, AnswerSpec]
) -> Generator[Any, Any, tuple[list[CorpusQuestion], list[str]]]:
    """Yields `Dialogues`, each all at once. counts: of personas, tasks of each, questions of each task.

    Returns the questions, and what failed, as sentences. Raises DialogueFailed where there is no persona.
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
        for p, (user, own) in enumerate(zip(users, tasks, strict=True), 1)
        for t, task in enumerate(own, 1)
    ]
    spec = specs["corpus_questions"]
    asked, failed = yield from _lists("corpus_questions", [plan for _, plan in plans], n_questions, spec)
    found = [
        CorpusQuestion(f"{place}.{n}", question, plan["persona"], plan["task"])
        for (place, plan), own in zip(plans, asked, strict=True)
        for n, question in enumerate(own, 1)
    ]
    first = {question.question.casefold(): question for question in reversed(found)}
    return [q for q in found if first[q.question.casefold()] is q], failures + failed


def _lists(
    name: str, each: Sequence[Mapping[str, str]], n: int, spec: AnswerSpec
) -> Generator[Any, Any, tuple[list[list[str]], list[str]]]:
    """For each of the variables a list of n texts, or [] where none came; and why."""
    ran: list[Ran[list[str]]] = yield Dialogues(STAGE, [partial(_list, name, one, n, spec) for one in each])
    return [one.result or [] for one in ran], [one.error for one in ran if one.result is None]


def _list(name: str, variables: Mapping[str, str], n: int, spec: AnswerSpec) -> Dialogue[list[str]]:
    """n texts at most; fewer where also a second reply has fewer."""
    entry = _LISTS[name]
    key = "questions" if name == "corpus_questions" else name
    best: list[str] = []
    replies = 0

    def read(reply: ChatReply) -> list[str] | ReplyProblem:
        nonlocal best, replies
        replies += 1
        found = texts_in(reply, key, entry)
        listed = [] if isinstance(found, ReplyProblem) else found
        best = max(best, listed, key=len)
        if len(best) >= n or (replies > 1 and best):
            return best
        return (
            found if isinstance(found, ReplyProblem) else ReplyProblem(f"it lists {len(found)}, and not {n}")
        )

    everything = {**variables, "n": str(n), "language": spec.language}
    found = yield from asked_as_json(everything, spec, list_schema(key, entry), read)
    return found[:n]


def description_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    spec = spec_of(STAGE, settings, prompts, MAX_DESCRIPTION_TOKENS, DESCRIPTION)
    return replace(spec, language=_language(settings, "reports"))


def corpus_description(reports: str, spec: AnswerSpec) -> Dialogue[str]:
    """A paragraph on a corpus, from its top reports. Raises DialogueFailed where the reply is empty."""
    variables = {**variables_of("", spec), "reports": reports}
    wanted = {name: variables[name] for name in ("reports", "language", "max_tokens", "max_words")}
    reply: ChatReply = yield request_of(DESCRIPTION, wanted, spec)
    if not (text := " ".join(reply.text.split())):
        raise DialogueFailed(f"{DESCRIPTION}: the reply is empty")
    return text
