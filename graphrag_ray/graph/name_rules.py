"""Rules by which two names stand for the same thing, without a model and without the text around them.

Names are entity keys (`base/ids.entity_key`). `rule_keys` returns keys that are equal for names that may be
merged anywhere in a corpus, and `may_merge` holds the guards. `document_names.py` has the rules that need the
names and the text of a document.

    spelling      widths, quotation marks, hyphens, THE, dots of initials, vowel points, spaces in Korean
    spacing       OPEN AI / OPENAI
    accents       SÃO PAULO / SAO PAULO
    abbreviation  ST LOUIS / SAINT LOUIS, U.S. / UNITED STATES
    plural        NEURAL NETWORK / NEURAL NETWORKS, FORM 10-Q / FORMS 10-Q
    legal_form    ELI LILLY / ELI LILLY AND COMPANY
    title         DR SATYA NADELLA / SATYA NADELLA
    order         LEE, ANN / ANN LEE, WAR DRAMA FILM / DRAMA WAR FILM, four or more words in any order
    misspelling   OSKAR LINDQVIST / OSCAR LINDQVIST: letters that sound alike, or one letter of a long surname
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence, Set
from functools import lru_cache

import regex

from graphrag_ray.base.ids import UNSPACED_SCRIPT, limit_combining_marks
from graphrag_ray.base.index_settings import RESOLUTION_RULES

RULES = tuple(RESOLUTION_RULES)
MAX_NAME = 200
"""Longer names are not compared."""
EXCLUSIVE_TYPES = frozenset({"PERSON", "ORGANIZATION", "LOCATION"})
"""Types that exclude each other. Models use the others less consistently."""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


def _longest_first(text: str) -> tuple[str, ...]:
    return tuple(sorted(text.split(), key=lambda word: (-len(word), word)))


# Words of names

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


@lru_cache(maxsize=1 << 14)
def words_of(name: str) -> tuple[str, ...]:
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
        # Spaces next to Chinese, Japanese, Korean or Thai characters do not matter.
        if words and any(_CJK.match(c) or UNSPACED_SCRIPT.match(c) for c in (words[-1][-1][-1], word[0])):
            words[-1].append(word)
        else:
            numeral = _roman_value(word) if words and len(word) > 1 and not word.strip("IVX") else 0
            words.append(["AND" if word == "&" else str(numeral) if numeral else word])
    if len(words) > 1 and words[0] == ["THE"]:
        del words[0]
    return tuple("".join(parts) for parts in words) or (name,)


def _roman_value(word: str) -> int:
    """The value of a Roman numeral, or 0."""
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
    for n, word in enumerate(words_of(name)):
        digits = _DIGITS.findall(word)
        found += ["".join(str(unicodedata.digit(c, 0)) for c in d).lstrip("0") for d in digits]
        if n and not digits and (value := _roman_value(word)):
            found.append(str(value))
    return tuple(sorted(found))


# Keys

_LEGAL_FORMS = word_set(
    """
    INC INCORPORATED CORP CORPORATION CO COMPANY LTD LIMITED LLC LLP LP PLC GMBH AG KG KGAA EV SE SA SAS SARL
    SRL SPA NV BV AB ASA AS OY OYJ APS KK PTY PTE PVT BHD SDN TBK JSC OJSC PJSC OOO OAO ZAO ПАО ООО ОАО ЗАО АО
    """
)
_CJK_LEGAL_FORMS = _longest_first(
    "株式会社 有限会社 合同会社 股份有限公司 有限责任公司 有限公司 주식회사 유한회사"
)
_JOINS = frozenset({"AND", "&", "ET", "UND", "Y", "E", "OG", "OCH"})
TITLES = word_set(
    """
    MR MRS MS MISS MX DR PROF PROFESSOR SIR DAME HON HONORABLE HONOURABLE REV REVEREND PRESIDENT SENATOR SEN
    CONGRESSMAN CONGRESSWOMAN REPRESENTATIVE REP GOVERNOR GOV MAYOR MINISTER JUDGE JUSTICE CHANCELLOR GENERAL
    GEN COLONEL COL MAJOR MAJ CAPTAIN CAPT LIEUTENANT LT SERGEANT SGT CORPORAL ADMIRAL COMMANDER AMBASSADOR
    SECRETARY BISHOP ARCHBISHOP CARDINAL RABBI IMAM SHEIKH HERR FRAU MONSIEUR MADAME MME MLLE SEÑOR SEÑORA
    SIGNOR SIGNORA ГОСПОДИН ГОСПОЖА ДОКТОР ПРОФЕССОР ПРЕЗИДЕНТ
    """
)
_RULERS = word_set("KING QUEEN EMPEROR EMPRESS POPE TSAR CZAR SULTAN KAISER")
"""Titles that are left out only before a numbered name: KING EDWARD VII."""
WOMEN = word_set("MRS MISS MS LADY DAME FRAU MADAME MME MLLE SEÑORA SIGNORA ГОСПОЖА")
_MEN = word_set("MR SIR LORD HERR MONSIEUR SEÑOR SIGNOR ГОСПОДИН")
_CJK_TITLES = _longest_first(
    """
    국회의원 의원 대통령 위원장 장관 차관 총리 교수 박사 회장 사장 대표 팀장 씨
    先生 女士 教授 博士 总统 總統 主席 总理 總理 議員 首相 大統領 さん 氏 様
    """
)
_ABBREVIATIONS = _pairs(
    """
    ST=SAINT STE=SAINTE MT=MOUNT FT=FORT UNIV=UNIVERSITY DEPT=DEPARTMENT GOVT=GOVERNMENT
    INTL=INTERNATIONAL ASSN=ASSOCIATION
    """
)
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
_OF = word_set("OF DE DI DA DU DEL VON VAN ZU")
PARTICLES = word_set("VAN VON DE DEL DER DI DA LA LE AL EL BIN IBN BEN")
NO_GIVEN_NAMES = (
    word_set(
        "EARL COUNT COUNTESS DUKE DUCHESS BARON BARONESS VISCOUNT MARQUESS MARQUIS LORD LADY PRINCE PRINCESS"
    )
    | PARTICLES
    | _OF
    | TITLES
    | _RULERS
)
"""Before the place that a person is from."""


def rule_keys(name: str, type_: str, rules: Collection[str] = RULES) -> Iterator[tuple[str, str]]:
    """Yield (rule, key). Two names with an equal pair stand for the same thing if `may_merge` agrees."""
    if not name or len(name) > MAX_NAME:
        return
    words = words_of(name)
    spelled = " ".join(words)
    # A surname so long that another one with a letter more or less is rare.
    has_long_surname = type_ == "PERSON" and 2 <= len(words) <= 3 and 8 <= len(words[-1]) <= 30
    if "misspelling" in rules and has_long_surname and NO_GIVEN_NAMES.isdisjoint(words):
        start = len(spelled) - len(words[-1])
        for n in range(start + 1, len(spelled)):
            yield "misspelling", spelled[:n] + spelled[n + 1 :]
    expanded = " ".join([*(_ABBREVIATIONS.get(word, word) for word in words[:-1]), words[-1]])
    keys = {
        "spelling": spelled,
        "spacing": _spacing_key(words),
        "accents": _without_accents(spelled),
        "abbreviation": _WELL_KNOWN.get(expanded, expanded),
        "plural": _plural_key(name, words, type_),
        "legal_form": " ".join(_without_legal_form(words)) if type_ in ("", "ORGANIZATION") else "",
        "title": " ".join(_plain_person(name)) if type_ in ("", "PERSON") else "",
        "order": _order_key(name, words, type_),
        "misspelling": _sound_key(words, type_),
    }
    yield from ((rule, key) for rule, key in keys.items() if key and rule in rules)


def _spacing_key(words: tuple[str, ...]) -> str:
    """The name without spaces, except between digits."""
    key = ""
    for word in words:
        key += f" {word}" if key and key[-1].isdigit() and word[0].isdigit() else word
    return key if len(key) >= 5 else ""


def _plural_key(name: str, words: tuple[str, ...], type_: str) -> str:
    """The singular of the last word, or of the word before a number, except in names and titles."""
    last = len(words) - 1
    if type_ in ("PERSON", "LOCATION"):
        return ""
    if _NUMBERED_PLURAL.search(name):
        return " ".join(words)[:-1]
    if number := next((n for n in range(1, len(words)) if _DIGITS.search(words[n])), 0):
        return " ".join([*words[: number - 1], singular(words[number - 1]), *words[number:]])
    if type_ in ("WORK", "PRODUCT") or (type_ == "ORGANIZATION" and not last):
        return ""
    return " ".join([*words[:last], singular(words[last])])


_NUMBERED_PLURAL = regex.compile(r"\p{L}-?\d+S$")
"""TRS-80S, Z80S, but not 1980S."""


_IRREGULAR_PLURALS = _pairs(
    """
    PHENOMENA=PHENOMENON CRITERIA=CRITERION BACTERIA=BACTERIUM HYPOTHESES=HYPOTHESIS ANALYSES=ANALYSIS
    INDICES=INDEX MATRICES=MATRIX CHILDREN=CHILD SPECIMEN=SPECIMEN OMEN=OMEN
    """
)
_PLURAL = regex.compile(r"[A-Z]*[A-HJ-RTV-Z]S")


def singular(word: str) -> str:
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


def without_title(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the titles before a name, and the name of at least two words, or of two Chinese characters."""
    if len(words) == 1:
        for title in _CJK_TITLES:
            rest = words[0].removesuffix(title)
            if rest != words[0] and (_is_korean_name(rest) if _HANGUL.match(title) else 2 <= len(rest) <= 4):
                return (title,), (rest,)
        return (), words
    start = 0
    while start < len(words) - 2 and words[start] in TITLES:
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
    return without_title(words_of(name))[1]


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
            words = (*words_of(given), *words_of(surname))
        if _HANGUL.match(name) and " " in name:
            return " ".join(sorted(name.split()))
    if type_ == "CONCEPT" and len(words) == 3:
        return " ".join([*sorted(words[:-1]), words[-1]])
    if type_ == "PERSON" or len(words) < 4:
        return " ".join(words)
    parts: list[list[str]] = [[]]
    for word in words:
        if len(word) <= 3:
            parts += [[word], []]
        else:
            parts[-1].append(word)
    return " ".join(" ".join(sorted(part)) for part in parts if part)


_SOUNDS = _pairs("PH=F CK=K QU=KW TH=T C=K Q=K Y=I Z=S W=V")
_TWICE = regex.compile(r"(.)\1+")


def _sound_key(words: tuple[str, ...], type_: str) -> str:
    """The name with letters that often replace each other in transliterations written alike."""
    if len(words) < 2 or type_ not in ("", *EXCLUSIVE_TYPES):
        return ""
    sounds = []
    for word in words:
        sound = "OF" if type_ == "PERSON" and word in _OF else _without_accents(word)
        for letters, replacement in _SOUNDS.items():
            sound = sound.replace(letters, replacement)
        sounds.append(_TWICE.sub(r"\1", sound))
    return " ".join(sounds)


# Guards


def may_merge(
    a: str, type_a: str, b: str, type_b: str, rule: str, closed_types: Set[str] = frozenset()
) -> bool:
    """Whether two names may stand for the same thing, given that a rule says so.

    Conflicting types, different numbers and JUNIOR against SENIOR speak against it. Types do not count for
    spellings of one name, because equal names are merged whatever their types.

    Args:
        closed_types: The types of a closed schema, all of which exclude each other.
    """
    words_a, words_b = words_of(a), words_of(b)
    if words_a == words_b:
        return _may_be_spelling(a, type_a, b, type_b)
    types = {type_a, type_b} if type_a != type_b else {""}
    well_known = rule == "abbreviation" and {" ".join(words_a), " ".join(words_b)} <= _WELL_KNOWN_NAMES
    if types <= closed_types or (types <= EXCLUSIVE_TYPES and not well_known and rule != "spacing"):
        return False
    if rule != "acronym" and numbers(a) != numbers(b):
        return False
    generations = ({word[0] for word in words[1:] if word in _GENERATIONS} for words in (words_a, words_b))
    if next(generations) != next(generations):
        return rule == "short_name" and len(words_a) == 1
    match rule:
        case "accents":  # One is without accents: MÜLLER and MÚLLER are different names.
            plain = (" ".join(words) for words in (words_a, words_b))
            return any(_without_accents(p) == p and len(p) > 4 for p in plain)
        case "spacing":  # GEORGE TOWN and GEORGETOWN are different places.
            if "LOCATION" in (type_a, type_b) and max(len(words_a), len(words_b)) < 3:
                return False
            return _may_be_spelling(a, type_a, b, type_b)
        case "legal_form":  # A name with another legal form is another company.
            ends = (words[len(_without_legal_form(words)) :] for words in (words_a, words_b))
            forms = [{_LEGAL_FORM_SYNONYMS.get(w, w) for w in end if w not in _JOINS} for end in ends]
            return not all(forms) or forms[0] == forms[1]
        case "title":  # MR and MRS are different people.
            first, second = (set(without_title(words)[0]) for words in (words_a, words_b))
            return not (first & _MEN and second & WOMEN) and not (second & _MEN and first & WOMEN)
        case "misspelling":
            # One word of at least four letters differs, or OF is translated. Another word is equal.
            if len(words_a) != len(words_b):
                return False
            pairs = list(zip(words_a, words_b, strict=True))
            different = [pair for pair in pairs if pair[0] != pair[1]]
            if len(different) != 1 or all(len(x) < 3 or x in PARTICLES for x, y in pairs if x == y):
                return False
            return min(map(len, different[0])) >= 4 or set(different[0]) <= _OF
    return True


_GENERATIONS = frozenset({"JR", "SR", "JUNIOR", "SENIOR"})
_WELL_KNOWN_NAMES = frozenset([*_WELL_KNOWN, *_WELL_KNOWN.values()])


def _may_be_spelling(a: str, type_a: str, b: str, type_b: str) -> bool:
    """JEAN-BAPTISTE and JEAN BAPTISTE are given names: they stand for one person only in one document."""
    return {type_a, type_b} != {"PERSON"} or (" " in a) == (" " in b) or bool(_CJK.match(a))


def preferred(names: Sequence[tuple[str, str, int]]) -> str:
    """Return the canonical one of names (name, type, number of mentions) that stand for the same thing.

    The full name rather than a short one or an acronym, without title and legal form, then the frequent one.
    """
    one_spelling = len({"".join(_plain(name, type_)) for name, type_, _ in names}) == 1

    def rank(item: tuple[str, str, int]) -> tuple[object, ...]:
        name, type_, count = item
        words = words_of(name)
        plain = _plain(name, type_)
        length = 0 if one_spelling else sum(len(w) if _CJK.match(w) else 1 for w in plain)
        initials = sum(len(w) == 1 for w in plain)
        return -length, initials, words != plain, -count, len(name), name

    return min(names, key=rank)[0]


def _plain(name: str, type_: str) -> tuple[str, ...]:
    words = _plain_person(name) if type_ in ("", "PERSON") else words_of(name)
    if known := _WELL_KNOWN.get(" ".join(words)):
        return tuple(known.split())
    return _without_legal_form(words) if type_ in ("", "ORGANIZATION") else words
