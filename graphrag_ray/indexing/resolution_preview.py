"""Preview entity resolution: which names an index would merge or split, and why."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import yaml

from graphrag_ray.base import schema
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatRequest, Usage
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.stored_settings import with_stored_settings
from graphrag_ray.base.wording import document_location, plural, price_hint, spreadsheet_cell
from graphrag_ray.engine.dialogue_runner import DialogueRunner, Waiting
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph import adjudication
from graphrag_ray.indexing.build import open_executor
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.resolve_stage import VERDICTS, resolve_dialogue, resolve_names
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.indexing.stored_prompts import load_names, with_schema
from graphrag_ray.llm.pricing import cost_pico_usd, highest_price
from graphrag_ray.llm.request_sizes import count_text_tokens
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.snapshots import Manifest

_SAMPLE = 200
"""Number of requests whose tokens are counted for the estimate."""


@dataclass(frozen=True)
class Proposal:
    """A name and the title that replaces it.

    Attributes:
        document: Place of the only document in which it is replaced, or "" for all documents.
        is_new: Whether the newest snapshot does not replace it yet.
    """

    title: str
    name: str
    document: str
    rule: str
    evidence: str
    mentions: int
    is_new: bool


@dataclass(frozen=True)
class Preview:
    """Proposals by title, names that would no longer be replaced, and pairs that a model kept apart."""

    snapshot: int
    proposals: Sequence[Proposal]
    undone: Sequence[Proposal]
    verdicts: Mapping[str, int]
    failed: int
    cost_usd: float | None


def preview_resolution(
    store: Store,
    manifest: Manifest,
    root: str,
    settings: Settings,
    observer: Observer,
    agree: Callable[[str], object],
    address: str | None = None,
) -> Preview:
    """Resolve the names of a snapshot again with other settings. The snapshot is not changed.

    With `resolution.mode: model`, `agree` first receives the number of requests and their cost; it raises an
    error to refuse. Replies are journalled, so a later `index` with the same settings does not pay again.

    Raises:
        UsageError: The snapshot has no graph, or another run is writing the index.
    """
    if "extract" not in manifest.steps:
        raise UsageError("This index has no graph, so it has no names to resolve.")
    settings = with_stored_settings(with_schema(settings), manifest.settings)
    names = load_names(settings)
    stages = ["resolve"] if settings.asks_about_names else []
    with (
        open_executor(
            None, root, settings, observer, address, None if address else False, _no_check, stages
        ) as executor,
        locks.acquire(store, note="resolve") as lock,
    ):
        prompts = load_prompts(settings.prompts_dir, settings.prompts)
        run = Run(executor, settings, prompts, manifest, observer, lock=lock)
        corpus, extraction, claims = (
            Result.from_json(manifest.steps.get(step, {})) for step in ("read", "extract", "claims")
        )
        asked = partial(_confirm, run, agree)
        _, _, result = resolve_names(run, corpus, extraction, claims, names, asked)
        documents = read_table(store, corpus.parts("documents"), ["id", "path", "row"], schema.DOCUMENTS)
        places = {row["id"]: document_location(row["path"], row["row"]) for row in documents.to_pylist()}
        before = _rows(store, manifest.parts("resolutions"), places)
        after = _rows(store, result.parts("resolutions"), places)
        verdicts = read_table(store, result.parts("verdicts"), ["verdict"], VERDICTS)["verdict"].to_pylist()
        return Preview(
            manifest.number,
            [Proposal(*key, *rest, is_new=key not in before) for key, rest in sorted(after.items())],
            [Proposal(*key, *rest, is_new=False) for key, rest in sorted(before.items()) if key not in after],
            {verdict: verdicts.count(verdict) for verdict in adjudication.VERDICTS},
            sum(part.rows for part in result.parts("failures")),
            run.accounts.total.cost_usd if stages else 0.0,
        )


def _no_check(store: Store) -> None:
    """Accept any state of the index."""


def _rows(
    store: Store, parts: Sequence[Part], places: Mapping[str, str]
) -> dict[tuple[str, str, str], tuple[str, str, int]]:
    rows = read_table(store, parts, None, schema.RESOLUTIONS).to_pylist()
    return {
        (row["title"], row["name"], places.get(row["document_id"] or "", "")): (
            row["rule"],
            row["evidence"],
            row["n_instances"],
        )
        for row in rows
    }


def _confirm(run: Run, agree: Callable[[str], object], items: Sequence[Part]) -> None:
    """Describe the cost of requests before they are sent."""
    n_items, name = sum(part.rows for part in items), run.settings.model_name("resolve")
    model = run.settings.model(name)
    if not n_items or model.is_local:
        return
    spec = adjudication.resolve_spec(run.prompts, run.settings, run.settings.resolution.max_candidates)
    sample = read_table(run.store, items).slice(0, _SAMPLE).to_pylist()
    tokens = sum(_request_tokens(row, spec, model) for row in sample) * n_items // len(sample)
    usage = Usage(tokens, n_items * adjudication.EXPECTED_REPLY_TOKENS, 0)
    price = cost_pico_usd(usage, highest_price(model))
    cost = f"${price / 1e12:,.2f}" if price is not None else f"cost unknown: {price_hint(name)}"
    agree(
        f"{plural(n_items, 'request')} to {model.model_id} with about {tokens:,} tokens ({cost}), less those "
        "that the journal answers."
    )


def _request_tokens(row: Mapping[str, Any], spec: adjudication.ResolveSpec, model: Any) -> int:
    state = DialogueRunner(resolve_dialogue(row, spec)).state
    if not isinstance(state, Waiting):
        return 0
    messages = (m for request in state.requests if isinstance(request, ChatRequest) for m in request.messages)
    return sum(count_text_tokens(message.content, model) for message in messages)


def as_json(preview: Preview) -> str:
    return json.dumps(asdict(preview), ensure_ascii=False, indent=2) + "\n"


def as_csv(preview: Preview) -> str:
    """Return the proposals as CSV, one row per name."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*Proposal.__dataclass_fields__], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: spreadsheet_cell(v) for k, v in asdict(p).items()} for p in preview.proposals)
    return text.getvalue()


def as_aliases(preview: Preview) -> str:
    """Return the proposals as an aliases file (`graph/aliases.py`), to be edited."""
    entries: dict[str, list[Any]] = {}
    for p in preview.proposals:
        place, _, row = p.document.partition(", row ")
        where = {"document": place, **({"row": row} if row else {})} if p.document else {}
        entries.setdefault(p.title, []).append({"name": p.name, **where} if where else p.name)
    header = (
        "# Names that stand for the same thing. Delete a name to leave the decision to the rules, or write\n"
        "# {not: NAME} to keep it apart. Set names.aliases_file to this file.\n"
    )
    return header + yaml.safe_dump(entries, allow_unicode=True, sort_keys=False, width=100)
