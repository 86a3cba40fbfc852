"""Names that stand for the same thing according to the names and the text of one document.

spelling      also of given names: JEAN-LUC / JEAN LUC
plural        also of single words: GRAMMY / GRAMMYS
order         also LEE ANN / ANN LEE
misspelling   also other names that differ by one letter
acronym       Securities and Exchange Commission (SEC), or the only name with these initials
short_name    NADELLA / SATYA NADELLA: the only full name that contains it
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import NamedTuple

import regex
from rapidfuzz.distance import OSA

from graphrag_ray.graph.name_rules import (
    EXCLUSIVE_TYPES,
    MAX_NAME,
    NO_GIVEN_NAMES,
    PARTICLES,
    RULES,
    TITLES,
    WOMEN,
    may_merge,
    preferred,
    rule_keys,
    singular,
    without_title,
    word_set,
    words_of,
)

MAX_EVIDENCE = 200
_DEFINED_AS = "defined as "
_NEARBY = "spelled out nearby: "
_FULL_NAME = "the only full name in the document that contains it"
_ORGANIZATION_IN_FULL = "the only organization in the document with this name and a generic word"
_CORPUS_RULES = frozenset({"plural", "order", "misspelling"})


class NameAlias(NamedTuple):
    """A name that stands for the same thing as a canonical name, and why."""

    name: str
    canonical: str
    rule: str
    evidence: str


def document_aliases(
    names: Mapping[str, str],
    texts: Sequence[str],
    rules: Collection[str] = RULES,
    closed_types: Set[str] = frozenset(),
) -> list[NameAlias]:
    """Find names in one document that stand for the same thing as another name of this document.

    Args:
        names: The names in the document, with their types, or "" if unknown.
        texts: The chunks of the document.
        rules: The rules to apply.
        closed_types: As in `may_merge`.

    Returns:
        Aliases by name. No canonical name is itself an alias. Aliases that follow from `rule_keys` are used
        here but not returned.
    """
    types = {name: names[name] for name in sorted(names) if name and len(name) <= MAX_NAME}
    clusters = _Clusters(types, rules, closed_types)
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
    aliases = []
    for name in types:
        if target := clusters.targets.get(clusters.head(name)):
            canonical = clusters.root(name)
            if clusters.may_have_types(name, canonical):
                aliases.append(NameAlias(name, canonical, target[1], target[2][:MAX_EVIDENCE]))
    return aliases


class _Clusters:
    """Names of a document that stand for the same thing: each has at most one target."""

    def __init__(self, types: Mapping[str, str], rules: Collection[str], closed_types: Set[str]) -> None:
        self.types = types
        self.closed_types = closed_types
        self.words = {name: words_of(name) for name in types}
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
                first = self.preferred(dict.fromkeys(map(self.head, members)))
                for name in members:
                    if (head := self.head(name)) != first and self._may_merge(name, first, rule):
                        self.heads[head] = first

    def preferred(self, names: Iterable[str]) -> str:
        return preferred([(name, self.types[name], 1) for name in names])

    def may_have_types(self, a: str, b: str) -> bool:
        """Whether a closed schema allows two names to be one: it does if they are spellings of one name."""
        types = {self.types[a], self.types[b]}
        return len(types) < 2 or self.words[a] == self.words[b] or not types <= self.closed_types

    def _may_merge(self, a: str, b: str, rule: str) -> bool:
        return may_merge(a, self.types[a], b, self.types[b], rule, self.closed_types)

    def head(self, name: str) -> str:
        end = name
        while end in self.heads:
            end = self.heads[end]
        while name != end:
            self.heads[name], name = end, self.heads[name]
        return end

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
        if head not in self.targets and head != root and (is_sure or self._may_merge(name, canonical, rule)):
            self.targets[head] = (root, rule, evidence)


def _add_spellings(clusters: _Clusters) -> None:
    groups = defaultdict(list)
    for name, words in clusters.words.items():
        groups[words].append(name)
    for names in groups.values():
        first = clusters.preferred(names)
        for name in names:
            clusters.add(name, first, "spelling", "the same words in the same document", is_sure=True)


def _add_surnames_first(clusters: _Clusters) -> None:
    """DAN IOSIF / IOSIF DAN, TUKARAM GANGADHAR GADAKH / GADAKH TUKARAM GANGADHAR."""
    people = [(clusters.words[name], name) for name, type_ in clusters.types.items() if type_ == "PERSON"]
    known = dict(reversed(people))
    evidence = "the same words with the surname first in the same document"
    for words, name in people:
        reordered = known.get((words[-1], *words[:-1])) if len(words) > 1 else None
        if reordered and reordered != name:
            clusters.add(name, reordered, "order", evidence)


def _add_plurals(clusters: _Clusters, texts: Sequence[str]) -> None:
    """Plurals, except of surnames, which are families, of short words (BRIC / BRICS), and of proper names.

    A single word is no proper name if the text has it with an article: a Viking, but not a Google.
    """
    counted = {match[1].upper() for text in texts for match in _COUNTED.finditer(text)}
    surnames = {clusters.words[name][-1] for name, type_ in clusters.types.items() if type_ == "PERSON"}
    groups = defaultdict(list)
    for name, type_ in clusters.types.items():
        *others, last = clusters.words[name]
        one = singular(last)
        is_proper = not others and type_ not in ("", "CONCEPT") and one not in counted
        if type_ not in ("PERSON", "LOCATION") and len(one) > 4 and one not in surnames and not is_proper:
            groups[*others, one].append(name)
    for names in groups.values():
        first = clusters.preferred(names)
        for name in names:
            clusters.add(name, first, "plural", "singular and plural in the same document")


_COUNTED = regex.compile(r"\b(?:[Aa]n?|[Ee]ach|[Ee]very|[Aa]nother|[Oo]ne)\s(\p{Lu}\p{L}*)")


def _add_misspellings(clusters: _Clusters) -> None:
    """Names of which one word differs by a letter that is not the first one, or a surname by two letters."""
    names = {words: name for name, words in clusters.words.items() if 2 <= len(words) <= 6}
    names = {w: n for w, n in names.items() if clusters.types[n] in ("", *EXCLUSIVE_TYPES)}
    people = {w: n for w, n in names.items() if clusters.types[n] == "PERSON"}
    for words in [w for w in people if NO_GIVEN_NAMES.issuperset(w[:-1])]:
        del names[words], people[words]  # EARL OF HERTFORD / EARL OF HEREFORD
    letters = (_one_letter_apart(names), "one letter"), (_close_surnames(people), "two letters")
    for pairs, difference in letters:
        for a, b in pairs:
            if clusters.root(names[a]) == names[a] and clusters.root(names[b]) == names[b]:
                evidence = f"differs by {difference} in the same document"
                clusters.add(names[b], names[a], "misspelling", evidence)


_WordPairs = Iterator[tuple[tuple[str, ...], tuple[str, ...]]]


def _one_letter_apart(names: Mapping[tuple[str, ...], str]) -> _WordPairs:
    """Yield names that are equal without one letter of one word, if that is likely to be a mistake.

    Another ending may make an adjective (SOUTH AUSTRALIA, SOUTH AUSTRALIAN) or another given name (MARIO and
    MARIA), and so may another consonant (PARVIZ and PARVIN). In surnames, all letters may be mistaken.
    """
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
        if len(members) != 2 or (a := members[0][n])[-1] != (b := members[1][n])[-1]:
            continue
        if len(a) != len(b) or n or {(c, d) for c, d in zip(a, b, strict=True) if c != d} <= _VOWEL_PAIRS:
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
                term = known.get(words_of(match[2])) or known.get(words_of(match[2].removesuffix("s")))
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
    letters = "".join(c for c in term if c.isalnum())
    start, longest = 0, ""
    for match in [*_WORD.finditer(before)][: -_MAX_STARTS - 1 : -1]:
        name = known.get(words_of(before[match.start() :]), "")
        if name and name != term:
            start, longest = match.start(), name
            if len(words := words_of(name)) > 1 and letters in _initials(words):
                return start, name
    if not longest:
        return 0, ""
    is_latin = any(c.isascii() and c.isalpha() for c in longest)
    other_script = term.isascii() and term.isalpha() and len(term) <= 8 and not is_latin
    is_part = is_quoted and {*words_of(term)} <= {*words_of(longest)}
    is_part = is_part and len(words_of(term)) < len(words_of(longest))
    return (start, longest) if is_named or other_script or is_part else (0, "")


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


def _initials(words: Sequence[str]) -> set[str]:
    return {"".join(w[0] for w in words), "".join(w[0] for w in words if w not in _SMALL_WORDS)}


_SMALL_WORDS = word_set("OF THE AND FOR IN ON DE LA DU DES DER DIE UND ET Y")


def _add_initials(clusters: _Clusters, texts: Sequence[str]) -> None:
    """Acronyms and the only name with these initials. Two letters are enough only if the name is near."""
    things = {name: words for name, words in clusters.words.items() if clusters.types[name] != "PERSON"}
    fulls: dict[str, str] = {}
    for name, words in things.items():
        for initials in _initials(words) if 2 <= len(words) <= _MAX_INITIALS else ():
            if len(initials) >= 2 and initials not in words:
                _add_unless_ambiguous(clusters, fulls, initials, name)
    found = {name: fulls.get(" ".join(words), "") for name, words in things.items() if "." not in name}
    acronyms = {clusters.words[name][0]: clusters.words[full] for name, full in found.items() if full}
    near = _quotes_of_both(acronyms, texts)
    for name, full in found.items():
        acronym = clusters.words[name][0]
        if full and (quote := near.get(acronym)):
            clusters.add(name, full, "acronym", f'{_NEARBY}"{quote}"')
        elif full and len(acronym) > 2:
            clusters.add(name, full, "acronym", "the only name in the document with these initials")


def _add_unless_ambiguous(clusters: _Clusters, fulls: dict[str, str], short: str, full: str) -> None:
    """Add the full name of a short one, or "" if there are full names of several things."""
    known = fulls.setdefault(short, full)
    if known not in ("", full) and clusters.root(known) != clusters.root(full):
        fulls[short] = ""


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
        titles, rest = without_title(words) if clusters.types[name] in ("", "PERSON") else ((), words)
        if len(rest) == 2 and rest[0] in TITLES:
            titles, rest = rest[:1], rest[1:]
        plain[name] = titles, rest
    fulls: dict[str, str] = {}
    for name in sorted(plain, key=lambda n: (-len(plain[n][1]), -len(n), n)):
        titles, words = plain[name]
        type_ = clusters.types[name]
        full = fulls.get(f"{type_ or 'PERSON'} {' '.join(words)}", "")
        if full and not WOMEN.intersection(titles):  # MRS BENNET is not the only person with this name.
            evidence = _ORGANIZATION_IN_FULL if type_ == "ORGANIZATION" else _FULL_NAME
            clusters.add(name, full, "short_name", evidence)
        root = clusters.root(name)
        for short in _short_forms(name, words, type_):
            _add_unless_ambiguous(clusters, fulls, short, root)


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
        words[n:] for n in cuts if n == len(words) - 1 or words[n] in PARTICLES or len(words[n - 1]) == 1
    }
    if len(words[0]) > 2 and len(words[-1]) > 2 and len(words) - 1 in cuts:
        forms |= {(words[0], words[-1]), (words[0][0], words[-1])}
        forms.add(("".join(w[0] for w in words[:-1]), words[-1]))
    not_after = {words[n:] for n in cuts if words[n - 1] in ("OF", "BIN", "IBN", "BINT", "BEN")}
    return {f for f in forms - not_after if len(f) > 1 or (len(f[0]) > 1 and f[0] not in PARTICLES)}


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


_GENERIC = word_set(
    """
    GROUP HOLDING HOLDINGS UNIVERSITY COLLEGE INSTITUTE FOUNDATION INTERNATIONAL TECHNOLOGIES TECHNOLOGY
    PHARMACEUTICALS AIRLINES AIRWAYS MOTORS BANK STUDIOS PRODUCTIONS PICTURES FILMS ENTERTAINMENT RECORDS
    """
)
_QUALIFIERS = word_set("INTERNATIONAL REGIONAL MUNICIPAL")
_NOT_PEOPLE = word_set(
    """
    HOUSE ESTATE CHURCH SCHOOL COLLEGE UNIVERSITY FOUNDATION INSTITUTE MUSEUM LIBRARY HOSPITAL AIRPORT STATION
    AWARD PRIZE CLUB COMPANY GROUP DESIGNS RECORDS PICTURES STUDIOS STREET ROAD AVENUE BRIDGE PARK COUNTY CITY
    CHIEF OFFICER DIRECTOR MANAGER ENGINEER SCIENTIST EDITOR TECHNOLOGY RIVER LAKE ISLAND IN AT ON FOR AND
    MEETS VERSUS VS
    """
)
"""Words of names that contain the name of a person but are no names of people, whatever their type says."""


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
