"""Generate questions about a whole corpus: personas, tasks, questions (GraphRAG 3.2, Algorithm 1)."""

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
from graphrag_ray.evaluate.judging.judge_dialogue import ask_for_json, list_schema, parse_texts
from graphrag_ray.query.methods.map_reduce import AnswerSpec, build_request, build_spec, prompt_variables
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues

STAGE = "questions"
DESCRIPTION = "corpus_description"
MAX_LIST_TOKENS = 2_000
MAX_DESCRIPTION_TOKENS = 300
TOP_REPORTS = 30  # Maximum number of reports used for a description.
TOP_REPORTS_TOKENS = 6_000

_LISTS = {"personas": "persona", "tasks": "task", "corpus_questions": "question"}
"""Field name of the list entries by prompt."""


@dataclass(frozen=True, slots=True)
class CorpusQuestion:
    """A question. Its id consists of the numbers of persona, task and question, starting from 1."""

    question_id: str
    question: str
    persona: str
    task: str


def question_specs(settings: Settings, prompts: Mapping[str, Prompt]) -> dict[str, AnswerSpec]:
    """Return the specification of each of the three lists by prompt name."""
    specs = {name: build_spec(STAGE, settings, prompts, MAX_LIST_TOKENS, name) for name in _LISTS}
    language = _language(settings, "description")
    return {name: replace(spec, language=language) for name, spec in specs.items()}


def _language(settings: Settings, source: str) -> str:
    """Return the output language of the settings; by default, the language of the source text."""
    language = settings.output_language
    return f"the language of the {source}" if language == LANGUAGE_OF_TEXT else language


def corpus_questions(
    description: str, counts: tuple[int, int, int], specs: Mapping[str, AnswerSpec]
) -> Generator[Any, Any, tuple[list[CorpusQuestion], list[str]]]:
    """Generate questions, one level of `Dialogues` at a time. Returns (questions, failure messages).

    counts: personas, tasks per persona, questions per task. Raises DialogueFailed if there is no persona.
    """
    n_personas, n_tasks, n_questions = counts
    variables = {"description": description}
    (personas,), failures = yield from _lists("personas", [variables], n_personas, specs["personas"])
    if not personas:
        raise DialogueFailed(failures[0])
    users = [variables | {"persona": persona} for persona in personas]
    tasks, task_failures = yield from _lists("tasks", users, n_tasks, specs["tasks"])
    failures += task_failures
    plans = [
        (f"{p}.{t}", user | {"task": task})
        for p, (user, listed) in enumerate(zip(users, tasks, strict=True), 1)
        for t, task in enumerate(listed, 1)
    ]
    spec = specs["corpus_questions"]
    question_lists, question_failures = yield from _lists(
        "corpus_questions", [plan for _, plan in plans], n_questions, spec
    )
    questions = [
        CorpusQuestion(f"{prefix}.{n}", question, plan["persona"], plan["task"])
        for (prefix, plan), listed in zip(plans, question_lists, strict=True)
        for n, question in enumerate(listed, 1)
    ]
    first = {question.question.casefold(): question for question in reversed(questions)}
    return [q for q in questions if first[q.question.casefold()] is q], failures + question_failures


def _lists(
    name: str, variable_sets: Sequence[Mapping[str, str]], n: int, spec: AnswerSpec
) -> Generator[Any, Any, tuple[list[list[str]], list[str]]]:
    """Request a list of n texts per set of variables. Returns (lists, errors); a failed list is empty."""
    dialogues = [partial(_list, name, variables, n, spec) for variables in variable_sets]
    outcomes: list[DialogueOutcome[list[str]]] = yield Dialogues(STAGE, dialogues)
    return [one.result or [] for one in outcomes], [one.error for one in outcomes if one.result is None]


def _list(name: str, variables: Mapping[str, str], n: int, spec: AnswerSpec) -> Dialogue[list[str]]:
    """Request n texts. Returns fewer only if a second reply has too few as well."""
    entry = _LISTS[name]
    key = "questions" if name == "corpus_questions" else name
    best: list[str] = []
    replies = 0

    def read(reply: ChatReply) -> list[str] | ReplyProblem:
        nonlocal best, replies
        replies += 1
        texts = parse_texts(reply, key, entry)
        if isinstance(texts, ReplyProblem):
            problem = texts
        else:
            best = max(best, texts, key=len)
            problem = ReplyProblem(f"it lists {len(texts)}, and not {n}")
        return best if len(best) >= n or (replies > 1 and best) else problem

    all_variables = {**variables, "n": str(n), "language": spec.language}
    texts = yield from ask_for_json(all_variables, spec, list_schema(key, entry), read)
    return texts[:n]


def description_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    spec = build_spec(STAGE, settings, prompts, MAX_DESCRIPTION_TOKENS, DESCRIPTION)
    return replace(spec, language=_language(settings, "reports"))


def corpus_description(reports: str, spec: AnswerSpec) -> Dialogue[str]:
    """Describe a corpus in a paragraph, from its top reports. Raises DialogueFailed for an empty reply."""
    variables = {**prompt_variables("", spec), "reports": reports}
    used = {name: variables[name] for name in ("reports", "language", "max_tokens", "max_words")}
    reply: ChatReply = yield build_request(DESCRIPTION, used, spec)
    if not (text := " ".join(reply.text.split())):
        raise DialogueFailed(f"{DESCRIPTION}: The reply is empty")
    return text
