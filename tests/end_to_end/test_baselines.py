"""Baselines on the command line: LightRAG's modes with sources, and the model without data, which only
evaluation uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from world import Command, World, model_options

from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.batch import answer_batch
from graphrag_ray.query.chat import Chat
from graphrag_ray.query.methods.method import AskRequest

QUESTION = "Why did Hask Marsh protest against the harbour plan?"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of nine documents built by the offline engine."""
    from click.testing import CliRunner

    from graphrag_ray.cli.command_line import main

    root = tmp_path_factory.mktemp("demo") / "index"
    corpus = Path(__file__).parents[2] / "demo" / "corpus" / "0*"
    done = CliRunner().invoke(main, ["index", str(corpus), "--root", str(root), "--in-process"])
    assert done.exit_code == 0, done.output
    return root


def test_each_mode_answers_with_sources(demo: Path, run: Command):
    read, question = {}, "What happened to the harbour plan and to Hask Marsh?"
    for mode in ("local", "global", "hybrid", "mix"):
        asked = ("query", question, "--root", demo, "--method", "lightrag", "--mode", mode)
        told = json.loads(run(*asked, "--json").output)
        assert told["found"] and told["references"] and told["sources"], mode
        assert told["phases"]["keywords"]["calls"] == told["phases"]["answer"]["calls"] == 1
        (used,) = told["contexts"]
        read[mode] = {(r["section"], r["id"]) for r in used["records"]}
        assert used["n_tokens"] <= 30_000
    assert read["local"] != read["global"] and read["hybrid"] - read["local"]
    shown = run("query", question, "--root", demo, "--method", "lightrag", "--sources").output
    assert "lightrag search" in shown and "Entities were looked up by: " in shown and ".md" in shown


def test_a_mode_is_rejected_for_methods_without_modes(demo: Path, run: Command):
    done = run("query", QUESTION, "--root", demo, "--method", "local", "--mode", "mix")
    assert (
        done.exit_code == 2
        and "mode is an option of lightrag search (local, global, hybrid, mix), not of local" in done.stderr
    )


@pytest.mark.parametrize("command", [("query", QUESTION), ("chat",), ("serve",)])
def test_method_none_is_rejected_with_a_pointer_to_evaluate(
    demo: Path, run: Command, command: tuple[str, ...]
):
    done = run(*command, "--root", demo, "--method", "none")
    assert done.exit_code == 2, done.output
    assert "`graphrag-ray evaluate` (--condition none=none)" in " ".join(done.stderr.split())


def test_a_chat_keeps_its_method_if_method_none_is_requested(demo: Path, run: Command):
    done = run("chat", "--root", demo, said="/method none\n/method\n")
    assert "a baseline for `graphrag-ray evaluate`" in done.stderr
    assert (
        "Method global. Methods: global, text" in done.stdout
        and "none" not in done.stdout.split("Methods: ")[1]
    )


def test_batch_chat_and_python_reject_method_none(town: World):
    opened = town.open()
    with pytest.raises(UsageError, match="is a baseline"):
        opened.ask(QUESTION, method="none")
    questions = town.root.parent / "questions.csv"
    questions.write_text("question\nWho?\n")
    with pytest.raises(UsageError, match="is a baseline"):
        answer_batch(
            opened, str(questions), str(town.root.parent / "answers.parquet"), AskRequest(method="none")
        )
    with Chat(opened, "none") as chat, pytest.raises(UsageError, match="is a baseline"):
        chat.stream("Who?")


def test_keywords_can_use_their_own_model(town: World, run: Command):
    own = ["--set", "models.small.provider=openai", "--set", "models.small.model=small"]
    own += ["--set", f"models.small.endpoints.0.base_url={town.endpoint.base_url}"]
    own += ["--set", "models.small.endpoints.0.api_key_env=null", "--set", "stages.keywords.model=small"]
    asked = ("query", "What about ALICE ?", "--root", town.root, "--method", "lightrag", *model_options(town))
    done = run(*asked, *own)
    assert done.exit_code == 0, done.output
    assert [body["model"] for body in town.endpoint.bodies()[-2:]] == ["small", "m"]
