"""What pages say to type on the demo corpus runs, and so does the Python of README and docs/guides/python.md."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from documents import TOP, Typed, blocks, typed
from world import Command

FILES = 12
NOT_ENDING = {"chat", "serve"}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a part of the demo corpus where pages expect all of it."""
    corpus = tmp_path / "demo" / "corpus"
    corpus.mkdir(parents=True)
    for path in sorted((TOP / "demo" / "corpus").iterdir())[:FILES]:
        shutil.copy(path, corpus)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs_here(one: Typed) -> bool:
    """Whether it needs nothing but the demo corpus, and ends by itself."""
    ours = "demo-index" in one.words or "demo/corpus" in one.words or one.words[0] == "init"
    needs_a_server = "--base-url" in one.words
    return ours and one.words[0] not in NOT_ENDING and not needs_a_server


def test_commands_on_the_demo_corpus_run(desk: Path, run: Command):
    commands = list(dict.fromkeys(one.words for one in typed() if runs_here(one)))
    commands.sort(key=lambda words: words[0] != "index")
    assert {"index", "estimate", "query", "status", "failures", "gc", "init"} <= {w[0] for w in commands}
    for words in commands:
        result = run(*words)
        assert result.exit_code == 0, (words, result.output)


@pytest.mark.parametrize("page", ["README.md", "docs/guides/python.md"])
def test_the_python_of_a_page_runs(desk: Path, run: Command, capsys: pytest.CaptureFixture[str], page: str):
    (snippet,) = blocks((TOP / page).read_text("utf-8"), {"python"})
    (desk / "documents").symlink_to(desk / "demo" / "corpus")
    names: dict[str, object] = {}
    exec(snippet.replace("s3://bucket/index", "snippet-index"), names)
    assert names["done"].committed and names["answer"].text
    assert "about" not in names or names["about"].text
    assert len(names["entities"]) and capsys.readouterr().out
