"""Capitalised runs: the stretches of a sentence that could be names, by casing alone.

English marks names by capitals; only at the start of a sentence, of a quotation or of a heading does a
capital mean nothing (Lita et al. 2003, "tRuEcasIng"; Mikheev 2002, "Periods, capitalized words, etc.",
whose document-centred rule names.py follows). A run is a maximal sequence of capitalised words, with the
small words that names have inside (University of Ostrey, Rana el Kaliouby, Behind the Tech).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Sentence

_TOKEN = re.compile(r"[^\W_]+(?:[.'’&+-][^\W_]+)*(?:[+#]{1,2}(?![^\W_]))?|&")
_GLUED = re.compile(r"[^\W\d_]{3,}\.(?=[A-Z][a-z])")
_DOMAIN = re.compile(r"\.(?:com|org|net|edu|gov)$", re.IGNORECASE)
_INITIALISM = re.compile(r"(?:[A-Z]\.)+[A-Z]$")
_PLURAL_ACRONYM = re.compile(r"[A-Z]{2,}s$")
_HYPHEN_LOWER = re.compile(r"-[a-z]")
_NUMBERED = re.compile(r"(?:ep|episode|part|item|fig|figure|no|vol|ch|chapter|section|page|pp?)[-.]?\d+$")
_CLITIC = re.compile(r"(?:['’](?:s|S|ve|re|ll|d|m)|n['’]t)$")
_INNER_CAPITAL = re.compile(r"[a-z]{1,2}[A-Z]\w+$")
_DIGIT_CAPITAL = re.compile(r"\d+[A-Z][A-Za-z]*$")
_NUMBER = re.compile(r"\d{1,3}$|\d\.\d$")
_QUOTED = re.compile(r"[“\"]([A-Z0-9][^“”\"\n.!?]{2,60}?)[,.]?[”\"]")
_PARTICLES = frozenset(
    [
        "de",
        "la",
        "le",
        "du",
        "des",
        "von",
        "van",
        "der",
        "den",
        "di",
        "da",
        "dos",
        "del",
        "della",
        "el",
        "bin",
        "ibn",
        "ben",
        "al",
        "ten",
        "ter",
    ]
)
_SMALL = frozenset(
    ["of", "for", "and", "in", "on", "at", "to", "with", "from", "by", "a", "an", "the", "or", "nor", "as"]
)
_DETERMINERS = frozenset(
    ["the", "a", "an", "my", "our", "his", "her", "their", "your", "this", "that", "these", "those", "its"]
)
_FOR_HEADS = frozenset(
    [
        "institute",
        "center",
        "centre",
        "foundation",
        "society",
        "council",
        "school",
        "association",
        "committee",
        "fund",
        "campaign",
        "network",
        "alliance",
        "office",
        "authority",
        "academy",
        "department",
        "laboratory",
        "trust",
        "program",
        "programme",
        "prize",
        "award",
        "coalition",
        "party",
        "hymn",
        "ode",
        "bureau",
        "agency",
    ]
)
_POSSESSIVE_HEADS = frozenset(
    [
        "law",
        "laws",
        "day",
        "college",
        "hospital",
        "church",
        "cathedral",
        "square",
        "island",
        "bridge",
        "court",
        "lane",
        "ale",
        "wharf",
        "bay",
        "theorem",
        "paradox",
        "syndrome",
        "disease",
        "principle",
    ]
)
_TITLES = frozenset(["mr", "mrs", "ms", "miss", "mx", "dr", "prof", "professor", "sir", "dame", "messrs"])
_OPENS = frozenset(':“"([‘«\n')


@dataclass(frozen=True, slots=True)
class Word:
    """One word: text[start:end] without a clitic. `initial`: its capital is no evidence; `levelled`: and
    it stands in a heading among names."""

    text: str
    lower: str
    start: int
    end: int
    initial: bool
    possessive: bool
    levelled: bool = False


@dataclass(slots=True)
class Run:
    """Words of one candidate. `person`: an honorific or a role stood before it; `quoted`: a title in
    quotation marks; `before` and `after`: the lower-case words beside it ("" at an edge)."""

    words: list[Word]
    sentence: int
    person: bool = False
    quoted: bool = False
    before: str = ""
    before2: str = ""
    after: str = ""

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def end(self) -> int:
        return self.words[-1].end


def words_of(text: str, sentence: Sentence, lexicon: Lexicon) -> list[Word]:
    """The words of a sentence with what their casing is worth."""
    words: list[Word] = []
    at = sentence.start
    fresh = True
    for match in _TOKEN.finditer(text, sentence.start, sentence.end):
        raw, start = match.group(), match.start()
        glued = _GLUED.match(raw)
        if glued:
            raw = raw[: glued.end() - 1]
        gap = text[at:start]
        at = start + len(raw)
        clitic = _CLITIC.search(raw)
        base = _base(text, raw[: clitic.start()] if clitic else raw, start)
        initial = fresh or bool(_OPENS.intersection(gap))
        fresh = bool(glued)
        owned = raw[-1] in "sS" and text[at : at + 2] in ("' ", "’ ") and raw.lower() in lexicon.nouns
        cut = clitic is not None or len(base) < len(raw) or owned
        words.append(Word(base, base.lower(), start, start + len(base), initial, cut))
    return _level_headings(words, lexicon)


def _base(text: str, word: str, start: int) -> str:
    """The part of a written word that can belong to a name: Intel of Intel-based, GPU of GPUs."""
    if word[0].islower() or "@" in (text[start - 1 : start], text[start + len(word) : start + len(word) + 1]):
        return word if word[0].islower() and text[start - 1 : start] != "@" else "@" * len(word)
    if "." in word:
        if text[start + len(word) : start + len(word) + 1] == "." and _INITIALISM.match(word):
            return word + "."
        domain = _DOMAIN.search(word)
        return word[: domain.start()] if domain else word
    if "-" in word and (hyphen := _HYPHEN_LOWER.search(word)):
        return word[: hyphen.start()]
    return word[:-1] if _PLURAL_ACRONYM.match(word) else word


def _level_headings(words: list[Word], lexicon: Lexicon) -> list[Word]:
    """In a heading every word is capitalised, so no capital of an ordinary word is evidence."""
    content = [w for w in words if w.lower not in _SMALL and w.text[0].isalpha()]
    if len(content) < 4:
        return words
    upper = sum(w.text[0].isupper() for w in content)
    capitals = sum(w.text.isupper() and len(w.text) > 1 for w in content)
    ordinary = sum(lexicon.is_ordinary(w.lower) for w in content)
    if (upper >= 0.8 * len(content) and ordinary >= 0.5 * len(content)) or capitals >= 0.7 * len(content):
        return [
            Word(w.text, w.lower, w.start, w.end, w.initial, w.possessive, lexicon.is_ordinary(w.lower))
            for w in words
        ]
    return words


def runs_of(text: str, sentence: Sentence, index: int, words: list[Word], lexicon: Lexicon) -> list[Run]:
    """The capitalised runs of one sentence, in order, before anything is trimmed."""
    runs: list[Run] = []
    i, n = 0, len(words)
    while i < n:
        if not _capital(words[i]) or words[i].levelled:
            i += 1
            continue
        j = i + 1
        while j < n:
            step = _extend(text, words, i, j, lexicon)
            if not step:
                break
            j += step
        run = Run(words[i:j], index)
        run.before = words[i - 1].lower if i else ""
        run.before2 = words[i - 2].lower if i > 1 else ""
        run.after = words[j].lower if j < n else ""
        runs.append(run)
        i = j
    return runs


def quoted_titles(text: str, sentence: Sentence, index: int, lexicon: Lexicon) -> list[Run]:
    """Titles in quotation marks: all content words capitalised, and more than one of them."""
    if "“" not in text and '"' not in text:
        return []
    runs = []
    for match in _QUOTED.finditer(text, sentence.start, sentence.end):
        words = words_of(text, Sentence(match.start(1), match.end(1)), lexicon)
        content = [w for w in words if w.lower not in _SMALL]
        after = text[match.end() : match.end() + 1]
        spoken = text[match.start() - 2 : match.start()].startswith(",") or match.group().endswith(",”")
        if len(content) > 1 and all(w.text[0].isupper() or w.text.isdigit() for w in content):
            if not spoken and after not in ("", "\n") and len(words) <= 9:
                kept = [Word(w.text, w.lower, w.start, w.end, False, False) for w in words]
                runs.append(Run(kept, index, quoted=True))
    return runs


def _capital(word: Word) -> bool:
    text = word.text
    if text[0].isupper():
        return not (text == "I" or text.startswith(("I'", "I’")))
    return bool(_INNER_CAPITAL.match(text) or _DIGIT_CAPITAL.match(text))


def _extend(text: str, words: list[Word], i: int, j: int, lexicon: Lexicon) -> int:
    """How many words from j on belong to the run that holds words[i:j]; 0: none."""
    last, word = words[j - 1], words[j]
    if not _touches(text, last, word, lexicon):
        return 0
    if last.possessive:
        return _after_possessive(last, word, lexicon)
    if _capital(word):
        return 0 if word.levelled or word.initial else 1
    if word.text == "I" and last.lower == "war":
        return 1
    if _NUMBER.match(word.text):
        unit = words[j + 1].lower if j + 1 < len(words) else ""
        is_unit = unit.endswith("s") or unit in ("percent", "million", "billion", "to", "or", "per", "and")
        return 0 if is_unit or last.lower in lexicon.calendar else 1
    follow = j + 1
    if (
        follow < len(words)
        and words[follow].lower in ("the", "der", "la")
        and word.lower in ("of", "for", "de", "van", "von")
    ):
        follow += 1
    if follow >= len(words) or not _capital(words[follow]) or not _gap_free(text, words[j : follow + 1]):
        return 0
    return follow + 1 - j if _connects(words[i:j], word, words[follow], lexicon) else 0


def _after_possessive(last: Word, word: Word, lexicon: Lexicon) -> int:
    if not _capital(word) or not lexicon.is_ordinary(word.lower):
        return 0
    return int(word.lower in _POSSESSIVE_HEADS or lexicon.is_ordinary(last.lower))


def _connects(left: list[Word], small: Word, right: Word, lexicon: Lexicon) -> bool:
    """Whether a small word joins two capitalised parts into one name."""
    head = left[-1].lower
    if small.text == "&":
        return True
    if small.lower in _PARTICLES and not lexicon.is_ordinary(right.lower):
        return True
    cues = lexicon.cues
    ordinary = all(lexicon.is_ordinary(w.lower) for w in left) and not (len(left) == 1 and left[0].initial)
    if small.lower == "of":
        if head in cues["org_of"] or head in cues["loc_of"]:
            return True
        return ordinary and head not in cues["role"] and head not in cues["honorific"]
    if small.lower == "for":
        return head in _FOR_HEADS and right.lower not in _TITLES
    if small.lower == "and":
        return ordinary and lexicon.is_ordinary(right.lower) and right.lower not in lexicon.function
    if small.lower == "the":
        return ordinary and lexicon.is_leading(head) and not left[-1].initial
    return False


def _touches(text: str, last: Word, word: Word, lexicon: Lexicon) -> bool:
    """Only white space between two words, or the full stop of an initial or an honorific."""
    gap = text[last.end : word.start]
    if last.possessive:
        gap = gap.lstrip("'’sS")
    if gap.isspace():
        return "\n\n" not in gap
    if gap[:1] == "." and gap[1:].isspace():
        return (
            len(last.text) == 1
            or last.lower in lexicon.cues["honorific"]
            or last.lower in ("st", "j.k", "j.r.r")
        )
    return False


def _gap_free(text: str, words: list[Word]) -> bool:
    return all(text[a.end : b.start].isspace() for a, b in zip(words, words[1:], strict=False))


def trim(run: Run, lexicon: Lexicon) -> list[Run]:
    """Cut honorifics, roles, calendar words and sentence openers off a run; a role in the middle divides
    it (Allen Institute Director Oren Etzioni). Returns the candidates that are left."""
    if run.quoted:
        return [run]
    words, person = _strip_front(run, lexicon)
    cut = _role_inside(words, lexicon)
    if cut:
        left = Run(words[: cut[0]], run.sentence, person, False, run.before, run.before2, words[cut[0]].lower)
        right = Run(words[cut[1] :], run.sentence, True, False, words[cut[1] - 1].lower, "", run.after)
        return trim(left, lexicon) + trim(right, lexicon)
    words = _strip_back(words, lexicon)
    if not words or all(is_empty(w.lower, lexicon) for w in words):
        return []
    if len(words) < len(run.words) and words[0] is not run.words[0]:
        place = run.words.index(words[0])
        run.before, run.before2 = run.words[place - 1].lower, run.before
    run.words, run.person = words, run.person or person
    return [run]


def _strip_front(run: Run, lexicon: Lexicon) -> tuple[list[Word], bool]:
    words, person = list(run.words), run.person
    cues = lexicon.cues
    while words:
        first = words[0].lower
        following = words[1] if len(words) > 1 else None
        named = following is not None and _name_like(following.lower, lexicon)
        if following and (
            first in _TITLES or (named and (first in cues["honorific"] or first in cues["role"]))
        ):
            person = True
        elif words[0].initial and lexicon.is_leading(first):
            if following and first in cues["first_name"] and first not in lexicon.function and named:
                break
        elif first not in _DETERMINERS and first != "&":
            if first not in lexicon.calendar or (following and following.lower in cues["event_suffix"]):
                break
        words.pop(0)
    return words, person


def _strip_back(words: list[Word], lexicon: Lexicon) -> list[Word]:
    cues = lexicon.cues
    words = list(words)
    while words:
        last = words[-1].lower
        placed = last in cues["loc_suffix"] or last in cues["org_suffix"] or last in cues["event_suffix"]
        is_role = last in cues["role"] and not placed and len(words) > 1
        if is_role and all(lexicon.is_ordinary(w.lower) or w.lower in cues["not_name"] for w in words):
            return []
        if (
            last in lexicon.stop
            or (last in lexicon.calendar and not placed)
            or (is_role and last not in cues["first_name"])
        ):
            words.pop()
            while words and not words[-1].text[0].isupper():
                words.pop()
        else:
            break
    return words


def _role_inside(words: list[Word], lexicon: Lexicon) -> tuple[int, int] | None:
    """(start, end) of the roles between two names in one run."""
    cues = lexicon.cues
    for end in range(2, len(words)):
        role = words[end - 1].lower
        office = role in _TITLES or (role in cues["role"] and role not in cues["first_name"])
        if office and _name_like(words[end].lower, lexicon):
            start = end - 1
            while (start > 0 and words[start - 1].lower in cues["role"]) or (
                start > 1 and words[start - 1].lower in ("technology", "executive", "of", "for", "and")
            ):
                start -= 1
            return (start, end) if start > 0 else None
    return None


def _is_office(lower: str, lexicon: Lexicon) -> bool:
    """An honorific or a role, in either number (Councillors A and B)."""
    forms = (lower, lower.removesuffix("s"))
    return any(f in lexicon.cues["honorific"] or f in lexicon.cues["role"] for f in forms)


def _name_like(lower: str, lexicon: Lexicon) -> bool:
    return not lexicon.is_ordinary(lower) or lower in lexicon.cues["first_name"]


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
        or lower[0] == "@"
        or _NUMBERED.match(lower) is not None
    )
