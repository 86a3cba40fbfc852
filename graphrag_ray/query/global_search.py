"""Global search: the reports of one level of the hierarchy, all of them (paper 3.1.6; C0–C3 of 4.1.2)."""

from __future__ import annotations

import pyarrow as pa

from graphrag_ray.query.levels import LevelReports, levels
from graphrag_ray.query.method import Given, Method, Question, Rows
from graphrag_ray.query.parts import answered, read
from graphrag_ray.reports.context import Record, report_record

NAME = "global"
REPORTS = Rows("community_reports", ["id", "community", "title", "full_content", "n_tokens", "hierarchy"])
COMMUNITIES = Rows("communities", ["community", "level", "parent", "hierarchy"])


def search(question: Question, given: Given) -> Method:
    """Read all reports of C_k. Raises LevelNotFound."""
    reports, communities = yield REPORTS, COMMUNITIES
    known = levels(communities, reports)
    chosen = known.at(known.parse(question.level, given.settings.query.context_tokens))
    what = yield from read(question.text, given, records_of(reports, chosen))
    notes = gaps(chosen)
    return (yield from answered(question.text, NAME, "reports", what, level=chosen.level, notes=notes))


def records_of(reports: pa.Table, chosen: LevelReports) -> list[Record]:
    rows = reports.take(pa.array(chosen.rows)).select(["id", "title", "full_content"]).to_pylist()
    return [report_record(r["id"], r["title"], r["full_content"]) for r in rows]


def gaps(chosen: LevelReports) -> tuple[str, ...]:
    """What the reader should know of communities without a report, as sentences."""
    n_missing, n_replaced = len(chosen.missing), len(chosen.replaced)
    said = (
        (n_missing, f"{n_missing} communities have no report and are missing."),
        (n_replaced, f"{n_replaced} communities have no report; reports of their sub-communities stand in."),
    )
    return tuple(text for applies, text in said if applies)
