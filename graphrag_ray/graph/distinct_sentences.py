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
    """Return the texts without the sentences that they or earlier texts contain already.

    Texts without repetitions are returned unchanged, others may become empty. Takes linear time.
    """
    seen: set[str] = set()
    result = []
    for text in texts:
        pieces: list[str] = []
        spans, end = sentences(text), 0
        for sentence_start, sentence_end in spans:
            key = comparison_key(" ".join(text[sentence_start:sentence_end].split()))
            if key not in seen:
                seen.add(key)
                pieces.append(text[end if pieces else sentence_start : sentence_end])
            end = sentence_end
        result.append(text if len(pieces) == len(spans) else "".join(pieces))
    return result
