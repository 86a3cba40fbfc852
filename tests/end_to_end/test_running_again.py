"""Resume, retry and update are the same command, and only new work is requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import toy_model
from endpoint import BROKEN, Status
from world import REJECTED, TOWN, Built, World, everything, expected_entities, expected_relationships

from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.indexing.stages import document_parts
from graphrag_ray.store import snapshots
from graphrag_ray.store.parts import list_parts

NO_RETRIES = {"run": {"journal_flush_s": 0.1, "max_attempts": 1, "max_failed_fraction": 1.0}}
CALLS_PER_CHUNK = {"extract": 1, "glean_missing": 1}


def failing_on(word: str, fault: Status):
    def respond(body: dict):
        return fault if word in body["messages"][-1]["content"] else toy_model.respond(body)

    return respond


def graph(world: World) -> tuple[dict[str, int], dict[tuple[str, str], float]]:
    entities = {e["title"]: e["frequency"] for e in world.table("entities")}
    return entities, {(r["source"], r["target"]): r["weight"] for r in world.table("relationships")}


def expected(texts) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    return expected_entities(texts), expected_relationships(texts)


def numbers(world: World, table: str) -> dict[str, int]:
    return {r["id"]: r["human_readable_id"] for r in world.table(table)}


def test_a_second_run_makes_no_call_and_no_snapshot(world: World):
    world.write(TOWN)
    first = world.index()
    asked, files = len(world.endpoint.requests), sorted(i.path for i in list_parts(world.store))
    second = world.index()
    assert len(world.endpoint.requests) == asked
    assert (first.committed, second.committed) == (True, False)
    assert second.manifest == first.manifest and world.snapshots() == [1]
    assert sorted(i.path for i in list_parts(world.store)) == files
    assert all(reused for step, reused in world.observer.reused.items() if step != "read")


def test_rebuilding_from_the_journal_makes_no_call(world: World, built: Built):
    world.take(built(TOWN))
    before = everything(world.open())
    asked = len(world.endpoint.requests)
    for info in world.store.list():
        if not info.path.startswith(("work/", "locks/")):
            world.store.delete(info.path)
    world.index()
    assert len(world.endpoint.requests) == asked
    assert everything(world.open()) == before


def test_an_added_document_requests_only_its_chunks(world: World, built: Built):
    world.take(built(TOWN))
    asked = world.asked()
    world.write({"zoo.txt": "ZOE feeds YURI."})
    done = world.index()
    spent = world.prompts(asked)
    assert {p: spent[p] for p in CALLS_PER_CHUNK} == CALLS_PER_CHUNK
    assert spent["describe"] == 0, "no entity of another document has a new description"
    assert (done.manifest.counts["added"], done.manifest.counts["changed"]) == (1, 0)
    assert graph(world) == expected([*TOWN.values(), "ZOE feeds YURI."])


def test_an_added_document_updates_descriptions_it_adds_to(world: World, built: Built):
    world.take(built(TOWN, descriptions={"concatenate_up_to_tokens": 0}))
    asked = world.asked()
    world.write({"zoo.txt": "JUDY feeds ALICE."})
    world.index(descriptions={"concatenate_up_to_tokens": 0})
    assert world.prompts(asked)["describe"] == 2, "JUDY's two, and ALICE's"


def test_a_changed_document_requests_only_changed_chunks(world: World, built: Built):
    world.take(built(TOWN))
    asked = world.asked()
    world.write({"mill.txt": "ALICE met BOB again. GRACE sold flour to KURT."})
    done = world.index()
    spent = world.prompts(asked)
    assert {p: spent[p] for p in CALLS_PER_CHUNK} == CALLS_PER_CHUNK
    assert (done.manifest.counts["added"], done.manifest.counts["changed"]) == (0, 1)
    texts = TOWN | {"mill.txt": "ALICE met BOB again. GRACE sold flour to KURT."}
    assert graph(world) == expected(texts.values())


def test_a_changed_document_gives_the_same_index_as_a_build_from_scratch(world: World, built: Built):
    world.take(built(TOWN))
    world.write({"mill.txt": "ALICE met BOB again. GRACE sold flour to KURT."})
    world.index()
    updated = without_numbers(everything(world.open()))
    world.forget()
    world.index()
    assert without_numbers(everything(world.open())) == updated


@pytest.mark.parametrize("bytes_of_a_pair", [1, 1_700, 1 << 19])
def test_an_added_document_changes_no_existing_part(
    world: World, monkeypatch: pytest.MonkeyPatch, bytes_of_a_pair: int
):
    kept: list[int] = []
    in_all = LocalExecutor.map

    def counted(self: LocalExecutor, step: str, fn: Any, inputs: Sequence[Any], *more: Any) -> Any:
        kept.extend(len(x[-1]) for x in inputs if step == "keep")
        return in_all(self, step, fn, inputs, *more)

    def documents() -> set[str]:
        tables = snapshots.read_latest(world.store).steps["read"]["tables"]
        return {
            path for groups in (tables["documents"], tables["text_units"]) for g in groups for path, *_ in g
        }

    monkeypatch.setattr(LocalExecutor, "map", counted)
    monkeypatch.setattr(document_parts, "split_bytes", lambda total: bytes_of_a_pair)
    world.write(TOWN)
    world.index()
    before = documents()
    for name in TOWN:
        (world.input / name).unlink()
    world.write({"zoo.txt": "ZOE feeds YURI."})
    world.index(add=True)
    assert not kept and before < documents()
    world.write({"mill.txt": "JUDY lost the mill."})
    world.index(add=True)
    # A replaced part: the others of its pair are copied, and no other pair is compared.
    assert len(kept) <= 1 and sum(kept) < len(TOWN) and (bytes_of_a_pair > 1 or not kept)
    updated = without_numbers(everything(world.open()))
    world.write({n: text for n, text in TOWN.items() if n != "mill.txt"})
    world.forget()
    world.index()
    assert without_numbers(everything(world.open())) == updated


def without_numbers(tables: dict) -> dict:
    """Tables without short ids, which updates preserve and builds from scratch assign again."""
    shown = {"human_readable_id", "community", "parent", "children", "title", "full_content"}
    shown |= {"full_content_json", "summary", "findings", "rating_explanation"}
    out = {}
    for name, rows in tables.items():
        hidden = shown if name.startswith("communit") else {"human_readable_id"}
        kept = [{k: v for k, v in r.items() if k not in hidden} for r in rows]
        out[name] = sorted(kept, key=lambda r: r.get("id", ""))
    return out


def test_a_deleted_document_removes_its_entities(world: World):
    world.write({f"more{i}.txt": f"ALICE met BOB, for the time number {i}." for i in range(15)})
    world.write(TOWN)
    world.index()
    (world.input / "brewery.txt").unlink()
    asked = world.asked()
    done = world.index()
    assert done.manifest.counts["removed"] == 1
    titles = {e["title"] for e in world.table("entities")}
    assert {"HEIDI", "IVAN"}.isdisjoint(titles) and "GRACE" in titles
    assert world.prompts(asked)["extract"] == 0
    assert "brewery.txt" not in {d["path"] for d in world.table("documents")}


def test_a_restored_document_costs_nothing(world: World):
    world.write({f"more{i}.txt": f"ALICE met BOB, for the time number {i}." for i in range(15)})
    world.write(TOWN)
    world.index()
    before = without_numbers(everything(world.open()))
    (world.input / "brewery.txt").unlink()
    world.index()
    asked = len(world.endpoint.requests)
    world.write(TOWN)
    world.index()
    assert len(world.endpoint.requests) == asked
    assert without_numbers(everything(world.open())) == before


def test_identical_texts_are_requested_once(world: World):
    world.write({"one.txt": TOWN["mill.txt"], "two.txt": TOWN["mill.txt"]})
    world.index()
    assert world.prompts()["extract"] == 1
    assert {e["title"]: e["frequency"] for e in world.table("entities")} == dict.fromkeys(
        ("ALICE", "BOB", "GRACE", "JUDY"), 2
    )


def test_short_ids_are_stable_and_never_reused(world: World):
    tables = ("documents", "text_units", "entities", "relationships", "communities", "community_reports")
    world.write({f"more{i}.txt": f"ALICE met BOB, for the time number {i}." for i in range(15)})
    world.write(TOWN)
    world.index()
    first = {t: numbers(world, t) for t in tables}
    (world.input / "brewery.txt").unlink()
    world.index()
    second = {t: numbers(world, t) for t in tables}
    world.write({"zoo.txt": "ZOE feeds YURI.", "brewery.txt": TOWN["brewery.txt"]})
    world.index()
    third = {t: numbers(world, t) for t in tables}
    for t in tables:
        assert len(set(third[t].values())) == len(third[t]), t
        assert all(second[t][i] == first[t][i] for i in second[t] if i in first[t]), t
        assert all(third[t][i] == second[t][i] for i in third[t] if i in second[t]), t
        new = [n for i, n in third[t].items() if i not in second[t]]
        assert new and min(new) > max(first[t].values()), t


def test_a_transient_failure_is_retried_and_completes_the_snapshot(world: World):
    world.write(TOWN)
    world.endpoint.respond = failing_on("HEIDI", BROKEN)
    done = world.index(**NO_RETRIES)
    (failure,) = world.table("failures")
    assert (failure["stage"], failure["document"], failure["kind"]) == ("extract", "brewery.txt", "transient")
    assert done.failed == 1 and "HEIDI" not in graph(world)[0]
    world.endpoint.respond = toy_model.respond
    done = world.index()
    assert done.failed == 0 and done.committed and world.table("failures") == []
    assert graph(world) == expected(TOWN.values())


def test_after_transient_failures_the_index_equals_an_undisturbed_one(world: World):
    world.write(TOWN)
    world.endpoint.respond = failing_on("HEIDI", BROKEN)
    world.index(**NO_RETRIES)
    world.endpoint.respond = toy_model.respond
    world.index()
    after = without_numbers(everything(world.open()))
    world.forget()
    world.index()
    assert without_numbers(everything(world.open())) == after


def test_a_permanent_failure_is_not_retried(world: World):
    world.write(TOWN)
    world.endpoint.respond = failing_on("HEIDI", REJECTED)
    world.index()
    asked = world.asked()
    world.endpoint.respond = toy_model.respond
    done = world.index()
    assert world.asked() == asked and done.failed == 1 and not done.committed
    (failure,) = world.table("failures")
    assert (failure["kind"], failure["attempts"]) == ("permanent", 1)


def test_a_failed_report_is_written_by_the_next_run(world: World):
    world.write(TOWN)
    world.endpoint.respond = failing_on("Write the report", BROKEN)
    world.index(**NO_RETRIES)
    assert world.table("community_reports") == []
    assert {f["stage"] for f in world.table("failures")} == {"report"}
    world.endpoint.respond = toy_model.respond
    world.index()
    assert len(world.table("community_reports")) == len(world.table("communities"))


def test_a_failed_description_shows_its_parts_and_is_retried_by_the_next_run(world: World):
    def no_summaries(body: dict):
        name, _ = toy_model.recognise(body["messages"][-1]["content"])
        return BROKEN if name == "describe" else toy_model.respond(body)

    world.write(TOWN)
    world.endpoint.respond = no_summaries
    world.index(**NO_RETRIES, descriptions={"concatenate_up_to_tokens": 0})
    alice = next(e for e in world.table("entities") if e["title"] == "ALICE")
    assert alice["description_failed"] and "CAROL thanked ALICE." in alice["description"]
    assert "ALICE" in {f["item"] for f in world.table("failures") if f["stage"] == "describe"}
    world.endpoint.respond = toy_model.respond
    world.index()
    alice = next(e for e in world.table("entities") if e["title"] == "ALICE")
    assert not alice["description_failed"] and alice["description"].startswith("ALICE: ")


def test_another_model_requests_everything_again_and_old_replies_are_kept(world: World, built: Built):
    world.take(built(TOWN))
    asked = world.asked()
    model = world.settings().models["default"].model_dump(mode="json")
    world.index(models={"default": model | {"model": "another"}})
    assert world.prompts(asked)["extract"] == len(TOWN)
    asked = world.asked()
    world.index()
    assert world.asked() == asked, "back with the first model, its journal answers"


def test_an_offline_index_can_be_continued_with_a_model(world: World, built: Built):
    world.take(built(TOWN, models={"default": {"provider": "offline"}}))
    assert world.open().manifest.notes
    done = world.index()
    assert done.committed and done.manifest.notes == {} and done.manifest.counts["changed"] == 0
    assert graph(world) == expected(TOWN.values())


def test_a_changed_report_prompt_requests_only_reports(world: World, tmp_path):
    from graphrag_ray.base.prompts import bundled_prompts

    world.write(TOWN)
    world.index()
    asked = world.asked()
    text = (bundled_prompts() / "report.txt").read_text()
    (tmp_path / "report.txt").write_text(text.replace("You write a report", "You write a sober report"))
    world.index(prompts_dir=str(tmp_path))
    assert set(world.prompts(asked)) == {"report"}


@pytest.mark.parametrize("weight", ["strength", "count"])
def test_graph_settings_need_no_extraction(world: World, weight: str, built: Built):
    world.take(built(TOWN))
    asked = world.asked()
    world.index(graph={"edge_weight": weight})
    assert world.prompts(asked)["extract"] == 0
    together = next(r for r in world.table("relationships") if (r["source"], r["target"]) == ("ALICE", "BOB"))
    assert together["weight"] == {"count": 2, "strength": 10}[weight]


def test_disabled_embeddings_are_removed_from_the_next_snapshot(world: World, built: Built):
    world.take(built(TOWN))
    done = world.index(embeddings={"enabled": False})
    assert done.committed
    assert not any(parts for name, parts in done.manifest.tables.items() if name.startswith("embeddings_"))


def test_changed_query_settings_apply_to_questions(world: World, built: Built):
    world.take(built(TOWN))
    asked = len(world.endpoint.requests)
    assert world.index(query={"response_type": "one sentence"}).committed
    assert len(world.endpoint.requests) == asked
    world.open().ask("What are the THEMES?")
    assert "one sentence" in str(world.endpoint.bodies()[-1])


def test_disabled_claims_are_removed_from_the_next_snapshot(world: World, built: Built):
    world.take(built(TOWN, claims={"enabled": True}))
    world.index()
    assert world.table("covariates") == []


def test_older_snapshots_stay_readable(world: World):
    from graphrag_ray import open_index

    world.write(TOWN)
    world.index()
    world.write({"zoo.txt": "ZOE feeds YURI."})
    world.index()
    assert world.snapshots() == [1, 2]
    old = open_index(str(world.root), snapshot=1)
    assert "ZOE" not in old.table("entities")["title"].to_pylist()
    assert "ZOE" in world.open().table("entities")["title"].to_pylist()


def test_descriptions_that_differ_only_in_punctuation_need_no_call(world: World):
    world.write({"a.txt": "ALICE met BOB.", "b.txt": "ALICE met “BOB”."})
    world.index()
    assert "describe" not in world.prompts()


def test_a_few_short_descriptions_need_no_call(world: World):
    world.write({"a.txt": "ALICE met BOB.", "b.txt": "ALICE saw BOB."})
    world.index()
    assert "describe" not in world.prompts()
    assert {e["description"] for e in world.table("entities")} == {"ALICE met BOB. ALICE saw BOB."}
    world.index(descriptions={"concatenate_up_to_tokens": 0})
    assert world.prompts()["describe"] == 3
