"""`graphrag-ray estimate` compared with what indexing the same documents really requests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from world import TOWN, Built, World, prompt_of

from graphrag_ray.cli.command_line import main
from graphrag_ray.corpus.tokens import count_tokens
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE

PRICE = ["--set", "models.default.price={input_usd_per_mtok: 1, output_usd_per_mtok: 2}"]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["estimate", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def model_options(world: World) -> list[str]:
    return ["--model", "m", "--base-url", world.endpoint.base_url, "--max-in-flight", "16",
            "--set", "models.default.endpoints.0.api_key_env=null"]  # fmt: skip


def estimated(world: World, *more: object) -> dict[str, Any]:
    result = run(world.input, *model_options(world), "--json", *more)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found | {"stages": {s["stage"]: s for s in found["stages"]}}


def assumed(found: dict[str, Any]) -> dict[str, Any]:
    return {a["name"]: a for a in found["assumptions"]}


def everything_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def sent_tokens(world: World, prompt: str) -> int:
    """Tokens of all requests of one prompt that reached the model, counted by us."""
    return sum(
        count_tokens(m["content"], "o200k_base") + TOKENS_PER_MESSAGE
        for body in world.endpoint.bodies()
        if prompt_of(body) == prompt
        for m in body["messages"]
    )


def test_estimated_first_turns_equal_those_of_a_run(world: World):
    world.write(TOWN)
    found = estimated(world, "--set", "extraction.max_gleanings=0")
    world.index(extraction={"max_gleanings": 0})
    extraction = found["stages"]["extract"]
    assert extraction["calls"] == world.prompts()["extract"] == len(TOWN)
    assert extraction["prompt_tokens"] == sent_tokens(world, "extract")
    assert extraction["exact"] == "first turns exact"


def test_an_estimate_calls_no_model_and_writes_nothing(world: World, tmp_path: Path):
    world.write(TOWN)
    before = everything_below(tmp_path)
    estimated(world, "--root", world.root)
    assert world.asked() == 0 and everything_below(tmp_path) == before


def test_a_trial_replaces_assumptions(world: World, built: Built):
    world.take(built(TOWN))
    found = estimated(world, "--root", world.root)
    extraction = found["stages"]["extract"]
    asked = world.prompts()
    assert extraction["calls"] == asked["extract"] + asked["glean_missing"]
    assert extraction["left"]["calls"] == 0 and found["left"]["calls"] < found["total"]["calls"]
    facts = assumed(found)
    assert "measured on 6 calls" in facts["reply_tokens.glean_missing"]["source"]
    assert "measured" in facts["reply_tokens.extract"]["source"]
    entities = sum(len(u["entity_ids"]) for u in world.table("text_units"))
    assert facts["entities_per_chunk"]["value"] == pytest.approx(entities / len(TOWN))
    assert found["graph"]["entities"] == pytest.approx(len(world.table("entities")))


def test_replies_of_another_model_are_not_used_and_that_is_reported(world: World, built: Built):
    world.take(built(TOWN))
    found = estimated(world, "--root", world.root, "--model", "another")
    assert found["stages"]["extract"]["left"]["calls"] == found["stages"]["extract"]["calls"]
    assert assumed(found)["gleaned"]["source"] == "assumed"
    assert any("nothing was learned" in note for note in found["notes"])


def test_an_unknown_price_is_not_zero(world: World):
    world.write(TOWN)
    found = estimated(world)
    assert found["stages"]["extract"]["cost_usd"] is None and found["total"]["cost_usd"] is None
    assert "unknown" in run(world.input, *model_options(world)).stdout


def test_cost_and_time_follow_prices_and_limits(world: World):
    world.write(TOWN)
    found = estimated(world, *PRICE, "--tpm", "10000")
    extraction = found["stages"]["extract"]
    tokens = extraction["prompt_tokens"], extraction["completion_tokens"]
    assert extraction["cost_usd"] == pytest.approx((tokens[0] + 2 * tokens[1]) / 1e6, rel=1e-3)
    assert extraction["bound_by"] == "tokens per minute"
    least = sum(tokens) / 10_000 * 60
    assert least <= extraction["seconds"] <= least + 60.0  # The last calls are waited for.
    assert found["total"]["cost_usd"] == pytest.approx(sum(s["cost_usd"] for s in found["stages"].values()))


def test_users_can_replace_assumptions(world: World):
    world.write(TOWN)
    given = [f"--assume={value}" for value in ("glean_yes=1", "reply_tokens.extract=450")]
    found = estimated(world, *given, "--assume", "reply_tokens.glean_missing=30")
    extraction = found["stages"]["extract"]
    assert extraction["calls"] == 2 * len(TOWN)
    assert extraction["completion_tokens"] == len(TOWN) * (450 + 30)
    check = ["--set", "extraction.gleaning=check", "--assume", "reply_tokens.glean=50"]
    found = estimated(world, *given, *check)
    extraction = found["stages"]["extract"]
    assert extraction["calls"] == 3 * len(TOWN)
    assert extraction["completion_tokens"] == len(TOWN) * (450 + 1 + 50)
    assert assumed(found)["glean_yes"]["source"] == "given by --assume"


def test_the_offline_engine_costs_nothing_and_has_no_time(world: World):
    world.write(TOWN)
    found = json.loads(run(world.input, "--json").stdout)
    assert found["total"]["cost_usd"] == 0 and found["total"]["seconds"] is None
    shown = run(world.input).stdout
    assert "costs nothing" in shown and "unknown" in shown and "no calls" not in shown


def test_claims_are_a_stage_only_if_enabled(world: World):
    world.write(TOWN)
    assert "claims" not in estimated(world)["stages"]
    assert estimated(world, "--set", "claims.enabled=true")["stages"]["claims"]["calls"] <= len(TOWN)


def test_the_table_has_stages_assumptions_and_their_sources(world: World):
    world.write(TOWN)
    shown = run(world.input, *model_options(world), *PRICE).stdout
    for said in ("6 files", "extract", "first turns exact", "total", "$", "gleaned", "assumed", "--root"):
        assert said in shown


def test_time_without_calls_has_a_row_so_that_the_total_is_the_sum(world: World):
    world.write(TOWN)
    found = estimated(world, "--assume", "own_s=77")
    timed = [s["seconds"] for s in found["stages"].values() if s["seconds"] is not None]
    assert found["total"]["seconds"] == pytest.approx(sum(timed) + 77)
    shown = run(world.input, *model_options(world), "--assume", "own_s=77").stdout
    assert re.search(r"^no calls +77 s +starting Ray, reading, tables *$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["NOWHERE"], "Nothing to read at INPUT"),
        (["INPUT", "--set", "chunking.sise=3"], "did you mean 'chunking.size'"),
        (["INPUT", "--assume", "glean_yess=1"], "Did you mean 'glean_yes'"),
        (["INPUT", "--sample", "0"], "--sample"),
        (["EMPTY"], "could be read"),
    ],
)
def test_usage_errors_return_2_with_an_explanation(world: World, arguments: list[str], told: str):
    world.write({**TOWN, "empty/e.txt": " "})
    places = {"INPUT": world.input, "NOWHERE": world.input / "no", "EMPTY": world.input / "empty"}
    result = run(*[places.get(a, a) for a in arguments])
    assert result.exit_code == 2 and told in " ".join(result.stderr.split())


def test_a_large_input_is_sampled_by_files_and_says_so(world: World):
    from graphrag_ray.indexing.estimate import estimate

    world.write({f"{i:02}.txt": f"{TOWN['council.txt']} {i:02}" for i in range(20)})
    settings = world.settings()
    whole = estimate(str(world.input), settings)
    size = len(TOWN["council.txt"]) + 3
    part = estimate(str(world.input), settings, read_bytes=5 * size)
    assert part.corpus.documents == 5 and part.corpus.read_share == pytest.approx(0.25)
    assert part.corpus.prompt_tokens == pytest.approx(whole.corpus.prompt_tokens)
    assert any("extrapolated" in note for note in part.notes) and not any("--full" in n for n in whole.notes)
