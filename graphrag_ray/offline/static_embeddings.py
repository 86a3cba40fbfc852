"""Embed text without a download, by averaging the static token vectors of wordllama.

We read its weights and tokenizer directly, because the package imports an HTTP client, configures logging and
copies the weights, which would take longer than answering a question.
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
MAX_CACHED_WORDS, MAX_CACHED_WORD_LENGTH = 1 << 17, 32  # About 30 MB.
_NAME = "l2_supercat"
_WHOLE = re.compile("^ | $|  |\u2581|<unk>|</?s>")


@lru_cache(maxsize=1)
def _weights() -> npt.NDArray[np.float32]:
    """Load the weights [tokens, DIMENSIONS] as float32. Summing the stored float16 is three times slower."""
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
    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "The offline embedding needs the package wordllama. Install it with pip install wordllama."
        )
    return Path(spec.origin).parent


def embed_many(texts: Sequence[str]) -> list[bytes]:
    """Embed texts as 256 little-endian float32 values with norm 1, or zeros for a text without tokens."""
    weights = _weights()
    return [_vector(weights, _ids(text)) for text in texts]


def similarities(question: str, texts: Sequence[str]) -> list[float]:
    """Return the cosine similarity of each text to a question, or 0 for a text without tokens."""
    vectors = np.frombuffer(b"".join(embed_many([question, *texts])), dtype="<f4").reshape(-1, DIMENSIONS)
    cosines: list[float] = (vectors[1:] @ vectors[0]).tolist()
    return cosines


def _ids(text: str) -> npt.NDArray[np.int64]:
    """Return the same token ids as the tokenizer.

    No token of this vocabulary contains a space after another character, so words are encoded separately and
    cached, which halves the time. `_WHOLE` finds exceptions: repeated or outer spaces, the tokenizer's space
    character, and special tokens.
    """
    if not text or _WHOLE.search(text):
        return np.frombuffer(_encoded(text), dtype=np.int64)
    words = text.split(" ")
    return np.frombuffer(
        b"".join([_word(w) if len(w) <= MAX_CACHED_WORD_LENGTH else _encoded(w) for w in words]),
        dtype=np.int64,
    )


@lru_cache(maxsize=MAX_CACHED_WORDS)
def _word(word: str) -> bytes:
    return _encoded(word)


def _encoded(text: str) -> bytes:
    return np.asarray(_tokenizer().encode(text, add_special_tokens=False).ids, dtype=np.int64).tobytes()


def _vector(weights: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> bytes:
    # This takes a fifth of the time of wordllama's padded batches, and a vector does not depend on other
    # texts. Sum and mean have the same direction.
    total = weights.take(ids, axis=0, mode="clip").sum(axis=0, dtype=np.float64)
    length = math.sqrt(total @ total)
    return bytes((total / length if length > 0 else total).astype("<f4").tobytes())
