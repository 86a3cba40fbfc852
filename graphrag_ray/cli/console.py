"""What people see of a finished run, an answer, an index: everything but progress is printed here.

What only some of it needs is imported where it is printed: an answer shall not wait for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import orjson

from graphrag_ray.base.declarations import OF_SECTION, REPORT_SECTIONS
from graphrag_ray.base.wording import plural, price_setting
from graphrag_ray.cli.safe import console_of, safe_json
from graphrag_ray.cli.writing import print_text

if TYPE_CHECKING:
    from rich.console import Console

    from graphrag_ray.indexing.index import Indexed
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.methods.answer import Answer, Phase
    from graphrag_ray.query.question_sweep import Batch
    from graphrag_ray.query.sources import Source

CHANGES = ("added", "changed", "removed")


def print_indexed(done: Indexed, root: str) -> None:
    """The summary of a finished run."""
    out = console_of()
    manifest = done.manifest
    counts = manifest.counts
    if not done.committed:
        out.print(f"Nothing has changed: snapshot {manifest.number} at {root} is up to date.")
    else:
        out.print(f"Snapshot {manifest.number} is committed at {root}")
    # What was added and removed is told of the run that did it.
    print_counts(out, _counts(done))
    if done.committed:
        seconds = "  ".join(f"{name} {s:.1f}" for name, s in done.seconds.items() if s >= 0.05)
        out.print(f"  seconds        {seconds}")
    total = done.accounts.total
    if total.calls:
        retries = plural(total.retries, "retry", "retries")
        out.print(f"  model calls    {total.calls:,} ({retries}), {_cost(total.cost_usd)}")
    if "entities" in manifest.tables and not counts.get("entities"):
        out.print("  No entities were found: answers will say that the index holds nothing.")
    if done.failed:
        out.print(f"  {failed_line(done, root)}", soft_wrap=True)
    way = "" if done.manifest.hierarchies else " --method ppr"
    ask = f'graphrag-ray query "What are the main themes?"{way} --root'
    out.print(f"\nAsk: {ask} {shlex.quote(root)}", soft_wrap=True)


def failed_line(done: Indexed, root: str) -> str:
    """How many items of a run failed, and where they are listed."""
    kept = done.manifest.counts.get("kept", 0)
    as_before = f" ({kept:,} of them kept as {'it was' if kept == 1 else 'they were'})" if kept else ""
    listed = f"graphrag-ray failures --root {shlex.quote(root)}"
    return f"{plural(done.failed, 'item')} failed{as_before}: {listed}"


def print_counts(out: Console, counts: Mapping[str, Any]) -> None:
    """Documents, chunks, entities and so on of a snapshot."""
    changes = ", ".join(f"{counts[k]} {k}" for k in CHANGES if counts.get(k))
    out.print(f"  documents      {counts.get('documents', 0):,}" + (f" ({changes})" if changes else ""))
    out.print(f"  chunks         {counts.get('text_units', 0):,}")
    out.print(f"  entities       {counts.get('entities', 0):,}")
    out.print(f"  relationships  {counts.get('relationships', 0):,}")
    if counts.get("claims"):
        out.print(f"  claims         {counts['claims']:,}")
    out.print(f"  communities    {_communities(counts)}")
    if counts.get("reports") or "summaries" not in counts:
        out.print(f"  reports        {counts.get('reports', 0):,}")
    if "summaries" in counts:
        out.print(f"  summaries      {counts['summaries']:,}")
    for name, own in counts.get("hierarchies", {}).items():
        written = ", ".join(f"{word} {own[word]:,}" for word in ("reports", "summaries") if word in own)
        out.print(f"  of hierarchy {name}: {_communities(own)}, {written}")


def _communities(counts: Mapping[str, Any]) -> str:
    """`C0 13  C1 45  C2 52  (68 different ones …)`: what is not split stands in every level below too."""
    total, levels = counts.get("communities", 0), counts.get("levels", {})
    shown = "  ".join(f"{name} {n:,}" for name, n in levels.items())
    if len(levels) < 2:
        return shown or "0"
    repeated = sum(levels.values()) > total
    why = ": one that is not split counts at each level below, too" if repeated else ""
    return f"{shown}  ({total:,} different ones{why})"


def _counts(done: Indexed) -> Mapping[str, Any]:
    """Of the snapshot; of a run that changed nothing without what the run before it changed."""
    counts = done.manifest.counts
    return counts if done.committed else {name: n for name, n in counts.items() if name not in CHANGES}


def indexed_json(done: Indexed) -> dict[str, Any]:
    m = done.manifest
    return {
        "snapshot": m.number,
        "committed": done.committed,
        "counts": _counts(done),
        "changes": m.run.get("changes", {}) if done.committed else {},
        "seconds": done.seconds,
        "usage": list(done.accounts.rows()),
        "notes": m.notes,
    }


def print_answer(
    answer: Answer,
    index: Index,
    sources: Sequence[Source] | None,
    written: bool = False,
    told: Container[str] = (),
    raw: bool = False,
) -> None:
    """The answer, the names of the records that it cites, and, if asked for, what is under them.

    written: its text stands there already; told: notes that are known already; raw: Markdown is not rendered
    """
    out = console_of()
    if not written:
        print_text(out, answer.text, raw)
    if answer.chain:
        out.print("\nHow it follows:")
        for link in answer.chain:
            wrong = " (not found in its passage)" if link.references else " (no passage)"
            stands = "" if link.stands else wrong
            out.print(f"  {link.asked} → {link.found}{stands}", soft_wrap=True)
    section = ""
    references = answer.references
    all_cited, answer = index.beside(answer, lambda: index.cited(references), "What the answer cites")
    for cited in all_cited or ():
        if cited.section != section:
            section = cited.section
            out.print(f"\n{section} cited:")
        out.print(f"  {cited.number:>5}  {_start_of(cited.name)}")
        if sources is not None and (way := answer.paths.get(str(cited.number), "")):
            out.print(f"         by way of {way}", style="dim", soft_wrap=True)
    print_sources(out, sources or ())
    took = f", {answer.seconds:.2f} s" if answer.seconds is not None else ""
    out.print(f"\n[{_how(answer)}{took}, {_cost(answer.cost_usd)}]", style="dim")
    if answer.phases:
        out.print(f"[{'; '.join(_phase(name, p) for name, p in answer.phases.items())}]", style="dim")
    for note in answer.notes:
        if note not in told:
            out.print(f"[{note}]", style="dim")


def print_sources(out: Console, sources: Sequence[Source]) -> None:
    """What lies under an answer."""
    for source in sources:
        _print_source(out, source)


def _phase(name: str, phase: Phase) -> str:
    """`rate 12 calls, 51,220 tokens, $0.0031`."""
    failed = f" ({phase.failed:,} failed)" if phase.failed else ""
    tokens = f"{phase.prompt_tokens + phase.completion_tokens:,} tokens"
    cost = f", {_cost(phase.cost_usd)}" if phase.cost_usd else ""
    return f"{name} {plural(phase.calls, 'call')}{failed}, {tokens}{cost}"


def _how(answer: Answer) -> str:
    """`global search, level C1, 12 contexts`, `local search, 7,912 tokens of context`."""
    level = "" if answer.level is None else f", level C{answer.level}"
    read = [c for c in answer.contexts if c.phase != "reduce"]
    size = (
        f"{read[0].n_tokens:,} tokens of context"
        if len(read) == 1 and answer.level is None
        else plural(len(read), "context")
    )
    return f"{answer.method} search{level}, {size}"


MAX_TEXTS, MAX_ELEMENTS = 3, 5
"""Of one record: chunks where none was found to carry the answer; entities, relationships and claims."""
MAX_METADATA, MAX_NAME = 120, 160


def _start_of(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"


def _print_source(out: Console, source: Source) -> None:
    """The sentences that carry the answer, then briefly what else a report was written from."""
    record = source.record
    kind = OF_SECTION[record["section"]]
    heading = f"\n{kind.singular} {record['human_readable_id']}: {_start_of(record['name'])}"
    out.print(heading, style="bold")
    texts = source.evidence or [
        {**c, "start": c["quote_start"], "chunk": c["human_readable_id"]} for c in source.chunks[:MAX_TEXTS]
    ]
    for t in texts:
        quote, about = " ".join(t["quote"].split()), _about_document(t)
        out.print(f"  {t['place']}, character {t['start']}: “{quote}”")
        if about:
            out.print(f"      {about}", style="dim")
    if record["section"] in REPORT_SECTIONS:
        related = [f"{r['source']} – {r['target']}" for r in source.relationships]
        _print_some(out, "entities", [f"{e['title']} ({e['type'] or 'untyped'})" for e in source.entities])
        _print_some(out, "relationships", related)
        _print_some(out, "claims", [c["description"] for c in source.claims])
    left = source.chunks_left_out + len(source.chunks) - len({t["chunk"] for t in texts})
    if left > 0:
        which = f"the first {len(source.chunks):,}" if source.chunks_left_out else "all"
        out.print(f"  {plural(left, 'more text')} (`graphrag-ray query --json` shows {which})")


def _print_some(out: Console, what: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - MAX_ELEMENTS} more" if len(names) > MAX_ELEMENTS else ""
        out.print(f"  {what}: {'; '.join(names[:MAX_ELEMENTS])}{more}")


def _about_document(text: Mapping[str, Any]) -> str:
    """Title, date and further columns of a document, as far as they say more than its path."""
    title, metadata = text["title"] or "", text["metadata"] or ""
    if len(metadata) > MAX_METADATA:
        metadata = metadata[:MAX_METADATA] + "…"
    known = PurePosixPath(text["document"])
    return ", ".join(
        p for p in ("" if title in (known.stem, known.name) else title, text["date"], metadata) if p
    )


def answer_json(answer: Answer, sources: Sequence[Source], snapshot: int) -> dict[str, Any]:
    return {"snapshot": snapshot, **answer.as_dict(), "sources": [vars(s) for s in sources]}


def print_batch(done: Batch) -> None:
    """The summary of a finished batch."""
    out, total = console_of(), done.accounts.total
    failed = f", {done.failed:,} without an answer or a part of it (columns error, failed_parts)"
    out.print(f"{plural(done.questions, 'question')}{failed if done.failed else ''}: {done.url}")
    asked = f"{plural(total.calls, 'call')}, {total.total_tokens:,} tokens, {_cost(total.cost_usd)}"
    free = "every reply was there already, no model was asked"
    out.print(f"[{asked if total.calls else free}, {done.seconds:.1f} s]", style="dim")


def batch_json(done: Batch) -> dict[str, Any]:
    return {
        "out": done.url,
        "questions": done.questions,
        "failed": done.failed,
        "seconds": done.seconds,
        "usage": list(done.accounts.rows()),
    }


def print_failures(rows: Sequence[Mapping[str, Any]]) -> None:
    out = console_of()
    if not rows:
        out.print("No failed items.")
        return
    for r in rows:
        out.print(f"{r['stage']}: {_item(r)}", style="bold")
        when = f", {r['first_at']} to {r['last_at']}" if r["last_at"] else ""
        out.print(f"  {r['error']}")
        out.print(f"  {plural(r['attempts'], 'attempt')}{when}; {_again(r)}")
    out.print(f"\n{plural(len(rows), 'failed item')}")


def print_put_back(retried: int, before: int, anyway: int, command: str) -> None:
    """What `failures --retry` did, and what to run next."""
    out = console_of()
    if not retried + before + anyway:
        out.print("No failed items.")
        return
    if retried or before:
        again = f" ({before:,} had been put back before)" if before else ""
        out.print(f"{plural(retried + before, 'item')} put back{again}: the next run asks for them again.")
    if anyway:
        out.print(f"{anyway:,} that every run tries again by itself.")
    out.print(f"\nRun: {command}", soft_wrap=True)


def _item(row: Mapping[str, Any]) -> str:
    if not row["document"] or row["item"] == row["document"]:
        return str(row["item"])
    return f"{'row ' if row['stage'] == 'read' else ''}{row['item']} in {row['document']}"


def _again(row: Mapping[str, Any]) -> str:
    if row["kind"] == "transient":
        return "the next run tries again"
    if row["stage"] == "read":
        return "fails again until the file changes"
    return "not tried again until its text, prompt or model changes, or --retry puts it back"


def as_json(value: Any, indent: bool = True) -> str:
    """indent: False: on one line."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return safe_json(orjson.dumps(value, option=options).decode())


def _cost(usd: float | None) -> str:
    return f"cost unknown: {price_setting()} tells it" if usd is None else f"${usd:.4f}" if usd else "no cost"
