"""Tables do not depend on the order in which replies arrive."""

from __future__ import annotations

import random

import pytest
import toy_model
from endpoint import Answer, Response, rate_limited
from world import TOWN, World, everything

SETTINGS = {
    "chunking": {"size": 12, "overlap": 4, "min_last_chunk_tokens": 2},
    "communities": {"max_size": 3, "pack_components_below": 1},
    "reports": {"context_tokens": 400},
    "claims": {"enabled": True},
}


@pytest.fixture
def undisturbed(world: World) -> dict:
    """The tables of an undisturbed run, whose index is then deleted."""
    world.write(TOWN)
    world.index(**SETTINGS)
    tables = everything(world.open())
    assert all(len(tables[t]) > 3 for t in ("covariates", "communities", "community_reports"))
    world.forget()
    return tables


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tables_do_not_depend_on_which_call_returns_first(world: World, undisturbed: dict, seed: int):
    rng = random.Random(seed)
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=rng.random() * 0.06)
    world.index(**SETTINGS)
    assert everything(world.open()) == undisturbed


def test_tables_do_not_depend_on_transient_faults(world: World, undisturbed: dict):
    rng = random.Random(7)

    def respond(body: dict) -> Response:
        return rate_limited(retry_after="0.02") if rng.random() < 0.1 else toy_model.respond(body)

    world.endpoint.respond = respond
    world.index(**SETTINGS)
    assert everything(world.open()) == undisturbed


def test_tables_do_not_depend_on_how_many_items_run_at_once(world: World, undisturbed: dict):
    model = world.settings().models["default"].model_dump(mode="json")
    model["endpoints"][0]["max_in_flight"] = 1
    world.index(models={"default": model}, **SETTINGS)
    assert everything(world.open()) == undisturbed


def test_tables_do_not_depend_on_how_rows_are_split_into_files(world: World):
    """Ids depend on the path, so they differ, but titles and contents are the same."""
    import json

    rows = [json.dumps({"text": text, "id": name}) for name, text in TOWN.items()]
    world.write({"all.jsonl": "\n".join(rows)})
    options = {"input": {"id_column": "id"}} | SETTINGS
    world.index(**options)
    from_one_file = {
        e["title"]: (e["frequency"], e["degree"], e["description"]) for e in world.table("entities")
    }
    (world.input / "all.jsonl").unlink()
    world.forget()
    world.write({f"{i}.jsonl": row for i, row in enumerate(rows)})
    world.index(**options)
    from_many_files = {
        e["title"]: (e["frequency"], e["degree"], e["description"]) for e in world.table("entities")
    }
    assert from_many_files == from_one_file
