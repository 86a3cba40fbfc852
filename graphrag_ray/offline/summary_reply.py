"""The answer to the summary prompt: a title of words that many of the texts share, then quotations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from graphrag_ray.offline.answers import records_of
from graphrag_ray.offline.description_reply import CHARS_PER_TOKEN
from graphrag_ray.offline.summarise import MAX_SENTENCES, content_stems, lexrank, mmr, similarities
from graphrag_ray.offline.units import stands_alone

MOST_QUOTES = 12
TITLE_WORDS = 4
_WORD = re.compile(r"[^\W\d_][\w'’-]*")


def summary(variables: Mapping[str, str]) -> str:
    """Sentences of the texts by LexRank and MMR, at least one of each text as far as there is room, in the
    order of the texts."""
    records = [r for r in records_of(variables["context"]) if r.sentences]
    texts = [s for record in records for s in record.sentences][:MAX_SENTENCES]
    owner = [at for at, record in enumerate(records) for _ in record.sentences][:MAX_SENTENCES]
    if not texts:
        shown = [record.title for record in records_of(variables["context"])]
        return (
            f"{'; '.join(shown)[:100] or 'Nothing to read'}\n\nThe texts hold no sentence that can be quoted."
        )
    tokens = variables.get("max_tokens", "")
    room = int((int(tokens) if tokens.isdigit() and int(tokens) else 400) * CHARS_PER_TOKEN * 0.8)
    stems = [content_stems(t) for t in texts]
    similarity = similarities(stems)
    relevance = lexrank(similarity) * np.array([stands_alone(t) for t in texts])
    order = mmr(np.maximum(relevance, 0.001), similarity, len(texts))
    first = {owner[i]: i for i in reversed(order)}  # the best of each text
    chosen: list[int] = []
    used = 0
    for i in dict.fromkeys([*sorted(first.values(), key=order.index), *order]):
        if len(chosen) == MOST_QUOTES or (chosen and used + len(texts[i]) > room):
            break
        chosen.append(i)
        used += len(texts[i]) + 3
    quoted = " ".join(f"“{texts[i]}”" for i in sorted(chosen))
    return f"{_title(texts, stems, owner)}\n\n{quoted}"


def _title(texts: Sequence[str], stems: Sequence[Sequence[str]], owner: Sequence[int]) -> str:
    """The words that most texts share, as they are written most often."""
    of_text: dict[int, set[str]] = {}
    for own, at in zip(stems, owner, strict=True):
        of_text.setdefault(at, set()).update(own)
    shared = Counter(s for own in of_text.values() for s in own)
    total = Counter(s for own in stems for s in own)
    best = sorted(shared, key=lambda s: (-shared[s], -total[s], s))[:TITLE_WORDS]
    written: dict[str, Counter[str]] = {s: Counter() for s in best}
    for text in texts:
        for word in _WORD.findall(text):
            for stem in content_stems(word)[:1]:
                if stem in written:
                    written[stem][word] += 1
    words = [min(forms, key=lambda w: (-forms[w], w)) for forms in written.values() if forms]
    return ", ".join(words) or " ".join(texts[0].split()[:8])
