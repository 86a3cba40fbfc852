"""`graphrag-ray inspect`: look at what is in an index before asking it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.wording import one_line, plural
from graphrag_ray.cli import console, writing
from graphrag_ray.cli.options import Given, hierarchy_option, json_option, reach_options, spare_pandas
from graphrag_ray.cli.program import Command, root_option

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, Any]

_TOLD = 200
"""Characters of a description in a list; --json has it whole."""
_METADATA = 400


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
    else:
        _print_record(found, given.root, hierarchy)


def _print_record(found: Record, root: str, hierarchy: str | None = None) -> None:
    """Any of `inspection.records` and `inspection.overview`. hierarchy: that was asked for."""
    of = f" --hierarchy {hierarchy}" if hierarchy else ""
    _PRINTERS[found["kind"]](console.console_of(), found, f"--root {shlex.quote(root)}{of}")


def _overview(out: Console, found: Record, reached: str) -> None:
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
        _text(out, f"About: {found['about']}")
    _lists(
        out,
        found,
        communities="Largest communities at C0",
        entities="Best connected entities",
        documents="Documents with most chunks",
    )
    asked = [f"community {c['community']}" for c in found["communities"][:1]]
    asked += [f"entity {shlex.quote(e['title'])}" for e in found["entities"][:1]]
    asked += [f"document {d['human_readable_id']}" for d in found["documents"][:1]]
    _next(out, reached, [*asked, "search TEXT"])


def _search(out: Console, found: Record, reached: str) -> None:
    if not any(found["totals"].values()):
        out.print(f"No name holds {one_line(found['text'], _TOLD)!r}.")
        if found["near"]:
            out.print("Did you mean: " + "; ".join(one_line(name, 80) for name in found["near"]) + "?")
        return
    _lists(out, found, "entities", "communities", "documents")
    asked = [f"entity {e['human_readable_id']}" for e in found["entities"][:1]]
    asked += [f"community {c['community']}" for c in found["communities"][:1]]
    asked += [f"document {d['human_readable_id']}" for d in found["documents"][:1]]
    _next(out, reached, asked)


def _entity(out: Console, found: Record, reached: str) -> None:
    _heading(out, f"Entity {found['human_readable_id']}: {found['title']} ({found['type'] or 'untyped'})")
    _text(out, found["description"])
    if found["description_failed"]:
        out.print("  The summary of its descriptions failed; these are the first as they stand.")
    mentioned = plural(found["n_instances"], "mention")
    out.print(f"  degree {found['degree']:,}; {mentioned} in {plural(found['frequency'], 'chunk')}")
    _lists(out, found, "communities", "relationships", "claims", "chunks")


def _relationship(out: Console, found: Record, reached: str) -> None:
    _heading(out, f"Relationship {found['human_readable_id']}: {found['source']} – {found['target']}")
    _text(out, found["description"])
    out.print(f"  weight {found['weight']:g}, combined degree {found['combined_degree']:,}")
    _lists(out, found, "entities", "communities", "chunks")


def _claim(out: Console, found: Record, reached: str) -> None:
    _heading(out, f"Claim {found['human_readable_id']}: {found['subject_id']} – {found['object_id']}")
    _text(out, found["description"])
    dates = ", ".join(d for d in (found["start_date"], found["end_date"]) if d and d != "NONE")
    out.print(f"  {found['type']}, {found['status']}" + (f", {dates}" if dates else ""))
    _lists(out, found, "chunks")


def _community(out: Console, found: Record, reached: str) -> None:
    report = found["report"]
    title = report["title"] if report else found["title"]
    _heading(out, f"Community {found['community']} (C{found['level']}): {title}")
    packed = ", several small components together" if found["packed"] else ""
    out.print(f"  {plural(found['size'], 'member')}{packed}, of {found['period']}")
    if found["parent"]:
        out.print(f"  part of {_community_line(found['parent'])}")
    if report:
        if report["rank"] is not None:
            out.print(f"  rated {report['rank']:g} of 10: {one_line(report['rating_explanation'])}\n")
        writing.print_text(out, report["full_content"])
        left_out = report["context_left_out"]
        if left_out:
            out.print(f"  [{plural(left_out, 'record')} did not fit, or had failed, when this was written]")
    else:
        out.print("  It has no report (`graphrag-ray failures` says why).")
    _lists(out, found, children="Sub-communities", entities="Members")
    _lists(out, found, "relationships", "chunks")


def _chunk(out: Console, found: Record, reached: str) -> None:
    where = f"characters {found['start']} to {found['end']}"
    _heading(out, f"Chunk {found['human_readable_id']}: {found['place']}, {where}")
    _about_document(out, found)
    beside = [f"{word} {found[word]}" for word in ("before", "after") if found[word] is not None]
    out.print("  " + ", ".join([plural(found["n_tokens"], "token"), *(f"chunk {b}" for b in beside)]) + "\n")
    out.print(found["header"] + found["text"])
    _lists(out, found, "entities", "relationships", "claims")


def _document(out: Console, found: Record, reached: str) -> None:
    _heading(out, f"Document {found['human_readable_id']}: {found['place']}")
    _about_document(out, found)
    out.print(f"  {found['n_characters']:,} characters, {plural(found['totals']['chunks'], 'chunk')}")
    for c in found["chunks"]:
        where = f"characters {c['start']} to {c['end']}, {plural(c['n_tokens'], 'token')}"
        out.print(f"\nChunk {c['human_readable_id']} ({where})", style="bold")
        names = "; ".join(one_line(e["title"], 80) for e in c["entities"])
        more = c["totals"]["entities"] - len(c["entities"])
        out.print(f"  {names or 'no entities'}{f' and {more:,} more' if more > 0 else ''}")
        others = [plural(c["totals"][what], what[:-1]) for what in ("relationships", "claims")]
        out.print(f"  {', '.join(others)}")
    if (left := found["totals"]["chunks"] - len(found["chunks"])) > 0:
        out.print(f"\n{left:,} more: --limit 0 shows all")


def _about_document(out: Console, found: Record) -> None:
    title = "" if not found["title"] or found["title"] in found["place"] else found["title"]
    about = ", ".join(one_line(part) for part in (title, found["date"]) if part)
    if about:
        out.print(f"  {about}")
    if found["metadata"]:
        out.print(f"  {one_line(found['metadata'], _METADATA)}")


def _community_line(c: Record) -> str:
    rank = "" if c["rank"] is None else f", rated {c['rank']:g}"
    below = f", {plural(c['children'], 'sub-community', 'sub-communities')}" if c["children"] else ""
    about = f"{plural(c['size'], 'member')}{rank}{below}"
    return f"C{c['level']}:{c['community']}  {one_line(c['title'], _TOLD)} ({about})"


def _entity_line(e: Record) -> str:
    title, type_ = one_line(e["title"], _TOLD), e["type"] or "untyped"
    return f"{e['human_readable_id']:>6}  {title} ({type_}, degree {e['degree']:,})"


def _relationship_line(r: Record) -> str:
    ends = f"{one_line(r['source'], 80)} – {one_line(r['target'], 80)}"
    told = one_line(r["description"], _TOLD)
    return f"{r['human_readable_id']:>6}  {ends} (weight {r['weight']:g})" + (f": {told}" if told else "")


def _claim_line(c: Record) -> str:
    about = f"{one_line(c['subject_id'], 80)} – {one_line(c['object_id'], 80)} ({c['status']})"
    return f"{c['human_readable_id']:>6}  {about}: {one_line(c['description'], _TOLD)}"


def _document_line(d: Record) -> str:
    held = f" ({plural(d['chunks'], 'chunk')})" if "chunks" in d else ""
    title = "" if not d["title"] or d["title"] in d["place"] else f": {one_line(d['title'], _TOLD)}"
    return f"{d['human_readable_id']:>6}  {one_line(d['place'], _TOLD)}{title}{held}"


def _chunk_line(c: Record) -> str:
    where = f"{one_line(c['place'], _TOLD)}, character {c['quote_start']}"
    return f"{c['human_readable_id']:>6}  {where}: “{one_line(c['quote'])}”"


_LINES: Mapping[str, Callable[[Record], str]] = {
    "communities": _community_line,
    "children": _community_line,
    "entities": _entity_line,
    "relationships": _relationship_line,
    "claims": _claim_line,
    "documents": _document_line,
    "chunks": _chunk_line,
}


def _lists(out: Console, found: Record, *names: str, **headings: str) -> None:
    """Lists of a record that are not empty. headings: of lists that are not called by their names."""
    for name in (*names, *headings):
        if rows := found[name]:
            total = found["totals"].get(name, len(rows))
            of = f"{len(rows):,} of {total:,}" if total > len(rows) else f"{total:,}"
            usual = "Relationships, by weight" if name == "relationships" else name.capitalize()
            out.print(f"\n{headings.get(name, usual)} ({of})", style="bold")
            for row in rows:
                out.print(f"  {_LINES[name](row)}")


def _next(out: Console, reached: str, arguments: Sequence[str]) -> None:
    out.print("\nLook closer:", style="bold")
    for given in arguments:
        out.print(f"  graphrag-ray inspect {given} {reached}")


def _heading(out: Console, text: str) -> None:
    out.print(one_line(text), style="bold")


def _text(out: Console, text: str) -> None:
    if text:
        out.print(f"  {one_line(text)}")


_PRINTERS: Mapping[str, Callable[[Console, Record, str], None]] = {
    "overview": _overview,
    "search": _search,
    "entity": _entity,
    "relationship": _relationship,
    "claim": _claim,
    "community": _community,
    "chunk": _chunk,
    "document": _document,
}
