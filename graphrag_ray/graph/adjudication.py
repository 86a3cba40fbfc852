"""The dialogues of entity resolution: are these names the same, and does this name stand for several things?

Not in the GraphRAG paper. A model confirms or rejects candidates that `name_candidates.py` found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.wording import shorten
from graphrag_ray.graph.extraction_dialogue import check_not_withheld, usable_reply

VERDICTS = ("same", "different", "unsure")
MAX_REASON_CHARS = 200
_MAX_LABEL_CHARS = 60
_TOKENS_PER_ENTRY = 60
EXPECTED_REPLY_TOKENS = 120
"""Tokens of a typical reply, for estimates."""
_MIN_REPLY_TOKENS = 400


_Reply = TypeVar("_Reply", bound=JsonReply)
_Item = TypeVar("_Item")


class Verdict(NamedTuple):
    """The verdict on a candidate, one of `VERDICTS`, and its reason."""

    verdict: str
    reason: str


class _CandidateVerdict(JsonReply):
    candidate: int
    verdict: str
    reason: str = ""


class _Verdicts(JsonReply):
    verdicts: list[_CandidateVerdict]


class _DocumentGroup(JsonReply):
    label: str = ""
    documents: list[int]


class _DocumentGroups(JsonReply):
    groups: list[_DocumentGroup]


@dataclass(frozen=True)
class ResolveSpec:
    """Prompts and call parameters of both dialogues."""

    prompt: Prompt
    split: Prompt
    correct: Prompt
    call: CallParameters


def resolve_spec(prompts: Mapping[str, Prompt], settings: Settings, n: int) -> ResolveSpec:
    """Return the specification for at most `n` candidates or documents per request."""
    call = settings.call_parameters("resolve", max(_MIN_REPLY_TOKENS, n * _TOKENS_PER_ENTRY))
    return ResolveSpec(prompts["resolve"], prompts["resolve_split"], prompts["correct"], call)


def adjudicate(name: str, candidates: Sequence[str], spec: ResolveSpec) -> Dialogue[list[Verdict]]:
    """Ask which candidates stand for the same thing as a name. Returns a verdict per candidate.

    A candidate that the reply leaves out, or to which it gives several verdicts, is "unsure".

    Args:
        name, candidates: Profiles (`name_candidates.profile_text`).

    Raises:
        DialogueFailed: If the reply is unusable even after a correction, or withheld by a content filter.
    """
    listed = "\n\n".join(f"{n}. {text}" for n, text in enumerate(candidates, start=1))
    variables = {"name": name, "candidates": listed}
    parse = partial(_parse_verdicts, len(candidates))
    return (yield from _ask("resolve", spec.prompt, variables, _Verdicts, parse, spec))


def _parse_verdicts(n: int, parsed: _Verdicts) -> list[Verdict] | ReplyProblem:
    found: dict[int, Verdict] = {}
    for entry in parsed.verdicts:
        verdict = entry.verdict.strip().casefold()
        if not 1 <= entry.candidate <= n or verdict not in VERDICTS:
            continue
        known = found.get(entry.candidate)
        contradicts = known is not None and known.verdict != verdict
        reason = "contradictory verdicts" if contradicts else " ".join(entry.reason.split())
        found[entry.candidate] = Verdict(
            "unsure" if contradicts else verdict, shorten(reason, MAX_REASON_CHARS)
        )
    if not found:
        return ReplyProblem("it gives no verdict (same, different or unsure) on any of the candidates")
    return [found.get(number, Verdict("unsure", "no verdict")) for number in range(1, n + 1)]


def split(name: str, documents: Sequence[str], spec: ResolveSpec) -> Dialogue[list[str]]:
    """Ask whether a name stands for several things. Returns a name per document, equal within a group.

    The largest group keeps the name. The others get it with their label: `JOHN ORME (ARCHITECT)`. Documents
    that the reply leaves out belong to the largest group.

    Raises:
        DialogueFailed: As in `adjudicate`.
    """
    listed = "\n\n".join(f"Document {n}: {text}" for n, text in enumerate(documents, start=1))
    variables = {"name": name, "documents": listed}
    parse = partial(_parse_groups, name, len(documents))
    return (yield from _ask("resolve_split", spec.split, variables, _DocumentGroups, parse, spec))


def _parse_groups(name: str, n: int, parsed: _DocumentGroups) -> list[str] | ReplyProblem:
    groups: list[tuple[str, list[int]]] = []
    seen: set[int] = set()
    for group in parsed.groups:
        numbers = [number for number in dict.fromkeys(group.documents) if 1 <= number <= n]
        if seen.intersection(numbers):
            return ReplyProblem("it puts a document into several groups")
        seen.update(numbers)
        if numbers:
            label = shorten(" ".join(group.label.split()), _MAX_LABEL_CHARS)
            groups.append((entity_key(label).strip("() "), numbers))
    if not groups:
        return ReplyProblem("it names no document")
    groups.sort(key=lambda group: (-len(group[1]), group[1]))
    names = [name] * n
    labels: set[str] = set()
    for label, numbers in groups[1:]:
        unique, count = label, len(labels) + 2
        while not unique or unique in labels:
            unique, count = f"{label} {count}".strip(), count + 1
        labels.add(unique)
        for number in numbers:
            names[number - 1] = f"{name} ({unique})"
    return names


def _ask(
    kind: str,
    prompt: Prompt,
    variables: Mapping[str, str],
    form: type[_Reply],
    parse: Callable[[_Reply], list[_Item] | ReplyProblem],
    spec: ResolveSpec,
) -> Dialogue[list[_Item]]:
    """Send a request, and one correction if the reply is unusable."""

    def read(reply: ChatReply) -> list[_Item] | ReplyProblem:
        check_not_withheld(reply, kind)
        parsed = parse_reply(reply.text, form, reply.finish_reason)
        return parsed if isinstance(parsed, ReplyProblem) else parse(parsed)

    request = ChatRequest(
        kind, prompt.fill(variables), spec.call, variables, response="json", schema=schema_of(form)
    )
    items, _ = yield from usable_reply(request, spec.correct, read)
    return items
