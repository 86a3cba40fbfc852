"""The report dialogue, which writes a community's report from its context (paper 3.1.5, E.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from graphrag_ray.base import context_records
from graphrag_ray.base.dates import period_sentence
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import TRUNCATED_JSON, JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import CallParameters, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.corpus_overview import overview_line
from graphrag_ray.graph.extraction_dialogue import usable_reply
from graphrag_ray.graph.report_context import Context

# The paper asks for 5 to 10 findings (E.2), our prompt for about 3 to 7. From 1 to 10 are accepted, because
# missing findings are not worth another call.
MAX_FINDINGS = 10
TOO_LONG = "it was cut off before its end, write less and close the JSON object"


class FindingDraft(JsonReply):
    summary: str
    explanation: str


class ReportDraft(JsonReply):
    """A report as the model wrote it, with references by local number."""

    title: str
    summary: str
    rating: float = Field(le=10)
    rating_explanation: str
    findings: list[FindingDraft] = Field(min_length=1)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "rating_explanation": ("rating.*expl.*", "explanation")
    }


@dataclass(frozen=True)
class ReportSpec:
    """The prompt parameters shared by all reports of a run."""

    prompt: Prompt
    correct: Prompt
    call: CallParameters
    role: str  # the persona of the writer
    rating_criterion: str  # the quality that the rating from 0 to 10 measures
    language: str
    max_tokens: int  # length that the prompt asks for; `call` has the hard limit
    about: str = ""  # overview of the corpus, if known and used by the prompt
    rules: int | None = None  # Settings.later_rules


@dataclass(frozen=True)
class Report:
    """A report. References in its texts use string ids: `[Data: Entities (<id>, <id>)]`."""

    title: str
    summary: str
    rating: float | None  # 0 to 10; None for a summary
    rating_explanation: str
    findings: tuple[tuple[str, str], ...]  # up to 10 pairs of summary and explanation; empty for a summary
    references: tuple[context_records.Reference, ...]  # distinct cited records, in order of citation
    dropped_references: int  # number of citations of records that are not in the context
    composed: bool = False  # whether it was composed without a model (`composed_report.py`)


def report_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> ReportSpec:
    reports = settings.reports
    return ReportSpec(
        prompt=prompts["report"],
        correct=prompts["correct"],
        call=settings.call_parameters("report", reports.max_output_tokens),
        role=reports.role,
        rating_criterion=reports.rating_criterion,
        language=settings.output_language,
        max_tokens=reports.max_output_tokens,
        about=overview_line(settings, prompts["report"]),
        rules=settings.later_rules("report"),
    )


def report(context: Context, spec: ReportSpec, period: str = "") -> Dialogue[Report]:
    """Request a report, and retry once if the reply is unusable.

    Args:
        period: Dates of the documents that the context comes from (`base/dates.py`), or "" if unknown.

    Raises:
        DialogueFailed: If the second reply is unusable, too.
    """
    variables = {
        "role": spec.role,
        "rating_criterion": spec.rating_criterion,
        "context": context.text,
        "language": spec.language,
        "about": spec.about,
        "period": period_sentence(period),
        **reply_lengths(spec.max_tokens, "cited" if spec.rules else "any"),
    }
    messages, schema = spec.prompt.fill(variables), schema_of(ReportDraft)
    request = ChatRequest("report", messages, spec.call, variables, response="json", schema=schema)
    draft, _ = yield from usable_reply(
        request, spec.correct, lambda reply: parse_report(reply.text, reply.finish_reason)
    )
    cited: dict[context_records.Reference, None] = {}
    dropped = 0

    def resolve(text: str) -> str:
        nonlocal dropped
        resolved, references, unknown = context_records.resolve_references(text, context.numbering)
        cited.update(dict.fromkeys(references))
        dropped += unknown
        return resolved.strip()

    def one_line(text: str) -> str:
        """Make a text usable as a Markdown heading."""
        return " ".join(text.split())

    title = one_line(context_records.strip_references(draft.title))
    summary, rating_explanation = resolve(draft.summary), resolve(draft.rating_explanation)
    findings = tuple((one_line(resolve(f.summary)), resolve(f.explanation)) for f in draft.findings)
    return Report(title, summary, draft.rating, rating_explanation, findings, tuple(cited), dropped)


def parse_report(text: str, finish_reason: str = "stop") -> ReportDraft | ReplyProblem:
    """Parse a reply. If it was cut off ("length"), the incomplete field or finding is dropped."""
    parsed = parse_reply(text, ReportDraft, finish_reason)
    if isinstance(parsed, ReportDraft):
        return parsed.model_copy(update={"findings": parsed.findings[:MAX_FINDINGS]})
    if finish_reason != "length":
        return parsed
    return ReplyProblem(TOO_LONG if parsed.text == TRUNCATED_JSON else f"{TOO_LONG}; {parsed.text}")


def full_content(report: Report) -> str:
    """Return the report as Markdown with string ids in references (`context_records.render_references`)."""
    parts = [f"# {report.title}", report.summary]
    for summary, explanation in report.findings:
        parts += [f"## {summary}", explanation]
    return "\n\n".join(parts) + "\n"
