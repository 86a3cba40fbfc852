"""Embeddings without a download: wordllama's static token vectors, averaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

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


def embed_many(texts: Sequence[str]) -> list[bytes]:
    """One vector per text: 256 little-endian float32, of length 1; zeros for a text without a token."""
    if not texts:
        return []
    vectors = np.asarray(_model().embed(list(texts)), dtype=np.float64)
    vectors = np.nan_to_num(vectors)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return [row.tobytes() for row in unit.astype("<f4")]
