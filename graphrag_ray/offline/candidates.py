"""Which capitalised runs of a chunk are names.

Document-centred casing (Mikheev, "Periods, capitalized words, etc.", Computational Linguistics 2002):
a capital in mid-sentence is evidence, a capital at the start of a sentence needs evidence elsewhere in
the chunk or a word that is not an ordinary one. Runs that hold two names are divided where both are seen
alone elsewhere, the reasoning behind the nested term of C-value (terms.py).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphrag_ray.offline.capital_runs import CapitalRun, runs_of, trim
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentence_words import Word, is_empty, words_of
from graphrag_ray.offline.sentences import Sentence, fold
from graphrag_ray.offline.title_names import heading_runs, quoted_titles

MAX_WORDS = 9
"""A longer capitalised run is a heading or a list without commas."""

_ADDRESS = re.compile(
    r"\b(?:https?://|www\.)\S+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+|(?<!\w)[@#]\w+"
)
_SPACED_HYPHEN = re.compile(r"(?<=\w)- (?=\w)")
_LOWER = re.compile(r"(?<![^\W_])[a-zß-ÿ]+(?![^\W_])")
_LOWER_STRETCH = re.compile(r"(?<![a-zß-ÿ'’&-])[a-zß-ÿ'’&-]+(?: [a-zß-ÿ'’&-]+)+")
_FIELD = re.compile(r"(?:ing|ics|ions?|ology|ment|ence|ance|ists?|ism|ity|ry|ies|hip|hood|s)$")
_ADJECTIVE = re.compile(r"(?:ian|ean|esque|ese|ist)$")
_SUBJECT_OF = frozenset(
    ["is", "was", "has", "had", "will", "did", "does", "would", "could", "can", "and", "or"]
)


@dataclass(slots=True)
class Candidate:
    """Runs with one title. `mid`: those whose casing is evidence by itself."""

    title: str
    runs: list[CapitalRun]
    mid: int = 0

    @property
    def words(self) -> list[Word]:
        return self.runs[0].words

    @property
    def person(self) -> bool:
        return any(r.person for r in self.runs)


def find_candidates(text: str, sentences: list[Sentence], lexicon: Lexicon) -> list[Candidate]:
    """The accepted candidates of a chunk, in order of first mention."""
    found = _gathered(text, _all_runs(text, sentences, lexicon), lexicon)
    _divide(text, found, lexicon)
    _unglue(text, found, lexicon)
    in_lower = _LowerCase(text)
    return [c for c in found.values() if _accepted(c, in_lower, lexicon)]


class _LowerCase:
    """How often a text writes words and phrases in lower case."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.words = frozenset(_LOWER.findall(text))
        self._phrases: dict[int, Counter[str]] = {}

    def count(self, words: list[Word]) -> int:
        size = len(words)
        if size not in self._phrases:
            stretches = (s.split(" ") for s in _LOWER_STRETCH.findall(self._text))
            self._phrases[size] = Counter(
                " ".join(s[i : i + size]) for s in stretches for i in range(len(s) - size + 1)
            )
        return self._phrases[size][" ".join(w.lower for w in words)]


def title_of(text: str, words: Iterable[Word]) -> str:
    """A run as written, white space folded, also behind a hyphen, and apostrophes straight."""
    listed = list(words)
    written = fold(text[listed[0].start : listed[-1].end]).replace("’", "'")
    return _SPACED_HYPHEN.sub("-", written)


def _all_runs(text: str, sentences: list[Sentence], lexicon: Lexicon) -> list[CapitalRun]:
    found: list[CapitalRun] = []
    text = _ADDRESS.sub(lambda m: "|" * len(m.group()), text)
    with_quotes = "“" in text or '"' in text
    headings = heading_runs(text, sentences, lexicon)
    for index, sentence in enumerate(sentences):
        quoted = quoted_titles(text, sentence, index, lexicon) if with_quotes else []
        if index < 2 and headings:
            own = [h for h in headings if h.sentence == index]
            quoted = own + [q for q in quoted if not any(h.start <= q.start < h.end for h in own)]
            quoted.sort(key=lambda r: r.start)
        starts, ends = [q.start for q in quoted], [q.end for q in quoted]
        words = words_of(text, sentence, lexicon)
        for run in runs_of(text, index, words, lexicon):
            before = bisect_right(starts, run.end - 1)  # titles begin before the run ends
            if not before or ends[before - 1] <= run.start:
                found.extend(trim(run, lexicon))
        found.extend(quoted)
    return [r for r in found if len(r.words) <= MAX_WORDS]


def _gathered(text: str, runs: Iterable[CapitalRun], lexicon: Lexicon) -> dict[str, Candidate]:
    """Runs by upper-case title. One that an edge of the chunk may have cut (MARA VE at the end, OTT at
    the start) counts only where the same is seen elsewhere."""
    found: dict[str, Candidate] = {}
    for run in runs:
        title = title_of(text, run.words)
        candidate = found.setdefault(title.upper(), Candidate(title, []))
        candidate.runs.append(run)
        candidate.mid += run.person or (not run.words[0].initial and not _is_kind(run, lexicon))
    for key, candidate in list(found.items()):
        run = candidate.runs[0]
        if len(candidate.runs) == 1 and (
            run.end == len(text) or (run.start == 0 and run.words[0].text.isupper())
        ):
            del found[key]
    return found


def _is_kind(run: CapitalRun, lexicon: Lexicon) -> bool:
    """One word behind an indefinite article, and no noun behind it: a kind of thing (a Vlogger, but not
    a Google engineer)."""
    indefinite = run.before in ("a", "an", "every", "each", "another")
    plain = len(run.words) == 1 and run.words[0].text[1:].islower() and run.words[0].text[0].isupper()
    return indefinite and plain and run.after not in lexicon.nouns


def _divide(text: str, found: dict[str, Candidate], lexicon: Lexicon) -> None:
    """Take apart a run that holds two names side by side (In Tolverton Mara Venn said …)."""
    for key, candidate in list(found.items()):
        run = candidate.runs[0]
        if len(candidate.runs) > 1 or len(run.words) < 3 or run.quoted:
            continue
        for at in range(1, len(run.words)):
            head, tail = run.words[:at], run.words[at:]
            if _person_behind(run.words, at, lexicon) or (
                _stands_alone(text, head, tail[0], run.opened, found, lexicon)
                and _is_full_name(text, tail, found, lexicon)
            ):
                del found[key]
                _put(text, found, replace(run, words=head, after=tail[0].lower))
                _put(text, found, replace(run, words=tail, before=head[-1].lower, before2=""))
                break


def _person_behind(words: list[Word], at: int, lexicon: Lexicon) -> bool:
    """Whether a body ends at word `at` and a person begins (Ostrey Publishing | Peter Quist)."""
    first_names = lexicon.cues["first_name"]
    return (
        len(words) - at >= 2
        and words[at - 1].lower in lexicon.cues["org_suffix"]
        and words[at].lower in first_names
        and words[0].lower not in first_names
        and not lexicon.is_ordinary(words[at + 1].lower)
    )


def _stands_alone(
    text: str, head: list[Word], following: Word, opened: bool, found: dict[str, Candidate], lexicon: Lexicon
) -> bool:
    if title_of(text, head).upper() in found:
        first_names = lexicon.cues["first_name"]
        return not (head[-1].lower in first_names and following.lower in first_names)
    return len(head) == 1 and (opened or head[0].lower in lexicon.cues["place"])


def _is_full_name(text: str, tail: list[Word], found: dict[str, Candidate], lexicon: Lexicon) -> bool:
    if len(tail) < 2 or not tail[0].capital:
        return False
    return title_of(text, tail).upper() in found or (
        tail[0].lower in lexicon.cues["first_name"] and not lexicon.is_ordinary(tail[1].lower)
    )


def _unglue(text: str, found: dict[str, Candidate], lexicon: Lexicon) -> None:
    """An opener glued to a name (Building Microsoft) is seen once; the name alone is seen elsewhere."""
    for key, candidate in list(found.items()):
        run = candidate.runs[0]
        if candidate.mid or len(run.words) < 2 or len(candidate.runs) > 1:
            continue
        if not run.words[1].capital or not lexicon.is_ordinary(run.words[0].lower):
            continue
        rest = found.get(title_of(text, run.words[1:]).upper())
        if rest is not None and rest.mid:
            del found[key]
            _put(text, found, replace(run, words=run.words[1:]))


def _put(text: str, found: dict[str, Candidate], run: CapitalRun) -> None:
    title = title_of(text, run.words)
    candidate = found.setdefault(title.upper(), Candidate(title, []))
    candidate.runs.append(run)
    candidate.mid += 1


def _accepted(candidate: Candidate, in_lower: _LowerCase, lexicon: Lexicon) -> bool:
    words = candidate.words
    if any(r.quoted for r in candidate.runs):
        return True
    if len(words) == 1:
        return _single_accepted(candidate, words[0], in_lower.words, lexicon)
    if not all(lexicon.is_ordinary(w.lower) for w in words):
        return True
    if not candidate.mid and lexicon.is_leading(words[0].lower):
        return False
    return in_lower.count(words) <= candidate.mid


def _single_accepted(candidate: Candidate, word: Word, lower_words: frozenset[str], lexicon: Lexicon) -> bool:
    run, lower = candidate.runs[0], word.lower
    if word.text.isupper() and lower in lexicon.cues["place"]:
        return True  # US
    if is_empty(lower, lexicon):
        return False
    ordinary = lexicon.is_ordinary(lower)
    if word.text.isupper():
        return not ordinary and lower not in lower_words
    if candidate.person:
        return True
    if lower in lower_words:
        return False
    if _ADJECTIVE.search(lower) and lexicon.is_ordinary(run.after):
        return lower in lexicon.cues["first_name"]
    if not ordinary:
        return bool(candidate.mid) or _acts(candidate, lexicon)
    if lower in lexicon.cues["first_name"] and candidate.mid:
        return True
    if candidate.mid >= 2:
        return True
    return bool(candidate.mid) and run.before in lexicon.cues["before_name"] and not _FIELD.search(lower)


def _acts(candidate: Candidate, lexicon: Lexicon) -> bool:
    """Whether a word seen at the start of sentences only is used there as a name: twice, known as one,
    owning something, or the subject of a verb that names take."""
    run = candidate.runs[0]
    lower = run.words[0].lower
    if not run.words[0].initial:
        return False
    return len(candidate.runs) > 1 or (
        lower in lexicon.cues["first_name"]
        or lower in lexicon.cues["place"]
        or run.words[0].possessive
        or run.after in lexicon.cues["say"]
        or run.after in _SUBJECT_OF
    )
