"""Settings are validated strictly, explained in errors, overridable and free of secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import graphrag_ray
from graphrag_ray.base import stored_settings
from graphrag_ray.base.connection_settings import OFFLINE_MODEL_ID, Model
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import REQUEST_RULES, Settings
from graphrag_ray.base.settings_file import load_settings, parse_settings
from graphrag_ray.base.settings_parsing import setting_keys
from graphrag_ray.base.stored_settings import (
    snapshot_settings,
    stored_section,
    with_stored_settings,
    without_machine_settings,
    without_outdated_prompts,
)

ONLINE = {"models": {"default": {"provider": "openai", "model": "m"}}}


def test_the_offline_engine_is_the_default():
    settings = load_settings()
    assert settings.model("default").provider == "offline"
    assert settings.call_parameters("extract").model_id == OFFLINE_MODEL_ID


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("chunkin.size", "chunking"),
        ("chunking.sise", "chunking.size"),
        ("models.default.provder", "models.default.provider"),
        ("models.default.endpoints.0.base_ulr", "models.default.endpoints.0.base_url"),
        ("communities.max_sise", "communities.max_size"),
    ],
)
def test_an_unknown_key_gets_the_closest_known_key_as_suggestion(key, near):
    with pytest.raises(SettingsError, match="unknown setting") as caught:
        load_settings(None, [f"{key}=1"])
    assert repr(near) in str(caught.value)


@pytest.mark.parametrize(
    ("place", "secret"),
    [
        ("api_key_env", "sk-proj-a-key-and-no-name"),
        ("headers.Authorization", "Bearer sk-in-a-header"),
        ("headers.api-key", "sk-in-a-header"),
        ("base_url", "http://me:sk-in-the-address@127.0.0.1/v1"),
    ],
)
def test_a_secret_in_the_settings_is_refused_and_not_repeated(place, secret):
    online = ["models.default.provider=openai", "models.default.model=m"]
    with pytest.raises(SettingsError, match=place.split(".")[0]) as caught:
        load_settings(None, [*online, f"models.default.endpoints.0.{place}={secret}"])
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["host:8000/v1", "localhost", "ftp://host/v1", "http://", "http:/host/v1", "http://host:port/v1"]
)
def test_an_invalid_base_url_is_reported_with_the_expected_form(url: str):
    online = ["models.default.provider=openai", "models.default.model=m"]
    told = r"endpoints\.0\.base_url: .* is not an address. Use http://host:port/v1"
    with pytest.raises(SettingsError, match=told) as caught:
        load_settings(None, [*online, f"models.default.endpoints.0.base_url={url}"])
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize("url", ["me:sk-secret@host/v1", "http://me:sk-se/cret@host/v1"])
def test_an_invalid_base_url_with_a_password_is_not_repeated(url: str):
    online = ["models.default.provider=openai", "models.default.model=m"]
    with pytest.raises(SettingsError, match="is not an address") as caught:
        load_settings(None, [*online, f"models.default.endpoints.0.base_url={url}"])
    assert "sk-" not in str(caught.value) and "cret" not in str(caught.value)


@pytest.mark.parametrize("place", ["prompts_dir", "names.aliases_file", "names.blocklist_file"])
def test_a_url_with_a_password_is_refused_if_snapshots_would_store_it(place: str):
    with pytest.raises(SettingsError, match=f"{place}.*contains a password") as caught:
        load_settings(None, [f"{place}=https://me:hunter2@host/names.yaml"])
    assert "hunter2" not in str(caught.value)
    load_settings(None, [f"{place}=abfs://container@account.dfs.core.windows.net/names.yaml"])


def test_an_override_can_change_lists_and_mappings():
    settings = load_settings(
        None,
        [
            "models.default.provider=openai",
            "models.default.model=m",
            "models.default.endpoints.0.base_url=http://127.0.0.1:1/v1",
            "models.default.endpoints.0.requests_per_minute=60",
            "models.default.endpoints.1.base_url=http://127.0.0.1:2/v1",
            "chunking.size=document",
            "extraction.entity_types=[ship, captain]",
        ],
    )
    first, second = settings.model("default").endpoints
    assert (first.requests_per_minute, second.base_url) == (60, "http://127.0.0.1:2/v1")
    assert settings.chunking.size == "document"
    assert settings.extraction.entity_types == ("ship", "captain")


def test_a_list_can_be_comma_separated():
    assert load_settings(None, ["query.hybrid_record_kinds=entity, text_unit"]).query.hybrid_record_kinds == (
        "entity",
        "text_unit",
    )


def test_a_later_override_wins_over_the_file(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("chunking: {size: 300}\n")
    assert load_settings(tmp_path / "s.yaml").chunking.size == 300
    assert load_settings(tmp_path / "s.yaml", ["chunking.size=200"]).chunking.size == 200


@pytest.mark.parametrize("override", ["chunking", "=3", "models.default.endpoints.7.base_url=x"])
def test_an_empty_override_is_refused(override):
    with pytest.raises(SettingsError, match="--set"):
        load_settings(None, [override])


def test_a_value_that_is_not_yaml_is_taken_literally():
    assert (
        load_settings(None, [r"input.strip_pattern=[^\n]*?\.txt\s"]).input.strip_pattern == r"[^\n]*?\.txt\s"
    )


def limited(**limits):
    return {"models": {"default": {"provider": "openai", "model": "m", "endpoints": [limits]}}}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"chunking": {"size": 100, "overlap": 100}}, "must be smaller than size"),
        ({"chunking": {"size": -1}}, "chunking.size"),
        ({"communities": {"quality": "surprise"}}, "needs library: leidenalg"),
        ({"input": {"strip_pattern": "("}}, "not a regular expression"),
        ({"models": {"other": {}}}, "named `default`"),
        ({"models": {"default": {"provider": "openai"}}}, "`model` is required"),
        ({"stages": {"report": {"model": "cheap"}}}, "not under `models`"),
        (limited(requests_per_minute=0), "requests_per_minute"),
        (limited(requests_per_minute=-5), "requests_per_minute"),
        (limited(tokens_per_minute=0), "tokens_per_minute"),
        (limited(tokens_per_minute=-1), "tokens_per_minute"),
        (limited(max_in_flight=0), "max_in_flight"),
        ({"run": {"initial_in_flight": 0}}, "run.initial_in_flight"),
        ({"budget": {"max_cost_usd": -1}}, "budget.max_cost_usd"),
    ],
)
def test_invalid_values_are_explained(bad, says):
    with pytest.raises(SettingsError) as caught:
        parse_settings(bad)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("written", "prune"), [("on", "on"), ("off", "off"), ('"on"', "on"), ("auto", "auto")]
)
def test_yaml_booleans_on_and_off_stay_words(written: str, prune: str):
    assert load_settings(None, [f"graph.prune={written}"]).graph.prune == prune


def test_a_file_that_is_not_a_yaml_mapping_is_named(tmp_path: Path):
    for text in ("- a\n", "a: [\n", "\x00"):
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(SettingsError, match=r"s\.yaml"):
            load_settings(tmp_path / "s.yaml")
    with pytest.raises(SettingsError, match=r"nowhere\.yaml"):
        load_settings(tmp_path / "nowhere.yaml")


def test_a_missing_file_and_the_position_of_a_syntax_error_are_reported(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"^Settings file .*nope\.yaml does not exist$"):
        load_settings(tmp_path / "nope.yaml")
    (tmp_path / "s.yaml").write_text("chunking:\n  size: [600\nquery: {}\n")
    with pytest.raises(SettingsError, match=r"s\.yaml is not valid YAML \(line 3, column 6\): ") as caught:
        load_settings(tmp_path / "s.yaml")
    assert "unicode string" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("chunking.size=0", "chunking.size: a whole number above 0, or `document`"),
        ("chunking.size=all", "chunking.size: a whole number above 0, or `document`"),
        (
            "extraction=3",
            "extraction is a section, not a value; set extraction.entity_types, extraction.max_gleanings, "
            "extraction.gleaning, …",
        ),
        ("claims=yes", "claims is a section, not a value; set claims.enabled, claims.description"),
        (
            "query=3",
            "query is a section, not a value; set query.context_tokens, query.response_type, query.seed, …",
        ),
        ("models=gpt", "models is a section, not a value; set keys in it"),
    ],
)
def test_pydantic_errors_are_explained_in_terms_of_settings(override: str, says: str):
    with pytest.raises(SettingsError) as caught:
        load_settings(None, [override])
    assert str(caught.value) == f"Invalid settings: {says}"


def test_an_override_does_not_modify_the_base():
    base = parse_settings(ONLINE).model_dump(mode="json")
    load_settings(None, ["chunking.size=70", "chunking.overlap=7"], base)
    assert base["chunking"]["size"] == 600


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("prompts_dir: prompts\nnames: {aliases_file: a.yaml}\n")
    settings = load_settings(tmp_path / "s.yaml")
    assert settings.prompts_dir == str(tmp_path / "prompts")
    assert settings.names.aliases_file == str(tmp_path / "a.yaml")


def test_a_stage_can_have_its_own_model():
    settings = parse_settings(
        {
            "models": {
                **ONLINE["models"],
                "cheap": {"provider": "openai", "model": "s", "max_output_tokens": 100},
            },
            "stages": {"describe": {"model": "cheap", "temperature": None}},
        }
    )
    call = settings.call_parameters("describe", 500)
    assert (call.model, call.model_id, call.temperature, call.max_output_tokens) == ("cheap", "s", None, 100)
    assert settings.call_parameters("report").model == "default"


def test_embeddings_are_offline_by_default():
    assert parse_settings(ONLINE).call_parameters("embed").model_id == OFFLINE_MODEL_ID
    named = {"models": {**ONLINE["models"], "embedding": {"provider": "openai", "model": "e"}}}
    assert parse_settings(named).call_parameters("embed").model_id == "e"


def test_settings_survive_a_round_trip_through_a_manifest():
    settings = parse_settings({**ONLINE, "chunking": {"size": "document"}})
    assert parse_settings(settings.model_dump(mode="json")) == settings


def test_settings_template_contains_the_defaults():
    text = (Path(graphrag_ray.__file__).parent / "base" / "settings.yaml").read_text("utf-8")
    written = yaml.safe_load(text)
    assert parse_settings(written) == Settings()


def keys_of(value: object, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Yield the paths of all keys. The items of a list have the path of the list."""
    if isinstance(value, list):
        return {key for item in value for key in keys_of(item, at)}
    if not isinstance(value, dict):
        return set()
    return {(*at, k) for k in value} | {key for k, v in value.items() for key in keys_of(v, (*at, k))}


def test_settings_template_lists_every_setting_with_its_default():
    text = (Path(graphrag_ray.__file__).parent / "base" / "settings.yaml").read_text("utf-8")
    written = yaml.safe_load(re.sub(r"^( *)# ( *(?:- )?[a-z_]+:(?: |$))", r"\1\2", text, flags=re.MULTILINE))
    settings, defaults = parse_settings(written), Settings()
    named = {("models", "default"), ("stages", "extract")}
    known = {
        tuple("*" if key[: i + 1] in named else k for i, k in enumerate(key)) for key in keys_of(written)
    }
    # `input.storage` has the keys of `storage`.
    keys = {
        key[1:] if key[:2] == ("input", "storage") and len(key) > 2 else key for key in setting_keys(Settings)
    }
    # Only snapshots contain these.
    assert keys - {("models", "*", "needs_address"), ("models", "*", "package")} <= known
    for name in set(Settings.model_fields) - {"models", "stages", "prompts_dir"}:
        assert getattr(settings, name) == getattr(defaults, name), name
    model, usual = settings.model("default"), Model(provider="openai", model="m")
    examples = {"provider", "model", "endpoints", "price"}
    assert model.model_dump(exclude=examples) == usual.model_dump(exclude=examples)


def test_a_model_without_a_provider_is_not_silently_offline():
    with pytest.raises(SettingsError, match="provider: openai"):
        parse_settings({"models": {"default": {"model": "gpt-4o-mini"}}})


def test_a_misspelt_embedding_model_is_not_silently_offline():
    with pytest.raises(SettingsError, match=r"embeddings.model is 'embeding', which is not under `models`"):
        parse_settings({"embeddings": {"model": "embeding"}})


@pytest.mark.parametrize(
    ("name", "room"), [("gpt-5-mini", 8192), ("openai/o4-mini", 8192), ("gpt-4o-mini", 0), ("qwen3:8b", 8192)]
)
def test_a_known_reasoning_model_has_extra_tokens_for_reasoning(name, room):
    model = {"provider": "openai", "model": name}
    call = parse_settings({"models": {"default": model}}).call_parameters("report", 2000)
    assert (call.max_output_tokens, call.reasoning_tokens, call.reasoning_effort) == (2000, room, None)
    stages = {"report": {"reasoning_effort": "low", "reasoning_tokens": 50}}
    own = parse_settings({"models": {"default": model}, "stages": stages}).call_parameters("report")
    assert (own.reasoning_tokens, own.reasoning_effort) == (50, "low")


@pytest.mark.parametrize(
    ("given", "before", "about"),
    [
        (None, None, None),
        (None, {}, None),
        (None, {"corpus": {"description": "Mills."}}, "Mills."),
        (None, {"corpus": {"description": "A\x00 mill.\n\n# Goal"}}, "A mill. # Goal"),
        (None, {"corpus": ["Mills."]}, None),
        (None, {"corpus": {"description": 5}}, None),
        ("Ships.", {"corpus": {"about": "Mills."}}, "Ships."),
        ("", {"corpus": {"about": "Mills."}}, ""),
    ],
)
def test_an_index_keeps_its_corpus_description(given, before, about):
    settings = parse_settings({"corpus": {"description": given}})
    assert with_stored_settings(settings, before).corpus.description == about


def test_a_model_does_not_reuse_the_corpus_description_of_the_offline_engine():
    offline = snapshot_settings(parse_settings({"corpus": {"description": "Mills."}}))
    paid = parse_settings(ONLINE)
    assert with_stored_settings(Settings(), offline).corpus.description == "Mills."
    assert with_stored_settings(paid, offline).corpus.description is None
    told = paid.with_description("Mills.")
    assert with_stored_settings(paid, snapshot_settings(told)).corpus.description == "Mills."
    assert with_stored_settings(told, offline).corpus.description == "Mills."


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ({"hierarchies": ["leiden", "attributed"], "attributed": {"n_neighbours": None}}, "level"),
        ({"hierarchies": ["attributed"], "attributed": {"neighbours": None}}, "level"),
        ({"hierarchies": ["leiden"], "attributed": {"n_neighbours": None}}, "graph"),
        ({"hierarchies": ["attributed"], "attributed": {"n_neighbours": 7}}, 7),
        ({"hierarchies": 5, "attributed": [None]}, "graph"),
        ({}, "graph"),
    ],
)
def test_an_index_keeps_the_number_of_neighbours_that_null_stood_for(stored, kept):
    assert with_stored_settings(Settings(), stored).attributed.n_neighbours == kept
    renewed = without_outdated_prompts(stored)
    assert with_stored_settings(Settings(), renewed).attributed.n_neighbours == (7 if kept == 7 else "graph")


def test_sections_of_a_snapshot_are_completed_with_defaults():
    default = Settings().attributed.model_dump(mode="json")
    assert stored_section({}, "attributed") == stored_section({"attributed": 5}, "attributed") == default
    assert stored_section({"attributed": {"max_size": 9}}, "attributed") == default | {"max_size": 9}
    earlier = {"hierarchies": ["attributed"], "attributed": {"n_neighbours": None}}
    assert stored_section(earlier, "attributed") == default | {"n_neighbours": "level"}
    assert parse_settings(without_machine_settings(earlier)).attributed.n_neighbours == "level"


RENAMED = [(s, old, new) for s, keys in stored_settings._RENAMED.items() for old, new in keys.items() if new]


@pytest.mark.parametrize(("section", "old", "new"), RENAMED)
def test_stored_settings_with_old_names_are_read_under_their_new_ones(section, old, new):
    default = Settings().model_dump(mode="json")[section][new]
    of_version = {"request_rules": 1}
    renamed = {**of_version, section: {new: default}}
    assert without_machine_settings({**of_version, section: {old: default}}) == renamed
    both = {**of_version, section: {old: "ignored", new: default}}
    assert without_machine_settings(both) == renamed
    with pytest.raises(SettingsError, match=f"{section}.{old}"):
        parse_settings({section: {old: default}})


def test_removed_stored_settings_are_ignored():
    stored = {"chunking": {"boundaries": "words", "size": 300}, "descriptions": {"alike": 0.5}}
    assert without_machine_settings(stored) == {"chunking": {"size": 300}, "descriptions": {}}


@pytest.mark.parametrize("section", [None, 5, "a", ["a"], {}])
def test_malformed_sections_of_stored_settings_are_left_for_validation(section):
    assert without_machine_settings({"query": section}) == {"query": section}


def test_prepend_metadata_is_auto_or_column_names():
    assert parse_settings({"chunking": {"prepend_metadata": ""}}).chunking.prepend_metadata == ()
    with pytest.raises(SettingsError, match="cannot be combined"):
        parse_settings({"chunking": {"prepend_metadata": "auto, title"}})


def test_prepended_metadata_excludes_title_and_date():
    chunking = parse_settings(
        {"chunking": {"prepend_metadata": ["author", "title", "metadata.date"]}}
    ).chunking
    assert chunking.prepended_metadata == ("author", "date")
    assert parse_settings({"chunking": {"prepend_metadata": "auto"}}).chunking.prepended_metadata == ()


@pytest.mark.parametrize(
    ("given", "before", "kept"),
    [
        ({}, None, "an analyst who reads a corpus for others"),
        ({}, {"reports": {"role": "a clerk"}}, "a clerk"),
        ({}, {"reports": {"role": ["of", "a", "stranger"]}}, "an analyst who reads a corpus for others"),
        ({"role": "a judge"}, {"reports": {"role": "a clerk"}}, "a judge"),
    ],
)
def test_an_index_keeps_its_settings_until_another_value_is_set(given, before, kept):
    settings = with_stored_settings(parse_settings({"reports": given}), before)
    assert settings.reports.role == kept


def test_an_index_keeps_several_settings_of_a_section():
    before = {"reports": {"role": "a clerk", "model_from": 3}}
    reports = with_stored_settings(parse_settings({"reports": {"max_output_tokens": 900}}), before).reports
    assert (reports.role, reports.model_from, reports.max_output_tokens) == ("a clerk", 3, 900)


@pytest.mark.parametrize(
    ("given", "before", "model_from", "rules"),
    [
        ({}, None, 8, REQUEST_RULES),
        ({}, {}, 8, REQUEST_RULES),
        ({}, {"reports": {"role": "a clerk"}}, 0, 1),
        ({"reports": {"model_from": 4}}, {"reports": {}}, 4, 1),
        ({"request_rules": 2}, {"reports": {}}, 0, 2),
        ({}, {"request_rules": 2, "reports": {"model_from": 5}}, 5, 2),
        ({}, {"request_rules": 10**30}, 8, REQUEST_RULES),
        ({}, {"request_rules": -3}, 0, 1),
        ({}, {"request_rules": ["of", "a", "stranger"]}, 0, 1),
    ],
)
def test_an_index_of_an_earlier_version_keeps_its_requests(given, before, model_from, rules):
    settings = with_stored_settings(parse_settings(given), before)
    assert (settings.reports.model_from, settings.request_rules) == (model_from, rules)


def test_the_offline_engine_keeps_the_first_rules():
    paid = parse_settings(ONLINE)
    assert paid.later_rules("report") == REQUEST_RULES
    assert Settings().later_rules("report") is None
    assert paid.model_copy(update={"request_rules": 1}).later_rules("report") is None


def test_an_index_keeps_the_settings_that_would_repeat_model_calls():
    made = {"chunking": {"prepend_metadata": ["author"]}, "embeddings": {"include_titles": False}}
    settings = with_stored_settings(parse_settings({"chunking": {"size": 300}}), made)
    assert settings.chunking.prepend_metadata == ("author",) and settings.chunking.size == 300
    assert not settings.embeddings.include_titles


@pytest.mark.parametrize(
    ("given", "before", "kept"),
    [
        ({}, None, "once"),
        ({}, {"extraction": {"max_gleanings": 1}}, "keep"),
        ({}, {"extraction": {"repeated_paragraphs": "once"}}, "once"),
        ({"repeated_paragraphs": "once"}, {"extraction": {"max_gleanings": 1}}, "once"),
    ],
)
def test_an_index_made_before_a_setting_existed_keeps_the_earlier_behaviour(given, before, kept):
    settings = with_stored_settings(parse_settings({"extraction": given}), before)
    assert settings.extraction.repeated_paragraphs == kept


EARLIER = {
    "extraction": {"entity_types": ["person", "organization", "location", "event", "work", "concept"]},
    "input": {"document_context": "metadata"},
    "reports": {"role": "a clerk"},
    "query": {
        "drift_breadth": 3,
        "fgrag_context_tokens": 9_000,
        "archrag_k": 5,
        "neighbours": 3,
    },
    "prompts": {"report": "Write {context}."},
}


def test_new_prompts_replace_earlier_defaults_and_keep_the_choices_of_the_owner():
    settings = with_stored_settings(Settings(), without_outdated_prompts(EARLIER))
    assert settings == Settings(reports={"role": "a clerk"})
    chosen = {"entity_types": ["drug"], "gleaning": "check"}
    mine = with_stored_settings(parse_settings({"extraction": chosen}), without_outdated_prompts(EARLIER))
    assert mine.extraction.model_dump(mode="json").items() >= chosen.items()
    own_types = without_outdated_prompts({"extraction": {"entity_types": ["drug"], "gleaning": "check"}})
    assert own_types["extraction"] == {"entity_types": ["drug"]}


def test_new_prompts_keep_settings_chosen_after_their_defaults_changed():
    chosen = {"extraction": {"gleaning": "check"}, "prompts": EARLIER["prompts"]}
    stored = snapshot_settings(parse_settings(chosen))
    assert without_outdated_prompts(stored) == stored | {"prompts": {}}


MALFORMED = {"extraction": 5, "query": ["a"], "request_rules": "b"}


@pytest.mark.parametrize("before", [None, {}, EARLIER, MALFORMED])
def test_new_prompts_are_adopted_once(before):
    adopted = without_outdated_prompts(before)
    assert without_outdated_prompts(adopted) == adopted and adopted["request_rules"] == REQUEST_RULES


def test_an_index_follows_new_defaults_for_questions():
    assert without_machine_settings(EARLIER)["query"] == {"fgrag_context_tokens": 9_000}
    all_stored = Settings().query.model_dump(mode="json") | {"local_chunks": 15, "trex_k": 7}
    assert without_machine_settings({"request_rules": 2, "query": all_stored})["query"] == {"trex_k": 7}
    chosen = snapshot_settings(parse_settings({"query": {"drift_breadth": 3}}))
    assert chosen["query"] == {"drift_breadth": 3} == without_machine_settings(chosen)["query"]
