"""`graphrag-ray inspect`: show the records of an index."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.dates import describe_period
from graphrag_ray.base.wording import collapse_whitespace, plural
from graphrag_ray.cli import answer_output, console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, Any]

_MAX_TEXT = 200
"""Maximum length of a description in a list in characters. --json prints all of it."""
_MAX_METADATA = 400
_TITLES = {
    "entity": "Entity {human_readable_id}: {title} ({type})",
    "relationship": "Relationship {human_readable_id}: {source} – {target}",
    "claim": "Claim {human_readable_id}: {subject_id} – {object_id}",
    "community": "Community {community} (C{level}): {title}",
    "chunk": "Chunk {human_readable_id}: {place}, characters {start} to {end}",
    "document": "Document {human_readable_id}: {place}",
}
_DATE_SOURCES = {"text": " (date from the first lines)", "file name": " (date from the file name)"}
_LISTS = {
    "entity": ("names", "communities", "relationships", "claims", "chunks"),
    "relationship": ("entities", "communities", "chunks"),
    "claim": ("chunks",),
    "chunk": ("entities", "relationships", "claims"),
    "community": ("relationships", "chunks"),
}
"""Lists printed for each kind of record."""


@click.command(cls=Command)
@click.argument("what", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]")
@options.storage
@options.snapshot
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=10,
    metavar="N",
    help="Maximum number of records per list; 0: all. Default: 10.",
)
@options.hierarchy
@options.as_json
def inspect(
    opts: IndexOptions,
    what: str | None,
    names: tuple[str, ...],
    snapshot: int | None,
    limit: int,
    hierarchy: str | None,
    as_json: bool,
) -> None:
    """Show a record of the index and the records connected to it. No model is called.

    WHAT is one of community (with its report, members, parent and children), theme (the same for hierarchy
    attributed), summary (for hierarchy tree), entity, relationship, claim, chunk or document. NAME is the
    number used in references, or the name, ignoring case and accents (after `--` if it begins with a dash).
    `search TEXT` finds names that contain TEXT. Without WHAT, show an overview of the largest records.

    \b
    Examples:
      graphrag-ray inspect --root ./my-index
      graphrag-ray inspect community C1:12 --root ./my-index
      graphrag-ray inspect entity "mara venn" --root ./my-index --limit 0
      graphrag-ray inspect relationship "mara venn" "edgar hask" --root ./my-index
      graphrag-ray inspect document letters/1987.txt --root ./my-index --json
      graphrag-ray inspect search harbour --root ./my-index
    """
    options.avoid_pandas_import()
    from graphrag_ray.export.connected_records import RecordView, look_up, overview, search
    from graphrag_ray.query.methods.hierarchy_choice import find_hierarchy_or_empty
    from graphrag_ray.query.row_reader import Reader

    store, manifest = opts.snapshot(snapshot)
    view = RecordView(
        Reader(store, manifest), limit or None, find_hierarchy_or_empty(manifest.hierarchies, hierarchy)
    )
    if what is None:
        record = overview(view)
    elif what.casefold() == "search":
        record = search(view, " ".join(names))
    else:
        record = look_up(view, what, names)
    if as_json:
        console.print_json(record)
        return
    out = console.make_console()
    index_arguments = f"--root {shlex.quote(opts.root)}{f' --hierarchy {hierarchy}' if hierarchy else ''}"
    if record["kind"] == "overview":
        _print_overview(out, record, index_arguments)
    elif record["kind"] == "search":
        _print_matches(out, record, index_arguments)
    else:
        _print_record(out, record)


def _print_overview(out: Console, record: Record, index_arguments: str) -> None:
    names = {"documents": ("document",), "text_units": ("chunk",), "entities": ("entity", "entities")}
    names |= {"relationships": ("relationship",), "communities": ("community", "communities")}
    counts = ", ".join(plural(record["counts"].get(name, 0), *words) for name, words in names.items())
    out.print(f"Snapshot {record['snapshot']}: {counts}")
    for label, text in console.graph_notes(record["counts"]).items():
        out.print(f"  {label.capitalize()}: {text}")
    if record["about"]:
        out.print(f"  {collapse_whitespace('About: ' + record['about'])}")
    _print_list(out, record, "communities", "Largest communities at C0")
    _print_list(out, record, "entities", "Best connected entities")
    _print_list(out, record, "documents", "Documents with the most chunks")
    _print_next(out, record, index_arguments, ["search TEXT"])


def _print_matches(out: Console, record: Record, index_arguments: str) -> None:
    if not any(record["totals"].values()):
        out.print(f"No name contains {collapse_whitespace(record['text'], _MAX_TEXT)!r}.")
        if record["near"]:
            out.print(
                "Did you mean: " + "; ".join(collapse_whitespace(name, 80) for name in record["near"]) + "?"
            )
        return
    for name in ("entities", "communities", "documents"):
        _print_list(out, record, name)
    _print_next(out, record, index_arguments)


def _print_next(out: Console, record: Record, index_arguments: str, others: Sequence[str] = ()) -> None:
    """Print commands that show the first community, entity and document."""
    commands = [f"community {c['community']}" for c in record["communities"][:1]]
    commands += [f"entity {e['human_readable_id']}" for e in record["entities"][:1]]
    commands += [f"document {d['human_readable_id']}" for d in record["documents"][:1]]
    out.print("\nLook closer:", style="bold")
    for arguments in (*commands, *others):
        out.print(f"  graphrag-ray inspect {arguments} {index_arguments}")


def _print_record(out: Console, record: Record) -> None:
    """Print a record, then its lists."""
    kind, report = record["kind"], record.get("report")
    values = {**record, "type": record.get("type") or "untyped", "title": (report or record).get("title")}
    out.print(collapse_whitespace(_TITLES[kind].format_map(values)), style="bold")
    if record.get("description"):
        out.print(f"  {collapse_whitespace(record['description'])}")
    if kind in ("chunk", "document"):
        title = "" if not record["title"] or record["title"] in record["place"] else record["title"]
        if about := ", ".join(collapse_whitespace(part) for part in (title, record["date"]) if part):
            source = _DATE_SOURCES.get(record.get("date_source") or "", "")
            out.print(f"  {about}{source}")
        if record["metadata"]:
            out.print(f"  {collapse_whitespace(record['metadata'], _MAX_METADATA)}")
    _print_details(out, record)
    if kind == "community":
        _print_list(out, record, "children", "Sub-communities")
        _print_list(out, record, "entities", "Members")
    for name in _LISTS.get(kind, ()):
        _print_list(out, record, name)


def _print_details(out: Console, record: Record) -> None:
    match record["kind"]:
        case "entity":
            if record["description_failed"]:
                out.print("  Summarising the descriptions failed; these are the first ones.")
            mentions = f"{plural(record['n_instances'], 'mention')} in {plural(record['frequency'], 'chunk')}"
            out.print(f"  degree {record['degree']:,}; {mentions}")
        case "relationship":
            if record["relation"]:
                out.print(f"  {_ends(record)}")
            out.print(f"  weight {record['weight']:g}, combined degree {record['combined_degree']:,}")
        case "claim":
            dates = (d for d in (record["start_date"], record["end_date"]) if d and d != "NONE")
            out.print(f"  {', '.join([record['type'], record['status'], *dates])}")
        case "community":
            packed = ", combines several small components" if record["packed"] else ""
            covered = describe_period(record["period_start"], record["period_end"])
            covers = f", covers {covered}" if covered else ""
            out.print(f"  {plural(record['size'], 'member')}{packed}, of {record['period']}{covers}")
            if record["parent"]:
                out.print(f"  part of {_line('communities', record['parent'])}")
            _print_report(out, record["report"])
        case "chunk":
            neighbours = [f"chunk {w} {record[w]}" for w in ("before", "after") if record[w] is not None]
            out.print(f"  {', '.join([plural(record['n_tokens'], 'token'), *neighbours])}\n")
            out.print(record["header"] + record["text"])
        case "document":
            _print_chunks(out, record)


def _print_report(out: Console, report: Record | None) -> None:
    if not report:
        out.print("  No report (see `graphrag-ray failures`).")
        return
    if report["rank"] is not None:
        out.print(f"  rated {report['rank']:g} of 10: {collapse_whitespace(report['rating_explanation'])}\n")
    answer_output.print_text(out, report["full_content"])
    if report.get("composed"):
        out.print("  [composed from its records without a model call]")
    if left_out := report["context_left_out"]:
        out.print(f"  [written without {plural(left_out, 'record')} that did not fit or had failed]")


def _print_chunks(out: Console, record: Record) -> None:
    """Print the chunks of a document with their entities."""
    total = record["totals"]["chunks"]
    out.print(f"  {record['n_characters']:,} characters, {plural(total, 'chunk')}")
    for c in record["chunks"]:
        where = f"characters {c['start']} to {c['end']}, {plural(c['n_tokens'], 'token')}"
        out.print(f"\nChunk {c['human_readable_id']} ({where})", style="bold")
        names = "; ".join(collapse_whitespace(e["title"], 80) for e in c["entities"])
        more = c["totals"]["entities"] - len(c["entities"])
        out.print(f"  {names or 'no entities'}{f' and {more:,} more' if more > 0 else ''}")
        counts = [plural(c["totals"][name], name[:-1]) for name in ("relationships", "claims")]
        out.print(f"  {', '.join(counts)}")
    if (n := total - len(record["chunks"])) > 0:
        out.print(f"\n{n:,} more (--limit 0 shows all)")


def _print_list(out: Console, record: Record, name: str, heading: str = "") -> None:
    """Print a list of a record, unless it is empty."""
    if rows := record[name]:
        total = record["totals"].get(name, len(rows))
        count = f"{len(rows):,} of {total:,}" if total > len(rows) else f"{total:,}"
        headings = {"relationships": "Relationships, by weight", "names": "Other names merged into it"}
        default = headings.get(name, name.capitalize())
        out.print(f"\n{heading or default} ({count})", style="bold")
        for row in rows:
            out.print(f"  {_line(name, row)}")


def _ends(row: Record) -> str:
    """Format the ends of a relationship, with its relation if it has one: `METFORMIN —TREATS→ DIABETES`."""
    ends = [collapse_whitespace(row[end], 80) for end in ("source", "target")]
    link = f" —{collapse_whitespace(row['relation'], 80)}→ " if row["relation"] else " – "
    return link.join(reversed(ends) if row["relation_reversed"] else ends)


def _line(name: str, row: Record) -> str:
    """Format a record as a line in a list."""
    match name:
        case "communities" | "children":
            rank = "" if row["rank"] is None else f", rated {row['rank']:g}"
            n = row["children"]
            children = f", {plural(n, 'sub-community', 'sub-communities')}" if n else ""
            about = f"{plural(row['size'], 'member')}{rank}{children}"
            title = collapse_whitespace(row["title"], _MAX_TEXT)
            return f"C{row['level']}:{row['community']}  {title} ({about})"
        case "entities":
            title = collapse_whitespace(row["title"], _MAX_TEXT)
            text = f"{title} ({row['type'] or 'untyped'}, degree {row['degree']:,})"
        case "names":
            where = f" in {row['place']}" if row["place"] else ""
            why = collapse_whitespace(row["evidence"], _MAX_TEXT)
            return f"{row['name']}{where}: {plural(row['n_instances'], 'mention')}, {row['rule']} ({why})"
        case "relationships":
            description = collapse_whitespace(row["description"], _MAX_TEXT)
            text = f"{_ends(row)} (weight {row['weight']:g}){f': {description}' if description else ''}"
        case "claims":
            ends = (
                f"{collapse_whitespace(row['subject_id'], 80)} – {collapse_whitespace(row['object_id'], 80)}"
            )
            text = f"{ends} ({row['status']}): {collapse_whitespace(row['description'], _MAX_TEXT)}"
        case "documents":
            title = (
                ""
                if not row["title"] or row["title"] in row["place"]
                else collapse_whitespace(row["title"], _MAX_TEXT)
            )
            chunks = f" ({plural(row['chunks'], 'chunk')})" if "chunks" in row else ""
            text = f"{collapse_whitespace(row['place'], _MAX_TEXT)}{f': {title}' if title else ''}{chunks}"
        case _:
            where = f"{collapse_whitespace(row['place'], _MAX_TEXT)}, character {row['quote_start']}"
            text = f"{where}: “{collapse_whitespace(row['quote'])}”"
    return f"{row['human_readable_id']:>6}  {text}"
