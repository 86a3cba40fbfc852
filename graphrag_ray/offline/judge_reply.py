"""Answers judged by counting: which of two is better by a criterion, which claims one makes, whether it is
correct.

What is counted follows from the criterion's name, the text before its first colon:

    comprehensiveness   distinct stems of content words
    diversity           distinct names
    empowerment         references, quotations and figures
    directness          words, the fewer the better; but an answer without a term of the question loses
    overall, others     the share of the question's terms, then distinct stems of content words

Both answers are counted by themselves, so their order cannot matter. References are no words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.records import references_in, strip_references
from graphrag_ray.corpus.boundaries import CLOSERS
from graphrag_ray.corpus.quotes import folded_words, quoted
from graphrag_ray.offline.chunk_names import find_names
from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.question_terms import QuestionTerms, read_question
from graphrag_ray.offline.sentences import fold, has_cells, read_script
from graphrag_ray.offline.summarise import content_stems
from graphrag_ray.offline.units import JOIN, MARK, is_balanced

ALIKE = 0.05
"""Figures that differ by less than this share of the greater one are a tie."""
MIN_CLAIM_WORDS = 4
MAX_WORDINGS = 200
"""Of a correct answer, so many are looked for."""

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_BLIND = re.compile(r" ?\[\d{1,9}(?:, \d{1,9})*+\]")
_HEADING = re.compile(r"[ \t]*(?:#{1,6}[ \t].*|(\*\*|__)(?:(?!\1).)+\1[ \t]*+:?[ \t]*+)")
_TITLE = re.compile(r"^([ \t]*(?:[-*+•][ \t]+|\d{1,3}[.)][ \t]+)?)\*\*[^*]+(?:\*\*:|:\*\*)[ \t]*")
_EMPHASIS = re.compile(r"\*+|`+|(?<!\w)_+|(?<!_)_++(?!\w)")
_GENERAL_KNOWLEDGE = re.compile(r"[ \t]?\[general knowledge\]", re.IGNORECASE)


@dataclass(frozen=True)
class _Measure:
    """name: of what is counted; of: its figure for an answer; worth: how good a figure is."""

    name: str
    of: Callable[[QuestionTerms, str], float]
    worth: Callable[[float], float] = float


def judge(variables: Mapping[str, str]) -> str:
    """`{"reason": …, "winner": 1, 2 or 0}`. The reason states the figures that decide."""
    question = read_question(variables["question"])
    name = variables["criterion"].partition(":")[0].strip().casefold()
    winner, reason = 0, ""
    for measure in _MEASURES.get(name, _OVERALL):
        figures = [measure.of(question, variables[answer]) for answer in ("answer_1", "answer_2")]
        reason = f"{measure.name}: {figures[0]:.9g} in answer 1, {figures[1]:.9g} in answer 2."
        if winner := _greater(*map(measure.worth, figures)):
            break
    return _json({"reason": reason if winner else f"{reason} They hardly differ.", "winner": winner})


def _greater(first: float, second: float) -> int:
    if first == second or abs(first - second) < ALIKE * max(abs(first), abs(second)):
        return 0
    return 1 if first > second else 2


def _said(answer: str) -> str:
    """Without references, also those that a judge is shown (`records.blind_references`)."""
    return _BLIND.sub("", strip_references(answer))


def _n_content(question: QuestionTerms, answer: str) -> int:
    return len(set(content_stems(_said(answer))))


def _n_names(question: QuestionTerms, answer: str) -> int:
    text = _said(answer)
    return len(find_names(text, read_script(text, lexicon()), lexicon()))


def _n_support(question: QuestionTerms, answer: str) -> int:
    """What backs an answer: the records it cites, what it quotes, and numbers."""
    text = _said(answer)
    return (
        len(references_in(answer))
        + len({n for found in _BLIND.finditer(answer) for n in _NUMBER.findall(found.group())})
        + len(quoted(text))
        + text.count('"') // 2
        + sum(1 for _ in _NUMBER.finditer(text))
    )


def _n_words(question: QuestionTerms, answer: str) -> int:
    return sum(1 for _ in _WORD.finditer(_said(answer)))


def _held(question: QuestionTerms, answer: str) -> list[str]:
    """The question's terms whose words all stand in an answer, wherever."""
    stems = set(content_stems(_said(answer)))
    return [term for term in question.terms if stems.issuperset(term.split(" "))]


def _n_terms(question: QuestionTerms, answer: str) -> int:
    return len(_held(question, answer))


def _share_of_terms(question: QuestionTerms, answer: str) -> float:
    """In percent, by weight."""
    return round(100 * question.coverage(_held(question, answer)), 1)


_CONTENT = _Measure("Distinct content words", _n_content)
_OVERALL = (_Measure("Percent of the question's terms", _share_of_terms), _CONTENT)
_MEASURES: Mapping[str, Sequence[_Measure]] = {
    "comprehensiveness": (_CONTENT,),
    "diversity": (_Measure("Distinct names", _n_names),),
    "empowerment": (_Measure("References, quotations and figures", _n_support),),
    "directness": (
        _Measure("Terms of the question", _n_terms, lambda n: float(n > 0)),
        # An empty answer is not direct.
        _Measure("Words", _n_words, lambda n: -n if n else float("-inf")),
    ),
}


def list_claims(variables: Mapping[str, str]) -> str:
    """`{"claims": [{"claim": …}, …]}`: the sentences of an answer that state something of a name or with a
    figure, each once, without references, headings, titles and marks."""
    text = _prose(variables["answer"])
    script = read_script(text, lexicon())
    names = find_names(text, script, lexicon()).values()
    named = {m.sentence for name in names for m in name.mentions if not m.label}
    claims: dict[str, None] = {}
    for index, sentence in enumerate(script.sentences):
        said = _unquoted(fold(text[sentence.start : sentence.end]))
        if (index in named or _NUMBER.search(said)) and _is_statement(said):
            claims[said] = None
    return _json({"claims": [{"claim": claim} for claim in claims]})


def _prose(answer: str) -> str:
    """The lines of an answer that are sentences, without marks. What this engine says of an answer, at its
    end, is no part of it."""
    text = _GENERAL_KNOWLEDGE.sub("", _said(answer))
    lines = text.replace(JOIN.strip(), "\n").split("\n")
    kept = [
        _EMPHASIS.sub("", _TITLE.sub(r"\1", line))
        for line in lines
        if not (_HEADING.fullmatch(line) or line.rstrip().endswith(MARK))
    ]
    return "\n".join(kept)


def _unquoted(said: str) -> str:
    """A sentence of a quotation without the marks around the whole."""
    for opened, closed in ((1, 1), (1, 0), (0, 1)):
        inner = said[opened : len(said) - closed]
        if (
            said[:opened] == "“"[:opened]
            and said[len(inner) + opened :] == "”"[:closed]
            and is_balanced(inner)
        ):
            return inner.strip()
    return said


def _is_statement(said: str) -> bool:
    if said.rstrip(CLOSERS)[-1:] in ("", "?", "？", "؟", ":") or has_cells(said):
        return False
    return len(folded_words(said)) >= MIN_CLAIM_WORDS


def check_answer(variables: Mapping[str, str]) -> str:
    """Y where one of the correct answer's wordings, the lines `- …`, stands in the answer word for word;
    else N. Case, punctuation and white space do not matter."""
    wordings = re.split(r"^- ", variables["gold"], flags=re.MULTILINE)[: MAX_WORDINGS + 1]
    answer = f" {_folded(variables['answer'])} "
    return "Y" if any(f" {w} " in answer for w in set(map(_folded, wordings)) if w) else "N"


def _folded(text: str) -> str:
    return " ".join(folded_words(text))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
