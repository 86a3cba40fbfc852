"""Recognise from its text which prompt of graphrag-ray, or of another tool, a conversation uses."""

from __future__ import annotations

from collections.abc import Sequence

from . import peers

Messages = Sequence[tuple[str, str]]
"""(role, content) of each message."""

SUBJECTS = "# What is the question about?"
AROUND = 'Now questions instead of subjects. Write the questions about "'

CHAT_KINDS = (
    "document_context",
    "extract",
    "glean_check",
    "glean",
    "glean_missing",
    "extract_schema",
    "glean_schema",
    "correct_schema",
    "claims",
    "resolve",
    "resolve_split",
    "describe",
    "about",
    "report",
    "summary",
    "map",
    "map_points",
    "rate",
    "reduce",
    "answer",
    "drift_hypothesis",
    "drift_primer",
    "drift_local",
    "keywords",
    "zero_shot",
    "query_entities",
    "entity_questions",
    "entity_summary",
    "fgrag_answer",
    "lazy_subqueries",
    "lazy_test",
    "walk_answer",
    "next_questions",
    "pick_facts",
    "condense",
    "corpus_description",
    "personas",
    "tasks",
    "corpus_questions",
    "judge",
    "judge_joint",
    "answer_claims",
    "correct_answer",
    "check_statements",
    "tune_profile",
    "tune_schema",
    "correct",
    "other",
)

_STARTS = (
    ("Extract entities of the types", "extract"),
    ("Compare your records with the passage once more", "glean_check"),
    ("Some are missing", "glean"),
    ("Go through the passage once more", "glean_missing"),
    ("Extract what the schema has a place for", "extract_schema"),
    ("Read the passage again and add", "glean_schema"),
    ("Some of your records do not fit the schema", "correct_schema"),
    ("Write the note on the document below", "document_context"),
    ("Write the claims that the passage below makes", "claims"),
    ("Name A: ", "resolve"),
    ("The name: ", "resolve_split"),
    ("Say what the corpus is about", "about"),
    ("Write the report on the community whose records follow", "report"),
    ("The texts, as a table in CSV", "summary"),
    ("# The question to write a report's paragraph for", "drift_hypothesis"),
    ("# The question to write keywords for", "keywords"),
    ("# Question to answer from what you know", "zero_shot"),
    (SUBJECTS, "query_entities"),
    ("# Question to break into subqueries", "lazy_subqueries"),
    (AROUND, "entity_questions"),
    ("Describe the corpus that the following texts come from", "tune_profile"),
    ("Draft the schema for the corpus that the following texts come from", "tune_schema"),
    ("Your last reply could not be used", "correct"),
)
_ENDS = (
    ("Describe the corpus in one paragraph", "corpus_description"),
    ("different users of this corpus", "personas"),
    ("different tasks of this user", "tasks"),
    ("questions about the corpus as a whole", "corpus_questions"),
    ("is better by each of these criteria", "judge_joint"),
    ("Which of the two answers to the question is better", "judge"),
    ("List the factual claims of the answer above", "answer_claims"),
    ("Is this answer correct? Y or N", "correct_answer"),
    ("Which of the statements does the text bear out", "check_statements"),
)
"""Phrases in the last line of evaluation prompts. The text before it is arbitrary."""
_MARKS = (
    ("<ANSWER_HELPFULNESS>", "map"),
    ("----- end of the answers -----", "reduce"),
    ("----- end of the summaries -----", "fgrag_answer"),
    ('{"ratings": [', "rate"),
    ('"follow_ups": [', "drift_primer"),
    ('{"points": [', "map_points"),
    ('{"relevant": [', "lazy_test"),
    ("----- end of the data -----", "answer"),
    ("----- end of the facts -----", "pick_facts"),
    ("# Looked up already", "next_questions"),
    ("----- end of the passages -----", "walk_answer"),
)
"""Phrases in prompts that begin with the question."""
NEW_QUESTION = "# The new question"
_DESCRIBE = ("The entity: ", "The relationship: ")


def kind_of(text: str) -> str:
    """The kind of a call, from its last message."""
    for start, kind in _STARTS:
        if text.startswith(start):
            return kind
    last = text.rpartition("\n")[2]
    for words, kind in _ENDS if text.startswith("# ") else ():
        if words in last:
            return kind
    if text.startswith(_DESCRIBE) and "The text to merge, one description per line" in text:
        return "describe"
    for mark, kind in _MARKS if text.startswith("# Question") else ():
        if mark in text:
            return kind
    if text.startswith("# The user's question") and '"follow_ups": [' in text:
        return "drift_local"
    if (
        text.startswith("# The user's question")
        and "# Goal, once more\n\nSummarise, in sentences or points, what" in text
    ):
        return "entity_summary"
    if text.startswith("# Conversation") and NEW_QUESTION in text:
        return "condense"
    return peers.kind_of(text)


def asked_first(messages: Messages) -> tuple[str, str]:
    """Kind and text of the first user message of a conversation, to which later turns refer."""
    text = next((content for role, content in messages if role == "user"), "")
    return kind_of(text), text
