"""Analyse a question: find its content terms, and whether it is about the whole corpus.

A question about the whole corpus (themes, trends, what guests talk about) contains words for the corpus
itself. They are not terms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.quotations import NONE, content_stems, number_in

RARE = 2.0  # Weight of names, numbers and unusual words. Ordinary words have weight 1.
WEAK = 0.4  # Weight of a verb, which says less than its subject and object.
MIN_COVERAGE, MIN_COVERAGE_LONG = 0.5, 0.4  # Share of the terms, by weight, that one report must contain.
LONG = 4  # terms

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class QuestionTerms:
    """The terms of a question."""

    terms: dict[str, float]  # Weight of each term by its stem, or by the stems of a phrase.
    words: tuple[str, ...]  # The same terms as written in the question.
    names: frozenset[str]  # Terms that are written as names.
    stems: tuple[str, ...]  # All content stems of the question, for ranking.
    whole: bool  # The question is about the whole corpus.
    verbs: tuple[str, ...] = ()  # Terms used as verbs.

    @property
    def things(self) -> tuple[str, ...]:
        """Terms that are not verbs, or all terms if there are only verbs."""
        return tuple(t for t in self.terms if t not in self.verbs) or tuple(self.terms)

    def coverage(self, stems: Collection[str]) -> float:
        """Return the weighted share of the terms that a text contains, or 0 without terms."""
        total = sum(self.terms.values())
        return sum(w for t, w in self.terms.items() if t in stems) / total if total else 0.0

    def mark(self, stems: list[str]) -> list[str]:
        """Return the stems of a sentence, plus the phrases of the question that it contains."""
        phrases = [t for t in self.terms if " " in t]
        if not phrases:
            return stems
        text = f" {' '.join(stems)} "
        return stems + [p for p in phrases if f" {p} " in text]

    def concerns(
        self, reports: Sequence[Sequence[Collection[str]]], titles: Sequence[Collection[str]] = ()
    ) -> bool:
        """Whether reports, passed as the stems of their sentences and titles, are about the question.

        They are if a title contains a name of several words. Otherwise, one report must contain half of the
        terms, and one sentence two of them, because a single word may be chance. A question about the whole
        corpus needs only one term (a name, if it has any), or none.
        """
        sentences = [s for report in reports for s in report]
        if self.whole or not self.terms:
            wanted = self.names or self.terms.keys()
            return self.whole and (not wanted or any(not wanted.isdisjoint(s) for s in sentences))
        phrases = {name for name in self.names if " " in name}
        if any(not phrases.isdisjoint(title) for title in titles):
            return True
        needed = MIN_COVERAGE_LONG if len(self.terms) >= LONG else MIN_COVERAGE
        if not any(self.coverage(set().union(*report)) >= needed for report in reports):
            return False
        needed_of = set(self.things if len(self.things) > 1 else self.terms)
        together = max((len(needed_of & set(s)) for s in sentences), default=0)
        return together >= min(2, len(needed_of))


@lru_cache(maxsize=256)
def read_question(question: str) -> QuestionTerms:
    """Divide the words of a question into terms and words for the whole corpus."""
    cues = LEXICON.cues
    terms: dict[str, float] = {}
    spelled: dict[str, str] = {}
    names: set[str] = set()
    verbs: dict[str, bool] = {}
    matches = list(_WORD.finditer(question))
    lower_words = [m.group().lower() for m in matches]
    in_phrase = _phrases(question, matches)
    whole = any(_plain(m) in cues["whole"] for m in matches)
    for number, match in enumerate(matches):
        word, lower = match.group(), _plain(match)
        stems = content_stems(word)
        if not stems or lower in cues["whole"] or (lower in cues["generic"] and number not in in_phrase):
            continue
        is_name = number > 0 and word[0].isupper()
        key = in_phrase.get(number, stems[0])
        verb = not is_name and key == stems[0] and lower_words[number] in LEXICON.verbs
        if verb:
            # A verb has an inflection that no noun has, or follows an auxiliary (did the plan change). It
            # does not follow a determiner or preposition.
            after = matches[number + 1].group() if number + 1 < len(matches) else "Nothing"
            ends = after[0].isupper() or after.lower() in LEXICON.stop or after.lower() not in LEXICON.nouns
            after_auxiliary = not cues["auxiliary"].isdisjoint(lower_words[:number])
            verb = (after_auxiliary and ends) or lower_words[number] not in LEXICON.nouns
            verb = verb and (not number or lower_words[number - 1] not in cues["before_noun"])
        verbs[key] = verbs.get(key, True) and verb
        rare = is_name or any(c.isdigit() for c in word) or not LEXICON.is_ordinary(lower)
        terms[key] = max(terms.get(key, 0.0), RARE if rare else WEAK if verb else 1.0)
        spelled[key] = f"{spelled[key]} {word}" if key in spelled and " " in key else word
        if is_name:
            names.add(key)
    stems_of_all = tuple(dict.fromkeys(content_stems(question)))
    used_as_verbs = tuple(t for t, only in verbs.items() if only and terms[t] < 1)
    return QuestionTerms(terms, tuple(spelled.values()), frozenset(names), stems_of_all, whole, used_as_verbs)


def explain_no_match(question: str) -> str:
    """Explain why a question found nothing."""
    words = read_question(question).words
    problem = f"found too few of these: {', '.join(words)}" if words else "the question has none to look for"
    return f"The offline engine matches words, and {problem}. A model (--model …) can give general answers."


def list_terms(variables: Mapping[str, str]) -> str:
    """List keywords on two levels. Low: names, numbers and unusual words. High: all other terms.

    For a question without content words, the question itself is a high-level keyword.
    """
    question = read_question(variables["question"])
    weighted = list(zip(question.words, question.terms.values(), strict=True))
    low = [word for word, weight in weighted if weight >= RARE]
    high = [word for word, weight in weighted if weight < RARE] if weighted else [variables["question"]]
    return json.dumps({"high_level": high, "low_level": low}, ensure_ascii=False)


def list_subjects(variables: Mapping[str, str]) -> str:
    """List runs of the question's terms without verbs, one per line: names first, then in order.

    For a question without terms, list runs of its content words.
    """
    text, question = variables["question"], read_question(variables["question"])
    wanted = {stem for term in question.things for stem in term.split()} or set(question.stems)
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        if not wanted.isdisjoint(content_stems(match.group())):
            joins = bool(spans) and not text[spans[-1][1] : match.start()].strip()
            spans.append((spans.pop()[0] if joins else match.start(), match.end()))
    runs: dict[str, str] = {}
    for run in (" ".join(text[start:end].split()) for start, end in spans):
        runs.setdefault(run.casefold(), run)
    named = {stem for name in question.names for stem in name.split()}
    first = sorted(runs.values(), key=lambda run: named.isdisjoint(content_stems(run)))
    return "\n".join(first[: number_in(variables, "n_entities", 8)]) or NONE


def list_subqueries(variables: Mapping[str, str]) -> str:
    """List the question and, if it has several, its subjects."""
    limit = number_in(variables, "n_questions", 5)
    subjects = list_subjects({"question": variables["question"]}).split("\n")
    texts = [variables["question"], *(subjects if len(subjects) > 1 else [])]
    return json.dumps({"subqueries": texts[:limit], "expanded": ""}, ensure_ascii=False)


def _plain(match: re.Match[str]) -> str:
    return match.group().lower().removesuffix("'s").removesuffix("’s")


def _phrases(question: str, matches: list[re.Match[str]]) -> dict[int, str]:
    """Find phrases by the positions of their words: names made of ordinary words, such as the World Cup."""
    phrases: dict[int, str] = {}
    can_join = [
        bool(
            number and m.group()[0].isupper() and LEXICON.is_ordinary(_plain(m)) and content_stems(m.group())
        )
        for number, m in enumerate(matches)
    ]
    for joined, numbers in groupby(range(len(matches)), key=can_join.__getitem__):
        run = list(numbers)
        if joined and len(run) > 1:
            phrase = " ".join(content_stems(question[matches[run[0]].start() : matches[run[-1]].end()]))
            phrases.update(dict.fromkeys(run, phrase))
    return phrases
