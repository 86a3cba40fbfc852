"""Commands on pages, and the Python code of two pages, run with a sample corpus."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from documents import TOP, Typed, blocks, typed
from world import Command

FILES = 12
LETTER = (
    "Mara Venn wrote to Edgar Hask. Mara Venn and Edgar Hask disagree about the lighthouse of Varnmouth.\n"
)
NEWS = '<meta name="date" content="2024-05-01"><p>The mayor of Varnmouth promised a bridge.</p>'
HERE = {"demo-index", "./my-index", "demo/corpus", "./documents"}
"""Indexes and inputs that the test creates. Commands with others are not run."""
NEEDS_MORE = {
    *("chat", "serve"),  # These do not end by themselves.
    *(
        "--model",
        "--base-url",
        "--config",
        "--budget-usd",
    ),  # These need an endpoint, a settings file or prices.
    *(
        "--ray",
        "--input",
        "relation=TREATS",
        "--show",
        "--purge",
        "--format",
        "other=answers-of-another-tool.csv",
    ),
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a part of the demo corpus."""
    corpus = tmp_path / "demo" / "corpus"
    letters = corpus / "letters"
    letters.mkdir(parents=True)
    for path in sorted((TOP / "demo" / "corpus").iterdir())[:FILES]:
        shutil.copy(path, corpus)
    (letters / "1987.txt").write_text(LETTER, "utf-8")
    (corpus / "news.html").write_text(NEWS, "utf-8")
    (tmp_path / "documents").symlink_to(corpus)
    gold = {"question": "Who disagrees?", "answer": "Mara Venn", "documents": ["letters/1987.txt"]}
    (tmp_path / "gold.jsonl").write_text(json.dumps(gold) + "\n", "utf-8")
    (tmp_path / "questions.csv").write_text("question\nWho opposed the harbour?\n", "utf-8")
    (tmp_path / "aliases.yaml").write_text("MARA VENN: [Miss Venn]\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def can_run(one: Typed) -> bool:
    """Whether the command needs only the corpus and its index, and ends by itself."""
    words = set(one.words)
    if one.words[0] in ("init", "estimate"):  # a forecast calls no endpoint
        return not words & {"--config", "--machine"}
    return bool(words & HERE) and not words & NEEDS_MORE


def test_commands_on_pages_run(workspace: Path, run: Command):
    commands = list(dict.fromkeys(one.words for one in typed() if can_run(one)))
    first = ["init", "index", "evaluate"]
    commands.sort(key=lambda words: (words[0] == "gc", first.index(words[0]) if words[0] in first else 9))
    assert len(commands) > 40
    assert {words[0] for words in commands} == {
        *("index", "resolve", "estimate", "query", "status", "failures", "gc", "init", "levels", "inspect"),
        "evaluate",
    }
    for words in commands:
        result = run(*words)
        assert result.exit_code == 0, (words, result.output)


@pytest.mark.parametrize("page", ["README.md", "docs/guides/python.md"])
def test_python_on_pages_runs(workspace: Path, run: Command, capsys: pytest.CaptureFixture[str], page: str):
    (snippet,) = blocks((TOP / page).read_text("utf-8"), {"python"})
    names: dict[str, object] = {}
    exec(snippet.replace("s3://bucket/index", "snippet-index"), names)
    assert names["build"].committed and names["answer"].text
    assert "about" not in names or names["about"].text
    assert len(names["entities"]) and capsys.readouterr().out
