"""Comparing search methods: compared, counted, scored, and paid for once."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nltk
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import toy_model
from endpoint import Endpoint, Status
from world import REJECTED, TOWN, Command, World, model_options, prompt_of

from graphrag_ray import evaluate, open_index
from graphrag_ray.base.errors import (
    EXIT_FAILED_ITEMS,
    BudgetSpent,
    GraphRagError,
    TooManyFailures,
    UsageError,
)
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.evaluate.comparison import Comparison
from graphrag_ray.evaluate.comparison import compare as compared
from graphrag_ray.evaluate.evaluation_files import GoldQuestion
from graphrag_ray.evaluate.evaluation_run import evaluation_run
from graphrag_ray.evaluate.known_answers import score_known_answers
from graphrag_ray.query.question_files import BatchQuestion

QUESTIONS = ("What about ALICE ?", "What about DAVE ?", "What about HEIDI ?")
WAYS = ("global=global:C0", "vector=vector")
ONE = ("comprehensiveness",)


def folder(world: World) -> Path:
    return world.root.parent / "evaluation"


def compare(
    world: World,
    conditions: Sequence[str] = WAYS,
    criteria: Sequence[str] = ONE,
    replicates: int = 2,
    questions: Sequence[str] = QUESTIONS,
    **changes: Any,
) -> Comparison:
    posed = [BatchQuestion(str(n), text) for n, text in enumerate(questions, 1)]
    with evaluation_run(world.open(**changes), str(folder(world)), "test") as run:
        return compared(run, posed, conditions, criteria, replicates)


def judged(world: World, respond: Any, **how: Any) -> Comparison:
    """A comparison with a scripted judge."""

    def asked(body: dict[str, Any]) -> Any:
        return respond(body) if prompt_of(body) == "judge" else toy_model.respond(body)

    world.endpoint.respond = asked
    return compare(world, **how)


def rates(found: Comparison) -> dict[tuple[str, str], float]:
    return {(r["first"], r["second"]): r["win_rate"] for r in found.tables["win_rates"].to_pylist()}


# Comparisons


def test_every_pair_is_judged_by_every_criterion_in_both_orders(town: World):
    found = compare(town, [*WAYS, "local=local"], ("comprehensiveness", "directness"))
    rows = found.tables["judgements"].to_pylist()
    assert len(rows) == 3 * 3 * 2 * 2
    assert town.prompts()["judge"] == len(rows)
    assert all(row["winner"] in (row["first"], row["second"], "") for row in rows)
    assert sum(row["swapped"] for row in rows) == len(rows) / 2
    assert found.failed == 0
    assert found.tables["reliability"]["position_bias"].to_pylist() == [0.0, 0.0]
    assert set(rates(found)) == {("global", "vector"), ("global", "local"), ("vector", "local")}


def test_answers_and_verdicts_are_not_requested_again(town: World):
    first = compare(town)
    asked = town.asked()
    assert compare(town).tables["judgements"].equals(first.tables["judgements"])
    assert town.asked() == asked
    compare(town, [*WAYS, "local=local"], replicates=3)
    new = town.prompts(asked)
    # Two more pairs with three replicates, and a third replicate of the first pair; answers of one condition.
    assert new["judge"] == 3 * (2 * 3 + 1) and not new["map"]
    compare(town, [*reversed(WAYS)], ("comprehensiveness", "diversity"))
    assert town.prompts(asked)["judge"] - new["judge"] == 3 * 2


def test_a_judge_that_always_says_1_is_a_tie_with_position_bias(town: World):
    found = judged(town, lambda body: '{"reason": "so", "winner": 1}', replicates=5)
    assert rates(found) == {("global", "vector"): 50.0}
    (row,) = found.tables["reliability"].to_pylist()
    assert (row["position_bias"], row["first_shown"], row["agreement"]) == (1.0, 1.0, 1.0)
    assert found.tables["win_rates"]["p_holm"].to_pylist() == [1.0]


def test_nonsense_verdicts_are_failures_and_not_ties(town: World):
    found = judged(town, lambda body: "Both are nice!")
    rows = found.tables["judgements"].to_pylist()
    assert {row["winner"] for row in rows} == {None}
    assert all("still not usable after a correction" in row["error"] for row in rows)
    assert found.failed == len(rows) == 6
    assert rates(found) == {("global", "vector"): None}
    assert any("6 of 6 judgements are missing, mostly: judge: still not usable" in w for w in found.warnings)


def test_an_unreachable_judge_ends_a_comparison_and_answers_are_kept(town: World):
    questions = [f"What about {n} ?" for n in "abcdefghijkl"]
    with pytest.raises(TooManyFailures, match=r"of the first 2\d items of stage"):
        judged(town, lambda body: Status(500, "out of order"), questions=questions)
    asked = town.asked()
    town.endpoint.respond = toy_model.respond
    assert compare(town, questions=questions).failed == 0
    assert not town.prompts(asked)["answer"]


def test_the_default_temperature_of_the_judge_is_1(town: World):
    def temperatures() -> set[float]:
        return {b["temperature"] for b in town.endpoint.bodies() if prompt_of(b) == "judge"}

    compare(town)
    assert temperatures() == {1.0}
    compare(town, stages={"judge": {"max_output_tokens": 200}}, criteria=("diversity",))
    assert temperatures() == {1.0}
    compare(town, stages={"judge": {"temperature": 0.3}}, criteria=("empowerment",))
    assert temperatures() == {1.0, 0.3}


def test_model_seconds_come_from_the_replies_also_if_replayed(town: World):
    first = compare(town).tables["conditions"]["model_seconds"].to_pylist()
    assert all(seconds > 0 for seconds in first)
    assert compare(town).tables["conditions"]["model_seconds"].to_pylist() == first


def test_a_condition_against_itself_wins_half(town: World):
    found = compare(town, ("a=vector", "b=vector"))
    (row,) = found.tables["win_rates"].to_pylist()
    assert (row["win_rate"], row["p_holm"], row["ties"]) == (50.0, 1.0, 1.0)


def test_a_judge_that_also_answers_gives_a_warning(town: World):
    assert any("also wrote the answers of global, vector. Models" in w for w in compare(town).warnings)
    given = {"base_url": town.endpoint.base_url, "api_key_env": None}
    models = {
        "default": {"provider": "openai", "model": "m", "endpoints": [given]},
        "judge": {"provider": "openai", "model": "other", "endpoints": [given]},
    }
    found = compare(town, models=models, stages={"judge": {"model": "judge"}})
    assert found.judge == "other" and not found.warnings
    assert {b["model"] for b in town.endpoint.bodies() if prompt_of(b) == "judge"} == {"m", "other"}


def test_answers_of_another_tool_can_be_compared(town: World):
    file = town.root.parent / "other.csv"
    file.write_text(
        "question,answer\nWhat about ALICE ?,ALICE and BOB and CAROL and DAVE and ERIN and FRANK\n"
    )
    found = compare(town, ["vector=vector", f"other={file}"])
    assert len(found.tables["judgements"]) == 2, "answers that are missing are not judged"
    assert any("other.csv does not answer questions 2, 3" in w for w in found.warnings)
    conditions = found.tables["conditions"].to_pylist()
    assert [(c["name"], c["failed"], c["calls"]) for c in conditions] == [
        ("vector", 0, 6),
        ("other", 2, None),
    ]


def test_method_none_can_be_compared_and_cites_nothing(town: World):
    estimate = evaluate.estimate(town.open(), QUESTIONS, ["vector=vector", "zero=none"], replicates=2)
    found = compare(town, ["vector=vector", "zero=none"])
    assert town.prompts()["zero_shot"] == 3 and found.failed == 0
    rows = [row for row in found.tables["answers"].to_pylist() if row["condition"] == "zero"]
    assert [row["text"] for row in rows] == [f"Nobody told me: {question}" for question in QUESTIONS]
    assert all(row["found"] and not row["references"] and not row["chunks"] for row in rows)
    assert rates(found)["vector", "zero"] > 50
    assert dict(zip(estimate["name"], estimate["calls"], strict=True))["zero"] == 3


def test_method_none_has_answer_scores_but_no_retrieval_scores(town: World):
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(run, gold(), ["vector=vector", "zero=none"])
        summary = {row["condition"]: row for row in found.tables["summary"].to_pylist()}
        assert summary["zero"]["accuracy"] == 0.0 and summary["zero"]["recall@5"] is None
        with pytest.raises(UsageError, match="Condition zero: Method none retrieves nothing"):
            score_known_answers(run, gold(), ["zero=none"], retrieval_only=True)


def test_settings_of_a_condition_apply_to_it_only(town: World):
    found = compare(
        town, ["long=vector", "short=vector,query.response_type=one word,query.context_tokens=300"]
    )
    said = [json.dumps(body) for body in town.endpoint.bodies() if prompt_of(body) == "answer"]
    assert sum("one word" in body for body in said) == len(said) / 2 == 3
    told = found.tables["conditions"]["settings"].to_pylist()
    assert told == ["", "query.response_type=one word, query.context_tokens=300"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"conditions": ["a=global"]}, "1 of at least 2 conditions"),
        ({"conditions": ["a=global:C9", "b=vector"]}, "Condition a: .*'C9'"),
        ({"conditions": ["a=global", "b=vector:C0"]}, "Condition b: .* has no levels"),
        ({"conditions": ["a=global", "b=vector,query.nonsense=1"]}, "Condition b: .*nonsense"),
        ({"conditions": ["a=global", "b=none:C0"]}, "Condition b: .* has no levels"),
        ({"conditions": ["a=global", "b=missing.csv"]}, "no such file"),
        ({"criteria": ["beauty"]}, "Unknown criterion 'beauty'. Choose from: comprehensiveness"),
        ({"replicates": 1}, "replicates, not 1"),
        ({"conditions": ["a=global", "b=vector,budget.max_cost_usd=1"]}, "does not affect how questions"),
    ],
)
def test_invalid_comparisons_are_rejected_before_any_call(town: World, how: dict[str, Any], told: str):
    asked = town.asked()
    with pytest.raises(UsageError, match=told):
        compare(town, **how)
    assert town.asked() == asked


def test_users_can_add_criteria_as_text_files(town: World, tmp_path: Path):
    (tmp_path / "prompts" / "criteria").mkdir(parents=True)
    (tmp_path / "prompts" / "criteria" / "kindness.txt").write_text("Kindness: which answer is kinder?\n")
    found = compare(town, criteria=["kindness"], prompts_dir=str(tmp_path / "prompts"))
    assert found.criteria == {"kindness": "Kindness: which answer is kinder?"}
    assert any("which answer is kinder?" in json.dumps(body) for body in town.endpoint.bodies())


def test_a_budget_ends_a_comparison_and_replies_are_kept(town: World):
    with pytest.raises(BudgetSpent, match="max_total_tokens"):
        compare(town, budget={"max_total_tokens": 6_000})
    asked = town.asked()
    compare(town)
    assert town.prompts()["judge"] == 6 and town.asked() > asked
    assert max(town.prompts().values()) == town.prompts()["judge"] or town.prompts()["map"] <= 12


def test_an_answer_without_any_successful_call_is_a_failure(town: World):
    """An outage is not judged as a bad answer."""

    def asked(body: dict[str, Any]) -> Any:
        return REJECTED if prompt_of(body) == "map" else toy_model.respond(body)

    town.endpoint.respond = asked
    found = compare(town)
    assert not len(found.tables["judgements"])
    assert found.tables["conditions"]["failed"].to_pylist() == [3, 0]
    assert "No two conditions answered the same question, so nothing was judged" in found.warnings


def test_an_unusable_judge_is_reported_before_any_answer(town: World):
    given = {"base_url": town.endpoint.base_url, "api_key_env": None}
    models = {
        "default": {"provider": "openai", "model": "m", "endpoints": [given]},
        "judge": {"provider": "openai", "model": "x", "endpoints": [given | {"api_key_env": "NO_SUCH_KEY"}]},
    }
    asked = town.asked()
    with pytest.raises(GraphRagError, match="NO_SUCH_KEY"):
        compare(town, models=models, stages={"judge": {"model": "judge"}})
    assert town.asked() == asked


def test_results_cannot_be_written_to_the_index(town: World):
    with (
        pytest.raises(UsageError, match="An evaluation needs a separate folder"),
        evaluation_run(town.open(), str(town.root), "test"),
    ):
        pass


def test_the_folder_records_what_was_compared(town: World):
    (judging,) = compare(town).tables["judging"].to_pylist()
    assert (judging["stage"], judging["calls"]) == ("judge", 6) and judging["tokens"] > 600
    about = json.loads((folder(town) / "evaluation.json").read_text())
    assert about["index"].endswith("index") and about["snapshot"] == 1 and about["judge"] == "m"
    assert [c["name"] for c in about["conditions"]] == ["global", "vector"]


# Several indexes, one call for all criteria


@pytest.fixture
def other_town(built: Any, town: World, tmp_path: Path) -> str:
    """The index of a part of the town, with other chunks."""
    texts = {name: TOWN[name] for name in ("council.txt", "harbour.txt")}
    part = World(tmp_path / "other", town.endpoint)
    part.write(texts)
    part.index(chunking={"size": 60, "overlap": 0})
    return str(part.root)


def test_a_condition_can_ask_another_index_with_other_prompts(town: World, other_town: str, tmp_path: Path):
    (tmp_path / "p").mkdir()
    prompt = load_prompts()["answer"].source.replace("# Goal, once more", "# Once more: be kind")
    (tmp_path / "p" / "answer.txt").write_text(prompt)

    def respond(body: dict[str, Any]) -> Any:
        return toy_model.respond(
            json.loads(json.dumps(body).replace("# Once more: be kind", "# Goal, once more"))
        )

    town.endpoint.respond = respond
    asked = town.asked()
    ways = ["here=vector", f"there=vector,index={other_town},query.response_type=a word"]
    found = compare(town, [*ways, f"kind=vector,prompts={tmp_path / 'p'}"], ["comprehensiveness"])
    assert found.failed == 0
    conditions = {row["name"]: row for row in found.tables["conditions"].to_pylist()}
    assert all(row["tokens"] > 0 and row["seconds"] > 0 for row in conditions.values())
    assert conditions["there"]["index"] != conditions["here"]["index"] == conditions["kind"]["index"]
    assert conditions["kind"]["settings"] == f"prompts={tmp_path / 'p'}"
    answers = [row for row in found.tables["answers"].to_pylist() if row["condition"] == "there"]
    there = open_index(other_town)
    chunks = set(there.table("text_units")["id"].to_pylist())
    assert all(row["chunks"] and set(row["chunks"]) <= chunks for row in answers)
    bodies = [json.dumps(body) for body in town.endpoint.bodies()[asked:]]
    assert sum("be kind" in body for body in bodies) == 3
    indexes = {row["index"]: row for row in found.tables["indexes"].to_pylist()}
    assert len(indexes) == 2 and indexes[conditions["there"]["index"]]["documents"] == 2
    assert all(row["calls"] > 0 and row["seconds"] > 0 for row in indexes.values())
    about = json.loads((folder(town) / "evaluation.json").read_text())["conditions"][1]
    assert about["index"].endswith("other/index") and about["snapshot"] == 1


def test_wall_times_are_those_of_the_run_that_asked(town: World):
    first = compare(town).tables["answers"]["seconds"].to_pylist()
    assert compare(town).tables["answers"]["seconds"].to_pylist() == first


def test_an_open_index_can_be_a_condition_in_python(town: World, other_town: str):
    there = evaluate.condition("there=vector", open_index(other_town))
    gold = {"question": "Who met ALICE ?", "answer": "BOB", "documents": ["council.txt", "mill.txt"]}
    with pytest.warns(UserWarning, match=r"Not in the index \S*other/index, .*: gold document mill.txt"):
        found = evaluate.qa(town.open(), [gold], ["here=vector", there], ks=(10,), judge=False)
    assert found["summary"]["recall@10"].to_list() == [1.0, 0.5]
    assert found["indexes"]["documents"].to_list() == [6, 2]
    for text, told in (
        ("a=vector,index=gone", "Condition a: .*gone"),
        ("a=vector,prompts=gone", "Condition a: .*gone"),
    ):
        with pytest.raises(UsageError, match=told):
            evaluate.qa(town.open(), [gold], [text])


def test_the_joint_judge_is_called_once_for_all_criteria_and_an_overall_winner(town: World, run: Command):
    asked = town.asked()
    planned = evaluate.estimate(
        town.open(), QUESTIONS, WAYS, criteria=("diversity",), replicates=2, judge_protocol="joint"
    )
    more = ["--criterion", "diversity", "--replicates", "2", "--judge-protocol", "joint", "--json", "-q"]
    done = run("evaluate", "compare", *options(town), *model_options(town), *more, "--out", folder(town))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [*told["criteria"]] == ["comprehensiveness", "diversity", "overall"]
    prompts = town.prompts(asked)
    assert prompts["judge_joint"] == 6 and not prompts["judge"]
    assert dict(zip(planned["name"], planned["calls"], strict=True))["judge"] == 6
    rows = pq.read_table(folder(town) / "judgements.parquet").to_pylist()
    assert len(rows) == 3 * 6 and sum(row["swapped"] for row in rows) == 9
    assert {row["criterion"]: row["position_bias"] for row in told["reliability"]} == dict.fromkeys(
        told["criteria"], 0.0
    )


def test_a_joint_reply_without_a_criterion_fails_for_all_criteria(town: World):
    def respond(body: dict[str, Any]) -> Any:
        if prompt_of(body) in ("judge_joint", "correct"):
            return '{"verdicts": [{"criterion": "diversity", "winner": 1}]}'
        return toy_model.respond(body)

    town.endpoint.respond = respond
    with evaluation_run(town.open(), str(folder(town)), "test") as run:
        found = compared(
            run, [BatchQuestion("1", QUESTIONS[0])], WAYS, ["diversity"], replicates=2, protocol="joint"
        )
    assert found.failed == 4 and set(found.tables["judgements"]["winner"].to_pylist()) == {None}
    assert all("for overall" in error for error in found.tables["judgements"]["error"].to_pylist())


# Claims, gold answers, communities


def test_distinct_claims_of_answers_are_counted(town: World):
    with pytest.warns(UserWarning, match="prefer their own"):
        found = evaluate.compare(
            town.open(), QUESTIONS, WAYS, criteria=ONE, replicates=2, claims=True, out=str(folder(town))
        )
    claims, counts = found["claims"], found["claim_counts"]
    assert list(counts["condition"]) == ["global", "vector"] and list(counts["answers"]) == [3, 3]
    for texts, n in zip(claims["texts"], claims["claims"], strict=True):
        assert len(set(texts)) == len(texts) == n
    row = found["agreement"].iloc[0]
    assert (row["measure"], row["agreement"]) == ("claims", 1.0)
    assert row["majorities"] == pytest.approx(2 / 3)
    tests = found["count_tests"]
    assert set(tests["measure"]) == set(counts.columns[2:]) and set(tests["questions"]) == {3}


def gold() -> list[GoldQuestion]:
    return [
        GoldQuestion(BatchQuestion("1", "Who met ALICE ?"), ("BOB",), ("council.txt", "mill.txt")),
        GoldQuestion(
            BatchQuestion("2", "Who sailed with ERIN ?"), ("FRANK", "Frank"), ("harbour.txt", "gone.txt")
        ),
    ]


def test_gold_answers_score_answers_and_retrieval(town: World):
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(run, gold(), ["vector=vector", "local=local"])
    scores = {(s["condition"], s["question_id"]): s for s in found.tables["scores"].to_pylist()}
    assert len(scores) == 4
    assert scores["vector", "1"]["recall@10"] == 1.0 and scores["vector", "2"]["recall@10"] == 0.5
    assert scores["vector", "1"]["accuracy"] == scores["vector", "1"]["judged_correct"] == 1.0
    assert 0 < scores["vector", "1"]["f1"] < 1
    assert found.warnings == ["Not in the index, counted as missed: gold document gone.txt"]
    assert list(found.tables["summary"]["condition"].to_pylist()) == ["vector", "local"]


def test_the_oracle_answers_from_the_gold_documents(town: World, tmp_path: Path):
    asked = town.asked()
    questions = [*gold(), GoldQuestion(BatchQuestion("3", "Who paid GRACE ?"), ("IVAN",))]
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(run, questions, ["best=oracle", "vector=vector"])
        with pytest.raises(UsageError, match="Condition best: Method oracle retrieves nothing"):
            score_known_answers(run, questions, ["best=oracle"], retrieval_only=True)
        with pytest.raises(UsageError, match="needs documents, but the index has none"):
            score_known_answers(run, questions[2:], ["best=oracle"])
    scores = {(s["condition"], s["question_id"]): s for s in found.tables["scores"].to_pylist()}
    assert scores["best", "1"]["token_recall"] == scores["best", "1"]["token_precision"] == 1.0
    assert scores["best", "1"]["substring_recall"] == scores["best", "1"]["substring_precision"] == 1.0
    assert scores["best", "1"]["accuracy"] == 1.0 and scores["best", "3"]["accuracy"] == 0.0
    bodies = [
        b["messages"][-1]["content"] for b in town.endpoint.bodies()[asked:] if prompt_of(b) == "answer"
    ]
    assert (
        sum("GRACE bought flour" in b and "met BOB at the council" in b and "rained" not in b for b in bodies)
        == 1
    )
    with pytest.raises(UsageError, match="Condition best: Method oracle answers from the documents"):
        compare(town, ["best=oracle", "vector=vector"])


def test_figures_have_deviations_and_are_given_per_type(town: World, run: Command):
    rows = [
        {"question": "Who met ALICE ?", "answer": "BOB", "type": "bridge"},
        {"question": "Who sailed with ERIN ?", "answer": "Nobody", "type": "bridge"},
        {"question": "Who married HEIDI ?", "answer": "IVAN", "question_type": "comparison"},
    ]
    file = town.root.parent / "gold.json"
    file.write_text(json.dumps(rows))
    base = ["evaluate", "qa", "--root", town.root, "--questions", file, "--condition", "v=vector"]
    page = town.root.parent / "scores.html"
    done = run(*base, *model_options(town), "--out", folder(town), "--report", page)
    assert done.exit_code == 0, done.output
    assert "Type bridge, 2 questions:" in done.output and "Indexes:" in done.output
    written = page.read_text("utf-8")
    assert (
        "Type: <bdi>bridge</bdi>" in written and 'id="indexes"' in written and 'id="win-rates"' not in written
    )
    figures = pq.read_table(folder(town) / "figures.parquet").to_pylist()
    accuracy = {row["type"]: row for row in figures if row["measure"] == "accuracy"}
    assert {kind: (row["questions"], row["mean"]) for kind, row in accuracy.items()} == {
        "": (3, pytest.approx(2 / 3)),
        "bridge": (2, 0.5),
        "comparison": (1, 1.0),
    }
    assert accuracy["bridge"]["deviation"] == pytest.approx(0.5**0.5)
    assert accuracy["comparison"]["deviation"] is None
    assert (accuracy["bridge"]["low"], accuracy["bridge"]["high"]) == (0.0, 1.0)


def test_statements_of_answers_and_assertions_are_judged(town: World):
    """The toy model answers with the sentences that have the names of the question."""
    asked = town.asked()
    rows = [
        {
            "question": "Who met ALICE ?",
            "answer": "BOB met ALICE, and ZOE saw it.",
            "assertions": ["BOB met ALICE.", {"statement": "ZOE met ALICE."}],
        },
        {"question": "Who sailed with ERIN ?", "answer": "FRANK"},
    ]
    found = evaluate.qa(
        town.open(), rows, ["v=vector"], metrics=evaluate.METRICS, ks=(5,), out=str(folder(town))
    )
    first, second = found["scores"].to_dict("records")
    assert first["assertions"] == 0.5 and pd.isna(second["assertions"])
    assert first["coverage"] == pytest.approx(2 / 3) and second["coverage"] == 1.0
    assert first["faithfulness"] == second["faithfulness"] == 1.0
    assert 0 < first["statement_f1"] < 1
    prompts = town.prompts(asked)
    assert (prompts["answer_claims"], prompts["check_statements"]) == (2 + 2, 1 + 3 * 2)
    assert set(found["qa_judging"]["stage"]) == {"answer_claims", "check_statements", "correct_answer"}
    asked = town.asked()
    evaluate.qa(town.open(), rows, ["v=vector"], metrics=evaluate.METRICS, ks=(5,), out=str(folder(town)))
    assert town.asked() == asked
    with pytest.raises(UsageError, match=r"Unknown metric 'beauty'\. Choose from: coverage"):
        evaluate.qa(town.open(), rows, ["v=vector"], metrics=["beauty"])


def test_unusable_statement_verdicts_are_failures_and_not_zeros(town: World):
    town.endpoint.respond = lambda body: (
        "?" if prompt_of(body) in ("check_statements", "correct") else toy_model.respond(body)
    )
    q = GoldQuestion(BatchQuestion("1", "Who met ALICE ?"), assertions=("BOB met ALICE.",))
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(run, [q], ["v=vector"])
    assert found.failed == 1 and "Question 1, v: No assertions: check_statements" in found.warnings[0]
    assert "assertions" not in found.tables["summary"].column_names


def test_a_missing_answer_scores_0(town: World):
    """Even if the gold answer is a word that normalisation removes."""

    def asked(body: dict[str, Any]) -> Any:
        return REJECTED if prompt_of(body) == "answer" else toy_model.respond(body)

    town.endpoint.respond = asked
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(
            run, [GoldQuestion(BatchQuestion("1", "Which ?"), ("A",))], ["vector=vector"]
        )
    (scores,) = found.tables["scores"].to_pylist()
    assert scores["accuracy"] == scores["f1"] == scores["judged_correct"] == 0.0
    assert found.failed == 1 and "1 answer missing, scored 0" in found.warnings


def test_retrieval_scores_alone_need_no_answers(town: World):
    asked = town.asked()
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(run, gold(), ["vector=vector", "words=keyword"], retrieval_only=True)
    assert town.asked() == asked
    summary = found.tables["summary"].to_pylist()
    assert [s["condition"] for s in summary] == ["vector", "words"]
    assert "accuracy" not in summary[0] and summary[1]["answer_in_context"] == 1.0
    assert (summary[0]["with_answers"], summary[0]["with_documents"]) == (2, 2)
    with (
        pytest.raises(UsageError, match="at most 60"),
        evaluation_run(town.open(), str(folder(town)), "qa") as run,
    ):
        score_known_answers(run, gold(), ["a" * 61 + "=keyword"], retrieval_only=True)


def test_a_question_without_results_scores_0_and_reports_have_no_retrieval_score(town: World):
    asked = [*gold(), GoldQuestion(BatchQuestion("3", "Xyzzy ?"), ("ALICE",), ("council.txt",))]
    with evaluation_run(town.open(), str(folder(town)), "qa") as run:
        found = score_known_answers(run, asked, ["words=keyword", "reports=global"], retrieval_only=True)
    scores = {(s["condition"], s["question_id"]): s["recall@5"] for s in found.tables["scores"].to_pylist()}
    assert scores["words", "3"] == 0.0 and scores["words", "1"] > 0
    assert {scores["reports", q] for q in "123"} == {None}


@pytest.fixture
def wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A WordNet in which `bob` and `robert` are synonyms."""
    folder = tmp_path / "nltk_data" / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    for pos in ("noun", "verb", "adj", "adv"):
        header = "  1 WordNet 3.0 Copyright 2006\n"
        synset = f"{len(header):08} 03 n 02 bob 0 robert 0 000 | a name  \n" if pos == "noun" else ""
        lemmas = [f"{w} n 1 0 1 0 {len(header):08}  \n" for w in ("bob", "robert")] if synset else []
        (folder / f"data.{pos}").write_text(header + synset)
        (folder / f"index.{pos}").write_text(header + "".join(lemmas))
        (folder / f"{pos}.exc").write_text("")
    (folder / "index.sense").write_text("")
    (folder / "lexnames").write_text("".join(f"{n:02} noun.{n} 1\n" for n in range(4)))
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])
    yield folder
    nltk.corpus.wordnet._unload()


def test_meteor_counts_synonyms_if_nltk_has_wordnet(town: World, wordnet: Path):
    questions = [GoldQuestion(BatchQuestion("1", "Who met ALICE ?"), ("Robert",))]
    lexnames = (wordnet / "lexnames").read_text()
    (wordnet / "lexnames").write_text("damaged")

    def scored() -> tuple[float, list[str]]:
        with evaluation_run(town.open(), str(folder(town)), "qa") as run:
            found = score_known_answers(run, questions, ["v=vector"], judge=False)
        return found.tables["scores"]["meteor"].to_pylist()[0], found.warnings

    score, warnings = scored()
    assert score == 0 and any("data of WordNet cannot be read" in text for text in warnings)
    (wordnet / "lexnames").write_text(lexnames)
    with_synonyms, warnings = scored()
    assert with_synonyms > 0 and any("METEOR counts synonyms" in text for text in warnings)


def test_an_unusable_claim_model_is_reported_before_any_answer(town: World, run: Command):
    gone = ["--set", "models.c.provider=openai", "--set", "models.c.model=x"]
    gone += ["--set", "models.c.endpoints.0.base_url=http://127.0.0.1:9/v1"]
    gone += ["--set", "models.c.endpoints.0.api_key_env=NO_SUCH_KEY", "--set", "stages.answer_claims.model=c"]
    asked = town.asked()
    for command in (["claims"], ["compare", "--claims", "--criterion", "diversity"]):
        given = [o for o in options(town) if o not in ("--criterion", "comprehensiveness")]
        done = run("evaluate", *command, *given, *model_options(town), *gone, "--out", folder(town))
        assert "NO_SUCH_KEY" in done.output and done.exit_code not in (0, EXIT_FAILED_ITEMS), done.output
    assert town.asked() == asked


def test_question_embeddings_are_paid_for_once(world: World):
    world.write(TOWN)
    world.index(**world.embedding)
    asked = len(world.endpoint.requests)
    for _ in range(2):
        with evaluation_run(world.open(**world.embedding), str(folder(world)), "qa") as run:
            score_known_answers(run, gold(), ["vector=vector"], retrieval_only=True)
    assert len(world.endpoint.requests) - asked in (1, 2), "a call may hold both questions"


def test_pandas_frames_are_accepted_and_returned(town: World):
    documents = np.array(["council.txt"], object)  # as `pandas.read_parquet` returns lists
    given = pd.DataFrame({"question": ["Who met ALICE ?"], "answer": ["BOB"], "documents": [documents]})
    found = evaluate.qa(town.open(), given, ["v=vector"], ks=(3,), out=str(folder(town)))
    assert found["summary"]["recall@3"].to_list() == [1.0]
    assert found["qa_conditions"]["questions"].to_list() == [1]
    with pytest.warns(UserWarning, match="prefer their own"):
        evaluate.compare(
            town.open(), QUESTIONS, WAYS, criteria="diversity", replicates=2, out=str(folder(town))
        )
    claims = evaluate.claims(town.open(), QUESTIONS, WAYS, out=str(folder(town)))
    assert set(claims["agreement"]["criterion"]) == {"diversity"}
    others = evaluate.claims(town.open(), ["What about BOB ?"], WAYS, out=str(folder(town)))
    assert not others["agreement"]["cases"].any(), "judgements on other questions do not count"
    for nothing in ([], pd.DataFrame({"question": []})):
        with pytest.raises(UsageError, match="list of questions contains no valid question"):
            evaluate.compare(town.open(), nothing, WAYS)


def test_communities_are_measured_at_each_level(deep: World):
    found = evaluate.communities(deep.open())
    assert list(found["level"]) == list(range(len(found))) and len(found) > 1
    assert found["coverage"].between(0, 1).all() and found["modularity"].between(-0.5, 1).all()
    assert found["communities"].is_monotonic_increasing
    assert found["calinski_harabasz"].notna().all()


# Questions and estimates


def test_questions_are_written_per_persona_and_task(town: World):
    found = evaluate.questions(town.open(), "Letters of a town", personas=2, tasks=3, questions=2)
    assert len(found) == 12 and list(found.columns) == ["question_id", "question", "persona", "task"]
    assert found["question_id"].iloc[-1] == "2.3.2"
    assert dict(town.prompts(town.asked() - 9)) == {"personas": 1, "tasks": 2, "corpus_questions": 6}


def test_a_missing_corpus_description_is_written_from_the_reports(town: World):
    index = town.open(corpus={"description": ""})
    evaluate.questions(index, personas=1, tasks=1, questions=1)
    assert town.prompts()["corpus_description"] == 1
    with pytest.raises(UsageError, match="description of the corpus is empty"):
        evaluate.questions(index, "  ")


def test_an_estimate_counts_the_calls_of_a_comparison(town: World):
    asked = town.asked()
    planned = evaluate.estimate(town.open(), QUESTIONS, WAYS, criteria=ONE, replicates=2, claims=True)
    assert town.asked() == asked, "nothing is asked for it"
    compare(town)
    done = town.prompts(asked)
    calls = dict(zip(planned["name"], planned["calls"], strict=True))
    assert calls["judge"] == done["judge"] and calls["answer_claims"] == 6
    assert calls["vector"] == done["answer"] and calls["embed"] == len(QUESTIONS)
    assert calls["global"] >= done["map"]


# Command line


def options(world: World) -> list[object]:
    path = world.root.parent / "questions.csv"
    path.write_text("question_id,question\n" + "".join(f"{n},{q}\n" for n, q in enumerate(QUESTIONS, 1)))
    ways = [part for way in WAYS for part in ("--condition", way)]
    return ["--root", world.root, "--questions", path, *ways, "--criterion", "comprehensiveness"]


def test_the_command_prints_win_rates_and_writes_tables_and_a_page(town: World, run: Command):
    page = town.root.parent / "page.html"
    more = ["--replicates", "2", "--claims", "--out", folder(town), "--report", page]
    done = run("evaluate", "compare", *options(town), *model_options(town), *more)
    assert done.exit_code == 0, done.output
    assert "comprehensiveness: win rate of the row over the column" in done.output
    assert "note: The judge m also wrote the answers of global" in done.output
    tables = {path.name for path in folder(town).glob("*.parquet")}
    assert tables >= {"answers.parquet", "judgements.parquet", "win_rates.parquet", "claims.parquet"}
    assert len(pq.read_table(folder(town) / "judgements.parquet")) == 6
    assert "<!doctype html>" in page.read_text("utf-8")[:20].lower()
    told = json.loads(run("evaluate", "compare", *options(town), *more, "--json", "-q").stdout)
    assert told["win_rates"][0]["questions"] == 3


def test_failed_verdicts_set_the_exit_code(town: World, run: Command):
    town.endpoint.respond = lambda body: (
        "?" if prompt_of(body) in ("judge", "correct") else toy_model.respond(body)
    )
    done = run("evaluate", "compare", *options(town), "--replicates", "2", "--out", folder(town))
    assert done.exit_code == EXIT_FAILED_ITEMS, done.output
    assert "6 of 6 judgements are missing" in done.output


def test_questions_that_look_like_formulas_are_safe_in_a_spreadsheet(town: World, run: Command):
    def asked(body: dict[str, Any]) -> Any:
        if prompt_of(body) == "corpus_questions":
            return '{"questions": [{"question": "=HYPERLINK(1)"}]}'
        return toy_model.respond(body)

    town.endpoint.respond = asked
    out = town.root.parent / "asked.csv"
    few = ["--personas", "1", "--tasks", "1", "--each", "1", "--description", "A town", "--out", out]
    done = run("evaluate", "questions", "--root", town.root, *few)
    assert done.exit_code == 0, done.output
    with out.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["question"] == "'=HYPERLINK(1)"


def test_a_killed_comparison_resumes(town: World):
    """Killed during the calls of the judge."""
    with Endpoint(respond=toy_model.respond) as slow:
        slow.delay_s = 0.1
        command = [sys.executable, "-m", "graphrag_ray", "evaluate", "compare", *map(str, options(town))]
        command += [*map(str, model_options(town)), "--replicates", "20", "--out", str(folder(town))]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while town.prompts()["judge"] < 20 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
    asked = town.prompts()
    assert asked["judge"] >= 20
    found = compare(town, replicates=20, run={"journal_flush_s": 0.1})
    assert found.failed == 0
    again = town.prompts()
    assert again["answer"] == asked["answer"] == 3
    assert again["judge"] <= 60 + 40, "at most what was in flight or not written yet is asked again"


def test_an_offline_comparison_says_that_no_model_judged(run: Command, tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(
        "Mara Venn founded the Hask Trust in 1998. The Hask Trust owns a mill."
    )
    assert run("index", tmp_path / "in", "--root", tmp_path / "i", "-q").exit_code == 0
    (tmp_path / "q.csv").write_text("question\nWho founded the Hask Trust?\n")
    ways = ["--condition", "a=vector", "--condition", "b=local", "--out", tmp_path / "e"]
    page = tmp_path / "p.html"
    more = ["--questions", tmp_path / "q.csv", "--report", page]
    done = run("evaluate", "compare", "--root", tmp_path / "i", *ways, *more)
    assert done.exit_code == 0, done.output
    assert "NO LANGUAGE MODEL JUDGED" in done.output
    assert "no language model judged" in page.read_text("utf-8").lower()
