"""What a question asks for: its content terms, and whether it is about the whole corpus.

A question about the whole (themes, trends, what guests talk about) speaks of the corpus itself; its words
for that carry no content. What remains are terms that an answer has to share with the question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.summarise import NONE, content_stems, number_in

RARE = 2.0
"""Weight of a term that is a name, a number or not an ordinary word; ordinary ones weigh 1."""

WEAK = 0.4
"""Weight of a verb in a question: it tells less than what it is about (how did sales develop)."""

MIN_COVERAGE = 0.5
"""Share of a question's terms, by weight, that one report must have; of a long question's, less."""
MIN_COVERAGE_LONG = 0.4
LONG = 4

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class QuestionTerms:
    """What is asked.

    terms  stem, or stems of a phrase, -> weight, of what has to be matched
    words  the same terms as the question writes them
    names  stems of those terms that are written as names
    verbs  those that are used as verbs; things: all others, or where there are none all
    stems  every content stem of the question, for ranking
    whole  about the corpus as a whole
    """

    terms: dict[str, float]
    words: tuple[str, ...]
    names: frozenset[str]
    stems: tuple[str, ...]
    whole: bool
    verbs: tuple[str, ...] = ()

    @property
    def things(self) -> tuple[str, ...]:
        return tuple(t for t in self.terms if t not in self.verbs) or tuple(self.terms)

    def coverage(self, stems: Collection[str]) -> float:
        """The weighted share of the terms that a text has, 0–1; 0 for a question without terms."""
        total = sum(self.terms.values())
        return sum(w for t, w in self.terms.items() if t in stems) / total if total else 0.0

    def mark(self, stems: list[str]) -> list[str]:
        """The stems of a sentence, with those phrases of the question that it holds as further stems."""
        phrases = [t for t in self.terms if " " in t]
        if not phrases:
            return stems
        text = f" {' '.join(stems)} "
        return stems + [p for p in phrases if f" {p} " in text]

    def concerns(
        self, reports: Sequence[Sequence[Collection[str]]], titles: Sequence[Collection[str]] = ()
    ) -> bool:
        """Whether reports, given as the stems of their sentences and titles, say something to the question.

        A name of several words that stands in a title is what the report is on. Otherwise a report has to
        have half of the terms, and a sentence two of them: one word in common is chance. For a question about
        the whole one term is enough, of its names if it has any; one without terms is answered by everything.
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
    """Divide a question's words into terms and signs that it is about the whole."""
    cues = LEXICON.cues
    terms: dict[str, float] = {}
    written: dict[str, str] = {}
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
            # Used as a verb: inflected as no noun is, or behind an auxiliary, not behind a determiner or
            # preposition, and not before a noun (did the plan change).
            after = matches[number + 1].group() if number + 1 < len(matches) else "Nothing"
            ends = after[0].isupper() or after.lower() in LEXICON.stop or after.lower() not in LEXICON.nouns
            helped = not cues["auxiliary"].isdisjoint(lower_words[:number])
            verb = (helped and ends) or lower_words[number] not in LEXICON.nouns
            verb = verb and (not number or lower_words[number - 1] not in cues["before_noun"])
        verbs[key] = verbs.get(key, True) and verb
        rare = is_name or any(c.isdigit() for c in word) or not LEXICON.is_ordinary(lower)
        terms[key] = max(terms.get(key, 0.0), RARE if rare else WEAK if verb else 1.0)
        written[key] = f"{written[key]} {word}" if key in written and " " in key else word
        if is_name:
            names.add(key)
    stems_of_all = tuple(dict.fromkeys(content_stems(question)))
    used_as_verbs = tuple(t for t, only in verbs.items() if only and terms[t] < 1)
    return QuestionTerms(terms, tuple(written.values()), frozenset(names), stems_of_all, whole, used_as_verbs)


def why_nothing(question: str) -> str:
    """What to tell people whose question found nothing."""
    words = read_question(question).words
    missed = f"found too few of these: {', '.join(words)}" if words else "the question has none to look for"
    return f"The offline engine matches words, and {missed}. A model (--model …) can answer in general terms."


def list_terms(variables: Mapping[str, str]) -> str:
    """Keywords on two levels. Low: names, numbers and words that are not ordinary, as the question writes
    them; high: its other words. Of a question without any content word, the question itself is high."""
    question = read_question(variables["question"])
    written = list(zip(question.words, question.terms.values(), strict=True))
    low = [word for word, weight in written if weight >= RARE]
    high = [word for word, weight in written if weight < RARE] if written else [variables["question"]]
    return json.dumps({"high_level": high, "low_level": low}, ensure_ascii=False)


def list_subjects(variables: Mapping[str, str]) -> str:
    """Runs of those words of the question that have to be matched, verbs apart, one a line: names first, then
    in the order of the question. Of a question that has none, of all its content words."""
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


def _plain(match: re.Match[str]) -> str:
    return match.group().lower().removesuffix("'s").removesuffix("’s")


def _phrases(question: str, matches: list[re.Match[str]]) -> dict[int, str]:
    """Number of a word -> the phrase it belongs to: names made of ordinary words (the World Cup), which
    mean something only together."""
    found: dict[int, str] = {}
    fits = [
        bool(
            number and m.group()[0].isupper() and LEXICON.is_ordinary(_plain(m)) and content_stems(m.group())
        )
        for number, m in enumerate(matches)
    ]
    for together, numbers in groupby(range(len(matches)), key=fits.__getitem__):
        run = list(numbers)
        if together and len(run) > 1:
            phrase = " ".join(content_stems(question[matches[run[0]].start() : matches[run[-1]].end()]))
            found.update(dict.fromkeys(run, phrase))
    return found
