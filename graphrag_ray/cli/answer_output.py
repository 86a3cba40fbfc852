"""Print answers, streamed or complete, and their sources."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, REPORT_SECTIONS
from graphrag_ray.base.wording import escape_control, plural, shortened
from graphrag_ray.cli.console import console_of, cost

if TYPE_CHECKING:
    from rich.console import Console

    from graphrag_ray.query.answer_streams import AnswerStream
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.methods.answer import Answer
    from graphrag_ray.query.sources import Source

MAX_TEXTS, MAX_ELEMENTS = 3, 5
"""Per record: chunks without evidence; entities, relationships and claims."""
MAX_METADATA, MAX_NAME = 120, 160


def print_text(out: Console, text: str, raw: bool = False) -> None:
    """Print a complete text, rendering Markdown on a terminal unless `raw`."""
    if _renders(out, raw):
        from graphrag_ray.cli.markdown_stream import MarkdownStream  # A pipe does not need the parser.

        with MarkdownStream(out, pending=False) as rendered:
            rendered.add(text)
    else:
        out.print(text)


def write_stream(stream: AnswerStream, raw: bool = False) -> Answer:
    """Print a streamed answer and return it. Errors of the stream are raised after a line break."""
    out = console_of()
    with stream:
        if _renders(out, raw):
            from graphrag_ray.cli.markdown_stream import MarkdownStream
            from graphrag_ray.query.answer_streams import StartsAgain

            with MarkdownStream(out) as rendered:
                for piece in stream:
                    rendered.say(piece) if isinstance(piece, StartsAgain) else rendered.add(piece)
        else:
            try:
                for piece in stream:
                    click.echo(escape_control(piece), nl=False)
            finally:
                click.echo()
        return stream.answer


def _renders(out: Console, raw: bool) -> bool:
    return out.is_terminal and not out.is_dumb_terminal and not raw


def print_answer(
    answer: Answer,
    index: Index,
    sources: Sequence[Source] | None,
    written: bool = False,
    known_notes: Container[str] = (),
    raw: bool = False,
) -> None:
    """Print an answer and the names of cited records, and their sources unless None.

    If `written`, the text of the answer is already printed. `known_notes` are not repeated.
    """
    out = console_of()
    if not written:
        print_text(out, answer.text, raw)
    if answer.chain:
        out.print("\nSteps:")
        for link in answer.chain:
            wrong = " (not found in its passage)" if link.references else " (no passage)"
            out.print(f"  {link.asked} → {link.found}{'' if link.stands else wrong}", soft_wrap=True)
    section, references = "", answer.references
    all_cited, answer = index.show_or_note(
        answer, lambda: index.cited_records(references), "What the answer cites"
    )
    for cited in all_cited or ():
        if cited.section != section:
            section = cited.section
            out.print(f"\n{section} cited:")
        out.print(f"  {cited.number:>5}  {shortened(cited.name, MAX_NAME)}")
        if sources is not None and (path := answer.paths.get(str(cited.number), "")):
            out.print(f"         via {path}", style="dim", soft_wrap=True)
    print_sources(out, sources or ())
    took = f", {answer.seconds:.2f} s" if answer.seconds is not None else ""
    level = "" if answer.level is None else f", level C{answer.level}"
    contexts = [c for c in answer.contexts if c.phase != "reduce"]
    size = plural(len(contexts), "context")
    if len(contexts) == 1 and answer.level is None:
        size = f"{contexts[0].n_tokens:,} tokens of context"
    unpriced = next((name for name, p in answer.phases.items() if p.cost_usd is None), "")
    unpriced = index.settings.model_name(unpriced)
    out.print(
        f"\n[{answer.method} search{level}, {size}{took}, {cost(answer.cost_usd, unpriced)}]", style="dim"
    )
    phases = []
    for name, p in answer.phases.items():
        failed = f" ({p.failed:,} failed)" if p.failed else ""
        paid = f", {cost(p.cost_usd, unpriced)}" if p.cost_usd else ""
        tokens = f"{p.prompt_tokens + p.completion_tokens:,} tokens"
        phases.append(f"{name} {plural(p.calls, 'call')}{failed}, {tokens}{paid}")
    if phases:
        out.print(f"[{'; '.join(phases)}]", style="dim")
    for note in answer.notes:
        if note not in known_notes:
            out.print(f"[{note}]", style="dim")


def print_sources(out: Console, sources: Sequence[Source]) -> None:
    """Print the evidence of each cited record, and a summary of what a report was written from."""
    for source in sources:
        record = source.record
        kind = RECORD_KIND_BY_SECTION[record["section"]]
        heading = f"\n{kind.singular} {record['human_readable_id']}: {shortened(record['name'], MAX_NAME)}"
        out.print(heading, style="bold")
        texts = source.evidence or [
            {**c, "start": c["quote_start"], "chunk": c["human_readable_id"]}
            for c in source.chunks[:MAX_TEXTS]
        ]
        for t in texts:
            quote = " ".join(t["quote"].split())
            out.print(f"  {t['place']}, character {t['start']}: “{quote}”")
            if about := _about_document(t):
                out.print(f"      {about}", style="dim")
        lists: dict[str, list[str]] = {}
        if record["section"] in REPORT_SECTIONS:
            lists["entities"] = [f"{e['title']} ({e['type'] or 'untyped'})" for e in source.entities]
            lists["relationships"] = [f"{r['source']} – {r['target']}" for r in source.relationships]
            lists["claims"] = [c["description"] for c in source.claims]
        for what, names in lists.items():
            if names:
                more = f" and {len(names) - MAX_ELEMENTS} more" if len(names) > MAX_ELEMENTS else ""
                out.print(f"  {what}: {'; '.join(names[:MAX_ELEMENTS])}{more}")
        left = source.chunks_left_out + len(source.chunks) - len({t["chunk"] for t in texts})
        if left > 0:
            which = f"the first {len(source.chunks):,}" if source.chunks_left_out else "all"
            out.print(f"  {plural(left, 'more text')} (`graphrag-ray query --json` shows {which})")


def _about_document(text: Mapping[str, Any]) -> str:
    """Title, date and metadata of a document, unless the title repeats the file name."""
    path, title = PurePosixPath(text["document"]), text["title"]
    known = title in (path.stem, path.name)
    parts = ("" if known else title, text["date"], shortened(text["metadata"] or "", MAX_METADATA))
    return ", ".join(filter(None, parts))
