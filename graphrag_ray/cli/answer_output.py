"""Print streamed or complete answers and their sources."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, REPORT_SECTIONS
from graphrag_ray.base.wording import escape_control, plural, shorten
from graphrag_ray.cli.console import format_cost, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from graphrag_ray.query.answer_streams import AnswerStream
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.methods.answer import Answer, Passage
    from graphrag_ray.query.sources import Source

MAX_CHUNKS, MAX_LISTED = 3, 5
"""Maximum number of chunks per record without evidence, and of entities, relationships or claims."""
MAX_METADATA, MAX_NAME = 120, 160
"""Maximum length in characters."""


def print_text(out: Console, text: str, raw: bool = False) -> None:
    """Print text, rendering Markdown on a terminal unless `raw`."""
    if _renders(out, raw):
        from graphrag_ray.cli.markdown_stream import MarkdownStream  # Only terminals need the parser.

        with MarkdownStream(out, pending=False) as rendered:
            rendered.add(text)
    else:
        out.print(text)


def write_stream(stream: AnswerStream, raw: bool = False) -> Answer:
    """Print a streamed answer and return it. Errors of the stream are raised after a line break."""
    out = make_console()
    with stream:
        if _renders(out, raw):
            from graphrag_ray.cli.markdown_stream import MarkdownStream
            from graphrag_ray.query.answer_streams import StartsAgain

            with MarkdownStream(out) as rendered:
                for piece in stream:
                    rendered.add_note(piece) if isinstance(piece, StartsAgain) else rendered.add(piece)
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
    """Print an answer and the records it cites.

    Args:
        sources: Sources of the cited records to print, or None.
        written: Whether the text of the answer has already been printed.
        known_notes: Notes not to print again.
    """
    out = make_console()
    if not written:
        print_text(out, answer.text, raw)
    if answer.chain:
        out.print("\nSteps:")
        for link in answer.chain:
            doubt = " (not found in its passage)" if link.references else " (no passage)"
            out.print(f"  {link.asked} → {link.found}{'' if link.stands else doubt}", soft_wrap=True)
    print_passages(out, answer.passages)
    section, references = "", answer.references
    all_cited, answer = index.show_or_note(
        answer, lambda: index.cited_records(references), "The cited records"
    )
    for cited in all_cited or ():
        if cited.section != section:
            section = cited.section
            out.print(f"\n{section} cited:")
        out.print(f"  {cited.number:>5}  {shorten(cited.name, MAX_NAME)}")
        if sources is not None and (path := answer.paths.get(str(cited.number), "")):
            out.print(f"         via {path}", style="dim", soft_wrap=True)
    print_sources(out, sources or ())
    duration = f", {answer.seconds:.2f} s" if answer.seconds is not None else ""
    level = "" if answer.level is None else f", level C{answer.level}"
    contexts = [c for c in answer.contexts if c.phase != "reduce"]
    size = plural(len(contexts), "context")
    if len(contexts) == 1 and answer.level is None:
        size = f"{contexts[0].n_tokens:,} tokens of context"
    unpriced = next((name for name, p in answer.phases.items() if p.cost_usd is None), "")
    unpriced = index.settings.model_name(unpriced)
    out.print(
        f"\n[{answer.method} search{level}, {size}{duration}, {format_cost(answer.cost_usd, unpriced)}]",
        style="dim",
    )
    phases = []
    for name, p in answer.phases.items():
        failed = f" ({p.failed:,} failed)" if p.failed else ""
        cost = f", {format_cost(p.cost_usd, unpriced)}" if p.cost_usd else ""
        tokens = f"{p.prompt_tokens + p.completion_tokens:,} tokens"
        phases.append(f"{name} {plural(p.calls, 'call')}{failed}, {tokens}{cost}")
    if phases:
        out.print(f"[{'; '.join(phases)}]", style="dim")
    for note in answer.notes:
        if note not in known_notes:
            out.print(f"[{note}]", style="dim")


def print_passages(out: Console, passages: Sequence[Passage]) -> None:
    if passages:
        from graphrag_ray.query.methods.answer import PASSAGES_HEADING  # imports numpy

        out.print(f"\n{PASSAGES_HEADING}:")
    for passage in passages:
        out.print(f"  {passage.place}: “{' '.join(passage.text.split())}”", soft_wrap=True)
        if passage.words:
            out.print(f"      matches: {', '.join(passage.words)}", style="dim", soft_wrap=True)


def print_sources(out: Console, sources: Sequence[Source]) -> None:
    """Print the evidence for each cited record and, for a report, a summary of its input."""
    for source in sources:
        record = source.record
        kind = RECORD_KIND_BY_SECTION[record["section"]]
        heading = f"\n{kind.singular} {record['human_readable_id']}: {shorten(record['name'], MAX_NAME)}"
        out.print(heading, style="bold")
        texts = source.evidence or [
            {**c, "start": c["quote_start"], "chunk": c["human_readable_id"]}
            for c in source.chunks[:MAX_CHUNKS]
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
        for noun, names in lists.items():
            if names:
                more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
                out.print(f"  {noun}: {'; '.join(names[:MAX_LISTED])}{more}")
        left = source.chunks_left_out + len(source.chunks) - len({t["chunk"] for t in texts})
        if left > 0:
            which = f"the first {len(source.chunks):,}" if source.chunks_left_out else "all"
            out.print(f"  {plural(left, 'more text')} (`graphrag-ray query --json` shows {which})")


def _about_document(text: Mapping[str, Any]) -> str:
    """Return title, date and metadata of a document. A title that repeats the file name is omitted."""
    path, title = PurePosixPath(text["document"]), text["title"]
    is_file_name = title in (path.stem, path.name)
    parts = ("" if is_file_name else title, text["date"], shorten(text["metadata"] or "", MAX_METADATA))
    return ", ".join(filter(None, parts))
