"""Retired phrases and names do not return."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
RETIRED = {
    r"\bways? of answering\b": "search method",
    r"\banswers? that hop\b": "multi-hop question",
    r"\bpure rooms?\b": "pure folder",
    r"\ban? index of before\b": "an index made by an earlier version",
    r"\bthat nobody foresaw\b": "unexpected error",
    r"\bis told (?:by|in|to)\b": "say who reports what",
    r"\bgoes on\b": "continues",
    r"\bmade anew\b": "rebuilt",
    r"\bso many\b": "name the number",
    r"\bas it was\b": "unchanged",
    r"\bwhat there is\b": "name it",
    r"\bcomes? to nothing\b": "has no effect",
    r"\bstands? beside\b": "is stored beside",
    r"\btrees? of summaries\b": "summary tree",
    r"\bby way of\b": "through, via",
    r"\bhow it goes\b": "progress",
    r"\bplug-ins?\b": "plugin",
    r"\bunforeseen\b": "unexpected",
    r"\bafresh\b": "from scratch",
    r", since (?![\d=])": "because",
    r"\bby meaning\b": "by embedding",
    r"\bspoilt\b": "damaged",
    r"\bwhite space\b": "whitespace",
    r"\bof ours\b": "our …",
    r"\bbeside\b": "next to, in addition to",
    r"\ba (?:page|row|line|part|file|task|call|report|chunk|key|name|question|document|item) a \w+\b": (
        "one … per …"
    ),
}
"""Patterns, and what to write instead. Add a phrase when a review removes it."""
EXEMPT = {
    "docs/reference/prompts.md",
    "tests/unit/docs/test_language.py",
    "tests/unit/offline/test_offline_answers.py",
}
"""Files with texts sent to models or quoted from documents, and this file."""


def texts() -> list[tuple[str, str]]:
    """Return the path and content of all committed text except corpora and prompts."""
    listed = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    paths = [
        path
        for path in listed.splitlines()
        if path.endswith((".py", ".md", ".yaml", ".yml", ".toml", ".ipynb"))
        and not path.startswith(("demo/corpus/", "graphrag_ray/offline/"))
        and path not in EXEMPT
    ]
    return [(path, (TOP / path).read_text("utf-8")) for path in paths if (TOP / path).is_file()]


@pytest.mark.parametrize(("pattern", "instead"), RETIRED.items(), ids=str)
def test_retired_phrases_do_not_return(pattern: str, instead: str):
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path, text in texts()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]
    assert found == [], f"write instead: {instead}"
