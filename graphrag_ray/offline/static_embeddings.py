"""Embeddings without a download: wordllama's static token vectors, averaged.

Its weights and tokenizer are read here, without the package itself, which imports an HTTP client, sets up
logging for the whole process, and copies the weights as float32: that takes longer than a question may.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DIMENSIONS = 256

_NAME = "l2_supercat"


@lru_cache(maxsize=1)
def _weights() -> npt.NDArray[np.float32]:
    """[tokens, DIMENSIONS]. They are stored as float16, which is summed three times as slowly."""
    from safetensors import safe_open

    with safe_open(_home() / "weights" / f"{_NAME}_{DIMENSIONS}.safetensors", framework="np") as file:
        return np.asarray(file.get_tensor("embedding.weight"), dtype=np.float32)


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_home() / "tokenizers" / f"{_NAME}_tokenizer_config.json"))
    tokenizer.no_padding()
    return tokenizer


def _home() -> Path:
    found = find_spec("wordllama")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the offline embedding needs the package wordllama, which is not installed")
    return Path(found.origin).parent


def embed_many(texts: Sequence[str]) -> list[bytes]:
    """One vector per text: 256 little-endian float32, of length 1; zeros for a text without a token."""
    if not texts:
        return []
    weights = _weights()
    encoded = _tokenizer().encode_batch_fast(list(texts), add_special_tokens=False)
    return [_vector(weights, e.ids) for e in encoded]


def _vector(weights: npt.NDArray[np.float32], ids: Sequence[int]) -> bytes:
    # Text by text, not as a padded batch, as wordllama does it: a fifth of the time, and a vector does not
    # depend on its neighbours. The mean and the sum have the same direction.
    total = weights.take(np.asarray(ids, dtype=np.int64), axis=0, mode="clip").sum(axis=0, dtype=np.float64)
    length = np.linalg.norm(total)
    return bytes((total / length if length > 0 else total).astype("<f4").tobytes())
