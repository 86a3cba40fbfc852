"""The program and its commands: what all of them share, how their help is laid out, how they fail."""

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

_LONGEST_LINE = 600
_WHAT_NOW = "What was answered is kept. With --traceback the same command shows where the error came from."
ROOT_VARIABLE = "GRAPHRAG_RAY_ROOT"


def _traceback(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.find_root().meta["traceback"] = True


def _verbose(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _log(level="info")


def _logged(ctx: click.Context, option: click.Parameter, wanted: str | None) -> None:
    if wanted is not None:
        _log(**{str(option.name).removeprefix("log_"): wanted})


def _log(**changes: Any) -> None:
    try:
        logs.configure(None, **changes)
    except UsageError as e:
        raise click.UsageError(str(e)) from e


def _general() -> list[click.Parameter]:
    """Options of the program, which may stand before or after a command's name."""
    trace = "Show where an error came from."
    log = "Log what happens: --log-level info."
    level = "What is logged, to stderr; GRAPHRAG_RAY_LOG=info,json in the environment says the same."
    form = "A line of text for each event, or of JSON (then without lines of progress)."
    levels, formats = click.Choice(get_args(logs.Level)), click.Choice(get_args(logs.Format))
    return [
        click.Option(["--traceback"], is_flag=True, expose_value=False, callback=_traceback, help=trace),
        click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=_verbose, help=log),
        click.Option(["--log-level"], type=levels, expose_value=False, callback=_logged, help=level),
        click.Option(["--log-format"], type=formats, expose_value=False, callback=_logged, help=form),
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
    names = [len(name) for rows in panels.values() for name, _ in rows]
    width = min(max(names), WIDEST)
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
    own = [name for name in rows if name not in panel_of]
    shown = {"Options": own}
    for heading, names in panels.items():
        shown[heading] = [name for name in names if name in rows and panel_of[name] == heading]
    _write_panels(formatter, {heading: [rows[n] for n in names] for heading, names in shown.items()})


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
                ctx.params["root"] = option.otherwise(ctx)
        return super().invoke(ctx)


class Commands(click.Group):
    """Turns errors into a message and their exit code. One that nobody foresaw is told with its place in the
    code; --traceback shows all of it.

    package    where the commands are: a module each, imported when its command is wanted, so that none waits
               for what another one needs
    listed     their names with a line about each, below headings, in the order of the work
    prefix     of the modules' names
    """

    def __init__(
        self,
        *arguments: Any,
        package: str,
        listed: Mapping[str, Mapping[str, str]],
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._package, self._listed, self._prefix = package, listed, prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self._listed.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"{self._package}.{self._prefix}{cmd_name}_command")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as e:
            names = self.list_commands(ctx)  # click knows those alone that were imported
            raise click.exceptions.NoSuchCommand(e.command_name, possibilities=names, ctx=ctx) from None

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

    def otherwise(self, ctx: click.Context) -> str:
        """Where it is not given: what --config says, since it was typed, or else the environment. Raises
        SettingsError, MissingParameter."""
        from graphrag_ray.base.settings_file import root_in

        config = ctx.params.get("config")
        root = (root_in(config) if config else None) or os.environ.get(ROOT_VARIABLE)
        if not root:
            hint = f"Or name it as `root` in {shown(config)}." if config else f"Or set {ROOT_VARIABLE}."
            raise click.MissingParameter(hint, ctx, self)
        return root


def _root(ctx: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """--config is eager: whether it is there is known here. It is read when the command is run."""
    if given is None and isinstance(option, Root) and not isinstance(ctx.params.get("config"), str):
        return option.otherwise(ctx)
    return given


root_option = click.option(
    "--root",
    metavar="URL",
    cls=Root,
    callback=_root,
    help="The index: a folder, or s3://… and other fsspec URLs. Default: `root` of --config, or else "
    f"{ROOT_VARIABLE}.",
)
