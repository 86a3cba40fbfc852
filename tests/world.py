"""A small world: a folder of documents, an index of it, and a model behind HTTP that answers by toy rules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import toy_model
import yaml
from click.testing import Result
from endpoint import Endpoint, Status

from graphrag_ray import open_index
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing.index import IndexResult, index
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.methods import METHODS
from graphrag_ray.store import index_files, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import content_hash

TOWN = {
    "council.txt": "ALICE met BOB at the council. BOB wrote to CAROL about the harbour. CAROL thanked ALICE.",
    "harbour.txt": "DAVE sold the boat to ERIN. ERIN sailed with FRANK. FRANK owes DAVE money.",
    "bridge.txt": "CAROL asked DAVE for a bridge. Nobody answered for a year.",
    "brewery.txt": "GRACE brews with HEIDI. HEIDI married IVAN. IVAN paid GRACE.",
    "mill.txt": "ALICE met BOB again. GRACE bought flour from JUDY.",
    "weather.txt": "It rained in the whole of the spring, and nobody of note was seen.",
}
"""Texts in which the toy model finds ten people."""


DEEP = {"communities": {"max_size": 3, "pack_components_below": 1}}
"""So that ten people make a hierarchy of several levels."""

DEEPER = {**DEEP, "reports": {"context_tokens": 600}}
"""And so that the upper reports of `PEOPLE` are written from those below."""

_LETTERS = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(43)]
PEOPLE = {
    f"{i:02}.txt": f"{name} knows {_LETTERS[i + 1]}. {name} wrote to {_LETTERS[i + 1 + i % 3]}."
    for i, name in enumerate(_LETTERS[:40])
}
"""People in a row, each of whom knows some of the next: dozens of reports."""

REJECTED = Status(400, "Invalid prompt: your request was rejected", "invalid_prompt")
"""An answer that another attempt would get again."""


Command = Callable[..., Result]
"""Runs a command line (the fixture `run`)."""


Built = Callable[..., "World"]
"""An index of these texts with these changes of the settings (the fixture `built`)."""


class Silent(Observer):
    """An observer that records messages. A run that discards existing results has found a bug."""

    def __init__(self) -> None:
        self.reused: dict[str, bool] = {}
        self.notes: list[str] = []

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        self.reused[name] = reused

    def message(self, message: str) -> None:
        assert "failed to continue from snapshot" not in message, message
        self.notes.append(message)


class World:
    """`input` is the folder of documents, `root` the index, and `changes` settings on top of the small
    ones.
    """

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        self.input = folder / "input"
        self.root = folder / "index"
        self.endpoint = endpoint
        self.changes: dict[str, Any] = {}
        self.observer = Silent()
        self.input.mkdir(parents=True, exist_ok=True)
        know(endpoint, "m", "e", max_in_flight=16)

    @property
    def store(self) -> Store:
        return Store(str(self.root))

    def write(self, texts: Mapping[str, str | bytes]) -> None:
        for name, text in texts.items():
            path = self.input / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def settings(self, **changes: Any) -> Settings:
        """Settings of a model at our endpoint, which writes every report, because communities are tiny here.

        A change is a section (a mapping) or a value.
        """
        given = {"base_url": self.endpoint.base_url, "api_key_env": None, "max_in_flight": 16}
        model = {"provider": "openai", "model": "m", "endpoints": [given]}
        base: dict[str, Any] = {"models": {"default": model}, "run": {"journal_flush_s": 0.1}}
        base["reports"] = {"model_from": 0}
        for name, value in (self.changes | changes).items():
            base[name] = base.get(name, {}) | value if isinstance(value, dict) else value
        return parse_settings(base)

    @property
    def embedding(self) -> dict[str, Any]:
        """A change: embeddings by our endpoint, which are journalled."""
        given = {"base_url": self.endpoint.base_url, "api_key_env": None}
        model = {"provider": "openai", "model": "e", "endpoints": [given], "embedding_dimensions": 12}
        return {"models": {"embedding": model}}

    def executor(self, settings: Settings) -> LocalExecutor:
        run = settings.run
        return LocalExecutor(
            self.store, Models.from_settings(settings), run.max_failed_fraction, run.journal_flush_s
        )

    def index(
        self,
        *,
        add: bool = False,
        allow_deletes: bool = False,
        reset_communities: bool = False,
        verify: bool = False,
        verify_input: bool = False,
        at: float = 1_700_000_000.0,
        **changes: Any,
    ) -> IndexResult:
        settings = self.settings(**changes)
        self.observer = Silent()
        return index(
            str(self.input),
            self.executor(settings),
            settings,
            self.observer,
            add=add,
            allow_deletes=allow_deletes,
            verify=verify,
            verify_input=verify_input,
            reset_communities=reset_communities,
            now=lambda: at,
        )

    def take(self, built: World) -> World:
        """Copy another world's documents and index as if this world's model had built it."""
        for ours, theirs in ((self.input, built.input), (self.root, built.root)):
            shutil.copytree(theirs, ours, dirs_exist_ok=True)
        self.observer = built.observer
        know(
            self.endpoint, "m", "e", max_in_flight=16
        )  # Building it stored its endpoint in the user's settings.
        self.endpoint.requests.extend(built.endpoint.requests)
        return self

    def open(self, **changes: Any) -> Index:
        """Open the newest snapshot, with these changed settings if any."""
        return open_index(str(self.root), settings=self.settings(**changes) if changes else None)

    def table(self, name: str) -> list[dict[str, Any]]:
        return self.open().table(name).to_pylist()

    def snapshots(self) -> list[int]:
        return snapshots.list_numbers(self.store)

    def asked(self) -> int:
        """Chat requests that reached the model so far."""
        return len(self.endpoint.bodies())

    def prompts(self, start: int = 0) -> Counter[str]:
        """How often each named prompt was sent, from request `start` on."""
        return Counter(prompt_of(body) for body in self.endpoint.bodies()[start:])

    def forget(self) -> None:
        """Empty the root."""
        shutil.rmtree(self.root, ignore_errors=True)


def know(endpoint: Endpoint, *models: str, **more: Any) -> None:
    """Let this test's user know models at an endpoint without a key."""
    path = Path(os.environ["GRAPHRAG_RAY_SETTINGS"])
    at = {"endpoints": [{"base_url": endpoint.base_url, "api_key_env": None, **more}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"models": dict.fromkeys(models, at)}))


WITHOUT_A_TREE = tuple(name for name in METHODS if not METHODS[name].hierarchy)
"""Search methods that need no hierarchy other than Leiden communities."""


def chain(n: int) -> dict[str, str]:
    """n documents in which each of n people knows the next and some others: a graph with structure."""
    name = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(n + 3)]
    return {
        f"{i:02}.txt": f"{name[i]} knows {name[i + 1]}. {name[i]} wrote to {name[i + 1 + i % 3]}."
        for i in range(n)
    }


def model_options(world: World) -> list[str]:
    short = ["--model", "m", "--base-url", world.endpoint.base_url, "--max-in-flight", "16"]
    return [
        *short,
        "--set",
        "models.default.endpoints.0.api_key_env=null",
        "--set",
        "run.journal_flush_s=0.1",
        "--set",
        "reports.model_from=0",
    ]


def index_command(world: World, *more: object) -> list[object]:
    return ["index", world.input, "--root", world.root, *model_options(world), *more]


def python(script: str, within_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script in a new process, which has imported nothing yet."""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=within_s, check=False
    )


def prompt_of(body: Mapping[str, Any]) -> str:
    try:
        return toy_model.recognise(body["messages"][-1]["content"])[0]
    except ValueError:
        return "?"


def people(text: str) -> list[set[str]]:
    """The names in each sentence, as the toy model finds them."""
    return [set(toy_model.NAME.findall(s)) for s in re.split(r"(?<=[.!?])\s+", text)]


def expected_entities(texts: Iterable[str]) -> dict[str, int]:
    """Names, and the number of texts in which they occur."""
    return dict(Counter(name for text in texts for name in set().union(*people(text))))


def expected_relationships(texts: Iterable[str]) -> dict[tuple[str, str], int]:
    """Pairs of names that share a sentence, and the number of texts."""
    pairs = ({pair for names in people(text) for pair in combinations(sorted(names), 2)} for text in texts)
    return dict(Counter(pair for found in pairs for pair in found))


def everything(opened: Index) -> dict[str, list[dict[str, Any]]]:
    """All tables of a snapshot as rows, without the times in failures and the tables that only locate
    rows.
    """
    out = {}
    for name in sorted(opened.manifest.tables):
        if name.startswith("rows_"):
            continue
        parts = opened.manifest.parts(name)
        if any(part.path.endswith(index_files.SUFFIX) for part in parts):
            out[name] = [{"holds": content_hash(opened.store.read(part.path))} for part in parts]
            continue
        rows = rows_of(opened, name) if parts else []
        out[name] = [{k: v for k, v in r.items() if k not in ("first_at", "last_at")} for r in rows]
    return out


def rows_of(opened: Index, name: str) -> list[dict[str, Any]]:
    from graphrag_ray.store.parts import read_table

    table: pa.Table = read_table(opened.store, opened.manifest.parts(name))
    return table.to_pylist()
