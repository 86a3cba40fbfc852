"""Rules by which two names of entities stand for the same thing, without a model.

Names are entity keys (`base/ids.entity_key`). There are two kinds of rules. Those of the first kind compare two
names anywhere in a corpus: `rule_keys` returns keys that are equal for names that may be merged, and `may_merge`
holds the guards. Those of the second kind need a document: `document_aliases` reads its text and its names.

spelling      widths, quotation marks, hyphens, dots of initials, vowel points, spaces in Chinese, Japanese and Korean
spacing       OPEN AI / OPENAI
accents       SÃO PAULO / SAO PAULO
abbreviation  ST LOUIS / SAINT LOUIS, U.S. / UNITED STATES
plural        COMPUTER / COMPUTERS, FORM 10-Q / FORMS 10-Q
legal_form    ELI LILLY / ELI LILLY AND COMPANY
title         DR SATYA NADELLA / SATYA NADELLA
order         LEE, ANN / ANN LEE; four or more words in another order
misspelling   OSCAR BLUMENTHAL / OSKAR BLUMENTHAL; in a document also other names that differ by one letter
acronym       document: Securities and Exchange Commission (SEC); or the only full name with these initials
short_name    document: the only full name that contains it: NADELLA / SATYA NADELLA
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import regex

from graphrag_ray.base.ids import UNSPACED_SCRIPT, limit_combining_marks

RULES = (
    *("spelling", "spacing", "accents", "abbreviation", "plural", "legal_form", "title", "order"),
    *("misspelling", "acronym", "short_name"),
)
"""The names of all rules."""
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

_NAMED = frozenset({"PERSON", "ORGANIZATION", "LOCATION"})
"""Types that exclude each other. Models use the others less consistently."""
_DROPPED = regex.compile(r"['’‘`´ʼʻʹ\u064b-\u065f\u0670\u0640\u0591-\u05c7]")
"""Apostrophes, and vowel points of Arabic and Hebrew, which are optional."""
_SEPARATORS = regex.compile(r"[\p{Pi}\p{Pf}\p{Ps}\p{Pe}\p{Pd}\"_/・·ㆍ,;:!?、，。]")
_INITIALS = regex.compile(r"(?<![\p{L}\p{M}.])\p{L}\.(?:\s?\p{L}\.)*(?:\p{L}(?![\p{L}\p{M}]))?")
_ONE_LETTER = str.maketrans({"Ё": "Е", "أ": "ا", "إ": "ا", "آ": "ا", "ى": "ي", "ς": "Σ", "İ": "I"})
"""Letters that are written interchangeably."""
_GREEK = regex.compile(r"\p{Greek}+")
_CJK = regex.compile(r"[\p{Hangul}\p{Han}\p{Hiragana}\p{Katakana}]")
_NUMBER_SIGN = regex.compile(r"(?:\bNO\.?|№|\bNUMBER|#) ?(?=\d)|(?<=\d)[호号號]$")
_ROMAN = regex.compile(r"C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_DIGITS = regex.compile(r"\d+")


def _is_spaced_apart(left: str, right: str) -> bool:
    """Whether a space between two characters matters: not next to Chinese, Japanese, Korean or Thai."""
    return not any(_CJK.match(c) or UNSPACED_SCRIPT.match(c) for c in (left, right))


@lru_cache(maxsize=1 << 14)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name such that they are equal for spellings of one name."""
    text = unicodedata.normalize("NFKC", limit_combining_marks(name)).upper().translate(_ONE_LETTER)
    text = _GREEK.sub(lambda m: _without_marks(m[0]), text)
    text = _SEPARATORS.sub(" ", _DROPPED.sub("", text))
    text = _INITIALS.sub(lambda m: m[0].replace(".", "").replace(" ", "") + " ", text)
    text = _NUMBER_SIGN.sub("", text.strip())
    words: list[str] = []
    for word in text.split():
        word = word.strip(".") or word
        if words and not _is_spaced_apart(words[-1][-1], word[0]):
            words[-1] += word
        else:
            words.append("AND" if word == "&" else str(_roman(word)) if words and _roman(word) else word)
    if len(words) > 1 and words[0] == "THE":
        del words[0]
    return tuple(words) or (name,)


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

_LEGAL_FORMS = frozenset(
    [
        "INC",
        "INCORPORATED",
        "CORP",
        "CORPORATION",
        "CO",
        "COMPANY",
        "LTD",
        "LIMITED",
        "LLC",
        "LLP",
        "LP",
        "PLC",
        "GMBH",
        "AG",
        "KG",
        "KGAA",
        "EV",
        "SE",
        "SA",
        "SAS",
        "SARL",
        "SRL",
        "SPA",
        "NV",
        "BV",
        "AB",
        "ASA",
        "AS",
        "OY",
        "OYJ",
        "APS",
        "KK",
        "PTY",
        "PTE",
        "PVT",
        "BHD",
        "SDN",
        "TBK",
        "JSC",
        "OJSC",
        "PJSC",
        "OOO",
        "OAO",
        "ZAO",
        "ПАО",
        "ООО",
        "ОАО",
        "ЗАО",
        "АО",
    ]
)
_CJK_LEGAL_FORMS = (
    *("株式会社", "有限会社", "合同会社", "股份有限公司", "有限责任公司", "有限公司"),
    *("주식회사", "유한회사", "(주)"),
)
_JOINS = frozenset({"AND", "&", "ET", "UND", "Y", "E", "OG", "OCH"})
_TITLES = frozenset(
    [
        "MR",
        "MRS",
        "MS",
        "MISS",
        "MX",
        "DR",
        "PROF",
        "PROFESSOR",
        "SIR",
        "DAME",
        "HON",
        "HONORABLE",
        "HONOURABLE",
        "REV",
        "REVEREND",
        "PRESIDENT",
        "SENATOR",
        "SEN",
        "CONGRESSMAN",
        "CONGRESSWOMAN",
        "REPRESENTATIVE",
        "REP",
        "GOVERNOR",
        "GOV",
        "MAYOR",
        "MINISTER",
        "JUDGE",
        "JUSTICE",
        "CHANCELLOR",
        "GENERAL",
        "GEN",
        "COLONEL",
        "COL",
        "MAJOR",
        "MAJ",
        "CAPTAIN",
        "CAPT",
        "LIEUTENANT",
        "LT",
        "SERGEANT",
        "SGT",
        "CORPORAL",
        "ADMIRAL",
        "COMMANDER",
        "AMBASSADOR",
        "SECRETARY",
        "BISHOP",
        "ARCHBISHOP",
        "CARDINAL",
        "RABBI",
        "IMAM",
        "SHEIKH",
        "HERR",
        "FRAU",
        "MONSIEUR",
        "MADAME",
        "MME",
        "MLLE",
        "SEÑOR",
        "SEÑORA",
        "SIGNOR",
        "SIGNORA",
        "ГОСПОДИН",
        "ГОСПОЖА",
        "ДОКТОР",
        "ПРОФЕССОР",
        "ПРЕЗИДЕНТ",
    ]
)
_RULERS = frozenset(["KING", "QUEEN", "EMPEROR", "EMPRESS", "POPE", "TSAR", "CZAR", "SULTAN", "KAISER"])
"""Titles that are left out only before a numbered name: KING EDWARD VII."""
_WOMEN = frozenset(
    ["MRS", "MISS", "MS", "LADY", "DAME", "FRAU", "MADAME", "MME", "MLLE", "SEÑORA", "SIGNORA", "ГОСПОЖА"]
)
_MEN = frozenset(["MR", "SIR", "LORD", "HERR", "MONSIEUR", "SEÑOR", "SIGNOR", "ГОСПОДИН"])
_CJK_TITLES = (
    *(
        "국회의원",
        "의원",
        "대통령",
        "위원장",
        "장관",
        "차관",
        "총리",
        "교수",
        "박사",
        "회장",
        "사장",
        "대표",
        "팀장",
        "씨",
    ),
    *(
        "先生",
        "女士",
        "教授",
        "博士",
        "总统",
        "總統",
        "主席",
        "总理",
        "總理",
        "議員",
        "首相",
        "大統領",
        "さん",
        "氏",
        "様",
    ),
)
_ABBREVIATIONS = {
    ("ST",): "SAINT",
    ("STE",): "SAINTE",
    ("MT",): "MOUNT",
    ("FT",): "FORT",
    ("UNIV",): "UNIVERSITY",
    ("DEPT",): "DEPARTMENT",
    ("GOVT",): "GOVERNMENT",
    ("INTL",): "INTERNATIONAL",
    ("ASSN",): "ASSOCIATION",
    ("BROS",): "BROTHERS",
}
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
    keys = {
        "spelling": lambda: " ".join(words),
        "spacing": lambda: _spacing_key(words),
        "accents": lambda: _without_accents(" ".join(words)),
        "abbreviation": lambda: _abbreviation_key(words),
        "plural": lambda: _plural_key(words, type_),
        "legal_form": lambda: " ".join(_without_legal_form(words)) if type_ in ("", "ORGANIZATION") else "",
        "title": lambda: " ".join(_without_title(words)[1]) if type_ in ("", "PERSON") else "",
        "order": lambda: _order_key(name, words, type_),
        "misspelling": lambda: _sound_key(words, type_),
    }
    for rule, key in keys.items():
        if rule in rules and (found := key()):
            yield rule, found


def may_merge(a: str, type_a: str, b: str, type_b: str, rule: str) -> bool:
    """Whether two names may stand for the same thing, given that a rule says so.

    Conflicting types, different numbers and JUNIOR against SENIOR speak against it. Types do not count for
    spellings of one name, because equal names are merged whatever their types.
    """
    words_a, words_b = _words(a), _words(b)
    if rule != "spelling" and not (rule == "abbreviation" and _is_well_known(words_a, words_b)):
        if _conflict(type_a, type_b):
            return False
    if rule != "acronym" and numbers(a) != numbers(b):
        return False
    if {w[0] for w in _GENERATIONS.intersection(words_a)} != {
        w[0] for w in _GENERATIONS.intersection(words_b)
    }:
        return rule in ("acronym", "short_name") and min(len(words_a), len(words_b)) == 1
    titles = [set(_without_title(words)[0]) for words in (words_a, words_b)]
    if any(titles[0] & _MEN and titles[1] & _WOMEN for titles in (titles, titles[::-1])):
        return False
    if rule == "accents":
        plain = " ".join(words_a), " ".join(words_b)
        return plain[0] == plain[1] or any(_without_accents(p) == p for p in plain)
    if rule == "misspelling":
        return _is_misspelling(words_a, words_b)
    return True


def _conflict(type_a: str, type_b: str) -> bool:
    return type_a != type_b and {type_a, type_b} <= _NAMED


def _is_well_known(*names: tuple[str, ...]) -> bool:
    known = {*_WELL_KNOWN, *_WELL_KNOWN.values()}
    return all(" ".join(words) in known for words in names)


def _spacing_key(words: tuple[str, ...]) -> str:
    """The name without spaces, except between digits."""
    key = ""
    for word in words:
        key += f" {word}" if key and key[-1].isdigit() and word[0].isdigit() else word
    return key if len(key) >= 5 else ""


def _abbreviation_key(words: tuple[str, ...]) -> str:
    key = " ".join(
        _ABBREVIATIONS.get((w,), w) if n < len(words) - 1 or n == 0 < len(words) - 1 else w
        for n, w in enumerate(words)
    )
    return _WELL_KNOWN.get(key, key)


def _plural_key(words: tuple[str, ...], type_: str) -> str:
    """The singular of the last word, and of the word before a number. Not in names of people and places."""
    if type_ in ("PERSON", "LOCATION") or (type_ == "ORGANIZATION" and len(words) == 1):
        return ""
    last = len(words) - 1
    if last and _DIGITS.search(words[last]):
        return " ".join([*words[: last - 1], _singular(words[last - 1]), words[last]])
    return " ".join([*words[:last], _singular(words[last])])


def _singular(word: str) -> str:
    """The singular of an English word, roughly."""
    if not word.isascii() or len(word) < 4 or not word.endswith("S") or word.endswith(("SS", "US", "IS")):
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
            if rest != words[0] and 2 <= len(rest) <= 4 and _CJK.match(rest[-1]):
                return (title,), (rest,)
        return (), words
    start = 0
    while start < len(words) - 2 and words[start] in _TITLES:
        start += 1
    if not start and words[0] in _RULERS and words[-1].isdigit():
        start = 1
    return words[:start], words[start:]


def _order_key(name: str, words: tuple[str, ...], type_: str) -> str:
    """A key that is equal for LEE, ANN and ANN LEE, and for four or more words in another order.

    Short words (OF, DE, IN) keep their places, and the words between them stay between them.
    """
    if type_ in ("PERSON", ""):
        surname, comma, given = name.partition(",")
        if comma and "," not in given and len(given.split()) == 1 and len(surname.split()) == 1:
            words = (*_words(given), *_words(surname))
        if _CJK.match(name) and " " in name:
            return " ".join(sorted(name.split()))
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
_PARTICLES = frozenset(
    ["VAN", "VON", "DE", "DEL", "DER", "DI", "DA", "LA", "LE", "AL", "EL", "BIN", "IBN", "BEN"]
)


def _sound(word: str) -> str:
    """A word with letters that often replace each other in transliterations written alike."""
    for letters, sound in _SOUNDS:
        word = word.replace(letters, sound)
    return _TWICE.sub(r"\1", word)


def _sound_key(words: tuple[str, ...], type_: str) -> str:
    if len(words) < 2 or type_ not in ("", *_NAMED):
        return ""
    return " ".join(_sound(_without_accents(word)) for word in words)


def _is_misspelling(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether names differ in one word of at least four letters and have a longer one in common."""
    if len(a) != len(b):
        return False
    different = [pair for pair in zip(a, b, strict=True) if pair[0] != pair[1]]
    same = [x for x, y in zip(a, b, strict=True) if x == y and x not in _PARTICLES]
    return len(different) == 1 and min(map(len, different[0])) >= 4 and max(map(len, same), default=0) >= 3


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
        return -length, initials, len(words) - len(plain), -count, len(name), name

    return min(names, key=rank)[0]


def _plain(name: str, type_: str) -> tuple[str, ...]:
    words = _without_title(_words(name))[1] if type_ in ("", "PERSON") else _words(name)
    return _without_legal_form(words) if type_ in ("", "ORGANIZATION") else words


# Rules for the names of one document

_AMBIGUOUS = ""
_SMALL_WORDS = frozenset(
    ["OF", "THE", "AND", "FOR", "IN", "ON", "DE", "LA", "DU", "DES", "DER", "DIE", "UND", "ET", "Y"]
)
_GENERIC = frozenset(
    [
        "GROUP",
        "HOLDING",
        "HOLDINGS",
        "UNIVERSITY",
        "COLLEGE",
        "INSTITUTE",
        "FOUNDATION",
        "INTERNATIONAL",
        "TECHNOLOGIES",
        "TECHNOLOGY",
        "PHARMACEUTICALS",
        "AIRLINES",
        "AIRWAYS",
        "MOTORS",
        "BANK",
    ]
)
_QUALIFIERS = frozenset(["INTERNATIONAL", "REGIONAL", "MUNICIPAL", "NATIONAL"])
_DEFINED = regex.compile(
    r"\((?:the |hereinafter |hereafter |referred to as |also known as |이하 ?|以下,?|以下简称|以下簡稱|下称){0,3}"
    r"[\"“”'‘’「｢『«]?([\p{L}\p{N}][\p{L}\p{M}\p{N}&.\- ]{0,60})[\"“”'‘’」｣』»]?(?:이?라 ?한다|という。?|;[^()]{0,80}|,[^()]{0,80})?\)"
)
_MAX_DEFINITIONS = 20
"""Of one term in a document."""
_BEFORE = 160
_MAX_STARTS = 40
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}&'’.\-]+")


class _Clusters:
    """Names of a document that stand for the same thing: each has at most one target."""

    def __init__(self, types: Mapping[str, str], rules: Collection[str]) -> None:
        self.types = types
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
        name = self.head(name)
        while name in self.targets:
            name = self.head(self.targets[name][0])
        return name

    def add(self, name: str, canonical: str, rule: str, evidence: str) -> None:
        """Make a name and its spellings an alias, unless they are one already: that would join two names."""
        head, root = self.head(name), self.root(canonical)
        if head in self.targets or head == root:
            return
        if may_merge(name, self.types[name], canonical, self.types[canonical], rule):
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
    """Find names of one document that stand for the same thing as another name of this document.

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
    if "order" in rules:
        _add_surnames_first(clusters)
    if "misspelling" in rules:
        _add_misspellings(clusters)
    if "acronym" in rules:
        _add_definitions(clusters, texts)
        _add_initials(clusters)
    if "short_name" in rules:
        _add_short_names(clusters)
    found = []
    for name in types:
        head = clusters.head(name)
        if head in clusters.targets:
            _, rule, evidence = clusters.targets[head]
            found.append(NameAlias(name, clusters.root(name), rule, evidence[:MAX_EVIDENCE]))
    return found


def merge_document_aliases(aliases: Iterable[NameAlias]) -> list[NameAlias]:
    """Return the acronyms that hold in the whole corpus: all documents that know one agree.

    Args:
        aliases: Those of all documents, grouped in any way such that all of one name are together.
    """
    by_name: dict[str, set[NameAlias]] = defaultdict(set)
    for alias in aliases:
        by_name[alias.name].add(alias)
    agreed = []
    for _, found in sorted(by_name.items()):
        if len({a.canonical for a in found}) == 1 and any(a.evidence.startswith(_DEFINED_AS) for a in found):
            agreed.append(min(a for a in found if a.evidence.startswith(_DEFINED_AS)))
    return agreed


_DEFINED_AS = "defined as "


def _unique_targets(clusters: _Clusters, keys: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each key to its name, or to _AMBIGUOUS if there are names of several things."""
    unique: dict[str, str] = {}
    for key, name in keys:
        if key not in unique:
            unique[key] = name
        elif unique[key] != _AMBIGUOUS and clusters.root(unique[key]) != clusters.root(name):
            unique[key] = _AMBIGUOUS
    return unique


def _add_surnames_first(clusters: _Clusters) -> None:
    """DAN IOSIF / IOSIF DAN, TUKARAM GANGADHAR GADAKH / GADAKH TUKARAM GANGADHAR."""
    people = [(_words(name), name) for name, type_ in clusters.types.items() if type_ == "PERSON"]
    known = dict(reversed(people))
    for words, name in people:
        reordered = known.get((words[-1], *words[:-1])) if len(words) > 1 else None
        if reordered and reordered != name:
            clusters.add(
                name, reordered, "order", "the same words with the surname first in the same document"
            )


def _add_misspellings(clusters: _Clusters) -> None:
    """Names that differ by one letter of one word."""
    similar = defaultdict(list)
    for name, type_ in clusters.types.items():
        words = _words(name)
        if type_ in ("", *_NAMED) and 2 <= len(words) <= 6:
            for n, word in enumerate(words):
                if 5 <= len(word) <= 30:
                    others = (*words[:n], "", *words[n + 1 :])
                    for letter in range(1, len(word)):
                        similar[others, word[:letter] + word[letter + 1 :]].append(name)
    for members in similar.values():
        if len(members) == 2:
            a, b = members
            clusters.add(b, a, "misspelling", "differs by one letter in the same document")


def _add_definitions(clusters: _Clusters, texts: Sequence[str]) -> None:
    """Terms in brackets after the name that they abbreviate."""
    known = dict(reversed([(_words(name), name) for name in clusters.types]))
    defined: dict[str, dict[str, str]] = defaultdict(dict)
    count: dict[str, int] = defaultdict(int)
    for text in texts:
        for match in _DEFINED.finditer(text):
            inside = match[1].strip()
            term = known.get(_words(inside)) or known.get(_words(inside.removesuffix("s")))
            if not term or count[term] >= _MAX_DEFINITIONS:
                continue
            count[term] += 1
            before = text[max(0, match.start() - _BEFORE) : match.start()].rstrip()
            if full := _name_at_end(before, known, term, explicit=not _is_acronym(inside)):
                defined[term].setdefault(clusters.root(full), f'{_DEFINED_AS}"{before[-120:]} {match[0]}"')
    for term, fulls in sorted(defined.items()):
        if len(fulls) == 1:
            ((full, evidence),) = fulls.items()
            clusters.add(term, full, "acronym", evidence)


def _is_acronym(text: str) -> bool:
    return len(text) <= 12 and sum(c.isupper() for c in text) >= 2


def _name_at_end(before: str, known: Mapping[tuple[str, ...], str], term: str, explicit: bool) -> str:
    """The name of an entity at the end of a text that a term in brackets after it stands for."""
    starts = [m.start() for m in _WORD.finditer(before)][-12:]
    found = ""
    for start in reversed(starts):
        name = known.get(_words(before[start:]), "")
        if name and name != term:
            if _spells(term, _words(name)):
                return name
            found = found or name
    return found if explicit or (found and not found.isascii() and term.isascii()) else ""


def _initials(words: Sequence[str]) -> set[str]:
    return {"".join(w[0] for w in words), "".join(w[0] for w in words if w not in _SMALL_WORDS)}


def _spells(acronym: str, words: Sequence[str]) -> bool:
    return len(words) > 1 and "".join(c for c in acronym if c.isalnum()) in _initials(words)


def _add_initials(clusters: _Clusters) -> None:
    """Acronyms of at least three letters with one name of these initials."""
    fulls = ((i, n) for n, t in clusters.types.items() if t != "PERSON" for i in _long_initials(_words(n)))
    unique = _unique_targets(clusters, fulls)
    for name, type_ in clusters.types.items():
        words = _words(name)
        if len(words) == 1 and type_ != "PERSON" and (full := unique.get(words[0])):
            clusters.add(name, full, "acronym", "the only name in the document with these initials")


def _long_initials(words: Sequence[str]) -> set[str]:
    return {i for i in _initials(words) if len(i) >= 3} if 3 <= len(words) <= 12 else set()


def _add_short_names(clusters: _Clusters) -> None:
    """Parts of names, from the longest to the shortest name."""
    unique: dict[str, str] = {}
    by_length = sorted(clusters.types, key=lambda n: (-len(_words(n)), -len(n), n))
    for name in by_length:
        words = _without_title(_words(name))[1]
        full = unique.get(_short_key(words, clusters.types[name]))
        if full and not _WOMEN.intersection(_words(name)[:1]):
            clusters.add(name, full, "short_name", "the only full name in the document that contains it")
        root = clusters.root(name)
        for short in _short_forms(name, clusters.types[name]):
            if unique.setdefault(short, root) != root and clusters.root(unique[short]) != root:
                unique[short] = _AMBIGUOUS


def _short_key(words: tuple[str, ...], type_: str) -> str:
    if len(words) == 2 and words[0] in _TITLES:
        words = words[1:]
    return f"{type_ or 'PERSON'} {' '.join(words)}"


def _short_forms(name: str, type_: str) -> set[str]:
    """The names by which a document may refer to a full name."""
    words = _without_title(_words(name))[1]
    forms: set[tuple[str, ...]] = set()
    if type_ == "PERSON":
        if len(words) > 1 and words[0] not in _TITLES and len(words) <= 8:
            for n in range(1, len(words)):
                forms.add(words[:n])
                if words[n - 1] != "OF":
                    forms.add(words[n:])
            first, last = words[0], words[-1]
            middle = "".join(w[0] for w in words[1:-1])
            forms |= {(first, last), (first[0], last), (first[0] + middle, last), (first, middle, last)}
            if len(words) == 3:
                forms.add((first[0], middle, last))
        if _CJK.match(name):
            parts = name.split()
            forms |= {(p,) for p in (parts[0], parts[-1]) if len(parts) > 1 and 2 <= len(p) <= 4}
            if len(parts) == 1 and 3 <= len(name) <= 4:
                forms |= {(name[:2],), (name[-2:],)}
    elif len(words) > 1 and type_ not in ("", "LOCATION") and words[-1] in _GENERIC:
        forms.add(words[:-1])
    if type_ in ("LOCATION", "ORGANIZATION") and len(words) > 2:
        forms.add(tuple(w for w in words if w not in _QUALIFIERS))
    forms = {
        f for f in forms if f != words and f and (len(f) > 1 or len(f[0]) > 1) and f[-1] not in _PARTICLES
    }
    return {f"{type_} {' '.join(f)}" for f in forms}
