import pickle
import re
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import PLACEHOLDERS, load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.descriptions import (
    Tokenizer,
    describe,
    describe_spec,
    distinct_descriptions,
    plan_layer,
)


@pytest.fixture(scope="module")
def spec():
    return describe_spec(load_prompts(), parse_settings({"descriptions": {"max_output_tokens": 123}}))


PAID = {"models": {"default": {"provider": "openai", "model": "m"}}}
SPEC = describe_spec(load_prompts(), Settings())


def token_ends(text):
    return [m.end() for m in re.finditer(r"\S+\s*", text)]


TOKENS = Tokenizer(lambda text: len(token_ends(text)), token_ends)


def summary(dialogue, reply):
    request = next(dialogue)
    with pytest.raises(StopIteration) as stop:
        dialogue.send(reply if isinstance(reply, ChatReply) else ChatReply(reply))
    return stop.value.value, request


def test_distinct_descriptions_collapse_whitespace_and_retain_order():
    assert distinct_descriptions(["b  c", "a", "b\nc ", "", "  ", "a"]) == ["b c", "a"]


ALIKE = ["Bob bakes “rye”.", 'bob bakes "rye"', "Bob  bakes rye.", "«Bob bakes rye»"]


def test_descriptions_that_differ_only_in_punctuation_are_equal():
    assert distinct_descriptions([*ALIKE, "Bob bakes Rye."]) == [ALIKE[0], "Bob bakes Rye."]
    assert distinct_descriptions(["He’s in.", "he's in"]) == ["He’s in."]
    assert distinct_descriptions(["“”", ".", "..."]) == ["“”", ".", "..."]


LATER = describe_spec(load_prompts(), parse_settings(PAID))
FIRST = describe_spec(load_prompts(), parse_settings({**PAID, "request_rules": 1}))


def test_repeated_sentences_are_not_sent():
    texts = ["Bob bakes. He is tall.", "He left in 2015. He is tall.", "Bob bakes."]
    result, request = summary(describe("entity", "BOB", texts, LATER), "Bob bakes.")
    assert result and request.variables["descriptions"] == "Bob bakes. He is tall.\nHe left in 2015."
    assert request.variables["max_words"] == "300"


def test_a_description_that_only_repeats_others_needs_no_call():
    with pytest.raises(StopIteration) as stop:
        next(describe("entity", "BOB", ["Bob bakes. He is tall.", "He is tall"], LATER))
    assert stop.value.value == "Bob bakes. He is tall."


def test_an_index_with_the_first_rules_sends_the_same_requests():
    texts = ["Bob bakes. He is tall.", "He is tall. He left in 2015."]
    _, request = summary(describe("entity", "BOB", texts, FIRST, 100), "Bob bakes.")
    assert request.variables["descriptions"] == "\n".join(texts)
    assert request.variables["max_words"] == "281" and request.call.max_output_tokens == 500


def test_the_description_of_a_hub_may_be_longer():
    lengths = {n: LATER.output_tokens(n) for n in (1, 7, 8, 15, 16, 32, 63, 64, 10_000)}
    assert [*lengths.values()] == [500, 500, 750, 750, 1000, 1250, 1250, 1500, 1500]
    texts = [f"Bob baked {n} loaves." for n in range(9)]
    _, request = summary(describe("entity", "BOB", texts, LATER), "Bob bakes.")
    assert request.call.max_output_tokens == 750 and request.variables["max_tokens"] == "750"
    _, request = summary(describe("entity", "BOB", texts[:2], LATER, 64), "Bob bakes.")
    assert request.call.max_output_tokens == 1500


def test_a_limit_of_the_stage_also_limits_hubs():
    stages = {"describe": {"model": "default", "max_output_tokens": 600}}
    spec = describe_spec(load_prompts(), parse_settings({**PAID, "stages": stages}))
    assert [spec.output_tokens(n) for n in (2, 64)] == [600, 600]


def test_descriptions_that_differ_only_in_punctuation_need_no_call(spec):
    assert plan_layer(ALIKE, spec, TOKENS) == [[ALIKE[0]]]
    with pytest.raises(StopIteration) as stop:
        next(describe("entity", "BOB", ALIKE, spec))
    assert stop.value.value == ALIKE[0]


def test_few_short_descriptions_are_joined(spec):
    few = replace(spec, concatenate_up_to_tokens=8)
    for texts in permutations(["He sings", "Bob bakes rye.", "彼はパン屋だ。"]):
        assert plan_layer(texts, few, TOKENS) == [["Bob bakes rye. He sings. 彼はパン屋だ。"]]
    assert plan_layer(["Bob bakes rye bread daily.", "Bob sold the old mill."], few, TOKENS) == [
        ["Bob bakes rye bread daily.", "Bob sold the old mill."]
    ]
    assert plan_layer(["a", "b", "c", "d"], few, TOKENS) == [["a", "b", "c", "d"]]
    assert plan_layer(["Bob bakes.", "He sings."], spec, TOKENS) == [["Bob bakes.", "He sings."]]


def test_nothing_is_joined_for_the_offline_engine():
    assert describe_spec(load_prompts(), Settings()).concatenate_up_to_tokens == 0
    assert describe_spec(load_prompts(), parse_settings(PAID)).concatenate_up_to_tokens == 100


@pytest.mark.parametrize("descriptions", [["Bob is a baker."], ["Bob is a baker.", " Bob is\na baker. ", ""]])
def test_single_distinct_description_needs_no_request(spec, descriptions):
    with pytest.raises(StopIteration) as stop:
        next(describe("entity", "BOB", descriptions, spec))
    assert stop.value.value == "Bob is a baker."


def test_no_descriptions_need_no_request(spec):
    with pytest.raises(StopIteration) as stop:
        next(describe("entity", "BOB", [" "], spec))
    assert stop.value.value == ""


def test_several_descriptions_are_summarised_in_one_request(spec):
    dialogue = describe("relationship", "BOB / ACME", ["Bob works\nfor Acme.", "Bob left Acme."], spec)
    text, request = summary(dialogue, " Bob worked for Acme\nand left it. ")
    assert text == "Bob worked for Acme and left it."
    assert request.prompt == "describe"
    assert set(request.variables) == PLACEHOLDERS["describe"]
    assert request.variables["descriptions"] == "Bob works for Acme.\nBob left Acme."
    assert request.call.max_output_tokens == 123
    prompt = "".join(m.content for m in request.messages)
    assert "relationship: BOB / ACME" in prompt
    assert "69 words" in prompt


@pytest.mark.parametrize("reply", ["", " \n", ChatReply("Bob is", "content_filter")])
def test_an_empty_or_withheld_reply_fails(spec, reply):
    dialogue = describe("entity", "BOB", ["One.", "Two."], spec)
    next(dialogue)
    with pytest.raises(DialogueFailed, match="BOB"):
        dialogue.send(reply if isinstance(reply, ChatReply) else ChatReply(reply))


@pytest.mark.parametrize(
    ("cut_off", "kept"),
    [
        ("Bob bakes. He left Acme (in 2014). He then", "Bob bakes. He left Acme (in 2014)."),
        ('He said "no." And', 'He said "no."'),
        ("Bob bakes 3.5 loaves and", "Bob bakes 3.5 loaves and"),
        ("鮑勃是麵包師。他離開了", "鮑勃是麵包師。"),
    ],
)
def test_a_reply_cut_off_at_its_limit_loses_the_unfinished_sentence(spec, cut_off, kept):
    text, _ = summary(describe("entity", "BOB", ["One.", "Two."], spec), ChatReply(cut_off, "length"))
    assert text == kept


def test_descriptions_that_look_like_prompts_are_filled_in_once(spec):
    request = next(describe("entity", "{name}", ["{descriptions} {kind}", "Ignore this."], spec))
    assert request.messages[-1].content.endswith("{descriptions} {kind}\nIgnore this.")


def test_a_spec_survives_pickling(spec):
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_descriptions_that_fit_are_one_batch():
    assert plan_layer(["one two", "three"], SPEC, TOKENS) == [["one two", "three"]]


@pytest.mark.parametrize("descriptions", [[], ["", " "]])
def test_empty_layer_is_one_empty_batch(descriptions):
    assert plan_layer(descriptions, SPEC, TOKENS) == [[]]


def test_a_description_longer_than_half_a_batch_is_cut_at_the_end_of_a_token():
    ((short, cut),) = plan_layer(["Bob bakes.", "word " * 50], replace(SPEC, batch_tokens=20), TOKENS)
    assert short == "Bob bakes."
    assert cut == "word " * 10


@given(
    st.lists(st.integers(0, 60), max_size=50),
    st.integers(1, 40),
    st.integers(1, 90),
)
def test_tree_ends_whatever_the_model_writes(lengths, batch_tokens, reply_tokens):
    texts = [" ".join(f"w{i}" for _ in range(n)) for i, n in enumerate(lengths)]
    calls = 0
    while len(parts := plan_layer(texts, replace(SPEC, batch_tokens=batch_tokens), TOKENS)) > 1:
        assert len(parts) < len(texts)
        for part in parts:
            assert len(part) == 1 or sum(len(token_ends(t)) for t in part) <= max(2, batch_tokens)
        texts = []
        for part in parts:
            calls += 1
            texts.append(" ".join([f"s{calls}"] * reply_tokens) if len(part) > 1 else part[0])
    assert len(parts) == 1


def test_new_instance_repeats_only_one_branch_of_the_tree(spec):
    def run(descriptions, known):
        """The requests of a whole tree, whose replies depend only on the request, as with a journal."""
        calls, texts = set(), descriptions
        while True:
            parts, texts = plan_layer(texts, replace(SPEC, batch_tokens=300), TOKENS), []
            for part in parts:
                dialogue = describe("entity", "HUB", part, spec)
                try:
                    request = next(dialogue)
                except StopIteration as stop:
                    texts.append(stop.value)
                    continue
                calls.add(request.hash)
                text, _ = summary(describe("entity", "HUB", part, spec), f"{request.hash} " + "word " * 39)
                texts.append(text)
            if len(parts) == 1:
                return len(calls - known), calls

    descriptions = [f"Instance {i} says {'very ' * (i % 7)}much of it." for i in range(2000)]
    paid, calls = run(descriptions, frozenset())
    assert paid > 50
    again, _ = run([*descriptions[:700], "A new one.", *descriptions[700:]], calls)
    assert 1 <= again <= 10
