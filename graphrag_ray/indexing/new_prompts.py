"""What other prompts cost an index, told before anything is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from graphrag_ray.base.declarations import concerned
from graphrag_ray.base.errors import PromptError
from graphrag_ray.base.index_settings import OFFLINE_MODEL_ID, Settings
from graphrag_ray.base.messages import Usage
from graphrag_ray.base.prompts import kept_prompts, parse_prompt
from graphrag_ray.base.wording import plural, price_setting
from graphrag_ray.indexing.contents import prompts_before, prompts_for
from graphrag_ray.llm.accounting import CallTotals
from graphrag_ray.llm.pricing import cost_pico_usd, dearest_price
from graphrag_ray.store import compaction
from graphrag_ray.store.files import Store


def cost_of_prompts(
    store: Store,
    settings: Settings,
    stages: Iterable[str],
    before: Mapping[str, Any] | None,
    new_prompts: bool,
) -> str | None:
    """What the prompts of these settings cost an index that was made with others, by what its stages took so
    far, at today's prices; None where they are the same, or nothing was paid for.

    stages: those that a run asks; before, new_prompts: as for `contents.prompts_for`
    Raises PromptError, SettingsError, StoreError.
    """
    ours = kept_prompts(prompts_for(settings, before, new_prompts))
    changed = _changed(ours, before, new_prompts) if before is not None else []
    again = {stage for name in changed for stage in concerned(name)}
    found = {stage: _taken(store, settings, stage) for stage in stages if stage in again}
    taken = {stage: totals for stage, totals in found.items() if totals.calls}
    if not taken:
        return None
    in_all = CallTotals()
    for totals in taken.values():
        in_all.absorb(totals)
    told = [_told(*row) for row in (*taken.items(), ("in all", in_all))]
    unknown = next((stage for stage, totals in taken.items() if totals.cost_usd is None), None)
    price = f" {price_setting(settings.model_name(unknown))} tells the cost." if unknown else ""
    return (
        f"Prompts other than those that the index was made with: {', '.join(changed)}. What they change is "
        f"asked anew. It takes at most about what its stages took so far: {'; '.join(told)}.{price}"
    )


def _changed(ours: Mapping[str, str], before: Mapping[str, Any], new_prompts: bool) -> list[str]:
    """Names of the prompts that are not those of the index."""
    if before.get("prompts_dir") and not before.get("prompts"):
        # Of an earlier version, which kept the path of its owner's prompts, not their texts.
        return list(ours) if new_prompts else []
    theirs = prompts_before(before)
    return [name for name, text in ours.items() if text != _as_kept(name, theirs.get(name, ""))]


def _as_kept(name: str, text: str) -> str:
    with suppress(PromptError):  # one that cannot be used any more is another one
        return parse_prompt(name, text).source
    return ""


def _taken(store: Store, settings: Settings, stage: str) -> CallTotals:
    """What all replies in the journal of a stage took, by whatever model, at the price of today's."""
    taken, model = CallTotals(), settings.model(settings.model_name(stage))
    if model.is_local:
        return taken
    for name, of in compaction.totals(store, stage).by_model.items():
        if name != OFFLINE_MODEL_ID:
            cost = cost_pico_usd(
                Usage(of.prompt_tokens, of.completion_tokens, of.cached_tokens), dearest_price(model)
            )
            taken.absorb(
                CallTotals(
                    calls=of.calls,
                    prompt_tokens=of.prompt_tokens,
                    completion_tokens=of.completion_tokens,
                    cost_pico_usd=cost,
                )
            )
    return taken


def _told(what: str, taken: CallTotals) -> str:
    cost = "cost unknown" if taken.cost_usd is None else f"${taken.cost_usd:,.2f}"
    return f"{what} {plural(taken.calls, 'reply', 'replies')}, {taken.total_tokens:,} tokens, {cost}"
