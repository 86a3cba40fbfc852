"""The Grafana dashboard matches the metrics that the code declares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from graphrag_ray.base.instruments import PREFIX, Instrument
from graphrag_ray.engine.ray.metrics import DECLARED as OF_RUNS
from graphrag_ray.service.service_metrics import SERVICE_METRICS

DASHBOARD = json.loads((Path(__file__).parents[3] / "cluster/grafana/graphrag-ray.json").read_text("utf-8"))
GUIDE = (Path(__file__).parents[3] / "docs/guides/operations.md").read_text("utf-8")
METRIC = re.compile(r"`(\w+)`((?: \(by [^)]*\))?)")
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]


def series(declared: Instrument) -> str:
    suffix = {"counter": "_total", "histogram": "_bucket", "gauge": ""}[declared.kind]
    return f"ray_{PREFIX}{declared.name}{suffix}"


LABELS = {series(d): {"run", "le", *d.labels} for d in OF_RUNS} | {
    series(d): {"application", "replica", "le", *d.labels} for d in SERVICE_METRICS
}
COUNTED = {series(d) for d in (*OF_RUNS, *SERVICE_METRICS) if d.kind != "gauge"}
OF_RUNS_NOW = {series(d) for d in OF_RUNS if d.kind == "gauge"}


def parsed(expression: str) -> Any:
    """Parse an expression like Prometheus, after replacing Grafana's variables."""
    return promql.parse(expression.replace("$__rate_interval", "1m").replace("$__range", "1h"))


def nodes(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield all nodes of an expression, each with its ancestors."""
    yield node, above
    parts = ("expr", "lhs", "rhs", "vector_selector")
    below = [getattr(node, p) for p in parts if hasattr(node, p)] + list(getattr(node, "args", ()))
    for one in below:
        yield from nodes(one, (*above, node))


def selectors(expression: str) -> list[tuple[Any, tuple[Any, ...]]]:
    return [(n, above) for n, above in nodes(parsed(expression)) if isinstance(n, promql.VectorSelector)]


def targets(panel: dict[str, Any]) -> list[tuple[str, set[str]]]:
    """Return the expressions, and the labels in their legends."""
    return [(t["expr"], set(re.findall(r"{{(\w+)}}", t["legendFormat"]))) for t in panel["targets"]]


def of_variables() -> list[tuple[str, str]]:
    """Return the selected series of each variable, and the label that provides its values."""
    queries = [v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    found = [re.fullmatch(r"label_values\((.*), (\w+)\)", query) for query in queries]
    return [(match[1], match[2]) for match in found if match]


def test_panels_use_only_declared_series_and_all_of_them():
    shown = {s.name for panel in PANELS for e, _ in targets(panel) for s, _ in selectors(e)}
    assert shown == set(LABELS)


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_panels_use_only_labels_of_their_metrics(panel: dict[str, Any]):
    for expression, legend in targets(panel):
        for selector, above in selectors(expression):
            has = LABELS[selector.name]
            assert {m.name for m in selector.matchers.matchers} <= has
            groups = [
                set(a.modifier.labels) for a in above if isinstance(a, promql.AggregateExpr) and a.modifier
            ]
            assert all(group <= has for group in groups)
            assert legend <= (groups[0] if groups else set()), (
                "the remaining labels are those of the outer grouping"
            )


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_counters_are_shown_as_rates_and_gauges_as_values(panel: dict[str, Any]):
    for expression, _ in targets(panel):
        for selector, above in selectors(expression):
            functions = {a.func.name for a in above if isinstance(a, promql.Call)}
            rises = functions & {"rate", "last_over_time"} or selector.offset is not None
            whole = panel["title"] == "Stage progress"
            assert whole or bool(rises) == (selector.name in COUNTED), expression


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_limits_are_not_summed_over_stages(panel: dict[str, Any]):
    for expression, _ in targets(panel):
        for selector, above in selectors(expression):
            if selector.name.partition("llm_")[2].startswith(("limit", "max")):
                inner = above[-1]
                assert str(inner.op) == "max" and {"run", "endpoint"} <= set(inner.modifier.labels)


def test_the_operating_guide_names_every_metric_with_its_labels():
    rows = [line.split("|") for line in GUIDE.splitlines() if "`, `stage`" in line or "`replica`" in line]
    told = {name: by + after for _, _, by, names, _ in rows for name, after in METRIC.findall(names)}
    declared = {d.name: d for d in (*OF_RUNS, *SERVICE_METRICS)}
    assert told.keys() == declared.keys()
    assert all(set(re.findall(r"`(\w+)`", by)) >= {*declared[name].labels} for name, by in told.items())


def test_variables_use_existing_labels():
    for selected, label in of_variables():
        ((selector, _),) = selectors(selected)
        (named,) = [m.value for m in selector.matchers.matchers if m.name == "__name__"]
        names = [name for name in LABELS if re.fullmatch(named, name)]
        assert len(names) == 3 and all(label in LABELS[name] for name in names)
    assert [label for _, label in of_variables()] == ["run", "stage"]


def test_grafana_can_import_the_dashboard():
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


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
