"""Change a corpus written by `corpus.py`: folders of .jsonl files with one document per line.

Documents are identified by their titles. Unchanged files are hard links to the original files, so they keep
their size and modification time. Changed files are rewritten. The seed determines every change.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

SHARE = 0.01
PASSAGE = 0.2
"""Share of a changed document's sentences that are replaced, all at one position."""
SOURCES = 4
"""Number of documents whose text is combined into an added one."""

_SENTENCE = re.compile(r".+?(?:\.\s+|\Z)", re.DOTALL)


class Place(NamedTuple):
    """Position of a document: number of its file, in the order of names, and number of its line."""

    file: int
    line: int


class Corpus:
    """The files of a folder and their numbers of documents."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jsonl"))
        self.sizes = [sum(1 for _ in _lines(file)) for file in self.files]

    def places(self) -> list[Place]:
        return [Place(file, line) for file, n in enumerate(self.sizes) for line in range(n)]

    def rows(self, places: Iterable[Place]) -> dict[Place, dict[str, str]]:
        """The documents at these positions."""
        wanted = defaultdict(set)
        for place in places:
            wanted[place.file].add(place.line)
        return {
            Place(file, line): json.loads(text)
            for file, lines in wanted.items()
            for line, text in enumerate(_lines(self.files[file]))
            if line in lines
        }

    def from_file(self, file: int) -> Iterator[dict[str, str]]:
        """All documents, beginning with this file and wrapping around to the first."""
        for path in self.files[file:] + self.files[:file]:
            yield from map(json.loads, _lines(path))


def link_files(folder: Path, to: Path) -> None:
    """Hard-link the files of a folder into another folder. Where that is impossible, copy them with their
    modification time."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, copy_function=_link)


def _link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)


def edit(corpus: Corpus, folder: Path, changed: int, added: int, deleted: int, seed: int) -> None:
    """Change, add and delete documents in `folder`, which has the files of the corpus."""
    dice = random.Random(seed)
    drawn = dice.sample(corpus.places(), changed + deleted)
    edited, gone = drawn[:changed], set(drawn[changed:])
    others = sorted(set(corpus.places()).difference(drawn))
    sources = {place: dice.sample(others, 1) for place in edited}
    parts = [dice.sample(others, SOURCES) for _ in range(added)]
    rows = corpus.rows([*edited, *(p for of in (*sources.values(), *parts) for p in of)])
    texts = {place: row["text"] for place, row in rows.items()}
    now = {
        place: rows[place] | {"text": with_passage(texts[place], texts[source], dice)}
        for place, (source,) in sources.items()
    }
    more = defaultdict(list)
    for number, of in enumerate(parts):
        text = "\n\n".join(passage(texts[place], 1 / SOURCES, dice) for place in of)
        row = {"title": f"Added notes, {number}", "date": rows[of[0]]["date"], "text": text}
        more[dice.randrange(len(corpus.files))].append(row)
    for file in sorted({place.file for place in drawn} | more.keys()):
        _rewrite(corpus, folder, file, now, gone, more[file])


def replace_file(corpus: Corpus, folder: Path, other: Corpus) -> None:
    """Give the documents of the middle file in `folder` texts of another corpus."""
    file = len(corpus.files) // 2
    places = [Place(file, line) for line in range(corpus.sizes[file])]
    texts = islice(cycle(other.from_file(min(file, len(other.files) - 1))), len(places))
    rows = corpus.rows(places)
    now = {place: rows[place] | {"text": row["text"]} for place, row in zip(places, texts, strict=True)}
    _rewrite(corpus, folder, file, now, (), ())


def with_passage(text: str, source: str, dice: random.Random) -> str:
    """Replace a fifth of the sentences of a text, at one position, with sentences of another text."""
    sentences = _SENTENCE.findall(text)
    n = max(1, round(len(sentences) * PASSAGE))
    at = dice.randint(0, len(sentences) - n)
    new = _some(_SENTENCE.findall(source), n, dice)
    return "".join([*sentences[:at], *new, *sentences[at + n :]]).strip()


def passage(text: str, share: float, dice: random.Random) -> str:
    """Consecutive sentences of a text, a share of all."""
    sentences = _SENTENCE.findall(text)
    return "".join(_some(sentences, max(1, round(len(sentences) * share)), dice)).strip()


def _some(sentences: Sequence[str], n: int, dice: random.Random) -> list[str]:
    at = dice.randint(0, max(0, len(sentences) - n))
    return [sentence.rstrip() + " " for sentence in sentences[at : at + n]]


def _rewrite(
    corpus: Corpus,
    folder: Path,
    file: int,
    now: Mapping[Place, Mapping[str, str]],
    gone: Iterable[Place],
    more: Sequence[Mapping[str, str]],
) -> None:
    path = folder / corpus.files[file].name
    path.unlink()  # It is a hard link to the original file.
    with path.open("w", encoding="utf-8") as out:
        for line, text in enumerate(_lines(corpus.files[file])):
            place = Place(file, line)
            if place not in gone:
                out.write(json.dumps(now[place]) + "\n" if place in now else text)
        out.writelines(json.dumps(row) + "\n" for row in more)


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8") as lines:
        yield from lines
