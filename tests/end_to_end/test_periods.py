"""Communities and reports carry the period of their documents, in updates as in an index from scratch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import graphrag_ray
from graphrag_ray.base.dates import iso_date
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.prompts import bundled_prompts

PEOPLE = ["Mara Venn", "Ole Brandt", "Ida Corrigan", "Per Rasmoor", "Ann Garrowby", "Bo Samsing"]
DATES = ["2019", "2020-03", "2021-05-17", "", "12/05/2023", "13.05.2022", "1700000000", "May 2018"]


def rows(dates: Mapping[int, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{i}",
            "date": dates.get(i, DATES[i % len(DATES)]),
            "text": f"{PEOPLE[i % 6]} met {PEOPLE[(i + 1 + i // 6) % 6]} in Varnmouth. {PEOPLE[i % 6]} owns "
            f"the Number {i // 4} Mill.",
        }
        for i in range(24)
    ]


def build(root: Path, documents: list[dict[str, Any]], **settings: Any) -> Any:
    base = {"input": {"id_column": "id"}, "hierarchies": ["leiden", "attributed", "tree"]}
    return graphrag_ray.build_index(documents, str(root), settings=base | settings, progress=False)


def periods(root: Path, hierarchy: str = "leiden") -> dict[str, tuple[str | None, str | None]]:
    """The period of each community, checked against the documents that it comes from."""
    index, kind = graphrag_ray.open_index(str(root)), HIERARCHIES[hierarchy]
    dates = {d["id"]: iso_date(d["creation_date"] or "")[:10] for d in index.table("documents").to_pylist()}
    units = {u["id"]: dates[u["document_id"]] for u in index.table("text_units").to_pylist()}
    entities = {e["id"]: e["text_unit_ids"] for e in index.table("entities").to_pylist()}
    found = {}
    for row in index.table(kind.communities_table).to_pylist():
        members = [u for e in row["entity_ids"] for u in entities[e]] or row["text_unit_ids"]
        known = [units[u] for u in members if units[u]]
        end = max(known, key=lambda d: d.ljust(10, "9"), default=None)
        assert (row["period_start"], row["period_end"]) == (min(known, default=None), end)
        found[row["community"]] = row["id"], row["period_start"], row["period_end"]
    for report in index.table(kind.reports_table).to_pylist():
        assert found[report["community"]][1:] == (report["period_start"], report["period_end"])
    return {id_: (start, end) for id_, start, end in found.values()}


def test_updates_give_the_periods_of_an_index_from_scratch(tmp_path: Path):
    build(tmp_path / "a", rows())
    for hierarchy in ("leiden", "attributed", "tree"):
        assert any(start for start, _ in periods(tmp_path / "a", hierarchy).values())
    changed = rows({0: "1999-01-02", 5: "", 9: "2031"})
    build(tmp_path / "a", changed)
    build(tmp_path / "b", changed)
    for hierarchy in ("leiden", "attributed", "tree"):
        updated, fresh = (periods(tmp_path / root, hierarchy) for root in "ab")
        assert {start for start, _ in updated.values()} >= {"1999-01-02"}
        common = updated.keys() & fresh.keys()
        assert {c: updated[c] for c in common} == {c: fresh[c] for c in common}


def test_global_search_reads_reports_inside_the_dates(tmp_path: Path):
    build(tmp_path / "a", rows(dict.fromkeys(range(24), "2021-05-17")))
    index = graphrag_ray.open_index(str(tmp_path / "a"))
    asked = index.ask("Who owns a mill?", where=["date>=2021", "date<=2021-12"])
    assert "satisfies the conditions. Left out: 0 that" in asked.notes[0]
    with pytest.raises(UsageError, match="The whole period of no report satisfies 'date>=2022'"):
        index.ask("Who owns a mill?", where=["date>=2022"])
    with pytest.raises(UsageError, match="only date with =, <, <=, > or >= is possible"):
        index.ask("Who owns a mill?", where=["title=x"])


@pytest.mark.parametrize("states_period", [True, False])
def test_changed_dates_rewrite_reports_only_if_their_prompt_states_the_period(
    tmp_path: Path, states_period: bool
):
    folder = tmp_path / "prompts"
    shutil.copytree(bundled_prompts(), folder)
    for name in ("report", "summary"):
        text = (folder / f"{name}.txt").read_text().replace("{period}", "")
        (folder / f"{name}.txt").write_text(text + "\nPeriod: {period}\n" * states_period)
    settings = {"prompts_dir": str(folder), "hierarchies": ["leiden", "attributed"]}
    settings |= {"embeddings": {"include_titles": False}, "chunking": {"prepend_metadata": []}}
    build(tmp_path / "a", rows(), **settings)
    build(tmp_path / "a", rows({0: "1999-01-02"}), **settings)
    usage = graphrag_ray.open_index(str(tmp_path / "a")).manifest.usage
    calls = {row["stage"]: row["calls"] for row in usage["stages"]}
    assert bool(calls.get("report")) == states_period and not calls.get("extract")
