"""Print docs/reference/cli.md: every command with its options, from the program's own help.

python docs/generate/cli.py > docs/reference/cli.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from graphrag_ray.cli.command_line import COMMANDS, main

HEAD = """# Command line

Generated from the program's help by `python docs/generate/cli.py > docs/reference/cli.md`: do not edit.

`python -m graphrag_ray` runs the same program. Commands that print a report accept `--json`. In a terminal,
answers are rendered as Markdown; `--raw` turns this off.
"""
TAIL = """
## Environment and configuration

**Index location.** The first of: `--root`, `root` in the file given by `--config`, `GRAPHRAG_RAY_ROOT`.

**Settings.** `graphrag-ray init my-project` writes a settings file that lists every setting, and editable
copies of all prompts. Pass the file with `--config`. Override a setting on the command line with
`--set extraction.max_gleanings=2`, as often as needed. See [Settings](settings.md).

**Logs.** `GRAPHRAG_RAY_LOG=info,json` logs JSON lines with the run, stage and item, or with the question
of the service. Logs contain no secrets and no document text.

**Traces.** If `OTEL_EXPORTER_OTLP_ENDPOINT` is set, `query`, `chat` and `serve` send a trace of each
question. This needs `pip install '.[traces]'`.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | success (`serve`: also after Ctrl-C or SIGTERM) |
| 1 | error |
| 2 | invalid usage or settings |
| 3 | finished, but some items failed |
| 4 | stopped by a budget |
| 130, 143 | stopped by Ctrl-C, by SIGTERM |

[Operate and troubleshoot](../guides/operations.md#exit-codes) explains what to do about each.
"""
SHARED = {"verbose", "log_level", "log_format", "traceback"}
"""Options of every command, which are listed once, like `--help`."""


def commands(
    group: click.Group, parent: click.Context, path: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent)
        yield f"{path} {name}", command, context
        if isinstance(command, click.Group):
            yield from commands(command, context, f"{path} {name}")


def help_text(command: click.Command) -> str:
    """Convert the help to Markdown. Verbatim paragraphs become code blocks."""
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if not paragraph.startswith("\b"):
            paragraphs.append(paragraph.replace("[", r"\["))
            continue
        verbatim = paragraph.removeprefix("\b").strip("\n")
        heading, _, examples = verbatim.partition("\n")
        if not heading.startswith(" "):
            paragraphs.append(heading)
            verbatim = examples
        paragraphs.append("```\n" + inspect.cleandoc("\n" + verbatim) + "\n```")
    return "\n\n".join(paragraphs)


def options(command: click.Command, context: click.Context, shared: bool) -> str:
    rows = []
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record and record[1] and (option.name in SHARED or "--help" in option.opts) == shared:
            name, text = (re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in record)
            rows.append(f"| `{name}` | {text.replace('[', chr(92) + '[')} |")
    return "\n".join(["| option | |", "| --- | --- |", *rows]) if rows else ""


def page() -> Iterator[str]:
    yield HEAD
    top = click.Context(main, info_name="graphrag-ray")
    yield "| command | |\n| --- | --- |"
    for rows in COMMANDS.values():
        yield from (f"| [`{name}`](#graphrag-ray-{name}) | {text} |" for name, text in rows.items())
    for path, command, context in commands(main, top, "graphrag-ray"):
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        yield f"\n## {path}\n\n```text\n{usage}\n```\n\n{help_text(command)}\n"
        yield options(command, context, shared=False)
    yield "\n## Options of every command\n"
    yield options(main, top, shared=True)
    yield TAIL


if __name__ == "__main__":
    print("\n".join(page()), end="")
