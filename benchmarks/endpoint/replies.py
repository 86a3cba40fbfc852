"""Generate replies of plausible format and length from the text of a request and its hash.

Names are capitalised phrases of the passage, so they recur across chunks and form a graph. Lengths in tokens:
extraction 300–700 for a chunk of 600, descriptions 60–200, reports 500–900, summaries 120–300.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from zlib import crc32

import orjson

from . import peer_answers, peers, prose
from .prompts import AROUND, NEW_QUESTION, SUBJECTS, Messages, asked_first, kind_of
from .tokens import words_of_bias

PASSAGE = "----- passage -----\n"
END = "\n----- end of the passage -----"
FIELD = "<|>"
CHARS_PER_ENTITY = 420
PHRASES = 0.5
"""Share of an extraction's entities that are phrases rather than names, if there are enough names."""
MOST_ENTITIES = 60
CHARS_PER_CLAIM = 110
MOST_CLAIMS = 40
_DELIMITERS = re.compile(r"(\S+) between records and (\S+) at the end")
_TYPES = re.compile(
    r"^Extract (?:what the schema .+? below: )?entities of the types (.+?) and their relationships"
)
_HEADING = re.compile(r"^-----([A-Za-z]+)-----$")
_REFERENCE = re.compile(r"\[Data: [^\]]{1,80}\]")
_N = re.compile(r"(?:Describe|Write) (\d{1,3}) ")

Rows = list[list[str]]


def write(messages: Messages, body: Mapping[str, Any], seed: int, yes: float, vocabulary: str) -> str:
    """The reply to a conversation.

    `body` may contain logit_bias and response_format. `seed` is the seed of the request, and `yes` the share
    of Y among one-letter replies.
    """
    if (reply := peer_answers.answer_query(messages)) is not None:
        return reply
    if peer := peers.put_as_ours(messages):
        return peer.theirs(write(peer.messages, {}, seed, yes, vocabulary))
    rng = Random(seed)
    kind = kind_of(messages[-1][1])
    if bias := body.get("logit_bias"):
        return _forced(words_of_bias(bias, vocabulary), rng.random() < yes)
    if kind in ("glean_check", "correct_answer"):
        return "Y" if rng.random() < yes else "N"
    asked, text = asked_first(messages)
    if kind == "correct_schema" or (kind in ("glean_missing", "glean_schema") and rng.random() >= yes):
        return _delimiters(text)[1]
    if kind in ("glean", "glean_missing", "glean_schema"):
        return _glean(text, messages, rng)
    if kind == "entity_questions":
        return _entity_questions(messages[-1][1], rng)
    writer = _WRITERS.get(asked if kind == "correct" else kind)
    return writer(text, rng) if writer else _other(body.get("response_format"), rng)


def _forced(choices: list[str], yes: bool) -> str:
    """The allowed token that means yes or no, as drawn."""
    wanted = ("yes", "y") if yes else ("no", "n")
    return next((c for c in choices if c.strip().lower() in wanted), choices[0] if choices else "")


def _extract(text: str, rng: Random) -> str:
    passage = _passage(text)
    n = min(MOST_ENTITIES, max(1, round(len(passage) / CHARS_PER_ENTITY * rng.uniform(0.8, 1.2))))
    mentions = prose.names(passage)[: n - int(n * PHRASES)]
    mentions = sorted([*mentions, *prose.phrases(passage)[: n - len(mentions)]], key=lambda name: name[1])
    return _records(text, passage, mentions, mentions, rng)


def _glean(text: str, messages: Messages, rng: Random) -> str:
    passage = _passage(text)
    earlier = "\n".join(content for role, content in messages if role == "assistant")
    candidates = [*prose.names(passage), *prose.phrases(passage)]
    known = [f for f in candidates if _entity_start(f[0]) in earlier]
    missed = [f for f in candidates if f not in known][: rng.randint(1, 3)]
    return _records(text, passage, missed, [*missed, *known[: len(missed)]], rng)


def _records(
    text: str, passage: str, new: list[tuple[str, int]], related: list[tuple[str, int]], rng: Random
) -> str:
    """Entity records of `new`, and relationships that connect each of them to some of `related`."""
    record, completion = _delimiters(text)
    types = (m.group(1) if (m := _TYPES.search(text)) else "CONCEPT").split(", ")
    out = []
    for name, at in new:
        description = f"{name} is named in this account: {prose.sentence_at(passage, at)}."
        type_ = types[crc32(name.upper().encode()) % len(types)]
        out.append(f"{_entity_start(name)}{type_}{FIELD}{description})")
    for i, (name, at) in enumerate(new):
        others = related[i + 1 : i + 4]
        for other, _ in rng.sample(others, min(len(others), rng.choice((1, 1, 2)))):
            description = f"{name} and {other} are told of together: {prose.sentence_at(passage, at, 90)}."
            fields = (name.upper(), other.upper(), description, str(rng.randint(2, 9)))
            out.append(f'("relationship"{FIELD}{FIELD.join(fields)})')
    return f"\n{record}\n".join(out) + f"\n{completion}" if out else completion


def _claims(text: str, rng: Random) -> str:
    record, completion = _delimiters(text)
    passage = _passage(text)
    subjects = _between(text, "Entities, one a line:\n", "\n\nThe material begins").split("\n")
    folded = passage.upper()
    out = []
    for subject in rng.sample(subjects, min(len(subjects), rng.randint(1, 4))):
        at = max(0, folded.find(subject))
        quote = prose.sentence_at(passage, at)
        year = str(rng.randint(1990, 2025))
        status = rng.choice(("TRUE", "TRUE", "SUSPECTED", "FALSE"))
        fields = (subject, rng.choice((*subjects, "NONE")), "PUBLIC STATEMENT", status, year, year,
                  f"{subject.title()} is said to have taken part: {quote}.", quote)  # fmt: skip
        out.append(f'("claim"{FIELD}{FIELD.join(fields)})')
    return f"\n{record}\n".join(out) + f"\n{completion}" if out else completion


def _describe(text: str, rng: Random) -> str:
    name = text[: text.find("\n")].partition(": ")[2]
    descriptions = text.partition("to the end of this message:\n\n")[2].split("\n")
    words_left = rng.randint(45, 150)
    out = [f"{name.title()} is told of in {len(descriptions)} accounts."]
    for line in descriptions:
        if words_left <= 0:
            break
        excerpt = prose.words(prose.clean(line), min(words_left, 30))
        words_left -= 30
        out.append(excerpt + ".")
    return " ".join(out)


def _about(text: str, rng: Random) -> str:
    titles = _between(text, "one a line:\n\n", "\n\nNames with")
    return f"Documents on record, among them {prose.words(prose.clean(titles), 40)}."


def _report(text: str, rng: Random) -> str:
    sections = _sections(text)
    entities, reports = sections.get("Entities", []), sections.get("Reports", [])
    relationships = sections.get("Relationships", [])
    members = [row[1].title() for row in [*entities, *reports] if len(row) > 1] or ["An unnamed community"]
    title = " and ".join([", ".join(members[:2]), members[2]] if len(members) > 2 else members[:2])
    findings = []
    for i in range(min(rng.randint(5, 8), max(2, len(entities) + len(reports)))):
        who = members[i % len(members)]
        evidence = _evidence({"Entities": entities, "Relationships": relationships, "Reports": reports}, i)
        first = _excerpt(entities or reports, i, rng.randint(14, 28))
        second = _excerpt(relationships or reports or entities, i, rng.randint(10, 22))
        explanation = (
            f"{who} matters to this community in more than one respect. {first} {evidence}.\n\n"
            f"It appears with other members, which affects what may follow. {second}"
        )
        findings.append({"summary": f"The part of {who}", "explanation": explanation})
    summary = (
        f"This community is held together by {', '.join(members[:5])}. It has {len(entities)} entities and "
        f"{len(relationships)} relationships. {_excerpt(entities or reports, 0, 40)}"
    )
    out = {
        "title": title,
        "summary": summary,
        "rating": rng.randint(10, 90) / 10,
        "rating_explanation": f"What {members[0]} does has consequences for the other members.",
        "findings": findings,
    }
    return orjson.dumps(out, option=orjson.OPT_INDENT_2).decode()


def _summary(text: str, rng: Random) -> str:
    rows = [row for of in _sections(text).values() for row in of]
    excerpts = " ".join(
        _excerpt(rows, i, rng.randint(25, 50)) for i in range(min(len(rows), rng.randint(3, 6)))
    )
    return (
        f"{prose.words(prose.clean(rows[0][-1]) if rows else '', 8)}\n\n{excerpts or prose.lorem(120, rng)}"
    )


def _map(text: str, rng: Random) -> str:
    score = rng.choice((0, 20, 35, 50, 60, 70, 80, 90))
    line = f"<ANSWER_HELPFULNESS> {score} </ANSWER_HELPFULNESS>"
    return f"{line}\n\n{_answer(text, rng)}" if score else line


def _answer(text: str, rng: Random) -> str:
    return "\n".join(f"- {point}" for point in _points(text, rng)) or prose.lorem(60, rng)


def _points(text: str, rng: Random) -> list[str]:
    sections = _sections(text)
    rows = next(iter(sections.values()), [])
    points = []
    for i in range(min(len(rows), rng.randint(2, 6))):
        evidence = _evidence(sections, i)
        points.append(
            f"**{prose.words(rows[i][1], 8)}**: {_excerpt(rows, i, rng.randint(20, 40))} {evidence}"
        )
    return points


def _map_points(text: str, rng: Random) -> str:
    points = [{"description": p, "score": rng.randint(1, 95)} for p in _points(text, rng)]
    return orjson.dumps({"points": points}).decode()


def _rate(text: str, rng: Random) -> str:
    """About half of the reports are relevant."""
    rows = _sections(text).get("Reports", [])
    ratings = [
        {"id": int(row[0]), "reason": _excerpt(rows, i, 12), "rating": rng.choice((0, 0, 0, 1, 3, 5))}
        for i, row in enumerate(rows)
    ]
    return orjson.dumps({"ratings": ratings}).decode()


def _subqueries(text: str, rng: Random) -> str:
    question = _between(text, "\n\n", "\n\n# Concepts")
    texts = [f"{question} As to {prose.lorem(30, rng).lower()}" for _ in range(rng.randint(3, 5))]
    return orjson.dumps({"subqueries": texts, "expanded": f"{question} {prose.lorem(60, rng)}"}).decode()


def _relevant(text: str, rng: Random) -> str:
    """About half of the passages are relevant."""
    ids = [int(row[0]) for row in _sections(text).get("Sources", []) if rng.random() < 0.5]
    return orjson.dumps({"relevant": [{"id": n, "score": rng.randint(20, 95)} for n in ids]}).decode()


def _step(text: str, rng: Random) -> str:
    rows = next(iter(_sections(text).values()), [])
    asked = [f"What is known about {prose.words(row[1], 6)}?" for row in rows[: rng.randint(1, 3)]]
    out = {
        "answer": " ".join(_points(text, rng)) or prose.lorem(60, rng),
        "score": rng.randint(5, 95),
        "follow_ups": [{"question": q, "score": rng.randint(10, 95)} for q in asked],
    }
    return orjson.dumps(out).decode()


def _query_entities(text: str, rng: Random) -> str:
    question = _between(text, f"{SUBJECTS}\n\n", "\n\nList its subjects")
    names = [name for name, _ in [*prose.names(question), *prose.phrases(question)]]
    return "\n".join(dict.fromkeys(names[:4])) or prose.words(prose.clean(question), 3)


def _entity_questions(text: str, rng: Random) -> str:
    entity = _between(text, AROUND, '"')
    asked = ("What is known about", "Who has to do with", "What came of", "Which views are there on")
    return "\n".join(f"{question} {entity}?" for question in rng.sample(asked, rng.randint(2, 4)))


def _reduce(text: str, rng: Random) -> str:
    answers = _sections(text).get("Answers", [])
    parts = []
    for i in range(min(len(answers), rng.randint(3, 6))):
        answer = answers[i][-1]
        cited = " ".join(_REFERENCE.findall(answer)[:2])
        parts.append(
            f"## Theme {i + 1}\n\n{prose.words(prose.clean(_REFERENCE.sub('', answer)), 60)}. {cited}"
        )
    return "\n\n".join(parts or [prose.lorem(200, rng)])


def _walk_answer(text: str, rng: Random) -> str:
    """Three of ten replies say that the passages are insufficient."""
    return "Insufficient" if rng.random() < 0.3 else _answer(text, rng)


def _next_questions(text: str, rng: Random) -> str:
    rows = _sections(text).get("Sources", [])
    named = [name for row in rows for name, _ in prose.names(row[-1])]
    asked = [f"What is known about {name}?" for name in dict.fromkeys(named)][: rng.randint(1, 2)]
    return orjson.dumps({"known": [prose.lorem(12, rng)], "next": asked}).decode()


def _pick_facts(text: str, rng: Random) -> str:
    n = len(_sections(text).get("Relationships", []))
    return orjson.dumps({"facts": rng.sample(range(1, n + 1), min(n, rng.randint(0, 5)))}).decode()


def _keywords(text: str, rng: Random) -> str:
    """Names in the question, and some pairs of its words."""
    question = _between(text, "# The question to write keywords for", "\n----- end of the question").strip()
    words = [word for word in re.findall(r"\w+", question) if len(word) > 3]
    pairs = [" ".join(words[at : at + 2]) for at in range(0, len(words), 2)][: rng.randint(2, 5)]
    low = [name for name, _ in prose.names(question)][:6] or words[:3]
    return orjson.dumps({"high_level": pairs or [question[:60]], "low_level": low}).decode()


def _corpus_description(text: str, rng: Random) -> str:
    titles = re.findall(r"^- ([^:\n]{1,80})", text, re.MULTILINE)[:6]
    about = f", among other things on {'; '.join(map(prose.clean, titles))}" if titles else ""
    return f"The corpus is a collection of texts{about}. {prose.lorem(rng.randint(60, 120), rng)}"


def _listed(key: str, entry: str, beginning: str, ending: str) -> Callable[[str, Random], str]:
    """A function that writes lists with exactly as many different entries as the prompt asks for."""

    def writer(text: str, rng: Random) -> str:
        wanted = _N.search(text.rpartition("\n")[2])
        known = [name for name, _ in prose.names(_between(text, "# The corpus", "\n----- end of"))]
        n = int(wanted.group(1)) if wanted else 5
        entries: dict[str, None] = {}
        while len(entries) < n:
            about = f"{rng.choice(known)} and " if known else ""
            rest = prose.lorem(rng.randint(15, 40), rng).rstrip(".").lower()
            entries[f"{beginning} {about}{rest}{ending}"] = None
        return orjson.dumps({key: [{entry: one} for one in entries]}).decode()

    return writer


def _judge(text: str, rng: Random) -> str:
    """14% ties; otherwise answer 1 wins 10 points more often than answer 2, whatever they contain."""
    winner = rng.choices((0, 1, 2), (14, 48, 38))[0]
    reason = ""
    for n in (1, 2):
        answer = _between(text, f"\n# Answer {n}\n", f"\n----- end of answer {n}")
        excerpt = prose.words(prose.clean(_REFERENCE.sub("", answer)), rng.randint(8, 16))
        reason += f"Answer {n} tells of this: {excerpt}. "
    reason += f"Answer {winner} does better." if winner else "They hardly differ."
    return orjson.dumps({"reason": reason, "winner": winner}).decode()


def _judge_joint(text: str, rng: Random) -> str:
    names = _between(text, "\nThe criteria: ", "\n").split(", ")
    verdicts = [{"criterion": name, **orjson.loads(_judge(text, rng))} for name in names]
    return orjson.dumps({"verdicts": verdicts}).decode()


def _check_statements(text: str, rng: Random) -> str:
    """Two of three statements hold."""
    listed = _between(text, "\n# Statements\n", "\n----- end of the statements")
    numbers = re.findall(r"^(\d+)\. ", listed, re.MULTILINE)
    verdicts = [
        {"number": int(n), "reason": prose.lorem(20, rng), "holds": rng.choice(("yes", "yes", "no"))}
        for n in numbers
    ]
    return orjson.dumps({"statements": verdicts}).decode()


def _answer_claims(text: str, rng: Random) -> str:
    """About one claim per 110 characters of an answer, at most 40: a long answer has 10 or more."""
    answer = _REFERENCE.sub("", _between(text, "\n# Answer\n", "\n----- end of the answer"))
    n = min(MOST_CLAIMS, round(len(answer) / CHARS_PER_CLAIM * rng.uniform(0.8, 1.2)))
    claims = dict.fromkeys(prose.words(prose.clean(s), 30) for s in re.split(r"(?<=[.?!])\s|\n", answer))
    claims.pop("", None)
    written = [f"{claim}." for claim in claims][:n]
    while len(written) < n:
        written.append(f"{prose.lorem(25, rng).rstrip('.')}, as number {len(written) + 1} says.")
    return orjson.dumps({"claims": [{"claim": claim} for claim in written]}).decode()


def _other(response_format: Any, rng: Random) -> str:
    text = prose.lorem(min(2000, round(rng.lognormvariate(5.3, 0.6))), rng)
    form = response_format if isinstance(response_format, dict) else {}
    if form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema") or {}
        return orjson.dumps(_instance(schema, text)).decode()
    return orjson.dumps({"answer": text}).decode() if form.get("type") == "json_object" else text


def _instance(schema: Mapping[str, Any], text: str) -> Any:
    """A value that satisfies a simple JSON schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: _instance(inner, text) for name, inner in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [_instance(schema.get("items") or {}, text)]
    return {"number": 5.0, "integer": 5, "boolean": True, "null": None}.get(str(kind), text)


def _verdicts(text: str, rng: Random) -> str:
    """A candidate is the same if its name consists of words of the name or the other way round."""
    name = set(_between(text, "Name A: ", "\n").partition(" (")[0].split())
    candidates = re.findall(r"^(\d+)\. ([^\n(]+)", text.partition("Candidates:")[2], re.MULTILINE)
    same = {n: name <= set(other.split()) or set(other.split()) <= name for n, other in candidates}
    verdicts = [
        {"candidate": int(n), "reason": prose.lorem(8, rng), "verdict": "same" if is_same else "different"}
        for n, is_same in same.items()
    ]
    return orjson.dumps({"verdicts": verdicts}).decode()


def _one_group(text: str, rng: Random) -> str:
    documents = [int(n) for n in re.findall(r"^Document (\d+): ", text, re.MULTILINE)]
    return orjson.dumps({"groups": [{"label": prose.lorem(2, rng), "documents": documents}]}).decode()


_WRITERS: Mapping[str, Callable[[str, Random], str]] = {
    "extract": _extract,
    "extract_schema": _extract,
    "claims": _claims,
    "resolve": _verdicts,
    "resolve_split": _one_group,
    "describe": _describe,
    "about": _about,
    "report": _report,
    "summary": _summary,
    "map": _map,
    "map_points": _map_points,
    "rate": _rate,
    "reduce": _reduce,
    "answer": _answer,
    "drift_hypothesis": lambda text, rng: prose.lorem(80, rng),
    "drift_primer": _step,
    "drift_local": _step,
    "keywords": _keywords,
    "zero_shot": lambda text, rng: prose.lorem(rng.randint(60, 300), rng),
    "query_entities": _query_entities,
    "entity_summary": _answer,
    "fgrag_answer": _reduce,
    "lazy_subqueries": _subqueries,
    "lazy_test": _relevant,
    "walk_answer": _walk_answer,
    "next_questions": _next_questions,
    "pick_facts": _pick_facts,
    "corpus_description": _corpus_description,
    "personas": _listed("personas", "persona", "Somebody who wants to know about", "."),
    "tasks": _listed("tasks", "task", "Find out about", "."),
    "corpus_questions": _listed("questions", "question", "What do the texts say about", "?"),
    "judge": _judge,
    "judge_joint": _judge_joint,
    "check_statements": _check_statements,
    "answer_claims": _answer_claims,
    "condense": lambda text, rng: text.rpartition(NEW_QUESTION)[2].partition("\n----- end of")[0].strip(),
}


def _passage(text: str) -> str:
    passage = text.partition(PASSAGE)[2]
    return passage.rpartition(END)[0] or passage


def _delimiters(text: str) -> tuple[str, str]:
    match = _DELIMITERS.search(text)
    return (match.group(1), match.group(2)) if match else ("##", "<|COMPLETE|>")


def _entity_start(name: str) -> str:
    return f'("entity"{FIELD}{name.upper()}{FIELD}'


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def _sections(text: str) -> dict[str, Rows]:
    """The tables of a context, without headings and column names."""
    out: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("-----") and (match := _HEADING.match(line)):
            lines = []
            out[match.group(1)] = lines
        elif line.startswith("----- end of"):
            break
        else:
            lines.append(line)
    return {name: [row for row in csv.reader(rows[1:]) if len(row) > 1] for name, rows in out.items()}


def _evidence(sections: Mapping[str, Rows], i: int) -> str:
    """A reference to up to three records of each section, different for each i."""
    parts = []
    for name, rows in sections.items():
        if rows:
            ids = dict.fromkeys(rows[(3 * i + k) % len(rows)][0] for k in range(3))
            parts.append(f"{name} ({', '.join(ids)})")
    return f"[Data: {'; '.join(parts)}]" if parts else ""


def _excerpt(rows: Rows, i: int, n: int) -> str:
    if not rows:
        return "Nothing else is known."
    return prose.words(prose.clean(_REFERENCE.sub("", rows[i % len(rows)][-1])), n) + "."
