"""Measure the quality of the offline engine on the podcast corpus, the demo corpus and labelled passages.

    python benchmarks/offline_quality.py [--podcast FOLDER] [--questions CSV] [--demo FOLDER] [--set a.b=c]…
        [--passages JSONL [--labels YAML] [--mistakes]] [--index ROOT --known JSONL…]

The demo corpus is compared with its truth.yaml, and the passages (from 2wiki) with labels made by hand. The
podcast folder contains one .txt file per chunk; the first line of each repeats the file name. The script
prints a table per corpus. --known asks an existing index with every search method, and checks answers and
passages for the facts in a file of questions (each with `answer`, a wording or a list of them; an empty list
if the corpus does not have the fact). --mistakes lists mistakes in the tuning passages only, because
inspecting those in
the other passages would invalidate them as a test set.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from labelled import LABELS, read_labels, read_passages, score
from offline_index import Built, ask, build, coarsest_full, demo_chunks, podcast_chunks, tokens

from graphrag_ray import open_index
from graphrag_ray.base import context_records
from graphrag_ray.base.ids import entity_key, report_id
from graphrag_ray.base.settings_file import load_settings
from graphrag_ray.graph import report_context
from graphrag_ray.graph.leiden import connected_components
from graphrag_ray.graph.report_dialogue import full_content
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.methods import METHODS

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
"""Questions that neither corpus can answer."""


def graph_table(built: Built) -> list[tuple[str, str]]:
    label = connected_components(len(built.nodes), np.stack([built.source, built.target], axis=1))
    largest = np.bincount(label).max() / max(1, len(built.nodes))
    h = built.hierarchy
    n = len(built.texts)
    return [
        ("chunks", f"{n}"),
        ("nodes", f"{len(built.nodes)}"),
        ("edges", f"{len(built.edges)}"),
        ("largest component, share of nodes", f"{largest:.3f}"),
        ("modularity of C0", f"{h.modularity:.3f}"),
        ("reports at C0, C1, …", " / ".join(str(len(h.communities_at_level(k))) for k in range(h.n_levels))),
        ("types", ", ".join(f"{t} {c}" for t, c in Counter(x["type"] for x in built.nodes).most_common())),
        ("CPU ms per chunk, extraction", f"{1000 * built.seconds['extract'] / n:.2f}"),
        ("CPU ms per report", f"{1000 * built.seconds['reports'] / max(1, h.n_communities):.2f}"),
        ("CPU s, describe", f"{built.seconds['describe']:.1f}"),
        *report_table(built),
    ]


def normalise_whitespace(text: str) -> str:
    return " ".join(text.split())


def quotations(text: str) -> list[str]:
    """Texts in quotation marks before a reference in a report or answer, with nested marks."""
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
    """Whether quotations are verbatim and unique, and whether findings name a member."""
    units = {u: normalise_whitespace(t) for u, t in built.texts.items()}
    places = {("Entities", n["id"]): n["text_unit_ids"] for n in built.nodes}
    places |= {("Relationships", e["id"]): e["text_unit_ids"] for e in built.edges}
    h, below = built.hierarchy, {report_id(str(c)): c for c in built.reports}
    titles = [n["title"] for n in built.nodes]
    n_quotes = verbatim = n_repeated = findings = n_naming = dropped = 0
    sizes = []
    for c, r in built.reports.items():
        text = full_content(r)
        sizes.append(tokens(report_context.content_for_context(text)))
        dropped += r.dropped_references
        quotes = quotations(text)
        n_repeated += len(quotes) - len({q.casefold() for q in quotes})
        for quote in quotes:
            after = text[text.find(f"“{quote}”") + len(quote) + 2 :]
            cited = context_records.parse_references(after[: after.find("]") + 1])
            n_quotes += 1
            verbatim += all(supported(quote, f, places, units, built, below) for f in cited) and bool(cited)
        members = [titles[i] for i in h.node_at_place[h.start[c] : h.end[c]]]
        for summary, _ in r.findings:
            findings += 1
            n_naming += any(m in entity_key(summary) for m in members)
    return [
        ("quotations in reports", f"{n_quotes}"),
        ("… verbatim in the cited record", f"{verbatim / max(1, n_quotes):.4f}"),
        ("… repeated within a report", f"{n_repeated}"),
        ("findings", f"{findings}"),
        ("… that name a member", f"{n_naming / max(1, findings):.3f}"),
        ("references outside the context", f"{dropped}"),
        ("tokens per report, median", f"{np.median(sizes):.0f}"),
    ]


def supported(
    quote: str,
    cited: context_records.Reference,
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
    all_texts = normalise_whitespace(" \n ".join(built.texts.values()))
    quotes = found = 0
    for question in questions:
        reduced, mapped = ask(built, question, level)
        n_map += len(mapped)
        enough = reduced.found and len(reduced.references) >= 3
        answered += enough
        if not enough:
            poor.append(question)
        texts.append(reduced.text)
        quoted = quotations(reduced.text)
        quotes += len(quoted)
        found += sum(q in all_texts for q in quoted)
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
        ("level queried", f"C{level}"),
        ("questions", f"{len(questions)}"),
        ("… with three or more references", f"{answered / n:.3f}"),
        ("… distinct answers", f"{len(set(texts)) / n:.3f}"),
        ("quotations in answers, verbatim", f"{found / max(1, quotes):.4f} of {quotes}"),
        ("off-topic questions without an answer", f"{silent} of {len(OFF_TOPIC)}"),
        ("CPU ms per map call, including overhead", f"{1000 * seconds / max(1, n_map):.1f}"),
    ]


_SHOW = re.compile(
    r"(?i)\b(behind|the|tech|podcast|with|transcript|final|qc|kevin|scott|episode|ep-?\d*|of|v?\d+)\b"
)
_WHO = re.compile(r"(?i)\b(neuroscientist|bioengineering|chief|ceo|sci[ -]fi|year|reprogramming|\d).*")


def guests_of(names: Iterable[str]) -> list[str]:
    """The guests in file names of the podcast, as written there, without their descriptions."""
    guests = set()
    for name in {re.sub(r"-part\d+$", "", n) for n in names}:
        spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name.replace("_", " ").replace("-", " "))
        words = re.sub(r"\W+(?!\S)", " ", _WHO.sub(" ", _SHOW.sub(" ", spaced))).replace("(", " ").split()
        if words == ["Collier", "Bloomberg"]:  # The only episode with two guests.
            guests |= {"Collier", "Bloomberg"}
        elif words:
            guests.add(" ".join(words))
    return sorted(guests)


def podcast_table(built: Built, files: Sequence[str]) -> list[tuple[str, str]]:
    """Guests are matched by the last word of their name, among persons and others, ignoring spelling
    variants."""
    by_title = {n["title"]: n for n in built.nodes}
    host = by_title.get("KEVIN SCOTT")
    neighbours = set()
    for e in built.edges:
        if host and host["title"] in (e["source"], e["target"]):
            neighbours |= {e["source"], e["target"]}
    people = guests_of(files)
    found, persons, n_connected, missing = 0, 0, 0, []
    for person in people:
        title = match(person, by_title)
        if title is None:
            missing.append(person)
            continue
        found += 1
        persons += by_title[title]["type"] == "PERSON"
        n_connected += title in neighbours
    top = np.argsort(-built.degree, kind="stable")[:100]
    lower = Counter(n["title"].casefold() for n in built.nodes)
    return [
        ("guests named in file names", f"{len(people)}"),
        ("… that are entities", f"{found / len(people):.3f}  missing: {missing}"),
        ("… that are PERSON", f"{persons / max(1, found):.3f}"),
        ("… connected to KEVIN SCOTT", f"{n_connected / max(1, found):.3f}"),
        ("names that differ only in case", f"{sum(c > 1 for c in lower.values())}"),
        ("stage directions, file names", str([t for t in by_title if STAGE.search(t)][:9])),
        ("highest degrees", ", ".join(f"{built.nodes[i]['title']} {built.degree[i]}" for i in top)),
    ]


STAGE = re.compile(r"LAUGH|CROSSTALK|INAUDIBLE|^MUSIC$|\.TXT|PART\d|TRANSCRIPT|^EP[ -]?\d")


def match(person: str, by_title: Mapping[str, Any]) -> str | None:
    """The node for a guest: the name itself, otherwise the most frequent name of two or more words that ends
    with the last word."""
    key = entity_key(person)
    plain = {re.sub(r"[^A-ZÀ-Þ]", "", t): t for t in by_title}
    if (exact := plain.get(re.sub(r"[^A-ZÀ-Þ]", "", key))) is not None:
        return exact
    last = key.split()[-1]
    fits = [t for t in by_title if " " in t and t.split()[-1].replace("Ü", "U") == last.replace("Ü", "U")]
    return max(fits, key=lambda t: by_title[t]["frequency"]) if fits else None


def truth_table(built: Built, path: Path) -> list[tuple[str, str]]:
    """Recall and precision against a hand-written list.

    An entity is correct if its key is a name or an alias in the list. Precision leaves out terms (type
    CONCEPT), which the list does not have.
    """
    truth = yaml.safe_load(path.read_text("utf-8"))
    canonical: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for e in truth["entities"]:
        kinds[e["name"]] = e["type"]
        for form in [e["name"], *(e.get("aliases") or [])]:
            canonical.setdefault(plain_name(form), e["name"])
    names = [n for n in built.nodes if n["type"] != "CONCEPT"]
    canonical_of_title = {n["title"]: canonical.get(plain_name(n["title"])) for n in names}
    hit = {c for c in canonical_of_title.values() if c}
    right = sum(c is not None for c in canonical_of_title.values())
    typed = [(n, canonical_of_title[n["title"]]) for n in names if canonical_of_title[n["title"]]]
    good_type = sum(n["type"] == kinds[c] for n, c in typed if c)
    wanted = {pair(r["source"], r["target"]) for r in truth["relationships"]}
    found = set()
    for e in built.edges:
        a, b = canonical_of_title.get(e["source"]), canonical_of_title.get(e["target"])
        if a and b and a != b:
            found.add(pair(a, b))
    persons = {c for c, k in kinds.items() if k == "PERSON"}
    return [
        ("entities in the list", f"{len(kinds)}"),
        ("… recall", f"{len(hit) / len(kinds):.3f}"),
        ("… recall of persons", f"{len(hit & persons) / len(persons):.3f}"),
        ("names found", f"{len(names)}"),
        ("… precision", f"{right / max(1, len(names)):.3f}"),
        ("… of those, correct type", f"{good_type / max(1, len(typed)):.3f}"),
        ("relationships in the list", f"{len(wanted)}"),
        ("… recall", f"{len(wanted & found) / len(wanted):.3f}"),
        ("relationships found between them", f"{len(found)}"),
        ("… precision", f"{len(wanted & found) / max(1, len(found)):.3f}"),
        ("missing", ", ".join(sorted(set(kinds) - hit))),
        ("not in the list", ", ".join(sorted(t for t, c in canonical_of_title.items() if c is None))),
    ]


def plain_name(name: str) -> str:
    key = entity_key(name).replace("’", "'")
    return re.sub(r"^(?:THE|MR|MRS|MS|MISS|DR|COUNCILLOR|CAPTAIN|MAYOR|PROFESSOR|DAME|CANON) ", "", key)


def pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


OUTCOMES = {"right": "+", "passages": "p", "wrong": "x", "nothing": "."}
"""Whether the fact is in the answer, only in the passages that are shown instead, or in neither."""


def outcome_of(answer: Answer, wordings: Sequence[str]) -> str:
    """Classify an answer. Without wordings, the right answer is that nothing was found."""
    if not wordings:
        return "wrong" if answer.found else "right"
    shown = " ".join(p.text for p in getattr(answer, "passages", ()))  # Older versions have no passages.
    parts = {"right": answer.text if answer.found else "", "passages": shown}
    for outcome, text in parts.items():
        folded = normalise_whitespace(text).casefold()
        if any(normalise_whitespace(w).casefold() in folded for w in wordings):
            return outcome
    return "wrong" if answer.found else "nothing"


def known_answers(root: str, files: Sequence[Path], asked: Sequence[str], show: bool) -> None:
    """Print a table of methods and questions, and totals of the even and odd questions."""
    index = open_index(root)
    rows = [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines()]
    print(f"\nKnown answers, {root}: {', '.join(f'{s} {o}' for o, s in OUTCOMES.items())}")
    for method in asked or METHODS:
        outcomes = []
        for row in rows:
            wordings = [row["answer"]] if isinstance(row["answer"], str) else row["answer"]
            answer = index.ask(row["question"], method=method)
            outcomes.append(outcome_of(answer, wordings))
            if show:
                print(f"\n{outcomes[-1]} {row['question']} {wordings}\n{answer.text}")
                print("\n".join(f"  passage: {p.text}" for p in getattr(answer, "passages", ())))
        halves = [
            "/".join(str(outcomes[start::2].count(outcome)) for outcome in OUTCOMES) for start in (1, 0)
        ]
        signs = "".join(OUTCOMES[outcome] for outcome in outcomes)
        print(f"{method:<9} {signs}  even {halves[0]}  odd {halves[1]}", flush=True)


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
    parser.add_argument("--show", type=int, default=0, help="number of answers and reports to print")
    parser.add_argument("--set", action="append", default=[], help="a.b=c, as for the index command")
    parser.add_argument("--passages", type=Path, help=".jsonl or .jsonl.gz with id and text")
    parser.add_argument("--labels", type=Path, default=LABELS, help="YAML with the passages' labels")
    parser.add_argument("--mistakes", action="store_true", help="list mistakes in the tuning passages")
    parser.add_argument("--index", help="the index to ask the questions of --known")
    parser.add_argument("--known", type=Path, nargs="+", default=[], help=".jsonl with question and answer")
    parser.add_argument("--methods", nargs="+", default=[], help="search methods for --known; default: all")
    args = parser.parse_args()
    if args.index:
        known_answers(args.index, args.known, args.methods, bool(args.show))
    settings = load_settings(overrides=args.set)
    if args.demo:
        built = build(demo_chunks(args.demo / "corpus", settings), settings)
        print_table("Demo corpus", [*graph_table(built), *truth_table(built, args.demo / "truth.yaml")])
        show_reports(built, args.show)
        print_table("Off-topic, demo corpus", question_table(built, []))
    if args.passages:
        passages_tables(args.passages, args.labels, args.mistakes)
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


def passages_tables(passages: Path, labels: Path, mistakes: bool) -> None:
    texts = read_passages(passages)
    for split, labelled in read_labels(labels).items():
        scores = score(labelled, texts)
        rows = [(name, f"{value:.3f}") for name, value in scores.figures.items()]
        counts = ", ".join(f"{name} {count}" for name, count in scores.n.items())
        print_table(
            f"Labelled passages, {split}", [("passages", f"{len(labelled)}"), *rows, ("counts", counts)]
        )
        if mistakes and split == "tune":
            print("\n".join(sorted(scores.mistakes)))


def show_reports(built: Built, n: int) -> None:
    by_size = defaultdict(list)
    for c, r in built.reports.items():
        by_size[int(built.hierarchy.level[c])].append((c, r))
    for level in sorted(by_size)[:2]:
        for _, r in by_size[level][:n]:
            print(
                f"\n[C{level}] rating {r.rating}\n"
                f"{context_records.render_references(full_content(r), lambda f: 1)}"
            )


if __name__ == "__main__":
    main()
