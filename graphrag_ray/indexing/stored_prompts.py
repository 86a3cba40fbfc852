"""Resolve prompts and name lists, which an index stores by content, and estimate the cost of new prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from graphrag_ray.base.declarations import affected_dialogues
from graphrag_ray.base.errors import PromptError, SettingsError
from graphrag_ray.base.index_settings import (
    OFFLINE_MODEL_ID,
    REQUEST_RULES,
    Settings,
    stored_request_rules,
    without_machine_settings,
)
from graphrag_ray.base.messages import Usage
from graphrag_ray.base.prompts import Prompt, load_prompts, parse_prompt, stored_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.text_files import read_text
from graphrag_ray.base.urls import display_path
from graphrag_ray.base.wording import plural, price_hint
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph.aliases import EntityNames, parse_names
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
        try:
            texts[key] = read_text(path) if path is not None else text or ""
        except (OSError, UnicodeDecodeError) as e:
            raise SettingsError(f"Cannot read {display_path(str(path))}: {e}") from e
    return settings.model_copy(update={"names": names.model_copy(update=texts)})


def with_file_contents(
    settings: Settings, before: Mapping[str, Any] | None, observer: Observer, new_prompts: bool = False
) -> Settings:
    """Return settings that contain the prompts and names in files. See `prompts_for` for the arguments."""
    prompts = stored_prompts(prompts_for(settings, before, new_prompts))
    package = stored_prompts(load_prompts(settings.prompts_dir))
    if different := [name for name, text in prompts.items() if text != package[name]]:
        observer.message(
            f"Using the index's own prompts. These differ from the package's: {', '.join(different)}. Pass "
            "--new-prompts to use the package's prompts. Their cost is shown before any model is called."
        )
    settings = with_current_rules(settings) if new_prompts else settings
    return with_name_lists(settings).model_copy(update={"prompts": prompts})


def with_current_rules(settings: Settings) -> Settings:
    """Return settings with the current rules for filling prompts, which come with new prompts."""
    return settings.model_copy(update={"request_rules": REQUEST_RULES})


def prompts_for(
    settings: Settings, before: Mapping[str, Any] | None, new_prompts: bool = False
) -> dict[str, Prompt]:
    """Return all prompts. An index keeps its own unless the settings name a folder with other prompts.

    `before` are the settings stored in the index, if any. With `new_prompts`, the package's prompts replace
    the index's, but not prompts in `settings` that differ from these. Raises PromptError and SettingsError.
    """
    index_prompts = prompts_of(before)
    if new_prompts:
        prompts = {name: text for name, text in settings.prompts.items() if text != index_prompts.get(name)}
    else:
        prompts = index_prompts | settings.prompts
    return load_prompts(settings.prompts_dir, prompts)


def prompts_of(before: Mapping[str, Any] | None) -> dict[Any, str]:
    """Return the prompts stored in the settings of an index, ignoring the prompts folder of its owner."""
    if before is None:
        return {}
    return dict(parse_settings({"prompts": without_machine_settings(before).get("prompts", {})}).prompts)


def describe_prompt_cost(
    store: Store,
    settings: Settings,
    stages: Iterable[str],
    before: Mapping[str, Any] | None,
    new_prompts: bool,
) -> str | None:
    """Describe the cost of prompts that differ from the index's, or are filled by other rules.

    The estimate is the usage of the affected stages so far, at today's prices. Returns None if no prompt
    differs or nothing was paid for. `stages` are all stages that call models; see `prompts_for` for the rest.
    """
    prompts = stored_prompts(prompts_for(settings, before, new_prompts))
    if before is None:
        return None
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
    affected = {stage for name in changed for stage in affected_dialogues(name)}
    used: dict[str, CallTotals] = {}
    for stage in stages:
        model = settings.model(settings.model_name(stage))
        if stage not in affected or model.is_local:
            continue
        total, price = CallTotals(), highest_price(model)
        for name, calls in compaction.totals(store, stage).by_model.items():
            if name != OFFLINE_MODEL_ID:
                usage = Usage(calls.prompt_tokens, calls.completion_tokens, calls.cached_tokens)
                total.merge(
                    CallTotals(
                        calls=calls.calls,
                        prompt_tokens=calls.prompt_tokens,
                        completion_tokens=calls.completion_tokens,
                        cost_pico_usd=cost_pico_usd(usage, price),
                    )
                )
        if total.calls:
            used[stage] = total
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
    return (
        f"These prompts differ from the prompts of the index: {', '.join(changed)}. Requests that they "
        "change are sent again, which costs at most about as much as these stages so far: "
        f"{'; '.join(parts)}.{hint}"
    )
