"""The summary dialogue, which summarises related texts (RAPTOR, section 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphrag_ray.base import context_records
from graphrag_ray.base.dates import period_sentence
from graphrag_ray.base.index_settings import Chunking, Settings, Tree
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.context_plan import HEADING_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.descriptions import whole_sentences
from graphrag_ray.graph.extraction_dialogue import check_not_withheld, usable_reply
from graphrag_ray.graph.report_context import Context, fold_control_characters
from graphrag_ray.graph.report_dialogue import Report

_LABEL_TOKENS = 100  # maximum tokens of the label of a chunk's document, including punctuation
_MAX_TITLE_WORDS, _MAX_TITLE_CHARACTERS = 20, 160  # a longer first line is not a title
_FALLBACK_TITLE_WORDS = 12
_TITLE_START = re.compile(r"\A(?:[#*_>\s]|title\s*:|\"|“)+", re.IGNORECASE)
_TITLE_END = re.compile(r"(?<![\s*_\"”#.:])[\s*_\"”#.:]+\Z")
_SUMMARY_LABEL = re.compile(r"\A[#*_\s]*summary[*_\s]*:[*_\s]*", re.IGNORECASE)


@dataclass(frozen=True)
class SummarySpec:
    """The prompt parameters shared by all summaries of a run.

    `max_tokens` is the length that the prompt asks for, unless the texts are long (`output_tokens`). `call`
    has the hard limit.
    """

    prompt: Prompt
    correct: Prompt
    call: CallParameters
    language: str
    max_tokens: int
    rules: int | None = None  # Settings.later_rules

    def output_tokens(self, n_tokens: int) -> int:
        """Return the length of a summary of `n_tokens`: a quarter, between `max_tokens` and twice as much."""
        longest = 2 * self.max_tokens if self.rules else self.max_tokens
        return min(max(self.max_tokens, n_tokens // 4), longest)


def summary_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> SummarySpec:
    max_tokens, rules = settings.tree.max_output_tokens, settings.later_rules("summary")
    # The prompt limits words. Names, figures and some languages take more tokens per word than usual.
    call = settings.call_parameters("summary", (4 if rules else 2) * max_tokens)
    language = settings.output_language
    return SummarySpec(prompts["summary"], prompts["correct"], call, language, max_tokens, rules)


def max_record_tokens(budget: int) -> int:
    """Return the maximum tokens of a record in the context of a summary, such that two records fit."""
    return (budget - HEADING_TOKENS) // 2 - NUMBER_TOKENS


def context_tokens(options: Tree, chunking: Chunking) -> int:
    """Return the token budget of a context, enough for two whole chunks unless chunks are documents."""
    size = chunking.size if isinstance(chunking.size, int) else 0
    longest = size + chunking.min_last_chunk_tokens + _LABEL_TOKENS + NUMBER_TOKENS
    return max(options.context_tokens, 2 * longest + HEADING_TOKENS if size else 0)


def summary(context: Context, spec: SummarySpec, period: str = "") -> Dialogue[Report]:
    """Request a summary, and retry once if the reply is empty. `period` is that of its texts, or "".

    Returns a report without findings and rating that cites all records of its context.

    Raises:
        DialogueFailed: If the second reply is empty, too, or a content filter withheld the reply.
    """
    lengths = reply_lengths(spec.output_tokens(context.n_tokens), "prose" if spec.rules else "any")
    variables = {"context": context.text, "language": spec.language, "period": period_sentence(period)}
    variables |= lengths
    request = ChatRequest("summary", spec.prompt.fill(variables), spec.call, variables)

    def read(reply: ChatReply) -> tuple[str, str] | ReplyProblem:
        check_not_withheld(reply, "summary")
        title, text = read_summary(reply)
        return (title, text) if text else ReplyProblem("it is empty")

    (title, text), _ = yield from usable_reply(request, spec.correct, read)
    cited = tuple(context_records.Reference(section, id_) for (section, _), id_ in context.numbering.items())
    return Report(title, text, None, "", (), cited, 0)


def read_summary(reply: ChatReply) -> tuple[str, str]:
    """Return title and text of a reply.

    Without a title, the first words become the title. If cut off, the unfinished sentence is dropped.
    """
    lines = [fold_control_characters(line) for line in reply.text.splitlines() if not line.startswith("```")]
    reply_text = context_records.strip_references("\n".join(lines)).strip()
    if not any(character.isalnum() for character in reply_text):
        return "", ""
    first, _, rest = reply_text.partition("\n")
    title = _TITLE_END.sub("", _TITLE_START.sub("", " ".join(first.split())))
    text = _SUMMARY_LABEL.sub("", rest.strip())
    too_long = len(title) > _MAX_TITLE_CHARACTERS or len(title.split()) > _MAX_TITLE_WORDS
    if not title or not text or too_long:
        text = reply_text
        title = " ".join(_TITLE_START.sub("", reply_text).split()[:_FALLBACK_TITLE_WORDS])
        if len(title) > _MAX_TITLE_CHARACTERS:
            title = title[: _MAX_TITLE_CHARACTERS - 1] + "…"
    # Remove heading marks, which would create sections in a report.
    text = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())
    text = re.sub(r"(?m)^[#\s]*#\s*", "", text)
    return title, whole_sentences(text) if reply.finish_reason == "length" else text
