"""Whatever a model replies, tuned settings are valid and read back from their file."""

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_edit import edit_settings
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.evaluate.tuning import TuningOptions, TuningSample, profile_changes, with_changes
from graphrag_ray.graph.extraction_dialogue import ChunkText
from graphrag_ray.graph.tuning_dialogues import Decided, corpus_profile, tuning_spec
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts

SETTINGS = parse_settings({"models": {"default": {"provider": "openai", "model": "gpt-4o-mini"}}})
SPEC = tuning_spec(SETTINGS, load_prompts(), None)
TEXT = st.text(max_size=60) | st.sampled_from(
    ["a: b", "no", "~", "\ufeff\uffff", "👩‍🚀", "{a}", "می‌روم", "- x"]
)


@given(
    st.fixed_dictionaries(
        {name: TEXT for name in ("domain", "description", "role", "rating_criterion", "claims")}  # noqa: C420
    ),
    st.lists(st.tuples(TEXT, TEXT), max_size=20),
    st.lists(TEXT, max_size=3),
)
def test_tuned_settings_are_valid(values, types, languages):
    listed = [{"type": t, "definition": d} for t, d in [*types, ("a", "b"), ("c", ""), ("d", "e")]]
    reply = json.dumps({**values, "entity_types": listed, "languages": languages})
    try:
        profile = run_dialogue(corpus_profile("x", Decided(), SPEC), lambda _: ChatReply(reply))
    except DialogueFailed:
        return
    changes = profile_changes(profile, TuningOptions())
    tuned = with_changes(SETTINGS, changes)
    assert 3 <= len(tuned.extraction.entity_types) <= 12
    text = edit_settings("", changes)
    assert text is not None
    assert parse_settings(yaml.safe_load(text)).extraction == tuned.extraction


DULL = "It rained all day and nobody of note was seen on the road to the mill. " * 12
TABLE = "\n".join("1,200 | 3.5 | 77 | -" for _ in range(20))
RICH = "Then Ada Lind of the Tolsey Mill met Bertram Ost from Varnmouth at Hask Marsh. " * 8


def passages(*chunks, held_out=()):
    sample = TuningSample(CorpusCounts(), tuple(map(ChunkText, chunks)), tuple(map(ChunkText, held_out)))
    return [p.text for p in sample.passages("o200k_base")]


def test_passages_are_rich_in_names_and_prose():
    assert passages(DULL + RICH + DULL)[0].count("Ada Lind") > 2
    assert "rained" in passages(f"{DULL}\n\n{TABLE}\n\n{DULL}")[0]
    assert "\n\n" not in passages("First line.\n\n  \nSecond line.")[0]


def test_a_passage_that_nearly_repeats_another_comes_last():
    letters = [f"Dear customer {n}, your invoice of May {n} is due. Ada Lind, Tolsey Mill." for n in range(9)]
    other = "At Hask Marsh the ferry of Bertram Ost sank."
    chosen = passages(*letters[:5], other, *letters[5:])
    assert chosen[:2] == [letters[0], other] and len(chosen) == 4
    assert (
        passages("第一封信由安娜寄给鲍勃。" * 3, "第一封信由安娜寄给鲍勃。" * 3 + "二", "河边的磨坊。")[1]
        == "河边的磨坊。"
    )


def test_held_out_text_is_no_passage():
    assert passages(DULL, held_out=[DULL]) == []
