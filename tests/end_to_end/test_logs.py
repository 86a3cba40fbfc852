"""The logs of a whole run, of the driver and the Ray session, with malicious documents, model and
environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Response, Status, rate_limited
from world import TOWN, Command, World, index_command

from graphrag_ray.base import logs

KEY = "correct-horse-battery-staple"
MARKER = "UNSPEAKABLE"
LONG = f" It rained on {MARKER}." * 9
"""So that the documents are not taken for binary data."""
HOSTILE = {
    "hostile.txt": f'ALICE met {MARKER}.\r\n\x1b[2J{{"level": 1}}\u2028sk-abcdefghijkl BOB met CAROL.{LONG}',
    f"{MARKER}.html": f"<b>{MARKER} met DAVE.</b> \x9b31m {LONG}",
    "refused.txt": f"REFUSED knows {MARKER}.",
}


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp"))  # The path of a socket must be short.
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.cluster
def test_logs_have_no_keys_or_texts_and_every_line_names_its_run(world: World, ray_folder: Path):
    number = count()

    def echo(body: dict[str, Any]) -> Response:
        """An endpoint that quotes the request in its errors."""
        prompt = body["messages"][-1]["content"]
        n = next(number)
        if n % 9 == 4:
            return rate_limited("0.05")
        if n % 9 == 5:
            return Status(500, f"cannot answer {prompt[-300:]} for {KEY}")
        if "REFUSED" in prompt:
            return Status(400, f"rejected: {prompt[-300:]} for {KEY}", "invalid_prompt")
        return toy_model.respond(body)

    world.endpoint.respond, world.endpoint.key = echo, KEY
    world.write(TOWN | HOSTILE)
    environment = os.environ | {
        "GRAPHRAG_RAY_LOG": "info,json",
        "GRAPHRAG_TEST_LOG_KEY": KEY,
        "RAY_TMPDIR": str(ray_folder),
    }
    environment.pop("RAY_ADDRESS", None)
    option = "models.default.endpoints.0.api_key_env=GRAPHRAG_TEST_LOG_KEY"
    more = ["--set", "embeddings.enabled=false", "--ray"]
    command = [str(a) for a in index_command(world, "--set", option, *more)]
    done = subprocess.run(
        [sys.executable, "-m", "graphrag_ray", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 3, done.stderr
    driver = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    files = [f for f in ray_folder.rglob("*") if f.is_file() and "logs" in f.parts]
    workers = [
        json.loads(line)
        for f in files
        for line in f.read_text("utf-8", "replace").splitlines()
        if line.startswith('{"run"') or '"logger": "graphrag_ray' in line
    ]
    for text in [done.stderr, *(f.read_text("utf-8", "replace") for f in files)]:
        assert KEY not in text and MARKER not in text and "sk-abcdefghijkl" not in text

    (run,) = {record["run"] for record in driver + workers if "run" in record}
    said = Counter(record["message"] for record in driver)
    assert said["run started"] == said["run ended"] == 1 and said["step started"] == said["step ended"] > 5
    (ended,) = [r for r in driver if r["message"] == "run ended"]
    assert ended["run"] == run and ended["epoch"] == 1 and ended["outcome"] == "committed"
    assert ended["failed"] > 0 and ended["exit_code"] == 3
    asked = {r["stage"]: r for r in driver if r["message"] == "stage asked"}
    assert asked["extract"]["items"] == len(TOWN) + len(HOSTILE) and asked["extract"]["retries"] > 0
    assert sum(a["rate_limited"] for a in asked.values()) > 0
    joined = [r for r in workers if r["message"] == "worker joined"]
    assert {r["stage"] for r in joined} >= {"extract", "report"} and all(r["run"] == run for r in joined)
    assert any("asks to wait" in r["message"] for r in workers)


def test_options_override_the_environment_and_apply_to_one_command(
    run: Command, world: World, monkeypatch: pytest.MonkeyPatch
):
    world.write(TOWN)
    monkeypatch.setenv("GRAPHRAG_RAY_LOG", "json,info")
    told = [json.loads(line) for line in run(*index_command(world)).stderr.splitlines()]
    assert {"run started", "step ended", "run ended"} <= {record["message"] for record in told}
    assert not run(*index_command(world, "--log-level", "error")).stderr
    as_text = run(*index_command(world, "--log-format", "text", "-v", "-q")).stderr.splitlines()
    assert any("INFO graphrag_ray.indexing.run_record: run ended" in line for line in as_text)
    monkeypatch.setenv("GRAPHRAG_RAY_LOG", "loud")
    for options in ([], ["-v"]):
        refused = run("status", "--root", world.root, *options)
        assert (
            refused.exit_code == 2
            and "Unknown value 'loud' in GRAPHRAG_RAY_LOG. Choose from: debug, info" in refused.stderr
        )
    logs.reset()
