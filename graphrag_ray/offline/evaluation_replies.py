"""Reply to the prompts of `evaluate`: write questions from templates, and judge answers by counting.

Templates are filled with names and terms from the corpus description, then with general subjects. The
criterion determines the measure:

    comprehensiveness   distinct stems of content words
    diversity           distinct names
    empowerment         references, quotations and numbers
    directness          fewest words, but an answer without a term of the question loses
    overall, others     share of the question's terms, then distinct stems of content words

Each answer is measured separately, so the order does not matter. References do not count as words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from zlib import crc32

import orjson

from graphrag_ray.base.context_records import parse_references, strip_references
from graphrag_ray.corpus.boundaries import CLOSERS
from graphrag_ray.corpus.quotes import folded_words, quotations_in
from graphrag_ray.offline.answerer import as_json
from graphrag_ray.offline.chunk_names import find_names
from graphrag_ray.offline.mentions import read
from graphrag_ray.offline.question_terms import QuestionTerms, read_question
from graphrag_ray.offline.quotations import JOIN, MARK, content_stems, is_balanced, number_in
from graphrag_ray.offline.sentences import fold, has_cells, read_script

Variables = Mapping[str, str]
MAX_SUBJECTS, MAX_SUBJECT_CHARS = 12, 60
DEFAULT_N = 5
PERSONAS = {
    "A historian": "the beginnings of",
    "A journalist": "the disputes over",
    "A manager": "the risks around",
    "A researcher": "the reasons behind",
    "A public servant": "the decisions on",
    "A writer": "the people around",
    "An investor": "the money behind",
    "A teacher": "the lessons from",
    "A lawyer": "the rules around",
    "A planner": "the plans for",
    "A reviewer": "the doubts about",
    "A student": "the main facts about",
}
"""Personas, and what each wants to know about a subject."""
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
"""Each has a word that marks a question about the whole corpus."""
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
"""Subjects of most corpora. Combined with the templates they give more than 50 of each kind."""

TIE_MARGIN = 0.05  # Two values tie if they differ by less than this share of the larger one.
MIN_CLAIM_WORDS = 4
MIN_STATEMENT_SHARE = 0.75  # Share of a statement's stems that a text contains if it bears the statement out.
MAX_CRITERIA = 20
MAX_WORDINGS = 200  # Of a correct answer.

_STATEMENT = re.compile(r"^(\d{1,6})\. (.*)$", re.MULTILINE)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_BLIND = re.compile(r" ?\[\d{1,9}(?:, \d{1,9})*+\]")
_HEADING = re.compile(r"[ \t]*(?:#{1,6}[ \t].*|(\*\*|__)(?:(?!\1).)+\1[ \t]*+:?[ \t]*+)")
_TITLE = re.compile(r"^([ \t]*(?:[-*+•][ \t]+|\d{1,3}[.)][ \t]+)?)\*\*[^*]+(?:\*\*:|:\*\*)[ \t]*")
_EMPHASIS = re.compile(r"\*+|`+|(?<!\w)_+|(?<!_)_++(?!\w)")
_GENERAL_KNOWLEDGE = re.compile(r"[ \t]?\[general knowledge\]", re.IGNORECASE)


def list_personas(variables: Variables) -> str:
    """Write `{"personas": [{"persona": …}, …]}`."""
    forms = [f"{who} who wants to find out about {what} {{it}}." for who, what in PERSONAS.items()]
    return _listed("persona", _in_turn(forms, _subjects(variables["description"]), variables))


def list_tasks(variables: Variables) -> str:
    """Write `{"tasks": [{"task": …}, …]}` on the persona's interest, the persona's own subject first."""
    persona = variables["persona"]
    subjects = [f"{_interest(persona)} {s}" for s in _subjects(variables["description"], persona)]
    return _listed("task", _in_turn(TASKS, subjects, variables))


def list_questions(variables: Variables) -> str:
    """Write `{"questions": [{"question": …}, …]}`, starting with the task's subject.

    Each kind of task starts with a different template.
    """
    task, interest = variables["task"], _interest(variables["persona"])
    kind = next(
        (i for i, t in enumerate(TASKS) if task.startswith(t.partition("{")[0])), crc32(task.encode())
    )
    start = kind % len(QUESTIONS)
    forms = [*QUESTIONS[start:], *QUESTIONS[:start]]
    subjects = _subjects(variables["description"], task)
    questions = (form.format(it=f"{interest} {subject}") for subject in subjects for form in forms)
    return _listed("question", list(islice(questions, number_in(variables, "n", DEFAULT_N))))


def _listed(name: str, texts: Sequence[str]) -> str:
    return as_json({f"{name}s": [{name: text} for text in texts]})


def _in_turn(forms: Sequence[str], subjects: Sequence[str], variables: Variables) -> list[str]:
    """Return n distinct pairs of template and subject. Both change from one pair to the next."""
    n = min(number_in(variables, "n", DEFAULT_N), len(forms) * len(subjects))
    places = ((i % len(forms), i // len(forms)) for i in range(n))
    return [forms[i].format(it=subjects[(i + shift) % len(subjects)]) for i, shift in places]


def _interest(persona: str) -> str:
    known = (interest for who, interest in PERSONAS.items() if persona.startswith(f"{who} "))
    return next(known, list(PERSONAS.values())[crc32(persona.encode("utf-8", "replace")) % len(PERSONAS)])


def _subjects(description: str, about: str = "") -> list[str]:
    """Return the names in a description, then general subjects. Repeats that differ only in case are dropped.

    The list starts with the subject at the end of `about`.
    """
    named = (fold(thing.title) for thing in read(description, with_terms=True).things)
    by_key: dict[str, str] = {}
    for name in (name for name in named if 0 < len(name) <= MAX_SUBJECT_CHARS):
        if len(by_key) < MAX_SUBJECTS:
            by_key.setdefault(name.casefold(), name)
    for name in GENERAL_SUBJECTS:
        by_key.setdefault(name.casefold(), name)
    subjects = list(by_key.values())
    ending = [i for i, subject in enumerate(subjects) if about.endswith(f" {subject}.")]
    start = max(ending, key=lambda i: len(subjects[i]), default=crc32(about.encode("utf-8", "replace")))
    start %= len(subjects)
    return [*subjects[start:], *subjects[:start]]


def judge(variables: Variables) -> str:
    """Write `{"reason": …, "winner": 1, 2 or 0}`. The reason states the decisive values."""
    question = read_question(variables["question"])
    name = variables["criterion"].partition(":")[0].strip().casefold()
    measured = (_measured(name, question, variables[answer]) for answer in ("answer_1", "answer_2"))
    reason = ""
    for (what, one, first), (_, other, second) in zip(*measured, strict=True):
        reason = f"{what}: {one:.9g} in answer 1, {other:.9g} in answer 2."
        if first != second and abs(first - second) >= TIE_MARGIN * max(abs(first), abs(second)):
            return as_json({"reason": reason, "winner": 1 if first > second else 2})
    return as_json({"reason": f"{reason} They hardly differ.", "winner": 0})


def judge_joint(variables: Variables) -> str:
    """Write `{"verdicts": [{"criterion": …, "reason": …, "winner": …}, …]}`, as `judge` decides."""
    verdicts = [
        {"criterion": name, **orjson.loads(judge({**variables, "criterion": name}))}
        for name in variables["names"].split(", ")[:MAX_CRITERIA]
    ]
    return as_json({"verdicts": verdicts})


def _measured(criterion: str, question: QuestionTerms, answer: str) -> list[tuple[str, float, float]]:
    """Return (noun, formatted value, value) per measure of an answer. Ties go to the next measure."""
    text = _without_references(answer)
    if criterion == "diversity":
        n = len(find_names(text, read_script(text)))
        return [("Distinct names", n, n)]
    if criterion == "empowerment":
        blind = {n for found in _BLIND.findall(answer) for n in _NUMBER.findall(found)}
        n = len(parse_references(answer)) + len(blind) + len(_NUMBER.findall(text))
        n += len(quotations_in(text)) + text.count('"') // 2
        return [("References, quotations and figures", n, n)]
    stems = set(content_stems(text))
    terms = question.found_in(stems)
    if criterion == "directness":
        words = len(_WORD.findall(text))
        value = -words if words else float("-inf")  # An empty answer is not direct.
        return [("Terms of the question", len(terms), bool(terms)), ("Words", words, value)]
    content = ("Distinct content words", len(stems), len(stems))
    share = round(100 * question.coverage(stems), 1)
    if criterion == "comprehensiveness":
        return [content]
    return [("Percent of the question's terms", share, share), content]


def _without_references(answer: str) -> str:
    """Remove references, including anonymised ones (`context_records.anonymize_references`)."""
    return _BLIND.sub("", strip_references(answer))


def list_claims(variables: Variables) -> str:
    """Write `{"claims": [{"claim": …}, …]}`: the distinct sentences with a name or number.

    References, headings, titles and marks are removed.
    """
    answer = _GENERAL_KNOWLEDGE.sub("", _without_references(variables["answer"]))
    text = "\n".join(
        _EMPHASIS.sub("", _TITLE.sub(r"\1", line))
        for line in answer.replace(JOIN.strip(), "\n").split("\n")
        # Notes of this engine at the end of an answer are not part of it.
        if not (_HEADING.fullmatch(line) or line.rstrip().endswith(MARK))
    )
    script = read_script(text)
    names = find_names(text, script).values()
    named = {m.sentence for name in names for m in name.mentions if not m.label}
    claims: dict[str, None] = {}
    for index, sentence in enumerate(script.sentences):
        claim = fold(text[sentence.start : sentence.end])
        # Remove quotation marks around the whole sentence.
        for opened, closed in (("“", "”"), ("“", ""), ("", "”")):
            inner = claim.removeprefix(opened).removesuffix(closed)
            if claim == f"{opened}{inner}{closed}" and is_balanced(inner):
                claim = inner.strip()
                break
        asks = claim.rstrip(CLOSERS)[-1:] in ("", "?", "？", "؟", ":")
        if asks or has_cells(claim) or len(folded_words(claim)) < MIN_CLAIM_WORDS:
            continue
        if index in named or _NUMBER.search(claim):
            claims[claim] = None
    return _listed("claim", list(claims))


def check_answer(variables: Variables) -> str:
    """Reply Y if the answer contains a wording of the correct answer (the lines `- …`) verbatim, otherwise N.

    Case, punctuation and whitespace are ignored.
    """
    wordings = re.split(r"^- ", variables["gold"], flags=re.MULTILINE)[: MAX_WORDINGS + 1]
    answer = f" {' '.join(folded_words(variables['answer']))} "
    folded = {" ".join(folded_words(wording)) for wording in wordings}
    return "Y" if any(f" {wording} " in answer for wording in folded if wording) else "N"


def check_statements(variables: Variables) -> str:
    """Write `{"statements": [{"number": …, "reason": …, "holds": "yes" or "no"}, …]}`.

    A statement (a line `n. …`) holds if the text contains most of the stems of its content words.
    """
    known = set(content_stems(_without_references(variables["text"])))
    verdicts = []
    for number, statement in _STATEMENT.findall(variables["statements"]):
        stems = set(content_stems(statement))
        share = len(stems & known) / len(stems) if stems else 0.0
        reason = f"{share:.0%} of its words"
        verdicts.append(
            {
                "number": int(number),
                "reason": reason,
                "holds": "yes" if share >= MIN_STATEMENT_SHARE else "no",
            }
        )
    return as_json({"statements": verdicts})
