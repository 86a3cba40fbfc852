"""The command line: output, effects and exit codes.

Everything is real except Ray, which `test_on_ray.py` tests: the in-process executor replaces it, because a
cluster takes seconds to start.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import toy_model
from endpoint import BROKEN, WRONG_KEY, Answer
from world import REJECTED, TOWN, Command, World, index_command, model_options, python

from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.cli import command_line as program
from graphrag_ray.store import locks

QUESTION = "What are the THEMES?"
COST = ["--set", "budget.max_cost_usd=1"]


# Exit codes


def test_a_finished_run_returns_0_and_shows_what_it_built_and_next_steps(run: Command, world: World):
    world.write(TOWN)
    result = run(*index_command(world))
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    for said in ("documents 6 (6 added)", "chunks 6", "entities 10", "relationships 11", "reports 1"):
        assert said in shown
    assert "connections most: " in shown and "communities C0 1" in shown and "seconds" in shown
    assert "graphrag-ray query" in shown and str(world.root) in result.stdout.replace("\n", "")
    for step in ("read", "extract", "merge", "describe", "communities", "reports", "embed"):
        assert step in result.stderr


def test_a_second_run_returns_0_and_reports_that_nothing_changed(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    result = run(*index_command(world))
    assert result.exit_code == 0 and "Nothing has changed" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["index", "INPUT"], "--root"),
        (["index", "NOWHERE", "--root", "ROOT"], "Nothing to read at INPUT"),
        (["index", "INPUT", "--root", "ROOT", "--set", "chunking.sise=3"], "did you mean 'chunking.size'"),
        (["index", "INPUT", "--root", "ROOT", "--set", "chunking.size"], "use the form a.b=value"),
        (
            ["index", "INPUT", "--root", "ROOT", "--config", "missing.yaml"],
            "Settings file missing.yaml does not exist",
        ),
        (["index", "INPUT", "--root", "ROOT", "--set", "prompts_dir=nowhere"], "prompts_dir"),
        (
            ["index", "INPUT", "--root", "ROOT", "--model", "m", "--set", "budget.max_cost_usd=1"],
            "price of 'm'",
        ),
        (["query", "Who?", "--root", "ROOT"], "here is no index at"),
        (["status", "--root", "ROOT"], "No index at"),
        (["failures", "--root", "ROOT"], "here is no index at"),
        (["nonsense"], "No such command"),
    ],
    ids=lambda value: " ".join(value[:1] + value[4:]) if isinstance(value, list) else "",
)
def test_usage_and_settings_errors_return_2_with_an_explanation(
    run: Command, world: World, arguments: list[str], told: str
):
    world.write(TOWN)
    places = {"INPUT": str(world.input), "ROOT": str(world.root), "NOWHERE": str(world.input / "no")}
    result = run(*[places.get(a, a) for a in arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split()) and result.stdout == ""


def test_invalid_settings_and_prompts_are_reported_before_ray_starts(
    run: Command, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from graphrag_ray.engine.ray import cluster

    def refuse(address: str | None = None) -> None:
        pytest.fail("Ray was started")

    monkeypatch.setattr(cluster, "connect", refuse)
    world.write(TOWN)
    run("init", tmp_path)
    (tmp_path / "prompts" / "map.txt").write_text("Answer {question} from {contxt}.")
    result = run(*index_command(world, "--set", f"prompts_dir={tmp_path / 'prompts'}"))
    assert result.exit_code == 2 and "map.txt: missing placeholder {context}" in result.stderr
    assert run(*index_command(world, "--set", "chunking.overlap=700")).exit_code == 2


@pytest.mark.parametrize("root", ["FILE", "FILE/below", "nosuch://bucket/index", ""])
@pytest.mark.parametrize("command", [["index", "INPUT"], ["query", "Who?"], ["status"], ["failures"]])
def test_an_invalid_root_returns_2_and_is_named(
    run: Command, world: World, tmp_path: Path, command: list[str], root: str
):
    world.write(TOWN)
    (tmp_path / "file").write_text("")
    root = root.replace("FILE", str(tmp_path / "file"))
    result = run(*[str(world.input) if a == "INPUT" else a for a in command], "--root", root)
    assert result.exit_code == 2 and "--root" in result.stderr and root in result.stderr


def test_an_unknown_level_or_snapshot_returns_2(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    result = run("query", QUESTION, "--root", world.root, "--level", "C7")
    assert result.exit_code == 2 and "this hierarchy has C0" in result.stderr
    result = run("query", QUESTION, "--root", world.root, "--snapshot", 9)
    assert result.exit_code == 2 and "no snapshot 9. Existing snapshots: 1" in result.stderr


@pytest.mark.parametrize("question", ["", "  \n", "why? " * 5000], ids=["empty", "blank", "endless"])
def test_an_invalid_question_returns_2(run: Command, world: World, question: str):
    world.write(TOWN)
    run(*index_command(world))
    result = run("query", question, "--root", world.root)
    assert result.exit_code == 2 and "The question" in result.stderr


def test_input_that_would_delete_most_documents_returns_2_and_says_how_to_proceed(
    run: Command, world: World, tmp_path
):
    world.write(TOWN)
    run(*index_command(world))
    other = tmp_path / "other"
    other.mkdir()
    (other / "new.txt").write_text("ZOE met YURI.")
    again = ["index", other, "--root", world.root, *model_options(world)]
    result = run(*again)
    assert result.exit_code == 2 and "--allow-deletes" in result.stderr
    assert "7" in run(*again, "--add").stdout
    assert run(*again, "--allow-deletes").exit_code == 0
    assert [d["path"] for d in world.table("documents")] == ["new.txt"]


def test_failed_items_return_3_and_failures_lists_them(run: Command, world: World):
    world.write(TOWN | {"binary.txt": bytes(range(256)) * 9})
    world.endpoint.respond = lambda body: (
        REJECTED if "HEIDI" in str(body) else BROKEN if "JUDY" in str(body) else toy_model.respond(body)
    )
    result = run(*index_command(world, "--set", "run.max_attempts=2"))
    assert result.exit_code == 3
    assert "3 items failed: graphrag-ray failures" in result.stdout

    shown = run("failures", "--root", world.root)
    assert shown.exit_code == 0
    for said in ("brewery.txt", "mill.txt", "binary.txt", "was rejected", "2 attempts", "3 failed"):
        assert said in shown.stdout
    rows = {f["document"]: f for f in json.loads(run("failures", "--root", world.root, "--json").stdout)}
    assert set(rows) == {"brewery.txt", "mill.txt", "binary.txt"}
    units = {u["id"] for u in world.table("text_units")}
    for path, kind, attempts in (("brewery.txt", "permanent", 1), ("mill.txt", "transient", 2)):
        f = rows[path]
        assert (f["stage"], f["kind"], f["attempts"]) == ("extract", kind, attempts)
        assert f["item"] in units and f["error"] and f["first_at"] <= f["last_at"]
    assert rows["binary.txt"]["stage"] == "read"


def test_failed_items_return_3_until_they_succeed(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = lambda body: BROKEN if "HEIDI" in str(body) else toy_model.respond(body)
    assert run(*index_command(world, "--set", "run.max_attempts=1")).exit_code == 3
    assert run(*index_command(world, "--set", "run.max_attempts=1")).exit_code == 3
    world.endpoint.respond = toy_model.respond
    assert run(*index_command(world)).exit_code == 0
    assert "No failed items" in run("failures", "--root", world.root).stdout


def test_a_partially_answered_question_returns_3_and_says_so(run: Command, world: World):
    names = ("ALICE", "BOB", "CAROL", "DAVE")
    world.write({f"{n}.txt": f"{n} slept, as is told {'again and ' * 60}again." for n in names})
    run(*index_command(world, "--set", "communities.pack_components_below=1"))
    calls: list[str] = []

    def first_fails(body: dict):
        name, _ = toy_model.recognise(body["messages"][-1]["content"])
        calls.append(name)
        return REJECTED if calls == ["map"] else toy_model.respond(body)

    world.endpoint.respond = first_fails
    result = run("query", QUESTION, "--root", world.root, "--set", "query.context_tokens=256")
    assert calls.count("map") > 1
    assert result.exit_code == 3 and "got no usable reply and are missing" in result.stdout


def slow(body: dict) -> Answer:
    return Answer(toy_model.respond(body), delay_s=0.03)


def many(n: int) -> dict[str, str]:
    return {f"{i}.txt": f"ALICE met BOB, for the time number {i}." for i in range(n)}


@pytest.mark.parametrize(("limit", "n"), [("max_total_tokens=40000", 80), ("max_duration_s=2", 300)])
def test_an_exhausted_budget_returns_4_and_the_next_run_resumes(
    run: Command, world: World, limit: str, n: int
):
    world.write(many(n))
    world.endpoint.respond = slow
    command = index_command(world, "--max-in-flight", "4")
    result = run(*command, "--set", f"budget.{limit}")
    assert result.exit_code == 4
    assert f"budget.{limit.partition('=')[0]}" in result.stderr and "stored" in result.stderr
    asked, at_once = world.asked(), 4
    assert 8 <= asked < 2 * n - 20 and world.snapshots() == []
    world.endpoint.respond = toy_model.respond
    assert run(*command).exit_code == 0
    prompts = world.prompts()
    assert prompts["extract"] + prompts["glean_missing"] <= 2 * n + at_once, (
        "only what was in flight is paid twice"
    )


def test_a_cost_limit_uses_the_configured_price(run: Command, world: World):
    world.write(many(80))
    world.endpoint.respond = slow
    price = ["--set", "models.default.price.input_usd_per_mtok=1000", "--set", "budget.max_cost_usd=20"]
    result = run(*index_command(world, "--max-in-flight", "4", *price))
    assert result.exit_code == 4 and "budget.max_cost_usd is $20" in result.stderr


def test_a_budget_exhausted_by_one_stage_stops_the_next(run: Command, world: World):
    world.write(TOWN)
    result = run(*index_command(world, "--set", "budget.max_total_tokens=1"))
    assert result.exit_code == 4 and world.snapshots() == []
    # Whether the item in progress gets its second turn depends on timing.
    assert "extract" in world.prompts() and set(world.prompts()) <= {"extract", "glean_missing"}


def test_a_sufficient_budget_changes_nothing(run: Command, world: World):
    world.write(TOWN)
    assert run(*index_command(world, "--set", "budget.max_total_tokens=10000000")).exit_code == 0


def test_a_question_without_an_api_key_returns_2(run: Command, town: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    result = run("query", "Who is DAVE?", "--root", town.root, "--model", "m", "--api-key-env", "NO_SUCH_KEY")
    assert result.exit_code == 2 and "NO_SUCH_KEY is not set" in result.stderr


def test_a_rejected_key_returns_1(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = lambda body: WRONG_KEY
    result = run(*index_command(world))
    assert result.exit_code == 1 and "Incorrect API key" in result.stderr


def test_only_nonsense_replies_return_1(run: Command, world: World):
    world.write(many(40))
    world.endpoint.respond = lambda body: "Bananas."
    result = run(*index_command(world))
    assert result.exit_code == 1 and "max_failed_fraction" in result.stderr


def test_a_locked_index_returns_1_and_names_the_writer(run: Command, world: World):
    world.write(TOWN)
    with locks.acquire(world.store, note="index of somebody else"):
        result = run(*index_command(world))
    assert result.exit_code == 1 and "index of somebody else" in result.stderr
    assert run(*index_command(world)).exit_code == 0


def test_another_writer_is_reported_before_anything_is_read_or_printed(run: Command, world: World):
    world.write(many(40))
    assert run(*index_command(world, "--set", "budget.max_total_tokens=20000")).exit_code == 4
    unread = ["index", world.input / "nowhere", "--root", world.root, *model_options(world)]
    with locks.acquire(world.store, note="index of somebody else"):
        result = run(*unread)
    assert result.exit_code == 1 and result.stderr.startswith(
        f"graphrag-ray: {world.store.url} is being written"
    )
    told = run(*unread)
    assert told.exit_code == 2 and "the previous run" in told.stderr


def test_tracebacks_are_shown_only_on_request(run: Command, world: World):
    from graphrag_ray.base.errors import IndexNotFound

    with pytest.raises(IndexNotFound):
        run("--traceback", "status", "--root", world.root)
    with pytest.raises(IndexNotFound):
        run("status", "--root", world.root, "--traceback")


def test_an_unexpected_error_is_one_line_with_its_location_and_no_traceback(
    run: Command, world: World, monkeypatch: pytest.MonkeyPatch
):
    def broken(*given: object, **more: object) -> None:
        entity_key(7)  # type: ignore[arg-type]

    monkeypatch.setattr("graphrag_ray.indexing.status.index_status", broken)
    monkeypatch.setattr(program, "is_unexpected", is_unexpected)
    result = run("status", "--root", world.root)
    assert result.exit_code == 1 and "Traceback" not in result.stderr
    assert re.fullmatch(
        r"graphrag-ray: unexpected error, please report it: AttributeError: .* \(base/ids\.py:\d+\)\. "
        r"All replies received so far are kept\. Run the command with --traceback .*\n",
        result.stderr,
    )


# init


def test_init_writes_settings_and_prompts_that_index_accepts(run: Command, world: World, tmp_path: Path):
    from graphrag_ray.base.prompts import PLACEHOLDERS

    world.write(TOWN)
    project = tmp_path / "project"
    assert run("init", project).exit_code == 0
    written = {str(p.relative_to(project)) for p in project.rglob("*") if p.is_file()}
    assert written == {"settings.yaml", *(f"prompts/{name}.txt" for name in PLACEHOLDERS)}
    result = run(*index_command(world, "--config", project / "settings.yaml"))
    assert result.exit_code == 0
    assert world.prompts()["extract"] == len(TOWN)


def test_settings_from_init_work_without_its_prompts(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    run("init", tmp_path / "project")
    alone = shutil.copy(tmp_path / "project" / "settings.yaml", tmp_path)
    assert run(*index_command(world, "--config", alone)).exit_code == 0


def test_init_writes_the_default_settings(run: Command, tmp_path: Path):
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.base.settings_file import load_settings

    run("init", tmp_path)
    loaded = load_settings(tmp_path / "settings.yaml")
    assert loaded == Settings()


def test_an_edited_prompt_is_used(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    run("init", tmp_path)
    file = tmp_path / "prompts" / "report.txt"
    file.write_text(file.read_text().replace("You write a report", "You write a sober report"))
    settings = tmp_path / "settings.yaml"
    settings.write_text(settings.read_text().replace("# prompts_dir: prompts", "prompts_dir: prompts"))
    run(*index_command(world, "--config", settings))
    systems = [b["messages"][0]["content"] for b in world.endpoint.bodies()]
    assert any("You write a sober report" in text for text in systems)


def test_init_overwrites_nothing_unless_forced(run: Command, tmp_path: Path):
    (tmp_path / "prompts").mkdir()
    mine = tmp_path / "prompts" / "map.txt"
    mine.write_text("mine")
    result = run("init", tmp_path)
    assert result.exit_code == 2 and "map.txt already exists" in result.stderr
    assert mine.read_text() == "mine" and not (tmp_path / "settings.yaml").exists()
    assert run("init", tmp_path, "--force").exit_code == 0
    assert "{question}" in mine.read_text()


# Settings


def test_model_options_set_the_endpoint_of_the_default_model(run: Command, world: World, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-mine-and-nobody-elses")
    world.endpoint.key = "sk-mine-and-nobody-elses"
    world.write(TOWN)
    short = ["--model", "m-1", "--base-url", world.endpoint.base_url, "--api-key-env", "MY_KEY"]
    limits = ["--rpm", "6000", "--tpm", "900000", "--max-in-flight", "3"]
    result = run(
        "index", world.input, "--root", world.root, *short, *limits, "--set", "run.journal_flush_s=0.1"
    )
    assert result.exit_code == 0
    model = world.open().settings.models["default"]
    (endpoint,) = model.endpoints
    assert (model.provider, model.model) == ("openai", "m-1")
    assert (endpoint.base_url, endpoint.api_key_env) == (world.endpoint.base_url, "MY_KEY")
    assert (endpoint.requests_per_minute, endpoint.tokens_per_minute) == (6000, 900000)
    assert world.endpoint.peak_in_flight <= 3
    assert {b["model"] for b in world.endpoint.bodies()} == {"m-1"}


def test_set_overrides_the_file_and_later_options_override_earlier_ones(
    run: Command, world: World, tmp_path: Path
):
    world.write(TOWN)
    file = tmp_path / "mine.yaml"
    file.write_text("chunking: {size: 300, overlap: 40}\nquery: {seed: 5}\n")
    sets = ["--config", file, "--set", "chunking.size=200", "--set", "chunking.size=250"]
    assert run(*index_command(world, *sets)).exit_code == 0
    settings = world.open().settings
    assert (settings.chunking.size, settings.chunking.overlap, settings.query.seed) == (250, 40, 5)


def test_paths_in_a_settings_file_are_relative_to_it(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "block.txt").write_text("ALICE\n")
    file = tmp_path / "conf" / "mine.yaml"
    file.write_text("names: {blocklist_file: block.txt}\n")
    assert run(*index_command(world, "--config", file)).exit_code == 0
    assert "ALICE" not in {e["title"] for e in world.table("entities")}


# JSON


def test_index_json_has_counts_seconds_and_usage(run: Command, world: World):
    world.write(TOWN)
    result = run(*index_command(world, "--json"))
    told = json.loads(result.stdout)
    assert (told["snapshot"], told["committed"]) == (1, True)
    counts = told["counts"]
    assert (counts["documents"], counts["text_units"], counts["entities"], counts["reports"]) == (6, 6, 10, 1)
    assert counts["levels"] == {"C0": 1} and counts["failures"] == 0
    degrees = {e["title"]: e["degree"] for e in world.table("entities")}
    assert counts["orphans"] == [*degrees.values()].count(0)
    assert counts["hubs"].items() <= degrees.items()
    assert [*counts["hubs"].values()] == sorted(degrees.values(), reverse=True)[:3]
    assert {"read", "extract", "merge", "describe", "communities", "reports", "embed"} <= set(told["seconds"])
    usage = {u["stage"]: u for u in told["usage"]}
    assert usage["extract"]["calls"] == 12 and usage["extract"]["prompt_tokens"] > 0
    assert usage["extract"]["cost_usd"] is None, "nobody knows what this model costs"
    assert result.stderr == ""


def test_status_json_has_the_snapshot_the_journal_and_the_cost(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world, "--set", "models.default.price.input_usd_per_mtok=2"))
    told = json.loads(run("status", "--root", world.root, "--json").stdout)
    assert (told["snapshot"], told["parent"], told["writer"]) == (1, None, None)
    assert told["counts"]["entities"] == 10 and told["created_at"].endswith("Z")
    journal = {j["stage"]: j for j in told["journal"]}
    assert (journal["extract"]["done"], journal["extract"]["turns"]) == (6, 12)
    assert journal["report"]["done"] == journal["report"]["turns"] > 0
    usage = {u["stage"]: u for u in told["usage"]}
    assert usage["extract"]["cost_usd"] > 0 and told["run"]["input"] == str(world.input)


def test_status_of_an_index_without_a_snapshot_shows_the_work_in_progress(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = lambda body: (
        WRONG_KEY if "Write the report" in str(body) else toy_model.respond(body)
    )
    assert run(*index_command(world)).exit_code == 1
    result = run("status", "--root", world.root)
    assert result.exit_code == 0 and "no finished snapshot yet" in result.stdout
    told = json.loads(run("status", "--root", world.root, "--json").stdout)
    assert told["snapshot"] is None and {j["stage"] for j in told["journal"]} == {"extract", "about"}


def test_status_names_the_writer(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    with locks.acquire(world.store, note="index of somebody else"):
        assert "index of somebody else" in run("status", "--root", world.root).stdout


def test_query_json_has_answer_references_contexts_and_sources(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    told = json.loads(run("query", QUESTION, "--root", world.root, "--json").stdout)
    assert (told["snapshot"], told["level"], told["method"], told["found"]) == (1, 0, "global", True)
    reports = {r["id"]: r["title"] for r in world.table("community_reports")}
    assert [r["section"] for r in told["references"]] == ["Reports"]
    assert {r["id"] for r in told["references"]} <= set(reports)
    assert [c["phase"] for c in told["contexts"]] == ["map", "reduce"]
    assert told["phases"]["map"]["calls"] == told["phases"]["reduce"]["calls"] == 1
    (source,) = told["sources"]
    assert source["record"]["name"] in reports.values() and source["entities"]
    for chunk in source["chunks"]:
        text = (world.input / chunk["document"]).read_text()
        assert chunk["text"] == text[chunk["start"] : chunk["end"]]


# Output for people


def test_an_answer_shows_cited_titles_and_its_level(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    result = run("query", QUESTION, "--root", world.root)
    (report,) = world.table("community_reports")
    assert "[Data: Reports (1)]" in result.stdout and f"1  {report['title']}" in result.stdout
    assert "level C0" in result.stdout and "text " not in result.stdout


def test_sources_lead_down_to_file_and_position(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    shown = run("query", QUESTION, "--root", world.root, "--sources").stdout
    assert "entities: " in shown and "(PERSON)" in shown
    assert "more texts (`graphrag-ray query --json` shows all)" in shown
    places = re.findall(r"^  (\S+), character (\d+): “(.+)”", shown, re.MULTILINE)
    assert places and {name for name, _, _ in places} < set(TOWN) - {"weather.txt"}
    for name, start, quote in places:
        assert TOWN[name][int(start) :].startswith(quote)


def test_an_unanswerable_question_is_reported(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    result = run("query", "Who is NOBODY ?", "--root", world.root)
    assert result.exit_code == 0 and "Nothing in the index answers this question." in result.stdout
    shown = " ".join(result.stdout.split())
    assert "Read by global search: 1 report of C0." in shown and "Try --method local" in shown


def test_passages_that_may_help_are_shown_with_their_position(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    result = run("query", "Who is NOBODY at the harbour ?", "--root", world.root)
    assert "Passages that may help:" in result.stdout and "matches: harbour" in result.stdout
    place = re.search(r"^  (\S+), characters ([\d,]+)–([\d,]+): “", result.stdout, re.MULTILINE)
    assert place and place.group(1) in TOWN
    data = json.loads(run("query", "Who is NOBODY at the harbour ?", "--root", world.root, "--json").stdout)
    for passage in data["passages"]:
        assert TOWN[passage["document"]][passage["start"] : passage["end"]] == passage["text"]


def test_a_question_needs_no_quotation_marks(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    quoted = run("query", "Who is ALICE ?", "--root", world.root).stdout
    apart = run("query", "Who", "is", "--root", world.root, "ALICE", "?").stdout
    assert re.sub(r"\d\.\d\d s", "", apart) == re.sub(r"\d\.\d\d s", "", quoted)


def test_quiet_prints_nothing(run: Command, world: World):
    world.write(TOWN)
    result = run(*index_command(world, "--quiet"))
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    "command", ["", "init", "estimate", "index", "query", "levels", "status", "failures"]
)
def test_help_shows_an_example(run: Command, command: str):
    result = run(*filter(None, [command]), "--help")
    assert result.exit_code == 0 and "graphrag-ray" in result.stdout and "Example" in result.stdout


def test_an_unknown_command_is_a_usage_error(run: Command):
    result = run("quary")
    assert result.exit_code == 2 and "No such command 'quary'" in result.stderr


def test_offline_answers_do_not_wait_for_unneeded_imports(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    offline = ["--set", "models.default={provider: offline}"]
    script = (
        "import sys; from graphrag_ray.cli.command_line import main\n"
        f"main({['query', QUESTION, '--root', str(world.root), *offline]}, standalone_mode=False)\n"
        "slow = ('ray', 'igraph', 'openai', 'aiohttp', 'fsspec', 'pandas', 'rich.markdown', 'rich.live')\n"
        "print([m for m in slow if m in sys.modules])"
    )
    done = python(script)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_text_with_markup_is_printed_as_it_is(run: Command, world: World):
    odd = "[red]He[/red] said :smile: [/] to [him] [Data: Reports (1)]"

    def respond(body: dict) -> str:
        name, _ = toy_model.recognise(body["messages"][-1]["content"])
        if name == "extract":
            return '("entity"<|>[BOLD] ANT<|>PERSON<|>An ant.)##<|COMPLETE|>'
        return odd if name == "reduce" else toy_model.respond(body)

    world.endpoint.respond = respond
    world.write({"a.txt": "[/] ANT [red]."})
    assert run(*index_command(world)).exit_code == 0
    shown = run("query", QUESTION, "--root", world.root, "--sources").stdout
    assert odd in shown and "“[/] ANT [red].”" in shown and "entities: [BOLD] ANT (PERSON)" in shown
