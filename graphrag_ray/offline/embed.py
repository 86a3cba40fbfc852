"""Embeddings without a download: wordllama's static token vectors, averaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DIMENSIONS = 256


@lru_cache(maxsize=1)
def _model() -> Any:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    import wordllama

    # It sets up logging for the whole process, and at INFO: every HTTP request would be a line.
    root.setLevel(before[0])
    root.handlers[:] = before[1]

    home = Path(str(wordllama.__file__)).parent
    return wordllama.WordLlama.load(cache_dir=home, disable_download=True)


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    tokenizer = _model().tokenizer
    tokenizer.no_padding()
    return tokenizer


def embed_many(texts: Sequence[str]) -> list[bytes]:
    """One vector per text: 256 little-endian float32, of length 1; zeros for a text without a token."""
    if not texts:
        return []
    embedding = _model().embedding
    encoded = _tokenizer().encode_batch_fast(list(texts), add_special_tokens=False)
    return [_vector(embedding, e.ids) for e in encoded]


def _vector(embedding: npt.NDArray[np.float32], ids: Sequence[int]) -> bytes:
    # Text by text, not as a padded batch, as wordllama does it: a fifth of the time, and a vector does not
    # depend on its neighbours. The mean and the sum have the same direction.
    total = embedding.take(np.asarray(ids, dtype=np.int64), axis=0, mode="clip").sum(axis=0, dtype=np.float64)
    length = np.linalg.norm(total)
    return bytes((total / length if length > 0 else total).astype("<f4").tobytes())
