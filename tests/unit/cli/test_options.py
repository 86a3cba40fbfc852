"""Options that set a model setting."""

from graphrag_ray.cli.options import overrides_of


def test_short_options_can_select_a_model_without_a_key():
    short = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "null"}
    assert overrides_of(None, (), short) == [
        "models.default.provider=openai",
        'models.default.model="m"',
        'models.default.endpoints.0.base_url="http://127.0.0.1:9/v1"',
        "models.default.endpoints.0.api_key_env=null",
    ]
