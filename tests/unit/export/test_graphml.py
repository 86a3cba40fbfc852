"""igraph can read the exported GraphML, whatever the names."""

from __future__ import annotations

from pathlib import Path

import igraph
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphrag_ray.export.graph_tables import clean_text
from graphrag_ray.export.graphml import FOOTER, edge_lines, header, node_lines

HOSTILE = [
    "\"quotes\" & <tags>", "]]>", "<!--", "&amp;", "=1+1", "a\x00b\x1b[2Jc", "new\nline", "x" * 100_000,
    "東京 🏯", "  ",
]  # fmt: skip


def written(names: list[str], descriptions: list[str], levels: list[list[int | None]]) -> str:
    n = len(names)
    numbers = pa.array(range(1, n + 1), pa.int64())
    nodes = pa.table(
        {
            "id": numbers, "label": pa.array(names, pa.string()), "type": pa.array(names, pa.string()),
            "description": pa.array(descriptions, pa.string()), "degree": numbers, "frequency": numbers,
        },
    )  # fmt: skip
    for level, community in enumerate(levels):
        nodes = nodes.append_column(f"C{level}", pa.array(community, pa.int32()))
    ring = pa.array([i % n + 1 for i in range(1, n + 1)], pa.int64())
    edges = pa.table(
        {
            "id": numbers, "source": numbers, "target": ring,
            "source_label": nodes["label"], "target_label": nodes["label"],
            "weight": pa.array(np.arange(n) + 0.5), "description": nodes["description"],
        }
    )  # fmt: skip
    return header(nodes[:0], edges[:0]) + node_lines(nodes) + edge_lines(edges) + FOOTER


def read(text: str, folder: Path) -> igraph.Graph:
    path = folder / "graph.graphml"
    path.write_text(text, encoding="utf-8", newline="\n")
    return igraph.Graph.Read_GraphML(str(path))


def cleaned(text: str) -> str:
    return clean_text(pa.chunked_array([pa.array([text])]))[0].as_py()


def test_hostile_names_survive_except_for_control_characters(tmp_path: Path):
    graph = read(written(HOSTILE, HOSTILE[::-1], [[1] * len(HOSTILE)]), tmp_path)
    assert graph.vs["title"] == graph.vs["label"] == [cleaned(name) for name in HOSTILE]
    assert graph.vs["description"] == graph.es["description"] == [cleaned(name) for name in HOSTILE[::-1]]
    assert graph.es["weight"] == [i + 0.5 for i in range(len(HOSTILE))]
    assert graph.vs["id"] == [f"n{i + 1}" for i in range(len(HOSTILE))]
    assert not graph.is_directed() and graph.ecount() == graph.vcount()


def test_each_level_is_an_attribute_and_missing_without_a_community(tmp_path: Path):
    text = written(["A", "B"], ["", ""], [[1, None], [1, 2]])
    graph = read(text, tmp_path)
    assert graph.vs["C1"] == [1, 2] and graph.vs["C0"][0] == 1
    assert text.count('<data key="C0">') == 1 and text.count('<data key="C1">') == 2
    assert '<data key="description">' not in text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_any_names_survive(names: list[str], tmp_path: Path):
    graph = read(written(names, names, []), tmp_path)
    titles = graph.vs["title"] if "title" in graph.vs.attributes() else [""] * len(names)
    assert titles == [cleaned(name) for name in names]


@pytest.mark.parametrize("n_levels", [0, 3])
def test_a_graph_without_nodes_is_a_valid_document(n_levels: int, tmp_path: Path):
    assert read(written([], [], [[]] * n_levels), tmp_path).vcount() == 0
