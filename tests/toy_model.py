"""A model for tests: it recognises the bundled prompts and answers each by simple rules.

Names are words in capitals, and two names in one sentence are related, so tests can state what an index of
their texts must contain. It reads only the messages, like a model behind HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Reply,
    Request,
)
from graphrag_ray.base.prompts import Prompt, load_prompts
from graphrag_ray.graph.delimited_records import COMPLETION, FIELD, RECORD

NAME = re.compile(r"\b[A-Z]{3,}(?: [A-Z]{3,})*\b")


def _pattern(prompt: Prompt) -> re.Pattern[str]:
    seen: set[str] = set()

    def group(part: str) -> str:
        name = part.strip("-{} \n")
        if part.endswith("}\n") and name not in seen:
            seen.add(name)  # A line of its own, which is removed if the value is empty.
            mark = "- " if part.startswith("-") else ""
            return f"(?:{mark}(?P<{name}>[^\n]*)\n)?"
        if not re.fullmatch(r"\{[a-z][a-z0-9_]*\}", part):
            return re.sub(r"\\ $", " ?", re.escape(part))  # Removed if the value is empty.
        if name in seen:
            return rf"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>.*?)"

    pieces = re.split(r"((?<=\n)(?:\{(?:about|period)\}|- \{documents\})\n|\{[a-z][a-z0-9_]*\})", prompt.user)
    return re.compile("".join(group(p) for p in pieces), re.DOTALL)


_PATTERNS = [(name, _pattern(p)) for name, p in load_prompts().items() if name != "extract_examples"]


def recognise(text: str) -> tuple[str, dict[str, str]]:
    """The prompt of which this is the user message, and the values of its placeholders."""
    for name, pattern in _PATTERNS:
        if match := pattern.fullmatch(text):
            return name, match.groupdict()
    raise ValueError(f"no bundled prompt reads like {text[:80]!r}")


def respond(body: dict[str, Any]) -> str:
    """For `Endpoint(respond=…)`: answer the body of a chat call."""
    messages = body["messages"]
    name, variables = recognise(messages[-1]["content"])
    return globals()[f"answer_{name}"](variables)


def answer(request: Request) -> Reply:
    """For `run_dialogue` and executors without HTTP."""
    if isinstance(request, EmbeddingRequest):
        return EmbeddingReply(bytes(4 * 4))
    assert isinstance(request, ChatRequest)
    return ChatReply(respond({"messages": [{"content": request.messages[-1].content}]}))


def answer_extract(variables: dict[str, str]) -> str:
    records: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+", variables["text"]):
        names = list(dict.fromkeys(NAME.findall(sentence)))
        told = " ".join(sentence.split())
        records += [f'("entity"{FIELD}{n}{FIELD}PERSON{FIELD}{told})' for n in names]
        for i, a in enumerate(names):
            records += [f'("relationship"{FIELD}{a}{FIELD}{b}{FIELD}{told}{FIELD}5)' for b in names[i + 1 :]]
    return f"{RECORD}\n".join([*records, COMPLETION])


def answer_glean_check(variables: dict[str, str]) -> str:
    return "N"


def answer_glean(variables: dict[str, str]) -> str:
    return COMPLETION


def answer_glean_missing(variables: dict[str, str]) -> str:
    return COMPLETION


def answer_extract_schema(variables: dict[str, str]) -> str:
    """Every name has the first type of the schema, and every relationship is KNOWS."""
    reply = answer_extract(variables).replace("PERSON", variables["entity_types"].partition(",")[0])
    return re.sub(rf'(\("relationship"(?:{re.escape(FIELD)}[^<]*){{2}})', rf"\1{FIELD}KNOWS", reply)


def answer_glean_schema(variables: dict[str, str]) -> str:
    return COMPLETION


def answer_correct_schema(variables: dict[str, str]) -> str:
    return COMPLETION


def answer_document_context(variables: dict[str, str]) -> str:
    return "A text about " + " and ".join(NAME.findall(variables["text"])[:2]) + "."


def answer_correct(variables: dict[str, str]) -> str:
    return COMPLETION


def answer_claims(variables: dict[str, str]) -> str:
    told = " ".join(variables["text"].split())[:80]
    names = variables["entities"].split("\n")
    fields = [names[0], "NONE", "FACT", "TRUE", "2020-01-01", "NONE", f"{names[0]} is told of", told]
    return f'("claim"{FIELD}{FIELD.join(fields)}){RECORD}{COMPLETION}'


def answer_resolve(variables: dict[str, str]) -> str:
    """Two names are the same if one consists of words of the other."""
    name = set(variables["name"].split("\n")[0].partition(" (")[0].split())
    verdicts = []
    for n, candidate in re.findall(r"^(\d+)\. ([^\n(]+)", variables["candidates"], re.MULTILINE):
        other = set(candidate.split())
        verdict = "same" if name <= other or other <= name else "different"
        verdicts.append({"candidate": int(n), "reason": "As its words say.", "verdict": verdict})
    return json.dumps({"verdicts": verdicts})


def answer_resolve_split(variables: dict[str, str]) -> str:
    """Documents belong together if they tell of the same first word in lower case."""
    groups: dict[str, list[int]] = {}
    for n, text in re.findall(
        r"^Document (\d+): (.*?)(?=^Document |\Z)", variables["documents"], re.M | re.S
    ):
        told = text.replace(variables["name"], "")
        words = re.findall(r"^- .*?\b([a-z]{4,})\b", told, re.MULTILINE)
        groups.setdefault(words[0] if words else "", []).append(int(n))
    return json.dumps({"groups": [{"label": label, "documents": found} for label, found in groups.items()]})


def answer_describe(variables: dict[str, str]) -> str:
    return f"{variables['name']}: " + " / ".join(sorted(variables["descriptions"].split("\n")))[:400]


def answer_about(variables: dict[str, str]) -> str:
    return f"Letters between people such as {NAME.findall(variables['entities'])[0]}."


def answer_report(variables: dict[str, str]) -> str:
    sections = parse_sections(variables["context"])
    entities, (section, reports) = sections.get("Entities", []), _reports(sections)
    findings = [
        {"summary": f"On {e['entity']}", "explanation": f"{e['description']} [Data: Entities ({e['id']})]"}
        for e in entities[:5]
    ] + [
        {"summary": r["title"], "explanation": f"{r['title']} [Data: {section} ({r['id']})]"}
        for r in reports[:5]
    ]
    sources = sections.get("Sources", [])
    findings += [
        {"summary": f"Source {s['id']}", "explanation": f"{s['text']} [Data: Sources ({s['id']})]"}
        for s in sources[:5]
    ]
    names = [e["entity"] for e in entities[:3]] or [r["title"] for r in reports[:3]]
    title = ", ".join(names or [s["text"][:40] for s in sources[:1]])
    return json.dumps(
        {
            "title": title,
            "summary": f"A community around {title}.",
            "rating": 5.0,
            "rating_explanation": "As good as any.",
            "findings": findings[:10],
        }
    )


def answer_summary(variables: dict[str, str]) -> str:
    sections = parse_sections(variables["context"])
    texts = [s["text"] for s in sections.get("Sources", [])] or [r["content"] for r in _reports(sections)[1]]
    names = list(dict.fromkeys(name for text in texts for name in NAME.findall(text)))
    return f"{', '.join(names[:3]) or 'Nobody'}\n\n" + " ".join(" ".join(text.split())[:80] for text in texts)


def answer_map(variables: dict[str, str]) -> str:
    found = _points(variables)
    if not found:
        return "<ANSWER_HELPFULNESS> 0 </ANSWER_HELPFULNESS>"
    points = "\n".join(f"- {p}" for p in found)
    return f"<ANSWER_HELPFULNESS> {min(100, 10 * len(found))} </ANSWER_HELPFULNESS>\n{points}"


def answer_map_points(variables: dict[str, str]) -> str:
    points = [{"description": p, "score": 90 - 5 * i} for i, p in enumerate(_points(variables))]
    return json.dumps({"points": points})


def answer_rate(variables: dict[str, str]) -> str:
    _, reports = _reports(parse_sections(variables["context"]))
    wanted = _asked(variables)
    ratings = [
        {
            "id": int(r["id"]),
            "reason": "As its names say.",
            "rating": 4 if "THEMES" in wanted or wanted & set(NAME.findall(r["content"])) else 0,
        }
        for r in reports
    ]
    return json.dumps({"ratings": ratings})


def answer_lazy_subqueries(variables: dict[str, str]) -> str:
    names = NAME.findall(variables["question"])
    texts = [f"What about {name} ?" for name in names] or [variables["question"]]
    return json.dumps({"subqueries": texts, "expanded": variables["question"]})


def answer_lazy_test(variables: dict[str, str]) -> str:
    wanted = _asked(variables)
    relevant = [
        {"id": int(r["id"]), "score": 80}
        for r in parse_sections(variables["context"])["Sources"]
        if "THEMES" in wanted or wanted & set(NAME.findall(r["text"]))
    ]
    return json.dumps({"relevant": relevant})


def answer_drift_hypothesis(variables: dict[str, str]) -> str:
    return f"{variables['question']} They met, and somebody wrote."


def answer_drift_primer(variables: dict[str, str]) -> str:
    return _step(variables, _reports(parse_sections(variables["context"]))[0], 40)


def answer_drift_local(variables: dict[str, str]) -> str:
    return _step(variables | {"question": variables["follow_up"]}, "Entities", 70)


def _step(variables: dict[str, str], section: str, score: int) -> str:
    """Names in the records of the answer become follow-up questions, unless the question has them."""
    names = {
        r["id"]: NAME.findall("; ".join(r.values())) for r in parse_sections(variables["context"])[section]
    }
    wanted = _asked(variables)
    hits = [n for n, found in names.items() if "THEMES" in wanted or wanted & set(found)][:3]
    open_ = sorted({name for n in hits for name in names[n]} - wanted)
    return json.dumps(
        {
            "answer": " ".join(f"{', '.join(names[n][:3])} [Data: {section} ({n})]." for n in hits),
            "score": score if hits else 0,
            "follow_ups": [{"question": f"What about {n} ?", "score": 90 - i} for i, n in enumerate(open_)],
        }
    )


def _points(variables: dict[str, str]) -> list[str]:
    """Records whose title or text has a capitalised word of the question; at most ten."""
    sections, wanted = parse_sections(variables["context"]), _asked(variables)
    name, reports = _reports(sections)
    shown = [(name, r["title"], r["id"]) for r in reports]
    shown += [("Entities", r["entity"], r["id"]) for r in sections.get("Entities", [])]
    shown += [("Sources", r["text"], r["id"]) for r in sections.get("Sources", [])]
    return [
        f"{text} [Data: {section} ({id_})]"
        for section, text, id_ in shown
        if "THEMES" in wanted or wanted & set(NAME.findall(text))
    ][:10]


def _reports(sections: Mapping[str, list[dict[str, str]]]) -> tuple[str, list[dict[str, str]]]:
    """The section of reports, if there is one, and its rows."""
    return next(((name, sections[name]) for name in REPORT_SECTIONS if name in sections), ("Reports", []))


def _asked(variables: dict[str, str]) -> set[str]:
    return set(variables["question"].upper().strip("?").split())


def answer_answer(variables: dict[str, str]) -> str:
    """The first three records of each table with a name of the question."""
    asked = set(variables["question"].upper().strip("?").split())
    points: list[str] = []
    for section, rows in parse_sections(variables["context"]).items():
        told = [(row["id"], " ".join(list(row.values())[1:])) for row in rows]
        hits = [
            (n, t) for n, t in told if "THEMES" in asked or asked & set(" ".join(NAME.findall(t)).split())
        ]
        points += [f"- {text} [Data: {section} ({n})]" for n, text in hits[:3]]
    return "\n".join(points) or "I don't know."


def answer_keywords(variables: dict[str, str]) -> str:
    """Names are low-level keywords, everything else is high-level."""
    names = NAME.findall(variables["question"])
    other = NAME.sub("", variables["question"]).strip(" ?")
    return json.dumps({"high_level": [other] if other else [], "low_level": names})


def answer_zero_shot(variables: dict[str, str]) -> str:
    return f"Nobody told me: {variables['question']}"


def answer_query_entities(variables: dict[str, str]) -> str:
    return "\n".join(NAME.findall(variables["question"])) or "That is hard to say, I am afraid."


def answer_entity_questions(variables: dict[str, str]) -> str:
    return f"What about {variables['entity']} ?\nWho knows {variables['entity']} ?"


def answer_entity_summary(variables: dict[str, str]) -> str:
    found = answer_answer(variables | {"question": f"{variables['question']} {variables['entity']}"})
    return "NONE" if found == "I don't know." else found


def answer_condense(variables: dict[str, str]) -> str:
    return variables["question"]


def answer_reduce(variables: dict[str, str]) -> str:
    return "\n".join(row["answer"] for row in parse_sections(variables["answers"])["Answers"])


def answer_fgrag_answer(variables: dict[str, str]) -> str:
    return answer_reduce(variables)


def answer_walk_answer(variables: dict[str, str]) -> str:
    found = answer_answer(variables)
    return "Insufficient" if found == "I don't know." else f"{found}\n\nChain:\n- Who? -> {found[2:]}"


def answer_next_questions(variables: dict[str, str]) -> str:
    return json.dumps({"known": [], "next": [f"Who knows {n}?" for n in NAME.findall(variables["context"])]})


def answer_pick_facts(variables: dict[str, str]) -> str:
    return json.dumps({"facts": [1]})


def answer_judge(variables: dict[str, str]) -> str:
    """The answer with more people wins, whatever the criterion."""
    first, second = (len(set(NAME.findall(variables[name]))) for name in ("answer_1", "answer_2"))
    winner = 0 if first == second else 1 if first > second else 2
    return json.dumps({"reason": f"{first} against {second}", "winner": winner})


def answer_judge_joint(variables: dict[str, str]) -> str:
    verdict = json.loads(answer_judge(variables))
    return json.dumps({"verdicts": [{"criterion": n, **verdict} for n in variables["names"].split(", ")]})


def answer_check_statements(variables: dict[str, str]) -> str:
    """A statement holds if the text has all of its names."""
    known = set(NAME.findall(variables["text"]))
    lines = [line.partition(". ") for line in variables["statements"].split("\n")]
    holds = [{"number": int(n), "holds": "yes" if {*NAME.findall(s)} <= known else "no"} for n, _, s in lines]
    return json.dumps({"statements": holds})


def answer_answer_claims(variables: dict[str, str]) -> str:
    return json.dumps({"claims": [{"claim": f"{n} is told of."} for n in NAME.findall(variables["answer"])]})


def answer_correct_answer(variables: dict[str, str]) -> str:
    return "Y" if variables["gold"].removeprefix("- ").lower() in variables["answer"].lower() else "N"


def answer_corpus_description(variables: dict[str, str]) -> str:
    return f"Letters between {NAME.findall(variables['reports'])[0]} and others."


def answer_tune_profile(variables: dict[str, str]) -> str:
    """Every name is a person or a mill, which is nobody's type."""
    types = {"person": "somebody with a name", "mill": "a mill", "boat": "a boat"}
    return json.dumps(
        {
            "domain": "letters",
            "languages": ["English"],
            "description": f"Letters of {NAME.findall(variables['samples'])[0]}.",
            "role": "a reader of letters",
            "rating_criterion": "what people owe each other",
            "claims": "Debts, with dates.",
            "entity_types": [{"type": t, "definition": d} for t, d in types.items()],
        }
    )


def answer_tune_schema(variables: dict[str, str]) -> str:
    name = NAME.findall(variables["samples"])[0]
    entities = [{"type": "person", "description": "Somebody.", "attributes": ["age"], "examples": [name]}]
    ends = {"sources": ["person"], "targets": ["mill", "castle"]}
    return json.dumps({"entities": entities, "relations": [{"relation": "works at", **ends}]})


def answer_personas(variables: dict[str, str]) -> str:
    return _listed("personas", "persona", variables)


def answer_tasks(variables: dict[str, str]) -> str:
    return _listed("tasks", "task", variables)


def answer_corpus_questions(variables: dict[str, str]) -> str:
    about = f"{variables['persona']} of {variables['task']}"
    return _listed("questions", "question", variables, about)


def _listed(key: str, entry: str, variables: dict[str, str], about: str = "") -> str:
    return json.dumps({key: [{entry: f"{entry} {n} {about}"} for n in range(1, int(variables["n"]) + 1)]})
