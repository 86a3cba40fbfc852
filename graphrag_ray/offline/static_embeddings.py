"""Embeddings without a download: wordllama's static token vectors, averaged.

Its weights and tokenizer are read here, without the package itself, which imports an HTTP client, sets up
logging for the whole process, and copies the weights as float32: that takes longer than a question may.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DIMENSIONS = 256

REMEMBERED_WORDS, REMEMBERED_CHARACTERS = 1 << 17, 32
"""Words whose tokens are remembered, and how long they are at most: some 30 MB."""

_NAME = "l2_supercat"
_WHOLE = re.compile("^ | $|  |\u2581|<unk>|</?s>")


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
    weights = _weights()
    return [_vector(weights, _ids(text)) for text in texts]


def _ids(text: str) -> npt.NDArray[np.int64]:
    """The text's token ids, as the tokenizer gives them.

    The tokenizer takes a text as one long word. No token of this vocabulary holds a space after another
    character, so words are encoded one by one and remembered, which halves the time. `_WHOLE` finds what that
    would change: spaces in a row or around a text, the character that the tokenizer writes for a space, and
    its special tokens.
    """
    if not text or _WHOLE.search(text):
        return np.frombuffer(_encoded(text), dtype=np.int64)
    words = text.split(" ")
    return np.frombuffer(
        b"".join([_word(w) if len(w) <= REMEMBERED_CHARACTERS else _encoded(w) for w in words]),
        dtype=np.int64,
    )


@lru_cache(maxsize=REMEMBERED_WORDS)
def _word(word: str) -> bytes:
    return _encoded(word)


def _encoded(text: str) -> bytes:
    return np.asarray(_tokenizer().encode(text, add_special_tokens=False).ids, dtype=np.int64).tobytes()


def _vector(weights: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> bytes:
    # Text by text, not as a padded batch, as wordllama does it: a fifth of the time, and a vector does not
    # depend on its neighbours. The mean and the sum have the same direction.
    total = weights.take(ids, axis=0, mode="clip").sum(axis=0, dtype=np.float64)
    length = math.sqrt(total @ total)
    return bytes((total / length if length > 0 else total).astype("<f4").tobytes())
