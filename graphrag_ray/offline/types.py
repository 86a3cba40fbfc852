"""What kind of thing a name names: honorifics, suffixes, speaker labels, patterns and verbs beside it.

Every cue votes for a type, the most votes win (the cues of rule-based recognisers since the MUCs, e.g.
Mikheev, Moens and Grover 1999, "Named entity recognition without gazetteers"); without any cue a name is
an organisation, which is what most unknown names of running text are. The vote is then mapped to the
types that the prompt asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from graphrag_ray.offline.capital_runs import is_personal
from graphrag_ray.offline.chunk_names import Mention, Name, looks_like_person
from graphrag_ray.offline.lexicon import Lexicon, lexicon
from graphrag_ray.offline.sentences import Sentence
from graphrag_ray.offline.type_cues import (
    CONCEPT,
    EVENT,
    LOCATION,
    ORGANIZATION,
    PERSON,
    WORK,
    stated_kinds,
)

MAX_MENTIONS = 8
"""So many mentions vote; more change little."""

MAX_GAP = 60
"""Characters between two names of one list."""
LIST_SHARE = 0.5
LONG = 1.5
"""What a suffix gains behind two other words: many surnames are ordinary words, most third words are not."""

_BETWEEN = re.compile(r"[\"”’']?\s?(?:\([^()]*\)\s?)?(?:,\s?(?:and |or |& )?|and |or |& )[\"“]?\s?")

_ORDER = (PERSON, ORGANIZATION, LOCATION, WORK, EVENT, CONCEPT)
_KINDS = ("person", "organization", "location", "event", "work", "concept")
_NEAREST: dict[int, int] = {EVENT: CONCEPT, WORK: CONCEPT}
_SUFFIXES = (
    (ORGANIZATION, "org_suffix", 3.0),
    (LOCATION, "loc_suffix", 3.0),
    (EVENT, "event_suffix", 3.2),
    (WORK, "work_suffix", 2.6),
)

Votes = list[float]


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


def place_heads(names: dict[str, Name], lexicon: Lexicon) -> frozenset[str]:
    """Words that head the names of civic things (Varnmouth of Varnmouth Town Council): places."""
    civic = lexicon.cues["civic"]
    return frozenset(
        n.words[0] for n in names.values() if len(n.words) > 1 and any(w in civic for w in n.words[1:])
    )


def votes_for(
    name: Name, text: str, sentences: list[Sentence], lexicon: Lexicon, heads: frozenset[str]
) -> Votes:
    """PERSON … CONCEPT: votes for a name, by its own words and the words beside its mentions.

    heads: of `place_heads`.
    """
    votes = [0.0] * len(_KINDS)
    if name.speaker:
        votes[PERSON] = 100.0
    if name.quoted:
        votes[WORK] += 4
    if len(name.words) == 1:
        _by_word(name, votes, lexicon, heads)
    else:
        _by_words(name, votes, lexicon)
    for mention in name.mentions[:MAX_MENTIONS]:
        _by_context(name, mention, votes, lexicon)
        sentence = sentences[mention.sentence]
        within = (sentence.start, sentence.end)
        for kind, weight in stated_kinds(text, mention.start, mention.end, within, lexicon):
            votes[kind] += weight
    return votes


def share_in_lists(names: Iterable[Name], votes: Mapping[str, Votes], text: str) -> dict[str, Votes]:
    """The votes with those of the names that stand in one list with it (A, B and C are of one kind)."""
    places = sorted((m.start, m.end, n.key) for n in names for m in n.mentions if not m.label)
    lists: list[list[str]] = []
    last = -1
    for start, end, key in places:
        if 0 <= last <= start and in_one_list(text, last, start):
            lists[-1].append(key)
        else:
            lists.append([key])
        last = end
    shared = {key: list(own) for key, own in votes.items()}
    for members in lists:
        for kind in range(len(_KINDS)) if len(members) > 1 else ():
            first, second = sorted((votes[key][kind] for key in members), reverse=True)[:2]
            for key in members:
                best = second if votes[key][kind] == first else first
                shared[key][kind] += LIST_SHARE * best if best >= 1 else 0.0
    return shared


def in_one_list(text: str, end: int, start: int) -> bool:
    """Whether only a comma, `and`, `or` and brackets stand between the end of one name and the start of
    another."""
    return start - end <= MAX_GAP and _BETWEEN.fullmatch(text, end, start) is not None


def kind_of(votes: Votes) -> int:
    """PERSON … CONCEPT, the type with most votes; without any an organisation."""
    best = max(votes)
    if best <= 0:
        return ORGANIZATION
    return next(kind for kind in _ORDER if votes[kind] == best)


def _by_word(name: Name, votes: Votes, lexicon: Lexicon, heads: frozenset[str]) -> None:
    cues, word = lexicon.cues, name.words[0]
    votes[PERSON] += 5.0 * name.person + 2.5 * (word in cues["first_name"])
    votes[LOCATION] += 4.0 * (word in cues["place"]) + 1.2 * (word in heads)
    votes[ORGANIZATION] += 0.5 + 1.0 * (name.title.isupper() and len(word) <= 5)
    votes[ORGANIZATION] += 1.0 * any(c.isupper() for c in name.title[1:])
    votes[WORK] += 2.0 * any(c.isdigit() for c in word)


def _by_words(name: Name, votes: Votes, lexicon: Lexicon) -> None:
    cues = lexicon.cues
    words = name.words[: len(name.title.partition(",")[0].split())]  # Ostrey School, Denholm
    phrase, first, last = " ".join(words), words[0], words[-1].split("-")[-1]
    votes[LOCATION] += 4.0 * (phrase in cues["place"] or phrase in cues["place_phrase"])
    if "&" not in words and looks_like_person(name.title, lexicon):
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
        ruler = is_personal(list(words[:personal]), lexicon) and (
            personal < len(words) or first not in cues["first_name"]
        )
        votes[PERSON] += 3.5 * ruler
    suffixed = False
    for kind, section, weight in _SUFFIXES:
        if last in cues[section] or (last.endswith("s") and last[:-1] in cues[section]):
            votes[kind] += weight + LONG * (len(words) > 2 and kind != LOCATION)  # Orla Quist Prize
            suffixed = True
    votes[PERSON] += (1.0 if suffixed and first not in cues["first_name"] else 5.0) * name.person
    votes[ORGANIZATION] += 2.0 * ("&" in words)
    votes[EVENT] += 3.5 * (first in cues["event_first"])
    votes[LOCATION] += 1.5 * (first in cues["place_first"])
    votes[WORK] += 2.0 * (first in lexicon.function and all(lexicon.is_ordinary(w) for w in words))
    votes[WORK] += 2.0 * any(c.isdigit() for c in last)


def _by_context(name: Name, mention: Mention, votes: Votes, lexicon: Lexicon) -> None:
    run = mention.run
    if run is None:
        return
    cues, single = lexicon.cues, len(name.words) == 1
    before = (run.before, run.before2)
    if not (single and name.title.isupper()):
        votes[PERSON] += 1.0 * (run.after in cues["say"] or run.after in cues["person_next"])
    votes[PERSON] += 1.0 * (run.before in cues["role"] and run.before not in cues["loose_role"])
    votes[LOCATION] += (1.2 if single else 0.4) * (run.before in cues["before_place"])
    votes[LOCATION] += (0.4 if single else 0.2) * (run.before in cues["beside_place"])
    votes[LOCATION] += 0.1 * (single and run.before in ("of", "to", "from"))
    votes[ORGANIZATION] += 0.7 * (run.before in cues["before_organization"] or run.before2 in cues["head_of"])
    votes[ORGANIZATION] += 1.0 * any(b in cues["before_company"] for b in before)
    votes[WORK] += 0.8 * any(b in cues["before_work"] for b in before)
    votes[EVENT] += 1.5 * (run.before == "during")
