"""Remove repeated sentences from texts that a model sees together."""

from __future__ import annotations

from collections.abc import Iterable

from graphrag_ray.corpus.boundaries import sentences

_QUOTES_TO_UNIFY = dict.fromkeys(map(ord, '"“”„‟«»'), None) | dict.fromkeys(map(ord, "‘’"), "'")


def comparison_key(text: str) -> str:
    """Return a key that is equal for texts that say the same in the same words.

    It ignores quotation marks, the case of the first letter and a final full stop.
    """
    plain = text.translate(_QUOTES_TO_UNIFY).rstrip(" .。")
    return plain[:1].lower() + plain[1:] or text


def distinct_sentences(texts: Iterable[str]) -> list[str]:
    """Return the texts without the sentences at their ends that they or earlier texts contain already.

    A repeated sentence stays if a new one follows it, which may refer to it ("It burned in 2015"). A text
    that says nothing new becomes empty. Takes linear time.
    """
    seen: set[str] = set()
    result = []
    for text in texts:
        spans, end, is_complete = sentences(text), 0, True
        for sentence_start, sentence_end in spans:
            key = comparison_key(" ".join(text[sentence_start:sentence_end].split()))
            is_complete = key not in seen
            if is_complete:
                seen.add(key)
                end = sentence_end
        result.append(text if is_complete else text[:end])
    return result
