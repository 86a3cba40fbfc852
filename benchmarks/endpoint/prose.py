"""Generate names, excerpts and filler for replies. The text is cheap and meaningless."""

from __future__ import annotations

import re
from random import Random

_NAME = re.compile(r"\b[A-Z][\w’'-]*\w(?: (?:(?:of|de|van|the) )?[A-Z][\w’'-]*\w){0,4}")
_WORD = re.compile(r"\w{7,20}")
_PHRASE = re.compile(r"\b[a-z]{5,14} [a-z]{7,14}\b")
_SENTENCE_ENDS = frozenset('.!?:\n\r"“”—-*#>|')
_COMMON_WORDS = """
    a about after again all also although always am an and another any are as at be because been before
    being both but by can cannot could did do does each either even every few first for from further had has
    have he her here hers him his how however i i'd i'll i'm i've if in indeed into is isn't it it's its
    itself just last later least less let's like many may maybe me meanwhile might mine more most much must
    my neither never next no nobody nor not nothing now of off oh okay on once one only or other our ours out
    over own perhaps please quite rather really right second she should since so some somebody someone
    something sometimes soon still such than thank thanks that that's the their theirs them then there
    there's therefore these they they're this those though through thus to today together tomorrow too
    two under until up upon us very was wasn't we we'd we'll we're we've well were what what's when where
    whether which while who who's whom whose why will with within without would yeah yes yesterday yet you
    you'd you'll you're you've your yours mr mrs ms dr sir dear
    january february march april june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday"""
_COMMON = frozenset(_COMMON_WORDS.split())
_LOREM_WORDS = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et "
    "dolore magna aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea "
    "commodo consequat duis aute irure in reprehenderit voluptate velit esse cillum fugiat nulla pariatur"
)
_LOREM = _LOREM_WORDS.split()
_TOKENS_PER_LOREM = 2.2


def names(text: str) -> list[tuple[str, int]]:
    """Capitalised phrases, each once, with the position of its first mention, in order.

    If there are none, long words are used instead, so that every text yields a graph.
    """
    mentions: dict[str, int] = {}
    candidates: dict[str, int] = {}
    for match in _NAME.finditer(text):
        words = match.group().split(" ")
        dropped = 0
        while words and words[0].lower().replace("’", "'") in _COMMON:
            del words[0]
            dropped += 1
        name = " ".join(words).removesuffix("'s").removesuffix("’s")
        if len(name) < 3:
            continue
        if len(words) == 1 and not dropped and _begins_sentence(text, match.start()):
            candidates.setdefault(name, match.start())
        else:
            mentions.setdefault(name, match.start())
    if mentions:
        return list(mentions.items())
    for match in _WORD.finditer(text):
        candidates.setdefault(match.group().lower(), match.start())
    return list(candidates.items())


def phrases(text: str) -> list[tuple[str, int]]:
    """Pairs of longer words, each once, with their positions.

    Most occur in one passage only, like most concepts that a model finds.
    """
    mentions: dict[str, int] = {}
    for match in _PHRASE.finditer(text):
        mentions.setdefault(match.group().title(), match.start())
    return list(mentions.items())


def _begins_sentence(text: str, at: int) -> bool:
    before = text[max(0, at - 3) : at].rstrip(" ")
    return not before or before[-1] in _SENTENCE_ENDS


def sentence_at(text: str, at: int, most: int = 180) -> str:
    """The sentence around a position, with whitespace collapsed and a maximum length."""
    low, high = max(0, at - most), at + most
    start = max(text.rfind(end, low, at) for end in (". ", "? ", "! ", "\n"))
    start = low if start < 0 else start + 1
    ends = [e for e in (text.find(end, at, high) for end in (". ", "? ", "! ", "\n")) if e >= 0]
    return clean(text[start : min(ends) + 1 if ends else high][:most])


def clean(text: str) -> str:
    """Remove characters that have a meaning in replies."""
    for sign in ("<|", "|>", "##", "[", "]", '"'):
        text = text.replace(sign, " ")
    return " ".join(text.split()).rstrip(".,;: ")


def words(text: str, n: int) -> str:
    """The first n words."""
    return " ".join(text.split(None, n)[:n])


def lorem(tokens: int, rng: Random) -> str:
    """About this many tokens of meaningless sentences."""
    wanted = max(1, round(tokens / _TOKENS_PER_LOREM))
    out: list[str] = []
    while len(out) < wanted:
        sentence = rng.choices(_LOREM, k=min(rng.randint(6, 16), wanted - len(out)))
        out += [sentence[0].capitalize(), *sentence[1:]]
        out[-1] += "."
    return " ".join(out)
