"""Options that commands share, and the settings that they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, get_args

import click
import orjson

from graphrag_ray import logs
from graphrag_ray.errors import GraphRagError, SettingsError, StoreError, UsageError
from graphrag_ray.query import methods
from graphrag_ray.settings import Settings
from graphrag_ray.settings_file import load_settings, load_storage, root_in
from graphrag_ray.store.files import Store
from graphrag_ray.terminal.misread import Misread
from graphrag_ray.terminal.safe import safe
from graphrag_ray.urls import shown

_SHORT = {
    "model": "models.default.model",
    "base_url": "models.default.endpoints.0.base_url",
    "api_key_env": "models.default.endpoints.0.api_key_env",
    "rpm": "models.default.endpoints.0.requests_per_minute",
    "tpm": "models.default.endpoints.0.tokens_per_minute",
    "max_in_flight": "models.default.endpoints.0.max_in_flight",
}
"""Options that are short for one setting of a model."""

_ASKED = {
    "response_type": "query.response_type",
    "general_knowledge": "query.general_knowledge",
    "dynamic": "query.dynamic",
    "map_protocol": "query.map_protocol",
    "budget_tokens": "query.budget_tokens",
    "budget_usd": "query.budget_usd",
}
"""Options that are short for one setting of a question."""


_WORDS = f"{__name__}.words"
"""In the `meta` of a context: the command line."""


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


class Command(click.Command):
    """A command that also takes the options of the program.

    misread   is given a line that cannot be run, before its error is shown; errors of ours that it raises are
              not told
    """

    def __init__(
        self, *arguments: Any, misread: Callable[[Misread], object] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._misread = misread

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        with self._read(ctx):
            return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, *_general(), help_option]

    def invoke(self, ctx: click.Context) -> Any:
        with self._read(ctx):
            for option in self.params:
                if isinstance(option, _Root) and ctx.params["root"] is None:
                    ctx.params["root"] = option.from_config(ctx)
        return super().invoke(ctx)

    @contextmanager
    def _read(self, ctx: click.Context) -> Iterator[None]:
        try:
            yield
        except (click.UsageError, UsageError) as e:
            if self._misread is not None:
                with suppress(GraphRagError):
                    self._misread(Misread(ctx.meta[_WORDS], e))
            raise


class Commands(click.Group):
    """Turns our errors into a message and their exit code; anything else is a bug and keeps its trace.

    package, names   where the commands are: a module each, imported when its command is wanted, so that none
                     waits for what another one needs
    """

    def __init__(self, *arguments: Any, package: str, names: Sequence[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._package, self._names = package, names

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._names:
            return None
        command: click.Command = getattr(import_module(f"{self._package}.{cmd_name}"), cmd_name)
        return command

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
        except KeyboardInterrupt:
            click.echo("graphrag-ray: stopped. What was answered is kept; run it again to go on.", err=True)
            ctx.exit(130)


class _Root(click.Option):
    """--root, or `root` in the settings of --config."""

    def from_config(self, ctx: click.Context) -> str:
        """Raises SettingsError, MissingParameter."""
        config = ctx.params["config"]
        if (root := root_in(config)) is None:
            raise click.MissingParameter(f"Or name it as `root` in {shown(config)}.", ctx, self)
        return root


def _root(ctx: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """--config is eager: whether it is there is known here. It is read when the command is run."""
    if given is None and not isinstance(ctx.params.get("config"), str):
        raise click.MissingParameter(ctx=ctx, param=option)
    return given


def root_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--root",
        metavar="URL",
        cls=_Root,
        callback=_root,
        help="The index: a folder, or s3://… and other fsspec URLs. Default: `root` of --config.",
    )(f)


def input_of(given: str | None, settings: Settings) -> str:
    """INPUT, or else what the settings say. Raises UsageError."""
    named = given or settings.input.url
    if named is None:
        raise UsageError("name INPUT, or `input.url` in the settings of --config")
    return named


def json_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(f)


def _config_option(told: str) -> Callable[..., Any]:
    return click.option("--config", type=click.Path(), metavar="FILE", is_eager=True, help=told)


def _storage_only(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for override in given:
        if override.partition("=")[0].strip().partition(".")[0] != "storage":
            raise click.BadParameter(f"{override!r}: only `storage` counts here (--set storage.region=…)")
    return given


def reach_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """--config and --set of a command that needs no setting but how its index is reached."""
    for option in reversed(
        [
            _config_option("Settings, of which `root` and `storage` are read."),
            click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="storage.B=C",
                callback=_storage_only,
                help="How the index is reached: storage.endpoint_url, storage.region, …",
            ),
        ]
    ):
        f = option(f)
    return f


def open_root(root: str, config: str | None, overrides: tuple[str, ...]) -> Store:
    """The store at --root, reached as --set, --config or else the environment say: a snapshot lies in it
    and cannot tell. Nothing is asked of it yet. Raises SettingsError, UsageError."""
    storage = load_storage(config, overrides)
    with naming_root(root):
        return Store(root, storage.of(root))


def settings_options(f: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            _config_option("Settings, as `init` writes them: a file or a URL."),
            click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="A.B=C",
                help="Override one setting; may be repeated.",
            ),
            click.option("--model", help="Short for models.default.model (and provider: openai)."),
            click.option("--base-url", help="Short for the address of that model's one endpoint."),
            click.option("--api-key-env", help="Short for the name of the variable that holds its key."),
            click.option("--rpm", type=float, help="Short for its requests per minute."),
            click.option("--tpm", type=float, help="Short for its tokens per minute."),
            click.option("--max-in-flight", type=int, help="Short for its bound on concurrent calls."),
        ]
    ):
        f = option(f)
    return f


def cache_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--cache", metavar="URL", help="Keep models' replies there: what was asked before costs nothing."
    )(f)


def way_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """How an answer is found: --method, --level, --where."""
    for option in reversed(
        [
            click.option(
                "--method",
                type=click.Choice(list(methods.FILES)),
                default=methods.DEFAULT,
                show_default=True,
                help="How the answer is found.",
            ),
            click.option(
                "--level",
                metavar="C0..Cn|auto",
                help="Level of the communities, or `auto`: the finest within the budget (without one, the "
                "coarsest that fills a context: the default). --dynamic: the finest that is rated (C2). "
                "local, drift: the finest whose reports are shown (C2).",
            ),
            click.option(
                "--where",
                metavar="COND",
                multiple=True,
                help="Only documents with path~*.md, title=…, date>=2023-05, author=… (a column of their "
                "metadata); repeatable.",
            ),
        ]
    ):
        f = option(f)
    return f


def asking_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """How a question is answered; `settings_from` reads them."""
    for option in reversed(
        [
            click.option(
                "--response-type",
                metavar="TEXT",
                help='Form and length of the answer: "a list of five points".',
            ),
            click.option(
                "--general-knowledge/--no-general-knowledge",
                default=None,
                help="Let the answer go beyond the data, and mark where it does.",
            ),
            click.option(
                "--dynamic/--no-dynamic",
                default=None,
                help="global: rate reports from the top, read on only below relevant ones.",
            ),
            click.option(
                "--map-protocol",
                type=click.Choice(["answer", "points"]),
                help="global, text: one scored answer for each context, or several scored points.",
            ),
            click.option(
                "--budget-tokens", type=int, metavar="N", help="Prompts and replies together, at most."
            ),
            click.option("--budget-usd", type=float, metavar="X", help="US dollars, at most."),
        ]
    ):
        f = option(f)
    return f


def settings_from(
    config: str | None,
    overrides: tuple[str, ...],
    short: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from --config (or else `base`), the short forms, and --set. Raises SettingsError."""
    return load_settings(config, forms_of(config, overrides, short, base), base)


def forms_of(
    config: str | None,
    overrides: tuple[str, ...],
    short: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> list[str]:
    """The short forms as overrides, and then those of --set. Raises SettingsError."""
    given = {name: value for name, value in short.items() if value is not None and name in _SHORT}
    asked = {name: value for name, value in short.items() if value is not None and name in _ASKED}
    # As JSON, which is YAML: a name such as "1e3" or "no" stays a string.
    forms = [
        f"{(_SHORT | _ASKED)[name]}={orjson.dumps(value).decode()}" for name, value in (given | asked).items()
    ]
    if "model" in given or (given and any(o.startswith("models.") for o in overrides)):
        forms.insert(0, "models.default.provider=openai")
    elif given and load_settings(config, overrides, base).model("default").provider == "offline":
        option = "--" + next(iter(given)).replace("_", "-")
        raise SettingsError(f"{option} needs --model: no model is configured that it could belong to")
    return [*forms, *overrides]


@contextmanager
def naming_root(root: str, option: str = "--root") -> Iterator[None]:
    """Around the first look at --root: what can be no index is told as wrong usage of that option, or of
    another that names a folder."""
    try:
        yield
    except SettingsError as e:
        raise UsageError(f"{option} {root!r}: {e}") from e
    except StoreError as e:
        if isinstance(e.__cause__, NotADirectoryError):
            raise UsageError(f"{option} {root} is a file, or lies below one: give a folder or a URL") from e
        raise
