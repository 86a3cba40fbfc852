"""The command line: general options, help layout and error handling.

Each command is a module in `cli/commands/` that is imported when the command is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

import click

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.unexpected_errors import describe_unexpected_error, is_unexpected
from graphrag_ray.base.urls import display_path
from graphrag_ray.base.wording import collapse_whitespace, escape_control
from graphrag_ray.version import __version__

# This must be set before numpy is imported. Our matrix products are small and several processes run in
# parallel, so threads would cost more than they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_MAX_LINE = 600
"""Maximum length of the message for an unexpected error in characters."""
_ADVICE = (
    "All replies received so far are kept. Run the command with --traceback to see where the error came from."
)
ROOT_VARIABLE = "GRAPHRAG_RAY_ROOT"


def _general_options() -> list[click.Parameter]:
    """Create the options that are accepted before and after the name of any command."""

    def take(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if option.name == "traceback":
            ctx.find_root().meta["traceback"] = ctx.find_root().meta.get("traceback") or value
        elif value:
            changes = {"level": "info"} if value is True else {str(option.name).removeprefix("log_"): value}
            try:
                logs.configure(None, **changes)
            except UsageError as e:
                raise click.UsageError(str(e)) from e

    level = "Log level; logs go to stderr. You can also set GRAPHRAG_RAY_LOG=info,json in the environment."
    log_format = "Format of log lines. json also turns off progress lines."
    levels, formats = click.Choice(get_args(logs.Level)), click.Choice(get_args(logs.Format))
    hidden: dict[str, Any] = {"expose_value": False, "callback": take}
    return [
        click.Option(["--traceback"], is_flag=True, help="Show the traceback of an error.", **hidden),
        click.Option(["-v", "--verbose"], is_flag=True, help="Same as --log-level info.", **hidden),
        click.Option(["--log-level"], type=levels, help=level, **hidden),
        click.Option(["--log-format"], type=formats, help=log_format, **hidden),
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
"""Headings in a command's help and their options. A heading is used if the command has its first option.
Other options come first, under "Options"."""
MAX_OPTION_WIDTH = 30
"""Width of the option column, which leaves room for the text on a terminal of 80 columns."""


def _write_panels(formatter: click.HelpFormatter, panels: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write lists below headings, with a common width of the first column."""
    width = min(max(len(name) for rows in panels.values() for name, _ in rows), MAX_OPTION_WIDTH)
    for heading, rows in panels.items():
        if rows:
            with formatter.section(click.style(heading, bold=True)):
                formatter.write_dl(
                    [(f"{name:<{width}}", text) for name, text in rows], col_max=MAX_OPTION_WIDTH
                )


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    rows: dict[str, tuple[str, str]] = {}
    for option in command.get_params(ctx):
        row = option.get_help_record(ctx)
        if row and isinstance(option, click.Option):
            rows[next((name for name in option.opts if name.startswith("--")), option.opts[0])] = row
    panels = {heading: names for heading, names in PANELS.items() if names[0] in rows or heading == "Output"}
    panel_of = {name: heading for heading, names in panels.items() for name in names}
    listed = {"Options": [row for name, row in rows.items() if name not in panel_of]}
    for heading, names in panels.items():
        listed[heading] = [rows[name] for name in names if name in rows and panel_of[name] == heading]
    _write_panels(formatter, listed)


class Command(click.Command):
    """A command that also accepts the general options."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *params, help_option = super().get_params(ctx)
        return [*params, *_general_options(), help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        for option in self.params:
            if isinstance(option, Root) and ctx.params["root"] is None:
                from graphrag_ray.base.settings_file import read_root

                # --config was passed to this command, so it takes precedence over the environment.
                config = ctx.params.get("config")
                root = (read_root(config) if config else None) or os.environ.get(ROOT_VARIABLE)
                if not root:
                    hint = f"add `root` to {display_path(config)}" if config else f"set {ROOT_VARIABLE}"
                    raise click.MissingParameter(f"Or {hint}.", ctx, option)
                ctx.params["root"] = root
        return super().invoke(ctx)


class Commands(click.Group):
    """A group of commands that turns errors into a message and an exit code.

    Args:
        module: Module of a command, with `{}` for its name. The module is imported when the command is used.
        listed: Command names and summaries by heading.
    """

    def __init__(
        self, *args: Any, module: str, listed: Mapping[str, Mapping[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._module, self._listed = module, listed
        # click uses only the names, for listing and suggestions.
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
        return [*_general_options(), *super().get_params(ctx)]

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        logs.reset()
        return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GraphRagError as e:
            if ctx.meta.get("traceback"):
                raise
            click.echo(f"graphrag-ray: {escape_control(str(e))}", err=True)
            ctx.exit(e.exit_code)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            click.echo(
                "graphrag-ray: Stopped. All replies are kept. Run the command again to continue.", err=True
            )
            ctx.exit(130)
        except BaseException as e:
            if ctx.meta.get("traceback") or not is_unexpected(e) or isinstance(e, BrokenPipeError):
                raise
            message = ": ".join([*getattr(e, "__notes__", ()), describe_unexpected_error(e)])
            message = escape_control(collapse_whitespace(logs.scrub_secrets(message), _MAX_LINE))
            click.echo(f"graphrag-ray: {message}. {_ADVICE}", err=True)
            ctx.exit(1)


class Root(click.Option):
    """--root. If it is missing, `Command` reads it from --config or the environment."""


COMMANDS = {
    "Build": {
        "init": "Write editable settings and prompts.",
        "tune": "Fit settings and prompts to your documents.",
        "estimate": "Predict calls, tokens, cost and time of indexing.",
        "index": "Build or update an index of documents.",
        "resolve": "Preview which names are merged or split.",
        "status": "Show the contents and the runs of an index.",
        "failures": "List failed items, and retry them.",
    },
    "Ask": {"query": "Answer a question or a file of questions.", "chat": "Ask questions in a conversation."},
    "Look inside": {
        "levels": "List reports and tokens per community level.",
        "inspect": "Show communities, entities, relationships, chunks.",
        "export": "Export a snapshot for other programs.",
        "evaluate": "Compare search methods using metrics.",
    },
    "Operate": {"serve": "Answer questions over HTTP.", "gc": "Remove old snapshots, and purge documents."},
}
"""Commands in the usual order of use. Each is a function of the same name in `NAME_command.py`."""


@click.group(
    cls=Commands,
    module="graphrag_ray.cli.commands.{}_command",
    listed=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 success; 2 invalid usage or settings; 3 completed with failed items (see `failures`);
            4 stopped by a budget; 130 stopped by Ctrl-C; 143 stopped by SIGTERM; 1 any other error.""",
)
@click.version_option(__version__)
def main() -> None:
    """Build a knowledge graph of your documents and ask questions about all of them.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray query "What are the main themes?" --root ./my-index
    """
    logs.configure()


if __name__ == "__main__":
    main()
