"""Load and check prompt files.

A prompt file is plain text with `{name}` placeholders. A line `=== user ===` separates the system message
from the user message; without it, the whole text is one user message. Braces around anything but a lower-case
name, as in JSON, are ordinary text. Placeholders in inserted values are not replaced, so documents may
contain braces.
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
from graphrag_ray.base.text_files import list_names, read_text
from graphrag_ray.base.urls import display_path

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_DIVIDER = re.compile(r"^=== user ===[ \t]*\n", re.MULTILINE)

_RECORDS = frozenset({"field", "record", "completion"})
"""Extracted records have the form ("entity"{field}NAME{field}…){record}. {completion} ends the reply."""
_PASSAGE = _RECORDS | {"language", "header", "text"}
_LENGTH = frozenset({"max_tokens", "max_words"})
_GENERATED = _LENGTH | {"language"}
_ANSWER = _GENERATED | {"question", "response_type", "knowledge"}
_QUESTIONS = frozenset({"description", "n", "language"})

PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "document_context": _GENERATED | {"header", "text"},
    "extract": _PASSAGE | {"entity_types", "type_definitions", "examples"},
    "extract_examples": _RECORDS,
    "extract_schema": _PASSAGE | {"entity_types", "type_definitions", "relation_definitions", "if_outside"},
    "glean_schema": _RECORDS,
    "correct_schema": frozenset({"record", "completion", "problems"}),
    "glean_check": frozenset(),
    "glean": _RECORDS,
    "glean_missing": _RECORDS,
    "claims": _PASSAGE | {"claim_description", "entities"},
    "resolve": frozenset({"name", "candidates"}),
    "resolve_split": frozenset({"name", "documents"}),
    "describe": _GENERATED | {"kind", "name", "descriptions"},
    "about": _GENERATED | {"titles", "entities"},
    "report": _GENERATED | {"about", "role", "rating_criterion", "period", "context"},
    "summary": _GENERATED | {"period", "context"},
    "map": _ANSWER | {"about", "context", "documents"},
    "map_points": _ANSWER | {"about", "context", "documents"},
    "rate": _LENGTH | {"about", "question", "context"},
    "reduce": _ANSWER | {"answers"},
    "answer": _ANSWER | {"context"},
    "drift_hypothesis": _GENERATED | {"about", "question"},
    "drift_primer": _ANSWER | {"about", "context", "n_follow_ups"},
    "drift_local": _ANSWER | {"asked", "context", "follow_up", "n_follow_ups"},
    "keywords": frozenset({"about", "question", "language"}),
    "lazy_subqueries": frozenset({"about", "question", "concepts", "n_questions", "language"}),
    "lazy_test": frozenset({"about", "question", "context"}),
    "walk_answer": _ANSWER | {"context", "if_missing"},
    "next_questions": frozenset({"question", "asked", "context", "n_questions"}),
    "pick_facts": frozenset({"question", "context", "n_facts"}),
    "zero_shot": _GENERATED | {"question", "response_type"},
    "query_entities": _GENERATED | {"about", "question", "n_entities"},
    "entity_questions": _GENERATED | {"question", "entity", "n_questions"},
    "entity_summary": _ANSWER | {"entity", "questions", "context"},
    "fgrag_answer": _ANSWER | {"answers"},
    "condense": frozenset({"history", "question"}),
    "corpus_description": _GENERATED | {"reports"},
    "personas": _QUESTIONS,
    "tasks": _QUESTIONS | {"persona"},
    "corpus_questions": _QUESTIONS | {"persona", "task"},
    "judge": _LENGTH | {"question", "criterion", "answer_1", "answer_2"},
    "judge_joint": _LENGTH | {"question", "criteria", "names", "answer_1", "answer_2"},
    "answer_claims": _LENGTH | {"question", "answer"},
    "correct_answer": frozenset({"question", "gold", "answer"}),
    "check_statements": frozenset({"question", "statements", "text"}),
    "tune_profile": frozenset({"samples", "known", "language"}),
    "tune_schema": frozenset({"samples", "description", "type_definitions", "language"}),
    "correct": frozenset({"problem"}),
}
"""The placeholders of every prompt. A prompt must use all of them except the OPTIONAL ones, and no others."""

OPTIONAL = frozenset(
    {"about", "asked", "documents", "header", "max_tokens", "max_words", "period", "type_definitions"}
)
"""Placeholders that a prompt may omit, because prompts stored by earlier versions lack some of them."""


WORDS_PER_TOKEN: Mapping[str, float] = {"prose": 0.6, "cited": 0.5, "any": 9 / 16}
"""Limit in words per token of the limit in tokens, by form of reply.

Less than the words per token in replies of a strong model: 0.8 in prose, 0.6 to 0.7 with references
(benchmarks/RESULTS.md). So a model can finish a reply that is slightly too long.
"any" is the limit of indexing requests by the first `request_rules`.
"""


def reply_lengths(max_tokens: int, form: str = "cited") -> dict[str, str]:
    """Return the prompt variables for the length of a reply: its limit in tokens and in words.

    `form` is a key of WORDS_PER_TOKEN. Limits from 100 words are round numbers, except by the first rules.
    """
    words = max(1, int(max_tokens * WORDS_PER_TOKEN[form]))
    if form != "any" and words >= 100:
        words -= words % 10
    return {"max_tokens": str(max_tokens), "max_words": str(words)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A checked prompt. `system` is empty if the file has no line `=== user ===`."""

    name: str
    system: str
    user: str

    def fill(self, variables: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the messages with every placeholder replaced."""
        system = (Message("system", self._fill(self.system, variables)),) if self.system else ()
        return (*system, Message("user", self._fill(self.user, variables)))

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(_PLACEHOLDER.findall(f"{self.system}\n{self.user}"))

    @property
    def source(self) -> str:
        """The prompt as the text of a prompt file."""
        if self.system or _DIVIDER.search(self.user):
            return f"{self.system}\n=== user ===\n{self.user}"
        return self.user

    def fill_user(self, variables: Mapping[str, str]) -> str:
        """Return only the filled user message, for later turns of a conversation."""
        return self._fill(self.user, variables)

    def _fill(self, template: str, variables: Mapping[str, str]) -> str:
        # Item keys depend on every byte of an indexing prompt, so remove only its optional placeholders.
        removable = OPTIONAL if self.name in INDEXING_PROMPTS else None
        template = _remove_empty(template, variables, removable)
        return _PLACEHOLDER.sub(lambda m: variables[m.group(1)], template)


def parse_prompt(name: str, text: str, where: str = "") -> Prompt:
    """Parse a prompt and check its placeholders. Raises PromptError. Messages begin with `where`."""
    known, used = PLACEHOLDERS[name], set(_PLACEHOLDER.findall(text))
    sets = (known - used - OPTIONAL, used - known, known)
    missing, unknown, supported = (", ".join("{" + n + "}" for n in sorted(names)) for names in sets)
    where = where or f"Prompt {name!r}"
    if missing:
        raise PromptError(f"{where}: missing placeholder {missing}")
    if unknown:
        raise PromptError(f"{where}: unknown placeholder {unknown}. Choose from: {supported or 'none'}")
    parts = _DIVIDER.split(text, maxsplit=1)
    if len(parts) == 1:
        return Prompt(name, "", text.strip())
    return Prompt(name, parts[0].strip(), parts[1].strip())


def load_prompts(
    directory: str | Path | None = None, stored: Mapping[Any, str] | None = None
) -> dict[str, Prompt]:
    """Load all prompts by name. Call it on the driver only. Raises PromptError.

    Args:
        directory: Folder or URL with NAME.txt files. They take precedence over all other prompts.
        stored: Prompts stored in an index. They take precedence over the bundled ones.
    """
    paths = _prompt_paths(str(directory)) if directory is not None else {}
    prompts = {}
    for name in PLACEHOLDERS:
        if name not in paths and stored and name in stored:
            where = f"Prompt {name!r} in the index (use --new-prompts to replace it with the bundled one)"
            text = stored[name]
        else:
            path = paths.get(name) or str(bundled_prompts() / f"{name}.txt")
            where = display_path(path)
            try:
                text = read_text(path)
            except (OSError, UnicodeDecodeError) as e:
                raise PromptError(f"Cannot read prompt {where}: {e}") from e
        prompts[name] = parse_prompt(name, text, where)
    return prompts


def load_criteria(directory: str | Path | None = None) -> dict[str, str]:
    """Load the criteria for comparing answers, by name. Call it on the driver only. Raises PromptError.

    Criteria in the folder `criteria` of `directory` are added to the bundled ones and may replace them.
    """
    bundled = sorted((bundled_prompts() / "criteria").glob("*.txt"))
    criteria = {path.stem: path.read_text("utf-8").strip() for path in bundled}
    if directory is None:
        return criteria
    folder = posixpath.join(str(directory), "criteria")
    try:
        for name in sorted(list_names(folder) or ()):
            if name.endswith(".txt"):
                criteria[name.removesuffix(".txt")] = read_text(posixpath.join(folder, name)).strip()
    except (OSError, UnicodeDecodeError) as e:
        raise PromptError(f"Cannot read the criteria in {display_path(folder)}: {e}") from e
    if empty := [name for name, text in criteria.items() if not text]:
        raise PromptError(f"{display_path(folder)}: criterion {', '.join(empty)} is empty")
    return criteria


def stored_prompts(prompts: Mapping[str, Prompt]) -> dict[str, str]:
    """Return the texts of the indexing prompts, as snapshots store them."""
    return {name: prompts[name].source for name in INDEXING_PROMPTS}


def _prompt_paths(folder: str) -> dict[str, str]:
    """Return the paths of the prompts in a folder, by name."""
    try:
        names = list_names(folder)
    except OSError as e:
        raise PromptError(f"Cannot read prompts_dir {display_path(folder)}: {e}") from e
    if names is None:
        raise PromptError(
            f"prompts_dir {display_path(folder)} is not a folder. Copy the folder that `graphrag-ray "
            "init` wrote, or remove `prompts_dir` from the settings to use the bundled prompts."
        )
    paths = {
        name.removesuffix(".txt"): posixpath.join(folder, name) for name in names if name.endswith(".txt")
    }
    # Report a misspelt name instead of ignoring the file.
    for name in sorted(paths.keys() - PLACEHOLDERS.keys()):
        if near := difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=0.8):
            raise PromptError(
                f"Unknown prompt {display_path(paths[name])}; did you mean {near[0]}.txt? "
                "Rename the file or move it to another folder."
            )
    return paths


def bundled_prompts() -> Path:
    """Return the folder of the bundled prompts, in the installed package or at the top of a checkout."""
    installed = Path(__file__).parents[1] / "_prompts"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "prompts"


def _remove_empty(template: str, variables: Mapping[str, str], removable: frozenset[str] | None) -> str:
    """Remove placeholders with empty values.

    Also removes the blanks next to them, and lines that would be left empty. If `removable` is given, other
    placeholders are left alone.
    """
    slots = set(_PLACEHOLDER.findall(template))
    for name in sorted(n for n in (slots if removable is None else slots & removable) if not variables[n]):
        slot = rf"\{{{name}\}}"
        alone = rf"^[ \t]*+(?:[-*•][ \t]*+)?{slot}[ \t]*+(?:\n|\Z)"
        first, later = rf"^{slot}[ \t]*+", rf"(?<![ \t])[ \t]*+{slot}"
        template = re.sub(f"{alone}|{first}|{later}", "", template, flags=re.MULTILINE)
    return template
