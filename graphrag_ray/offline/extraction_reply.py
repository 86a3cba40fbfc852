"""Reply to the extraction prompts: entities, relationships and claims of a chunk, as GraphRAG tuples.

Descriptions are quotations, chosen by copulas and appositions (Hearst 1992; Fleischman, Hovy and Echihabi
2003). Names in one sentence are related (Church and Hanks 1990); the merge uses log-likelihood to drop pairs
that may be chance (Dunning 1993; graph/prune.py). "He" or "she" refers to the first person in the last
sentence that names a person (recency and subject preference, Lappin and Leass 1994). Speakers are related to
everything they name. Claims are sentences with a date or a verb of deciding, founding, winning, dying and the
like (Etzioni et al. 2008, without its learning).
"""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from graphrag_ray.base.ids import entity_key
from graphrag_ray.offline.mentions import Reading, Thing, read
from graphrag_ray.offline.name_types import CONCEPT, LOCATION, PERSON, list_numbers, listed_kind, type_names
from graphrag_ray.offline.sentences import fold, has_cells

MAX_QUOTE_CHARS = 480  # Longer sentences are cut at clauses around the relevant spans.

_PAIRS = [re.compile(r"(?P<opening>“)|”"), re.compile(r"(?P<opening>\()|\)")]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_COPULA = re.compile(
    r"['’]?s?\)?,? (?:is|was|are|were|has been|became|remains) (?:a|an|the|one of|my|our|his|her|known)\b"
)
_APPOSITION = re.compile(
    r",? ?(?:\([^)]{2,12}\))?, (?:a|an|the|who|whose|which|our|my|his|her|their|its|formerly|now|then)\b"
)
_ROLE = re.compile(
    r",? (?:chief|president|director|founder|head|chair\w*|professor|editor|author|mayor|leader|owner)\b"
)
_INTRODUCTION = re.compile(r"(?:I['’]m|I am|my name is|[Tt]his is|guest|host)[^.?!]{0,25}$")
_CLAUSE = re.compile(r"[;:,–—-]\s+|\s+(?=(?:and|but|so|because|which|when|where)\s)")
_FILLER = re.compile(
    r"^(?:yeah|yes|so|and|but|um|uh|well|right|ok|okay|no|oh|like|you know)\b", re.IGNORECASE
)


def describe(reading: Reading, thing: Thing) -> str:
    """Return the most informative quotation about a thing."""
    places = thing.places
    if thing.speaker:
        spoken = reading.said_by.get(thing.key, [])
        mentioned = [p for p in places if p[1] >= reading.sentence(p[0]).start]  # Not as a label.

        def value(index: int) -> tuple[float, int]:
            sentence = reading.sentence(index)
            size = sentence.end - sentence.start
            filler = _FILLER.match(reading.text[sentence.start : sentence.start + 12]) is not None
            question = reading.text[sentence.end - 1] == "?"
            value = size if size <= 300 else 300 - size
            return value - 60 * filler - 100 * question - 200 * (not sentence.whole), -index

        if spoken and not mentioned:  # The speaker is never mentioned, so quote one of their sentences.
            return quote(reading, max(spoken, key=value), [])
        places = mentioned or places
    best = max(places[:12], key=lambda place: (_value(reading, place), -place[1]))
    return quote(reading, best[0], [(best[1], best[2])])


def quote(reading: Reading, index: int, spans: list[tuple[int, int]]) -> str:
    """Quote sentence `index`, cut to MAX_QUOTE_CHARS around the `spans` at clauses or words."""
    sentence, text = reading.script.sentences[index], reading.text
    start = min([sentence.start, *(a for a, _ in spans)])
    end = sentence.end
    if end - start > MAX_QUOTE_CHARS:
        first, last = min((a for a, _ in spans), default=start), max((b for _, b in spans), default=start)
        if last - first > MAX_QUOTE_CHARS:  # They are far apart: quote around the second one.
            first = max(a for a, _ in spans)
        room = max(0, MAX_QUOTE_CHARS - (last - first))
        low, high = max(start, first - room // 2), min(end, last + room // 2)
        if low > start:
            cuts = [m.end() for m in _CLAUSE.finditer(text, low, first)]
            low = cuts[0] if cuts else text.find(" ", low, first) + 1 or first
        if high < end:
            cuts = [m.start() for m in _CLAUSE.finditer(text, last, high)]
            high = cuts[-1] if cuts else max(text.rfind(" ", last, high), last)
        start, end = low, high
    return balanced(fold(text[start:end]))


def balanced(text: str) -> str:
    """Return the longest part without control characters, unpaired quotation marks or unpaired parentheses.

    Such characters would be misread as part of our format when a context is parsed.
    """
    if not text.isprintable():
        text = max(_CONTROL.split(text), key=len).strip()
    before = None
    while text != before:  # Cutting at one kind of mark may break a pair of the other kind.
        before = text
        for pair in _PAIRS:
            opened, cuts = list[int](), [-1]
            for mark in pair.finditer(text):
                if mark.lastgroup == "opening":
                    opened.append(mark.start())
                elif opened:
                    opened.pop()
                else:
                    cuts.append(mark.start())
            cuts = sorted([*cuts, *opened, len(text)])
            if len(cuts) > 2:
                start, end = max(pairwise(cuts), key=lambda c: c[1] - c[0])
                text = text[start + 1 : end].strip()
    return text


def _value(reading: Reading, place: tuple[int, int, int]) -> float:
    """Return how much a sentence says about the thing that it mentions at a position."""
    index, start, end = place
    sentence = reading.sentence(index)
    text = reading.text
    size = sentence.end - sentence.start
    after = text[end : min(sentence.end, end + 40)]
    value = min(2.0, size / 100) - max(0.0, (size - 300) / 200)
    if _COPULA.match(after):
        value += 3.0
    elif _APPOSITION.match(after):
        value += 2.5
    elif _ROLE.match(after):
        value += 2.0
    if _INTRODUCTION.search(text[max(sentence.start, start - 40) : start]):
        value += 1.5
    value += min(3, len(reading.in_sentence.get(index, ()))) * 0.3
    value += 0.6 * (start - sentence.start < 0.3 * size)
    value -= 4.0 * has_cells(text[sentence.start : sentence.end])  # Below any other sentence.
    value -= 2.0 * (not sentence.whole) + 0.7 * (text[sentence.end - 1] == "?")
    value -= 0.5 * (_FILLER.match(text[sentence.start : sentence.start + 12]) is not None)
    return value


MAX_STRENGTH = 10
MAX_DISTANCE = 4  # Each name of a sentence is paired with the next four.
MAX_DISTANCE_WITH_SUBJECT = 2  # The same, in a sentence with a subject that is related to all names.
MAX_REFERRING_CHARS = 80  # At the start of a sentence, where a noun may refer back.
CONVERSE = "They speak with each other in this text."
"""Describes two speakers who only take turns, because a quotation would consist of their labels."""

Span = tuple[int, int]

_THING = -1
_IT = re.compile(r"(?:It|Its|They|Their)\b")
_THE = re.compile(r"\b(?:[Tt]he|[Tt]his|[Tt]hat)(?: [a-z]+)?? ([a-z]+)\b(?! of\b)")
_THIRD_PERSON = re.compile(r"\b(?:[Hh]e|[Ss]he|[Hh]is|[Hh]er|him)\b")


@dataclass(slots=True)
class Relation:
    """An unordered pair of things and its evidence.

    Attributes:
        carried: (sentence that names one, later sentence with a pronoun for it and the other's name).
    """

    source: Thing
    target: Thing
    sentences: list[int] = field(default_factory=list)  # Sentences that mention both.
    carried: list[tuple[int, int]] = field(default_factory=list)
    spoken: list[int] = field(default_factory=list)  # Sentences by one of them that mention the other.
    turns: int = 0  # Number of times that one spoke after the other.

    @property
    def strength(self) -> int:
        evidence = len(self.sentences) + len(self.carried) + len(self.spoken)
        return min(MAX_STRENGTH, evidence + (self.turns + 1) // 2)


def relations(reading: Reading) -> list[Relation]:
    """Return the relations in a chunk, in order of their first evidence."""
    by_pair: dict[tuple[str, str], Relation] = {}

    def between(one: Thing, other: Thing) -> Relation:
        key = (one.key, other.key) if one.key <= other.key else (other.key, one.key)
        return by_pair.setdefault(key, Relation(one, other))

    carried = set()
    for index, since, subject in _carried_subjects(reading):
        carried.add(index)
        for other in reading.in_sentence.get(index, []):
            if other is not subject and other.kind != CONCEPT:
                between(subject, other).carried.append((since, index))
    for index in range(len(reading.script.sentences)):
        things = reading.in_sentence.get(index, [])
        if not things:
            continue
        # The subject of a sentence is related to all things, the others to nearby ones. Members of a list (A,
        # B and C), except places, are related to the subject but not to one another.
        lists = list_numbers([t.in_sentence[index][0] for t in things], reading.text)
        has_subject = index in carried
        named = not has_subject and (len(things) == 1 or lists[0] != lists[1])
        for i, one in enumerate(things):
            reach = MAX_DISTANCE_WITH_SUBJECT if named or has_subject else MAX_DISTANCE
            for j, other in enumerate(
                things[1:] if named and not i else things[i + 1 : i + 1 + reach], i + 1
            ):
                siblings = (named or has_subject) and lists[i] == lists[j] and one.kind != LOCATION
                # Two terms may share words: machine learning, learning system.
                a, b = _nearest(one.in_sentence[index], other.in_sentence[index])
                overlap = one.kind == other.kind == CONCEPT and a[0] < b[1] and b[0] < a[1]
                if not siblings and not overlap:
                    between(one, other).sentences.append(index)
        speaker = reading.speaks[index]
        if speaker is not None and index not in speaker.in_sentence:
            for other in things:
                between(speaker, other).spoken.append(index)
    speakers = [t for t in (reading.speaks[i] for i in reading.turn_starts) if t is not None]
    for one, other in pairwise(speakers):
        if one is not other:
            between(*sorted((one, other), key=lambda thing: thing.key)).turns += 1
    return [r for r in by_pair.values() if r.strength]


def relation_quote(reading: Reading, relation: Relation) -> str:
    """Quote the best sentence with both things, and the sentence that a pronoun refers to."""
    one, other = relation.source, relation.target
    if relation.sentences:
        return _best(reading, relation.sentences, one, other)
    if relation.carried:
        first, last = min(relation.carried, key=lambda c: (c[1] - c[0], c))
        start, end = reading.sentence(first).start, reading.sentence(last).end
        if end - start > MAX_QUOTE_CHARS:
            return quote(reading, last, [])
        return balanced(fold(reading.text[start:end]))
    if relation.spoken:
        mentioned = other if reading.speaks[relation.spoken[0]] is one else one
        sentences = [i for i in relation.spoken if i in mentioned.in_sentence]  # Each may name the other.
        return _best(reading, sentences, mentioned)
    return CONVERSE


def _carried_subjects(reading: Reading) -> Iterator[tuple[int, int, Thing]]:
    """Return (sentence, earlier sentence, thing) for each pronoun or noun such as `the film`.

    It refers to the last thing of that kind that was the first one in its sentence.
    """
    subjects: dict[int, tuple[Thing, int]] = {}
    for index, sentence in enumerate(reading.script.sentences):
        if index and reading.sentence(index - 1).turn != sentence.turn:
            subjects.clear()
        things = reading.in_sentence.get(index, [])
        meant = next((kind for kind in _meant(reading, index, things) if kind in subjects), None)
        if meant is not None:
            subject, since = subjects[meant]
            yield index, since, subject
            continue
        for thing in reversed(things):
            if thing is things[0] or thing.kind == PERSON:
                subjects[thing.kind] = (thing, index)
        if things and things[0].kind != PERSON:
            subjects[_THING] = (things[0], index)


def _meant(reading: Reading, index: int, things: list[Thing]) -> Iterator[int]:
    """Return the kinds of things that a sentence refers to before it names one of that kind."""
    sentence, text = reading.sentence(index), reading.text
    named = {thing.kind: thing.in_sentence[index][0][0] for thing in reversed(things)}
    pronoun = _THIRD_PERSON.search(text, sentence.start, sentence.end)
    if pronoun is not None and pronoun.start() < named.get(PERSON, sentence.end):
        yield PERSON
    if _IT.match(text, sentence.start, sentence.end):
        yield _THING
    for noun in _THE.finditer(text, sentence.start, min(sentence.end, sentence.start + MAX_REFERRING_CHARS)):
        kind = listed_kind(noun.group(1))
        if kind is not None and noun.start() < named.get(kind, sentence.end):
            yield kind


def _nearest(ones: list[Span], others: list[Span]) -> tuple[Span, Span]:
    """Return the two mentions with the nearest starts. Both lists are sorted."""
    best, i = (ones[0], others[0]), 0
    for one in ones:
        while i + 1 < len(others) and others[i + 1][0] <= one[0]:
            i += 1
        for other in others[i : i + 2]:
            if abs(one[0] - other[0]) < abs(best[0][0] - best[1][0]):
                best = (one, other)
    return best


def _best(reading: Reading, sentences: list[int], *things: Thing) -> str:
    def value(index: int) -> tuple[bool, float, int]:
        sentence = reading.sentence(index)
        return (sentence.whole, -abs(sentence.end - sentence.start - 150), -index)

    best = max(sentences, key=value)
    spans = [t.in_sentence[best] for t in things]
    if len(spans) == 2:
        return quote(reading, best, list(_nearest(*spans)))
    return quote(reading, best, spans[0][:1])


_DELIMITER_LIKE = re.compile(r"<\s{0,2}\|[^<>\n]{0,20}>")
DEFAULT_TYPES = "person, organization, location, event, work"


def extract_records(variables: Mapping[str, str]) -> str:
    """Extract the records of entities and relationships from `text`.

    `("entity"<|>NAME<|>TYPE<|>DESCRIPTION)`, `("relationship"<|>SOURCE<|>TARGET<|>DESCRIPTION<|>STRENGTH)`.
    The header (title, date) is skipped, because it is not part of the text that can be quoted. With a schema,
    only things of its types are extracted.
    """
    has_schema = "relation_definitions" in variables
    types = type_names(variables.get("entity_types", DEFAULT_TYPES), only_exact=has_schema)
    reading = read(variables["text"], types[CONCEPT] is not None)
    rows: list[tuple[str, ...]] = [
        ("entity", thing.title, types[thing.kind] or "", describe(reading, thing))
        for thing in reading.things
        if types[thing.kind] or not has_schema
    ]
    rows += [
        ("relationship", r.source.title, r.target.title, relation_quote(reading, r), str(r.strength))
        for r in relations(reading)
        if not has_schema or (types[r.source.kind] and types[r.target.kind])
    ]
    return _render(rows, variables)


def _render(rows: Iterable[tuple[str, ...]], variables: Mapping[str, str]) -> str:
    """Render records. rows: the kind and the fields of each."""
    field, record = variables.get("field", "<|>"), variables.get("record", "##")
    lines = [
        f'("{kind}"{field}{field.join(without(v, field, record) for v in values)})' for kind, *values in rows
    ]
    return f"\n{record}\n".join(lines) + f"\n{variables.get('completion', '<|COMPLETE|>')}"


def without(value: str, *delimiters: str) -> str:
    """Return the longest balanced part of a value that contains nothing that parses as a delimiter."""
    if "<" not in value and not any(d in value for d in delimiters if d):  # The usual case.
        return value
    parts = [value]
    for delimiter in filter(None, delimiters):
        parts = [p for part in parts for p in part.split(delimiter)]
    parts = [p for part in parts for p in _DELIMITER_LIKE.split(part)]
    return value if len(parts) == 1 else balanced(max(parts, key=len).strip())


MAX_CLAIMS = 8

_MONTHS = list(month_name)
_MONTH = "|".join(_MONTHS[1:])
_DATE = re.compile(
    rf"\b(?:(?P<d1>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?(?P<m1>{_MONTH}),? (?P<y1>\d{{4}})"
    rf"|(?P<m2>{_MONTH}) (?P<d2>\d{{1,2}})(?:st|nd|rd|th)?, (?P<y2>\d{{4}})"
    rf"|(?P<m3>{_MONTH}),? (?P<y3>\d{{4}})|(?P<y4>(?:1[5-9]|20)\d\d))\b"
)
_DOUBT = re.compile(
    r"\b(?:may|might|could|allege[ds]?|alleged(?:ly)?|suspect(?:s|ed)?|reportedly|rumou?r(?:s|ed)?|believed|"
    r"apparently|claim(?:s|ed)?|perhaps|probably|accused?)\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:denie[sd]|deny|denial|untrue|false|never)\b", re.IGNORECASE)
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(rf"\b(?:{words})\b", re.IGNORECASE))
    for kind, words in (
        ("FOUNDING", "founded|founds|co-founded|started|established|set up|launched|created|opened"),
        ("ACQUISITION", "bought|acquired|acquires|purchased|sold|merged|took over|owns|owned"),
        ("APPOINTMENT", "appointed|became|elected|named|joined|hired|promoted|succeeded"),
        ("DEPARTURE", "left|resigned|retired|dismissed|fired|quit|stepped down"),
        ("DECISION", "decided|voted|agreed|ordered|approved|refused|rejected|ruled|signed|banned"),
        ("AWARD", "won|awarded|received|honoured|honored|wins"),
        ("PUBLICATION", "wrote|published|released|painted|composed|invented|discovered|announced"),
        ("HARM", "died|killed|injured|sued|fined|convicted|destroyed|burned|drowned|closed"),
    )
)


def claim_records(variables: Mapping[str, str]) -> str:
    """Extract `("claim"<|>SUBJECT<|>OBJECT<|>TYPE<|>STATUS<|>START<|>END<|>DESCRIPTION<|>QUOTE)` records.

    Includes only claims about the entities listed in `entities`.
    """
    known = {entity_key(e) for e in variables["entities"].split("\n") if e.strip()}
    reading = read(variables["text"], with_terms=False)
    candidates = []
    for index, things in reading.in_sentence.items():
        sentence = reading.sentence(index)
        subjects = [t for t in things if entity_key(t.title) in known]
        text = reading.text[sentence.start : sentence.end]
        if not subjects or not sentence.whole or len(text) > 400 or text.endswith("?"):
            continue
        kind = next((name for name, pattern in _KINDS if pattern.search(text)), "")
        value = 1.0 * bool(kind) + 1.0 * (_DATE.search(text) is not None) + 0.3 * min(3, len(subjects))
        if value >= 1.3:
            candidates.append((-value, index, kind or "EVENT", subjects))
    rows = []
    best = sorted(candidates, key=lambda c: c[:2])[:MAX_CLAIMS]
    for _, index, kind, things in sorted(best, key=lambda c: c[1]):
        places = [p for t in things[:2] for p in t.in_sentence[index]]
        text = quote(reading, index, [p for p in places if p[0] >= reading.sentence(index).start])
        object_ = things[1].title if len(things) > 1 else "NONE"
        start = "NONE"  # The first date in ISO 8601 format, with the stated precision.
        if found := _DATE.search(text):
            parts = {name[0]: value for name, value in found.groupdict().items() if value}
            start = parts["y"]
            if "m" in parts:
                start += f"-{_MONTHS.index(parts['m']):02}"
                start += f"-{int(parts['d']):02}" if 1 <= int(parts.get("d", 0)) <= 31 else ""
        # Patterns cannot determine what exactly is denied.
        status = "SUSPECTED" if _DENIAL.search(text) or _DOUBT.search(text) else "TRUE"
        rows.append(("claim", things[0].title, object_, kind, status, start, start, text, text))
    return _render(rows, variables)
