"""What is known beforehand of models by their names: what endpoints refuse for them, and which of them think.

Whatever a family is not known for is learned from its endpoint's answers (`llm/quirks.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

THOUGHT_TOKENS = 8_192
"""Room for the thoughts before a reply, where the settings name none. Thoughts count as output."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose names match a pattern.

    thinks   they write thoughts before a reply, which count against its limit
    opened   their chat templates hold the opening tag of the thoughts: a reply begins inside them
    refuses  parameters that are not sent to them
    """

    pattern: str = ""
    thinks: bool = False
    opened: bool = False
    refuses: frozenset[str] = frozenset()


_OPENAI = frozenset(("max_tokens", "temperature", "logit_bias"))

FAMILIES = (
    Family(r"gpt-5(?!.*chat)|o\d(-|$)|codex-", thinks=True, refuses=_OPENAI),
    Family(r"deepseek-r1|qwq|qwen3.*thinking", thinks=True, opened=True),
    Family(r"qwen3(?!.*(instruct|coder|embed|rerank))", thinks=True),
    Family(
        r"gpt-oss|deepseek-reasoner|magistral|grok-(4|3-mini)|minimax-m\d|glm-(4\.[5-9]|[5-9])", thinks=True
    ),
    Family(r"gemini-(2\.5|[3-9])", thinks=True),
    Family(r".*[-_](thinking|reasoning|reasoner)\b", thinks=True),
)
"""The first that matches counts."""


@lru_cache(maxsize=256)
def family_of(*names: str) -> Family:
    """The family of a model that is known by these names, with or without an organisation in front."""
    for name in names:
        plain = name.lower().rsplit("/", 1)[-1]
        for family in FAMILIES:
            if re.match(family.pattern, plain):
                return family
    return Family()
