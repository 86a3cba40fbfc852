"""Generate a corpus of any size with a planted graph of people, organisations and places, and one hub.

    python benchmarks/corpus.py OUT --tokens 10_000_000 --seed 1

Writes OUT/part-00000.jsonl … (title, date and text of one document per line), and the planted graph in
OUT.truth: entities.jsonl, relationships.jsonl and summary.json. The output depends only on the seed and the
options. A larger corpus begins with the documents of a smaller one.

How it grows:
- After n tokens, NAMES_SCALE · n^exponent names have been used (Heaps 1978). That is about 6,000 names in the
  first million tokens, as in the podcast corpus of the GraphRAG paper.
- Each document is about one community. A Pitman–Yor process (1997) assigns documents to communities, so
  community sizes follow a power law. Within a community, new names are linked preferentially to names that
  already have links (Barabási and Albert 1999), so degrees follow a power law as well. A share CROSS of the
  links leads to other communities.
- A share FACTS of the sentences state a fact about two names. Of these, a share CHANCE names two members of
  the community that may not be linked, as ordinary text does. All other sentences mention no name.
- The hub is mentioned in half of all chunks of CHUNK_TOKENS tokens.

Text is streamed. Only the graph is held in memory, at about 500 bytes a name. This program shares no code
with graphrag_ray.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from corpus_words import (
    ABOUT,
    ADJECTIVES,
    CODAS,
    DID,
    FIRST,
    NOUNS,
    ONSETS,
    OPENINGS,
    ORGANIZATIONS,
    PLACES,
    TERMS,
    VERBS,
    VOWELS,
    WHEN,
)

NAMES_SCALE = 0.8
CHARACTERS_PER_TOKEN = 4.76
"""Measured on this text with cl100k_base, including the invented names."""
FACTS = 0.38
CHANCE = 0.10
CROSS = 0.12
DISCOUNT, CONCENTRATION = 0.5, 20.0
"""Parameters of the Pitman–Yor process that assigns documents to communities."""
HUB = ("Meridian Trust", "organization")
CHUNK_TOKENS = 600
FILE_CHARACTERS = 1_000_000


@dataclass(slots=True)
class Name:
    text: str
    kind: str
    community: int


@dataclass(slots=True)
class Community:
    """`members`: numbers of names. `ends`: the ends of its ties, with repetitions. `ties`: pairs."""

    members: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    ties: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    date: str
    text: str


class Planted:
    """The graph generated so far. `dealt` holds the community of each document."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: list[Name] = []
        self.communities: list[Community] = []
        self.dealt: list[int] = []
        self.n_ties = 0

    def community_for_document(self) -> int:
        """Draw the community of the next document: an existing one, or a new one."""
        rng, k, n = self.rng, len(self.communities), len(self.dealt)
        if rng.random() * (CONCENTRATION + n) < CONCENTRATION + DISCOUNT * k:
            self.communities.append(Community())
            self.dealt.append(k)
        else:
            self.dealt.append(self.dealt[int(rng.random() * n)])
        return self.dealt[-1]

    def add(self, community: int) -> tuple[int, list[tuple[int, int]]]:
        """Add a name to a community. Returns its number and its ties."""
        rng = self.rng
        number = len(self.names)
        text, kind = spell(number, rng)
        self.names.append(Name(text, kind, community))
        home = self.communities[community]
        ties: list[tuple[int, int]] = []
        for _ in range(1 + int(rng.random() * 3)):
            if number and rng.random() < CROSS:
                other = int(rng.random() * number)
            elif home.members:
                of = home.ends if home.ends and rng.random() < 0.7 else home.members
                other = of[int(rng.random() * len(of))]
            else:
                continue
            if (other, number) not in ties:
                ties.append((other, number))
        home.members.append(number)
        home.ties.extend(ties)
        for tie in ties:
            home.ends.extend(tie)
        self.n_ties += len(ties)
        return number, ties


def spell(number: int, rng: random.Random) -> tuple[str, str]:
    """The unique name with this number, and its kind. Two of five are people."""
    stem = _stem(number)
    kind = rng.random()
    if kind < 0.4:
        return f"{FIRST[int(rng.random() * len(FIRST))]} {stem}", "person"
    if kind < 0.75:
        return f"{stem} {ORGANIZATIONS[int(rng.random() * len(ORGANIZATIONS))]}", "organization"
    return f"{stem} {PLACES[int(rng.random() * len(PLACES))]}", "location"


def _stem(number: int) -> str:
    """An invented word: a mixed-radix numeral with syllables as digits, so it is unique."""
    n_syllables = len(ONSETS) * len(VOWELS)
    span = n_syllables * n_syllables * len(CODAS)
    high, low = divmod(number, span)
    low = low * 100_003 % span  # Prime, so that consecutive numbers do not look alike.
    low, coda = divmod(low, len(CODAS))
    parts = [_syllable(d) for d in (*divmod(low, n_syllables), *_digits(high, n_syllables))]
    return ("".join(parts) + CODAS[coda]).capitalize()


def _digits(number: int, base: int) -> Iterator[int]:
    while number:
        number, digit = divmod(number - 1, base)
        yield digit


def _syllable(digit: int) -> str:
    onset, vowel = divmod(digit, len(VOWELS))
    return ONSETS[onset] + VOWELS[vowel]


class Writer:
    """Writes the documents of a planted graph in sequence."""

    def __init__(self, seed: int, exponent: float) -> None:
        self.rng = random.Random(seed)
        self.exponent = exponent
        self.graph = Planted(self.rng)
        self.characters = 0
        self.hub_sentences = 0
        self.born: list[tuple[int, list[tuple[int, int]]]] = []
        # P(no hub in a chunk) = (1 - p)^(sentences per chunk) = 1/2. A sentence has about 80 characters, and
        # introducing a name takes several sentences.
        self._hub = 1 - 0.5 ** (102 / (CHUNK_TOKENS * CHARACTERS_PER_TOKEN))

    def wanted_names(self) -> float:
        """The number of names that a text of this length should contain."""
        return NAMES_SCALE * (self.characters / CHARACTERS_PER_TOKEN + 1) ** self.exponent

    def document(self, number: int) -> Document:
        rng = self.rng
        community = self.graph.community_for_document()
        length = min(80_000, max(400, int(rng.lognormvariate(8.7, 0.9))))
        paragraphs: list[str] = []
        written = 0
        while written < length:
            paragraph = " ".join([self._sentence(community) for _ in range(4 + int(rng.random() * 5))])
            paragraphs.append(paragraph)
            written += len(paragraph) + 2
            self.characters += len(paragraph) + 2
        term = TERMS[community % len(TERMS)]
        date = f"{1950 + number % 70}-{1 + number % 12:02}-{1 + number % 28:02}"
        return Document(f"Notes on the {term}, {number}", date, "\n\n".join(paragraphs))

    def _sentence(self, community: int) -> str:
        rng, graph = self.rng, self.graph
        random_ = rng.random
        if len(graph.names) < self.wanted_names():
            number, ties = graph.add(community)
            self.born.append((number, ties))
            if ties:
                return " ".join([self._fact(*tie) for tie in ties])
            return f"{graph.names[number].text} {_one(DID, random_)} the {_one(NOUNS, random_)}."
        home = graph.communities[community]
        at = random_()
        if at < self._hub and home.members:
            self.hub_sentences += 1
            member = graph.names[home.members[int(random_() * len(home.members))]].text
            return f"{member} {_one(VERBS, random_)} the {HUB[0]} {_one(ABOUT, random_)}."
        if at < self._hub + FACTS * CHANCE and len(home.members) > 1:
            one, other = (home.members[int(random_() * len(home.members))] for _ in range(2))
            return self._fact(one, other) if one != other else self._filler(community)
        if at < self._hub + FACTS and home.ties:
            # Older ties are mentioned more often.
            return self._fact(*home.ties[int(random_() ** 2 * len(home.ties))])
        return self._filler(community)

    def _fact(self, one: int, other: int) -> str:
        random_, names = self.rng.random, self.graph.names
        if random_() < 0.5:
            one, other = other, one
        verb, about, when = _one(VERBS, random_), _one(ABOUT, random_), _one(WHEN, random_)
        return f"{names[one].text} {verb} {names[other].text} {about} {when}."

    def _filler(self, community: int) -> str:
        random_ = self.rng.random
        adjective, noun, other = _one(ADJECTIVES, random_), _one(NOUNS, random_), _one(NOUNS, random_)
        if random_() < 0.12:
            # Terms of the document itself: neighbours of its community's number.
            term = TERMS[(community + int(random_() * 3)) % len(TERMS)]
            return f"{_one(OPENINGS, random_)} {adjective} {noun} {_one(DID, random_)} the {term}."
        return (
            f"{_one(OPENINGS, random_)} {noun} {_one(DID, random_)} the {adjective} {other} "
            f"{_one(WHEN, random_)}."
        )


def _one(words: list[str], random_: Callable[[], float]) -> str:
    return words[int(random_() * len(words))]


def documents(tokens: int, seed: int, exponent: float = 0.65) -> Iterator[tuple[Document, Writer]]:
    """Yield documents until the number of tokens is reached, each with the state of the writer after it."""
    writer = Writer(seed, exponent)
    number = 0
    while writer.characters < tokens * CHARACTERS_PER_TOKEN:
        yield writer.document(number), writer
        number += 1


def write_corpus(out: Path, tokens: int, seed: int, exponent: float = 0.65) -> dict[str, object]:
    """Write the corpus and its planted graph. Returns the summary."""
    truth = out.with_name(out.name + ".truth")
    for folder in (out, truth):
        folder.mkdir(parents=True)
    n_documents = n_files = in_file = 0
    writer = Writer(seed, exponent)
    stream: IO[str] | None = None
    with (
        (truth / "entities.jsonl").open("w", encoding="utf-8") as entities,
        (truth / "relationships.jsonl").open("w", encoding="utf-8") as relationships,
    ):
        for document, writer in documents(tokens, seed, exponent):
            if stream is None or in_file > FILE_CHARACTERS:
                if stream is not None:
                    stream.close()
                stream = (out / f"part-{n_files:05d}.jsonl").open("w", encoding="utf-8")
                n_files, in_file = n_files + 1, 0
            row = {"title": document.title, "date": document.date, "text": document.text}
            stream.write(json.dumps(row) + "\n")
            n_documents, in_file = n_documents + 1, in_file + len(document.text)
            _write_truth(writer, entities, relationships)
    if stream is not None:
        stream.close()
    graph = writer.graph
    sizes = sorted((len(c.members) for c in graph.communities), reverse=True)
    summary: dict[str, object] = {
        "seed": seed,
        "exponent": exponent,
        "tokens": int(writer.characters / CHARACTERS_PER_TOKEN),
        "characters": writer.characters,
        "documents": n_documents,
        "entities": len(graph.names) + 1,
        "relationships": graph.n_ties,
        "communities": len(sizes),
        "largest_communities": sizes[:10],
        "hub": HUB[0],
        "hub_sentences": writer.hub_sentences,
    }
    (truth / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    return summary


def _write_truth(writer: Writer, entities: IO[str], relationships: IO[str]) -> None:
    names = writer.graph.names
    for number, ties in writer.born:
        name = names[number]
        row = {"name": name.text, "type": name.kind, "community": name.community}
        entities.write(json.dumps(row) + "\n")
        for one, other in ties:
            relationships.write(json.dumps({"source": names[one].text, "target": names[other].text}) + "\n")
    writer.born.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--exponent", type=float, default=0.65, help="Heaps exponent of the vocabulary of names"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    summary = write_corpus(options.out, options.tokens, options.seed, options.exponent)
    print(json.dumps(summary, indent=2))
    seconds = time.perf_counter() - started
    print(f"{int(str(summary['characters'])) / seconds / 1e6:.1f} MB/s")


if __name__ == "__main__":
    main()
