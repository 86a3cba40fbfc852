"""`inspect`: every record leads to connected records, and near misses to suggestions."""

from __future__ import annotations

import json
from typing import Any

import hostile
import pytest
import toy_model
from world import DEEP, REJECTED, TOWN, Built, Command, World, chain, python


@pytest.fixture
def town(world: World, built: Built) -> World:
    texts = {**TOWN, "letters/people.csv": 'id,title,text\n1,Åsa,"ALICE wrote to GRACE."\n'}
    return world.take(built(texts, claims={"enabled": True}, input={"title_column": "title"}, **DEEP))


@pytest.fixture
def look(run: Command, world: World):
    def look(*arguments: object) -> Any:
        options = [a for a in arguments if str(a).startswith("--")]
        at = arguments.index(options[0]) if options else len(arguments)
        result = run("inspect", "--root", world.root, "--json", *arguments[at:], "--", *arguments[:at])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return look


def shown(run: Command, world: World, *arguments: object) -> str:
    result = run("inspect", *arguments, "--root", world.root)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def complaint(run: Command, world: World, *arguments: object) -> str:
    result = run("inspect", *arguments, "--root", world.root)
    assert result.exit_code == 2 and not result.stdout
    return " ".join(result.stderr.split())


# Entities


def test_an_entity_is_found_ignoring_case_and_shows_its_connections(town: World, look):
    found = look("entity", "alice")
    row = next(e for e in town.table("entities") if e["title"] == "ALICE")
    assert found["id"] == row["id"] and found["degree"] == row["degree"]
    edges = [r for r in town.table("relationships") if "ALICE" in (r["source"], r["target"])]
    by_weight = sorted(edges, key=lambda r: (-r["weight"], r["human_readable_id"]))
    assert [r["human_readable_id"] for r in found["relationships"]] == [
        r["human_readable_id"] for r in by_weight
    ]
    assert found["totals"] == {
        "names": 0, "relationships": len(edges), "claims": len(found["claims"]), "chunks": row["frequency"],
    }  # fmt: skip
    held = [c for c in town.table("communities") if row["id"] in c["entity_ids"]]
    assert [c["community"] for c in found["communities"]] == [c["community"] for c in held]
    assert [c["level"] for c in found["communities"]] == list(range(len(held)))


def test_chunks_have_their_location_and_the_sentence_that_names_the_entity(town: World, look):
    documents = {d["path"]: d["text"] for d in town.table("documents")}
    chunks = look("entity", "CAROL")["chunks"]
    assert {c["place"] for c in chunks} == {"council.txt", "bridge.txt"}
    for c in chunks:
        assert "CAROL" in c["quote"]
        assert documents[c["document"]][c["quote_start"] :].startswith(c["quote"])
    (letter,) = [c for c in look("entity", "grace")["chunks"] if c["title"] == "Åsa"]
    assert letter["place"] == "letters/people.csv, row 1"


def test_numbers_and_ids_lead_to_the_same_entity_as_its_name(town: World, look):
    found = look("entity", "ALICE")
    assert look("entity", found["human_readable_id"]) == look("entities", found["id"]) == found


def test_similar_names_are_suggested_with_their_numbers(town: World, run: Command):
    numbers = {e["title"]: e["human_readable_id"] for e in town.table("entities")}
    assert f"Did you mean ALICE ({numbers['ALICE']})" in complaint(run, town, "entity", "alcie")
    assert "inspect search TEXT" in complaint(run, town, "entity", "qqqqqq")


# Communities


def test_a_community_shows_its_report_members_parent_and_children(world: World, look):
    world.write(chain(24))
    world.index(**DEEP)
    communities = {c["community"]: c for c in world.table("communities")}
    reports = {r["community"]: r for r in world.table("community_reports")}
    titles = {e["id"]: e["title"] for e in world.table("entities")}
    for number, row in communities.items():
        found = look("community", f"C{row['level']}:{number}", "--limit", 0)
        assert found["report"]["full_content"] == reports[number]["full_content"]
        assert {m["title"] for m in found["entities"]} == {titles[i] for i in row["entity_ids"]}
        assert sorted(c["community"] for c in found["children"]) == sorted(row["children"])
        assert (found["parent"] or {"community": -1})["community"] == row["parent"]
        assert found["totals"]["relationships"] == len(row["relationship_ids"])
        assert look("report", reports[number]["id"], "--limit", 0) == found
        assert look("Reports", number, "--limit", 0) == found
    assert any(row["children"] for row in communities.values())


def test_a_community_is_found_by_the_title_of_its_report(town: World, look):
    titles = [r["title"] for r in town.table("community_reports")]
    once = next(t for t in titles if titles.count(t) == 1)
    assert look("community", once.lower())["report"]["title"] == once


def test_an_unknown_level_or_number_is_reported(town: World, run: Command):
    number = max(c["community"] for c in town.table("communities"))
    assert "is at level C" in complaint(run, town, "community", f"C9:{number}")
    assert f"Numbers go up to {number}" in complaint(run, town, "community", "999")


def test_a_community_whose_report_failed_says_so(world: World, run: Command):
    def respond(body: dict[str, Any]) -> Any:
        kind = toy_model.recognise(body["messages"][-1]["content"])[0]
        return REJECTED if kind == "report" else toy_model.respond(body)

    world.endpoint.respond = respond
    world.write(TOWN)
    world.index()
    assert "No report (see `graphrag-ray failures`)" in shown(run, world, "community", 1)
    assert "Community 1" in shown(run, world)


# Other records


def test_a_relationship_is_found_by_number_or_by_its_ends_in_any_order(town: World, look, run: Command):
    found = look("relationship", "bob", "ALICE")
    assert {found["source"], found["target"]} == {"ALICE", "BOB"} and found["weight"] == 2
    assert look("relationship", found["human_readable_id"]) == look("relationship", "alice", "bob") == found
    assert {e["title"] for e in found["entities"]} == {"ALICE", "BOB"}
    assert {c["place"] for c in found["chunks"]} == {"council.txt", "mill.txt"}
    assert "ALICE and JUDY have no direct relationship" in complaint(
        run, town, "relationship", "ALICE", "JUDY"
    )


def test_a_claim_leads_to_the_text_that_states_it(town: World, look):
    claims = look("entity", "ALICE")["claims"]
    found = look("Claims", claims[0]["human_readable_id"])
    assert found["subject_id"] == "ALICE" and found["chunks"][0]["quote"]


def test_a_chunk_shows_its_text_its_neighbours_and_its_records(world: World, look):
    world.write({"long.txt": " ".join(f"ANNA met BERTA on day {i}." for i in range(60))})
    world.index(chunking={"size": 120, "overlap": 20})
    units = sorted(world.table("text_units"), key=lambda u: u["position"])
    found = look("source", units[1]["human_readable_id"])
    assert found["text"] == units[1]["text"] and found["place"] == "long.txt"
    assert (found["before"], found["after"]) == tuple(units[i]["human_readable_id"] for i in (0, 2))
    assert {e["title"] for e in found["entities"]} == {"ANNA", "BERTA"}
    assert found["totals"] == {"entities": 2, "relationships": 1, "claims": 0}
    assert look("chunk", units[0]["human_readable_id"])["before"] is None


def test_a_document_is_found_by_path_location_number_or_title(town: World, look, run: Command):
    found = look("document", "council.txt")
    assert found["chunks"][0]["totals"]["entities"] == 3
    assert {e["title"] for e in found["chunks"][0]["entities"]} == {"ALICE", "BOB", "CAROL"}
    assert look("document", found["human_readable_id"]) == look("document", "COUNCIL.TXT") == found
    letter = look("document", "letters/people.csv, row 1")
    assert look("document", "asa") == letter and letter["document"] == "letters/people.csv"
    assert "Did you mean bridge.txt" in complaint(run, town, "document", "brigde.txt")


def test_documents_with_the_same_name_are_listed_with_their_numbers(world: World, run: Command):
    world.write({"rows.csv": "text\nANNA met BERTA.\nANNA met CLARA.\n"})
    world.index()
    told = complaint(run, world, "document", "rows.csv")
    assert "2 documents are named 'rows.csv': rows.csv, row 1 (1), rows.csv, row 2 (2)" in told


# Overview, search, limits


def test_the_overview_shows_the_largest_records_and_next_steps(town: World, run: Command, look):
    found = look()
    degrees = [e["degree"] for e in town.table("entities")]
    assert [e["degree"] for e in found["entities"]] == sorted(degrees, reverse=True)
    assert all(c["level"] == 0 for c in found["communities"])
    assert found["totals"]["documents"] == 7
    told = shown(run, town)
    assert "Look closer: graphrag-ray inspect community" in told and "7 documents" in told
    first = found["entities"][0]
    assert f"Connections: most: {first['title']} {first['degree']} (" in told
    assert found["counts"]["orphans"] == degrees.count(0) == 0 and len(found["counts"]["hubs"]) == 3


def test_search_finds_parts_of_names_ignoring_case_and_accents(town: World, look):
    assert [e["title"] for e in look("search", "AL")["entities"]] == ["ALICE"]
    assert [d["place"] for d in look("search", "åSA")["documents"]] == ["letters/people.csv, row 1"]
    by_title = look("search", "alice")
    assert all("ALICE" in c["title"] for c in by_title["communities"]) and by_title["communities"]


def test_search_without_results_suggests_similar_names(town: World, look, run: Command):
    assert look("search", "alcie")["near"][0] == "ALICE"
    assert "Did you mean: ALICE" in shown(run, town, "search", "alcie")
    assert "No name contains 'qqqqqq'" in shown(run, town, "search", "qqqqqq")
    assert "Pass a text" in complaint(run, town, "search", " ")


def test_a_limit_shortens_lists_and_shows_their_length(town: World, look):
    assert len(look("--limit", 2)["entities"]) == 2
    found = look("entity", "ALICE", "--limit", 1)
    assert [len(found[k]) for k in ("relationships", "chunks")] == [1, 1] and found["totals"]["chunks"] == 3
    assert len(look("entity", "ALICE", "--limit", 0)["chunks"]) == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["planet", "1"], "Unknown kind of record 'planet'. Choose from: community, entity"),
        (["entity"], "Pass the number or name of one entity, and quote a name with spaces"),
        (["entity", "A", "B"], "quote a name with spaces"),
        (["relationship"], "or the names of its two entities"),
        (["chunk", "x"], "Numbers go up to 7"),
        (["claim", "99"], "Unknown claim '99'"),
    ],
)
def test_usage_errors_list_the_choices(town: World, run: Command, arguments: list[str], told: str):
    assert told in complaint(run, town, *arguments)


def test_an_index_without_entities_can_be_inspected(world: World, look, run: Command):
    world.write({"weather.txt": TOWN["weather.txt"]})
    world.index()
    assert look()["entities"] == [] and look("document", 1)["chunks"][0]["entities"] == []
    assert "The index has no communities" in complaint(run, world, "community", "1")


def test_an_older_snapshot_is_inspected_by_number(town: World, look):
    town.write({"council.txt": "ZELDA met YVES."})
    town.index(**DEEP)
    assert look("entity", "ZELDA")["title"] == "ZELDA"
    assert look("search", "ZELDA", "--snapshot", 1)["entities"] == []


# Malicious texts


def test_malicious_names_are_found_and_cannot_control_the_terminal(world: World, run: Command, look):
    world.endpoint.respond = hostile.respond
    world.write({"evil.txt": f"{hostile.RAW_NAMES[0]} and ANNA {hostile.ESCAPE} met." + " And so on." * 50})
    world.index()
    assert {e["title"] for e in world.table("entities")} == set(hostile.NAMES)
    for written, name in zip(hostile.RAW_NAMES, hostile.NAMES, strict=True):
        if name not in ("1984", "+1"):
            assert look("entity", written)["title"] == look("entity", name)["title"] == name
    assert look("entity", "1984")["title"] == "1984"
    looks: list[list[Any]] = [["entity", n + 1] for n in range(len(hostile.NAMES))]
    looks += [[kind, 1] for kind in ("community", "chunk", "document", "relationship")]
    for arguments in ([], ["search", "x"], *looks):
        for more in ([], ["--json"]):
            out = run("inspect", *arguments, "--root", world.root, *more).stdout
            assert not any(
                (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" or c == "\u202e" for c in out
            )


def test_messages_with_malicious_names_cannot_control_the_terminal(world: World, run: Command, built: Built):
    world.take(built(TOWN))
    told = run("inspect", "entity", f"x{hostile.ESCAPE}", "--root", world.root).stderr
    assert "Unknown entity" in told and not any(
        c in told for c in hostile.ESCAPE if not c.isascii() or c < " "
    )


def test_inspect_imports_neither_ray_nor_model_clients(town: World):
    script = (
        "import sys\nfrom graphrag_ray.cli.command_line import main\n"
        f"main(['inspect', 'entity', 'ALICE', '--root', {str(town.root)!r}], standalone_mode=False)\n"
        "print([m for m in ('ray', 'openai', 'aiohttp', 'pandas', 'igraph') if m in sys.modules])"
    )
    done = python(script)
    assert done.stdout.strip().endswith("[]"), done.stderr
