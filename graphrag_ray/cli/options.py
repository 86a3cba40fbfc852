"""Options that commands share, and the settings that they add up to."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import SettingsError, StoreError, UsageError
from graphrag_ray.base.urls import shown
from graphrag_ray.query.methods import methods

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.given_rows import GivenRows
    from graphrag_ray.query.ask import Index
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import Manifest

_MODEL = {
    "model": "models.default.model",
    "base_url": "models.default.endpoints.0.base_url",
    "api_key_env": "models.default.endpoints.0.api_key_env",
    "rpm": "models.default.endpoints.0.requests_per_minute",
    "tpm": "models.default.endpoints.0.tokens_per_minute",
    "max_in_flight": "models.default.endpoints.0.max_in_flight",
}
_SHORT = {
    **_MODEL,
    "build": "build",
    "response_type": "query.response_type",
    "general_knowledge": "query.general_knowledge",
    "dynamic": "query.dynamic",
    "hierarchy": "query.hierarchy",
    "map_protocol": "query.map_protocol",
    "traversal": "query.traversal",
    "mode": "query.lightrag_mode",
    "steps": "query.ppr_steps",
    "budget_tokens": "query.budget_tokens",
    "budget_usd": "query.budget_usd",
}
"""Options that are short for one setting: of a model, of a run or of a question."""


def input_of(given: str | None, settings: Settings) -> str:
    """INPUT, or else what the settings say. Raises UsageError."""
    named = given or settings.input.url
    if named is None:
        raise UsageError("name INPUT, or `input.url` in the settings of --config")
    return named


def rows_of(function: str, input_url: str | None) -> GivenRows:
    """The rows of a function named `module:function`, which is called when the engine has started. Modules of
    the working directory are found. Raises UsageError."""
    from graphrag_ray.engine.given_rows import GivenRows

    if input_url is not None:
        raise UsageError(f"INPUT is given twice: {shown(input_url)} and --input {function}")
    module, _, name = function.partition(":")
    if not module or not name:
        raise UsageError(f"--input {function!r}: name a function as MODULE:FUNCTION")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as e:  # it is not our module
        raise UsageError(f"--input {function}: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise UsageError(f"--input {function}: it is a {type(found).__name__}, and no function")
    return GivenRows(found, function)


def options(*each: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Several options as one decorator; help lists them in this order."""

    def put(f: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(each):
            f = option(f)
        return f

    return put


@dataclass(frozen=True)
class Given:
    """Which index a command is about, and how it is reached and asked: --root, --config, --set.

    short   values of the options that are short for a setting, by their names
    """

    root: str
    config: str | None
    overrides: tuple[str, ...]
    short: Mapping[str, Any] = field(default_factory=dict)

    def store(self) -> Store:
        """The store at --root, reached as --set, --config or else the environment say: a snapshot lies in it
        and cannot tell. Nothing is asked of it yet. Raises SettingsError, UsageError."""
        from graphrag_ray.base.settings_file import load_storage
        from graphrag_ray.store.files import Store

        storage = load_storage(self.config, self.overrides)
        with naming_root(self.root):
            return Store(self.root, storage.of(self.root))

    def snapshot(self, number: int | None = None) -> tuple[Store, Manifest]:
        """The newest one, or that of a number. Raises as `store`; StoreError."""
        from graphrag_ray.store.snapshots import open_latest

        store = self.store()
        with naming_root(self.root):
            return store, open_latest(store, number)

    def settings(self, said: Mapping[str, Any] | None = None, root: str | None = None) -> Settings:
        """Settings from --config, or else from what an index says of itself; the short forms, and --set.

        said, root: settings as they stand in an index, and its URL, by which is known how it was reached
        before. Raises SettingsError.
        """
        from graphrag_ray.base.index_settings import of_index
        from graphrag_ray.base.settings_file import load_settings
        from graphrag_ray.base.user_settings import Known

        base, known = None, None
        if self.config is None and said is not None:
            base, known = of_index(said), Known.read(root)
        forms = forms_of(self.config, self.overrides, self.short, base)
        return load_settings(self.config, forms, base, known)

    def index(self, number: int | None = None, cache: str | None = None) -> Index:
        """A snapshot, with the settings of the command. Raises UsageError, SettingsError, StoreError."""
        from graphrag_ray import open_index

        store, manifest = self.snapshot(number)
        settings = self.settings(manifest.settings, store.url)
        return open_index(self.root, snapshot=manifest.number, settings=settings, cache=cache)


def _reach(config: str, metavar: str, overriding: str, *more: Any, **how: Any) -> Callable[..., Any]:
    """--config, --set and more options of a command, which gets them as its first argument, a `Given`."""
    each = (
        click.option("--config", type=click.Path(), metavar="FILE", is_eager=True, help=config),
        click.option("--set", "overrides", multiple=True, metavar=metavar, help=overriding, **how),
        *more,
    )

    def put(f: Callable[..., Any]) -> Callable[..., Any]:
        own = signature(f).parameters

        @wraps(f)
        def command(root: Any, config: str | None, overrides: tuple[str, ...], **values: Any) -> Any:
            short = {name: values.pop(name) for name in {*values} & {*_SHORT} - {*own}}
            return f(Given(root, config, overrides, short), **values)

        return options(*each)(command)

    return put


def _storage_only(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for override in given:
        if override.partition("=")[0].strip().partition(".")[0] != "storage":
            raise click.BadParameter(f"{override!r}: only `storage` counts here (--set storage.region=…)")
    return given


reach_options = _reach(
    "Settings, of which `root` and `storage` are read.",
    "storage.B=C",
    "How the index is reached: storage.endpoint_url, storage.region, …",
    callback=_storage_only,
)
"""Of a command that needs no setting but how its index is reached."""

settings_options = _reach(
    "Settings, as `init` writes them: a file or a URL.",
    "A.B=C",
    "Override one setting; may be repeated.",
    click.option("--model", help="Short for models.default.model (and provider: openai)."),
    click.option("--base-url", help="Short for the address of that model's one endpoint."),
    click.option(
        "--api-key-env", help="Short for the name of the variable that holds its key; null: it wants none."
    ),
    click.option("--rpm", type=float, help="Short for its requests per minute."),
    click.option("--tpm", type=float, help="Short for its tokens per minute."),
    click.option("--max-in-flight", type=int, help="Short for its bound on concurrent calls."),
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

build_option = click.option(
    "--build",
    type=click.Choice(["all", "names"]),
    help="names: names alone, found without a model, and no reports: nothing is paid for but embeddings. "
    "A later run without it makes the rest.",
)
cache_option = click.option(
    "--cache", metavar="URL", help="Keep models' replies there: what was asked before costs nothing."
)
raw_option = click.option(
    "--raw", is_flag=True, help="Show Markdown as it is written; else it is rendered on a terminal."
)
hierarchy_option = click.option(
    "--hierarchy",
    type=click.Choice(list(HIERARCHIES)),
    help="Whose levels and reports are read; else the first of the index.",
)


class MethodChoice(click.Choice[str]):
    """The methods that are registered; one that cannot be used, or that `evaluate` alone has, is refused with
    that."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in methods.BASELINES or methods.METHODS.package_of(str(value)):
            methods.check(value, None, ())
        return super().convert(value, param, ctx)


way_options = options(
    click.option(
        "--method",
        type=MethodChoice(methods.METHODS),
        default=methods.DEFAULT,
        show_default=True,
        help="How the answer is found; auto: by the question.",
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
)
"""How an answer is found: --method, --level, --where."""
asking_options = options(
    click.option(
        "--response-type", metavar="TEXT", help='Form and length of the answer: "a list of five points".'
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
    hierarchy_option,
    click.option(
        "--traversal",
        type=click.Choice(["collapsed", "tree"]),
        help="raptor: all chunks and summaries at once, or level by level from the top.",
    ),
    click.option(
        "--map-protocol",
        type=click.Choice(["answer", "points"]),
        help="global, text: one scored answer for each context, or several scored points.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["local", "global", "hybrid", "mix"]),
        help="lightrag: by names in the question, its subjects, both, or both and the nearest chunks.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(0, 10),
        help="ppr: how often what is missing is looked up, two calls each time. Default: 1.",
    ),
    click.option("--budget-tokens", type=int, metavar="N", help="Prompts and replies together, at most."),
    click.option("--budget-usd", type=float, metavar="X", help="US dollars, at most."),
)
"""How a question is answered; they become settings."""


def forms_of(
    config: str | None,
    overrides: tuple[str, ...],
    short: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> list[str]:
    """The short forms as overrides, and then those of --set. Raises SettingsError."""
    import orjson

    from graphrag_ray.base.settings_file import load_settings

    values = {name: value for name, value in short.items() if value is not None}
    of_model = [name for name in values if name in _MODEL]
    if values.get("api_key_env") == "null":
        values["api_key_env"] = None
    # As JSON, which is YAML: a name such as "1e3" or "no" stays a string.
    forms = [f"{_SHORT[name]}={orjson.dumps(value).decode()}" for name, value in values.items()]
    if "model" in values or (of_model and any(o.startswith("models.") for o in overrides)):
        forms.insert(0, "models.default.provider=openai")
    elif of_model and load_settings(config, overrides, base).model("default").provider == "offline":
        option = "--" + of_model[0].replace("_", "-")
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


class _NoPandas:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def spare_pandas() -> None:
    """Let pyarrow do without pandas, which takes a quarter of a second to import.

    pyarrow imports it once, with the first array, to tell whether a value is one of pandas'. What needs
    pandas (`to_pandas`) imports it later all the same.
    """
    if "pandas" not in sys.modules:
        import pyarrow as pa

        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(_NoPandas)
