"""What the corpus is about (`graph/about_corpus.py`): asked in the first run, then kept in the settings
that snapshots hold. Updates do not write it anew, since every report's request holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import ABOUT
from graphrag_ray.base.errors import TooManyFailures
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.document_titles import label
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph.about_corpus import (
    MAX_ENTITIES,
    AboutSpec,
    about,
    about_spec,
    entity_lines,
    is_to_be_told,
    spread,
    title_lines,
)
from graphrag_ray.graph.integer_arrays import degrees
from graphrag_ray.indexing.run import Run, failure_rows, replayed
from graphrag_ray.indexing.stages.communities_stage import Layout
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_part


def tell_about(run: Run, corpus: Result, load_layout: Callable[[], Layout]) -> Result:
    """Sets `corpus.about` of the run's settings where nothing says it. Table failures: the item, where that
    failed: reports are written without then.

    It is no step: later runs do not have it.
    """
    if run.untold:  # what follows is done again, since a part was damaged
        return run.untold
    if not is_to_be_told(run.settings, run.prompts) or not len((layout := load_layout()).node_keys):
        return Result()
    work = Work(ABOUT, partial(_start, about_spec(run.settings, run.prompts)), _label)
    with run.chore(ABOUT) as counts:
        rows = pa.Table.from_pylist([_material(run, corpus, layout)])
        with suppress(TooManyFailures):  # one of one
            run.sweep_rows(work, _just_rows, [rows], 1)
        batch = next(replayed(work, run.journal(ABOUT), run.store, [rows]))
        outcome = batch[0][1]
        counts["sentences"] = int(outcome.status == "complete")
        if outcome.status == "complete" and outcome.result:
            run.settings = run.settings.with_about(outcome.result)
            return Result()
        run.observer.note(
            f"What the corpus is about could not be told ({outcome.error}): reports are written without, now "
            "and later. --set corpus.about='…' tells it, and asks for all reports anew."
        )
        # Also for a run that goes on where this one stops: with it, all reports would be asked for anew.
        run.settings = run.settings.with_about("")
        written = run.write(ABOUT, "failures", [failure_rows(ABOUT, work, batch)])
        run.untold = Result({"failures": [written]})
        return run.untold


def _material(run: Run, corpus: Result, layout: Layout) -> Row:
    model = run.settings.model(run.settings.model_name("report"))
    in_tokens = partial(count, vocabulary_name=vocabulary_for(model.model, model.tokenizer).name)
    elements, n = layout.elements, len(layout.hierarchy.order)
    degree = degrees(elements.edge_source, elements.edge_target, n)
    places = np.lexsort((layout.node_keys[layout.hierarchy.order], -degree))[:MAX_ENTITIES]
    named = layout.blocks["entities"].rows(run.store, places, ["title", "description"])
    # Titles of documents that lie evenly over the corpus; only the parts that hold them are read.
    documents = corpus.parts("documents")
    ends = np.cumsum([part.rows for part in documents])
    chosen = np.array(spread(int(ends[-1]) if len(ends) else 0), dtype=np.int64)
    of_part = np.searchsorted(ends, chosen, side="right")
    titles = []
    for at in np.unique(of_part).tolist():
        columns = ["title", "creation_date", "path", "row"]
        rows = chosen[of_part == at] - (ends[at] - documents[at].rows)
        found = read_part(run.store, documents[at], columns).take(pa.array(rows)).to_pylist()
        titles += [label(d["title"], d["creation_date"], d["path"] or "", d["row"] or "") for d in found]
    return {
        "titles": title_lines(titles, in_tokens),
        "entities": entity_lines([(e["title"], e["description"]) for e in named], in_tokens),
    }


def _start(spec: AboutSpec, store: Store, row: Row) -> Dialogue[str]:
    return about(row["titles"], row["entities"], spec)


def _label(row: Row) -> tuple[str, str]:
    return "the corpus", ""


def _just_rows(store: Store, rows: pa.Table) -> Iterator[pa.Table]:
    yield rows
