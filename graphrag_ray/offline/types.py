"""What kind of thing a name names: honorifics, suffixes, speaker labels, patterns and verbs beside it.

Every cue votes for a type, the most votes win; without any cue a name is an organisation, which is what
most unknown names of running text are. The vote is then mapped to the types that the prompt asks for.
"""

from __future__ import annotations

from functools import lru_cache

from graphrag_ray.offline.lexicon import Lexicon, lexicon
from graphrag_ray.offline.names import Mention, Name, looks_like_person

PERSON, ORGANIZATION, LOCATION, EVENT, WORK, CONCEPT = range(6)
_ORDER = (PERSON, ORGANIZATION, LOCATION, WORK, EVENT, CONCEPT)

_KINDS = ("person", "organization", "location", "event", "work", "concept")
_NEAREST: dict[int, int] = {EVENT: CONCEPT, WORK: CONCEPT}


@lru_cache(maxsize=64)
def type_names(entity_types: str) -> tuple[str | None, ...]:
    """The requested type for PERSON … CONCEPT, upper case.

    entity_types: comma-separated, as in the prompt. A kind without a counterpart goes to the nearest one
    that has, else to the first generic type (thing, other, …), else, for names, to the first type of the
    list; CONCEPT without a counterpart is None: nobody asked for terms.
    """
    wanted = [t.strip() for t in entity_types.split(",") if t.strip()] or ["entity"]
    cues = lexicon().cues
    direct: dict[int, str] = {}
    for name in wanted:
        parts = name.lower().replace("_", " ").replace("-", " ").split()
        for kind, section in enumerate(_KINDS):
            if any(part in cues[f"type_{section}"] for part in parts):
                direct.setdefault(kind, name.upper())
    generic = next((t.upper() for t in wanted if t.lower() in cues["type_generic"]), None)
    out: list[str | None] = []
    for kind in range(len(_KINDS)):
        found = direct.get(kind) or direct.get(_NEAREST.get(kind, -1)) or generic
        out.append(found if found or kind == CONCEPT else wanted[0].upper())
    return tuple(out)


def classify(name: Name, lexicon: Lexicon) -> int:
    """PERSON … WORK for a name, by its own words and the words beside its mentions."""
    if name.speaker:
        return PERSON
    votes = [0.0] * 6
    _by_words(name, votes, lexicon)
    for mention in name.mentions[:8]:
        _by_context(name, mention, votes, lexicon)
    best = max(votes)
    if best <= 0:
        return ORGANIZATION
    return next(kind for kind in _ORDER if votes[kind] == best)


def _by_words(name: Name, votes: list[float], lexicon: Lexicon) -> None:
    cues, words = lexicon.cues, name.words
    phrase, first, last = " ".join(words), words[0], words[-1].split("-")[-1]
    if name.person:
        votes[PERSON] += 5
    if name.quoted:
        votes[WORK] += 4
    if phrase in cues["place"] or phrase in cues["place_phrase"]:
        votes[LOCATION] += 4
    if looks_like_person(words, lexicon):
        votes[PERSON] += 3.5 if first in cues["first_name"] else 2.5
    if len(words) == 1:
        if first in cues["first_name"]:
            votes[PERSON] += 2.5
        if name.title.isupper() and len(first) <= 5:
            votes[ORGANIZATION] += 0.5
        if any(c.isdigit() for c in first):
            votes[WORK] += 2
        return
    head = words[0]
    if "of" in words[1:-1] or "for" in words[1:-1]:
        at = words.index("of") if "of" in words else words.index("for")
        head = words[at - 1]
        votes[ORGANIZATION] += 3.5 * (head in cues["org_of"])
        votes[LOCATION] += 3 * (head in cues["loc_of"] and head not in cues["org_of"])
    for kind, section, weight in (
        (ORGANIZATION, "org_suffix", 3.0),
        (LOCATION, "loc_suffix", 3.0),
        (EVENT, "event_suffix", 3.2),
        (WORK, "work_suffix", 2.6),
    ):
        if last in cues[section] or (last.endswith("s") and last[:-1] in cues[section]):
            votes[kind] += weight
    if first in ("storm", "hurricane", "operation", "battle", "typhoon"):
        votes[EVENT] += 3.5
    if first in ("mount", "lake", "port", "cape", "fort", "isle", "st", "saint", "river"):
        votes[LOCATION] += 1.5
    if all(lexicon.is_ordinary(w) for w in words) and words[0] in lexicon.function:
        votes[WORK] += 2
    if any(c.isdigit() for c in words[-1]):
        votes[WORK] += 2


def _by_context(name: Name, mention: Mention, votes: list[float], lexicon: Lexicon) -> None:
    run = mention.run
    if run is None:
        return
    cues = lexicon.cues
    single = len(name.words) == 1
    if run.after in cues["say"] or run.after in cues["person_next"]:
        votes[PERSON] += 1.0
    if run.before in cues["role"] and run.before not in (
        "guest",
        "staff",
        "member",
        "partner",
        "lead",
        "senior",
    ):
        votes[PERSON] += 1.0
    if run.before in cues["before_place"]:
        votes[LOCATION] += 0.8 if single else 0.4
    if run.before in cues["before_organization"] or run.before2 in cues["head_of"]:
        votes[ORGANIZATION] += 0.7
    if run.before in cues["before_work"] or run.before2 in cues["before_work"]:
        votes[WORK] += 0.8
    if run.before in cues["before_company"] or run.before2 in cues["before_company"]:
        votes[ORGANIZATION] += 1.0
    if run.before == "during":
        votes[EVENT] += 1.5
