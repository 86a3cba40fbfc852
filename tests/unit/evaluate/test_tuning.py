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
from graphrag_ray.evaluate.tuning import TuningOptions, profile_changes, with_changes
from graphrag_ray.graph.tuning_dialogues import Decided, corpus_profile, tuning_spec

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
