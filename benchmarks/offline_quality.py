"""How good the offline engine is: the podcast corpus against its targets, the demo corpus against truth.yaml.

    python benchmarks/offline_quality.py [--podcast FOLDER] [--questions CSV] [--demo FOLDER]

The whole way of the data runs in a plain loop in this process, without Ray: extraction, merge, pruning,
descriptions, communities, reports, questions. FOLDER of the podcast holds one .txt per chunk, the first
line of which repeats the file name. Prints a table per corpus; measures, asserts nothing.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from graphrag_ray import records
from graphrag_ray.corpus.chunks import chunk as cut
from graphrag_ray.corpus.parse import Document, documents_in
from graphrag_ray.corpus.tokens import count as count_tokens
from graphrag_ray.engine.drive import run
from graphrag_ray.extract.dialogue import Chunk, Extraction, extract, extract_spec
from graphrag_ray.graph import merge
from graphrag_ray.graph.arrays import degrees, graph_arrays, id_prefixes
from graphrag_ray.graph.communities import communities, edge_order
from graphrag_ray.graph.descriptions import describe, describe_spec
from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.leiden import components
from graphrag_ray.graph.prune import keep_entities, keep_relationships
from graphrag_ray.ids import entity_key, report_id
from graphrag_ray.offline import answer
from graphrag_ray.offline.prune_names import weak_names
from graphrag_ray.prompts import load_prompts
from graphrag_ray.query import map_reduce
from graphrag_ray.reports import context
from graphrag_ray.reports.dialogue import Report, full_content, report, report_spec
from graphrag_ray.reports.elements import arrange
from graphrag_ray.reports.plan import EDGE, NODE, Plan
from graphrag_ray.reports.schedule import Schedule
from graphrag_ray.settings import Settings, load_settings

VOCABULARY = "cl100k_base"
OFF_TOPIC = (
    "What is a good recipe for sourdough bread?",
    "How many goals were scored in the 1998 football World Cup?",
    "Which vaccines does a puppy need in its first year?",
    "How do I prune roses in winter?",
    "What were the causes of the fall of the Roman Republic?",
    "How long should I boil an egg?",
    "Who won the Eurovision Song Contest in 1974?",
    "What is the capital of Mongolia?",
    "How do I remove a red wine stain from a white carpet?",
    "What are the rules of cricket?",
)
"""What neither corpus says anything about."""


@dataclass
class Built:
    """An index in memory. `nodes`, `edges`: lists of rows in id order."""

    settings: Settings
    texts: dict[str, str]
    extractions: list[tuple[merge.Unit, Extraction]]
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    source: np.ndarray
    target: np.ndarray
    hierarchy: Hierarchy
    reports: dict[int, Report]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def degree(self) -> np.ndarray:
        return degrees(self.source, self.target, len(self.nodes))


def tokens(text: str) -> int:
    return count_tokens(text, VOCABULARY)


class Clock:
    """CPU seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.process_time()

    def lap(self, name: str) -> None:
        now = time.process_time()
        self.seconds[name], self._at = now - self._at, now


def build(chunks: Sequence[tuple[merge.Unit, str]], settings: Settings) -> Built:
    prompts = load_prompts()
    clock = Clock()
    spec = extract_spec(prompts, settings)
    extractions = [(unit, run(extract(Chunk(text), spec), answer)) for unit, text in chunks]
    clock.lap("extract")
    nodes, edges = merged(extractions, len(chunks), settings)
    clock.lap("merge")
    spec_d = describe_spec(prompts, settings)
    for kind, rows in (("entity", nodes), ("relationship", edges)):
        for row in rows:
            name = row["title"] if kind == "entity" else f"{row['source']} — {row['target']}"
            row["description"] = described(kind, name, row.pop("descriptions"), spec_d)
    clock.lap("describe")
    ids = pa.array([n["id"] for n in nodes])
    source, target = graph_arrays(
        [pa.chunked_array([ids])],
        pa.chunked_array([[e["source_id"] for e in edges]]),
        pa.chunked_array([[e["target_id"] for e in edges]]),
    )
    weight = np.array([e["weight"] for e in edges])
    node_tokens, edge_tokens = element_tokens(nodes, edges)
    hierarchy = communities(
        len(nodes), source, target, weight, settings.communities, node_tokens, 4000, None, id_prefixes(ids)
    )
    clock.lap("communities")
    built = Built(
        settings,
        {u.text_unit_id: t for u, t in chunks},
        extractions,
        nodes,
        edges,
        source,
        target,
        hierarchy,
        {},
    )
    built.reports = write_reports(built, prompts, node_tokens, edge_tokens)
    clock.lap("reports")
    built.seconds = clock.seconds
    return built


def merged(
    extractions: Sequence[tuple[merge.Unit, Extraction]], n_units: int, settings: Settings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Merged and pruned rows with their `descriptions`, as steps/merge.py does it by partition."""
    instances = merge.sort_instances(merge.entity_instance_rows(extractions))
    links = merge.sort_instances(merge.relationship_instance_rows(extractions).table)
    entities, relationships = merge.merge_entities(instances), merge.merge_relationships(links)
    weak = pc.is_in(entities["id"], value_set=weak_names(instances)).to_numpy()
    source, target = graph_arrays([entities["id"]], relationships["source_id"], relationships["target_id"])
    frequency = entities["frequency"].to_numpy()
    n_ab = pc.list_value_length(relationships["text_unit_ids"]).to_numpy().astype(np.int64)
    between = ~weak[source] & ~weak[target]
    kept_edges = np.zeros(len(source), dtype=bool)
    kept_edges[between] = keep_relationships(
        source[between], target[between], n_ab[between], frequency, n_units, settings.graph.min_log_likelihood
    )
    degree = degrees(source[kept_edges], target[kept_edges], len(entities))
    typed = pc.not_equal(entities["type"], "").to_numpy().astype(np.int64)
    kept = ~weak & keep_entities(frequency, typed, degree)
    return (
        entities.append_column("descriptions", lists(instances)).filter(pa.array(kept)).to_pylist(),
        relationships.append_column("descriptions", lists(links)).filter(pa.array(kept_edges)).to_pylist(),
    )


def lists(instances: pa.Table) -> pa.ChunkedArray:
    return pa.chunked_array([b["descriptions"] for b in merge.descriptions_by_key(instances)])


def described(kind: Any, name: str, descriptions: Sequence[str], spec: Any) -> str:
    """As a tree of the plainest kind: batches of 150 descriptions."""
    texts = list(descriptions)
    while len(texts) > 150:
        texts = [
            run(describe(kind, name, texts[i : i + 150], spec), answer) for i in range(0, len(texts), 150)
        ]
    return run(describe(kind, name, texts, spec), answer)


def element_tokens(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    return (
        np.array([context.record_tokens(entity_record(n), tokens) for n in nodes], dtype=np.int64),
        np.array([context.record_tokens(edge_record(e), tokens) for e in edges], dtype=np.int64),
    )


def entity_record(n: Mapping[str, Any]) -> context.Record:
    return context.entity(n["id"], n["title"], n["description"])


def edge_record(e: Mapping[str, Any]) -> context.Record:
    return context.relationship(e["id"], e["source"], e["target"], e["description"])


def write_reports(built: Built, prompts: Any, node_tokens: Any, edge_tokens: Any) -> dict[int, Report]:
    h, none = built.hierarchy, np.zeros(0, dtype=np.int64)
    order, community = edge_order(h, built.source, built.target)
    elements, _ = arrange(
        h, node_tokens, built.source, built.target, edge_tokens, order, community, none, none
    )
    budget = built.settings.reports.context_tokens
    schedule = Schedule(h, elements, budget)
    spec = report_spec(built.settings, prompts)
    written: dict[int, Report] = {}
    while not schedule.finished:
        for plan in schedule.ready():
            shown = context.render(
                plan_records(built, plan, order, written), budget, tokens, plan.left_out.total
            )
            written[plan.community] = run(report(shown, spec), answer)
            schedule.done(plan.community, context.record_tokens(report_row(plan.community, written), tokens))
    return written


def report_row(community: int, written: Mapping[int, Report]) -> context.Record:
    r = written[community]
    return context.report_record(report_id(str(community)), r.title, full_content(r))


def plan_records(built: Built, plan: Plan, order: Any, written: Mapping[int, Report]) -> list[context.Record]:
    out = []
    for kind, index in zip(plan.kinds.tolist(), plan.indices.tolist(), strict=True):
        if kind == NODE:
            out.append(entity_record(built.nodes[int(built.hierarchy.order[index])]))
        elif kind == EDGE:
            out.append(edge_record(built.edges[int(order[index])]))
        else:
            out.append(report_row(index, written))
    return out


def ask(built: Built, question: str, level: int) -> tuple[map_reduce.Reduced, list[map_reduce.MapAnswer]]:
    budget, prompts = built.settings.query.context_tokens, load_prompts()
    rows = [report_row(int(c), built.reports) for c in built.hierarchy.at_level(level)]
    spec = map_reduce.map_spec(built.settings, prompts)
    contexts = map_reduce.pack(rows, budget, built.settings.query.seed, tokens)
    mapped = [run(map_reduce.map_answer(question, c, spec), answer) for c in contexts]
    to_reduce = map_reduce.reduce_context(mapped, budget, tokens)
    reduced = run(
        map_reduce.reduce_answer(question, to_reduce, map_reduce.reduce_spec(built.settings, prompts)), answer
    )
    return reduced, mapped


def coarsest_full(built: Built) -> int:
    """The coarsest level whose reports fill a context."""
    for level in range(built.hierarchy.n_levels):
        size = sum(
            tokens(context.shown_content(full_content(built.reports[int(c)])))
            for c in built.hierarchy.at_level(level)
        )
        if size >= built.settings.query.context_tokens:
            return level
    return max(0, built.hierarchy.n_levels - 1)


# ---------------------------------------------------------------------------------------- measuring


def graph_table(built: Built) -> list[tuple[str, str]]:
    label = components(len(built.nodes), np.stack([built.source, built.target], axis=1))
    largest = np.bincount(label).max() / max(1, len(built.nodes))
    h = built.hierarchy
    per = {k: built.seconds[k] for k in built.seconds}
    n = len(built.texts)
    return [
        ("chunks", f"{n}"),
        ("nodes", f"{len(built.nodes)}"),
        ("edges", f"{len(built.edges)}"),
        ("largest component, share of nodes", f"{largest:.3f}"),
        ("modularity of C0", f"{h.modularity:.3f}"),
        ("reports at C0, C1, …", " / ".join(str(len(h.at_level(k))) for k in range(h.n_levels))),
        ("types", ", ".join(f"{t} {c}" for t, c in Counter(x["type"] for x in built.nodes).most_common())),
        ("CPU ms per chunk, extraction", f"{1000 * per['extract'] / n:.2f}"),
        ("CPU ms per report", f"{1000 * per['reports'] / max(1, h.n_communities):.2f}"),
        ("CPU s, describe", f"{per['describe']:.1f}"),
        *report_table(built),
    ]


def folded(text: str) -> str:
    return " ".join(text.split())


def quotations(text: str) -> list[str]:
    """What a report or an answer puts in quotation marks before a reference, with nested marks."""
    out, depth, start = [], 0, 0
    for at, c in enumerate(text):
        if c == "“":
            start = at + 1 if depth == 0 else start
            depth += 1
        elif c == "”" and depth:
            depth -= 1
            if depth == 0 and text[at + 1 :].lstrip().startswith("[Data:"):
                out.append(text[start:at])
    return out


def report_table(built: Built) -> list[tuple[str, str]]:
    """Are quotations verbatim at their place, none twice, and do findings name a member?"""
    units = {u: folded(t) for u, t in built.texts.items()}
    places = {("Entities", n["id"]): n["text_unit_ids"] for n in built.nodes}
    places |= {("Relationships", e["id"]): e["text_unit_ids"] for e in built.edges}
    h, below = built.hierarchy, {report_id(str(c)): c for c in built.reports}
    titles = [n["title"] for n in built.nodes]
    said = verbatim = twice = findings = named = dropped = 0
    sizes = []
    for c, r in built.reports.items():
        text = full_content(r)
        sizes.append(tokens(context.shown_content(text)))
        dropped += r.dropped_references
        quotes = quotations(text)
        twice += len(quotes) - len({q.casefold() for q in quotes})
        for quote in quotes:
            after = text[text.find(f"“{quote}”") + len(quote) + 2 :]
            cited = records.references_in(after[: after.find("]") + 1])
            said += 1
            verbatim += all(supported(quote, f, places, units, built, below) for f in cited) and bool(cited)
        members = [titles[i] for i in h.order[h.start[c] : h.end[c]]]
        for summary, _ in r.findings:
            findings += 1
            named += any(m in entity_key(summary) for m in members)
    return [
        ("quotations in reports", f"{said}"),
        ("… verbatim where they are said to be", f"{verbatim / max(1, said):.4f}"),
        ("… twice in one report", f"{twice}"),
        ("findings", f"{findings}"),
        ("… that name a member", f"{named / max(1, findings):.3f}"),
        ("references outside the context", f"{dropped}"),
        ("tokens per report, median", f"{np.median(sizes):.0f}"),
    ]


def supported(
    quote: str,
    cited: records.Reference,
    places: Mapping[Any, Any],
    units: Mapping[str, str],
    built: Built,
    below: Any,
) -> bool:
    if cited.section == "Reports":
        return quote in full_content(built.reports[below[cited.id]])
    return any(quote in units[u] for u in places[cited.section, cited.id])


def question_table(built: Built, questions: Sequence[str], show: int = 0) -> list[tuple[str, str]]:
    level = coarsest_full(built)
    clock = time.process_time()
    answered, texts, n_map = 0, [], 0
    poor = []
    all_texts = folded(" \n ".join(built.texts.values()))
    quotes = found = 0
    for question in questions:
        reduced, mapped = ask(built, question, level)
        n_map += len(mapped)
        enough = reduced.found and len(reduced.references) >= 3
        answered += enough
        if not enough:
            poor.append(question)
        texts.append(reduced.text)
        said = quotations(reduced.text)
        quotes += len(said)
        found += sum(q in all_texts for q in said)
    seconds = time.process_time() - clock
    off = [(q, ask(built, q, level)) for q in OFF_TOPIC]
    silent = sum(not r.found for _, (r, _) in off)
    for q, (r, mapped) in off:
        if r.found:
            print("OFF-TOPIC ANSWERED", q, [m.score for m in mapped], r.text[:300])
    for q in poor[:10]:
        print("POOR", q)
    for q, text in list(zip(questions, texts, strict=True))[:show]:
        print("\nQ:", q, "\n", text)
    n = max(1, len(questions))
    return [
        ("level asked", f"C{level}"),
        ("questions", f"{len(questions)}"),
        ("… with three or more references", f"{answered / n:.3f}"),
        ("… distinct answers", f"{len(set(texts)) / n:.3f}"),
        ("quotations in answers, verbatim", f"{found / max(1, quotes):.4f} of {quotes}"),
        ("off-topic questions with nothing found", f"{silent} of {len(OFF_TOPIC)}"),
        ("CPU ms per map call, all included", f"{1000 * seconds / max(1, n_map):.1f}"),
    ]


def guests_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Guests by the episode's file name: the capitalised words after `with`, `Podcast_` or the number."""
    out = {}
    for name in sorted({re.sub(r"-part\d+$", "", n) for n in names}):
        s = re.sub(r"([a-z])([A-Z])", r"\1 \2", name.replace("_", " "))
        s = re.sub(
            r"(?i)\b(behind|the|tech|podcast|with|transcript|final|qc|kevin|scott|episode|ep|of)\b",
            " ",
            s.replace("-", " "),
        )
        s = re.sub(
            r"(?i)\b(V?\d+|\(1\)|neuroscientist.*|bioengineering.*|chief.*|ceo.*|sci fi.*|year.*|reprogramming.*)",
            " ",
            s,
        )
        words = [w for w in s.split() if w not in ("(1)",)]
        if words:
            out[name] = words
    return out


def podcast_table(built: Built, files: Sequence[str]) -> list[tuple[str, str]]:
    """Guests are found by the last word of their name, among persons and others, whatever the spelling."""
    by_title = {n["title"]: n for n in built.nodes}
    host = by_title.get("KEVIN SCOTT")
    friends = set()
    for e in built.edges:
        if host and host["title"] in (e["source"], e["target"]):
            friends |= {e["source"], e["target"]}
    guests = {n: w for n, w in guests_of(files).items()}
    people = sorted({" ".join(w) for w in split_pairs(guests.values())})
    found, persons, joined, missing = 0, 0, 0, []
    for person in people:
        title = match(person, by_title)
        if title is None:
            missing.append(person)
            continue
        found += 1
        persons += by_title[title]["type"] == "PERSON"
        joined += title in friends
    top = np.argsort(-built.degree, kind="stable")[:100]
    lower = Counter(n["title"].casefold() for n in built.nodes)
    return [
        ("guests named in file names", f"{len(people)}"),
        ("… that are entities", f"{found / len(people):.3f}  missing: {missing}"),
        ("… that are PERSON", f"{persons / max(1, found):.3f}"),
        ("… connected to KEVIN SCOTT", f"{joined / max(1, found):.3f}"),
        ("twins that differ in case", f"{sum(c > 1 for c in lower.values())}"),
        ("stage directions, file names", str([t for t in by_title if STAGE.search(t)][:9])),
        ("highest degrees", ", ".join(f"{built.nodes[i]['title']} {built.degree[i]}" for i in top)),
    ]


STAGE = re.compile(r"LAUGH|CROSSTALK|INAUDIBLE|^MUSIC$|\.TXT|PART\d|TRANSCRIPT|^EP[ -]?\d")


def split_pairs(names: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    out: list[Sequence[str]] = []
    for words in names:
        if len(words) == 2 and words == ["Collier", "Bloomberg"]:
            out += [["Collier"], ["Bloomberg"]]
        else:
            out.append(words)
    return out


def match(person: str, by_title: Mapping[str, Any]) -> str | None:
    """The node for a guest: the name itself, else the most frequent one that ends with the last word and
    has two words or more."""
    key = entity_key(person)
    plain = {re.sub(r"[^A-ZÀ-Þ]", "", t): t for t in by_title}
    if (exact := plain.get(re.sub(r"[^A-ZÀ-Þ]", "", key))) is not None:
        return exact
    last = key.split()[-1]
    fits = [t for t in by_title if " " in t and t.split()[-1].replace("Ü", "U") == last.replace("Ü", "U")]
    return max(fits, key=lambda t: by_title[t]["frequency"]) if fits else None


# -------------------------------------------------------------------------------------------- truth


def truth_table(built: Built, path: Path) -> list[tuple[str, str]]:
    """Recall and precision against a hand-written list. A found entity counts as true where its key is a
    name or an alias of one in the list; precision leaves terms (type CONCEPT) out, which it does not list."""
    truth = yaml.safe_load(path.read_text("utf-8"))
    canonical: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for e in truth["entities"]:
        kinds[e["name"]] = e["type"]
        for form in [e["name"], *(e.get("aliases") or [])]:
            canonical.setdefault(plain_name(form), e["name"])
    names = [n for n in built.nodes if n["type"] != "CONCEPT"]
    of_title = {n["title"]: canonical.get(plain_name(n["title"])) for n in names}
    hit = {c for c in of_title.values() if c}
    right = sum(c is not None for c in of_title.values())
    typed = [(n, of_title[n["title"]]) for n in names if of_title[n["title"]]]
    good_type = sum(n["type"] == kinds[c] for n, c in typed)
    wanted = {pair(r["source"], r["target"]) for r in truth["relationships"]}
    found = set()
    for e in built.edges:
        a, b = of_title.get(e["source"]), of_title.get(e["target"])
        if a and b and a != b:
            found.add(pair(a, b))
    persons = {c for c, k in kinds.items() if k == "PERSON"}
    return [
        ("entities in the list", f"{len(kinds)}"),
        ("… recall", f"{len(hit) / len(kinds):.3f}"),
        ("… recall of persons", f"{len(hit & persons) / len(persons):.3f}"),
        ("names found", f"{len(names)}"),
        ("… precision", f"{right / max(1, len(names)):.3f}"),
        ("… type right, of those", f"{good_type / max(1, len(typed)):.3f}"),
        ("relationships in the list", f"{len(wanted)}"),
        ("… recall", f"{len(wanted & found) / len(wanted):.3f}"),
        ("relationships found between them", f"{len(found)}"),
        ("… precision", f"{len(wanted & found) / max(1, len(found)):.3f}"),
        ("missing", ", ".join(sorted(set(kinds) - hit))),
        ("not in the list", ", ".join(sorted(t for t, c in of_title.items() if c is None))),
    ]


def plain_name(name: str) -> str:
    key = entity_key(name).replace("’", "'")
    return re.sub(r"^(?:THE|MR|MRS|MS|MISS|DR|COUNCILLOR|CAPTAIN|MAYOR|PROFESSOR|DAME|CANON) ", "", key)


def pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


# -------------------------------------------------------------------------------------------- input


def podcast_chunks(folder: Path) -> tuple[list[tuple[merge.Unit, str]], list[str]]:
    chunks, files = [], []
    for path in sorted(folder.rglob("*.txt")):
        text = path.read_text("utf-8-sig")
        chunks.append((merge.Unit(path.stem, path.stem, 0), text.partition("\n")[2]))
        files.append(path.stem)
    return chunks, files


def demo_chunks(folder: Path, settings: Settings) -> list[tuple[merge.Unit, str]]:
    chunks = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            for document in documents_in(path.name, stream, settings.input):
                if isinstance(document, Document):
                    for at, c in enumerate(cut(document.text, settings.chunking, VOCABULARY)):
                        unit = merge.Unit(f"{document.id}-{at}", document.id, at)
                        chunks.append((unit, document.text[c.start : c.end]))
    return chunks


def print_table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    print(f"\n{title}\n{'-' * len(title)}")
    for name, value in rows:
        print(f"{name:<42} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--podcast", type=Path, help="folder with one .txt per chunk")
    parser.add_argument("--questions", type=Path, help="CSV with a column question_text")
    parser.add_argument("--demo", type=Path, help="folder with corpus/ and truth.yaml")
    parser.add_argument("--show", type=int, default=0, help="print so many answers and reports")
    parser.add_argument("--set", action="append", default=[], help="a.b=c, as for the index command")
    args = parser.parse_args()
    settings = load_settings(overrides=args.set)
    if args.demo:
        built = build(demo_chunks(args.demo / "corpus", settings), settings)
        print_table("Demo corpus", [*graph_table(built), *truth_table(built, args.demo / "truth.yaml")])
        show_reports(built, args.show)
        print_table("Off-topic, demo corpus", question_table(built, []))
    if args.podcast:
        chunks, files = podcast_chunks(args.podcast)
        built = build(chunks, settings)
        print_table("Podcast corpus", [*graph_table(built), *podcast_table(built, files)])
        show_reports(built, args.show)
        questions = []
        if args.questions:
            with args.questions.open(encoding="utf-8-sig", newline="") as stream:
                questions = [row["question_text"] for row in csv.DictReader(stream)]
        print_table("Questions, podcast corpus", question_table(built, questions, args.show))


def show_reports(built: Built, n: int) -> None:
    by_size = defaultdict(list)
    for c, r in built.reports.items():
        by_size[int(built.hierarchy.level[c])].append((c, r))
    for level in sorted(by_size)[:2]:
        for _, r in by_size[level][:n]:
            print(
                f"\n[C{level}] rating {r.rating}\n{records.render_references(full_content(r), lambda f: 1)}"
            )


if __name__ == "__main__":
    main()
