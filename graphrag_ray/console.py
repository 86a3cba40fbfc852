"""What people see: progress while a run works, and what came of it. Everything is printed here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from graphrag_ray.engine.executor import Progress
from graphrag_ray.query.answer import Answer
from graphrag_ray.settings import Settings

if TYPE_CHECKING:
    from graphrag_ray.ask import Index, Source
    from graphrag_ray.index import Indexed

LINE_EVERY_S = 5.0
"""Where there is no terminal, a stage says so often how far it is."""

CHANGES = ("added", "changed", "removed")

OFFLINE = "No model is configured: the offline engine answers (classical methods, no key, no cost)."


def _console(stderr: bool = False) -> Console:
    """Prints what it is given: brackets and colons in a text of the corpus are no markup and no emoji.
    Wide where no terminal says otherwise, since files and pipes have no margin."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    return console


class Observer:
    """Shows a run as it goes: one live line per stage on a terminal, plain lines elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = _console(stderr=True)
        self._live: Live | None = None
        self._line = Text()
        self._said_at = 0.0

    def __enter__(self) -> Observer:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def checked(self, settings: Settings) -> None:
        """Settings are in order; the run starts."""
        if settings.model(settings.model_name("extract")).provider == "offline":
            self.note(OFFLINE)

    def note(self, message: str) -> None:
        self._print(Text(message, style="dim"))

    def step_started(self, name: str) -> None:
        self._line = Text(f"{name:<12} …")
        self._said_at = time.monotonic()
        self._refresh()

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        shown = "  ".join(f"{k.replace('_', ' ')} {_short(v)}" for k, v in counts.items() if v)
        how = "unchanged" if reused else f"{seconds:.1f} s"
        self._line = Text()
        self._print(Text.assemble((f"{name:<12}", "bold"), f" {how:>10}  ", (shown, "dim")))

    def progress(self, p: Progress) -> None:
        """Called a few times a second during a sweep."""
        self._line = Text(_progress_line(p))
        if self._live:
            self._refresh()
        elif not self._quiet and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self._print(self._line)

    def _print(self, line: Text) -> None:
        if self._quiet:
            return
        (self._live.console if self._live else self._console).print(line, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live:
            self._live.update(self._line)


def _progress_line(p: Progress) -> str:
    total = p.accounts.total
    of = f"/{p.total}" if p.total else ""
    parts = [f"{p.stage:<12} {p.done}{of}", f"in flight {p.in_flight}"]
    if p.failed:
        parts.append(f"failed {p.failed}")
    if p.seconds > 1:
        parts.append(f"{total.total_tokens / p.seconds * 60:,.0f} tokens/min")
    if total.cost_usd:
        parts.append(f"${total.cost_usd:.4f}")
    elif total.cost_usd is None:
        parts.append("cost unknown")
    if p.total and p.done:
        left = p.seconds / p.done * (p.total - p.done)
        parts.append(f"{_duration(left)} left")
    return "  ".join(parts)


def print_indexed(done: Indexed, root: str) -> None:
    """The summary of a finished run."""
    out = _console()
    manifest = done.manifest
    counts = manifest.counts
    if not done.committed:
        out.print(f"Nothing has changed: snapshot {manifest.number} at {root} is up to date.")
    else:
        out.print(f"Snapshot {manifest.number} is committed at {root}")
    # What was added and removed is told of the run that did it.
    _print_counts(out, counts if done.committed else {n: v for n, v in counts.items() if n not in CHANGES})
    if done.committed:
        seconds = "  ".join(f"{name} {s:.1f}" for name, s in done.seconds.items() if s >= 0.05)
        out.print(f"  seconds        {seconds}", soft_wrap=True)
    total = done.accounts.total
    if total.calls:
        out.print(f"  model calls    {total.calls:,} ({total.retries:,} retries), {_cost(total.cost_usd)}")
    if not counts.get("entities"):
        out.print("  No entities were found: answers will say that the index holds nothing.")
    if done.failed:
        out.print(f"  {done.failed} items failed: graphrag-ray failures --root {root}")
    out.print(f'\nAsk: graphrag-ray query "What are the main themes?" --root {root}', soft_wrap=True)


def _print_counts(out: Console, counts: Mapping[str, Any]) -> None:
    changes = ", ".join(f"{counts[k]} {k}" for k in CHANGES if counts.get(k))
    out.print(f"  documents      {counts['documents']:,}" + (f" ({changes})" if changes else ""))
    out.print(f"  chunks         {counts['text_units']:,}")
    out.print(f"  entities       {counts['entities']:,}")
    out.print(f"  relationships  {counts['relationships']:,}")
    if counts.get("claims"):
        out.print(f"  claims         {counts['claims']:,}")
    levels = "  ".join(f"{name} {n:,}" for name, n in counts.get("levels", {}).items())
    out.print(f"  communities    {levels or 0}")
    out.print(f"  reports        {counts['reports']:,}")


def indexed_json(done: Indexed) -> dict[str, Any]:
    m = done.manifest
    return {
        "snapshot": m.number,
        "committed": done.committed,
        "counts": m.counts,
        "seconds": done.seconds,
        "usage": list(done.accounts.rows()),
        "notes": m.notes,
    }


def print_answer(answer: Answer, index: Index, sources: Sequence[Source] | None) -> None:
    """The answer, the titles of the reports that it cites, and, if asked for, what is under them."""
    out = _console()
    out.print(Markdown(answer.text) if out.is_terminal else answer.text, soft_wrap=True)
    titles = index.titles(answer.references)
    if titles:
        out.print("\nReports cited:")
        for number, title in titles:
            out.print(f"  {number:>5}  {title}", soft_wrap=True)
    for source in sources or []:
        _print_source(out, source)
    how = f"global search, level C{answer.level}, {sum(c.phase == 'map' for c in answer.contexts)} contexts"
    took = f", {answer.seconds:.2f} s" if answer.seconds is not None else ""
    out.print(f"\n[{how}{took}, {_cost(answer.cost_usd)}]", style="dim")
    for note in answer.notes:
        out.print(f"[{note}]", style="dim")


def _print_source(out: Console, source: Source) -> None:
    out.print(f"\nReport {source.report['human_readable_id']}: {source.report['title']}", style="bold")
    for e in source.entities[:10]:
        out.print(
            f"  entity {e['human_readable_id']}: {e['title']} ({e['type'] or 'untyped'})", soft_wrap=True
        )
    for r in source.relationships[:10]:
        out.print(f"  relationship {r['human_readable_id']}: {r['source']} – {r['target']}", soft_wrap=True)
    for c in source.claims[:10]:
        out.print(f"  claim {c['human_readable_id']}: {c['description']}", soft_wrap=True)
    for c in source.chunks[:10]:
        row = f" row {c['row']}" if c["row"] else ""
        where = f"{c['document']}{row}, character {c['quote_start']}"
        quote = " ".join(c["quote"].split())
        out.print(f"  text {c['human_readable_id']}: {where}\n      “{quote}”", soft_wrap=True)
    left = sum(
        max(0, len(x) - 10) for x in (source.entities, source.relationships, source.claims, source.chunks)
    )
    if left:
        out.print(f"  and {left} more (--json shows all)")


def answer_json(answer: Answer, sources: Sequence[Source], snapshot: int) -> dict[str, Any]:
    return {"snapshot": snapshot, **answer.as_dict(), "sources": [vars(s) for s in sources]}


def print_status(found: Mapping[str, Any]) -> None:
    out = _console()
    out.print(f"Index at {found['root']}")
    if found["writer"]:
        out.print(f"  being written by {found['writer']}")
    if found["snapshot"] is None:
        out.print("  no finished snapshot yet")
    else:
        out.print(f"  snapshot {found['snapshot']}, {found['created_at']}, by version {found['version']}")
        _print_counts(out, found["counts"])
        if found["counts"].get("failures"):
            out.print(f"  failures       {found['counts']['failures']:,} (graphrag-ray failures)")
    if found["journal"]:
        table = Table("stage", "items done", "turns", "failed", "tokens", box=None, pad_edge=False)
        for row in found["journal"]:
            table.add_row(
                *(
                    f"{row[c]:,}" if c != "stage" else row[c]
                    for c in ("stage", "done", "turns", "failed", "tokens")
                )
            )
        out.print("\nJournal (all that was ever answered and paid for)")
        out.print(table)
    if found["usage"]:
        out.print("\nLast run")
        table = Table(
            "stage",
            "model",
            "calls",
            "retries",
            "429s",
            "prompt",
            "completion",
            "cost",
            "p50",
            "p95",
            box=None,
            pad_edge=False,
        )
        for u in found["usage"]:
            table.add_row(
                u["stage"],
                u["model"],
                f"{u['calls']:,}",
                f"{u['retries']:,}",
                f"{u['rate_limited']:,}",
                f"{u['prompt_tokens']:,}",
                f"{u['completion_tokens']:,}",
                _amount(u["cost_usd"]),
                _seconds(u["latency_p50_s"]),
                _seconds(u["latency_p95_s"]),
            )
        out.print(table)
    for note in found["notes"].values():
        out.print(f"  {note}")


def print_failures(rows: Sequence[Mapping[str, Any]]) -> None:
    out = _console()
    if not rows:
        out.print("No failed items.")
        return
    for r in rows:
        again = "next run tries again" if r["kind"] == "transient" else "for good, until something changes"
        where = f" in {r['document']}" if r["document"] else ""
        out.print(f"{r['stage']}: {r['item']}{where}", style="bold", soft_wrap=True)
        when = f", {r['first_at']} to {r['last_at']}" if r["last_at"] else ""
        out.print(f"  {r['error']}", soft_wrap=True)
        out.print(f"  {r['attempts']} attempts{when}; {again}", soft_wrap=True)
    out.print(f"\n{len(rows)} failed items")


def as_json(value: Any) -> str:
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, option=options).decode()


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cost(usd: float | None) -> str:
    return "cost unknown" if usd is None else f"${usd:.4f}" if usd else "no cost"


def _amount(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
