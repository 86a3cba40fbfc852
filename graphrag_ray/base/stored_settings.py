"""Read the settings that an index stores, and decide which of them it keeps.

An index may come from an earlier version or from an untrusted source.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from graphrag_ray.base.connection_settings import OPENAI_URL, is_machine_setting
from graphrag_ray.base.index_settings import REQUEST_RULES, Corpus, Query, Settings, normalize_description
from graphrag_ray.base.providers import PROVIDERS
from graphrag_ray.base.wording import shorten

STICKY_SETTINGS = (
    ("extraction", "entity_types"),
    ("extraction", "schema"),
    ("extraction", "gleaning"),
    ("extraction", "repeated_paragraphs"),
    ("resolution", "mode"),
    ("input", "document_context"),
    ("chunking", "prepend_metadata"),
    ("descriptions", "concatenate_up_to_tokens"),
    ("embeddings", "include_titles"),
    ("reports", "role"),
    ("reports", "model_from"),
)
"""Settings that an index keeps until another value is set, because a change repeats model calls."""
_MAX_SHOWN = 200
"""Maximum length of a value in a message, in characters. A schema can be long."""
_EARLIER_DEFAULTS: Mapping[tuple[str, str], Any] = {
    ("extraction", "entity_types"): ["person", "organization", "location", "event", "work", "concept"],
    ("extraction", "gleaning"): "check",
    ("extraction", "repeated_paragraphs"): "keep",
    ("input", "document_context"): "metadata",
    ("reports", "model_from"): 0,
}
"""Defaults before `request_rules` 2, or the behaviour before the setting existed. An index that stores such a
value keeps it until `index --new-prompts`."""
_BEFORE_SETTING: Mapping[tuple[str, str], Any] = {("resolution", "mode"): "off"}
"""What an index that lacks a setting was built with, if that is not the default."""
_EARLIER_QUERY: Mapping[str, Any] = {
    "drift_breadth": 3,
    "drift_context_tokens": 1_000,
    "fgrag_context_tokens": 4_000,
    "hybrid_vector_weight": 0.5,
    "lightrag_chunks": 20,
    "lightrag_context_tokens": 30_000,
    "lightrag_entity_tokens": 6_000,
    "lightrag_relationship_tokens": 8_000,
    "local_chunks": 15,
}
"""Defaults of earlier versions, which stored all settings for questions. They count as not set."""
_RENAMED: Mapping[str, Mapping[str, str | None]] = {
    "attributed": {
        "augment": "similarity_links",
        "neighbours": "n_neighbours",
        "scan_members": "scan_min_neighbours",
    },
    "chunking": {
        "boundaries": None,
        "min_new_tokens": "min_last_chunk_tokens",
        "prepend": "prepend_metadata",
    },
    "communities": {"small_component": "pack_components_below"},
    "corpus": {"about": "description"},
    "descriptions": {"alike": None, "joined_tokens": "concatenate_up_to_tokens"},
    "embeddings": {"with_titles": "include_titles"},
    "graph": {"weight": "edge_weight"},
    "names": {"block": "blocklist"},
    "query": {
        "fgrag_tokens": "fgrag_context_tokens",
        "hybrid_over": "hybrid_record_kinds",
        "lightrag_tokens": "lightrag_context_tokens",
        "local_reports_share": "local_report_share",
        "local_walk": "local_pagerank",
        "memory_mb": "cache_mb",
        "neighbours": "adjacent_chunks",
        "passage_tokens": None,
        "ppr_facts": "ppr_candidate_facts",
        "raptor_tokens": "raptor_context_tokens",
        "traversal": "raptor_traversal",
    },
    "reports": {"keep_below": "rewrite_threshold"},
    "tree": {"reduction": "dimensionality_reduction"},
}
"""New names of settings in stored indexes, by section and old name. None: the setting was removed."""


def snapshot_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings to store in a snapshot: all except the machine's and the defaults for questions."""
    query = settings.query.model_dump(mode="json", exclude_unset=True)
    return without_machine_settings({**settings.model_dump(mode="json"), "query": query})


def with_stored_settings(settings: Settings, before: Mapping[str, Any] | None) -> Settings:
    """Return settings with the values that an index keeps until another value is set.

    A corpus description by the offline engine is not kept if another model writes the reports.

    Args:
        before: Settings in the snapshot of the index, or in the record of its last run.
    """
    before, update = _upgraded(before or {}), dict[str, Any]()
    earlier = _EARLIER_DEFAULTS if before and stored_request_rules(before) < 2 else {}
    for name, key in STICKY_SETTINGS:
        section, value = update.get(name, getattr(settings, name)), _stored_value(before, name, key)
        value = earlier.get((name, key)) if value is None else value
        value = _BEFORE_SETTING.get((name, key)) if before and value is None else value
        if value is not None and key not in section.model_fields_set:
            with suppress(ValueError):  # The index may come from an untrusted source.
                data = {**section.model_dump(exclude_unset=True), key: value}
                update[name] = type(section).model_validate(data)
    by_offline = settings.model(settings.model_name("report")).provider == "offline"
    if settings.corpus.description is None and (by_offline or not _has_offline_reports(before)):
        update["corpus"] = Corpus(description=stored_corpus_description(before))
    if before and "request_rules" not in settings.model_fields_set:
        update["request_rules"] = stored_request_rules(before)
    return settings.model_copy(update=update)


def without_outdated_prompts(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Remove from the settings of an index everything that `index --new-prompts` replaces.

    These are its prompts, the rules for filling them, and values that equal an earlier default.
    """
    stored = _upgraded(before or {})
    for (section, key), default in _EARLIER_DEFAULTS.items() if stored_request_rules(stored) < 2 else ():
        if _stored_value(stored, section, key) == default:
            stored[section] = {k: value for k, value in stored[section].items() if k != key}
    for section, key in _BEFORE_SETTING:
        if _stored_value(stored, section, key) is None:
            values = stored.get(section)
            default = getattr(getattr(Settings(), section), key)
            stored[section] = {**(values if isinstance(values, Mapping) else {}), key: default}
    return {**stored, "prompts": {}, "request_rules": REQUEST_RULES}


def sticky_differences(settings: Settings, other: Settings) -> list[str]:
    """Return the sticky settings that differ from those of `other`, as `key: value`."""
    return [
        f"{name}.{key}: {_shown(value)}"
        for name, key in STICKY_SETTINGS
        if (value := getattr(getattr(settings, name), key)) != getattr(getattr(other, name), key)
    ]


def _shown(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return shorten(" ".join(text.split()), _MAX_SHOWN)


def stored_corpus_description(stored: Mapping[str, Any]) -> str | None:
    """Return the corpus description in the settings of a snapshot, which may be malformed."""
    text = _stored_value(_upgraded(stored), "corpus", "description")
    return normalize_description(text) if isinstance(text, str) else None


def stored_request_rules(stored: Mapping[str, Any]) -> int:
    """Return the version of the rules in the settings of a snapshot, which may be malformed."""
    rules = stored.get("request_rules")
    return min(max(rules, 1), REQUEST_RULES) if isinstance(rules, int) else 1


def _has_offline_reports(stored: Mapping[str, Any]) -> bool:
    """Whether the offline engine wrote the reports of an index with these settings."""
    stage = _stored_value(stored, "stages", "report")
    name = stage.get("model") if isinstance(stage, Mapping) else None
    model = _stored_value(stored, "models", name if name and isinstance(name, str) else "default")
    return isinstance(model, Mapping) and model.get("provider") == "offline"


def _stored_value(stored: Mapping[str, Any], section: str, key: str) -> Any:
    values = stored.get(section)
    return values.get(key) if isinstance(values, Mapping) else None


def _upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert stored settings to the current names, without removed settings.

    Earlier versions stored all settings for questions. Defaults among them are removed, so that questions
    follow the current ones.
    """
    current = dict(settings)
    for section, names in _RENAMED.items():
        if isinstance(values := settings.get(section), Mapping):
            renamed = {new: values[old] for old, new in names.items() if new and old in values}
            current[section] = renamed | {key: v for key, v in values.items() if key not in names}
    now, earlier = Query().model_dump(mode="json"), _EARLIER_QUERY
    query = current.get("query")
    if isinstance(query, Mapping) and ("request_rules" not in settings or len(query) > len(now) / 2):
        defaults = {key: (value, earlier.get(key, value)) for key, value in now.items()}
        current["query"] = {key: value for key, value in query.items() if value not in defaults.get(key, ())}
    return current


def without_machine_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the machine's settings from settings data.

    Apply this to all settings read from an index. An earlier version may have stored them, and the index may
    come from an untrusted source.
    """
    result: dict[str, Any] = _without_machine(_upgraded(settings), Settings)
    models = settings.get("models")
    for name, model in models.items() if isinstance(models, Mapping) else ():
        if not isinstance(model, Mapping):
            continue
        if endpoints := model.get("endpoints"):
            listed = endpoints if isinstance(endpoints, list | tuple) else [endpoints]
            urls = [e.get("base_url", OPENAI_URL) if isinstance(e, Mapping) else None for e in listed]
            result["models"][name]["needs_address"] = any(str(url).rstrip("/") != OPENAI_URL for url in urls)
        if isinstance(provider := model.get("provider"), str):
            package = PROVIDERS.package_of(provider) or model.get("package")
            result["models"][name].pop("package", None)
            result["models"][name] |= {"package": package} if package else {}
    return result


def _without_machine(value: Any, type_: Any) -> Any:
    """Drop the machine's fields from data of an annotated type. Malformed data is left for validation."""
    if not isinstance(value, Mapping):
        return value
    if get_origin(type_) is dict:
        return {key: _without_machine(child, get_args(type_)[1]) for key, child in value.items()}
    if not (isinstance(type_, type) and issubclass(type_, BaseModel)):
        return value
    fields = type_.model_fields
    return {
        key: _without_machine(child, fields[key].annotation) if key in fields else child
        for key, child in value.items()
        if key not in fields or not is_machine_setting(fields[key])
    }
