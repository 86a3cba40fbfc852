"""Commands, links, files and settings on the documentation pages are valid."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from documents import JOBS, PAGES, TOP, Typed, arguments_in, blocks, shell_lines, typed

from graphrag_ray.base.index_settings import RESOLUTION_RULES
from graphrag_ray.cli.command_line import main
from graphrag_ray.export.exporters import EXPORTERS
from graphrag_ray.graph.aliases import parse_names
from graphrag_ray.query.methods.methods import METHODS

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def parse(words: tuple[str, ...]) -> None:
    """Parse a command line. Raises click.UsageError if it is invalid."""
    top = click.Context(main)
    name, command, rest = main.resolve_command(top, list(words))
    assert command is not None
    has_root = any(option.name == "root" for option in command.params)
    if has_root and "--config" in rest and "--root" not in rest:  # Otherwise, the file would be read for it.
        rest = [*rest, "--root", "ROOT"]
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(name, rest, parent=top)


@pytest.mark.parametrize("one", typed(), ids=str)
def test_commands_on_pages_are_valid(one: Typed):
    try:
        parse(one.words)
    except click.UsageError as e:
        pytest.fail(f"{one}: {e.format_message()}")


def of_ray() -> list[str]:
    """Return command lines of `ray` and `serve` on all pages."""
    lines = [line for page in PAGES for line in shell_lines(page.read_text("utf-8"))]
    return list(dict.fromkeys(line for line in lines if line.split()[:1] in (["ray"], ["serve"])))


@pytest.mark.parametrize("line", of_ray())
def test_options_of_ray_commands_exist(line: str):
    from ray.scripts.scripts import cli as ray_cli
    from ray.serve.scripts import cli as serve_cli

    program, *words = shlex.split(line)
    own = words[: words.index("--")] if "--" in words else words
    command: click.Command | None = ray_cli if program == "ray" else serve_cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), own.pop(0))
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in own if word.startswith("-")} <= options


def test_commands_are_found_in_pages():
    text = (
        "```\n$ A=1 graphrag-ray index ./d \\\n    --root x   # why\n"
        "ray job submit --x -- python jobs/index.py d\nls\n```\n"
    )
    assert [arguments_in(line) for line in shell_lines(text)] == [
        ["index", "./d", "--root", "x"],
        ["index", "d"],
        None,
    ]
    assert len(typed()) > 30


def test_unknown_option_is_detected():
    with pytest.raises(click.UsageError, match="--rot"):
        parse(("index", "./documents", "--rot", "x"))


def test_every_export_format_is_described():
    page = (TOP / "docs" / "guides" / "inspect-and-export.md").read_text("utf-8")
    assert all(f"**`--format {name}`**" in page for name in EXPORTERS)


def test_every_search_method_is_described():
    for page in ("README.md", "docs/guides/questions.md"):
        text = (TOP / page).read_text("utf-8")
        assert [name for name in METHODS if f"`{name}`" not in text] == []


def test_every_resolution_rule_is_described():
    page = (TOP / "docs" / "guides" / "entity-resolution.md").read_text("utf-8")
    assert [rule for rule in RESOLUTION_RULES if f"| `{rule}` |" not in page] == []


def test_aliases_files_on_pages_are_valid():
    page = (TOP / "docs" / "guides" / "entity-resolution.md").read_text("utf-8")
    shown = [block for block in blocks(page, {"yaml"}) if "{not:" in block]
    assert shown and all(parse_names(block, None).different for block in shown)


def test_job_files_on_pages_exist():
    assert [name for name in JOBS if not (TOP / name).is_file()] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub generates them."""
    plain = FENCED.sub("", page.read_text("utf-8"))
    names = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(plain))
    return set(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_within_the_repository_resolve(page: Path):
    lost = []
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_decisions_page_lists_every_decision():
    folder = TOP / "docs" / "concepts" / "decisions"
    linked = set(LINK.findall((folder / "index.md").read_text("utf-8")))
    assert {page.name for page in folder.glob("*.md")} - {"index.md"} <= linked


def test_site_includes_every_page():
    nav = (TOP / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    docs = TOP / "docs"
    pages = [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]
    assert [str(page) for page in pages if str(page.relative_to(docs)) not in nav] == []


@pytest.mark.parametrize(("page", "words"), [("README.md", 700), ("ARCHITECTURE.md", 2000)])
def test_entry_pages_are_short(page: str, words: int):
    assert len((TOP / page).read_text("utf-8").split()) <= words


def files_named(page: Path) -> set[str]:
    """Return Python files that a page names, as `package/file.py` or `file.py`."""
    code = re.findall(r"`([^`\n]+)`", FENCED.sub("", page.read_text("utf-8")))
    return {name for text in code for name in re.findall(r"^[\w./-]+\.py$", text)}


def test_files_named_on_pages_exist():
    paths = [str(path) for path in TOP.rglob("*.py") if ".venv" not in path.parts]
    named = {page: files_named(page) for page in PAGES if page.name not in ("CHANGELOG.md", "RESULTS.md")}
    assert sum(map(len, named.values())) > 100
    lost = {
        str(page.relative_to(TOP)): wrong
        for page, names in named.items()
        if (wrong := [name for name in names if not any(path.endswith(f"/{name}") for path in paths)])
    }
    assert lost == {}


@pytest.mark.parametrize("name", ["cli", "prompts", "settings", "tables"])
def test_generated_pages_are_up_to_date(name: str):
    command = [sys.executable, TOP / "docs" / "generate" / f"{name}.py"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOP)
    assert made.returncode == 0, made.stderr
    written = (TOP / "docs" / "reference" / f"{name}.md").read_text("utf-8")
    assert made.stdout == written, f"run: python docs/generate/{name}.py > docs/reference/{name}.md"


def keys_named(page: Path) -> set[str]:
    """Return settings that a page names in text or commands, as `a.b`. Models and stages share one name."""
    from graphrag_ray.base.index_settings import Settings

    sections = "|".join(Settings.model_fields)
    text = page.read_text("utf-8")
    code = [*re.findall(r"`([^`\n]+)`", FENCED.sub("", text)), *shell_lines(text)]
    named = {key for line in code for key in re.findall(rf"(?<![\w./:@-])(?:{sections})(?:\.[\w*]+)+", line)}
    plain = {re.sub(r"^(models|stages)\.\w+", r"\1.*", key) for key in named}
    plain = {re.sub(r"\.endpoints\.\w+\b", ".endpoints", key) for key in plain}
    return {
        key for key in plain if not key.endswith((".py", ".txt", ".md", ".csv", ".B"))
    }  # storage.B=C is a metavar.


def test_settings_named_on_pages_exist():
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.base.settings_parsing import setting_keys

    keys = {".".join(key) for key in setting_keys(Settings)}
    known = keys | {"models.*", "stages.*", *(f"{key.split('.')[0]}.*" for key in keys)}
    named = {page: keys_named(page) for page in PAGES}
    assert sum(map(len, named.values())) > 50
    assert {str(page): wrong for page, found in named.items() if (wrong := found - known)} == {}


def test_values_set_on_pages_are_valid():
    from graphrag_ray.base.settings_file import load_settings

    online = ["models.default={provider: openai, model: m}"]
    for one in typed():
        for option, value in zip(one.words, one.words[1:], strict=False):
            if option == "--set" and "…" not in value:
                load_settings(None, [*online, value])


def written_in_the_code() -> list[str]:
    """Return every string in the package, with {} for placeholders."""
    found = []
    for path in (TOP / "graphrag_ray").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_quoted_in_the_operating_guide_exist():
    page = (TOP / "docs" / "guides" / "operations.md").read_text("utf-8")
    code = written_in_the_code()
    tables = page.split("| message")[1:]
    cells = [
        line.split(" | ")[0] for table in tables for line in table.splitlines() if line.startswith("| `")
    ]
    quoted = [words for cell in cells for words in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 20
    assert [words for words in quoted if not any(words in text for text in code)] == []


def test_settings_blocks_on_pages_are_valid():
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.base.settings_parsing import validate_settings
    from graphrag_ray.base.user_settings import UserSettings

    shown = [
        content
        for page in PAGES
        for block in blocks(page.read_text("utf-8"), {"yaml"})
        if isinstance(content := yaml.safe_load(block), dict) and set(content) & set(Settings.model_fields)
    ]
    assert len(shown) >= 3
    for content in shown:
        of_user = "models" in content and "default" not in content["models"]
        validate_settings(UserSettings if of_user else Settings, content)


def test_call_counts_on_the_costs_page_match_measurements():
    page, results = ((TOP / p).read_text("utf-8") for p in ("docs/guides/costs.md", "benchmarks/RESULTS.md"))
    rows = re.findall(r"^\| (extract|describe|report) \| .+? \| ([\d,]+) \|", page, re.MULTILINE)
    assert len(rows) == 3
    assert [row for row in rows if f"| {row[0]} | {row[1]} |" not in results] == []
