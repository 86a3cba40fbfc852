"""The help of the command line, and how commands find their index."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from graphrag_ray.cli.command_line import COMMANDS, PANELS, main
from graphrag_ray.cli.commands import evaluate_command
from graphrag_ray.cli.commands.evaluate_command import EVALUATE_COMMANDS

NAMES = [name for names in COMMANDS.values() for name in names]
EVERY = [*NAMES, *(f"evaluate {name}" for names in EVALUATE_COMMANDS.values() for name in names)]


def lines_of_help(*words: str) -> list[str]:
    shown = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    assert shown.exit_code == 0, shown.output
    return shown.output.splitlines()


def options_of(name: str) -> set[str]:
    command: click.Command = main
    context = click.Context(main)
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    params = command.get_params(context)
    return {next(o for o in p.opts if o.startswith("--")) for p in params if isinstance(p, click.Option)}


def test_commands_are_listed_in_order_with_full_summaries():
    lines = lines_of_help()
    rows = [f"  {name} {text}" for names in COMMANDS.values() for name, text in names.items()]
    assert [re.sub(r"(?<=\w) +", " ", line) for line in lines if line.strip().split(" ")[0] in NAMES] == rows
    assert NAMES[:6] == ["init", "tune", "estimate", "index", "resolve", "status"] and NAMES[-1] == "gc"
    assert all(len(line) <= 80 for line in lines if not line.startswith(("  Exit", "     ")))


@pytest.mark.parametrize("name", EVERY)
def test_every_option_is_listed_once_under_a_heading(name: str):
    lines = lines_of_help(*name.split())
    first = next(i for i, line in enumerate(lines) if line.removesuffix(":") in ("Options", *PANELS))
    listed = [m for line in lines[first:] for m in re.findall(r"^  (?:-\w, )?(--[\w-]+)", line)]
    assert sorted(listed) == sorted(options_of(name))


def test_headings_list_only_existing_options():
    every = set().union(*map(options_of, EVERY))
    assert {option for options in PANELS.values() for option in options} <= every


def test_misspelt_command_or_option_gets_a_suggestion():
    assert "Did you mean 'query'?" in CliRunner().invoke(main, ["qery"]).output
    assert "'--level'" in CliRunner().invoke(main, ["query", "q", "--levell", "C0"]).output


@pytest.mark.parametrize("words", [[], *(name.split() for name in EVERY)])
def test_help_imports_no_libraries(words: list[str]):
    script = (
        f"from graphrag_ray.cli.command_line import main; main({[*words, '--help']}, standalone_mode=False)"
    )
    imported = "{m.partition('.')[0] for m in {*sys.modules} - before} - sys.stdlib_module_names"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; before = {{*sys.modules}}; {script}; print(sorted({imported}))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage:" in done.stdout
    assert done.stdout.endswith("['click', 'graphrag_ray']\n")


class TestWhichIndex:
    def status(self, *words: str) -> str:
        return CliRunner().invoke(main, ["status", *words]).stderr

    @pytest.fixture
    def config(self, tmp_path: Path) -> str:
        path = tmp_path / "settings.yaml"
        path.write_text("root: of-config\n")
        return str(path)

    def test_environment_is_the_last_default(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("GRAPHRAG_RAY_ROOT", "/nowhere/of-environment")
        assert "No index at /nowhere/of-environment" in self.status()

    def test_options_take_precedence_over_the_environment(self, monkeypatch: pytest.MonkeyPatch, config: str):
        monkeypatch.setenv("GRAPHRAG_RAY_ROOT", "/nowhere/of-environment")
        assert "of-config. " in self.status("--config", config)
        assert "/nowhere/typed. " in self.status("--root", "/nowhere/typed", "--config", config)

    def test_missing_root_names_the_variable(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("GRAPHRAG_RAY_ROOT", raising=False)
        assert "Missing option '--root'. Or set GRAPHRAG_RAY_ROOT." in self.status()


def test_evaluate_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate_command, "find_spec", lambda name: None)
    for module in ("community_measures", "judging.community_quality", "comparison", "judging.head_to_head"):
        monkeypatch.delitem(sys.modules, f"graphrag_ray.evaluate.{module}", raising=False)
    for package in ("scipy", "scipy.sparse", "pandas"):
        monkeypatch.setitem(sys.modules, package, None)
    needed = {"--root": "nowhere", "--questions": "q.csv", "--condition": "a=global", "--out": "q.csv"}
    for name in (name for names in EVALUATE_COMMANDS.values() for name in names):
        given = [
            word for pair in needed.items() if pair[0] in options_of(f"evaluate {name}") for word in pair
        ]
        done = CliRunner().invoke(main, ["evaluate", name, *given])
        assert "pip install 'graphrag-ray[evaluate]'" in done.output, name
