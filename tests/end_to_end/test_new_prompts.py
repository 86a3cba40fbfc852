"""An index keeps the prompts that it was built with.

New ones are used when its owner asks for them, after the cost was shown.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from stored_index import rewrite, without_snapshot
from terminals import Terminal
from world import TOWN, Command, World, index_command

from graphrag_ray import build_index
from graphrag_ray.base import prompts
from graphrag_ray.base.index_settings import REQUEST_RULES
from graphrag_ray.base.prompts import bundled_prompts
from graphrag_ray.base.wording import plural

BETTER = "You are better than you were."
PRICE = ["--set", "models.default.price={input_usd_per_mtok: 100, output_usd_per_mtok: 200}"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package's prompts."""
    folder = tmp_path / "package"
    shutil.copytree(bundled_prompts(), folder)
    monkeypatch.setattr(prompts, "bundled_prompts", lambda: folder)
    return folder


def improve(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / f"{name}.txt"
        file.write_text(f"{BETTER}\n\n{file.read_text()}")


def improved(world: World, start: int) -> int:
    """Requests with the improved prompt, from request `start` on."""
    return sum(BETTER in body["messages"][0]["content"] for body in world.endpoint.bodies()[start:])


def as_it_is(root: Path) -> None: ...


@pytest.mark.parametrize(
    "left",
    [as_it_is, without_snapshot],
    ids=["snapshot", "first run cut short"],
)
def test_new_package_prompts_cost_an_update_nothing(
    world: World, package: Path, left: Callable[[Path], None]
):
    world.write(TOWN)
    world.index()
    left(world.root)
    improve(package, "extract", "describe", "report")
    asked = world.asked()
    world.index()
    assert world.asked() == asked
    told = [note for note in world.observer.notes if "--new-prompts" in note]
    assert len(told) == 1 and "differ from the package's: extract, describe, report." in told[0]

    world.write({"mill.txt": "ALICE met BOB at the MILL."})
    world.index()
    assert world.asked() > asked and improved(world, asked) == 0
    assert BETTER not in str(world.open().manifest.settings["prompts"])


def test_new_prompts_are_used_after_their_cost_was_confirmed(run: Command, world: World, package: Path):
    world.write(TOWN)
    assert run(*index_command(world)).exit_code == 0
    before = world.prompts()
    improve(package, "extract")
    asked = world.asked()
    new = [*index_command(world, *PRICE), "--new-prompts"]
    refused = run(*new)
    assert refused.exit_code == 2 and world.asked() == asked, "nobody said yes"
    n = before["extract"] + before["glean_missing"]
    assert f"extract {n} replies" in refused.stderr and "report " in refused.stderr
    assert "in total" in refused.stderr and "$" in refused.stderr and "--yes" in refused.stderr

    taken = run(*new, "--yes")
    assert taken.exit_code == 0 and "in total" in taken.stderr
    assert improved(world, asked) == n and world.prompts(asked)["extract"] == before["extract"]
    assert BETTER in world.open().manifest.settings["prompts"]["extract"]
    asked = world.asked()
    assert run(*index_command(world)).exit_code == 0 and world.asked() == asked, (
        "and are its own from then on"
    )


def test_only_stages_that_use_a_changed_prompt_are_counted(run: Command, world: World, package: Path):
    world.write(TOWN)
    run(*index_command(world))
    improve(package, "report")
    told = run(*index_command(world), "--new-prompts").stderr
    assert f"report {plural(world.prompts()['report'], 'reply', 'replies')}" in told
    assert "extract" not in told and "price" in told, "without a price the cost is not known"


def test_declining_at_a_terminal_leaves_the_index_unchanged(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    run(*index_command(world))
    shutil.copytree(bundled_prompts(), tmp_path / "mine")
    improve(tmp_path / "mine", "report")
    asked = world.asked()
    with Terminal(
        *index_command(world), "--set", f"prompts_dir={tmp_path / 'mine'}", "--new-prompts"
    ) as terminal:
        terminal.wait_for("Send these requests again?")
        assert "report" in terminal.shown and "tokens" in terminal.shown
        terminal.type("n\n")
        assert terminal.end() == 2
    assert world.asked() == asked and world.snapshots() == [1]


def test_the_cost_of_edited_prompts_is_shown_and_needs_no_confirmation(
    run: Command, world: World, tmp_path: Path
):
    world.write(TOWN)
    run(*index_command(world))
    shutil.copytree(bundled_prompts(), tmp_path / "mine")
    improve(tmp_path / "mine", "report")
    asked = world.asked()
    done = run(*index_command(world), "--set", f"prompts_dir={tmp_path / 'mine'}")
    assert done.exit_code == 0 and "report. Requests that they change are sent again" in done.stderr
    assert improved(world, asked) > 0


def test_python_callers_can_decline(run: Command, world: World, package: Path):
    world.write(TOWN)
    world.index()
    improve(package, "extract")
    asked, told = world.asked(), []

    def no(cost: str) -> None:
        told.append(cost)
        raise KeyError("too dear")

    with pytest.raises(KeyError, match="too dear"):
        build_index(str(world.input), str(world.root), settings=world.settings(), new_prompts=True, agree=no)
    assert "extract" in told[0] and world.asked() == asked


def test_new_prompts_are_free_with_the_offline_engine(run: Command, world: World, package: Path):
    world.write(TOWN)
    offline = ["index", world.input, "--root", world.root]
    assert run(*offline).exit_code == 0
    improve(package, "extract")
    assert run(*offline, "--new-prompts").exit_code == 0
    assert BETTER in world.open().manifest.settings["prompts"]["extract"]


def test_an_estimate_uses_the_prompts_of_the_index_or_new_ones(run: Command, world: World, package: Path):
    world.write(TOWN)
    run(*index_command(world))
    improve(package, "extract")

    def to_extract(*more: str) -> int:
        index, *rest = index_command(world, *more, "--json")
        found = run("estimate", *rest)
        assert index == "index" and found.exit_code == 0, found.output
        stages = {stage["stage"]: stage for stage in json.loads(found.stdout)["stages"]}
        return stages["extract"]["left"]["calls"]

    assert to_extract() == 0 and to_extract("--new-prompts") >= len(TOWN)


EARLIER = {
    "request_rules": 1,
    "extraction": {
        "entity_types": ["person", "organization", "location", "event", "work", "concept"],
        "gleaning": "check",
        "repeated_paragraphs": "keep",
    },
    "input": {"document_context": "metadata"},
    "reports": {"model_from": 0, "role": "a clerk"},
}


def test_new_prompts_bring_the_defaults_that_belong_to_them(run: Command, world: World):
    world.write(TOWN)
    world.index(**EARLIER)
    asked = world.asked()
    refused = run(*index_command(world, *PRICE), "--new-prompts")
    assert refused.exit_code == 2 and world.asked() == asked
    assert "Settings with new values: " in refused.stderr and "extraction.gleaning: direct" in refused.stderr
    assert "reports.role" not in refused.stderr
    chosen = ["--set", "extraction.gleaning=check", "--set", "query.drift_breadth=3"]
    assert run(*index_command(world, *chosen), "--new-prompts", "--yes").exit_code == 0
    stored = world.open().manifest.settings
    assert stored["extraction"]["gleaning"] == "check" and "product" in stored["extraction"]["entity_types"]
    assert stored["input"]["document_context"] == "opening" and stored["request_rules"] == REQUEST_RULES
    assert stored["reports"]["role"] == "a clerk" and stored["query"]["drift_breadth"] == 3
    asked = world.asked()
    assert run(*index_command(world)).exit_code == 0 and world.asked() == asked
    assert run(*index_command(world), "--new-prompts", "--yes").exit_code == 0 and world.asked() == asked


@pytest.mark.parametrize("has_own", [False, True], ids=["stored settings", "settings of the index"])
def test_python_callers_get_new_prompts_with_the_settings_of_the_index(world: World, has_own: bool):
    world.write(TOWN)
    world.index(**EARLIER)
    settings = world.open().settings if has_own else None
    build_index(str(world.input), str(world.root), settings=settings, new_prompts=True, agree=len)
    stored = world.open().manifest.settings
    assert stored["extraction"]["gleaning"] == "direct" and stored["request_rules"] == REQUEST_RULES
    assert stored["reports"]["role"] == "a clerk"


def test_an_estimate_uses_the_settings_that_the_index_keeps_or_new_defaults(run: Command, world: World):
    world.write(TOWN)
    world.index(**EARLIER)

    def left(*more: str) -> tuple[int, bool]:
        found = json.loads(run("estimate", *index_command(world, *more, "--json")[1:]).stdout)
        (extract,) = [stage for stage in found["stages"] if stage["stage"] == "extract"]
        return extract["left"]["calls"], "glean_yes" in {a["name"] for a in found["assumptions"]}

    assert left() == (0, True)
    calls, checks = left("--new-prompts")
    assert calls >= len(TOWN) and not checks


def test_new_prompts_replace_unusable_ones(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    rewrite(world.root, lambda settings: settings["prompts"].update(report="Of another {version}."))
    refused = run(*index_command(world))
    assert refused.exit_code == 2 and "--new-prompts" in refused.stderr
    assert run(*index_command(world), "--new-prompts", "--yes").exit_code == 0


def test_usage_errors_are_reported_before_a_cost_is_confirmed(run: Command, world: World, package: Path):
    world.write(TOWN)
    run(*index_command(world))
    improve(package, "extract")
    refused = run("index", world.root.parent / "absent", *index_command(world)[2:], "--new-prompts")
    assert refused.exit_code == 2 and "absent" in refused.stderr and "--yes" not in refused.stderr
