"""The summary dialogue: texts that belong together in, one summary out (RAPTOR, section 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphrag_ray.base import records
from graphrag_ray.base.index_settings import Chunking, Settings, Tree
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.descriptions import whole_sentences
from graphrag_ray.graph.extraction_dialogue import check_not_withheld, usable_reply
from graphrag_ray.graph.plan import HEADING_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.report_context import Context, fold
from graphrag_ray.graph.report_dialogue import Report

SAID_ABOVE = 100
"""Tokens of what is said of a chunk's document, at most, and of the marks around it."""
MOST_TITLE_WORDS, MOST_TITLE = 20, 160
"""A first line with more words or characters is no title."""
_TITLE_WORDS = 12
_MARKED = re.compile(r"\A(?:[#*_>\s]|title\s*:|\"|“)+", re.IGNORECASE)
_MARKED_END = re.compile(r"(?<![\s*_\"”#.:])[\s*_\"”#.:]+\Z")
_HEADED = re.compile(r"\A[#*_\s]*summary[*_\s]*:[*_\s]*", re.IGNORECASE)


@dataclass(frozen=True)
class SummarySpec:
    """What is the same for all summaries of a run. max_tokens: length that the prompt asks for; `call` holds
    the hard limit."""

    prompt: Prompt
    correct: Prompt
    call: CallParameters
    language: str
    max_tokens: int


def summary_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> SummarySpec:
    most = settings.tree.max_output_tokens
    return SummarySpec(
        prompt=prompts["summary"],
        correct=prompts["correct"],
        # Names, figures and some languages take more tokens than three for four words.
        call=settings.call("summary", 2 * most),
        language=settings.output_language,
        max_tokens=most,
    )


def longest_record(budget: int) -> int:
    """Tokens of a record in what a summary is written from: two fit. A longer one loses its end."""
    return (budget - HEADING_TOKENS) // 2 - NUMBER_TOKENS


def context_tokens(options: Tree, chunking: Chunking) -> int:
    """Of what a summary is written from: at least as many as two whole chunks take. A chunk that is a whole
    document may be longer than half of it."""
    size = chunking.size if isinstance(chunking.size, int) else 0
    longest = size + chunking.min_new_tokens + SAID_ABOVE + NUMBER_TOKENS
    return max(options.context_tokens, 2 * longest + HEADING_TOKENS if size else 0)


def summary(context: Context, spec: SummarySpec) -> Dialogue[Report]:
    """Ask for a summary, and once more where the reply is empty. It is a report without findings and rating,
    which refers to all that it was written from.

    Raises DialogueFailed where the second reply is empty, too, and for a content filter.
    """
    variables = {"context": context.text, "language": spec.language, **reply_lengths(spec.max_tokens)}
    request = ChatRequest("summary", spec.prompt.fill(variables), spec.call, variables)

    def read(reply: ChatReply) -> tuple[str, str] | ReplyProblem:
        check_not_withheld(reply, "summary")
        title, text = read_summary(reply)
        return (title, text) if text else ReplyProblem("it is empty")

    (title, text), _ = yield from usable_reply(request, spec.correct, read)
    shown = tuple(records.Reference(section, id_) for (section, _), id_ in context.numbering.items())
    return Report(title, text, None, "", (), shown, 0)


def read_summary(reply: ChatReply) -> tuple[str, str]:
    """Title and text of a reply. Without a title of its own, the first words are one; of a reply that was cut
    off, the unfinished sentence goes."""
    lines = [fold(line) for line in reply.text.splitlines() if not line.startswith("```")]
    written = records.strip_references("\n".join(lines)).strip()
    if not any(character.isalnum() for character in written):
        return "", ""
    first, _, rest = written.partition("\n")
    title = _MARKED_END.sub("", _MARKED.sub("", " ".join(first.split())))
    text = _HEADED.sub("", rest.strip())
    if not title or not text or len(title) > MOST_TITLE or len(title.split()) > MOST_TITLE_WORDS:
        text = written
        words = " ".join(_MARKED.sub("", written).split()[:_TITLE_WORDS])
        title = words if len(words) <= MOST_TITLE else words[: MOST_TITLE - 1] + "…"
    # Lines that look like headings would be parts of a report.
    text = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())
    text = re.sub(r"(?m)^[#\s]*#\s*", "", text)
    if reply.finish_reason == "length":
        text = whole_sentences(text)
    return title, text
