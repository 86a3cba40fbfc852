"""Questions about a whole corpus from fixed sentences: a description, users, their tasks, what they ask.

The sentences are filled with the names and terms of the description, by first mention, and then with a few
subjects that most corpora have. A user has an interest, a task is of some kind and on one of the subjects;
these are read back from their texts, so that the questions of different users and tasks differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from zlib import crc32

from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.mentions import read
from graphrag_ray.offline.sentences import fold

SHOWN_TITLES = 4
MAX_TITLE_CHARS = 120
MAX_SUBJECTS = 12
"""Of a description, the first so many."""
MAX_SUBJECT_CHARS = 60
DEFAULT_N = 5
NOTHING_KNOWN = "A collection of texts."

USERS: Sequence[tuple[str, str]] = (
    ("A historian", "the beginnings of"),
    ("A journalist", "the disputes over"),
    ("A manager", "the risks around"),
    ("A researcher", "the reasons behind"),
    ("A public servant", "the decisions on"),
    ("A writer", "the people around"),
    ("An investor", "the money behind"),
    ("A teacher", "the lessons from"),
    ("A lawyer", "the rules around"),
    ("A planner", "the plans for"),
    ("A reviewer", "the doubts about"),
    ("A student", "the main facts about"),
)
"""Who they are, and what they want to know of a subject, be it a person or not."""

TASKS = (
    "Write an overview of {it}.",
    "Compare what the texts say about {it}.",
    "Prepare a talk on {it}.",
    "Advise others on {it}.",
    "Collect examples of {it}.",
    "Weigh the statements on {it}.",
    "Write an introduction to {it}.",
    "Find open questions about {it}.",
    "Plan further work on {it}.",
    "Draw a timeline of {it}.",
)

QUESTIONS = (
    "What are the main themes in what is said about {it}?",
    "How do the views on {it} differ?",
    "Which patterns come up again and again in {it}?",
    "Which trends do {it} show over time?",
    "Which perspectives on {it} are there, and whose are they?",
    "Which stories are told about {it}?",
    "Which topics are connected with {it}?",
    "Which opinions on {it} are opposed to each other?",
    "Which attitudes do people have to {it}?",
    "Which insights into {it} are given?",
    "Where is there a consensus on {it}, and where not?",
    "Which debates are there about {it}?",
)
"""Each has a word by which this engine knows a question about the whole."""

GENERAL_SUBJECTS = (
    "the main events",
    "the main decisions",
    "the people involved",
    "the places mentioned",
    "the work done",
    "the money spent",
    "the rules in force",
    "the hopes for the future",
)
"""What most corpora tell of; together with the sentences above they make more than 50 of each."""


def describe_corpus(variables: Mapping[str, str]) -> str:
    """A sentence with the titles of the first reports, which stand as `- title: summary`, one a line."""
    lines = (line.removeprefix("- ").partition(": ")[0] for line in variables["reports"].split("\n"))
    titles = (fold(line)[:MAX_TITLE_CHARS].strip(" .;:") for line in lines)
    said = "; ".join(islice(filter(None, titles), SHOWN_TITLES))
    return f"Texts that deal with {said}." if said else NOTHING_KNOWN


def list_personas(variables: Mapping[str, str]) -> str:
    """`{"personas": [{"persona": …}, …]}`"""
    subjects = _subjects(variables["description"])
    pairs = _pairs(len(USERS), len(subjects), _number(variables["n"]))
    told = [_persona(*USERS[u], subjects[s]) for u, s in pairs]
    return _json({"personas": [{"persona": text} for text in told]})


def list_tasks(variables: Mapping[str, str]) -> str:
    """`{"tasks": [{"task": …}, …]}`: of what the user is interested in, first of the user's own subject."""
    subjects = _subjects(variables["description"])
    subjects = _from(subjects, _subject_of(variables["persona"], subjects))
    interest = _interest_of(variables["persona"])
    pairs = _pairs(len(TASKS), len(subjects), _number(variables["n"]))
    told = [TASKS[t].format(it=f"{interest} {subjects[s]}") for t, s in pairs]
    return _json({"tasks": [{"task": text} for text in told]})


def list_questions(variables: Mapping[str, str]) -> str:
    """`{"questions": [{"question": …}, …]}`: first of the task's subject, beginning with a sentence of its
    own for each kind of task."""
    task, interest = variables["task"], _interest_of(variables["persona"])
    subjects = _subjects(variables["description"])
    subjects = _from(subjects, _subject_of(task, subjects))
    sentences = _from(QUESTIONS, _kind_of(task))
    asked = (q.format(it=f"{interest} {subject}") for subject in subjects for q in sentences)
    return _json({"questions": [{"question": text} for text in islice(asked, _number(variables["n"]))]})


def _persona(who: str, interest: str, subject: str) -> str:
    return f"{who} who wants to find out about {interest} {subject}."


def _subjects(description: str) -> list[str]:
    """What a description names, then what most corpora tell of; no two that differ in case alone."""
    named = (fold(thing.title) for thing in read(description, lexicon(), with_terms=True).things)
    fit = (name for name in named if name and len(name) <= MAX_SUBJECT_CHARS)
    found: dict[str, str] = {}
    for name in fit:
        found.setdefault(name.casefold(), name)
        if len(found) == MAX_SUBJECTS:
            break
    for name in GENERAL_SUBJECTS:
        found.setdefault(name.casefold(), name)
    return list(found.values())


def _pairs(n_sentences: int, n_subjects: int, n: int) -> list[tuple[int, int]]:
    """n pairs of a sentence and a subject, each once: both change from one to the next."""
    n = min(n, n_sentences * n_subjects)
    return [(i % n_sentences, (i % n_sentences + i // n_sentences) % n_subjects) for i in range(n)]


def _subject_of(text: str, subjects: Sequence[str]) -> int:
    """The subject with which a sentence of ours ends; of another text any, always the same."""
    ending = [i for i, subject in enumerate(subjects) if text.endswith(f" {subject}.")]
    return max(ending, key=lambda i: len(subjects[i]), default=_any(text, len(subjects)))


def _interest_of(persona: str) -> str:
    known = (interest for who, interest in USERS if persona.startswith(f"{who} "))
    return next(known, USERS[_any(persona, len(USERS))][1])


def _kind_of(task: str) -> int:
    kinds = (i for i, sentence in enumerate(TASKS) if task.startswith(sentence.partition("{")[0]))
    return next(kinds, _any(task, len(TASKS)))


def _from(listed: Sequence[str], start: int) -> list[str]:
    """The same list, begun there."""
    return [*listed[start:], *listed[:start]]


def _any(text: str, n: int) -> int:
    return crc32(text.encode("utf-8", "replace")) % n


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and 0 < len(text) < 5 else DEFAULT_N


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
