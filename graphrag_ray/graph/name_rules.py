"""Rules by which two names of entities stand for the same thing, without a model.

Names are entity keys (`base/ids.entity_key`). Some rules compare two names anywhere in a corpus: `rule_keys`
returns keys that are equal for names that may be merged, and `may_merge` holds the guards. Other rules need
the names and the text of one document: `document_aliases`.

Anywhere in the corpus:
    spelling      widths, quotation marks, hyphens, THE, dots of initials, vowel points, spaces in Korean
    spacing       OPEN AI / OPENAI
    accents       SÃO PAULO / SAO PAULO
    abbreviation  ST LOUIS / SAINT LOUIS, U.S. / UNITED STATES
    plural        NEURAL NETWORK / NEURAL NETWORKS, FORM 10-Q / FORMS 10-Q
    word_form     MUSIC CHART / MUSICAL CHART, COLOUR SPACE / COLOR SPACE
    legal_form    ELI LILLY / ELI LILLY AND COMPANY
    title         DR SATYA NADELLA / SATYA NADELLA
    initials      ANN B. LEE / ANN BEATRICE LEE
    order         LEE, ANN / ANN LEE, WAR DRAMA FILM / DRAMA WAR FILM, four or more words in any order
    misspelling   OSKAR LINDQVIST / OSCAR LINDQVIST: letters that sound alike, or one letter of a long surname
In a document:
    spelling      also of given names: JEAN-LUC / JEAN LUC
    plural        also of single words: GRAMMY / GRAMMYS
    order         also LEE ANN / ANN LEE
    misspelling   also other names that differ by one letter
    acronym       Securities and Exchange Commission (SEC), or the only name with these initials
    short_name    NADELLA / SATYA NADELLA: the only full name that contains it
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import regex
from rapidfuzz.distance import OSA

from graphrag_ray.base.ids import UNSPACED_SCRIPT, limit_combining_marks
from graphrag_ray.base.index_settings import RESOLUTION_RULES

RULES = tuple(RESOLUTION_RULES)
MAX_NAME = 200
"""Longer names are not compared."""
MAX_EVIDENCE = 200


class NameAlias(NamedTuple):
    """A name that stands for the same thing as a canonical name, and why."""

    name: str
    canonical: str
    rule: str
    evidence: str


# Words of names


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _longest_first(text: str) -> tuple[str, ...]:
    return tuple(sorted(text.split(), key=lambda word: (-len(word), word)))


EXCLUSIVE_TYPES = frozenset({"PERSON", "ORGANIZATION", "LOCATION"})
"""Types that exclude each other. Models use the others less consistently."""
_DROPPED = regex.compile(r"['’‘`´ʼʻʹ\u064b-\u065f\u0670\u0640\u0591-\u05c7]")
"""Apostrophes, and vowel points of Arabic and Hebrew, which are optional."""
_SEPARATORS = regex.compile(r"[\p{Pi}\p{Pf}\p{Ps}\p{Pe}\p{Pd}\"_/・·ㆍ,;:!?、，。]")
_INITIALS = regex.compile(r"(?<![\p{L}\p{M}.])\p{L}\.(?:\s?\p{L}\.)*(?:\p{L}(?![\p{L}\p{M}]))?")
_DOTS = str.maketrans(dict.fromkeys("ㆍ․‧•", " "))
"""Dots between Korean words, which Unicode's normalization turns into letters and full stops."""
_ONE_LETTER = str.maketrans({"Ё": "Е", "أ": "ا", "إ": "ا", "آ": "ا", "ى": "ي", "ς": "Σ", "İ": "I"})
"""Letters that are written interchangeably."""
_GREEK = regex.compile(r"\p{Greek}+")
_CJK = regex.compile(r"[\p{Hangul}\p{Han}\p{Hiragana}\p{Katakana}]")
_NUMBER_SIGN = regex.compile(r"(?:\bNO\.?|№|\bNUMBER|#) ?(?=\d)|(?<=\d)[호号號]$")
_NUMBERED = regex.compile(r"第(?=\d)|(?<=\d)[條条項项號号]")
_KOREAN_COUNTERS = str.maketrans("第條条項项號号", "제조조항항호호")
"""Articles and paragraphs of laws, which Korean writes in both scripts: 第44條第1項, 제44조제1항."""
_ROMAN = regex.compile(r"C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_DIGITS = regex.compile(r"\d+")


def _is_spaced_apart(left: str, right: str) -> bool:
    """Whether a space between two characters matters: not next to Chinese, Japanese, Korean or Thai."""
    return not any(_CJK.match(c) or UNSPACED_SCRIPT.match(c) for c in (left, right))


@lru_cache(maxsize=1 << 14)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name such that they are equal for spellings of one name."""
    text = limit_combining_marks(name.translate(_DOTS))
    text = unicodedata.normalize("NFKC", text).upper().translate(_ONE_LETTER)
    text = _GREEK.sub(lambda m: _without_marks(m[0]), text)
    text = _SEPARATORS.sub(" ", _DROPPED.sub("", text))
    text = _INITIALS.sub(lambda m: m[0].replace(".", "").replace(" ", "") + " ", text)
    text = _NUMBERED.sub(lambda m: m[0].translate(_KOREAN_COUNTERS), text.strip())
    text = _NUMBER_SIGN.sub("", text)
    words: list[list[str]] = []
    for part in text.split():
        word = part.strip(".") or part
        if words and not _is_spaced_apart(words[-1][-1][-1], word[0]):
            words[-1].append(word)
        else:
            words.append(["AND" if word == "&" else str(_roman(word)) if words and _roman(word) else word])
    if len(words) > 1 and words[0] == ["THE"]:
        del words[0]
    return tuple("".join(parts) for parts in words) or (name,)


def _roman(word: str) -> int:
    """The value of a Roman numeral of at least two of the letters I, V and X, or 0."""
    return _roman_value(word) if len(word) > 1 and not word.strip("IVX") else 0


def _roman_value(word: str) -> int:
    if not 0 < len(word) < 12 or not _ROMAN.fullmatch(word):
        return 0
    values = [_ROMAN_VALUES[c] for c in word]
    return sum(-v if v < after else v for v, after in zip(values, [*values[1:], 0], strict=True))


def _without_marks(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


@lru_cache(maxsize=1 << 14)
def _without_accents(text: str) -> str:
    """Remove accents from Latin letters only: in other scripts they make other letters."""
    if text.isascii():
        return text
    parts = (_without_marks(c) if "LATIN" in unicodedata.name(c, "") else c for c in text)
    return "".join(parts).translate(_LATIN)


_LATIN = str.maketrans({"Ø": "O", "Ł": "L", "Đ": "D", "Æ": "AE", "Œ": "OE", "Þ": "TH", "Ð": "D", "ı": "I"})


def numbers(name: str) -> tuple[str, ...]:
    """The numbers and numerals of a name, sorted. Names with different ones are never merged."""
    found = []
    for n, word in enumerate(_words(name)):
        digits = _DIGITS.findall(word)
        found += ["".join(str(unicodedata.digit(c, 0)) for c in d).lstrip("0") for d in digits]
        if n and not digits and _roman_value(word):
            found.append(str(_roman_value(word)))
    return tuple(sorted(found))


# Rules for two names anywhere in a corpus

_LEGAL_FORMS = _word_set(
    """
    INC INCORPORATED CORP CORPORATION CO COMPANY LTD LIMITED LLC LLP LP PLC GMBH AG KG KGAA EV SE
    SA SAS SARL SRL SPA NV BV AB ASA AS OY OYJ APS KK PTY PTE PVT BHD SDN TBK JSC OJSC PJSC OOO
    OAO ZAO ПАО ООО ОАО ЗАО АО
    """
)
_CJK_LEGAL_FORMS = _longest_first(
    "株式会社 有限会社 合同会社 股份有限公司 有限责任公司 有限公司 주식회사 유한회사"
)
_JOINS = frozenset({"AND", "&", "ET", "UND", "Y", "E", "OG", "OCH"})
_TITLES = _word_set(
    """
    MR MRS MS MISS MX DR PROF PROFESSOR SIR DAME HON HONORABLE HONOURABLE REV REVEREND PRESIDENT
    SENATOR SEN CONGRESSMAN CONGRESSWOMAN REPRESENTATIVE REP GOVERNOR GOV MAYOR MINISTER JUDGE
    JUSTICE CHANCELLOR GENERAL GEN COLONEL COL MAJOR MAJ CAPTAIN CAPT LIEUTENANT LT SERGEANT SGT
    CORPORAL ADMIRAL COMMANDER AMBASSADOR SECRETARY BISHOP ARCHBISHOP CARDINAL RABBI IMAM SHEIKH
    HERR FRAU MONSIEUR MADAME MME MLLE SEÑOR SEÑORA SIGNOR SIGNORA ГОСПОДИН ГОСПОЖА ДОКТОР
    ПРОФЕССОР ПРЕЗИДЕНТ
    """
)
_RULERS = _word_set("KING QUEEN EMPEROR EMPRESS POPE TSAR CZAR SULTAN KAISER")
"""Titles that are left out only before a numbered name: KING EDWARD VII."""
_WOMEN = _word_set("MRS MISS MS LADY DAME FRAU MADAME MME MLLE SEÑORA SIGNORA ГОСПОЖА")
_MEN = _word_set("MR SIR LORD HERR MONSIEUR SEÑOR SIGNOR ГОСПОДИН")
_CJK_TITLES = _longest_first(
    """
    국회의원 의원 대통령 위원장 장관 차관 총리 교수 박사 회장 사장 대표 팀장 씨
    先生 女士 教授 博士 总统 總統 主席 总理 總理 議員 首相 大統領 さん 氏 様
    """
)
_ABBREVIATIONS = {
    "ST": "SAINT",
    "STE": "SAINTE",
    "MT": "MOUNT",
    "FT": "FORT",
    "UNIV": "UNIVERSITY",
    "DEPT": "DEPARTMENT",
    "GOVT": "GOVERNMENT",
    "INTL": "INTERNATIONAL",
    "ASSN": "ASSOCIATION",
}
"""Of words that are not the last one."""
_LEGAL_FORM_SYNONYMS = {"INCORPORATED": "INC", "CORPORATION": "CORP", "COMPANY": "CO", "LIMITED": "LTD"}
_WELL_KNOWN = {
    "US": "UNITED STATES",
    "USA": "UNITED STATES",
    "UNITED STATES OF AMERICA": "UNITED STATES",
    "UK": "UNITED KINGDOM",
    "UN": "UNITED NATIONS",
    "EU": "EUROPEAN UNION",
    "UAE": "UNITED ARAB EMIRATES",
    "USSR": "SOVIET UNION",
}
_MIN_REORDERED = 4
_GENERATIONS = frozenset({"JR", "SR", "JUNIOR", "SENIOR"})


def rule_keys(name: str, type_: str, rules: Collection[str] = RULES) -> Iterator[tuple[str, str]]:
    """Yield (rule, key). Two names with an equal pair stand for the same thing if `may_merge` agrees."""
    if not name or len(name) > MAX_NAME:
        return
    words = _words(name)
    keys: dict[str, Callable[[], str]] = {
        "spelling": lambda: " ".join(words),
        "spacing": lambda: _spacing_key(words),
        "accents": lambda: _without_accents(" ".join(words)),
        "abbreviation": lambda: _abbreviation_key(words),
        "plural": lambda: _plural_key(name, words, type_),
        "word_form": lambda: _word_form_key(words) if type_ in ("", "CONCEPT") else "",
        "legal_form": lambda: " ".join(_without_legal_form(words)) if type_ in ("", "ORGANIZATION") else "",
        "title": lambda: " ".join(_plain_person(name)) if type_ in ("", "PERSON") else "",
        "initials": lambda: _initials_key(words) if type_ == "PERSON" else "",
        "order": lambda: _order_key(name, words, type_),
        "misspelling": lambda: _sound_key(words, type_),
    }
    if "misspelling" in rules and type_ == "PERSON" and _has_long_surname(words):
        given, surname = " ".join(words[:-1]), words[-1]
        for n in range(1, len(surname)):
            yield "misspelling", f"{given} {surname[:n]}{surname[n + 1 :]}"
    for rule, key in keys.items():
        if rule in rules and (found := key()):
            yield rule, found


def _has_long_surname(words: tuple[str, ...]) -> bool:
    """A surname so long that another one with a letter more or less is rare."""
    return 2 <= len(words) <= 3 and 8 <= len(words[-1]) <= 30 and not _NO_GIVEN_NAMES.intersection(words)


def may_merge(a: str, type_a: str, b: str, type_b: str, rule: str) -> bool:
    """Whether two names may stand for the same thing, given that a rule says so.

    Conflicting types, different numbers and JUNIOR against SENIOR speak against it. Types do not count for
    spellings of one name, with and without spaces, because equal names are merged whatever their types.
    """
    words_a, words_b = _words(a), _words(b)
    if words_a == words_b:
        return _may_be_spelling((a, type_a), (b, type_b))
    well_known = rule == "abbreviation" and _is_well_known(words_a) and _is_well_known(words_b)
    if not well_known and rule != "spacing" and type_a != type_b and {type_a, type_b} <= EXCLUSIVE_TYPES:
        return False
    if rule != "acronym" and numbers(a) != numbers(b):
        return False
    if _generation(words_a) != _generation(words_b):
        return rule == "short_name" and len(words_a) == 1
    guard = _GUARDS.get(rule)
    return guard is None or guard((a, type_a), (b, type_b))


def _generation(words: tuple[str, ...]) -> set[str]:
    """J or S for JUNIOR and SENIOR."""
    return {word[0] for word in words[1:] if word in _GENERATIONS}


def _is_well_known(words: tuple[str, ...]) -> bool:
    return (name := " ".join(words)) in _WELL_KNOWN or name in _WELL_KNOWN.values()


def _may_be_spelling(a: _TypedName, b: _TypedName) -> bool:
    """JEAN-BAPTISTE and JEAN BAPTISTE are given names: they stand for one person only in one document."""
    return {a[1], b[1]} != {"PERSON"} or (" " in a[0]) == (" " in b[0]) or bool(_CJK.match(a[0]))


def _may_be_accents(a: _TypedName, b: _TypedName) -> bool:
    """One of the names must be without accents: MÜLLER and MÚLLER are different names."""
    plain = (" ".join(_words(name)) for name, _ in (a, b))
    return any(_without_accents(p) == p and len(p) > 4 for p in plain)


def _may_be_spacing(a: _TypedName, b: _TypedName) -> bool:
    """GEORGE TOWN and GEORGETOWN are different places."""
    if "LOCATION" in (a[1], b[1]) and max(len(_words(a[0])), len(_words(b[0]))) < 3:
        return False
    return _may_be_spelling(a, b)


def _may_be_legal_form(a: _TypedName, b: _TypedName) -> bool:
    """A name with another legal form is another company."""
    forms = []
    for name, _ in (a, b):
        words = _words(name)
        end = len(_without_legal_form(words))
        forms.append({_LEGAL_FORM_SYNONYMS.get(w, w) for w in words[end:] if w not in _JOINS})
    return not all(forms) or forms[0] == forms[1]


def _may_be_title(a: _TypedName, b: _TypedName) -> bool:
    """MR and MRS are different people."""
    first, second = (set(_without_title(_words(name))[0]) for name, _ in (a, b))
    return not (first & _MEN and second & _WOMEN) and not (second & _MEN and first & _WOMEN)


def _may_be_initials(a: _TypedName, b: _TypedName) -> bool:
    """All words are equal, or one is the initial of the other."""
    pairs = list(zip(_words(a[0]), _words(b[0]), strict=False))
    return all(x == y or (1 in (len(x), len(y)) and x[:1] == y[:1]) for x, y in pairs)


def _may_be_misspelling(a: _TypedName, b: _TypedName) -> bool:
    """The names differ in one word of at least four letters, or OF is translated. Another word is equal."""
    words_a, words_b = _words(a[0]), _words(b[0])
    if len(words_a) != len(words_b):
        return False
    different = [pair for pair in zip(words_a, words_b, strict=True) if pair[0] != pair[1]]
    same = [x for x, y in zip(words_a, words_b, strict=True) if x == y and x not in _PARTICLES]
    if len(different) != 1 or max(map(len, same), default=0) < 3:
        return False
    return min(map(len, different[0])) >= 4 or set(different[0]) <= _OF


_TypedName = tuple[str, str]
_GUARDS: Mapping[str, Callable[[_TypedName, _TypedName], bool]] = {
    "accents": _may_be_accents,
    "spacing": _may_be_spacing,
    "legal_form": _may_be_legal_form,
    "title": _may_be_title,
    "initials": _may_be_initials,
    "misspelling": _may_be_misspelling,
}


def _spacing_key(words: tuple[str, ...]) -> str:
    """The name without spaces, except between digits."""
    key = ""
    for word in words:
        key += f" {word}" if key and key[-1].isdigit() and word[0].isdigit() else word
    return key if len(key) >= 5 else ""


def _abbreviation_key(words: tuple[str, ...]) -> str:
    key = " ".join([*(_ABBREVIATIONS.get(word, word) for word in words[:-1]), words[-1]])
    return _WELL_KNOWN.get(key, key)


def _plural_key(name: str, words: tuple[str, ...], type_: str) -> str:
    """The singular of the last word, or of the word before a number, except in names and titles."""
    last = len(words) - 1
    if type_ in ("PERSON", "LOCATION"):
        return ""
    if _NUMBERED_PLURAL.search(name):
        return " ".join(words)[:-1]
    if number := next((n for n in range(1, len(words)) if _DIGITS.search(words[n])), 0):
        return " ".join([*words[: number - 1], _singular(words[number - 1]), *words[number:]])
    if type_ in ("WORK", "PRODUCT") or (type_ == "ORGANIZATION" and not last):
        return ""
    return " ".join([*words[:last], _singular(words[last])])


_NUMBERED_PLURAL = regex.compile(r"\p{L}-?\d+S$")
"""TRS-80S, Z80S, but not 1980S."""


def _word_form_key(words: tuple[str, ...]) -> str:
    """An English concept in American spelling, and with one form for nouns and adjectives as modifiers."""
    if not all(word.isascii() for word in words):
        return ""
    words = tuple(_BRITISH.sub(lambda m: _AMERICAN[m[0]], word) for word in words)
    return " ".join([*map(_word_form, words[:-1]), _singular(words[-1])])


_AMERICAN = {
    "OUR": "OR",
    "TRE": "TER",
    "BRE": "BER",
    "ISE": "IZE",
    "ISING": "IZING",
    "ISATION": "IZATION",
    "ENCE": "ENSE",
    "OGUE": "OG",
    "GRAMME": "GRAM",
}
_BRITISH = regex.compile(rf"(?<=.{{3}})(?:{'|'.join(sorted(_AMERICAN, key=len, reverse=True))})$")
"""Endings, in longer words only: TOUR, RISE."""


def _word_form(word: str) -> str:
    """MUSIC of MUSICAL, GRAPHIC of GRAPHICS, COMPUT~ of COMPUTER and COMPUTING."""
    for ending, replacement in (("AL", ""), ("S", ""), ("ER", "~"), ("ING", "~")):
        if word.endswith(ending) and len(word) - len(ending) >= 5:
            return word[: -len(ending)] + replacement
    return word


def _initials_key(words: tuple[str, ...]) -> str:
    """A full name with the initials of its middle names."""
    if len(words) < 3 or len(words[0]) < 2 or len(words[-1]) < 3 or _PARTICLES.union(_OF).intersection(words):
        return ""
    return " ".join([words[0], "".join(word[0] for word in words[1:-1]), words[-1]])


_IRREGULAR_PLURALS = {
    "PHENOMENA": "PHENOMENON",
    "CRITERIA": "CRITERION",
    "BACTERIA": "BACTERIUM",
    "HYPOTHESES": "HYPOTHESIS",
    "ANALYSES": "ANALYSIS",
    "INDICES": "INDEX",
    "MATRICES": "MATRIX",
    "CHILDREN": "CHILD",
    "SPECIMEN": "SPECIMEN",
    "OMEN": "OMEN",
}
_PLURAL = regex.compile(r"[A-Z]*[A-HJ-RTV-Z]S")


def _singular(word: str) -> str:
    """The singular of an English word, roughly."""
    if word in _IRREGULAR_PLURALS or word.endswith("MEN"):
        return _IRREGULAR_PLURALS.get(word) or f"{word[:-3]}MAN"
    if len(word) < 4 or not _PLURAL.fullmatch(word):
        return word
    if word.endswith("IES") and len(word) > 4:
        return word[:-3] + "Y"
    return word[:-2] if word.endswith(("SSES", "SHES", "CHES", "XES")) else word[:-1]


def _without_legal_form(words: tuple[str, ...]) -> tuple[str, ...]:
    """Remove legal forms from the end, or a Chinese, Japanese or Korean one from either end."""
    if len(words) == 1:
        for form in _CJK_LEGAL_FORMS:
            if words[0] != form:
                words = (words[0].removesuffix(form).removeprefix(form),)
        return words
    end = len(words)
    while end > 1 and words[end - 1] in _LEGAL_FORMS:
        end -= 1
    if end < len(words) and end > 1 and words[end - 1] in _JOINS:
        end -= 1
    return words[:end]


def _without_title(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the titles before a name, and the name of at least two words, or of two Chinese characters."""
    if len(words) == 1:
        for title in _CJK_TITLES:
            rest = words[0].removesuffix(title)
            if rest != words[0] and (_is_korean_name(rest) if _HANGUL.match(title) else 2 <= len(rest) <= 4):
                return (title,), (rest,)
        return (), words
    start = 0
    while start < len(words) - 2 and words[start] in _TITLES:
        start += 1
    if not start and words[0] in _RULERS and words[-1].isdigit():
        start = 1
    return words[:start], words[start:]


def _plain_person(name: str) -> tuple[str, ...]:
    """The words of a name without titles. A Korean name is the word that is no office: 예산분석관 김태완."""
    parts = name.split()
    if len(parts) > 1 and _HANGUL.match(name):
        found = [part for part in (parts[0], parts[-1]) if _is_korean_name(part)]
        if len(found) == 1 and (found[0] == parts[-1] or len(parts) == 2):
            return (found[0],)
    return _without_title(_words(name))[1]


def _is_korean_name(word: str) -> bool:
    """Three syllables, of which the first is a common surname and the last does not make it an office."""
    return len(word) == 3 and word[0] in _KOREAN_SURNAMES and word[-1] not in "장관사"


_HANGUL = regex.compile(r"\p{Hangul}")
_KOREAN_SURNAMES = frozenset(
    "김이박최정강조윤장임한오서신권황안송류유전홍고문양손배백허남심노하곽성차주우구민진지엄채원천방공"
    "현함변염여추도소석선설마길위표명기반왕금옥"
)


def _order_key(name: str, words: tuple[str, ...], type_: str) -> str:
    """A key that is equal for LEE, ANN and ANN LEE, and for four or more words in another order.

    Short words (OF, DE, IN) keep their places, and the words between them stay between them.
    """
    if type_ in ("PERSON", ""):
        surname, comma, given = name.partition(",")
        if comma and "," not in given and len(given.split()) == 1 and len(surname.split()) == 1:
            words = (*_words(given), *_words(surname))
        if _HANGUL.match(name) and " " in name:
            return " ".join(sorted(name.split()))
    if type_ == "CONCEPT" and len(words) == _MIN_REORDERED - 1:
        return " ".join([*sorted(words[:-1]), words[-1]])
    if type_ == "PERSON" or len(words) < _MIN_REORDERED:
        return " ".join(words)
    parts: list[list[str]] = [[]]
    for word in words:
        if len(word) <= 3:
            parts += [[word], []]
        else:
            parts[-1].append(word)
    return " ".join(" ".join(sorted(part)) for part in parts if part)


# Misspellings

_SOUNDS = (
    ("PH", "F"),
    ("CK", "K"),
    ("QU", "KW"),
    ("TH", "T"),
    ("C", "K"),
    ("Q", "K"),
    ("Y", "I"),
    ("Z", "S"),
    ("W", "V"),
)
_TWICE = regex.compile(r"(.)\1+")
_PARTICLES = _word_set("VAN VON DE DEL DER DI DA LA LE AL EL BIN IBN BEN")


def _sound(word: str) -> str:
    """A word with letters that often replace each other in transliterations written alike."""
    for letters, sound in _SOUNDS:
        word = word.replace(letters, sound)
    return str(_TWICE.sub(r"\1", word))


def _sound_key(words: tuple[str, ...], type_: str) -> str:
    if len(words) < 2 or type_ not in ("", *EXCLUSIVE_TYPES):
        return ""
    people = type_ == "PERSON"
    return " ".join("OF" if people and w in _OF else _sound(_without_accents(w)) for w in words)


_OF = _word_set("OF DE DI DA DU DEL VON VAN ZU")
_NO_GIVEN_NAMES = (
    _word_set(
        "EARL COUNT COUNTESS DUKE DUCHESS BARON BARONESS VISCOUNT MARQUESS MARQUIS LORD LADY PRINCE PRINCESS"
    )
    | _PARTICLES
    | _OF
    | _TITLES
    | _RULERS
)
"""Before the place that a person is from."""


def preferred(names: Sequence[tuple[str, str, int]]) -> str:
    """Return the canonical one of names (name, type, number of mentions) that stand for the same thing.

    The full name rather than a short one or an acronym, without title and legal form, then the frequent one.
    """
    one_spelling = len({"".join(_plain(name, type_)) for name, type_, _ in names}) == 1

    def rank(item: tuple[str, str, int]) -> tuple[object, ...]:
        name, type_, count = item
        words = _words(name)
        plain = _plain(name, type_)
        length = 0 if one_spelling else sum(len(w) if _CJK.match(w) else 1 for w in plain)
        initials = sum(len(w) == 1 for w in plain)
        return -length, initials, words != plain, -count, len(name), name

    return min(names, key=rank)[0]


def _plain(name: str, type_: str) -> tuple[str, ...]:
    words = _plain_person(name) if type_ in ("", "PERSON") else _words(name)
    if known := _WELL_KNOWN.get(" ".join(words)):
        return tuple(known.split())
    return _without_legal_form(words) if type_ in ("", "ORGANIZATION") else words


# Rules for the names of one document

_AMBIGUOUS = ""
_SMALL_WORDS = _word_set("OF THE AND FOR IN ON DE LA DU DES DER DIE UND ET Y")
_GENERIC = _word_set(
    """
    GROUP HOLDING HOLDINGS UNIVERSITY COLLEGE INSTITUTE FOUNDATION INTERNATIONAL TECHNOLOGIES
    TECHNOLOGY PHARMACEUTICALS AIRLINES AIRWAYS MOTORS BANK STUDIOS PRODUCTIONS PICTURES FILMS
    ENTERTAINMENT RECORDS
    """
)
_QUALIFIERS = _word_set("INTERNATIONAL REGIONAL MUNICIPAL")
_NOT_PEOPLE = _word_set(
    """
    HOUSE ESTATE CHURCH SCHOOL COLLEGE UNIVERSITY FOUNDATION INSTITUTE MUSEUM LIBRARY HOSPITAL AIRPORT STATION
    AWARD PRIZE CLUB COMPANY GROUP DESIGNS RECORDS PICTURES STUDIOS STREET ROAD AVENUE BRIDGE PARK COUNTY CITY
    CHIEF OFFICER DIRECTOR MANAGER ENGINEER SCIENTIST EDITOR TECHNOLOGY RIVER LAKE ISLAND IN AT ON FOR AND
    MEETS VERSUS VS
    """
)
"""Words of names that contain the name of a person but are no names of people, whatever their type says."""
_ACRONYM_IN_BRACKETS = regex.compile(r"\(()\s?(\p{Lu}[\p{L}\p{N}&.\-]{1,11})\s?[);,]")
_TERM_IN_BRACKETS = regex.compile(
    r"""[(（]((?:the |hereinafter |hereafter |referred to as |이하 ?|以下,?|以下简称|以下簡稱|下称){0,3})"""
    r"""["“'‘「｢『]([\p{L}\p{N}][^()（）"”'’」｣』]{0,60})["”'’」｣』](?:이?라 ?한다|という。?)?[)）]"""
)
_MAX_DEFINITIONS = 20
"""Of one term in a document."""
_BEFORE = 160
"""Characters before a bracket that may hold the full name."""
_MAX_STARTS = 16
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}][\p{L}\p{M}\p{N}&'’.\-]*|[「｢『《“]")


class _Clusters:
    """Names of a document that stand for the same thing: each has at most one target."""

    def __init__(self, types: Mapping[str, str], rules: Collection[str]) -> None:
        self.types = types
        self.words = {name: _words(name) for name in types}
        self.heads: dict[str, str] = {}
        """name -> the preferred of the names that `rule_keys` relates to it, if there is another"""
        self.targets: dict[str, tuple[str, str, str]] = {}
        """head -> (canonical, rule, evidence)"""
        groups = defaultdict(list)
        for name, type_ in types.items():
            for key in rule_keys(name, type_, rules):
                groups[key].append(name)
        for (rule, _), members in groups.items():
            if len(members) > 1:
                self._join(rule, members)

    def _join(self, rule: str, members: list[str]) -> None:
        heads = {self.head(n): None for n in members}
        first = preferred([(name, self.types[name], 1) for name in heads])
        for name in members:
            head = self.head(name)
            if head != first and may_merge(name, self.types[name], first, self.types[first], rule):
                self.heads[head] = first

    def head(self, name: str) -> str:
        return _follow(name, self.heads)

    def root(self, name: str) -> str:
        path = []
        name = self.head(name)
        while name in self.targets:
            path.append(name)
            name = self.head(self.targets[name][0])
        for other in path:
            self.targets[other] = (name, *self.targets[other][1:])
        return name

    def add(self, name: str, canonical: str, rule: str, evidence: str, is_sure: bool = False) -> None:
        """Make a name and its spellings an alias, unless they are one already: that would join two names."""
        head, root = self.head(name), self.root(canonical)
        if head in self.targets or head == root:
            return
        if is_sure or may_merge(name, self.types[name], canonical, self.types[canonical], rule):
            self.targets[head] = (root, rule, evidence)


def _follow(name: str, parents: dict[str, str]) -> str:
    """The last of a chain of parents, which is shortened."""
    path = []
    while name in parents:
        path.append(name)
        name = parents[name]
    for other in path:
        parents[other] = name
    return name


def document_aliases(
    names: Mapping[str, str], texts: Sequence[str], rules: Collection[str] = RULES
) -> list[NameAlias]:
    """Find names in one document that stand for the same thing as another name of this document.

    Args:
        names: The names in the document, with their types, or "" if unknown.
        texts: The chunks of the document.
        rules: The rules to apply.

    Returns:
        Aliases by name. No canonical name is itself an alias. Aliases that follow from `rule_keys` are used
        here but not returned.
    """
    types = {name: names[name] for name in sorted(names) if name and len(name) <= MAX_NAME}
    clusters = _Clusters(types, rules)
    if "spelling" in rules:
        _add_spellings(clusters)
    if "order" in rules:
        _add_surnames_first(clusters)
    if "plural" in rules:
        _add_plurals(clusters, texts)
    if "misspelling" in rules:
        _add_misspellings(clusters)
    if "acronym" in rules:
        _add_definitions(clusters, texts)
        _add_initials(clusters, texts)
    if "short_name" in rules:
        _add_short_names(clusters)
        _add_glosses(clusters)
    found = []
    for name in types:
        head = clusters.head(name)
        if head in clusters.targets:
            _, rule, evidence = clusters.targets[head]
            found.append(NameAlias(name, clusters.root(name), rule, evidence[:MAX_EVIDENCE]))
    return found


def merge_document_aliases(aliases: Iterable[NameAlias]) -> list[NameAlias]:
    """Return the aliases of documents that hold in the whole corpus.

    All documents that have an alias for the name must agree. Short names hold in their documents only, except
    those of organizations (STANFORD) of which two documents have the full name. So do acronyms of two letters
    that only one document spells out, and of three letters that only one knows and none spells out.

    Args:
        aliases: Those of all documents, such that all of one name are together.
    """
    by_name: dict[str, list[NameAlias]] = defaultdict(list)
    for alias in aliases:
        by_name[alias.name].append(alias)
    agreed = []
    for name, found in sorted(by_name.items()):
        strong = [alias for alias in found if alias.evidence.startswith((_DEFINED_AS, _NEARBY))]
        best = min(found, key=lambda a: (a not in strong, a.evidence))
        is_known = {
            "acronym": len(name) > 3 or len(found) > 1 or (len(name) > 2 and bool(strong)),
            "short_name": len(found) > 1 and best.evidence == _ORGANIZATION_IN_FULL,
        }
        agree = len({alias[1:3] for alias in found}) == 1
        if agree and is_known.get(best.rule, best.rule in _CORPUS_RULES):
            agreed.append(best)
    return agreed


_CORPUS_RULES = frozenset({"plural", "order", "misspelling"})
_DEFINED_AS = "defined as "
_FULL_NAME = "the only full name in the document that contains it"
_ORGANIZATION_IN_FULL = "the only organization in the document with this name and a generic word"
_NEARBY = "spelled out nearby: "


def _unique_targets(clusters: _Clusters, keys: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each key to its name, or to _AMBIGUOUS if there are names of several things."""
    unique: dict[str, str] = {}
    for key, name in keys:
        if key not in unique:
            unique[key] = name
        elif unique[key] != _AMBIGUOUS and clusters.root(unique[key]) != clusters.root(name):
            unique[key] = _AMBIGUOUS
    return unique


def _add_spellings(clusters: _Clusters) -> None:
    groups = defaultdict(list)
    for name in clusters.types:
        groups[clusters.words[name]].append(name)
    for names in groups.values():
        first = preferred([(name, clusters.types[name], 1) for name in names])
        for name in names:
            clusters.add(name, first, "spelling", "the same words in the same document", is_sure=True)


def _add_plurals(clusters: _Clusters, texts: Sequence[str]) -> None:
    """Plurals, except of surnames, which are families, of short words (BRIC / BRICS), and of proper names.

    A single word is no proper name if the text has it with an article: a Viking, but not a Google.
    """
    counted = {match[1].upper() for text in texts for match in _COUNTED.finditer(text)}
    surnames = {clusters.words[name][-1] for name, type_ in clusters.types.items() if type_ == "PERSON"}
    groups = defaultdict(list)
    for name, type_ in clusters.types.items():
        words = clusters.words[name]
        singular = _singular(words[-1])
        is_proper = len(words) == 1 and type_ not in ("", "CONCEPT") and singular not in counted
        if (
            type_ not in ("PERSON", "LOCATION")
            and len(singular) > 4
            and singular not in surnames
            and not is_proper
        ):
            groups[*words[:-1], singular].append(name)
    for names in groups.values():
        first = preferred([(name, clusters.types[name], 1) for name in names])
        for name in names:
            clusters.add(name, first, "plural", "singular and plural in the same document")


_COUNTED = regex.compile(r"\b(?:[Aa]n?|[Ee]ach|[Ee]very|[Aa]nother|[Oo]ne)\s(\p{Lu}\p{L}*)")


def _add_surnames_first(clusters: _Clusters) -> None:
    """DAN IOSIF / IOSIF DAN, TUKARAM GANGADHAR GADAKH / GADAKH TUKARAM GANGADHAR."""
    people = [(clusters.words[name], name) for name, type_ in clusters.types.items() if type_ == "PERSON"]
    known = dict(reversed(people))
    for words, name in people:
        reordered = known.get((words[-1], *words[:-1])) if len(words) > 1 else None
        if reordered and reordered != name:
            clusters.add(
                name, reordered, "order", "the same words with the surname first in the same document"
            )


def _add_misspellings(clusters: _Clusters) -> None:
    """Names of which one word differs by a letter that is not the first one, or a surname by two letters."""
    names = {words: name for name, words in clusters.words.items()}
    names = {
        w: n for w, n in names.items() if clusters.types[n] in ("", *EXCLUSIVE_TYPES) and 2 <= len(w) <= 6
    }
    people = {w: n for w, n in names.items() if clusters.types[n] == "PERSON"}
    for words in [w for w in people if _NO_GIVEN_NAMES.issuperset(w[:-1])]:
        del names[words], people[words]  # EARL OF HERTFORD / EARL OF HEREFORD
    for pairs, letters in (
        (_one_letter_apart(names), "one letter"),
        (_close_surnames(people), "two letters"),
    ):
        for a, b in pairs:
            if clusters.root(names[a]) == names[a] and clusters.root(names[b]) == names[b]:
                evidence = f"differs by {letters} in the same document"
                clusters.add(names[b], names[a], "misspelling", evidence)


_WordPairs = Iterator[tuple[tuple[str, ...], tuple[str, ...]]]


def _one_letter_apart(names: Mapping[tuple[str, ...], str]) -> _WordPairs:
    """Yield names that are equal without one letter of one word."""
    similar = defaultdict(list)
    for words in sorted(names):
        for n, word in enumerate(words):
            if 4 <= len(word) <= 30:
                others = (*words[:n], "", *words[n + 1 :])
                cuts = range(1, len(word)) if len(word) > 4 else ()
                for shorter in sorted({word, *(word[:i] + word[i + 1 :] for i in cuts)}):
                    similar[others, shorter].append(words)
    for (others, _), members in similar.items():
        n = others.index("")
        if len(members) == 2 and _is_slip(members[0][n], members[1][n], is_first=n == 0):
            yield members[0], members[1]


def _close_surnames(people: Mapping[tuple[str, ...], str]) -> _WordPairs:
    """Yield people with equal given names and long surnames that differ by two letters."""
    groups = defaultdict(list)
    for words in sorted(people):
        if len(words[-1]) >= 6:
            groups[words[:-1], words[-1][0]].append(words)
    for members in groups.values():
        if len(members) <= _MAX_SIMILAR:
            for a, b in combinations(members, 2):
                if OSA.distance(a[-1], b[-1], score_cutoff=2) <= 2:
                    yield a, b


_MAX_SIMILAR = 4
"""More people with one given name are not compared."""


def _is_slip(a: str, b: str, is_first: bool) -> bool:
    """Whether a difference of one letter is likely to be a mistake.

    Another ending may make an adjective (SOUTH AUSTRALIA, SOUTH AUSTRALIAN) or another given name (MARIO and
    MARIA), and so may another consonant (PARVIZ and PARVIN). In surnames, all letters may be mistaken.
    """
    if a[-1] != b[-1]:
        return False
    return len(a) != len(b) or not is_first or {*zip(a, b, strict=True)} - _VOWEL_PAIRS <= {(c, c) for c in a}


_VOWEL_PAIRS = {(c, d) for c in "AEIOUY" for d in "AEIOUY"}


def _add_definitions(clusters: _Clusters, texts: Sequence[str]) -> None:
    """Acronyms and quoted terms in brackets after the name that they stand for."""
    known = {words: name for name, words in reversed(clusters.words.items())}
    fulls: dict[str, dict[str, str]] = defaultdict(dict)
    count: dict[str, int] = defaultdict(int)
    for text in texts:
        for pattern in (_ACRONYM_IN_BRACKETS, _TERM_IN_BRACKETS):
            is_quoted = pattern is _TERM_IN_BRACKETS
            for match in pattern.finditer(text):
                term = known.get(_words(match[2])) or known.get(_words(match[2].removesuffix("s")))
                if not term or count[term] >= _MAX_DEFINITIONS:
                    continue
                count[term] += 1
                before = text[max(0, match.start() - _BEFORE) : match.start()].rstrip()
                start, full = _name_at_end(before, known, term, is_quoted, is_named=bool(match[1]))
                if full:
                    quote = " ".join(f"{before[start:]} {match[0]}"[-150:].split())
                    fulls[term].setdefault(clusters.root(full), f'{_DEFINED_AS}"{quote}"')
    for term, found in sorted(fulls.items()):
        if len(found) == 1:
            ((full, evidence),) = found.items()
            clusters.add(term, full, "acronym", evidence, is_sure=True)


def _name_at_end(
    before: str, known: Mapping[tuple[str, ...], str], term: str, is_quoted: bool, is_named: bool
) -> tuple[int, str]:
    """Return where the name that a term in brackets stands for starts before the bracket, and the name.

    The letters of an acronym must be the initials of the name, except of one in another script. Other terms
    must be quoted and part of the name, or introduced: (the "Company").
    """
    longest = 0, "?"
    for match in [*_WORD.finditer(before)][: -_MAX_STARTS - 1 : -1]:
        name = known.get(_words(before[match.start() :]), "")
        if name and name != term:
            if _spells(term, _words(name)):
                return match.start(), name
            longest = match.start(), name
    if longest[1] == "?":
        return 0, ""
    other_script = (
        term.isascii() and _is_acronym(term) and not any(c.isascii() and c.isalpha() for c in longest[1])
    )
    is_part = len(_words(term)) < len(_words(longest[1])) and {*_words(term)} <= {*_words(longest[1])}
    return longest if is_named or other_script or (is_quoted and is_part) else (0, "")


def _is_acronym(term: str) -> bool:
    return len(term) <= 8 and term.isalpha()


def _initials(words: Sequence[str]) -> set[str]:
    return {"".join(w[0] for w in words), "".join(w[0] for w in words if w not in _SMALL_WORDS)}


def _spells(acronym: str, words: Sequence[str]) -> bool:
    return len(words) > 1 and "".join(c for c in acronym if c.isalnum()) in _initials(words)


def _add_initials(clusters: _Clusters, texts: Sequence[str]) -> None:
    """Acronyms and the only name with these initials. Two letters are enough only if the name is near."""
    fulls = (
        (initials, name)
        for name, type_ in clusters.types.items()
        if type_ != "PERSON" and 2 <= len(words := clusters.words[name]) <= _MAX_INITIALS
        for initials in _initials(words)
        if len(initials) >= 2 and initials not in words
    )
    unique = _unique_targets(clusters, fulls)
    found = {
        name: full
        for name, type_ in clusters.types.items()
        if type_ != "PERSON" and "." not in name and (full := unique.get(" ".join(clusters.words[name])))
    }
    near = _quotes_of_both(
        {clusters.words[name][0]: clusters.words[full] for name, full in found.items()}, texts
    )
    for name, full in found.items():
        if quote := near.get(clusters.words[name][0]):
            clusters.add(name, full, "acronym", f'{_NEARBY}"{quote}"')
        elif len(clusters.words[name][0]) > 2:
            clusters.add(name, full, "acronym", "the only name in the document with these initials")


_MAX_INITIALS = 12
_MAX_DISTANCE = 300
"""Characters between an acronym and its full name that are near."""
_TOKEN = regex.compile(r"[\p{L}\p{M}\p{N}]+")


def _quotes_of_both(fulls: Mapping[str, tuple[str, ...]], texts: Sequence[str]) -> dict[str, str]:
    """Return the shortest quote in which each acronym and its full name occur near each other."""
    acronyms = {full: acronym for acronym, full in fulls.items()}
    lengths = sorted({len(full) for full in acronyms})
    last_words = {full[-1] for full in acronyms}
    quotes: dict[str, str] = {}
    for text in texts if fulls else ():
        spans: dict[tuple[str, bool], tuple[int, int]] = {}
        window: deque[tuple[str, int]] = deque(maxlen=_MAX_INITIALS)
        for token in _TOKEN.finditer(text):
            word = token[0].upper()
            window.append((word, token.start()))
            seen = [(token[0], True, token.start())] if token[0] in fulls else []
            if word in last_words:
                recent = list(window)
                for n in lengths:
                    part = recent[-n:]
                    if acronym := acronyms.get(tuple(w for w, _ in part)):
                        seen.append((acronym, False, part[0][1]))
            for acronym, is_short, start in seen:
                spans[acronym, is_short] = start, token.end()
                other = spans.get((acronym, not is_short))
                if other and start - other[1] <= _MAX_DISTANCE:
                    quote = " ".join(text[min(start, other[0]) : token.end()].split())
                    if acronym not in quotes or len(quote) < len(quotes[acronym]):
                        quotes[acronym] = quote
    return quotes


def _add_short_names(clusters: _Clusters) -> None:
    """Parts of names, from the longest to the shortest name."""
    plain = {}
    for name, words in clusters.words.items():
        titles, rest = _without_title(words) if clusters.types[name] in ("", "PERSON") else ((), words)
        if len(rest) == 2 and rest[0] in _TITLES:
            titles, rest = rest[:1], rest[1:]
        plain[name] = titles, rest
    unique: dict[str, str] = {}
    for name in sorted(plain, key=lambda n: (-len(plain[n][1]), -len(n), n)):
        titles, words = plain[name]
        type_ = clusters.types[name]
        full = unique.get(f"{type_ or 'PERSON'} {' '.join(words)}", "")
        if full and not _WOMEN.intersection(titles):  # MRS BENNET is not the only person with this name.
            evidence = _ORGANIZATION_IN_FULL if type_ == "ORGANIZATION" else _FULL_NAME
            clusters.add(name, full, "short_name", evidence)
        root = clusters.root(name)
        for short in _short_forms(name, words, type_):
            if unique.setdefault(short, root) != root and clusters.root(unique[short]) != root:
                unique[short] = _AMBIGUOUS


def _short_forms(name: str, words: tuple[str, ...], type_: str) -> set[str]:
    """The names by which a document may refer to a full name, after its type."""
    forms: set[tuple[str, ...]] = set()
    if type_ == "PERSON":
        forms = _short_forms_of_person(name, words)
    elif type_ == "ORGANIZATION" and len(words) > 1 and words[-1] in _GENERIC:
        forms.add(words[:-1])
    if type_ in ("LOCATION", "ORGANIZATION") and len(words) > 2:
        forms.add(tuple(w for n, w in enumerate(words) if w not in _QUALIFIERS or not 0 < n < len(words) - 1))
    return {f"{type_} {' '.join(form)}" for form in forms if form != words}


def _short_forms_of_person(name: str, words: tuple[str, ...]) -> set[tuple[str, ...]]:
    if not 1 < len(words) <= 8 or _NOT_PEOPLE.intersection(words):
        return set()
    # Names are cut at spaces only: JEAN-BAPTISTE LULLY is no JEAN.
    cuts = [n for n in range(1, len(words)) if f"{words[n - 1]}-{words[n]}" not in name]
    forms = {words[:n] for n in cuts}
    forms |= {
        words[n:] for n in cuts if n == len(words) - 1 or words[n] in _PARTICLES or len(words[n - 1]) == 1
    }
    if len(words[0]) > 2 and len(words[-1]) > 2 and len(words) - 1 in cuts:
        forms |= {(words[0], words[-1]), (words[0][0], words[-1])}
        forms.add(("".join(w[0] for w in words[:-1]), words[-1]))
    not_after = {words[n:] for n in cuts if words[n - 1] in ("OF", "BIN", "IBN", "BINT", "BEN")}
    return {f for f in forms - not_after if len(f) > 1 or (len(f[0]) > 1 and f[0] not in _PARTICLES)}


def _add_glosses(clusters: _Clusters) -> None:
    """A name with an explanation in brackets, if there is only one: 제10조의2(신상정보 제공) / 제10조의2."""
    glosses = defaultdict(list)
    for name, type_ in clusters.types.items():
        base = name[: name.rfind("(")].rstrip() if name.endswith(")") else ""
        if clusters.types.get(base) == type_:
            glosses[base].append(name)
    for base, names in glosses.items():
        if len(names) == 1:
            clusters.add(names[0], base, "short_name", "the same name with an explanation in brackets")
