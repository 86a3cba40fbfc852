"""Capitalised runs: the stretches of a sentence that could be names, by casing alone.

A run is a maximal sequence of capitalised words, with the small words that names have inside (University
of Ostrey, Nadia el Amrani, Behind the Curtain). What is no part of a name is then trimmed off: honorifics,
roles, the opening words of sentences.

The words of a sentence, and what the casing of each is worth as evidence of a name.

English marks names by capitals; only at the start of a sentence, of a quotation or of a heading does a
capital mean nothing (Lita et al. 2003, "tRuEcasIng"; Mikheev 2002, "Periods, capitalized words, etc.",
whose document-centred rule candidates.py follows).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from graphrag_ray.offline.lexicon import Lexicon
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
_APOSTROPHES = ("' ", "’ ")


@dataclass(frozen=True, slots=True)
class Word:
    """One word: text[start:end] without a clitic.

    initial      its capital is no evidence, for it opens a sentence or a quotation
    possessive   something was cut off its end (Moore's, Fishermen', Intel-based)
    levelled     an ordinary word in a heading among names: its capital is none at all
    """

    text: str
    lower: str
    start: int
    end: int
    initial: bool
    possessive: bool
    levelled: bool = False

    @property
    def capital(self) -> bool:
        """Whether it is written as names are: Mara, iPhone, 5G; but not I."""
        text = self.text
        if self.levelled or text.islower():
            return False
        if text[0].isupper():
            return not (text == "I" or text.startswith(("I'", "I’")))
        return bool(_INNER_CAPITAL.match(text) or _DIGIT_CAPITAL.match(text))


def words_of(text: str, sentence: Sentence, lexicon: Lexicon) -> list[Word]:
    """The words of a sentence, in order."""
    words: list[Word] = []
    at = sentence.start
    fresh = True
    while match := _TOKEN.search(text, at, sentence.end):
        raw, start = match.group(), match.start()
        plain = raw.isalpha()  # of most words nothing has to be cut off
        glued = None if plain else _GLUED.match(raw)
        if glued:
            raw = raw[: glued.end() - 1]
        gap = text[at:start]
        at = start + len(raw)
        if (not plain or len(raw) < 3) and _is_clitic(raw, gap):
            if words and raw in ("s", "S"):
                words[-1] = replace(words[-1], possessive=True)
            continue
        clitic = None if plain else _CLITIC.search(raw)
        base = raw[: clitic.start()] if clitic else raw
        if not plain or not base.islower():
            base = _base(text, base, start, lexicon)
        owned = raw[-1] in "sS" and text[at : at + 2] in _APOSTROPHES and raw.lower() in lexicon.nouns
        cut = owned or len(base) < len(raw)
        initial = fresh or bool(_OPENS.intersection(gap))
        fresh = bool(glued)
        words.append(Word(base, base.lower(), start, start + len(base), initial, cut))
    return _level_heading(text, sentence, words, lexicon)


def _is_clitic(word: str, gap: str) -> bool:
    """Whether a token is no word but the end of the one before it, as tokenised text writes it
    (did n't, Mara 's)."""
    if word in ("n't", "n’t", "N'T", "N’T"):
        return True
    return gap in (" '", " ’", "'", "’") and word.lower() in ("s", "ve", "re", "ll", "d", "m")


def is_empty(lower: str, lexicon: Lexicon) -> bool:
    """A word that makes no name by itself, nor together with its like."""
    cues = lexicon.cues
    return (
        lower in cues["not_name"]
        or lower.replace(".", "") in cues["not_name"]
        or lower in cues["role"]
        or lower in cues["honorific"]
        or lower in cues["nationality"]
        or lower in lexicon.calendar
        or lower in lexicon.function
        or lower.isdigit()
        or len(lower) < 2
        or _NUMBERED.match(lower) is not None
    )


def _base(text: str, word: str, start: int, lexicon: Lexicon) -> str:
    """The part of a written word that can belong to a name: Intel of Intel-based, GPU of GPUs."""
    if word[0].islower():
        return word
    if "." in word:
        if text[start + len(word) : start + len(word) + 1] == "." and _INITIALISM.match(word):
            return word + "."
        domain = _DOMAIN.search(word)
        return word[: domain.start()] if domain else word
    if "-" in word and (hyphen := _HYPHEN_LOWER.search(word)) and word.lower() not in lexicon.ordinary:
        following = word[hyphen.start() + 1 :].lower()
        return word[: hyphen.start()] if lexicon.is_ordinary(following) else word  # Kim Ki-duk
    return word[:-1] if _PLURAL_ACRONYM.match(word) else word


def _level_heading(text: str, sentence: Sentence, words: list[Word], lexicon: Lexicon) -> list[Word]:
    """In a heading every word is capitalised, so no capital of an ordinary word is evidence."""
    small = lexicon.cues["small"]
    content = [w for w in words if w.lower not in small and w.text[0].isalpha()]
    if len(content) < 4:
        return words
    upper = sum(w.text[0].isupper() for w in content)
    capitals = sum(w.text.isupper() and len(w.text) > 1 for w in content)
    ordinary = sum(lexicon.is_ordinary(w.lower) for w in content)
    in_title_case = upper >= 0.8 * len(content) and ordinary >= 0.5 * len(content)
    ends = text[sentence.end - 1] in ".!?…"
    if (in_title_case and not ends) or capitals >= 0.7 * len(content):
        return [replace(w, levelled=lexicon.is_ordinary(w.lower)) for w in words]
    return words


_NUMBER = re.compile(r"\d{1,3}$|\d\.\d$")
_POSSESSIVE = re.compile(r"^\s?['’][sS]?(?=\s)")
_NUMERAL = re.compile(r"[ivx]{1,5}")
_UNITS = frozenset(["percent", "million", "billion", "to", "or", "per", "and", "of", "in"])
_IN_ROLES = frozenset(["technology", "executive", "of", "for", "and"])
_ARTICLES = frozenset(["the", "der", "la"])
MAX_RUN = 24
"""A longer run is a list or a heading, and is cut here."""


@dataclass(slots=True)
class CapitalRun:
    """Words of one candidate.

    person           an honorific or a role stood before it
    quoted           a title, in quotation marks or not
    defined          the heading of a text and what it is about: nothing says that it is a work
    before, before2  the lower-case words in front of it, after: the one behind; "" at an edge
    opened           a preposition that opened the sentence was cut off its front (In Tolverton Mara Venn …)
    """

    words: list[Word]
    sentence: int
    person: bool = False
    quoted: bool = False
    before: str = ""
    before2: str = ""
    after: str = ""
    opened: bool = False
    defined: bool = False

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def end(self) -> int:
        return self.words[-1].end


def runs_of(text: str, index: int, words: list[Word], lexicon: Lexicon) -> list[CapitalRun]:
    """The capitalised runs of sentence number `index`, in order, before anything is trimmed."""
    runs: list[CapitalRun] = []
    i, n = 0, len(words)
    while i < n:
        if not words[i].capital:
            i += 1
            continue
        j = i + 1
        while j < min(n, i + MAX_RUN) and (step := _extend(text, words, i, j, lexicon)):
            j += step
        run = CapitalRun(words[i:j], index)
        run.before = words[i - 1].lower if i else ""
        run.before2 = words[i - 2].lower if i > 1 else ""
        run.after = words[j].lower if j < n else ""
        runs.append(run)
        i = j
    return runs


def _extend(text: str, words: list[Word], i: int, j: int, lexicon: Lexicon) -> int:
    """How many words from j on belong to the run that holds words[i:j]; 0: none."""
    last, word = words[j - 1], words[j]
    if not _touches(text, last, word, lexicon):
        return 0
    if last.possessive:
        return _after_possessive(words, j, lexicon)
    if word.capital:
        return 0 if word.initial else 1
    if word.text == "I" and (last.lower == "war" or _is_regnal(text, words, j, lexicon)):
        return 1
    if _NUMBER.match(word.text):
        unit = words[j + 1].lower if j + 1 < len(words) else ""
        counts = unit.endswith("s") or unit in _UNITS or unit in lexicon.calendar
        return 0 if counts or last.lower in lexicon.calendar or last.lower in lexicon.function else 1
    follow = j + 1
    if follow < len(words) and words[follow].lower in _ARTICLES and word.lower not in _ARTICLES:
        follow += 1
    if follow >= len(words) or not words[follow].capital or not _gap_free(text, words[j : follow + 1]):
        return 0
    return follow + 1 - j if _connects(words[i:j], words[j:follow], words[follow], lexicon) else 0


def _after_possessive(words: list[Word], j: int, lexicon: Lexicon) -> int:
    """Moore's Law, Fishermen's Co-operative, Boatbuilders' and Riggers' Union; but not Varnmouth's Mara."""
    last, word = words[j - 1], words[j]
    ordinary = lexicon.is_ordinary(last.lower)
    if word.lower == "and" and j + 1 < len(words) and words[j + 1].capital and words[j + 1].possessive:
        return 2 if ordinary and lexicon.is_ordinary(words[j + 1].lower) else 0
    if not word.capital or not lexicon.is_ordinary(word.lower):
        return 0
    return int(ordinary or word.lower in lexicon.cues["possessive_head"])


def _is_regnal(text: str, words: list[Word], j: int, lexicon: Lexicon) -> bool:
    """Whether the I at j counts rulers (Johann Adolf I of Ostrey)."""
    follows = text[words[j].end : words[j].end + 4].lstrip()
    return words[j - 1].lower in lexicon.cues["first_name"] and follows.startswith(("of ", ",", ")", "("))


def is_personal(words: list[str], lexicon: Lexicon) -> bool:
    """Whether words, in lower case, begin as the name of a ruler or saint does: a first name, or a
    numeral behind a name."""
    if all(w in lexicon.cues["first_name"] for w in words):
        return True
    return len(words) > 1 and _NUMERAL.fullmatch(words[-1]) is not None


def _connects(left: list[Word], between: list[Word], right: Word, lexicon: Lexicon) -> bool:
    """Whether small words join two capitalised parts into one name."""
    cues, small, head = lexicon.cues, between[0].lower, left[-1].lower
    if small == "&":
        return True
    if small in cues["particle"] and not lexicon.is_ordinary(right.lower):
        return True
    ordinary = all(lexicon.is_ordinary(w.lower) for w in left) and not (len(left) == 1 and left[0].initial)
    right_ordinary = lexicon.is_ordinary(right.lower) and right.lower not in lexicon.function
    if small in ("of", "the") and len(between) == 1 and is_personal([w.lower for w in left], lexicon):
        return small == "the" or right.lower in cues["place"] or not right_ordinary
    if small == "of":
        if head in cues["org_of"] or head in cues["loc_of"]:
            return True
        named = len(left) > 1 and lexicon.is_ordinary(head) and left[0].lower not in cues["first_name"]
        return (ordinary or named) and head not in cues["role"] and head not in cues["honorific"]
    if small == "for":
        return head in cues["for_head"] and (len(between) == 1 or right_ordinary)
    if small == "and":
        return len(between) == 1 and ordinary and right_ordinary
    if small == "the":
        return len(between) == 1 and ordinary and lexicon.is_leading(head) and not left[-1].initial
    return False


def _touches(text: str, last: Word, word: Word, lexicon: Lexicon) -> bool:
    """Only white space between two words, or the full stop of an initial or an honorific."""
    gap = text[last.end : word.start]
    if gap == "- ":  # Metro- Goldwyn, as tokenised text writes it
        return last.capital and word.capital
    if last.possessive:
        gap = _POSSESSIVE.sub("", gap)
    if gap.isspace():
        return "\n\n" not in gap
    if gap[:1] == "." and gap[1:].isspace():
        return len(last.text) == 1 or last.lower in lexicon.cues["honorific"] or last.text.count(".") > 0
    return False


def _gap_free(text: str, words: list[Word]) -> bool:
    return all(text[a.end : b.start].isspace() for a, b in pairwise(words))


def trim(run: CapitalRun, lexicon: Lexicon) -> list[CapitalRun]:
    """Cut honorifics, roles, calendar words and sentence openers off a run; a role in the middle divides
    it (Harbour Institute Director Mara Venn). Returns the candidates that are left."""
    if run.quoted:
        return [run]
    words, person, opened = _strip_front(run, lexicon)
    cut = _role_inside(words, lexicon)
    if cut and cut[0] == 0:  # Chief Technology Officer Ruth Amsel
        words, person = words[cut[1] :], True
    elif cut:
        left = CapitalRun(
            words[: cut[0]], run.sentence, person, False, run.before, run.before2, words[cut[0]].lower
        )
        right = CapitalRun(words[cut[1] :], run.sentence, True, False, words[cut[1] - 1].lower, "", run.after)
        return trim(left, lexicon) + trim(right, lexicon)
    words = _strip_back(words, lexicon)
    if not words or all(is_empty(w.lower, lexicon) and not _is_country(w, lexicon) for w in words):
        return []
    if words[0] is not run.words[0]:
        place = run.words.index(words[0])
        run.before, run.before2 = run.words[place - 1].lower, run.before
    run.words, run.person, run.opened = words, run.person or person, opened
    return [run]


def _is_country(word: Word, lexicon: Lexicon) -> bool:
    """US, which is us but for its capitals."""
    return word.text.isupper() and word.lower in lexicon.cues["place"]


def _strip_front(run: CapitalRun, lexicon: Lexicon) -> tuple[list[Word], bool, bool]:
    """(words left, whether an honorific or role was cut off, whether an opening word was)."""
    words, person, opened = list(run.words), run.person, False
    while words:
        first, following = words[0], words[1] if len(words) > 1 else None
        if following is not None and following.text.isdigit() and first.lower in lexicon.cues["not_name"]:
            words.pop(0)  # Episode 12, Item 4; the number goes with the next turn of this loop
            continue
        if following is not None and _is_title(first, following, lexicon):
            person = True
        elif first.initial and lexicon.is_leading(first.lower):
            if following is not None and _belongs(first, following, lexicon):
                break
            opened = True
        elif (
            first.lower not in lexicon.cues["determiner"] and first.lower != "&" and not first.text.isdigit()
        ):
            is_feast = following is not None and following.lower in lexicon.cues["event_suffix"]
            if first.lower not in lexicon.calendar or is_feast:
                break
        words.pop(0)
        while words and not words[0].capital:
            words.pop(0)
    return words, person, opened


def _is_title(first: Word, following: Word, lexicon: Lexicon) -> bool:
    """An honorific or a role before a name, in either number (Councillors A and B)."""
    cues = lexicon.cues
    if first.lower in cues["strict_honorific"]:
        return True
    forms = (first.lower, first.lower.removesuffix("s"))
    office = any(f in cues["honorific"] or f in cues["role"] for f in forms)
    return office and (_name_like(following.lower, lexicon) or following.lower in cues["honorific"])


def _belongs(first: Word, following: Word, lexicon: Lexicon) -> bool:
    """Whether a word that could open a sentence is part of the name all the same: a first name (Mark
    Venn), or a noun (Number Three Slip, Institute for Estuarine Studies)."""
    if first.lower in lexicon.function:
        return False
    if not following.capital:
        return first.lower in lexicon.nouns
    if _name_like(following.lower, lexicon):
        return first.lower in lexicon.cues["first_name"]
    return first.lower in lexicon.nouns and following.lower not in lexicon.function


def _strip_back(words: list[Word], lexicon: Lexicon) -> list[Word]:
    cues = lexicon.cues
    words = list(words)
    while words:
        last = words[-1].lower
        placed = last in cues["loc_suffix"] or last in cues["org_suffix"] or last in cues["event_suffix"]
        is_role = last in cues["role"] and not placed and len(words) > 1
        titled = last in cues["honorific"] and not placed
        if (is_role or titled) and all(
            lexicon.is_ordinary(w.lower) or w.lower in cues["not_name"] for w in words
        ):
            return []
        dated = last in lexicon.calendar and not placed
        empty = last in lexicon.stop and not _is_country(words[-1], lexicon)
        if empty or dated or (is_role and last not in cues["first_name"]):
            words.pop()
            while words and not words[-1].text[0].isupper():
                words.pop()
        else:
            break
    return words


def _role_inside(words: list[Word], lexicon: Lexicon) -> tuple[int, int] | None:
    """(start, end) of the roles or the honorific before a name in a run of several words."""
    cues = lexicon.cues
    for end in range(2, len(words)):
        role = words[end - 1].lower
        office = role in cues["strict_honorific"] or (role in cues["role"] and role not in cues["first_name"])
        if office and _name_like(words[end].lower, lexicon):
            start = end - 1
            while start > 0 and (
                words[start - 1].lower in cues["role"] or (start > 1 and words[start - 1].lower in _IN_ROLES)
            ):
                start -= 1
            return start, end
    return None


def _name_like(lower: str, lexicon: Lexicon) -> bool:
    return not lexicon.is_ordinary(lower) or lower in lexicon.cues["first_name"]
