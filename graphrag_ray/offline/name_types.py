"""Classify names by honorifics, suffixes, speaker labels, and patterns and verbs next to them.

Every cue votes for a type, and the most votes win (Mikheev, Moens and Grover 1999, "Named entity recognition
without gazetteers"). Without any cue, a name is an organisation. `X is a 1954 film`, `X, a Dutch painter,`
and `X (2008 film)` give the class of X by their head noun (Hearst 1992); `directed by X` and `born in X`
allow only one class (selectional preferences, Resnik 1993). The text around a mention is bounded, so each
mention takes constant time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from graphrag_ray.offline.capital_runs import is_personal
from graphrag_ray.offline.chunk_names import Name, looks_like_person
from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.sentences import Sentence

PERSON, ORGANIZATION, LOCATION, EVENT, WORK, CONCEPT = range(6)

AFTER, BEFORE = 200, 60  # Number of characters to read around a mention.
MAX_PHRASE = 14  # Maximum number of words of a noun phrase.

_BRACKET = re.compile(r"['’\"”]?s?\s?\(\s?([^()]{1,90})\)")
_CALLED = re.compile(
    r",? (?:(?:also|better|formerly|originally|simply|or)\b ?(?:known|called|titled|styled|spelled)?|"
    r"(?:known|born|née|aka|a\.k\.a\.)\b)[^.;]{0,60}?(?=,? (?:is|was|are|were)\b)"
)
_COPULA = re.compile(
    r"['’\"”]?,? (?:is|was|are|were|became|remains) (?:(?:also|still|now|then|the|one|of) )*(?:an? )?"
)
_APPOSITION = re.compile(
    r"['’\"”]?, (?:(?P<article>an?|the|its|his|her|their|our|my|then|now|former|known as) )?"
)
_PHRASE_WORD = re.compile(r"[\s\"“”-]*([^\W_][\w'’&-]*)")
_LIFE = re.compile(
    r"(?:born|b\.|died|d\.|née|c\.)\b|(?>.*?\b(?:January|February|March|April|May|June|July|August|September|October"
    r"|November|December)\b).*\d{3,4}"
)
_YEARS = re.compile(r"(?:c\. ?)?\d{3,4} ?[–-] ?(?:c\. ?)?\d{3,4}$")
_AGENT = re.compile(r"(?:ist|ian|grapher|loger|ologist|eer|keeper|player|maker|man|woman|ess|wright|or|er)$")

_WORD = re.compile(r"[^\W\d_][\w'’-]*|[^\w\s'’-]")
_ARTICLES = frozenset(["the", "a", "an", "its", "his", "her", "their", "our", "my"])


def stated_kinds(text: str, start: int, end: int, within: tuple[int, int]) -> Iterator[tuple[int, float]]:
    """Return (kind, weight) per statement of the sentence text[within] about its mention text[start:end]."""
    cues = LEXICON.cues
    before = text[max(within[0], start - BEFORE) : start]
    after = text[end : min(within[1], end + AFTER)]
    kind: int | None
    if bracket := _BRACKET.match(after):
        yield from _in_bracket(bracket.group(1))
        after = after[bracket.end() :]
    # The class that the two preceding words require, without the article.
    words = [w.lower() for w in _WORD.findall(before)[-3:]]
    if words and words[-1] in _ARTICLES:
        words.pop()
    first, last = ["", "", *words][-2:]
    for kind, weight, fits in (
        (PERSON, 2.0, last in cues["takes_person"] or (last in ("of", "to") and first in cues["kin"])),
        (PERSON, 2.5, last == "by" and first in cues["person_by"]),
        (ORGANIZATION, 1.5, last == "by" and first in cues["organization_by"]),
        (ORGANIZATION, 2.5, last in ("for", "at", "with", "to", "of") and first in cues["serves"]),
        (LOCATION, 2.0, last in ("in", "at", "near", "to") and first in cues["stays"]),
        (LOCATION, 2.0, last == "of" and (first in cues["loc_of"] or first in cues["part_of_place"])),
    ):
        if fits:
            yield kind, weight
    if called := _CALLED.match(after):
        after = after[called.end() :]
    if copula := _COPULA.match(after):
        kind = noun_kind(after[copula.end() :], predicate=True)
        if kind is not None:
            yield kind, 3.5
    elif apposition := _APPOSITION.match(after):
        kind = noun_kind(after[apposition.end() :], predicate=apposition["article"] is not None)
        if kind is not None:
            yield kind, 2.0 if apposition["article"] else 1.0
    elif compound := re.match(r" ([a-z][\w-]*)(?: ([a-z][\w-]*))?", after):  # the Nokia company
        for word in filter(None, (compound[2], compound[1])):
            kind = listed_kind(word)
            if kind is not None and word not in LEXICON.verbs:
                yield kind, 0.8
                break


def noun_kind(text: str, *, predicate: bool) -> int | None:
    """Return the type that a noun phrase at the start of a text describes, from its last noun with a type.

    predicate: whether an unlisted agent noun (a conchologist) counts as a person.
    """
    kind, last, end = None, "", 0
    for _ in range(MAX_PHRASE):
        match = _PHRASE_WORD.match(text, end)
        if match is None:
            break
        word = match.group(1).lower()
        if word in LEXICON.function or word in LEXICON.cues["small"]:
            break
        if word.endswith("ed") and kind is not None and word not in LEXICON.nouns:
            break
        end, last = match.end(), word
        listed = listed_kind(word.rsplit("-", 1)[-1])
        kind = listed if listed is not None else kind
    unlisted = kind is None and predicate and last.rsplit("-", 1)[-1] not in LEXICON.cues["concept_noun"]
    if unlisted and _AGENT.search(last):
        is_thing = last.endswith(("er", "or", "ess", "ian", "man")) and last in LEXICON.ordinary
        return None if is_thing and last not in LEXICON.cues["role"] else PERSON
    return kind


def listed_kind(word: str) -> int | None:
    """Return the type that a lower-case common noun describes, or None if it is not listed."""
    cues = LEXICON.cues
    if word in cues["person_noun"] or word in LEXICON.roles or word.removesuffix("s") in LEXICON.roles:
        return PERSON
    return next((kind for kind, section in _NOUNS if word in cues[section]), None)


def _in_bracket(inside: str) -> Iterator[tuple[int, float]]:
    """Return the kind stated by `(2008 film)`, `(noble)`, `(born 1950)` or `(1819–1886)`."""
    if _LIFE.match(inside):
        yield PERSON, 3.5
    elif _YEARS.match(inside):
        yield PERSON, 1.0
    elif re.fullmatch(r"\d{4}", inside):
        yield WORK, 1.0
    elif (kind := noun_kind(inside.partition(",")[0], predicate=False)) is not None:
        yield kind, 3.5


MAX_MENTIONS = 8  # Number of mentions that vote. More would change little.
MAX_GAP = 60  # Maximum number of characters between two names of a list.
LIST_SHARE = 0.5
LONG_NAME_BONUS = 1.5
"""Bonus of a suffix after two other words: many surnames are ordinary words, few third words are."""

_BETWEEN = re.compile(r"[\"”’']?\s?(?:\([^()]*\)\s?)?(?:,\s?(?:and |or |& )?|and |or |& )[\"“]?\s?")

_ORDER = (PERSON, ORGANIZATION, LOCATION, WORK, EVENT, CONCEPT)
_KINDS = ("person", "organization", "location", "event", "work", "concept")
_NOUNS = tuple((kind, f"{_KINDS[kind]}_noun") for kind in (WORK, EVENT, ORGANIZATION, LOCATION, CONCEPT))
_NEAREST: dict[int, int] = {EVENT: CONCEPT, WORK: CONCEPT}
_SUFFIXES = (
    (ORGANIZATION, "org_suffix", 3.0),
    (LOCATION, "loc_suffix", 3.0),
    (EVENT, "event_suffix", 3.2),
    (WORK, "work_suffix", 2.6),
)

Votes = list[float]


@lru_cache(maxsize=64)
def type_names(entity_types: str, only_exact: bool = False) -> tuple[str | None, ...]:
    """Return the requested type, in upper case, for each of PERSON … CONCEPT.

    entity_types is comma-separated, as in the prompt. A kind without a counterpart maps to the nearest kind
    with one, otherwise to the first generic type (thing, other, …), otherwise to the first type. CONCEPT
    without a counterpart maps to None: no terms are requested. With `only_exact`, as for a schema, every kind
    without a counterpart does.
    """
    wanted = [t.strip() for t in entity_types.split(",") if t.strip()] or ["entity"]
    cues = LEXICON.cues
    direct: dict[int, str] = {}
    for name in wanted:
        parts = name.lower().replace("_", " ").replace("-", " ").split()
        for kind, section in enumerate(_KINDS):
            if any(part in cues[f"type_{section}"] for part in parts):
                direct.setdefault(kind, name.upper())
    if only_exact:
        return tuple(direct.get(kind) for kind in range(len(_KINDS)))
    generic = next((t.upper() for t in wanted if t.lower() in cues["type_generic"]), None)
    types: list[str | None] = []
    for kind in range(len(_KINDS)):
        match = direct.get(kind) or direct.get(_NEAREST.get(kind, -1)) or generic
        types.append(match if match or kind == CONCEPT else wanted[0].upper())
    return tuple(types)


def place_heads(names: dict[str, Name]) -> frozenset[str]:
    """Return places that begin the names of civic bodies (Varnmouth in Varnmouth Town Council)."""
    civic = LEXICON.cues["civic"]
    return frozenset(
        n.words[0] for n in names.values() if len(n.words) > 1 and any(w in civic for w in n.words[1:])
    )


def votes_for(name: Name, text: str, sentences: list[Sentence], heads: frozenset[str]) -> Votes:
    """Return votes PERSON … CONCEPT for a name, from its words and context. heads: see `place_heads`."""
    cues, votes = LEXICON.cues, [0.0] * len(_KINDS)
    single = len(name.words) == 1
    if name.speaker:
        votes[PERSON] = 100.0
    votes[WORK] += 4 * name.quoted
    if single:
        word = name.words[0]
        votes[PERSON] += 5.0 * name.person + 2.5 * (word in cues["first_name"])
        votes[LOCATION] += 4.0 * (word in cues["place"]) + 1.2 * (word in heads)
        votes[ORGANIZATION] += 0.5 + 1.0 * (name.title.isupper() and len(word) <= 5)
        votes[ORGANIZATION] += 1.0 * any(c.isupper() for c in name.title[1:])
        votes[WORK] += 2.0 * any(c.isdigit() for c in word)
    else:
        _by_words(name, votes)
    for mention in name.mentions[:MAX_MENTIONS]:
        if (run := mention.run) is not None:
            before = (run.before, run.before2)
            if not (single and name.title.isupper()):
                votes[PERSON] += 1.0 * (run.after in cues["say"] or run.after in cues["person_next"])
            votes[PERSON] += 1.0 * (run.before in LEXICON.roles)
            votes[LOCATION] += (1.2 if single else 0.4) * (run.before in cues["before_place"])
            votes[LOCATION] += (0.4 if single else 0.2) * (run.before in cues["beside_place"])
            votes[LOCATION] += 0.1 * (single and run.before in ("of", "to", "from"))
            heads_body = run.before in cues["before_organization"] or run.before2 in cues["head_of"]
            votes[ORGANIZATION] += 0.7 * heads_body
            votes[ORGANIZATION] += 1.0 * any(b in cues["before_company"] for b in before)
            votes[WORK] += 0.8 * any(b in cues["before_work"] for b in before)
            votes[EVENT] += 1.5 * (run.before == "during")
        sentence = sentences[mention.sentence]
        within = (sentence.start, sentence.end)
        for kind, weight in stated_kinds(text, mention.start, mention.end, within):
            votes[kind] += weight
    return votes


def share_in_lists(names: Iterable[Name], votes: Mapping[str, Votes], text: str) -> dict[str, Votes]:
    """Add the votes of the other names in a list (A, B and C have the same kind)."""
    places = sorted((m.start, m.end, n.key) for n in names for m in n.mentions if not m.label)
    lists: dict[int, list[str]] = defaultdict(list)
    for number, (_, _, key) in zip(list_numbers((p[:2] for p in places), text), places, strict=True):
        lists[number].append(key)
    shared = {key: list(counts) for key, counts in votes.items()}
    for members in lists.values():
        for kind in range(len(_KINDS)) if len(members) > 1 else ():
            first, second = sorted((votes[key][kind] for key in members), reverse=True)[:2]
            for key in members:
                best = second if votes[key][kind] == first else first
                shared[key][kind] += LIST_SHARE * best if best >= 1 else 0.0
    return shared


def list_numbers(spans: Iterable[tuple[int, int]], text: str) -> list[int]:
    """Number the lists (A, B and C) that names belong to. Names are passed as start and end, in order.

    Names of a list are separated only by commas, `and`, `or` and brackets.
    """
    numbers: list[int] = []
    last, number = -1, -1
    for start, end in spans:
        near = 0 <= last <= start <= last + MAX_GAP
        number += not (near and _BETWEEN.fullmatch(text, last, start))
        numbers.append(number)
        last = end
    return numbers


def kind_of(votes: Votes) -> int:
    """Return the type with the most votes, or ORGANIZATION if there are none."""
    return max(_ORDER, key=votes.__getitem__) if max(votes) > 0 else ORGANIZATION


def _by_words(name: Name, votes: Votes) -> None:
    cues = LEXICON.cues
    words = name.words[: len(name.title.partition(",")[0].split())]  # Ostrey School, Denholm
    phrase, first, last = " ".join(words), words[0], words[-1].split("-")[-1]
    votes[LOCATION] += 4.0 * (phrase in cues["place"] or phrase in cues["place_phrase"])
    if "&" not in words and looks_like_person(name.title):
        votes[PERSON] += 3.5 if first in cues["first_name"] else 2.0
    small = next((w for w in words[1:-1] if w in ("of", "for")), None)
    if small:
        head = words[words.index(small) - 1]
        votes[ORGANIZATION] += 3.5 * (head in cues["org_of"])
        votes[LOCATION] += 3.0 * (head in cues["loc_of"] and head not in cues["org_of"])
        votes[EVENT] += 4.0 * (head in cues["event_of"])
        votes[WORK] += 4.0 * (head in cues["work_of"])
        votes[PERSON] += 4.0 * (head in cues["person_of"])
    personal = next((i for i, w in enumerate(words) if w in ("of", "the") and i), len(words))
    if personal > 1 or personal < len(words):
        ruler = is_personal(list(words[:personal])) and (
            personal < len(words) or first not in cues["first_name"]
        )
        votes[PERSON] += 3.5 * ruler
    suffixed = False
    for kind, section, weight in _SUFFIXES:
        if last in cues[section] or (last.endswith("s") and last[:-1] in cues[section]):
            votes[kind] += weight + LONG_NAME_BONUS * (
                len(words) > 2 and kind != LOCATION
            )  # Orla Quist Prize
            suffixed = True
    votes[PERSON] += (1.0 if suffixed and first not in cues["first_name"] else 5.0) * name.person
    votes[ORGANIZATION] += 2.0 * ("&" in words)
    votes[EVENT] += 3.5 * (first in cues["event_first"])
    votes[LOCATION] += 1.5 * (first in cues["place_first"])
    votes[WORK] += 2.0 * (first in LEXICON.function and all(LEXICON.is_ordinary(w) for w in words))
    votes[WORK] += 2.0 * any(c.isdigit() for c in last)
