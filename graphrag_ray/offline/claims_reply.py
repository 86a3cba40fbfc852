"""The answer to the claims prompt: dated and decisive sentences about the entities that were found.

A claim is quoted as it stands. Which sentences state a fact worth keeping is told by patterns: a date, a
sum, or a verb of deciding, founding, winning, dying and their like (open information extraction from
shallow patterns: Etzioni et al. 2008, "Open information extraction from the web", without its learning).
"""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Mapping

from graphrag_ray.base.ids import entity_key
from graphrag_ray.offline.extraction_reply import without
from graphrag_ray.offline.key_sentences import quote
from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.mentions import Reading, Thing, read

MAX_CLAIMS = 8

_MONTHS = [name.lower() for name in month_name]
_MONTH = "|".join(m.capitalize() for m in _MONTHS[1:])
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
    """`("claim"<|>SUBJECT<|>OBJECT<|>TYPE<|>STATUS<|>START<|>END<|>DESCRIPTION<|>QUOTE)` records about
    the entities listed in `entities`."""
    field, record = variables.get("field", "<|>"), variables.get("record", "##")
    completion = variables.get("completion", "<|COMPLETE|>")
    known = {entity_key(e) for e in variables["entities"].split("\n") if e.strip()}
    reading = read(variables["text"], lexicon(), with_terms=False)
    ranked = sorted(_candidates(reading, known), key=lambda c: (-c[0], c[1]))[:MAX_CLAIMS]
    rows = []
    for _, index, kind, things in sorted(ranked, key=lambda c: c[1]):
        places = [p for t in things[:2] for p in t.in_sentence[index]]
        text = quote(reading, index, [p for p in places if p[0] >= reading.sentence(index).start])
        subject, object_ = things[0].title, things[1].title if len(things) > 1 else "NONE"
        start = _date(text)
        row = (subject, object_, kind, _status(text), start, start, text, text)
        rows.append(f'("claim"{field}{field.join(without(v, field, record) for v in row)})')
    return f"\n{record}\n".join(rows) + f"\n{completion}"


def _candidates(reading: Reading, known: set[str]) -> list[tuple[float, int, str, list[Thing]]]:
    """(worth, sentence, kind, the known things in it) of the sentences that state something."""
    out = []
    for index, things in reading.in_sentence.items():
        sentence = reading.sentence(index)
        own = [t for t in things if entity_key(t.title) in known]
        if not own or not sentence.whole or sentence.end - sentence.start > 400:
            continue
        text = reading.text[sentence.start : sentence.end]
        kind = next((name for name, pattern in _KINDS if pattern.search(text)), "")
        worth = 1.0 * bool(kind) + 1.0 * (_DATE.search(text) is not None) + 0.3 * min(3, len(own))
        if worth >= 1.3 and not text.endswith("?"):
            out.append((worth, index, kind or "EVENT", own))
    return out


def _status(text: str) -> str:
    if _DENIAL.search(text):
        return "SUSPECTED"  # what exactly is denied, a pattern cannot tell
    return "SUSPECTED" if _DOUBT.search(text) else "TRUE"


def _date(text: str) -> str:
    """The first date as ISO 8601, as exact as stated, or NONE."""
    found = _DATE.search(text)
    if not found:
        return "NONE"
    groups = found.groupdict()
    year = next(groups[f"y{i}"] for i in (1, 2, 3, 4) if groups[f"y{i}"])
    month = next((groups[f"m{i}"] for i in (1, 2, 3) if groups[f"m{i}"]), None)
    day = groups["d1"] or groups["d2"]
    if month is None:
        return year
    number = _MONTHS.index(month.lower())
    return f"{year}-{number:02}" + (f"-{int(day):02}" if day and 1 <= int(day) <= 31 else "")
