"""`graphrag-ray inspect`: look at what is in an index before asking it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.wording import one_line, plural
from graphrag_ray.cli import console, writing
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, hierarchy_option, json_option, reach_options, spare_pandas

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, Any]

_TOLD = 200
"""Characters of a description in a list; --json has it whole."""
_METADATA = 400
_TITLES = {
    "entity": "Entity {human_readable_id}: {title} ({type})",
    "relationship": "Relationship {human_readable_id}: {source} – {target}",
    "claim": "Claim {human_readable_id}: {subject_id} – {object_id}",
    "community": "Community {community} (C{level}): {title}",
    "chunk": "Chunk {human_readable_id}: {place}, characters {start} to {end}",
    "document": "Document {human_readable_id}: {place}",
}
_LISTS = {
    "entity": ("communities", "relationships", "claims", "chunks"),
    "relationship": ("entities", "communities", "chunks"),
    "claim": ("chunks",),
    "chunk": ("entities", "relationships", "claims"),
    "community": ("relationships", "chunks"),
}
"""Lists of each kind of record, in the order in which they are printed."""


@click.command(cls=Command)
@click.argument("what", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]")
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="So many records of each list; 0: all.",
)
@hierarchy_option
@json_option
def inspect(
    given: Given,
    what: str | None,
    names: tuple[str, ...],
    snapshot: int | None,
    limit: int,
    hierarchy: str | None,
    as_json: bool,
) -> None:
    """Look at one record of the index and what it is connected to, without a model and without cost.

    WHAT is community (its report, members, parent and children), theme (the same, of hierarchy attributed),
    summary (of hierarchy tree), entity, relationship, claim, chunk or document, and NAME its number, as
    references and other records name it, or what it is called: in any case, with or without accents (one that
    begins with a dash after `--`). `search TEXT` finds names that hold a text. Without WHAT: the largest of
    everything, and where to go from there.

    \b
    Examples:
      graphrag-ray inspect --root ./my-index
      graphrag-ray inspect community C1:12 --root ./my-index
      graphrag-ray inspect entity "mara venn" --root ./my-index --limit 0
      graphrag-ray inspect relationship "mara venn" "edgar hask" --root ./my-index
      graphrag-ray inspect document letters/1987.txt --root ./my-index --json
      graphrag-ray inspect search harbour --root ./my-index
    """
    spare_pandas()
    from graphrag_ray.export.connected_records import View, look_up, overview, search
    from graphrag_ray.query.methods.asked_hierarchy import looked_at
    from graphrag_ray.query.reading import Reader

    store, manifest = given.snapshot(snapshot)
    view = View(Reader(store, manifest), limit or None, looked_at(manifest.hierarchies, hierarchy))
    if what is None:
        found = overview(view)
    elif what.casefold() == "search":
        found = search(view, " ".join(names))
    else:
        found = look_up(view, what, names)
    if as_json:
        console.print_json(found)
        return
    out = console.console_of()
    of = f" --hierarchy {hierarchy}" if hierarchy else ""
    reached = f"--root {shlex.quote(given.root)}{of}"
    if found["kind"] == "overview":
        _print_overview(out, found, reached)
    elif found["kind"] == "search":
        _print_found(out, found, reached)
    else:
        _print_record(out, found)


def _print_overview(out: Console, found: Record, reached: str) -> None:
    counts = found["counts"]
    held = ", ".join(
        plural(counts.get(name, 0), one, many)
        for name, one, many in (
            ("documents", "document", ""), ("text_units", "chunk", ""), ("entities", "entity", "entities"),
            ("relationships", "relationship", ""), ("communities", "community", "communities"),
        )
    )  # fmt: skip
    out.print(f"Snapshot {found['snapshot']}: {held}")
    if found["about"]:
        out.print(f"  {one_line('About: ' + found['about'])}")
    _print_list(out, found, "communities", "Largest communities at C0")
    _print_list(out, found, "entities", "Best connected entities")
    _print_list(out, found, "documents", "Documents with most chunks")
    asked = [f"community {c['community']}" for c in found["communities"][:1]]
    asked += [f"entity {shlex.quote(e['title'])}" for e in found["entities"][:1]]
    asked += [f"document {d['human_readable_id']}" for d in found["documents"][:1]]
    _print_next(out, reached, [*asked, "search TEXT"])


def _print_found(out: Console, found: Record, reached: str) -> None:
    if not any(found["totals"].values()):
        out.print(f"No name holds {one_line(found['text'], _TOLD)!r}.")
        if found["near"]:
            out.print("Did you mean: " + "; ".join(one_line(name, 80) for name in found["near"]) + "?")
        return
    for name in ("entities", "communities", "documents"):
        _print_list(out, found, name)
    asked = [f"entity {e['human_readable_id']}" for e in found["entities"][:1]]
    asked += [f"community {c['community']}" for c in found["communities"][:1]]
    asked += [f"document {d['human_readable_id']}" for d in found["documents"][:1]]
    _print_next(out, reached, asked)


def _print_next(out: Console, reached: str, arguments: Sequence[str]) -> None:
    out.print("\nLook closer:", style="bold")
    for given in arguments:
        out.print(f"  graphrag-ray inspect {given} {reached}")


def _print_record(out: Console, found: Record) -> None:
    """What a record is called and says, and then its lists."""
    kind, report = found["kind"], found.get("report")
    shown = {**found, "type": found.get("type") or "untyped", "title": (report or found).get("title")}
    out.print(one_line(_TITLES[kind].format_map(shown)), style="bold")
    if found.get("description"):
        out.print(f"  {one_line(found['description'])}")
    if kind in ("chunk", "document"):
        title = "" if not found["title"] or found["title"] in found["place"] else found["title"]
        if about := ", ".join(one_line(part) for part in (title, found["date"]) if part):
            out.print(f"  {about}")
        if found["metadata"]:
            out.print(f"  {one_line(found['metadata'], _METADATA)}")
    _print_figures(out, found)
    if kind == "community":
        _print_list(out, found, "children", "Sub-communities")
        _print_list(out, found, "entities", "Members")
    for name in _LISTS.get(kind, ()):
        _print_list(out, found, name)


def _print_figures(out: Console, found: Record) -> None:
    match found["kind"]:
        case "entity":
            if found["description_failed"]:
                out.print("  The summary of its descriptions failed; these are the first as they stand.")
            mentioned = f"{plural(found['n_instances'], 'mention')} in {plural(found['frequency'], 'chunk')}"
            out.print(f"  degree {found['degree']:,}; {mentioned}")
        case "relationship":
            out.print(f"  weight {found['weight']:g}, combined degree {found['combined_degree']:,}")
        case "claim":
            dates = (d for d in (found["start_date"], found["end_date"]) if d and d != "NONE")
            out.print(f"  {', '.join([found['type'], found['status'], *dates])}")
        case "community":
            packed = ", several small components together" if found["packed"] else ""
            out.print(f"  {plural(found['size'], 'member')}{packed}, of {found['period']}")
            if found["parent"]:
                out.print(f"  part of {_line('communities', found['parent'])}")
            _print_report(out, found["report"])
        case "chunk":
            beside = [
                f"chunk {word} {found[word]}" for word in ("before", "after") if found[word] is not None
            ]
            out.print(f"  {', '.join([plural(found['n_tokens'], 'token'), *beside])}\n")
            out.print(found["header"] + found["text"])
        case "document":
            _print_chunks(out, found)


def _print_report(out: Console, report: Record | None) -> None:
    if not report:
        out.print("  It has no report (`graphrag-ray failures` says why).")
        return
    if report["rank"] is not None:
        out.print(f"  rated {report['rank']:g} of 10: {one_line(report['rating_explanation'])}\n")
    writing.print_text(out, report["full_content"])
    if left_out := report["context_left_out"]:
        out.print(f"  [{plural(left_out, 'record')} did not fit, or had failed, when this was written]")


def _print_chunks(out: Console, found: Record) -> None:
    """The chunks of a document, with the entities of each."""
    total = found["totals"]["chunks"]
    out.print(f"  {found['n_characters']:,} characters, {plural(total, 'chunk')}")
    for c in found["chunks"]:
        where = f"characters {c['start']} to {c['end']}, {plural(c['n_tokens'], 'token')}"
        out.print(f"\nChunk {c['human_readable_id']} ({where})", style="bold")
        names = "; ".join(one_line(e["title"], 80) for e in c["entities"])
        more = c["totals"]["entities"] - len(c["entities"])
        out.print(f"  {names or 'no entities'}{f' and {more:,} more' if more > 0 else ''}")
        others = [plural(c["totals"][what], what[:-1]) for what in ("relationships", "claims")]
        out.print(f"  {', '.join(others)}")
    if (left := total - len(found["chunks"])) > 0:
        out.print(f"\n{left:,} more: --limit 0 shows all")


def _print_list(out: Console, found: Record, name: str, heading: str = "") -> None:
    """A list of a record, unless it is empty."""
    if rows := found[name]:
        total = found["totals"].get(name, len(rows))
        of = f"{len(rows):,} of {total:,}" if total > len(rows) else f"{total:,}"
        usual = "Relationships, by weight" if name == "relationships" else name.capitalize()
        out.print(f"\n{heading or usual} ({of})", style="bold")
        for row in rows:
            out.print(f"  {_line(name, row)}")


def _line(name: str, row: Record) -> str:
    """A record in a list of this name."""
    match name:
        case "communities" | "children":
            rank = "" if row["rank"] is None else f", rated {row['rank']:g}"
            n = row["children"]
            below = f", {plural(n, 'sub-community', 'sub-communities')}" if n else ""
            about = f"{plural(row['size'], 'member')}{rank}{below}"
            return f"C{row['level']}:{row['community']}  {one_line(row['title'], _TOLD)} ({about})"
        case "entities":
            text = f"{one_line(row['title'], _TOLD)} ({row['type'] or 'untyped'}, degree {row['degree']:,})"
        case "relationships":
            ends = f"{one_line(row['source'], 80)} – {one_line(row['target'], 80)}"
            said = one_line(row["description"], _TOLD)
            text = f"{ends} (weight {row['weight']:g}){f': {said}' if said else ''}"
        case "claims":
            ends = f"{one_line(row['subject_id'], 80)} – {one_line(row['object_id'], 80)}"
            text = f"{ends} ({row['status']}): {one_line(row['description'], _TOLD)}"
        case "documents":
            title = "" if not row["title"] or row["title"] in row["place"] else one_line(row["title"], _TOLD)
            held = f" ({plural(row['chunks'], 'chunk')})" if "chunks" in row else ""
            text = f"{one_line(row['place'], _TOLD)}{f': {title}' if title else ''}{held}"
        case _:
            where = f"{one_line(row['place'], _TOLD)}, character {row['quote_start']}"
            text = f"{where}: “{one_line(row['quote'])}”"
    return f"{row['human_readable_id']:>6}  {text}"
