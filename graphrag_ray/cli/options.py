"""Options shared by several commands, and the settings that result from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import SettingsError, StoreError, UsageError
from graphrag_ray.cli.command_line import ROOT_VARIABLE, Root
from graphrag_ray.query.methods import methods

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
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
    "mode": "query.lightrag_mode",
    "steps": "query.ppr_steps",
    "budget_tests": "query.lazy_tests",
    "traversal": "query.raptor_traversal",
    **{
        name: f"query.{name}"
        for name in (
            *("response_type", "general_knowledge", "dynamic", "hierarchy", "map_protocol"),
            *("budget_tokens", "budget_usd"),
        )
    },
}
"""Options that set a single setting."""


def input_of(url: str | None, settings: Settings) -> str:
    """Return INPUT or, if it is missing, `input.url` from the settings. Raises UsageError."""
    if (url := url or settings.input.url) is None:
        raise UsageError("Missing INPUT. Pass it, or set `input.url` in the settings of --config.")
    return url


def combine(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Combine several options into one decorator, in the order of the help."""
    return lambda f: reduce(lambda decorated, option: option(decorated), reversed(options), f)


@dataclass(frozen=True)
class IndexOptions:
    """The options --root, --config and --set, and `short` options such as --model that set one setting."""

    root: str
    config: str | None
    overrides: tuple[str, ...]
    short: Mapping[str, Any] = field(default_factory=dict)

    def store(self) -> Store:
        """Return the store at --root without accessing it. Raises SettingsError, UsageError.

        Storage options come from --set, --config or the user settings. The index cannot be read without them.
        """
        from graphrag_ray.base.settings_file import load_storage
        from graphrag_ray.store.files import Store

        storage = load_storage(self.config, self.overrides)
        with naming_root(self.root):
            return Store(self.root, storage.fsspec_options(self.root))

    def snapshot(self, number: int | None = None) -> tuple[Store, Manifest]:
        """Open the newest snapshot, or the one with this number. Raises StoreError."""
        from graphrag_ray.store.snapshots import open_latest

        store = self.store()
        with naming_root(self.root):
            return store, open_latest(store, number)

    def settings(
        self, stored: Mapping[str, Any] | None = None, root: str | None = None, new_prompts: bool = False
    ) -> Settings:
        """Load settings from --config or an index, then apply the short options and --set.

        Args:
            stored: Settings in the index.
            root: URL of the index, under which this machine remembers the endpoints of its models.
            new_prompts: Leave out stored settings that new prompts replace.
        """
        from graphrag_ray.base.settings_file import load_settings
        from graphrag_ray.base.stored_settings import without_machine_settings, without_outdated_prompts
        from graphrag_ray.base.user_settings import KnownModels

        base, known = None, None
        if self.config is None and stored is not None:
            stored = without_outdated_prompts(stored) if new_prompts else stored
            base, known = without_machine_settings(stored), KnownModels.read(root)
        overrides = overrides_of(self.config, self.overrides, self.short, base)
        return load_settings(self.config, overrides, base, known)

    def index(self, number: int | None = None, cache: str | None = None) -> Index:
        """Open a snapshot with the settings of the command. Raises UsageError, SettingsError, StoreError."""
        from graphrag_ray import open_index

        store, manifest = self.snapshot(number)
        settings = self.settings(manifest.settings, store.url)
        return open_index(self.root, snapshot=manifest.number, settings=settings, cache=cache)


def _index_options(
    root: Callable[..., Any], config: str, metavar: str, overrides: str, *others: Any, **set_kwargs: Any
) -> Callable[..., Any]:
    """Add --root, --config, --set and others, and pass them as `IndexOptions` in the first argument."""
    decorators = (
        root,
        click.option("--config", type=click.Path(), metavar="FILE", is_eager=True, help=config),
        click.option("--set", "overrides", multiple=True, metavar=metavar, help=overrides, **set_kwargs),
        *others,
    )

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(f).parameters

        @wraps(f)
        def command(config: str | None, overrides: tuple[str, ...], root: Any = None, **values: Any) -> Any:
            short = {name: values.pop(name) for name in {*values} & {*_SHORT} - {*parameters}}
            return f(IndexOptions(root, config, overrides, short), **values)

        return combine(*decorators)(command)

    return decorate


def _require_storage(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for override in values:
        if override.partition("=")[0].strip().partition(".")[0] != "storage":
            raise click.BadParameter(f"{override!r}: only `storage` can be set here (--set storage.region=…)")
    return values


_root = click.option(
    "--root",
    metavar="URL",
    cls=Root,
    help=f"The index: a folder or fsspec URL (s3://…). Default: `root` in --config, or else {ROOT_VARIABLE}.",
)
storage = _index_options(
    _root,
    "Settings file; only `root` and `storage` are used.",
    "storage.B=C",
    "Storage option: storage.endpoint_url, storage.region, …; repeatable.",
    callback=_require_storage,
)
"""For commands that need no settings except those for storage."""

_SETTINGS = (
    "Settings file, as written by `init`: a path or URL.",
    "A.B=C",
    "Override one setting; repeatable.",
    click.option("--model", help="Model id. Sets models.default.model, and provider: openai."),
    click.option("--base-url", help="Base URL of the model's endpoint."),
    click.option("--api-key-env", help="Environment variable with the API key; null: no key needed."),
    click.option("--rpm", type=float, help="Limit of requests per minute at the endpoint."),
    click.option("--tpm", type=float, help="Limit of tokens per minute at the endpoint."),
    click.option("--max-in-flight", type=int, help="Maximum number of concurrent calls to the endpoint."),
)
settings = _index_options(_root, *_SETTINGS)
settings_for_estimate = _index_options(
    click.option("--root", metavar="URL", help="An index whose calls improve the estimate."), *_SETTINGS
)
settings_without_index = _index_options(lambda command: command, *_SETTINGS)


def _choice(name: str, *values: str, help_: str) -> Callable[..., Any]:
    return click.option(name, type=click.Choice(values), help=help_)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
snapshot = click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
build = _choice("--build", "all", "names", help_="names: extract names offline. Later runs add the rest.")
cache = click.option("--cache", metavar="URL", help="Store model replies there and reuse them for free.")
raw = click.option("--raw", is_flag=True, help="Print Markdown source instead of rendering it.")
address = click.option("--address", metavar="ADDRESS", help="Ray cluster. Default: the one on this machine.")
hierarchy = _choice(
    "--hierarchy", *HIERARCHIES, help_="Hierarchy of reports. Default: the first one in the index."
)


class _MethodChoice(click.Choice[str]):
    """Choice of a search method. Explains why a plugin or an evaluation-only method cannot be used."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in methods.BASELINES or methods.METHODS.package_of(str(value)):
            methods.check_method(value, None, ())
        return super().convert(value, param, ctx)


search = combine(
    click.option(
        "--method",
        type=_MethodChoice(methods.METHODS),
        default=methods.DEFAULT,
        show_default=True,
        help="Search method; auto: chosen for each question.",
    ),
    click.option(
        "--level",
        metavar="C0..Cn|auto",
        help="Community level. auto: the finest level within the budget or, without a budget, the coarsest "
        "level that fills a context (the default). With --dynamic: the finest level to rate (default: C2). "
        "local, drift: the finest level whose reports are used (default: C2).",
    ),
    click.option(
        "--where",
        metavar="COND",
        multiple=True,
        help="Only documents with path~*.md, title=…, date>=2023, author=… (a metadata column); "
        "repeatable. relation=TREATS: only relationships of this type. global: only reports whose whole "
        "period satisfies conditions on date.",
    ),
)
answer = combine(
    click.option("--response-type", metavar="TEXT", help='Form and length, such as "a list of five points".'),
    click.option(
        "--general-knowledge/--no-general-knowledge",
        default=None,
        help="Let the answer go beyond the documents, and mark those parts.",
    ),
    click.option(
        "--dynamic/--no-dynamic",
        default=None,
        help="global: rate reports from the top level down and descend only below relevant ones.",
    ),
    hierarchy,
    _choice("--traversal", "collapsed", "tree", help_="raptor: search all levels at once, or from the top."),
    _choice(
        "--map-protocol", "answer", "points", help_="global, text: one scored answer per context, or points."
    ),
    _choice(
        *("--mode", "local", "global", "hybrid", "mix"),
        help_="lightrag: by names in the question, by its topics, by both, or by both plus nearest chunks.",
    ),
    click.option(
        "--steps", type=click.IntRange(0, 10), help="ppr: additional searches, two calls each. Default: 1."
    ),
    click.option(
        "--budget-tests",
        type=click.IntRange(1),
        metavar="N",
        help="lazy: maximum number of passages to test for relevance. Default: 100.",
    ),
    click.option("--budget-tokens", type=int, metavar="N", help="Token limit, prompts and replies together."),
    click.option("--budget-usd", type=float, metavar="X", help="Cost limit in US dollars."),
)
"""Options for answers. Each sets one setting."""


def overrides_of(
    config: str | None,
    overrides: tuple[str, ...],
    short: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the short options as overrides, followed by those from --set. Raises SettingsError."""
    import orjson

    from graphrag_ray.base.settings_file import load_settings

    values = {name: value for name, value in short.items() if value is not None}
    model_options = [name for name in values if name in _MODEL]
    if values.get("api_key_env") == "null":
        values["api_key_env"] = None
    # JSON is valid YAML and keeps a name such as "1e3" or "no" a string.
    assignments = [f"{_SHORT[name]}={orjson.dumps(value).decode()}" for name, value in values.items()]
    if "model" in values or (model_options and any(o.startswith("models.") for o in overrides)):
        assignments.insert(0, "models.default.provider=openai")
    elif model_options and load_settings(config, overrides, base).model("default").provider == "offline":
        option = "--" + model_options[0].replace("_", "-")
        raise SettingsError(f"{option} needs --model, because no model is configured")
    return [*assignments, *overrides]


@contextmanager
def naming_root(root: str, option: str = "--root") -> Iterator[None]:
    """Turn errors about a folder that cannot be opened into usage errors that name the option."""
    try:
        yield
    except SettingsError as e:
        raise UsageError(f"{option} {root!r}: {e}") from e
    except StoreError as e:
        if isinstance(e.__cause__, NotADirectoryError):
            raise UsageError(f"{option} {root} is a file or is inside one. Pass a folder or a URL.") from e
        raise


class _NoPandas:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def avoid_pandas_import() -> None:
    """Keep pyarrow from importing pandas, which takes a quarter of a second.

    pyarrow imports it with the first array, to recognise pandas objects. `to_pandas` still works.
    """
    if "pandas" not in sys.modules:
        import pyarrow as pa

        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(_NoPandas)
