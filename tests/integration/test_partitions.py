"""The number of partitions and blocks does not affect the content of tables."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest
import toy_model
from endpoint import Endpoint

from graphrag_ray import open_index
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing import run
from graphrag_ray.indexing.index import index
from graphrag_ray.indexing.stages import (
    communities_stage,
    document_parts,
    hierarchy_tables,
    merge_stage,
    reports_stage,
)
from graphrag_ray.store.files import Store

TABLES = (
    "documents",
    "text_units",
    "entities",
    "relationships",
    "covariates",
    "communities",
    "community_reports",
    "resolutions",
)


def write_corpus(folder: Path) -> None:
    folder.mkdir()
    draw = random.Random(7)
    names = [
        a + b for a in ("ALDA", "BRUNO", "CARLO", "DORA") for b in ("MAN", "SON", "WITZ", "FELD", "BERG")
    ]
    lines = []
    for i in range(12):
        first = draw.randrange(15)
        told = [
            f"{draw.choice(names[first : first + 5])} met {draw.choice(names[first : first + 5])}."
            for _ in range(8)
        ]
        (folder / f"{i}.txt").write_text(" ".join(told))
        lines.append(orjson.dumps({"text": " ".join(reversed(told)), "year": 1900 + i}))
    (folder / "titles.txt").write_text(
        "PROFESSOR BERTA VISCONTI met ALDAMAN. BERTA VISCONTI met ALDASON. MARIO VISCONTI met ALDAMAN."
    )
    (folder / "full.txt").write_text("MARIO ENZO VISCONTI met ALDAMAN.")
    (folder / "5rows.jsonl").write_bytes(b"\n".join(lines))


def tables(root: str, corpus: Path, endpoint: Endpoint) -> dict[str, list[dict[str, object]]]:
    model = {
        "provider": "openai",
        "model": "m",
        "endpoints": [{"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 32}],
    }
    chunking = {"size": 30, "overlap": 5, "min_last_chunk_tokens": 5}
    given = {"models": {"default": model}, "claims": {"enabled": True}, "chunking": chunking}
    given["resolution"] = {"mode": "model"}
    settings = parse_settings(given)
    executor = LocalExecutor(Store(root), Models.from_settings(settings))
    index(str(corpus), executor, settings, Observer(), now=lambda: 1.7e9)
    opened = open_index(root)
    return {name: opened.table(name).to_pylist() for name in TABLES}


def test_tables_do_not_depend_on_the_number_of_partitions_and_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in")
    with Endpoint(respond=toy_model.respond) as endpoint:
        whole = tables(str(tmp_path / "one"), tmp_path / "in", endpoint)
        monkeypatch.setattr(merge_stage, "RANGE_ROWS", dict.fromkeys(merge_stage.RANGE_ROWS, 20))
        monkeypatch.setattr(communities_stage, "BLOCK_ROWS", 3)
        monkeypatch.setattr(hierarchy_tables, "PART_COMMUNITIES", 2)
        monkeypatch.setattr(hierarchy_tables, "PART_ELEMENTS", 7)
        monkeypatch.setattr(reports_stage, "PART_ROWS", 2)
        monkeypatch.setattr(document_parts, "split_bytes", lambda total: 1000)
        monkeypatch.setattr(run, "REPLAY_BATCH_ROWS", 2)
        parts = tables(str(tmp_path / "many"), tmp_path / "in", endpoint)
    assert len(Store(str(tmp_path / "many")).list("tables/entities")) > 2
    assert len(Store(str(tmp_path / "many")).list("tables/text_units")) > 8
    assert {"title", "model"} <= {row["rule"] for row in whole["resolutions"]}
    assert len(whole["entities"]) >= 15 and whole["covariates"] and len(whole["communities"]) > 1
    for name in TABLES:
        assert parts[name] == whole[name], name
