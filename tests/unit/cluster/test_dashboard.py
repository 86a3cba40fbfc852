"""The Grafana dashboard and the metrics that the code declares know each other."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphrag_ray.distributed.metrics import DECLARED, PREFIX, Declared

DASHBOARD = json.loads((Path(__file__).parents[3] / "cluster/grafana/graphrag-ray.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
SERVICE = "graphrag_ray_service_"


def expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def series(declared: Declared) -> str:
    suffix = {"counter": "_total", "histogram": "_bucket", "gauge": ""}[declared.kind]
    return f"ray_{PREFIX}{declared.name}{suffix}"


def asked(expression: str) -> set[str]:
    return set(re.findall(rf"\bray_{PREFIX}\w+", expression))


def test_every_series_that_a_panel_asks_for_is_declared_and_every_declared_one_is_shown():
    shown = set().union(*(asked(e) for e in expressions()))
    assert shown == {series(d) for d in DECLARED}


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_a_panel_groups_and_names_by_labels_that_its_metrics_have(panel: dict[str, Any]):
    labels = {series(d): {"run", "le", *d.labels} for d in DECLARED}
    for target in panel["targets"]:
        expression, legend = target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        grouped = {n.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for n in by.split(",")}
        matched = set(re.findall(r'(\w+)=~?"', expression))
        for name in asked(expression):
            assert grouped | matched | legend <= labels[name], (name, expression)
        assert legend <= grouped or SERVICE in expression, "Prometheus keeps what an expression groups by"


def test_of_the_service_only_metrics_that_it_has_are_asked_for():
    if importlib.util.find_spec("graphrag_ray.service") is None:
        pytest.skip("this version has no service")
    source = (
        Path(str(importlib.util.find_spec("graphrag_ray.service").origin)).parent / "measures.py"
    ).read_text()
    for expression in expressions():
        for name in re.findall(rf"{SERVICE}(\w+)", expression):
            assert (
                f'"{re.sub("_(total|bucket)$", "", name)}"' in source or f"{SERVICE}{name[:-7]}" in source
            ), name


def test_the_dashboard_is_one_that_grafana_imports():
    assert DASHBOARD["id"] is None and DASHBOARD["uid"] == "graphrag-ray" and DASHBOARD["schemaVersion"] >= 36
    everything = DASHBOARD["panels"]
    assert len({p["id"] for p in everything}) == len(everything)
    names = [v["name"] for v in DASHBOARD["templating"]["list"]]
    assert (
        names == ["datasource", "run", "stage"] and DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    )
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"]
        refs = [t["refId"] for t in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(t["expr"].count("(") == t["expr"].count(")") for t in panel["targets"])


def test_no_two_panels_lie_over_each_other():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
