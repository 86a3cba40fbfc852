"""The simulated endpoint answers calls from other GraphRAG tools in their formats."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.endpoint import peers, replies
from benchmarks.endpoint.prompts import kind_of

PASSAGE = (
    "The harbour plan of Mara Venn was shown on Monday. It was Teodor Branik who asked why Hask Marsh should "
    "pay for it. Later the Varnmouth Courier wrote that Mara Venn had no answer. Then Everard Molyn spoke.\n"
) * 6
ENDS = "\n######################\nOutput:"
EXTRACT = f"…\nText: An example.{ENDS}…\n-Real Data-\n####\nEntity_types: geo,person\nText: {PASSAGE}{ENDS}"
LIGHT_SYSTEM = "Fields of a record are separated by <|#|>."
LIGHT_EXTRACT = (
    f"---Task---\nExtract entities of this:\n\n---Input Text---\n```\n{PASSAGE}\n```\n\n---Output---\n"
)
DESCRIPTIONS = ["Mara Venn's mayor.", "Mara Venn has a plan."]
COMMUNITY = (
    "title: <report_title>\n\n# Grounding Rules\n\nText:\n{}\n\nIt has, as said, five, parts.\nOutput:"
)


def _reply(*turns: str, system: str = "", seed: int = 1) -> str:
    """turns: Messages of user and assistant, alternating."""
    messages = [("system", system)] if system else []
    messages += [(("user", "assistant")[i % 2], turn) for i, turn in enumerate(turns)]
    return replies.write(messages, {}, seed, 0.5, "o200k_base")


def _csv(rows: list[list[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _tuples(reply: str) -> list[list[str]]:
    """Parse tuples like graphrag does."""
    records = [r.strip() for r in reply.replace("<|COMPLETE|>", "").split("##")]
    return [r.removeprefix("(").removesuffix(")").split("<|>") for r in records if r]


def test_extraction_has_graphrag_tuples() -> None:
    records = _tuples(_reply(EXTRACT))
    entities = [r for r in records if r[0] == '"entity"']
    related = [r for r in records if r[0] == '"relationship"']
    assert {"MARA VENN", "TEODOR BRANIK"} <= {e[1] for e in entities}
    assert {e[2] for e in entities} <= {"person", "organization", "geo", "event"}
    assert all(len(e) == 4 for e in entities)
    assert related
    assert all(len(r) == 5 and float(r[4]) > 0 for r in related)


def test_extraction_has_lightrag_lines() -> None:
    lines = _reply(LIGHT_EXTRACT, system=LIGHT_SYSTEM).split("\n")
    records = [line.split("<|#|>") for line in lines[:-1]]
    assert lines[-1] == "<|COMPLETE|>"
    assert {(r[0], len(r)) for r in records} == {("entity", 4), ("relation", 5)}
    assert "Mara Venn" in {r[1] for r in records}


def test_passage_has_the_same_entities_for_every_tool() -> None:
    ours = peers.put_as_ours([("user", EXTRACT)])
    assert ours is not None
    names = {r[1] for r in _tuples(_reply(EXTRACT)) if r[0] == '"entity"'}
    light = [line.split("<|#|>") for line in _reply(LIGHT_EXTRACT, system=LIGHT_SYSTEM).split("\n")]
    assert {r[1] for r in _tuples(_reply(ours.messages[0][1])) if r[0] == '"entity"'} == names
    assert {r[1].upper() for r in light if r[0] == "entity"} == names


@pytest.mark.parametrize(
    ("asked", "again", "start", "field"),
    [
        (EXTRACT, "MANY entities were missed in the last extraction.", '("entity"', "<|>"),
        (LIGHT_EXTRACT, "---Task---\nBased on the last extraction task, …", "entity<|#|>", "<|#|>"),
    ],
)
def test_gleaning_adds_missing_entities(asked: str, again: str, start: str, field: str) -> None:
    first = _reply(asked)
    result = (
        start + field.join(["MARA VENN", "person", "…"]) if field == "<|#|>" else first[: first.find("##")]
    )
    gleaned = _reply(asked, result, again)
    assert kind_of(again) == "glean"
    assert start in gleaned
    assert "entity" + field + "Mara Venn" not in gleaned


def test_glean_check_is_answered_in_the_requested_words() -> None:
    question = "It appears some entities may be missing. Answer {}."
    assert {_reply(question.format("YES | NO"), seed=s) for s in range(30)} == {"YES", "NO"}
    assert {_reply(question.format("Y or N"), seed=s) for s in range(30)} == {"Y", "N"}


@pytest.mark.parametrize(
    "asked",
    [
        f"-Data-\nEntities: MARA VENN\nDescription List: {json.dumps(DESCRIPTIONS)}\n#######\nOutput:\n",
        f"-Data-\nEntities: MARA VENN\nDescription List: {DESCRIPTIONS}\n#######\nOutput:\n",
        "---Input---\nEntity Name: MARA VENN\n\nDescription List:\n\n```\n"
        + "\n".join(json.dumps({"Description": d}) for d in DESCRIPTIONS)
        + "\n```\n\n---Output---\n",
    ],
    ids=["graphrag", "nano-graphrag", "lightrag"],
)
def test_descriptions_are_summarised_from_each_form_of_list(asked: str) -> None:
    assert kind_of(asked) == "describe"
    reply = _reply(asked)
    assert reply.startswith("Mara Venn is told of in 2 accounts.")
    assert "Mara Venn's mayor" in reply
    assert "Mara Venn has a plan" in reply


def test_report_reads_graphrag_tables() -> None:
    entities = [["human_readable_id", "title", "description", "degree"],
                *([i, f"NAME {i}", f"Known, by {i}", 3] for i in (11, 12))]  # fmt: skip
    related = [["human_readable_id", "source", "target", "description", "combined_degree"],
               [21, "NAME 11", "NAME 12", "They met.", 4]]  # fmt: skip
    text = f"-----Entities-----\n{_csv(entities)}\n\n-----Relationships-----\n{_csv(related)}"
    report = json.loads(_reply(COMMUNITY.format(text)))
    assert {"title", "summary", "rating", "rating_explanation", "findings"} == set(report)
    assert report["title"] == "Name 11 and Name 12"
    assert "2 entities and 1 relationships" in report["summary"]
    assert "Entities (11, 12)" in report["findings"][0]["explanation"]
    assert "Known, by 11" in report["findings"][0]["explanation"]


def test_report_reads_nano_graphrag_tables() -> None:
    tables = {
        "Reports": [["id", "report", "rating", "importance"], [0, "# One\n\nIt is small.", 3, 0.5]],
        "Entities": [
            ["id", "entity", "type", "description", "degree"],
            [0, "MARA VENN", "person", "Mayor", 2],
        ],
        "Relationships": [["id", "source", "target", "description", "rank"], [0, "A", "B", "They met", 2]],
    }
    text = "\n".join(
        f"-----{name}-----\n```csv\n" + "\n".join(",\t".join(f'"{f}"' for f in row) for row in rows) + "\n```"
        for name, rows in tables.items()
    )
    report = json.loads(_reply(COMMUNITY.format(f"```\n{text}\n```")))
    assert report["title"] == "Mara Venn and One"
    assert "1 entities and 1 relationships" in report["summary"]


def test_keywords_are_returned_as_json() -> None:
    asked = 'Reply with JSON: {"high_level_keywords": […], "low_level_keywords": […]}'
    assert kind_of(asked) == "keywords"
    words = json.loads(_reply(asked))
    assert words["high_level_keywords"]
    assert words["low_level_keywords"]


def test_unknown_prompts_belong_to_no_tool() -> None:
    assert peers.put_as_ours([("user", "Tell me about the entities of a description list.")]) is None


def _query(tables: str, more: str = "") -> str:
    system = f"---Goal---\n\nAnswer.{more}\n\n---Data tables---\n\n{tables}\n\n---Goal---\n\nAnswer."
    return _reply("What happened?", system=system)


def test_graphrag_question_cites_the_first_records_of_each_table():
    tables = (
        "-----Reports-----\nid|title\n3|The harbour\n7|The marsh\n\n"
        "-----Sources-----\nid|text\n12|It rained.\nAnd then\n13|x\n14|y\n15|z\n"
    )
    assert _query(tables) == "The harbour [Data: Reports (3, 7)]. It rained. [Data: Sources (12, 13, 14)]."
    assert _query("") == "The tables hold nothing."


def test_table_without_heading_is_read_as_csv():
    table = 'id|text\n12|"A ""quoted""\n99|text"\n13|x\n'
    assert _query(table) == 'A "quoted" 99|text [Data: Sources (12, 13)].'


def test_graphrag_map_call_returns_points_and_reduce_call_merges_them():
    reply = json.loads(_query("id|title|content\n3|The harbour|x\n", ' {"points": [{"description": …'))
    assert reply == {"points": [{"description": "The harbour [Data: Reports (3)].", "score": 80}]}
    system = "---Analyst Reports---\n\n----Analyst 1----\nThe harbour.\n\n---Goal---\n\nAnswer."
    assert _reply("What happened?", system=system) == "----Analyst 1----\nThe harbour."
