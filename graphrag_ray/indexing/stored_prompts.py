"""Resolve prompts and name lists, which an index stores by content, and estimate the cost of new prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from graphrag_ray.base.connection_settings import OFFLINE_MODEL_ID
from graphrag_ray.base.declarations import affected_dialogues
from graphrag_ray.base.errors import PromptError, SettingsError
from graphrag_ray.base.index_settings import REQUEST_RULES, Settings
from graphrag_ray.base.messages import Usage
from graphrag_ray.base.prompts import Prompt, load_prompts, parse_prompt, stored_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.stored_settings import (
    sticky_differences,
    stored_request_rules,
    with_stored_settings,
    without_outdated_prompts,
)
from graphrag_ray.base.text_files import read_text
from graphrag_ray.base.urls import display_path
from graphrag_ray.base.wording import plural, price_hint
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph.aliases import EntityNames, parse_names
from graphrag_ray.graph.extraction_schema import parse_schema
from graphrag_ray.llm.accounting import CallTotals
from graphrag_ray.llm.pricing import cost_pico_usd, highest_price
from graphrag_ray.store import compaction
from graphrag_ray.store.files import Store


def load_names(settings: Settings) -> EntityNames:
    """Load the aliases and blocked names of the settings. Raises SettingsError."""
    names = with_name_lists(settings).names
    return parse_names(names.aliases or "", names.blocklist or "")


def with_name_lists(settings: Settings) -> Settings:
    """Return settings that contain the files of names they refer to. Raises SettingsError."""
    names, texts = settings.names, dict[str, str]()
    for key, path, text in (
        ("aliases", names.aliases_file, names.aliases),
        ("blocklist", names.blocklist_file, names.blocklist),
    ):
        texts[key] = _read(path) if path is not None else text or ""
    return settings.model_copy(update={"names": names.model_copy(update=texts)})


def with_schema(settings: Settings) -> Settings:
    """Return settings that contain the schema file they refer to. Raises SettingsError if it is invalid."""
    extraction = settings.extraction
    if extraction.schema_file is not None:
        update = {"schema": _read(extraction.schema_file), "schema_file": None}
        extraction = extraction.model_copy(update=update)
        settings = settings.model_copy(update={"extraction": extraction})
    if extraction.schema is not None:
        parse_schema(extraction.schema)
    return settings


def _read(path: str) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"Cannot read {display_path(path)}: {e}") from e


def with_file_contents(settings: Settings, before: Mapping[str, Any] | None, observer: Observer) -> Settings:
    """Return settings that contain the prompts and names in files. See `prompts_for` for the arguments."""
    prompts = stored_prompts(prompts_for(settings, before))
    package = stored_prompts(load_prompts(settings.prompts_dir))
    if different := [name for name, text in prompts.items() if text != package[name]]:
        observer.message(
            f"Using the index's own prompts. These differ from the package's: {', '.join(different)}. Pass "
            "--new-prompts to use the package's prompts. Their cost is shown before any model is called."
        )
    return with_name_lists(settings).model_copy(update={"prompts": prompts})


def prompts_for(settings: Settings, before: Mapping[str, Any] | None) -> dict[str, Prompt]:
    """Return all prompts. An index keeps its own unless the settings name a folder with other prompts.

    `before` are the settings stored in the index, if any. Raises PromptError and SettingsError.
    """
    return load_prompts(settings.prompts_dir, prompts_of(before) | settings.prompts)


def prompts_of(before: Mapping[str, Any] | None) -> dict[Any, str]:
    """Return the prompts stored in the settings of an index, ignoring the prompts folder of its owner."""
    return dict(parse_settings({"prompts": (before or {}).get("prompts", {})}).prompts)


def changes_schema(settings: Settings, before: Mapping[str, Any] | None) -> bool:
    """Whether settings replace or remove the schema of an index, given its settings."""
    new, old = (with_stored_settings(s, before).extraction.schema for s in (settings, Settings()))
    with suppress(SettingsError):  # A schema from an untrusted source counts as different.
        return (new and parse_schema(new)) != (old and parse_schema(old))
    return True


def describe_prompt_cost(
    store: Store,
    settings: Settings,
    stages: Iterable[str],
    before: Mapping[str, Any] | None,
    new_prompts: bool,
) -> str | None:
    """Describe the cost of prompts or a schema that differ from the index's, and of other rules or settings.

    The estimate is the usage of the affected stages so far, at today's prices. Returns None if nothing
    differs or was paid for. `stages` are all stages that call models; see `prompts_for` for the rest.
    """
    after = without_outdated_prompts(before) if new_prompts else before
    prompts = stored_prompts(prompts_for(settings, after))
    if before is None:
        return None
    new_values = sticky_differences(
        with_stored_settings(settings, after), with_stored_settings(settings, before)
    )
    if changes_schema(settings, before):
        new_values.append("extraction.schema: changed")
    index_prompts, changed = prompts_of(before), []
    outdated = new_prompts and stored_request_rules(before) < REQUEST_RULES
    refilled = ("describe", "report", "summary") if outdated else ()
    for name, text in prompts.items():
        if name not in index_prompts:
            continue  # An earlier version, which had no such prompt, built the index.
        previous = ""
        with suppress(PromptError):  # A prompt that is no longer valid counts as different.
            previous = parse_prompt(name, index_prompts.get(name, "")).source
        if text != previous or name in refilled:
            changed.append(name)
    # `refilled` covers new values of `reports`. Those of `attributed` change its reports, all others change
    # extraction requests.
    names = [*changed]
    for value in new_values:
        names += {"reports": [], "attributed": ["report"]}.get(value.partition(".")[0], ["extract"])
    affected = {stage for name in names for stage in affected_dialogues(name)}
    used: dict[str, CallTotals] = {}
    for stage in stages:
        model = settings.model(settings.model_name(stage))
        if stage not in affected or model.is_local:
            continue
        by_model = compaction.totals(store, stage).by_model
        paid = [calls for name, calls in by_model.items() if name != OFFLINE_MODEL_ID]
        if n_calls := sum(calls.calls for calls in paid):
            prompt, reply, cached = (
                sum(getattr(calls, f"{kind}_tokens") for calls in paid)
                for kind in ("prompt", "completion", "cached")
            )
            used[stage] = CallTotals(
                calls=n_calls,
                prompt_tokens=prompt,
                completion_tokens=reply,
                cost_pico_usd=cost_pico_usd(Usage(prompt, reply, cached), highest_price(model)),
            )
    if not used:
        return None
    in_total = CallTotals()
    for totals in used.values():
        in_total.merge(totals)
    parts = []
    for label, totals in (*used.items(), ("in total", in_total)):
        cost = "cost unknown" if totals.cost_usd is None else f"${totals.cost_usd:,.2f}"
        replies = plural(totals.calls, "reply", "replies")
        parts.append(f"{label} {replies}, {totals.total_tokens:,} tokens, {cost}")
    unknown = next((stage for stage, totals in used.items() if totals.cost_usd is None), None)
    hint = f" Pass {price_hint(settings.model_name(unknown))} to see the cost." if unknown else ""
    texts = f"Prompts that differ from the index's, or are filled by new rules: {', '.join(changed)}. "
    values = f"Settings with new values: {'; '.join(new_values)}. "
    return (
        f"{texts if changed else ''}{values if new_values else ''}Requests that they change are sent again, "
        f"which costs at most about as much as these stages so far: {'; '.join(parts)}.{hint}"
    )
