"""Analyse a question in any script: its content terms, what it asks for, and whether it is about the corpus.

A question about the whole corpus (themes, trends, what guests talk about) contains words for the corpus
itself. They are not terms, and neither are question words (question_words.txt).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Literal, TypeAlias, get_args

from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.quotations import NONE, content_stems, find_words, number_in
from graphrag_ray.store.search.tokenizer import FUNCTION_WORDS, is_unspaced

AskedFor: TypeAlias = Literal["", "person", "date", "number", "reason"]

RARE = 2.0  # Weight of names, numbers and unusual words. Ordinary words have weight 1.
WEAK = 0.4  # Weight of a verb, which says less than its subject and object.
RUN_SHARE = 0.5  # Share of the character pairs of a term in a script without spaces that a text must contain.

_WORDS = LEXICON.question_words
QUESTION_WORDS: Mapping[str, AskedFor] = {
    word: kind
    for section, kind in (("other", ""), *((k, k) for k in get_args(AskedFor) if k))
    for word in _WORDS[section]
}
"""What question words ask for and, for scripts without spaces, the particles between a question's terms."""
_CONJUNCTIONS = frozenset(_WORDS["conjunction"])
_HOW_MANY = re.compile(
    r"\bhow (?:many|much|long|old|far|high|deep|large|big|often|tall|wide|fast)\b|"
    r"\b(?:what|which) (?:\w+ )?(?:number|amount|sum|price|cost|percentage|share)\b|\bby what vote\b",
    re.IGNORECASE,
)
_WHICH_DATE = re.compile(r"\b(?:what|which) (?:year|month|day|date)\b|\bwhat is the date\b", re.IGNORECASE)
_SEPARATORS = re.compile(
    "[\u3041-\u309f]+|"  # hiragana, mostly particles and inflections
    + "|".join(re.escape(w) for w in sorted(filter(is_unspaced, QUESTION_WORDS), key=len, reverse=True))
)


@dataclass(frozen=True)
class QuestionTerms:
    """The terms of a question."""

    terms: dict[str, float]  # Weight of each term by its stem, or by the stems of a phrase.
    words: tuple[str, ...]  # The same terms as written in the question.
    names: frozenset[str]  # Terms that are written as names.
    stems: tuple[str, ...]  # All content stems of the question.
    whole: bool  # The question is about the whole corpus.
    verbs: tuple[str, ...] = ()  # Terms used as verbs.
    asks_for: AskedFor = ""
    parts: tuple[
        tuple[tuple[str, ...], ...], ...
    ] = ()  # Units (a term, or adjacent names) by coordinated part.

    @property
    def things(self) -> tuple[str, ...]:
        """Terms that are not verbs, or all terms if there are only verbs."""
        return tuple(t for t in self.terms if t not in self.verbs) or tuple(self.terms)

    def found_in(self, stems: Collection[str]) -> frozenset[str]:
        """Return the terms that a text contains, given its stems: all words of a phrase, half of a run."""
        present = stems if isinstance(stems, (set, frozenset)) else set(stems)
        return frozenset(t for t in self.terms if _contains(present, t))

    def coverage(self, stems: Collection[str]) -> float:
        """Return the weighted share of the terms that a text contains, or 0 without terms."""
        total, found = sum(self.terms.values()), self.found_in(stems)
        return sum(w for t, w in self.terms.items() if t in found) / total if total else 0.0


def _contains(stems: Collection[str], term: str) -> bool:
    if term in stems:
        return True
    if " " in term:
        return all(part in stems for part in term.split(" "))
    if not is_unspaced(term) or len(term) < 3:
        return False
    pairs = content_stems(term)
    return sum(pair in stems for pair in pairs) >= RUN_SHARE * len(pairs)


@lru_cache(maxsize=256)
def read_question(question: str) -> QuestionTerms:
    """Divide the words of a question into terms and words for the whole corpus."""
    cues = LEXICON.cues
    terms: dict[str, float] = {}
    spelled: dict[str, str] = {}
    names: set[str] = set()
    verbs: dict[str, bool] = {}
    units: list[tuple[str, ...]] = []
    cuts: list[int] = []
    matches = list(find_words(question))
    lower_words = [m.group().lower() for m in matches]
    in_phrase = _phrases(question, matches)
    whole = any(_plain(m) in cues["whole"] for m in matches)
    function_words = _foreign_function_words(lower_words)
    kind_ends = {m.end() for pattern in (_HOW_MANY, _WHICH_DATE) for m in pattern.finditer(question)}
    all_capitals, last_name = not any(c.islower() for c in question), -2
    for number, match in enumerate(matches):
        word, lower = match.group(), _plain(match)
        if is_unspaced(word):
            for run in filter(None, _SEPARATORS.split(word)):
                if len(run) > 1 or run == word:
                    terms[run], spelled[run], verbs[run] = RARE, run, False
                    units.append((run,))
            continue
        if lower in _CONJUNCTIONS:
            cuts.append(len(units))
        stems = content_stems(word)
        known = lower in QUESTION_WORDS and (lower not in LEXICON.ordinary or lower in LEXICON.stop)
        if not stems or known or lower in function_words or match.end() in kind_ends:
            continue
        if lower in cues["whole"] or (lower in cues["generic"] and number not in in_phrase):
            continue
        is_name = number > 0 and word[0].isupper() and not all_capitals
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
        if key not in terms:
            joins = is_name and last_name == number - 1
            units.append((*units.pop(), key) if joins and units else (key,))
        last_name = number if is_name else last_name
        terms[key] = max(terms.get(key, 0.0), RARE if rare else WEAK if verb else 1.0)
        spelled[key] = f"{spelled[key]} {word}" if key in spelled and " " in key else word
        if is_name:
            names.add(key)
    stems_of_all = tuple(dict.fromkeys(content_stems(question)))
    used_as_verbs = tuple(t for t, only in verbs.items() if only and terms[t] < 1)
    return QuestionTerms(
        *(terms, tuple(spelled.values()), frozenset(names), stems_of_all, whole, used_as_verbs),
        *(_asked_for(question, lower_words), _parts(units, cuts)),
    )


def _parts(units: list[tuple[str, ...]], cuts: list[int]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Divide a question at its conjunctions if each part has several terms, and so can be answered alone."""
    parts = [tuple(units[a:b]) for a, b in pairwise([0, *cuts, len(units)])]
    whole = (tuple(units),) if units else ()
    return tuple(parts) if all(sum(map(len, part)) > 1 for part in parts) else whole


def _asked_for(question: str, words: list[str]) -> AskedFor:
    if _HOW_MANY.search(question):
        return "number"
    if _WHICH_DATE.search(question):
        return "date"
    kinds = [QUESTION_WORDS.get(word, "") for word in words]
    for word in words:
        kinds += [kind for w, kind in QUESTION_WORDS.items() if kind and is_unspaced(word) and w in word]
    return next(filter(None, kinds), "")


def _foreign_function_words(words: list[str]) -> frozenset[str]:
    """Return the function words of the question's language, or none if it is English."""
    counts = Counter(
        language for word in words for language, known in _FUNCTION_WORDS.items() if word in known
    )
    counts["english"] -= 2 * any(word in QUESTION_WORDS and word not in LEXICON.ordinary for word in words)
    language = max(counts, key=lambda name: (counts[name], name == "english"))
    return frozenset() if language == "english" else _FUNCTION_WORDS[language]


_FUNCTION_WORDS = {language: frozenset(words.split()) for language, words in FUNCTION_WORDS.items()}


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
    for match in find_words(text):
        if not is_unspaced(match.group()) and not wanted.isdisjoint(content_stems(match.group())):
            joins = bool(spans) and not text[spans[-1][1] : match.start()].strip()
            spans.append((spans.pop()[0] if joins else match.start(), match.end()))
    runs = {term: term for term in question.things if is_unspaced(term)}
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
