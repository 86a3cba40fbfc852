"""Edited settings keep comments and order, and read back as the old values with the changes."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import settings_edit
from graphrag_ray.base.settings_edit import assign, edit_settings
from graphrag_ray.base.settings_file import parse_settings

TEMPLATE = Path(settings_edit.__file__).with_name("settings.yaml").read_text("utf-8")
CHANGES = {
    ("corpus", "description"): "Bills: “who owes”, and #what",
    ("extraction", "entity_types"): {"party": "a person", "no": "a YAML boolean", "법률": "법"},
    ("claims", "description"): "Debts",
    ("reports", "role"): "a lawyer",
    ("output_language",): "Korean",
    ("prompts_dir",): "prompts",
}


def expected(text, changes):
    data = yaml.safe_load(text) or {}
    for path, value in changes.items():
        assign(data, path, value)
    return data


def test_the_file_of_init_keeps_its_comments_and_order():
    edited = edit_settings(TEMPLATE, CHANGES)
    old, new = TEMPLATE.splitlines(), edited.splitlines()
    changed = [line for line in old if line not in new]
    assert [line.split()[0] for line in changed] == [
        "description:", "entity_types:", "role:", "output_language:"
    ]  # fmt: skip
    kept = [line for line in new if line and line in old]
    assert kept == [line for line in old if line and line in new]
    for comment in ("# what the corpus is about", "# or {drug: a substance …}", "# the author's role"):
        assert any(comment in line for line in new)
    parse_settings(yaml.safe_load(edited))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "root: x",
        "extraction:\n",
        "extraction: # types\nroot: x\n",
        "extraction: {}\n",
        "extraction: {max_gleanings: 0}\n",
        "{extraction: {entity_types: [a, b]}, root: x}\n",
        "extraction:\n  max_gleanings: 0\n\n# reports\nreports: {role: me}\n",
        "extraction:\n    entity_types:\n    - a # first\n    # second\n    - b\n    max_gleanings: 0\n",
        "extraction:\n  entity_types:\n    a: >-\n      folded\n      text\n\n# end\n",
        'reports:\n  role: "a\n    b"\noutput_language: |\n  Latin\n',
        "\"extraction\": {'entity_types': a}\ncorpus: ~\n",
    ],
)
def test_any_form_of_a_section_can_be_edited(text):
    edited = edit_settings(text, CHANGES)
    assert yaml.safe_load(edited) == expected(text, CHANGES)
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert all(
        comment in edited for comment in comments if "first" not in comment and "second" not in comment
    )


@pytest.mark.parametrize(
    "text",
    [
        "- a list\n",
        "just text",
        "a: &x 1\nb: *x\n",
        "a: [",
        "reports: !!python/object:os.system {}\n",
        "a: 2023-13-45\n",
        "a: 1\n---\nb: 2\n",
    ],
)
def test_unusual_files_are_not_edited(text):
    assert edit_settings(text, CHANGES) is None


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
SECTIONS = st.dictionaries(
    st.sampled_from(["corpus", "extraction", "reports", "output_language", "x"]),
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "entity_types", "y"]), SCALARS | st.lists(SCALARS, max_size=2), max_size=3
    ),
)  # fmt: skip


@given(SECTIONS, st.booleans(), st.text(max_size=30), st.lists(st.text(max_size=9), max_size=3))
def test_an_edited_file_reads_back_as_the_changes_or_is_refused(data, flow, role, types):
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    changes = {("reports", "role"): role, ("extraction", "entity_types"): types, ("output_language",): role}
    if (edited := edit_settings(text, changes)) is not None:
        assert yaml.safe_load(edited) == expected(text, changes)
