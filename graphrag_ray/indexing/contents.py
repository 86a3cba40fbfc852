"""What the files hold that settings name, prompts and lists of names: an index keeps that, and no path.
And what other prompts cost an index, told before anything is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from graphrag_ray.base.declarations import concerned
from graphrag_ray.base.errors import PromptError, SettingsError
from graphrag_ray.base.index_settings import OFFLINE_MODEL_ID, Settings, of_index
from graphrag_ray.base.messages import Usage
from graphrag_ray.base.prompts import Prompt, kept_prompts, load_prompts, parse_prompt
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.text_files import read_text
from graphrag_ray.base.urls import shown
from graphrag_ray.base.wording import plural, price_setting
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph.aliases import EntityNames, parse_names
from graphrag_ray.llm.accounting import CallTotals
from graphrag_ray.llm.pricing import cost_pico_usd, dearest_price
from graphrag_ray.store import compaction
from graphrag_ray.store.files import Store


def load_names(settings: Settings) -> EntityNames:
    """The aliases and blocked names of the settings. Raises SettingsError."""
    names = with_lists(settings).names
    return parse_names(names.aliases or "", names.block or "")


def with_lists(settings: Settings) -> Settings:
    """Settings that hold the lists of names that their files hold. Raises SettingsError."""
    names, texts = settings.names, dict[str, str]()
    for key, path, text in (
        ("aliases", names.aliases_file, names.aliases),
        ("block", names.block_file, names.block),
    ):
        try:
            texts[key] = read_text(path) if path is not None else text or ""
        except (OSError, UnicodeDecodeError) as e:
            raise SettingsError(f"cannot read {shown(str(path))}: {e}") from e
    return settings.model_copy(update={"names": names.model_copy(update=texts)})


def with_contents(
    settings: Settings, before: Mapping[str, Any] | None, observer: Observer, new_prompts: bool = False
) -> Settings:
    """Settings that hold what their files hold. before, new_prompts: as for `prompts_for`.

    Raises PromptError, SettingsError.
    """
    prompts = kept_prompts(prompts_for(settings, before, new_prompts))
    without = kept_prompts(load_prompts(settings.prompts_dir))
    if others := [name for name, text in prompts.items() if text != without[name]]:
        observer.note(
            f"The index goes on with its own prompts; {', '.join(others)} differ from those of the package "
            "(--new-prompts takes these, and tells first what that costs)."
        )
    return with_lists(settings).model_copy(update={"prompts": prompts})


def prompts_for(
    settings: Settings, before: Mapping[str, Any] | None, new_prompts: bool = False
) -> dict[str, Prompt]:
    """All prompts. An index goes on with those that it was made with, whatever becomes of their files and of
    the package's; a folder that the settings name replaces them.

    before: settings as its snapshot, or the record of its last run, keeps them; None: there was none
    new_prompts: those of the package replace them too, but for texts that the settings hold and the index
        does not
    Raises PromptError, SettingsError.
    """
    own = prompts_before(before)
    if new_prompts:
        kept = {name: text for name, text in settings.prompts.items() if text != own.get(name)}
    else:
        kept = own | settings.prompts
    return load_prompts(settings.prompts_dir, kept)


def prompts_before(before: Mapping[str, Any] | None) -> dict[Any, str]:
    """The texts that an index was made with, but those that lay in a folder of its owner."""
    if before is None:
        return {}
    return dict(parse_settings({"prompts": of_index(before).get("prompts", {})}).prompts)


def cost_of_prompts(
    store: Store,
    settings: Settings,
    stages: Iterable[str],
    before: Mapping[str, Any] | None,
    new_prompts: bool,
) -> str | None:
    """What the prompts of these settings cost an index that was made with others, by what its stages took so
    far, at today's prices; None where they are the same, or nothing was paid for.

    stages: those that a run asks; before, new_prompts: as for `prompts_for`
    Raises PromptError, SettingsError, StoreError.
    """
    ours = kept_prompts(prompts_for(settings, before, new_prompts))
    if before is None:
        return None
    theirs, changed = prompts_before(before), []
    for name, text in ours.items():
        known = ""
        with suppress(PromptError):  # one that cannot be used any more is another one
            known = parse_prompt(name, theirs.get(name, "")).source
        if text != known:
            changed.append(name)
    again = {stage for name in changed for stage in concerned(name)}
    taken: dict[str, CallTotals] = {}
    for stage in stages:
        model = settings.model(settings.model_name(stage))
        if stage not in again or model.is_local:
            continue
        # Of all replies in the journal, by whatever model, at the price of today's.
        found, price = CallTotals(), dearest_price(model)
        for name, of in compaction.totals(store, stage).by_model.items():
            if name != OFFLINE_MODEL_ID:
                usage = Usage(of.prompt_tokens, of.completion_tokens, of.cached_tokens)
                found.absorb(
                    CallTotals(
                        calls=of.calls,
                        prompt_tokens=of.prompt_tokens,
                        completion_tokens=of.completion_tokens,
                        cost_pico_usd=cost_pico_usd(usage, price),
                    )
                )
        if found.calls:
            taken[stage] = found
    if not taken:
        return None
    in_all = CallTotals()
    for totals in taken.values():
        in_all.absorb(totals)
    told = []
    for what, totals in (*taken.items(), ("in all", in_all)):
        cost = "cost unknown" if totals.cost_usd is None else f"${totals.cost_usd:,.2f}"
        replies = plural(totals.calls, "reply", "replies")
        told.append(f"{what} {replies}, {totals.total_tokens:,} tokens, {cost}")
    unknown = next((stage for stage, totals in taken.items() if totals.cost_usd is None), None)
    hint = f" {price_setting(settings.model_name(unknown))} tells the cost." if unknown else ""
    return (
        f"Prompts other than those that the index was made with: {', '.join(changed)}. What they change is "
        f"asked anew. It takes at most about what its stages took so far: {'; '.join(told)}.{hint}"
    )
