"""Prompts as text files, checked before a run starts and filled without touching what is in the data.

A prompt file is plain text with `{name}` placeholders. A line `=== user ===` divides the system message
from the user message; without it the whole text is one user message. Braces around anything that is
not a lower-case name (JSON, say) are ordinary text. Filled-in values are never looked at again, so
braces and prompt-like text in documents do no harm.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphrag_ray.base.declarations import INDEXING_PROMPTS
from graphrag_ray.base.errors import PromptError
from graphrag_ray.base.messages import Message
from graphrag_ray.base.text_files import names_in, read_text
from graphrag_ray.base.urls import shown

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_DIVIDER = re.compile(r"^=== user ===[ \t]*\n", re.MULTILINE)

_RECORDS = frozenset({"field", "record", "completion"})
"""Records are written as ("entity"{field}NAME{field}…){record}, the whole ended by {completion}."""
_PASSAGE = _RECORDS | {"language", "header", "text"}
_LENGTH = frozenset({"max_tokens", "max_words"})
_WRITTEN = _LENGTH | {"language"}
_ANSWER = _WRITTEN | {"question", "response_type", "knowledge"}
_QUESTIONS = frozenset({"description", "n", "language"})

PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "extract": _PASSAGE | {"entity_types", "examples"},
    "extract_examples": _RECORDS,
    "glean_check": frozenset(),
    "glean": _RECORDS,
    "claims": _PASSAGE | {"claim_description", "entities"},
    "describe": _WRITTEN | {"kind", "name", "descriptions"},
    "about": _WRITTEN | {"titles", "entities"},
    "report": _WRITTEN | {"about", "role", "rating_criterion", "context"},
    "summary": _WRITTEN | {"context"},
    "map": _ANSWER | {"about", "context"},
    "map_points": _ANSWER | {"about", "context"},
    "rate": _LENGTH | {"about", "question", "context"},
    "reduce": _ANSWER | {"answers"},
    "answer": _ANSWER | {"context"},
    "drift_hypothesis": _WRITTEN | {"about", "question"},
    "drift_primer": _ANSWER | {"about", "context", "n_follow_ups"},
    "drift_local": _ANSWER | {"asked", "context", "follow_up", "n_follow_ups"},
    "keywords": frozenset({"about", "question", "language"}),
    "walk_answer": _ANSWER | {"context", "if_missing"},
    "next_questions": frozenset({"question", "asked", "context", "n_questions"}),
    "pick_facts": frozenset({"question", "context", "n_facts"}),
    "zero_shot": _WRITTEN | {"question", "response_type"},
    "query_entities": _WRITTEN | {"about", "question", "n_entities"},
    "entity_questions": _WRITTEN | {"question", "entity", "n_questions"},
    "entity_summary": _ANSWER | {"entity", "questions", "context"},
    "fgrag_answer": _ANSWER | {"answers"},
    "condense": frozenset({"history", "question"}),
    "corpus_description": _WRITTEN | {"reports"},
    "personas": _QUESTIONS,
    "tasks": _QUESTIONS | {"persona"},
    "corpus_questions": _QUESTIONS | {"persona", "task"},
    "judge": _LENGTH | {"question", "criterion", "answer_1", "answer_2"},
    "answer_claims": _LENGTH | {"question", "answer"},
    "correct_answer": frozenset({"question", "gold", "answer"}),
    "correct": frozenset({"problem"}),
}
"""Every prompt and the placeholders that it has: all but OPTIONAL, and no others."""

OPTIONAL = frozenset({"about", "asked", "max_tokens", "max_words"})
"""Placeholders that a prompt may lack: those of earlier versions lack some, and an index or a folder may keep
these."""


def reply_lengths(max_tokens: int) -> dict[str, str]:
    """How long a reply may be: the limit at which it is cut, in tokens, and the words to ask for. At three
    words to four tokens, these leave a quarter of the limit for an end."""
    return {"max_tokens": str(max_tokens), "max_words": str(max(1, max_tokens * 9 // 16))}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A checked template. `system` is empty where the file has no divider."""

    name: str
    system: str
    user: str

    def fill(self, variables: Mapping[str, str]) -> tuple[Message, ...]:
        """The messages with every placeholder replaced in one pass."""
        messages = []
        if self.system:
            messages.append(Message("system", self._filled(self.system, variables)))
        messages.append(Message("user", self._filled(self.user, variables)))
        return tuple(messages)

    @property
    def placeholders(self) -> frozenset[str]:
        """Those that it has."""
        return frozenset(_PLACEHOLDER.findall(f"{self.system}\n{self.user}"))

    @property
    def source(self) -> str:
        """A text that is read as this prompt."""
        if self.system or _DIVIDER.search(self.user):
            return f"{self.system}\n=== user ===\n{self.user}"
        return self.user

    def text(self, variables: Mapping[str, str]) -> str:
        """The user part alone, filled: for later turns of a conversation."""
        return self._filled(self.user, variables)

    def _filled(self, template: str, variables: Mapping[str, str]) -> str:
        # Not for prompts of an index: every byte of these decides which replies are in the journal.
        indexing = self.name in INDEXING_PROMPTS
        template = _without_empty(template, variables, OPTIONAL if indexing else None)
        return _PLACEHOLDER.sub(lambda m: variables[m.group(1)], template)


def parse_prompt(name: str, text: str, where: str = "") -> Prompt:
    """Check a prompt's placeholders against PLACEHOLDERS. Raises PromptError naming what is wrong."""
    known = PLACEHOLDERS[name]
    found = set(_PLACEHOLDER.findall(text))
    at = where or f"prompt {name!r}"
    if missing := sorted(known - found - OPTIONAL):
        raise PromptError(f"{at}: missing placeholder {', '.join('{' + m + '}' for m in missing)}")
    if unknown := sorted(found - known):
        has = ", ".join("{" + k + "}" for k in sorted(known)) or "none"
        raise PromptError(
            f"{at}: unknown placeholder {', '.join('{' + u + '}' for u in unknown)}; this prompt has {has}"
        )
    parts = _DIVIDER.split(text, maxsplit=1)
    if len(parts) == 1:
        return Prompt(name, "", text.strip())
    return Prompt(name, parts[0].strip(), parts[1].strip())


def load_prompts(
    directory: str | Path | None = None, kept: Mapping[Any, str] | None = None
) -> dict[str, Prompt]:
    """All prompts by name: from `directory`, a folder or a URL, where it has NAME.txt, else those that an
    index keeps, else the bundled ones. Driver only. Raises PromptError."""
    own = _own_prompts(str(directory)) if directory is not None else {}
    prompts = {}
    for name in PLACEHOLDERS:
        if name not in own and kept and name in kept:
            where = f"prompt {name!r} that the index was made with (--new-prompts takes the package's)"
            prompts[name] = parse_prompt(name, kept[name], where)
            continue
        place = own.get(name) or str(bundled_prompts() / f"{name}.txt")
        try:
            text = read_text(place)
        except (OSError, UnicodeDecodeError) as e:
            raise PromptError(f"cannot read prompt {shown(place)}: {e}") from e
        prompts[name] = parse_prompt(name, text, shown(place))
    return prompts


def load_criteria(directory: str | Path | None = None) -> dict[str, str]:
    """What answers are compared by, in words, by name: the bundled criteria, and those of the folder
    `criteria` of `directory`, which may replace ours. Driver only. Raises PromptError."""
    found = {path.stem: path.read_text("utf-8").strip() for path in bundled_criteria()}
    if directory is None:
        return found
    own = posixpath.join(str(directory), "criteria")
    try:
        for name in sorted(names_in(own) or ()):
            if name.endswith(".txt"):
                found[name.removesuffix(".txt")] = read_text(posixpath.join(own, name)).strip()
    except (OSError, UnicodeDecodeError) as e:
        raise PromptError(f"cannot read the criteria in {shown(own)}: {e}") from e
    if empty := [name for name, text in found.items() if not text]:
        raise PromptError(f"{shown(own)}: {', '.join(empty)}: a criterion needs a text")
    return found


def bundled_criteria() -> list[Path]:
    return sorted((bundled_prompts() / "criteria").glob("*.txt"))


def kept_prompts(prompts: Mapping[str, Prompt]) -> dict[str, str]:
    """The texts of those that an index is made with, as a snapshot keeps them."""
    return {name: prompts[name].source for name in INDEXING_PROMPTS}


def _own_prompts(folder: str) -> dict[str, str]:
    """Where the prompts of a folder are, by name."""
    try:
        names = names_in(folder)
    except OSError as e:
        raise PromptError(f"cannot read prompts_dir {shown(folder)}: {e}") from e
    if names is None:
        raise PromptError(
            f"prompts_dir {shown(folder)} is not a folder; `graphrag-ray init` writes one, and "
            "`index --new-prompts` takes those of the package"
        )
    found = {
        name.removesuffix(".txt"): posixpath.join(folder, name) for name in names if name.endswith(".txt")
    }
    # A prompt under a wrong name would be left unread without a word.
    for name in sorted(found.keys() - PLACEHOLDERS.keys()):
        if near := difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=0.8):
            raise PromptError(
                f"{shown(found[name])} is no prompt; did you mean {near[0]}.txt? Rename it, or move it away"
            )
    return found


def bundled_prompts() -> Path:
    """The folder of our own prompts: inside an installed wheel, else at the top of the checkout."""
    installed = Path(__file__).parents[1] / "_prompts"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "prompts"


def _without_empty(template: str, variables: Mapping[str, str], only: frozenset[str] | None) -> str:
    """Without the placeholders whose values are empty, the blanks beside them, and lines of nothing else.

    only: these placeholders; None: all
    """
    slots = set(_PLACEHOLDER.findall(template))
    for name in sorted(n for n in (slots if only is None else slots & only) if not variables[n]):
        slot = rf"\{{{name}\}}"
        alone = rf"^[ \t]*+(?:[-*•][ \t]*+)?{slot}[ \t]*+(?:\n|\Z)"
        first, later = rf"^{slot}[ \t]*+", rf"(?<![ \t])[ \t]*+{slot}"
        template = re.sub(f"{alone}|{first}|{later}", "", template, flags=re.MULTILINE)
    return template
