"""The command line: what all commands share, how their help is laid out, how they fail. There is one file per
command in `cli/commands/`, imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

import click

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.unforeseen import is_unforeseen, told
from graphrag_ray.base.urls import shown
from graphrag_ray.base.wording import one_line, safe
from graphrag_ray.version import __version__

# Before numpy is imported: products are small, and threads that wait for them take more time than they do. An
# index is made by processes beside each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_LONGEST_LINE = 600
_WHAT_NOW = "What was answered is kept. With --traceback the same command shows where the error came from."
ROOT_VARIABLE = "GRAPHRAG_RAY_ROOT"


def _general() -> list[click.Parameter]:
    """Options of the program, which may stand before or after a command's name."""

    def take(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if option.name == "traceback":
            ctx.find_root().meta["traceback"] = ctx.find_root().meta.get("traceback") or value
        elif value:
            changes = {"level": "info"} if value is True else {str(option.name).removeprefix("log_"): value}
            try:
                logs.configure(None, **changes)
            except UsageError as e:
                raise click.UsageError(str(e)) from e

    trace = "Show where an error came from."
    log = "Log what happens: --log-level info."
    level = "What is logged, to stderr; GRAPHRAG_RAY_LOG=info,json in the environment says the same."
    form = "A line of text for each event, or of JSON (then without lines of progress)."
    levels, formats = click.Choice(get_args(logs.Level)), click.Choice(get_args(logs.Format))
    how: dict[str, Any] = {"expose_value": False, "callback": take}
    return [
        click.Option(["--traceback"], is_flag=True, help=trace, **how),
        click.Option(["-v", "--verbose"], is_flag=True, help=log, **how),
        click.Option(["--log-level"], type=levels, help=level, **how),
        click.Option(["--log-format"], type=formats, help=form, **how),
    ]


PANELS = {
    "Index": ("--root", "--config", "--set", "--snapshot", "--address"),
    "Model": ("--model", "--base-url", "--api-key-env", "--rpm", "--tpm", "--max-in-flight", "--cache"),
    "Search": (
        *("--method", "--methods", "--level", "--where", "--dynamic", "--hierarchy", "--map-protocol"),
        *("--traversal", "--mode", "--steps"),
    ),
    "Answer": ("--response-type", "--sources", "--general-knowledge", "--stream", "--raw"),
    "Budget": ("--budget-usd", "--budget-tokens"),
    "Batch": ("--batch", "--out", "--ray", "--address"),
    "Evaluation": (
        "--questions", "--condition", "--criterion", "--replicates", "--claims", "--description",
        "--personas", "--tasks", "--each", "--retrieval-only", "--judge", "--k", "--out", "--report", "--ray",
        "--address",
    ),
    "Network": (
        "--host", "--port", "--prefix", "--token-env", "--allow-anonymous", "--allow-origin",
        "--open-metrics",
    ),
    "Load": (
        "--replicas", "--max-running", "--max-waiting", "--max-seconds", "--max-body-bytes", "--follow-s",
        "--grace-s",
    ),
    "Output": ("--json", "--quiet", "--verbose", "--log-level", "--log-format", "--traceback", "--help"),
}  # fmt: skip
"""Headings of a command's help and the options below each, where the command has the first of them. What
has none stands before, below "Options"."""
WIDEST = 30
"""Characters of an option's column, so that its text has room on a terminal of 80."""


def _write_panels(formatter: click.HelpFormatter, panels: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Lists below headings, with one width for their first columns."""
    width = min(max(len(name) for rows in panels.values() for name, _ in rows), WIDEST)
    for heading, rows in panels.items():
        if rows:
            with formatter.section(click.style(heading, bold=True)):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows], col_max=WIDEST)


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    rows: dict[str, tuple[str, str]] = {}
    for option in command.get_params(ctx):
        row = option.get_help_record(ctx)
        if row and isinstance(option, click.Option):
            rows[next((name for name in option.opts if name.startswith("--")), option.opts[0])] = row
    panels = {heading: names for heading, names in PANELS.items() if names[0] in rows or heading == "Output"}
    panel_of = {name: heading for heading, names in panels.items() for name in names}
    shown = {"Options": [row for name, row in rows.items() if name not in panel_of]}
    for heading, names in panels.items():
        shown[heading] = [rows[name] for name in names if name in rows and panel_of[name] == heading]
    _write_panels(formatter, shown)


class Command(click.Command):
    """A command that also takes the options of the program."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, *_general(), help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        for option in self.params:
            if isinstance(option, Root) and ctx.params["root"] is None:
                from graphrag_ray.base.settings_file import root_in

                # What --config says was typed: it comes before the environment.
                config = ctx.params.get("config")
                root = (root_in(config) if config else None) or os.environ.get(ROOT_VARIABLE)
                if not root:
                    hint = f"name it as `root` in {shown(config)}" if config else f"set {ROOT_VARIABLE}"
                    raise click.MissingParameter(f"Or {hint}.", ctx, option)
                ctx.params["root"] = root
        return super().invoke(ctx)


class Commands(click.Group):
    """Turns errors into a message and their exit code. One that nobody foresaw is told with its place in the
    code; --traceback shows all of it.

    module    where a command is, as its name in the place of `{}`; imported when the command is wanted, so
              that none waits for what another one needs
    listed    names of commands with a line about each, below headings, in the order of the work
    """

    def __init__(
        self, *arguments: Any, module: str, listed: Mapping[str, Mapping[str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._module, self._listed = module, listed
        # Names alone, which click lists and suggests.
        self.commands: dict[str, Any] = {name: None for names in listed.values() for name in names}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            return None
        command: click.Command = getattr(import_module(self._module.format(cmd_name)), cmd_name)
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_panels(formatter, {name: [*rows.items()] for name, rows in self._listed.items()})
        _write_options(self, ctx, formatter)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_general(), *super().get_params(ctx)]

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        logs.forget()
        return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GraphRagError as e:
            if ctx.meta.get("traceback"):
                raise
            click.echo(f"graphrag-ray: {safe(str(e))}", err=True)
            ctx.exit(e.exit_code)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            click.echo("graphrag-ray: stopped. What was answered is kept; run it again to go on.", err=True)
            ctx.exit(130)
        except BaseException as e:
            if ctx.meta.get("traceback") or not is_unforeseen(e) or isinstance(e, BrokenPipeError):
                raise
            message = ": ".join([*getattr(e, "__notes__", ()), told(e)])
            message = safe(one_line(logs.without_any_secret(message), _LONGEST_LINE))
            click.echo(f"graphrag-ray: {message}. {_WHAT_NOW}", err=True)
            ctx.exit(1)


class Root(click.Option):
    """--root; or `root` in the settings of --config; or the variable."""


root_option = click.option(
    "--root",
    metavar="URL",
    cls=Root,
    help="The index: a folder, or s3://… and other fsspec URLs. Default: `root` of --config, or else "
    f"{ROOT_VARIABLE}.",
)


COMMANDS = {
    "Build": {
        "init": "Write settings and prompts to edit.",
        "estimate": "What indexing will take, before anything is spent.",
        "index": "Build an index of documents, or bring it up to date.",
        "status": "What an index holds, and how its run is going.",
        "failures": "Items without a result, and why; try them again.",
    },
    "Ask": {
        "query": "Answer a question, or a file of questions.",
        "chat": "Ask one question after the other.",
    },
    "Look inside": {
        "levels": "Reports and tokens of each level of communities.",
        "inspect": "Communities, entities, relationships, texts.",
        "export": "Write files for other programs.",
        "evaluate": "Which way of answering is better, with figures.",
    },
    "Operate": {"serve": "Answer questions over HTTP.", "gc": "Remove old snapshots; purge a document."},
}
"""In the order of the work. Each is the function of that name in the module of that name."""


@click.group(
    cls=Commands,
    module="graphrag_ray.cli.commands.{}_command",
    listed=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 done; 2 wrong usage or settings; 3 done, but with failed items (see `failures`);
            4 stopped by a budget; 130 by Ctrl-C, 143 by SIGTERM; 1 anything else.""",
)
@click.version_option(__version__)
def main() -> None:
    """A knowledge graph of your documents, and answers about all of them.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray query "What are the main themes?" --root ./my-index
    """
    logs.configure()


if __name__ == "__main__":
    main()
