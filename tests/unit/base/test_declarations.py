"""Consistency of the declared stages."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphrag_ray.indexing.stages
from graphrag_ray.base.declarations import DIALOGUE_STAGES, JOURNALS, STAGES, affected_dialogues


def test_every_stage_has_a_file_and_reads_only_earlier_stages():
    files = {path.stem for path in Path(graphrag_ray.indexing.stages.__path__[0]).glob("*.py")}
    before: set[str] = set()
    for stage in STAGES.values():
        assert (stage.module or f"{stage.name}_stage") in files
        assert set(stage.reads) <= before
        before.add(stage.name)


@pytest.mark.parametrize(
    ("prompt", "dialogues"),
    [
        ("report", {"report", "embed"}),
        ("describe", {"describe", "report", "embed"}),
        ("resolve", {"resolve", "describe", "report", "embed"}),
        ("claims", {"claims", "resolve", "describe", "report", "embed"}),
        ("extract_examples", {"extract", "claims", "resolve", "describe", "report", "embed"}),
        ("correct", {stage.dialogue for stage in DIALOGUE_STAGES}),
    ],
)
def test_a_changed_prompt_affects_its_dialogue_and_downstream_dialogues(prompt: str, dialogues: set[str]):
    assert affected_dialogues(prompt) == dialogues < set(JOURNALS)
