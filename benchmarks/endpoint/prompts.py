"""Which of graphrag-ray's bundled prompts a conversation is, or of its peers', by its text alone."""

from __future__ import annotations

from collections.abc import Sequence

from . import peers

Messages = Sequence[tuple[str, str]]
"""(role, content) of each."""

CHAT_KINDS = (
    "extract",
    "glean_check",
    "glean",
    "claims",
    "describe",
    "about",
    "report",
    "map",
    "map_points",
    "rate",
    "reduce",
    "answer",
    "drift_hypothesis",
    "drift_primer",
    "drift_local",
    "condense",
    "correct",
    "other",
)

_STARTS = (
    ("Write the records of the passage below", "extract"),
    ("Compare your records with the passage once more", "glean_check"),
    ("So some are missing", "glean"),
    ("Write the claims that the passage below makes", "claims"),
    ("Say what the corpus is about", "about"),
    ("Write the report on the community whose data follow", "report"),
    ("# The question to write a report's paragraph for", "drift_hypothesis"),
    ("Your last reply could not be used", "correct"),
)
NEW_QUESTION = "# The new question"
_DESCRIBE = ("The entity: ", "The relationship: ")


def kind_of(text: str) -> str:
    """The kind of a call, from its last message."""
    for start, kind in _STARTS:
        if text.startswith(start):
            return kind
    if text.startswith(_DESCRIBE) and "The text to merge, one description a line" in text:
        return "describe"
    if text.startswith("# Question"):
        if "<ANSWER_HELPFULNESS>" in text:
            return "map"
        if "----- end of the answers -----" in text:
            return "reduce"
        if '{"ratings": [' in text:
            return "rate"
        if '"follow_ups": [' in text:
            return "drift_primer"
        if '{"points": [' in text:
            return "map_points"
        if "----- end of the data -----" in text:
            return "answer"
    if text.startswith("# The user's question") and '"follow_ups": [' in text:
        return "drift_local"
    if text.startswith("# Conversation") and NEW_QUESTION in text:
        return "condense"
    return peers.kind_of(text)


def asked_first(messages: Messages) -> tuple[str, str]:
    """Kind and text of a conversation's first user message: what later turns refer to."""
    text = next((content for role, content in messages if role == "user"), "")
    return kind_of(text), text
