"""Every setting is either accepted or reported as a SettingsError."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import load_settings, load_storage, parse_settings, read_settings
from graphrag_ray.base.settings_parsing import setting_keys
from graphrag_ray.base.stored_settings import without_machine_settings

DEEP = "[" * 5_000
ODD = [
    *("2023-13-45", "!!int x", "!!float 1_", "!!timestamp x", "!!binary 'x'", "!!bool 3", "!!set {a}"),
    *("&a [*a]", "&a {b: *a}", "{? [a]: b}", "{? {a: b}: c}", "{<<: x}", "{<<: [1]}", "- a: b", "'", "%"),
    *("!!python/object:os.system x", DEEP, "{" * 3_000, "9" * 6_000, ".nan", "-.inf", "0x", "1:2:3"),
    *("\0", "\ud800", "~", "", "="),
]
KEYS = [".".join(key).replace("*", "default") for key in setting_keys(Settings)]
ONLINE = ["models.default.provider=openai", "models.default.model=m"]

words = st.sampled_from(
    ["models", "default", "endpoints", "0", "1", "²", "٣", "-1", "9" * 5_000, "", "*", "x", "\ud800"]
)
keys = st.one_of(st.sampled_from(KEYS), st.lists(words, max_size=6).map(".".join), st.text(max_size=20))
values = st.one_of(st.sampled_from(ODD), st.text(max_size=20), st.integers().map(str))
overrides = st.one_of(st.tuples(keys, values).map("=".join), st.text(max_size=20))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("input.text_column=2023-13-45", ""),
        ("chunking.size=!!int x", "chunking.size"),
        ("models.default.endpoints.²=1", "endpoints"),
        ("models.default.endpoints.999999999999999999999.x=1", "endpoints"),
        ("1=2", "unknown setting '1'"),
        ("=2", "use the form a.b=value"),
        (f"query.seed={DEEP}", "nested too deeply"),
        (f"query.seed={'9' * 6_000}", "query.seed"),
        ("storage.options=&a {b: *a}", "nested too deeply"),
    ],
)
def test_an_odd_override_is_a_value_or_a_settings_error(override: str, says: str):
    with pytest.raises(SettingsError) if says else nullcontext() as told:
        load_settings(None, [*ONLINE, override])
    assert not told or (says in str(told.value) and len(str(told.value)) < 2_000)


@given(st.lists(overrides, max_size=5))
def test_no_override_raises_an_unexpected_error(given: list[str]):
    for lines in (given, [*ONLINE, *given]):
        with suppress(SettingsError):
            load_settings(None, lines)
        with suppress(SettingsError):
            load_storage(None, lines)


@how(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.sampled_from(ODD), st.tuples(keys, values).map(": ".join), st.binary(max_size=50)))
def test_no_settings_file_raises_an_unexpected_error(tmp_path: Path, own_settings: Path, text: str | bytes):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    for path in (tmp_path / "settings.yaml", own_settings):
        path.write_bytes(data)
        with suppress(SettingsError):
            load_settings(tmp_path / "settings.yaml" if path is not own_settings else None)
        own_settings.unlink(missing_ok=True)


def test_an_invalid_yaml_date_or_number_is_reported_with_the_file(tmp_path: Path):
    for value in ("2023-13-45", "!!int x", DEEP):
        (tmp_path / "s.yaml").write_text(f"chunking: {value}")
        with pytest.raises(SettingsError, match=r"s\.yaml"):
            read_settings(tmp_path / "s.yaml")


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*KEYS, "x"]), inner)
    ),
    max_leaves=10,
)
sections = st.dictionaries(
    st.one_of(st.sampled_from(list(Settings.model_fields)), st.text(max_size=3)), anything
)


@given(sections)
def test_any_settings_in_an_index_are_read_or_refused(stored: dict[str, object]):
    with suppress(SettingsError):
        parse_settings(without_machine_settings(stored))
