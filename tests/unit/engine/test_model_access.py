"""Opening the gateway to the models."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from graphrag_ray.base import logs
from graphrag_ray.base.logs import LogConfig
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models, open_gateway


def test_an_api_key_from_a_file_is_never_logged(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("wrong-battery-staple\n")
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "api_key_file": str(path)}
    model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}

    async def open_once() -> None:
        models = Models.from_settings(parse_settings({"models": {"default": model}}))
        async with open_gateway(models, None, lambda call: None):
            pass

    asyncio.run(open_once())
    record = logging.LogRecord("graphrag_ray", logging.INFO, "", 0, "with wrong-battery-staple", (), None)
    assert "staple" not in logs._LineFormatter(LogConfig(), []).format(record)
