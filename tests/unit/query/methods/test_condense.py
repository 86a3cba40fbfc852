"""Follow-up questions: the history in the prompt, and the rewritten question."""

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.corpus.tokens import count_tokens
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.condense import (
    MAX_CHARACTERS,
    MAX_TURNS,
    NOT_REWRITTEN,
    condense,
    render_history,
    with_history,
)
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues, Question, SearchEnv

ONLINE = parse_settings({"models": {"default": {"provider": "openai", "model": "m"}}})
TURNS = (("Who is ANNA?", "ANNA runs the mill [Data: Reports (3)]."), ("And BEN?", "BEN left."))


def tokens(text: str) -> int:
    return count_tokens(text, "cl100k_base")


def known(given_settings: Settings) -> SearchEnv:
    return SearchEnv(given_settings, load_prompts(), tokens, {})


def search(question: Question, given: SearchEnv):
    """A search method that repeats the question."""
    return Answer(question.text, question.text, "echo", notes=("its own",))
    yield


def asked(reply: str, question: str = "And her?", finish_reason: str = "stop") -> str | None:
    prompt, call = load_prompts()["condense"], ONLINE.call_parameters("condense")
    return run_dialogue(condense(question, "…", prompt, call), lambda _: ChatReply(reply, finish_reason))


def driven(question: Question, given: SearchEnv, ran: DialogueOutcome[str] | None = None) -> Answer:
    method = with_history(search, question, given)
    try:
        need = next(method)
        assert isinstance(need, Dialogues) and need.phase == "condense" and not need.is_answer
        method.send([ran])
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it should have ended")


def test_history_is_a_table_without_references():
    shown = parse_sections(render_history(TURNS, 1000, tokens))["Conversation"]
    assert shown == [
        {"question": "Who is ANNA?", "answer": "ANNA runs the mill."},
        {"question": "And BEN?", "answer": "BEN left."},
    ]


def test_oldest_turns_are_dropped():
    turns = [(f"Question {i}?", "word " * 50) for i in range(20)]
    shown = parse_sections(render_history(turns, 300, tokens))["Conversation"]
    assert [r["question"] for r in shown] == [q for q, _ in turns[-len(shown) :]] and 2 < len(shown) < 20


@given(st.lists(st.tuples(st.text(), st.text(max_size=200)), max_size=6), st.integers(30, 200))
def test_history_stays_within_budget(turns, budget):
    shown = render_history(turns, budget, tokens)
    assert tokens(shown) <= budget and len(parse_sections(shown).get("Conversation", [])) <= len(turns)


def test_history_length_is_limited():
    looked: list[int] = []

    def count(text: str) -> int:
        looked.append(len(text))
        return 1

    render_history([("a" * 1_000_000, "b" * 1_000_000)] * 500, 2_000, count)
    assert max(looked) <= MAX_TURNS * (2 * MAX_CHARACTERS + 10)
    assert len(looked) <= MAX_TURNS * 20


def test_long_answer_is_truncated():
    (row,) = parse_sections(render_history([("Why?", "word " * 5000)], 2000, tokens))["Conversation"]
    assert 300 < tokens(row["answer"]) <= 400


def test_reply_becomes_question():
    assert asked(' "Where does ANNA live?"\n') == "Where does ANNA live?"


def test_unusable_rewrite_is_ignored():
    assert asked("") is None and asked("x" * 5000) is None
    assert asked("Where does", finish_reason="length") is None


def test_search_uses_rewritten_question_and_answer_keeps_original():
    answer = driven(
        Question("And her?", history=TURNS), known(ONLINE), DialogueOutcome("Where does ANNA live?")
    )
    assert answer.text == "Where does ANNA live?" and answer.question == "And her?"
    assert answer.notes == ("Understood as: Where does ANNA live?", "its own")


def test_unchanged_question_has_no_note():
    answer = driven(Question("Who is CARL?", history=TURNS), known(ONLINE), DialogueOutcome("Who is  CARL?"))
    assert answer.notes == ("its own",)


def test_failed_rewrite_falls_back_with_a_note():
    answer = driven(
        Question("And her?", history=TURNS), known(ONLINE), DialogueOutcome(None, "no answer from there")
    )
    assert (
        answer.text == "And her?"
        and "could not be rewritten and was used unchanged: no answer from there." in answer.notes[0]
    )


def test_offline_engine_does_not_rewrite_and_adds_note():
    answer = driven(Question("And her?", history=TURNS), known(Settings()))
    assert answer.text == "And her?" and answer.notes == (NOT_REWRITTEN, "its own")
