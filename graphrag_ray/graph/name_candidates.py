"""Find pairs of names that may stand for the same thing, for a model to decide (`adjudication.py`).

Names are blocked: each has a few keys (its words, their consonants, its initials, its neighbours in the
graph), and only names that share a key are compared. Within a key, names are sorted and each is compared with
the next `WINDOW` ones (sorted neighbourhood, Hernández and Stolfo 1995), so 100,000 names that share a word
cost no more than 100,000 that do not. Names whose descriptions are alike are found by their embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import regex
from rapidfuzz import fuzz, process

from graphrag_ray.base.ids import entity_key, name_words, stable_id
from graphrag_ray.base.wording import collapse_whitespace
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.name_rules import EXCLUSIVE_TYPES, numbers
from graphrag_ray.graph.nearest_neighbours import Vectors, nearest_neighbours

Ids = npt.NDArray[np.uint64]

WINDOW = 12
"""Number of following names of a key that each name is compared with."""
MAX_RARE = 8
"""Neighbours in the graph connect names only if they have at most this many neighbours themselves."""
MAX_COMMON = 20
"""A word in more names than this is no reason to compare names of which one contains the other: AIRPORT."""
MIN_SIMILARITY, MIN_IN_CONTEXT = 82.0, 68.0
"""Minimum similarity (0 to 100) of names that share a key; the second one if they also share a context."""
_ALIKE, _PART, _CONTAINED, _ACRONYM = 50.0, 80.0, 90.0, 95.0
"""Similarity of names with similar descriptions (at least), of names of which one contains the syllables of
the other (they are many, so they must share a context) or its words, and of an acronym and its full name."""
MAX_DESCRIPTIONS, MAX_DOCUMENTS, MAX_NEIGHBOURS = 3, 2, 6
MAX_DESCRIPTION_CHARS, MAX_TITLE_CHARS = 300, 80
MAX_COMPARED_DOCUMENTS = 20
DIMENSIONS = 64
"""Dimensions of the embeddings that are compared, a random projection of the bundled model's 256."""
MIN_COSINE = 0.75
"""Minimum similarity of the embeddings of two candidates that share a neighbour but no word."""
MIN_SPLIT_COSINE = 0.2
"""Documents whose descriptions of a name are less alike may speak of different things."""
MAX_SPLIT_DOCUMENTS = 12
"""Maximum number of documents of a name that a model sorts by what the name stands for."""
_SEED = 40
_MAX_KEYS = 16
_SYLLABLES = regex.compile(r"[\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}\p{Thai}]")
"""Scripts whose words are short, so that names are compared by their characters."""
_BRACKETS = regex.compile(r"[(（][^()（）]*[)）]\s*$")
_SCRIPT_RUNS = regex.compile(rf"(?:{_SYLLABLES.pattern})+|(?:(?!{_SYLLABLES.pattern}).)+")
_NEIGHBOUR = "n"
_SCORED_PAIRS = 200_000
_MARKS = regex.compile(r"\p{M}+")
_VOWELS = regex.compile(r"[AEIOUYHW\W\d_]+")

KEYS = pa.schema(
    [("key", pa.uint64()), ("is_neighbour", pa.bool_()), ("id", pa.uint64()), ("name", pa.string())]
)
"""Blocking keys of names; `id` is the first 64 bits of the entity's id."""
PAIRS = pa.schema(
    [("a", pa.uint64()), ("b", pa.uint64()), ("similarity", pa.float32()), ("shared", pa.int32())]
)
"""Pairs of names, a < b, the similarity of their spelling (0 to 100), and the number of shared neighbours."""


class DocumentUse(NamedTuple):
    """What one document says of a name."""

    document_id: str
    title: str
    type: str
    n: int
    descriptions: Sequence[str]
    neighbours: Sequence[str]


@dataclass(frozen=True)
class Profile:
    """What all documents say of a name."""

    name: str
    type: str
    n: int
    text: str
    summary: str  # for its embedding
    neighbours: Sequence[str]
    documents: Sequence[str]  # ids of some


def profile(name: str, uses: Sequence[DocumentUse]) -> Profile:
    """Summarise the uses of a name.

    Args:
        uses: Sorted by document id. As ids are hashes, the first ones are a sample that new documents seldom
            change, so that an update asks few questions again.
    """
    votes: dict[str, int] = {}
    for use in uses:
        if use.type:
            votes[use.type] = votes.get(use.type, 0) + use.n
    type_ = min(votes, key=lambda t: (-votes[t], t)) if votes else ""
    shown = uses[:MAX_DOCUMENTS]
    texts = dict.fromkeys(
        collapse_whitespace(text, MAX_DESCRIPTION_CHARS) for use in shown for text in use.descriptions
    )
    neighbours = list(dict.fromkeys(n for use in shown for n in use.neighbours))[:MAX_NEIGHBOURS]
    titles = list(dict.fromkeys(collapse_whitespace(use.title, MAX_TITLE_CHARS) for use in shown))
    descriptions = list(texts)[:MAX_DESCRIPTIONS]
    return Profile(
        name,
        type_,
        sum(use.n for use in uses),
        profile_text(name, type_, descriptions, titles, neighbours),
        f"{name}: {descriptions[0]}" if descriptions else name,
        neighbours,
        [use.document_id for use in uses[:MAX_COMPARED_DOCUMENTS]],
    )


def profile_text(
    name: str, type_: str, descriptions: Sequence[str], titles: Sequence[str], neighbours: Sequence[str]
) -> str:
    """Render a profile for `adjudication.adjudicate`."""
    lines = [
        f"{name} ({type_})" if type_ else name,
        *(f"- {text}" for text in descriptions),
        f"Documents: {'; '.join(titles)}" if titles else "",
        f"Connected with: {', '.join(neighbours)}" if neighbours else "",
    ]
    return "\n".join(line for line in lines if line)


def split_texts(uses: Sequence[DocumentUse]) -> list[str]:
    """Render what each document says of a name, for `adjudication.split`."""
    return [
        profile_text(
            collapse_whitespace(use.title, MAX_TITLE_CHARS),
            use.type,
            [collapse_whitespace(text, MAX_DESCRIPTION_CHARS) for text in use.descriptions],
            [],
            use.neighbours,
        )
        for use in uses
    ]


def blocking_keys(name: str) -> list[str]:
    """Return the keys of a name, without those of its neighbours."""
    plain = _MARKS.sub("", name)
    words = [run for word in name_words(name) for run in _SCRIPT_RUNS.findall(word)]
    keys: dict[str, None] = {}
    for word in words:
        if _SYLLABLES.match(word):
            keys |= dict.fromkeys(f"c{word[i : i + 2]}" for i in range(max(1, len(word) - 1)))
            continue
        if len(word) > 1:
            keys[f"w{word}"] = None
        skeleton = word[0] + _VOWELS.sub("", word[1:])
        if len(skeleton) > 2:
            keys[f"k{skeleton[:4]}"] = None
    if len(words) > 1:
        keys["i" + "".join(word[0] for word in words)[:8]] = None
    elif words and 2 <= len(words[0]) <= 6:
        keys[f"i{words[0]}"] = None
    joined = "".join(words) or plain
    keys[f"j{joined[:5]}"] = None
    if len(words) > 1:
        keys["s" + " ".join(sorted(words))] = None
    return [*keys][:_MAX_KEYS]


def key_rows(profiles: Sequence[tuple[int, str, Sequence[str]]]) -> pa.Table:
    """Return `KEYS` of profiles: (id, name, neighbours)."""
    rows: list[tuple[Any, ...]] = []
    for id_, name, neighbours in profiles:
        rows += ((_hash(key), False, id_, name) for key in blocking_keys(name))
        rows += ((_hash(_NEIGHBOUR + other), True, id_, name) for other in neighbours)
    columns = list(zip(*rows, strict=True)) or [()] * len(KEYS)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, KEYS, strict=True)], schema=KEYS)


def _hash(key: str) -> int:
    return int(stable_id("blocking key", key)[:16], 16)


def block_pairs(rows: pa.Table) -> pa.Table:
    """Return `PAIRS` of the names that share keys. `rows` are all `KEYS` of each of some keys."""
    rows = rows.sort_by([("key", "ascending"), ("name", "ascending")])
    key, id_ = rows["key"].to_numpy(), rows["id"].to_numpy()
    is_neighbour = rows["is_neighbour"].to_numpy(zero_copy_only=False).astype(np.bool_)
    _, position, size = np.unique(key, return_inverse=True, return_counts=True)
    usable = ~is_neighbour | (size[position] <= MAX_RARE)
    left: list[Ints] = []
    right: list[Ints] = []
    for distance in range(1, min(WINDOW, len(key) - 1) + 1):
        first = np.flatnonzero((key[:-distance] == key[distance:]) & usable[:-distance])
        first = first[id_[first] != id_[first + distance]]
        left.append(first)
        right.append(first + distance)
    if not left:
        return PAIRS.empty_table()
    i, j = np.concatenate(left), np.concatenate(right)
    names = rows["name"].combine_chunks()
    tables = []
    for start in range(0, len(i), _SCORED_PAIRS):
        a, b = i[start : start + _SCORED_PAIRS], j[start : start + _SCORED_PAIRS]
        tables.append(_scored(id_, names, is_neighbour, size[position[a]] <= MAX_COMMON, a, b))
    return _best(pa.concat_tables([PAIRS.empty_table(), *tables]))


def _scored(id_: Ids, names: pa.Array, is_neighbour: Any, is_rare: Any, a: Ints, b: Ints) -> pa.Table:
    left, right = names.take(pa.array(a)).to_pylist(), names.take(pa.array(b)).to_pylist()
    similarity = similarities(left, right, is_rare)
    near = is_neighbour[a]
    keep = near | (similarity >= MIN_IN_CONTEXT)
    pairs = zip(keep.tolist(), left, right, strict=True)
    allowed = [bool(kept) and may_be_same(x, y) for kept, x, y in pairs]
    rows = np.flatnonzero(allowed)
    similarity = np.where(similarity >= MIN_IN_CONTEXT, similarity, 0).astype(np.float32)
    low, high = np.minimum(id_[a], id_[b])[rows], np.maximum(id_[a], id_[b])[rows]
    return pa.table([low, high, similarity[rows], near[rows].astype(np.int32)], schema=PAIRS)


def may_be_same(a: str, b: str) -> bool:
    """Whether a model may merge two names. Names with different numbers are different."""
    numbers_a, numbers_b = numbers(a), numbers(b)
    return not numbers_a or not numbers_b or numbers_a == numbers_b


def similarities(left: Sequence[str], right: Sequence[str], is_rare: Any) -> Vectors:
    """Compare names pairwise: 0 to 100.

    Names are alike if they differ in few letters, in any order of words; if one consists of words of the
    other and they share a rare key; and if one is the acronym of the other. Names of which one consists of
    syllables of the other are less alike.
    """
    plain = [[" ".join(name_words(name)) or name for name in names] for names in (left, right)]
    compare = partial(process.cpdist, *plain, workers=1)
    scores = np.maximum(compare(scorer=fuzz.ratio), compare(scorer=fuzz.token_sort_ratio))
    contained = (compare(scorer=fuzz.token_set_ratio) >= 100) & is_rare
    scores = np.where(contained, np.maximum(scores, _CONTAINED), scores)
    part = np.array(
        [a != b and (_is_part(a, b) or _is_part(b, a)) for a, b in zip(*plain, strict=True)], bool
    )
    scores = np.where(part, _PART, scores)
    for n in np.flatnonzero((scores < MIN_SIMILARITY) & ~part).tolist():
        short, long = sorted((plain[0][n], plain[1][n]), key=lambda name: (len(name), name))
        if _is_acronym(short, long):
            scores[n] = _ACRONYM
    return np.asarray(scores, dtype=np.float32)


def _is_part(short: str, long: str) -> bool:
    """Whether a name consists of some syllables in a row of another one."""
    return bool(_SYLLABLES.match(short)) and short in long


def _is_acronym(short: str, long: str) -> bool:
    """Whether a name consists of the initials of another one, or of some of its syllables in order.

    Args:
        short, long: Words, separated by spaces.
    """
    letters = short.replace(" ", "")
    if _SYLLABLES.match(letters):
        rest = iter(long)
        return len(letters) > 1 and all(c in rest for c in letters)
    if not 2 <= len(letters) <= 6 or " " not in long:
        return False
    return "".join(word[0] for word in long.split()).startswith(letters)


def _best(pairs: pa.Table) -> pa.Table:
    """Return each pair once, with its highest similarity and the sum of its shared neighbours."""
    if not pairs.num_rows:
        return pairs
    grouped = pairs.group_by(["a", "b"], use_threads=False)
    best = grouped.aggregate([("similarity", "max"), ("shared", "sum")])
    return best.rename_columns(PAIRS.names).cast(PAIRS)


def reduced(vectors: Vectors) -> Vectors:
    """Project embeddings [N, 256] at random to [N, DIMENSIONS]."""
    generator = np.random.default_rng(_SEED)
    projection = generator.standard_normal((vectors.shape[1], DIMENSIONS)).astype(np.float32)
    return np.asarray(vectors @ projection, dtype=np.float32)


def alike_pairs(ids: Ids, vectors: Vectors, k: int) -> pa.Table:
    """Return `PAIRS` of the names [N] whose embeddings [N, DIMENSIONS] are alike, with low similarities."""
    neighbours, cosines, _ = nearest_neighbours(vectors, k)
    rows, columns = np.nonzero(cosines >= MIN_COSINE)
    a, b = ids[rows], ids[neighbours[rows, columns]]
    share = (cosines[rows, columns] - MIN_COSINE) / (1 - MIN_COSINE)
    similarity = (_ALIKE + share * (MIN_IN_CONTEXT - _ALIKE - 1)).astype(np.float32)
    columns_of = [np.minimum(a, b), np.maximum(a, b), similarity, np.zeros(len(a), np.int32)]
    return pa.table(columns_of, schema=PAIRS)


def choose_candidates(pairs: pa.Table, alike: pa.Table, mentions: tuple[Ids, Ints], k: int) -> pa.Table:
    """Choose the pairs that a model decides: of each name, the `k` most similar ones.

    Args:
        pairs: `PAIRS` of all keys.
        alike: `PAIRS` of names whose descriptions are alike. They also need a shared neighbour.
        mentions: Ascending ids of all names, and their numbers of mentions.

    Returns:
        Columns anchor and candidate, sorted. An anchor has at most `k` candidates, which usually have more
        mentions, so that names in an update become anchors themselves.
    """
    merged = _best(pa.concat_tables([pairs, alike]))
    is_similar = pc.greater_equal(merged["similarity"], MIN_IN_CONTEXT)
    is_alike = pc.and_(pc.greater_equal(merged["similarity"], _ALIKE), pc.greater(merged["shared"], 0))
    merged = merged.filter(pc.or_(is_similar, is_alike))
    a, b = merged["a"].to_numpy(), merged["b"].to_numpy()
    rank = merged["similarity"].to_numpy() + 6.0 * np.minimum(merged["shared"].to_numpy(), 3)
    # Rank the pairs of each name.
    ends, other = np.concatenate([a, b]), np.concatenate([b, a])
    order = np.lexsort((other, -np.concatenate([rank, rank]), ends))
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ends[order]) != 0])[: len(order)])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    among_a, among_b = place[: len(a)] < k, place[len(a) :] < k
    ids, n = mentions
    n_a, n_b = (n[np.searchsorted(ids, end)] for end in (a, b))
    of_a = among_a & (~among_b | (n_a < n_b) | ((n_a == n_b) & (a > b)))
    kept = among_a | among_b
    anchor, candidate = np.where(of_a, a, b)[kept], np.where(of_a, b, a)[kept]
    order = np.lexsort((candidate, anchor))
    return pa.table({"anchor": anchor[order], "candidate": candidate[order]})


def is_candidate(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether a model should decide about two names that `choose_candidates` chose.

    Names that are spelled almost alike are always candidates, and so are names of one type of which one
    contains the words of the other. Other names must occur in one document or share a neighbour. If only
    their descriptions are similar, they must not occur in one document, where sentences tell of several
    things.

    Args:
        a, b: Fields name, type, neighbours and documents of `Profile`.
    """
    spelling = similarities([a["name"]], [b["name"]], False)[0]
    if MIN_SIMILARITY <= spelling != _ACRONYM:
        return True
    words_a, words_b = (set(name_words(name["name"])) for name in (a, b))
    contained = words_a <= words_b or words_b <= words_a
    if contained and spelling != _PART and a["type"] == b["type"] in EXCLUSIVE_TYPES:
        return True
    in_one_document = not set(a["documents"]).isdisjoint(b["documents"])
    if not in_one_document and set(a["neighbours"]).isdisjoint(b["neighbours"]):
        return False
    if contained or spelling >= MIN_IN_CONTEXT:
        return True
    return a["type"] == b["type"] and not in_one_document


def may_be_several(name: str, uses: Sequence[DocumentUse], cosines: Vectors) -> bool:
    """Whether a name in several documents may stand for several things.

    That is so if its descriptions fall apart into groups that are not alike, if it has types that exclude
    each other, or if it is the title of several documents: JOHN ORME (ARCHITECT), JOHN ORME (FOOTBALLER).

    Args:
        cosines: [uses, uses] similarity of the descriptions.
    """
    titles = {use.title for use in uses if entity_key(_BRACKETS.sub("", use.title)) == name}
    if len(titles) > 1:
        return True
    if all(use.type == "CONCEPT" for use in uses):
        return False
    alike = np.triu(cosines >= MIN_SPLIT_COSINE, 1)
    connected = np.linalg.matrix_power(alike | alike.T | np.eye(len(uses), dtype=np.bool_), len(uses))
    return not connected.all() or len({use.type for use in uses} & EXCLUSIVE_TYPES) > 1
