"""Find capitalised runs: parts of a sentence that could be names, judging by case alone.

A run is a maximal sequence of capitalised words with the small words of names inside (University of Ostrey,
Behind the Curtain). Honorifics, roles and sentence openers are trimmed off. A capital is no evidence at the
start of a sentence, quotation or heading (Lita et al. 2003, "tRuEcasIng"; Mikheev 2002, "Periods, capitalized
words, etc.").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.sentences import Sentence

_TOKEN = re.compile(r"[^\W_]+(?:[.'’&+-][^\W_]+){0,15}(?:[+#]{1,2}(?![^\W_]))?|&")
_GLUED = re.compile(r"[^\W\d_]{3,}\.(?=[A-Z][a-z])")
_DOMAIN = re.compile(r"\.(?:com|org|net|edu|gov)$", re.IGNORECASE)
_INITIALISM = re.compile(r"(?:[A-Z]\.)+[A-Z]$")
_PLURAL_ACRONYM = re.compile(r"[A-Z]{2,}s$")
_HYPHEN_LOWER = re.compile(r"-[a-z]")
_CLITIC = re.compile(r"(?<=.)(?:['’](?:s|S|ve|re|ll|d|m)|n['’]t)$")
_INNER_CAPITAL = re.compile(r"[a-z]{1,2}['’]?[A-Z]\w+$")
_DIGIT_CAPITAL = re.compile(r"\d{1,3}[A-Z][A-Za-z]*$")
_NUMBERED = re.compile(r"(?:ep|episode|part|item|fig|figure|no|vol|ch|chapter|section|page|pp?)[-.]?\d+$")
_OPENS = frozenset(':“"([‘«\n')
_NOT = ("n't", "n’t", "N'T", "N’T")
_CLITICS = ("s", "ve", "re", "ll", "d", "m")
_APOSTROPHES = ("' ", "’ ")


@dataclass(frozen=True, slots=True)
class Word:
    """A word text[start:end] without clitics."""

    text: str
    lower: str
    start: int
    end: int
    initial: bool  # It opens a sentence or quotation, so its capital is no evidence.
    possessive: bool  # Its end was cut off (Moore's, Fishermen', Intel-based).
    levelled: bool = False  # It is an ordinary word in a heading, so its capital does not count.

    @property
    def capital(self) -> bool:
        """Whether the word is capitalised like a name (Mara, iPhone, 5G, but not I)."""
        text = self.text
        if self.levelled or text.islower():
            return False
        if text[0].isupper():
            return not (text == "I" or text.startswith(("I'", "I’")))
        return bool(_INNER_CAPITAL.match(text) or _DIGIT_CAPITAL.match(text))


def words_of(text: str, sentence: Sentence) -> list[Word]:
    words: list[Word] = []
    pos = sentence.start
    opens_sentence = True
    while match := _TOKEN.search(text, pos, sentence.end):
        raw, start = match.group(), match.start()
        plain = raw.isalpha()  # Most words need no cutting.
        glued = None if plain else _GLUED.match(raw)
        if glued:
            raw = raw[: glued.end() - 1]
        gap = text[pos:start]
        pos = start + len(raw)
        # Tokenised text separates clitics from their words (did n't, Mara 's).
        if raw in _NOT or (gap in (" '", " ’", "'", "’") and raw.lower() in _CLITICS):
            if words and raw in ("s", "S"):
                words[-1] = replace(words[-1], possessive=True)
            continue
        clitic = None if plain else _CLITIC.search(raw)
        base = raw[: clitic.start()] if clitic else raw
        if not plain or not base.islower():
            base = _base(text, base, start)
        owner = raw[-1] in "sS" and text[pos : pos + 2] in _APOSTROPHES and raw.lower() in LEXICON.nouns
        initial = opens_sentence or bool(_OPENS.intersection(gap))
        opens_sentence = bool(glued)
        words.append(
            Word(base, base.lower(), start, start + len(base), initial, owner or len(base) < len(raw))
        )
    # In a heading, capitals of ordinary words are no evidence.
    content = [w for w in words if w.lower not in LEXICON.cues["small"] and w.text[0].isalpha()]
    if len(content) < 4:
        return words
    n_capitalised = sum(w.text[0].isupper() for w in content)
    n_upper = sum(w.text.isupper() and len(w.text) > 1 for w in content)
    n_ordinary = sum(LEXICON.is_ordinary(w.lower) for w in content)
    in_title_case = n_capitalised >= 0.8 * len(content) and n_ordinary >= 0.5 * len(content)
    if (in_title_case and text[sentence.end - 1] not in ".!?…") or n_upper >= 0.7 * len(content):
        return [replace(w, levelled=LEXICON.is_ordinary(w.lower)) for w in words]
    return words


def is_empty(lower: str) -> bool:
    """Whether a word is never a name, neither alone nor with other such words."""
    if lower in LEXICON.empty or lower.replace(".", "") in LEXICON.cues["not_name"]:
        return True
    return lower.isdigit() or len(lower) < 2 or _NUMBERED.match(lower) is not None


def _base(text: str, word: str, start: int) -> str:
    """Return the part of a word that can belong to a name: Intel for Intel-based, GPU for GPUs."""
    if word[0].islower():
        return word
    if "." in word:
        if text[start + len(word) : start + len(word) + 1] == "." and _INITIALISM.match(word):
            return word + "."
        domain = _DOMAIN.search(word)
        return word[: domain.start()] if domain else word
    if "-" in word and (hyphen := _HYPHEN_LOWER.search(word)) and word.lower() not in LEXICON.ordinary:
        following = word[hyphen.start() + 1 :].lower()
        return word[: hyphen.start()] if LEXICON.is_ordinary(following) else word  # Kim Ki-duk
    return word[:-1] if _PLURAL_ACRONYM.match(word) else word


_NUMBER = re.compile(r"\d{1,3}$|\d\.\d$")
_POSSESSIVE = re.compile(r"^\s?['’][sS]?(?=\s)")
_NUMERAL = re.compile(r"[ivx]{1,5}")
_UNITS = frozenset(["percent", "million", "billion", "to", "or", "per", "and", "of", "in"])
_IN_ROLES = frozenset(["technology", "executive", "of", "for", "and"])
_ARTICLES = frozenset(["the", "der", "la"])
MAX_RUN = 24  # Maximum number of words. Longer runs are lists or headings, and are cut.


@dataclass(slots=True)
class CapitalRun:
    """The words of a candidate name.

    Attributes:
        before, before2, after: The lower-case words before and after it, or "" at an edge.
    """

    words: list[Word]
    sentence: int
    person: bool = False  # An honorific or role precedes it.
    quoted: bool = False  # It is a title, with or without quotation marks.
    before: str = ""
    before2: str = ""
    after: str = ""
    opened: bool = False  # A preposition was cut off its front (In Tolverton Mara Venn …).
    defined: bool = False  # It is the heading of a text that defines it, so not necessarily a work.

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def end(self) -> int:
        return self.words[-1].end


def runs_of(text: str, index: int, words: list[Word]) -> list[CapitalRun]:
    """Return the untrimmed capitalised runs of sentence `index`, in order."""
    runs: list[CapitalRun] = []
    i, n = 0, len(words)
    while i < n:
        if not words[i].capital:
            i += 1
            continue
        j = i + 1
        while j < min(n, i + MAX_RUN) and (step := _extend(text, words, i, j)):
            j += step
        run = CapitalRun(words[i:j], index)
        run.before = words[i - 1].lower if i else ""
        run.before2 = words[i - 2].lower if i > 1 else ""
        run.after = words[j].lower if j < n else ""
        runs.append(run)
        i = j
    return runs


def _extend(text: str, words: list[Word], i: int, j: int) -> int:
    """Return how many words from j on continue the run words[i:j]."""
    last, word = words[j - 1], words[j]
    following = words[j + 1] if j + 1 < len(words) else None
    if not _touches(text, last, word):
        return 0
    if last.possessive:
        # Moore's Law, Fishermen's Co-operative, Boatbuilders' and Riggers' Union; but not Varnmouth's Mara.
        ordinary = LEXICON.is_ordinary(last.lower)
        if word.lower == "and" and following and following.capital and following.possessive:
            return 2 if ordinary and LEXICON.is_ordinary(following.lower) else 0
        fits = ordinary or word.lower in LEXICON.cues["possessive_head"]
        return int(fits and word.capital and LEXICON.is_ordinary(word.lower))
    if word.capital:
        return 0 if word.initial else 1
    if word.text == "I":
        # Rulers (Johann Adolf I of Ostrey) and world wars.
        regnal = text[word.end : word.end + 4].lstrip().startswith(("of ", ",", ")", "("))
        if last.lower == "war" or (regnal and last.lower in LEXICON.cues["first_name"]):
            return 1
    if _NUMBER.match(word.text):
        unit = following.lower if following else ""
        counts = unit.endswith("s") or unit in _UNITS or unit in LEXICON.calendar
        return 0 if counts or last.lower in LEXICON.calendar or last.lower in LEXICON.function else 1
    follow = j + 1
    if following and following.lower in _ARTICLES and word.lower not in _ARTICLES:
        follow += 1
    if follow >= len(words) or not words[follow].capital:
        return 0
    if not all(text[a.end : b.start].isspace() for a, b in pairwise(words[j : follow + 1])):
        return 0
    return follow + 1 - j if _connects(words[i:j], words[j:follow], words[follow]) else 0


def is_personal(words: list[str]) -> bool:
    """Whether lower-case words form the name of a ruler or saint: first names, or a name and a numeral."""
    if all(w in LEXICON.cues["first_name"] for w in words):
        return True
    return len(words) > 1 and _NUMERAL.fullmatch(words[-1]) is not None


def _connects(left: list[Word], between: list[Word], right: Word) -> bool:
    """Whether small words join two capitalised parts into one name."""
    cues, small, head = LEXICON.cues, between[0].lower, left[-1].lower
    if small == "&":
        return True
    if small in cues["particle"] and not LEXICON.is_ordinary(right.lower):
        return True
    ordinary = all(LEXICON.is_ordinary(w.lower) for w in left) and not (len(left) == 1 and left[0].initial)
    right_ordinary = LEXICON.is_ordinary(right.lower) and right.lower not in LEXICON.function
    if small in ("of", "the") and len(between) == 1 and is_personal([w.lower for w in left]):
        return small == "the" or right.lower in cues["place"] or not right_ordinary
    if small == "of":
        if head in cues["org_of"] or head in cues["loc_of"]:
            return True
        named = len(left) > 1 and LEXICON.is_ordinary(head) and left[0].lower not in cues["first_name"]
        return (ordinary or named) and head not in cues["role"] and head not in cues["honorific"]
    if small == "for":
        return head in cues["for_head"] and (len(between) == 1 or right_ordinary)
    if small == "and":
        return len(between) == 1 and ordinary and right_ordinary
    if small == "the":
        return len(between) == 1 and ordinary and LEXICON.is_leading(head) and not left[-1].initial
    return False


def _touches(text: str, last: Word, word: Word) -> bool:
    """Whether two words are separated only by whitespace, or by the full stop of an initial or honorific."""
    gap = text[last.end : word.start]
    if gap == "- ":  # Tokenised text: Metro- Goldwyn.
        return last.capital and word.capital
    if last.possessive:
        gap = _POSSESSIVE.sub("", gap)
    if gap.isspace():
        return "\n\n" not in gap
    if gap[:1] == "." and gap[1:].isspace():
        return len(last.text) == 1 or last.lower in LEXICON.cues["honorific"] or last.text.count(".") > 0
    return False


def trim(run: CapitalRun) -> list[CapitalRun]:
    """Cut honorifics, roles, calendar words and sentence openers off a run. Returns the candidates.

    A role in the middle splits the run (Harbour Institute Director Mara Venn).
    """
    if run.quoted:
        return [run]
    cues = LEXICON.cues
    words, person, opened = _strip_front(run)
    for end in range(2, len(words)):
        role = words[end - 1].lower
        office = role in cues["strict_honorific"] or (role in cues["role"] and role not in cues["first_name"])
        if office and _name_like(words[end].lower):
            start = end - 1
            while start > 0 and (
                words[start - 1].lower in cues["role"] or (start > 1 and words[start - 1].lower in _IN_ROLES)
            ):
                start -= 1
            if start == 0:  # Chief Technology Officer Ruth Amsel
                words, person = words[end:], True
                break
            left = CapitalRun(
                words[:start], run.sentence, person, False, run.before, run.before2, words[start].lower
            )
            right = CapitalRun(words[end:], run.sentence, True, False, role, "", run.after)
            return trim(left) + trim(right)
    words = _strip_back(words)
    if not words or all(is_empty(w.lower) and not _is_country(w) for w in words):
        return []
    if words[0] is not run.words[0]:
        place = run.words.index(words[0])
        run.before, run.before2 = run.words[place - 1].lower, run.before
    run.words, run.person, run.opened = words, run.person or person, opened
    return [run]


def _is_country(word: Word) -> bool:
    """Whether the word is a country in capitals, such as US."""
    return word.text.isupper() and word.lower in LEXICON.cues["place"]


def _strip_front(run: CapitalRun) -> tuple[list[Word], bool, bool]:
    """Return (remaining words, whether an honorific or role was cut, whether a sentence opener was cut)."""
    cues, words, person, opened = LEXICON.cues, list(run.words), run.person, False
    while words:
        first, following = words[0].lower, words[1].lower if len(words) > 1 else ""
        if following.isdigit() and first in cues["not_name"]:
            words.pop(0)  # Episode 12, Item 4; the next iteration removes the number
            continue
        # An honorific or role before a name, singular or plural (Councillors A and B).
        forms = (first, first.removesuffix("s"))
        office = any(f in cues["honorific"] or f in cues["role"] for f in forms)
        office = office and (_name_like(following) or following in cues["honorific"])
        if following and (office or first in cues["strict_honorific"]):
            person = True
        elif words[0].initial and LEXICON.is_leading(first):
            # These are still part of the name: a first name (Mark Venn) or a noun (Institute for Estuarine
            # Studies).
            if following and first not in LEXICON.function:
                is_noun = first in LEXICON.nouns
                if not words[1].capital:
                    belongs = is_noun
                elif _name_like(following):
                    belongs = first in cues["first_name"]
                else:
                    belongs = is_noun and following not in LEXICON.function
                if belongs:
                    break
            opened = True
        elif first in cues["determiner"] or first == "&" or first.isdigit():
            pass
        elif first not in LEXICON.calendar or following in cues["event_suffix"]:
            break
        words.pop(0)
        while words and not words[0].capital:
            words.pop(0)
    return words, person, opened


def _strip_back(words: list[Word]) -> list[Word]:
    cues = LEXICON.cues
    while words:
        last = words[-1].lower
        placed = last in cues["loc_suffix"] or last in cues["org_suffix"] or last in cues["event_suffix"]
        is_role = last in cues["role"] and not placed and len(words) > 1
        titled = last in cues["honorific"] and not placed
        plain = all(LEXICON.is_ordinary(w.lower) or w.lower in cues["not_name"] for w in words)
        if plain and (is_role or titled):
            return []
        dated = last in LEXICON.calendar and not placed
        empty = last in LEXICON.stop and not _is_country(words[-1])
        if not (empty or dated or (is_role and last not in cues["first_name"])):
            break
        words.pop()
        while words and not words[-1].text[0].isupper():
            words.pop()
    return words


def _name_like(lower: str) -> bool:
    return not LEXICON.is_ordinary(lower) or lower in LEXICON.cues["first_name"]
