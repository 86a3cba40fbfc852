"""Conversations from a pipe and on a terminal."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import toy_model
from endpoint import BROKEN, Answer, Response
from terminals import Terminal
from world import REJECTED, Command, World, prompt_of

from graphrag_ray.query.chat import Chat
from graphrag_ray.query.methods.answer import UNREADABLE
from graphrag_ray.query.methods.condense import NOT_REWRITTEN
from graphrag_ray.store.gc import GcOptions

ABOUT_DAVE = "What did DAVE do?"
OFFLINE = ["--set", "models.default={provider: offline}"]


def condensing(world: World, reply: Response) -> None:
    def respond(body: dict[str, Any]) -> Response:
        return reply if prompt_of(body) == "condense" else toy_model.respond(body)

    world.endpoint.respond = respond


# From a pipe


def test_every_line_of_a_pipe_is_answered(town: World):
    command = [sys.executable, "-m", "graphrag_ray", "chat", "--root", str(town.root)]
    said = f"{ABOUT_DAVE}\n\n  What about HEIDI ?\n"
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == ""
    first, second = done.stdout.split("\n> ")[1:]
    assert first.startswith(ABOUT_DAVE) and "Reports cited:" in first
    assert "- DAVE, ERIN, FRANK [Data: Reports" in first
    assert second.startswith("What about HEIDI ?") and "HEIDI [Data: Reports" in second
    assert done.stdout.startswith(f"{town.store.url}, snapshot 1, 6 documents. Method global.")


def test_notes_are_shown_once(town: World, run: Command):
    done = run(
        "chat",
        "--root",
        town.root,
        *OFFLINE,
        said="What about DAVE ?\nWhat about HEIDI ?\nWhat about ERIN ?\n",
    )
    assert done.stdout.count("The offline engine answered the question, without a language model") == 1
    assert done.stdout.count(NOT_REWRITTEN) == 1


def test_follow_up_questions_use_the_conversation(town: World, run: Command):
    condensing(town, "What did DAVE do?")
    asked = town.asked()
    done = run("chat", "--root", town.root, said="What about ERIN ?\nAnd him?\n")
    assert "Understood as: What did DAVE do?" in done.stdout and done.exit_code == 0
    bodies = town.endpoint.bodies()[asked:]
    assert [prompt_of(b) for b in bodies] == ["map", "reduce", "condense", "map", "reduce"]
    shown = bodies[2]["messages"][-1]["content"]
    assert (
        "What about ERIN ?" in shown
        and "And him?" in shown.partition("# The new question")[2]
        and "[Data:" not in shown
    )
    assert "What did DAVE do?" in bodies[-1]["messages"][-1]["content"]


def test_the_conversation_can_be_cleared(town: World, run: Command):
    asked = town.asked()
    run("chat", "--root", town.root, said="What about ERIN ?\n/new\nWhat about DAVE ?\n")
    assert town.prompts(asked)["condense"] == 0


def test_a_question_that_cannot_be_condensed_is_asked_as_it_is(town: World, run: Command):
    condensing(town, REJECTED)
    done = run("chat", "--root", town.root, said="What about ERIN ?\nWhat about DAVE ?\n")
    assert "could not be rewritten" in done.stdout
    assert "- DAVE, ERIN" in done.stdout.split("What about DAVE ?")[1]


def test_commands_apply_to_the_next_question(town: World, run: Command):
    said = f"/level C0\n/where author = 'x'\n/where\n/method global\n{ABOUT_DAVE}\n/level auto\n"
    done = run("chat", "--root", town.root, said=said)
    assert "Method global, level C0\n" in done.stdout
    assert "Method global, level C0, where author = 'x'\n" in done.stdout
    assert "global search, level C0" in done.stdout and done.stdout.endswith("Method global\n")


def test_sources_shows_those_of_the_last_answer(town: World, run: Command):
    done = run("chat", "--root", town.root, said=f"/sources\n{ABOUT_DAVE}\n/sources\n")
    assert "There is no answer yet" in done.stderr and done.exit_code == 3
    assert "harbour.txt, character" in done.stdout.split("/sources")[2]


def test_the_snapshot_can_be_changed(town: World, run: Command):
    town.write({"zoo.txt": "ZOE feeds YURI."})
    town.index(communities={"pack_components_below": 1})
    question = "What about YURI ?\n"
    done = run(
        "chat", "--root", town.root, said=f"/snapshot 1\n{question}/snapshot newest\n{question}/snapshot 9\n"
    )
    old, new = done.stdout.split("What about YURI ?")[1:]
    assert "snapshot 1, 6 documents" in done.stdout and "ZOE" not in old
    assert "snapshot 2, 7 documents" in old and "ZOE" in new
    assert "has no snapshot 9. Existing snapshots: 1, 2" in done.stderr


@pytest.mark.parametrize("end", ["/quit", "/quit now", "exit"])
def test_help_lists_the_commands_and_quit_ends_the_chat(town: World, run: Command, end: str):
    done = run("chat", "--root", town.root, said=f"/help\n{end}\n{ABOUT_DAVE}\n")
    assert done.exit_code == 0 and ABOUT_DAVE not in done.stdout
    for name in ("/method NAME", "/level C0..Cn", "/where CONDITION", "/sources", "/snapshot N|newest"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/nope", "Unknown command /nope. Choose from: /method, "),
        ("/method nope", "Unknown search method 'nope'. Choose from: global"),
        ("/level C9\nWhat about DAVE ?", "There is no level 'C9'"),
        ("/snapshot first", "/snapshot needs a number or newest"),
        ("x" * 20_001, "has 20001 characters"),
    ],
)
def test_errors_are_shown_and_the_chat_continues(town: World, run: Command, said: str, told: str):
    done = run("chat", "--root", town.root, said=f"{said}\n/level auto\n{ABOUT_DAVE}\n")
    assert told in done.stderr and "Traceback" not in done.stderr
    assert done.exit_code == 3 and "- DAVE, ERIN, FRANK" in done.stdout


def test_an_incomplete_answer_counts_as_failed(town: World, run: Command):
    town.endpoint.respond = lambda body: REJECTED
    done = run("chat", "--root", town.root, said=f"{ABOUT_DAVE}\n")
    assert UNREADABLE in done.stdout and done.exit_code == 3


def test_a_missing_index_is_reported_immediately(world: World, run: Command):
    done = run("chat", "--root", world.root, said=f"{ABOUT_DAVE}\n")
    assert done.exit_code == 2 and "here is no index at" in done.stderr


# On a terminal


def test_ctrl_c_stops_the_answer_but_not_the_chat(town: World):
    never = threading.Event()

    def respond(body: dict[str, Any]) -> Response:
        text = toy_model.respond(body)
        return Answer(text, until=never) if prompt_of(body) == "reduce" and "HEIDI" in text else text

    town.endpoint.respond = respond
    with Terminal("chat", "--root", town.root) as terminal:
        terminal.wait_for("> ")
        terminal.type("What about HEIDI ?\n")
        terminal.wait_for("• GRACE")
        terminal.interrupt()
        terminal.wait_for("[stopped]")
        terminal.type("What about DAVE ?\n")
        terminal.wait_for("tokens]\n> ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.shown and "• DAVE, ERIN" in terminal.shown.split("[stopped]")[1]
    never.set()


def test_ctrl_c_at_the_prompt_starts_a_new_line(town: World):
    with Terminal("chat", "--root", town.root) as terminal:
        terminal.wait_for("> ")
        terminal.type("What about HE")
        terminal.wait_for("What about HE")
        terminal.interrupt()
        terminal.wait_for("> ", times=2)
        terminal.type("What about DAVE ?\n")
        terminal.wait_for("global search")
        terminal.type("/quit\n")
        assert terminal.end() == 0
    assert "• DAVE, ERIN, FRANK" in terminal.shown


def test_the_line_history_can_be_recalled(town: World):
    with Terminal("chat", "--root", town.root) as terminal:
        terminal.wait_for("> ")
        terminal.type("What about DAVE ?\n")
        terminal.wait_for("tokens]\n> ")
        terminal.type("\x1b[A\n")
        terminal.wait_for("tokens]\n> ", times=2)
        terminal.type("\x04")
        assert terminal.end() == 0


# From Python


def test_a_chat_reuses_connections(town: World):
    with Chat(town.open()) as chat:
        for name in ("DAVE", "ERIN"):
            with chat.stream(f"What about {name} ?") as stream:
                assert "".join(stream) == stream.answer.text
        assert [q for q, _ in chat.turns] == ["What about DAVE ?", "What about ERIN ?"]
        assert stream.answer.phases["map"].calls == 1  # Its own questions, not those before it.


def test_failed_and_interrupted_questions_are_not_remembered(town: World):
    with Chat(town.open(run={"max_attempts": 1})) as chat:
        reduce_fails = lambda body: BROKEN if prompt_of(body) == "reduce" else toy_model.respond(body)  # noqa: E731
        town.endpoint.respond = reduce_fails
        with pytest.raises(Exception, match="could not be combined"), chat.stream(ABOUT_DAVE) as stream:
            list(stream)
        town.endpoint.respond = toy_model.respond
        chat.stream(ABOUT_DAVE).close()
        assert not chat.turns
        with chat.stream(ABOUT_DAVE) as stream:
            assert "ERIN" in "".join(stream)


def test_a_removed_snapshot_is_reported_with_what_to_do(town: World):
    with Terminal("chat", "--root", town.root) as terminal:
        terminal.wait_for("> ")
        town.write({"zoo.txt": "ZOE feeds YURI."})
        town.index(communities={"pack_components_below": 1})
        remove_old(town)
        terminal.type("What about DAVE ?\n")
        terminal.wait_for("was removed by `gc` while it was being read")
        terminal.type("/snapshot newest\n")
        terminal.wait_for("snapshot 2, 7 documents")
        terminal.type("What about YURI ?\n")
        terminal.wait_for("ZOE")
        terminal.type("/quit\n")
        assert terminal.end() == 0
    assert "open the newest snapshot, 2 (/snapshot newest)" in " ".join(terminal.shown.split())


def remove_old(town: World) -> None:
    from graphrag_ray.indexing.purge import clean_up

    clean_up(town.store, GcOptions(keep=1, grace_s=0.0), delete=True)
