"""All functions through which untrusted text reaches the pure folders, each as a function of one text.

`ENTRY_POINTS` lists them by folder. `tests/unit/test_any_text.py` fuzzes and times them, and checks that
every public function of these folders that takes text is covered.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from driving import COUNT, Snapshot

from graphrag_ray.base import context_records, dates
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.ids import entity_key, name_id, stable_id
from graphrag_ray.base.index_settings import Chunking, Input, normalize_description
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, RerankReply
from graphrag_ray.base.prompts import PLACEHOLDERS, load_criteria, load_prompts
from graphrag_ray.base.schema import PERIOD_COLUMNS
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.urls import display_url, redact_urls
from graphrag_ray.corpus.boundaries import character_end, last_character_end
from graphrag_ray.corpus.chunks import (
    documents_table,
    split_into_chunks,
    text_units_table,
    with_note,
    with_opening,
)
from graphrag_ray.corpus.decode import codec_of_bom, codec_of_head, decode
from graphrag_ray.corpus.document import Document
from graphrag_ray.corpus.document_context import identify, opening
from graphrag_ray.corpus.document_dates import date_in_first_lines, date_in_name, is_month
from graphrag_ray.corpus.document_titles import (
    document_header,
    document_label,
    explicit_title,
    name_from_title,
)
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.corpus.input_splits import Split, can_split_jsonl, iter_lines, jsonl_segments
from graphrag_ray.corpus.parse import documents_from_split, parquet_segments_of
from graphrag_ray.corpus.quotes import best_sentence
from graphrag_ray.corpus.readers import documents_in
from graphrag_ray.corpus.repeated_paragraphs import leave_out, merge_overlapping, paragraphs
from graphrag_ray.corpus.table_rows import is_json_array, json_line
from graphrag_ray.corpus.tokens import count_tokens, count_tokens_of, token_ends
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.evaluate.judging.answer_metrics import (
    answer_scores,
    count_clusters,
    distinct_claims,
    retrieval_scores,
)
from graphrag_ray.evaluate.judging.corpus_questions import (
    corpus_description,
    corpus_questions,
    description_spec,
    question_specs,
)
from graphrag_ray.evaluate.judging.head_to_head import (
    JUDGEMENTS,
    agreement,
    count_tests,
    is_swapped,
    reliability,
    win_rates,
)
from graphrag_ray.evaluate.judging.judge_dialogue import (
    answer_claims,
    answer_claims_spec,
    check_statements,
    correct_spec,
    is_correct,
    judge,
    judge_joint,
    judge_spec,
    statements_spec,
)
from graphrag_ray.graph import name_candidates
from graphrag_ray.graph import report_context as contexts
from graphrag_ray.graph.adjudication import adjudicate, resolve_spec, split
from graphrag_ray.graph.aliases import parse_names
from graphrag_ray.graph.composed_report import composed_report
from graphrag_ray.graph.corpus_overview import (
    about_spec,
    entity_lines,
    needs_overview,
    overview_line,
    request_overview,
    title_lines,
)
from graphrag_ray.graph.delimited_records import DELIMITERS, parse_claims, parse_date, parse_records
from graphrag_ray.graph.descriptions import Tokenizer, describe, describe_spec, plan_layer
from graphrag_ray.graph.document_names import document_aliases, merge_document_aliases
from graphrag_ray.graph.document_note import document_note, note_spec
from graphrag_ray.graph.entity_resolution import MODEL, NamePair, NameUse, keep_apart, merge_pairs
from graphrag_ray.graph.extraction_dialogue import ChunkText, claims, claims_spec, extract, extract_spec
from graphrag_ray.graph.extraction_measures import measure
from graphrag_ray.graph.extraction_schema import parse_schema, type_key
from graphrag_ray.graph.merge import (
    ExtractionSource,
    claim_rows,
    entity_instance_rows,
    merge_entities,
    merge_relationships,
    relationship_instance_rows,
    sort_instances,
)
from graphrag_ray.graph.name_rules import RULES, may_merge, preferred, rule_keys, word_set
from graphrag_ray.graph.report_context import Context
from graphrag_ray.graph.report_dialogue import full_content, report, report_spec
from graphrag_ray.graph.schema_conformance import check, settle
from graphrag_ray.graph.summary_dialogue import read_summary, summary, summary_spec
from graphrag_ray.graph.tuning_dialogues import (
    Decided,
    compact,
    corpus_profile,
    define,
    draft_schema,
    example_problem,
    examples_prompt,
    one_line,
    sample_text,
    tuning_spec,
    usable_name,
    write_example,
)
from graphrag_ray.indexing.forecast import forecast
from graphrag_ray.indexing.forecast.corpus_counts import ChunkCounter
from graphrag_ray.indexing.forecast.forecast import parse_assumptions
from graphrag_ray.offline import answer as offline_answer
from graphrag_ray.offline import embed_many
from graphrag_ray.offline.prune_names import lower_case_counts, weak_names, word_hash
from graphrag_ray.offline.question_terms import explain_no_match
from graphrag_ray.offline.static_embeddings import similarities
from graphrag_ray.query.answer_streams import StreamedText
from graphrag_ray.query.methods import condense, document_filters, methods
from graphrag_ray.query.methods.chain import check_link, occurs_in, split_chain
from graphrag_ray.query.methods.dynamic_selection import add_titles_below
from graphrag_ray.query.methods.evidence import find_evidence, passages
from graphrag_ray.query.methods.hierarchy_choice import find_hierarchy_or_empty
from graphrag_ray.query.methods.lazy_search import parse_subqueries, parse_tests
from graphrag_ray.query.methods.method import Question
from graphrag_ray.query.methods.passage_tests import ChunkCommunities
from graphrag_ray.query.methods.ppr_search import (
    ANSWER,
    FACTS,
    NEXT,
    next_questions,
    parse_facts,
    parse_next,
    pick_facts,
    step_spec,
    walk_answer,
)
from graphrag_ray.query.methods.record_loading import distinct
from graphrag_ray.query.methods.reranking import rerank
from graphrag_ray.store.search.tokenizer import tokenize

EntryPoint = Callable[[str], Any]

SETTINGS = parse_settings({"models": {"default": {"provider": "openai", "model": "gpt-4o-mini"}}})
SMALL_RERANKER = parse_settings(
    {
        "models": {"default": {"provider": "openai", "model": "r", "context_window": 64}},
        "query": {"rerank_model": "default"},
    }
)
PROMPTS = load_prompts()
VOCABULARY = "cl100k_base"
NUMBERING = {(section, n): f"{section}{n}" for section in context_records.SECTIONS for n in range(1, 4)}


def plainly(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def quietly(run: Callable[[], Any]) -> Any:
    """The result, or None if it raises one of our errors, which callers handle."""
    try:
        return run()
    except GraphRagError:
        return None


def played(dialogue: Generator[Any, Any, Any], text: str, ended: str = "stop") -> Any:
    """The result of a dialogue all of whose replies are this text."""
    try:
        request = next(dialogue)
        while True:
            replies = ChatReply(text, ended)
            request = dialogue.send([replies] * len(request) if isinstance(request, list) else replies)
    except StopIteration as stop:
        return stop.value
    except GraphRagError:
        return None


# corpus


def titled(text: str) -> Any:
    """A title, a date, a path, a row and a text, all equal to the text."""
    names = ((text, text, "a.txt", ""), (text, None, text, text), (text[:9], text, "a.txt", ""))
    told = [f(*name, text) for f in (document_header, document_label) for name in names]
    own = [
        f(*name)
        for f in (explicit_title, name_from_title)
        for name in ((text, text, text), (text, "a.txt", ""))
    ]
    return told, [document_header(text, text, text, text, ""), *own]


def identified(text: str) -> Any:
    documents = [Document(path, "", "", text or " ", text) for path in ("a.txt", text)]
    found = [identify(replace(d, date=None), Input()) for d in documents]
    headers = [with_note(opening(d, Input(), VOCABULARY), with_opening(text, text)) for d in found]
    return found, headers, date_in_first_lines(text), date_in_name(text)


def noted(text: str) -> Any:
    spec = note_spec(PROMPTS, SETTINGS)
    return [played(document_note(ChunkText(text, text), spec), text, ended) for ended in ("stop", "length")]


def document_of(text: str) -> Document:
    return Document("a.txt", "", text, text or " ", None, {"author": text})


def read_as(name: str, wrap: Callable[[str], str | bytes] = str) -> EntryPoint:
    """Documents and tables of a file with the text."""

    def call(text: str) -> Any:
        data = wrap(text)
        data = plainly(data) if isinstance(data, str) else data
        found = list(documents_in(name, io.BytesIO(data), Input(strip_pattern=r"\s*#")))
        documents = [d for d in found if isinstance(d, Document)]
        return found, documents_table(documents)

    return call


def in_json(text: str) -> str:
    return json.dumps({"text": text, "title": text, text: [text]}) + "\n" + text + "\n"


def in_parquet(text: str) -> bytes:
    out = io.BytesIO()
    whole = text.encode("utf-8", "replace").decode()
    pq.write_table(pa.table({"text": [whole, None], "title": [whole, whole]}), out)
    return out.getvalue()


def in_stretches(text: str) -> Any:
    data = plainly(text)
    quietly(lambda: parquet_segments_of(io.BytesIO(in_parquet(text)), Input()))
    jsonl_segments(iter_lines(data), 0, 100)
    stretch = Split(0, len(data))
    quietly(lambda: list(documents_from_split("a.jsonl", io.BytesIO(data), Input(), stretch, set())))
    return can_split_jsonl(data, "text"), is_json_array(data), json_line(data, "utf-8")


def decoded(text: str) -> Any:
    found = [decode(text.encode(codec, "replace")) for codec in ("utf-8", "utf-16", "cp1252", "shift_jis")]
    return [*found, decode(plainly(text), "utf-7"), codec_of_bom(plainly(text)), codec_of_head(plainly(text))]


def cut(text: str) -> Any:
    small = Chunking(size=60, overlap=10, min_last_chunk_tokens=20, prepend_metadata=("title", "date"))
    whole = Chunking(size="document")
    tables = [text_units_table(document_of(text), options, VOCABULARY) for options in (small, whole)]
    return tables, split_into_chunks(text, small, VOCABULARY, text[:50])


def counted(text: str) -> Any:
    return (
        count_tokens(text, VOCABULARY),
        count_tokens_of([text, text[1:]], VOCABULARY),
        token_ends(text, VOCABULARY),
    )


# extract, graph


def extraction_of(text: str) -> Any:
    spec = extract_spec(PROMPTS, SETTINGS)
    found = [played(extract(ChunkText(text, text), spec), text, ended) for ended in ("stop", "length")]
    return [f for f in found if f]


def claims_of(text: str) -> Any:
    spec = claims_spec(PROMPTS, SETTINGS)
    found = [
        played(claims(ChunkText(text), [text, "ACME"], spec), text, ended) for ended in ("stop", "length")
    ]
    return [f for f in found if f]


def merged(text: str) -> Any:
    """Records and reports built from a text, with the text itself as a name and a description."""
    told = text.replace("<|>", "")
    reply = f'("entity"<|>{told}<|>{told}<|>{told})##\n("relationship"<|>{told}<|>B<|>{told}<|>3)##\n' + text
    unit = ExtractionSource("unit", "document", 0)
    found = [(unit, e) for e in (*extraction_of(text), *extraction_of(reply))]
    instances = entity_instance_rows(found)
    links = relationship_instance_rows(found)
    return (
        *(
            instances,
            merge_entities(sort_instances(instances)),
            weak_names(instances, {w.lower(): 9 for w in instances["title"].to_pylist()}),
            lower_case_counts(instances["description"].to_pylist()),
            merge_relationships(sort_instances(links)),
            word_hash(text),
        ),
        claim_rows(
            [(unit, c) for c in claims_of(f'("claim"<|>A<|>B<|>C<|>TRUE<|>2014<|>NONE<|>{told}<|>{told})')]
        ),
    )


def described(text: str) -> Any:
    spec = describe_spec(PROMPTS, SETTINGS)
    pieces = [text, text[::2], *text.split("\n")]
    tokens = Tokenizer(lambda t: count_tokens(t, VOCABULARY), lambda t: token_ends(t, VOCABULARY).tolist())
    plan_layer(pieces, replace(spec, batch_tokens=50, concatenate_up_to_tokens=20), tokens)
    spec = replace(spec, rules=2)
    return [played(describe("entity", text, pieces, spec), text, ended) for ended in ("stop", "length")]


def same_names(text: str) -> Any:
    names = {entity_key(name): type_ for name in (text, *text.split()) for type_ in ("", "PERSON")}
    aliases = document_aliases(names, [text, f"Long Name (LN) {text} ({text})"])
    keys = [key for name, type_ in names.items() for key in rule_keys(name, type_)]
    key = entity_key(text)
    merged = [may_merge(key, "", name, "PERSON", rule) for name in list(names)[:9] for rule in RULES]
    return (
        aliases,
        keys,
        merged,
        merge_document_aliases(aliases),
        preferred([(key, "", 1), ("A", "PERSON", 2)]),
    )


def names_of(text: str) -> Any:
    names = quietly(lambda: parse_names(text, text))
    return [f(text) for f in (names.key, names.resolve)] if names else None


SCHEMA = "entities: {PERSON: {description: x, attributes: [a]}, B: }\nrelations: {R: {from: B, to: PERSON}}"
WITH_SCHEMA = parse_settings({**SETTINGS.model_dump(), "extraction": {"schema": SCHEMA}})


def schema_of(text: str) -> Any:
    told = json.dumps(text[:80])
    found = [quietly(lambda t=t: parse_schema(t)) for t in (text, f"entities: {{{told}: {told}}}")]  # type: ignore[misc]
    return [[t.line for t in (*schema.entities, *schema.relations)] for schema in found if schema]


def extraction_by_schema(text: str) -> Any:
    """An extraction to which every reply is a text, or has it as type, relation and names."""
    schema, record = parse_schema(SCHEMA), text.replace("<|>", "")
    reply = (
        f'("entity"<|>B<|>{record}<|>x<|>{record})##("relationship"<|>{record}<|>B<|>{record}<|>x<|>3)##'
        + text
    )
    spec = extract_spec(PROMPTS, WITH_SCHEMA)
    extracted = [played(extract(ChunkText(text), spec), r, "stop") for r in (text, reply)]
    records = parse_records(reply, is_relation=lambda t: t == record)
    found = check(records.entities, records.relationships, schema)
    settled, counts = settle(found, records.entities, records.relationships, schema)
    fits = schema.relations[0].fits([text], [text[1:]])
    return type_key(text), schema.entity_type(text), fits, extracted, found.problems, settled, counts


def adjudicated(text: str) -> Any:
    """The text as name, candidate, description, label and reply."""
    spec = resolve_spec(PROMPTS, SETTINGS, 5)
    verdicts = {"verdicts": [{"candidate": 1, "verdict": "same", "reason": text}]}
    groups = {"groups": [{"label": text, "documents": [1]}, {"label": text, "documents": [2]}]}
    dialogues = (
        (lambda: adjudicate(text, [text, text[1:]], spec), verdicts),
        (lambda: split(entity_key(text), [text, text[1:]], spec), groups),
    )
    return [
        played(start(), reply, ended)
        for start, good in dialogues
        for reply in (text, json.dumps(good))
        for ended in ("stop", "length")
    ]


def resolved(text: str) -> Any:
    """The text as a description, and its lines as names."""
    words = text.split()
    written = [text[:100], *text.split("\n")[:8], *(" ".join(words[n : n + 3]) for n in range(0, 24, 3))]
    names = [*dict.fromkeys(filter(None, map(entity_key, written)))]
    uses = [NameUse(name, "", n) for n, name in enumerate(names)]
    pairs = [NamePair(a, b, rule, "") for a, b in pairwise(uses) for rule in (MODEL, RULES[0])]
    said = [name_candidates.DocumentUse(id_, text, "", 1, [text], names) for id_ in "ab"]
    profile = name_candidates.profile(text, said)
    rows = name_candidates.key_rows([(n, name, names[:3]) for n, name in enumerate(names)])
    compared = name_candidates.block_pairs(rows)
    fields = {"name": text, "documents": "a", "neighbours": names, "type": ""}
    found = [merge_pairs(pairs), name_candidates.split_texts(said), name_candidates.blocking_keys(text)]
    named = [*pairwise(names)]
    kept = keep_apart(named[:3], named[3:], [(a, b) for b, a in named[::2]]), word_set(text)
    name_candidates.may_be_several(entity_key(text), said, np.eye(2, dtype=np.float32))
    name_candidates.is_candidate(fields, {**fields, "name": text[1:]})
    return found, kept, compared, name_candidates.profile_text(text, text, [text], [text], [profile.text])


# reports, query


def shown_records(text: str) -> list[contexts.Record]:
    claim = {"id": "c", "subject_id": text, "object_id": text, "type": text, "status": text}
    claim |= {"start_date": None, "end_date": text, "description": text}
    return [
        contexts.report_record("r", text, text),
        contexts.entity_record("e", text, text),
        contexts.relationship_record("x", text, text[1:], text),
        contexts.relationship_record("y", text, text[1:], text, text[:9], True),
        contexts.claim_record(claim),
        contexts.source_record("s", text),
    ]


def rendered(text: str) -> Any:
    shown = shown_records(text)
    found = [contexts.render(shown, budget, COUNT) for budget in (60, 2_000)]
    found.append(contexts.render(contexts.without_repetitions(shown), 2_000, COUNT))
    full_content(composed_report([(record, [text]) for record in shown[1:4]]))
    rated = contexts.render([add_titles_below(shown[0], [text, text[1:]], COUNT)], 2_000, COUNT)
    read = [context_records.parse_sections(f.text) for f in (*found, rated)]
    return found, rated, read, contexts.shorten_record(shown[0], 20, COUNT)


def reported(text: str) -> Any:
    context = contexts.Context(text, NUMBERING, 1)
    spec = report_spec(SETTINGS, PROMPTS)
    found = [played(report(context, spec), text, ended) for ended in ("stop", "length")]
    return found, [full_content(f) for f in found if f]


def summarised(text: str) -> Any:
    context = contexts.Context(text, NUMBERING, 1)
    spec = summary_spec(SETTINGS, PROMPTS)
    found = [played(summary(context, spec), text, ended) for ended in ("stop", "length")]
    return found, read_summary(ChatReply(text)), [full_content(f) for f in found if f]


def told_of(text: str) -> Any:
    """The corpus description, with the text as titles, names and reply."""
    titles, entities = title_lines([text, text[1:]], COUNT), entity_lines([(text, text)], COUNT)
    found = [
        played(request_overview(titles, entities, about_spec(SETTINGS, PROMPTS)), text, e)
        for e in ("stop", "length")
    ]
    settings = SETTINGS.with_description(normalize_description(text))
    return found, overview_line(settings, PROMPTS["report"]), needs_overview(settings, PROMPTS)


def tuned(text: str) -> Any:
    """The text as samples, replies, and every value of a reply."""
    names = dict.fromkeys(("domain", "description", "role", "rating_criterion", "claims"), text)
    types = [{"type": t, "definition": text} for t in (text, text[:9], "mill", "town", "river", "boat")]
    relation = {"relation": text, "description": text, "sources": ["mill", text], "targets": ["town"]}
    entities = [{"type": "mill", "description": text, "attributes": [text], "examples": [text]}]
    replies = text, json.dumps({**names, "languages": [text], "entity_types": types})
    spec, decided = tuning_spec(SETTINGS, PROMPTS, text), Decided(text, text, (text,))
    profiles = [
        played(corpus_profile(sample_text([ChunkText(text, text)]), known, spec), reply, ended)
        for known in (decided, Decided())
        for reply in replies
        for ended in ("stop", "length")
    ]
    drafted = json.dumps({"entities": entities, "relations": [relation]})
    schemas = [played(draft_schema(text, text, ["mill", "town"], spec), r, "stop") for r in (text, drafted)]
    records = [f'("entity"<|>{n}<|>PERSON<|>{text})' for n in ("ACME", text.replace("<|>", ""))]
    reply, given = "##\n".join([*records, "<|COMPLETE|>"]), extract_spec(PROMPTS, SETTINGS)
    examples = [played(write_example(ChunkText(f"Acme {text}"), given), r) for r in (text, reply)]
    prompt = examples_prompt([e for e in examples if e], PROMPTS["extract_examples"])
    found = [e for e in (*extraction_of(text), *extraction_of(reply)) if e]
    figures = measure(found, [text], 1), [example_problem(ChunkText(text), e, [text]) for e in found]
    cleaned = one_line(text, 20), usable_name(text), compact(text), define([text], [text])
    return profiles, schemas, prompt, figures, cleaned


def referred(text: str) -> Any:
    resolved = context_records.resolve_references(text, NUMBERING)
    shown = (
        context_records.render_references(text, {}.get),
        context_records.parse_references(text),
        context_records.strip_references(text),
    )
    return resolved, shown, context_records.parse_sections(text), context_records.csv_line([text, 1])


ROW = "5" * 32


def tables_of(text: str) -> dict[str, list[dict[str, Any]]]:
    ids = {
        "id": ROW,
        "human_readable_id": 1,
        "text_unit_ids": [ROW],
        "entity_ids": [ROW],
        "document_ids": [ROW],
    }
    told = {
        "text": text,
        "title": text,
        "description": text,
        "full_content": text,
        "summary": text,
        "path": text,
    }
    ends = {"source": text, "target": text, "source_id": ROW, "target_id": ROW, "entity_id": ROW}
    placed = {"community": 0, "level": 0, "parent": -1, "hierarchy": "leiden", "n_tokens": 9, "degree": 1}
    other = {
        "text_unit_id": ROW,
        "raw_data": json.dumps({"author": text}),
        "rank": 1.0,
        "weight": 1.0,
        "combined_degree": 2,
    }
    row = ids | told | ends | placed | other
    names = ("text_units", "documents", "entities", "relationships", "communities", "community_reports")
    return {name: [row] for name in (*names, "entity_instances", "relationship_instances")}


def asked(method: str, **query: Any) -> EntryPoint:
    """A question to an index full of the text, whose models reply with it."""

    def call(text: str) -> Any:
        links = {(ROW, f"{text} a"): 10}
        snapshot = Snapshot(tables_of(text), lambda search: [ROW], lambda request: ChatReply(text), links)
        question = Question(text, history=((text, text),))
        search, given = methods.get_method(method).search, online(snapshot.given(**query))
        answer = quietly(lambda: snapshot.run(condense.with_history(search, question, given)))
        return answer.as_dict() if answer else None

    return call


def online(given: Any) -> Any:
    """The same settings with models over HTTP, so that conversations are condensed."""
    from dataclasses import replace

    settings = given.settings.model_copy(update={"models": SETTINGS.models})
    return replace(given, settings=settings)


def conditions(text: str) -> None:
    quietly(lambda: methods.check_method(text, text, [text]))
    quietly(lambda: methods.get_method(text))
    quietly(lambda: find_hierarchy_or_empty([], text))
    documents = pa.table(
        {"path": [text], "title": [text], "creation_date": [text], "raw_data": [json.dumps({"a": text})]}
    )
    for condition in (text, f"metadata.a={text}", f"a>={text}", f"{text}=a", f"title~{text}"):
        parsed = quietly(lambda condition=condition: document_filters.parse(condition))
        if parsed and set(document_filters.columns([parsed])) <= set(documents.column_names):
            quietly(lambda parsed=parsed: document_filters.evaluate([parsed], documents))
    reports = pa.table({name: [text, None, "2020"] for name in PERIOD_COLUMNS})
    for condition in (text, f"date>={text}", "date>=2020"):
        quietly(lambda condition=condition: document_filters.reports_in_period([condition], reports))


def distinct_texts(text: str) -> Any:
    return distinct([contexts.source_record(i, text) for i in "ab"])


def evidenced(text: str) -> Any:
    said = [s for cited in passages(text + " [Data: Reports (1)]").values() for s in cited]
    found = find_evidence([text, *said], [text, "“A.” " + text]), find_evidence(said, [text[::-1]])
    return found, best_sentence(text, [text[:9], "ACME"])


def stepped(text: str) -> Any:
    """The text as a chain, as a follow-up question, and as the reply that has them."""
    split_chain(f"{text}\nchain\n" * 9)
    answer, links = split_chain(f"{text}\n\nChain:\n- {text} -> {text} [Data: Sources ({ROW})]\n{text}")
    found = [check_link(link, {ROW: text}) for link in links], occurs_in(text, text[::-1])
    reply = json.dumps({"known": [text], "next": [text, text[::-1]], "facts": [text, 1]})
    spec, context = step_spec(NEXT, SETTINGS, PROMPTS), Context("x", {("Sources", 1): ROW}, 1)
    dialogues = (
        lambda: next_questions(text, [text], context, spec, 2),
        lambda: pick_facts(text, text, 3, step_spec(FACTS, SETTINGS, PROMPTS)),
        lambda: walk_answer(text, context, False, step_spec(ANSWER, SETTINGS, PROMPTS)),
    )
    told = [played(start(), one, "stop") for start in dialogues for one in (text, reply)]
    return answer, found, told, parse_next(text, [text], 2), parse_facts(text, 3)


def scored(text: str) -> Any:
    """The text as the query and the documents of a reranker with a small context window."""
    dialogue = rerank(text, [text, text[::-1]], SMALL_RERANKER)
    return run_dialogue(dialogue, lambda request: RerankReply(bytes(4 * len(request.documents))))


def judged_relevant(text: str) -> Any:
    """The text as a reply to a test, and as a subquery or an entry of a reply."""
    replies = [text, json.dumps({"relevant": [text, {"id": text, "score": text}, 1], "subqueries": [text]})]
    grouped = ChunkCommunities.build({0: -1}, {text: [0]}).grouped([text, text[::-1]])
    return [(parse_subqueries(reply), parse_tests(reply, {1})) for reply in replies], grouped


def streamed(text: str) -> str:
    """Pieces of a streamed reply: one character each, then a hundred."""
    number = {context_records.Reference(section, id_): 1 for (section, _), id_ in NUMBERING.items()}
    written = StreamedText(NUMBERING, number)
    return "".join(written.add(text[at : at + 100]) for at in range(0, len(text), 100))


# Judging


def judged(text: str) -> Any:
    """The text as question and answers of a comparison, and as the reply."""
    reason = json.dumps({"winner": 1, "reason": text})
    joint = json.dumps({"verdicts": [{"criterion": text, "winner": 1, "reason": text}, {"criterion": "x"}]})
    checked = json.dumps({"statements": [{"number": text, "holds": "yes"}, {"number": 2, "holds": text}]})
    dialogues = (
        lambda: judge(text, text, (text, text[1:]), judge_spec(SETTINGS, PROMPTS), 1),
        lambda: judge_joint(
            text, {text: text, "x": ""}, (text, text[1:]), judge_spec(SETTINGS, PROMPTS, 2), 1
        ),
        lambda: check_statements(text, [text, text[1:]], text, statements_spec(SETTINGS, PROMPTS)),
        lambda: is_correct(text, [text, text[1:]], text, correct_spec(SETTINGS, PROMPTS)),
        lambda: corpus_description(text, description_spec(SETTINGS, PROMPTS)),
    )
    return [
        played(start(), reply, ended)
        for start in dialogues
        for reply in (text, reason, joint, checked)
        for ended in ("stop", "length")
    ]


def claimed(text: str) -> Any:
    """The claims of an answer, with the text as the reply and inside it."""
    listed = json.dumps({"claims": [{"claim": text}, text, {"claim": text[::-1]}]})
    spec = answer_claims_spec(SETTINGS, PROMPTS)
    replies = (text, listed, json.dumps({"claims": [text]}))
    found = [played(answer_claims(text, text, spec), r, e) for r in replies for e in ("stop", "length")]
    claims_made = distinct_claims([claim for one in found for claim in one or []])
    return found, count_clusters(claims_made)


def corpus_asked(text: str) -> Any:
    """Questions about a corpus described by the text, with the text in every list."""
    specs = question_specs(SETTINGS, PROMPTS)

    def reply(request: ChatRequest) -> ChatReply:
        key = {"corpus_questions": "questions"}.get(name := request.first_prompt or request.prompt, name)
        entry = key.removesuffix("s")
        return ChatReply(json.dumps({key: [{entry: text}, {entry: f"{text} {entry}"}]}))

    answers = (reply, lambda request: ChatReply(text))
    asked_for = (corpus_questions(text, (2, 1, 3), specs) for _ in answers)
    return [
        quietly(lambda questions=questions, answer=answer: Snapshot({}, answer=answer).run(questions))
        for questions, answer in zip(asked_for, answers, strict=True)
    ]


def measured(text: str) -> Any:
    """An answer and its retrieved records, scored against gold answers."""
    scores = answer_scores(text, [text[::2], "Orla Quist"]), answer_scores("Orla Quist", [text])
    found = [text, text[1:]]
    return scores, retrieval_scores([text, "b"], {text}, found, ["Orla Quist"], found, evidence=found)


def compared(text: str) -> Any:
    """Verdicts for a question, criterion and conditions with this name."""
    row = {"question_id": text, "criterion": text, "replicate": 0, "winner": text, "reason": text}
    row |= {"first": text, "second": f"{text}2", "swapped": is_swapped(text, 0)}
    judgements = pa.Table.from_pylist([row, row | {"winner": "", "replicate": 1}], JUDGEMENTS)
    counts = {(text, text): 2.0, (text, f"{text}2"): 1.0}
    pairs = [(text, f"{text}2")]
    figures = win_rates(judgements, pairs), reliability(judgements), count_tests({text: counts}, pairs)
    return [table.to_pylist() for table in figures], agreement(counts, judgements, text)


# Offline engine, forecast


def offline(prompt: str, **given: str) -> EntryPoint:
    """The offline engine's reply to a prompt filled with the text; contexts and other inputs are ours."""

    def call(text: str) -> str:
        variables = dict.fromkeys(PLACEHOLDERS[prompt], text) | DELIMITERS
        if "context" in variables:
            variables["context"] = contexts.render(shown_records(text), 10_000, COUNT).text
        if "answers" in variables:
            heading = context_records.section_heading("Answers", ("id", "score", "answer"))
            variables["answers"] = heading + context_records.csv_line([1, 50, text])
        variables |= {"max_tokens": "500", "n_follow_ups": "3", "entity_types": "person, concept"}
        variables |= {"kind": "entity", "n": "3"} | given
        return offline_answer(ChatRequest(prompt, (), CallParameters("default", "offline-1"), variables)).text

    return call


def shown_again(text: str) -> contexts.Record:
    record = contexts.passage_record("s", text)
    return contexts.leave_out_shown(record, {*record.paragraphs})


def forecast_of(text: str) -> Any:
    counter = ChunkCounter(extract_spec(PROMPTS, SETTINGS), SETTINGS, 3, None)
    counter.add(document_of(text))
    found, spec = extraction_of(text), describe_spec(PROMPTS, SETTINGS)
    return counter.corpus, [
        forecast.count_names(k, found, VOCABULARY, spec) for k in ("entities", "relationships")
    ]


ENTRY_POINTS: Mapping[str, Mapping[str, EntryPoint]] = {
    "corpus": {
        "month": is_month,
        "paragraphs": paragraphs,
        "repeated paragraphs": lambda t: leave_out(t, merge_overlapping((a, z) for a, z, _ in paragraphs(t))),
        "txt": read_as("a.txt"),
        "md": read_as("a.md"),
        "html": read_as("a.html"),
        "html, marked up": read_as("a.html", lambda t: f"<html><body><div>{t}</div><p>{t}<table>{t}"),
        "html, many tags": read_as("a.html", lambda t: "<i>" * 1_100 + t),
        "jsonl": read_as("a.jsonl"),
        "jsonl, well formed": read_as("a.jsonl", in_json),
        "csv": read_as("a.csv"),
        "csv with a header": read_as("a.csv", lambda t: f'id,text,title\n1,{t},x\n2,"{t}",y\n'),
        "parquet": read_as("a.parquet", in_parquet),
        "parquet, damaged": read_as("a.parquet", lambda t: b"PAR1" + plainly(t) + b"PAR1"),
        "name": lambda t: list(documents_in(t, io.BytesIO(b"x"), Input())),
        "stretches": in_stretches,
        "decode": decoded,
        "characters": lambda t: (character_end(t, 0), last_character_end(t, 0, len(t))),
        "chunks": cut,
        "titles": titled,
        "document context": identified,
        "tokens": counted,
        "embedded": lambda t: [
            do(t)
            for e in [replace(Embedder.from_settings(parse_settings({})), max_tokens=9)]
            for do in (e.embed, e.truncate)
        ],
    },
    "graph": {
        "shown again": shown_again,
        "records": lambda t: [parse_records(t, truncated=cut_off) for cut_off in (False, True)],
        "claims": lambda t: [parse_claims(t, truncated=cut_off) for cut_off in (False, True)],
        "date": parse_date,
        "extraction": extraction_of,
        "claims dialogue": claims_of,
        "note on a document": noted,
        "merge": merged,
        "describe": described,
        "names": names_of,
        "adjudication": adjudicated,
        "resolution": resolved,
        "same names": same_names,
        "schema": schema_of,
        "extraction by a schema": extraction_by_schema,
        "context": rendered,
        "report": reported,
        "summary": summarised,
        "about": told_of,
        "tuning": tuned,
    },
    "query/methods": {
        **{f"{name} search": asked(name) for name in (*methods.METHODS, *methods.BASELINES)},
        "dynamic selection": asked("global", dynamic=True),
        "scored points": asked("global", map_protocol="points"),
        "where": conditions,
        "date": dates.iso_date,
        "local search without a walk": asked("local", local_pagerank=False),
        "picked facts": asked("ppr", ppr_candidate_facts=5),
        "steps": stepped,
        "reranked": scored,
        "relevance": judged_relevant,
        "evidence": evidenced,
        "distinct_texts": distinct_texts,
        "streamed": streamed,
    },
    "evaluate/judging": {
        "judge": judged,
        "claims": claimed,
        "corpus questions": corpus_asked,
        "metrics": measured,
        "comparison": compared,
    },
    "offline": {
        **{
            prompt: offline(prompt)
            for prompt in PLACEHOLDERS
            if prompt
            not in ("extract_examples", "correct", "tune_profile", "tune_schema", "resolve", "resolve_split")
        },
        **{f"judge by {name}": offline("judge", criterion=text) for name, text in load_criteria().items()},
        "embed": lambda t: (embed_many([t, t[:9]]), similarities(t, [t[:9], t])),
        "why nothing": explain_no_match,
    },
    "indexing/forecast": {
        "counter": forecast_of,
        "assumptions": lambda t: quietly(lambda: parse_assumptions([t])),
    },
    "what they share": {
        "references": referred,
        "ids": lambda t: (entity_key(t), name_id(t), stable_id("entity", t)),
        "addresses": lambda t: (display_url(t), redact_urls(t), redact_urls(t, "http://u:p@h/?k=v")),
        "words": tokenize,
    },
}
