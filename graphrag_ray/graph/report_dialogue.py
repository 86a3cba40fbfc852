"""The report dialogue: a community's context in, its report out (paper 3.1.5, E.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from graphrag_ray.base import records
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import NOT_CLOSED, JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import CallParameters, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.about_corpus import about_line
from graphrag_ray.graph.extraction_dialogue import usable_reply
from graphrag_ray.graph.report_context import Context

MAX_FINDINGS = 10
"""The paper asks for 5–10 (E.2), our prompt for some 3 to 7; 1–10 are taken: another call would cost more
than the missing ones."""
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
    """What is the same for all reports of a run.

    role                who writes; rating_criterion: what the rating 0–10 measures
    max_tokens          length that the prompt asks for; `call` holds the hard limit
    about               a line on the corpus; "": its prompt has no place for it, or nothing is known
    """

    prompt: Prompt
    correct: Prompt
    call: CallParameters
    role: str
    rating_criterion: str
    language: str
    max_tokens: int
    about: str = ""


@dataclass(frozen=True)
class Report:
    """A report. References inside the texts hold string ids: `[Data: Entities (<id>, <id>)]`.

    rating               0–10; None: a summary, which has none
    findings             1–10 pairs of summary and explanation; of a summary, none
    references           every record that it cites, distinct, in order
    dropped_references   numbers that it cited and that its context did not hold
    """

    title: str
    summary: str
    rating: float | None
    rating_explanation: str
    findings: tuple[tuple[str, str], ...]
    references: tuple[records.Reference, ...]
    dropped_references: int


def report_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> ReportSpec:
    reports = settings.reports
    return ReportSpec(
        prompt=prompts["report"],
        correct=prompts["correct"],
        call=settings.call("report", reports.max_output_tokens),
        role=reports.role,
        rating_criterion=reports.rating_criterion,
        language=settings.output_language,
        max_tokens=reports.max_output_tokens,
        about=about_line(settings, prompts["report"]),
    )


def report(context: Context, spec: ReportSpec) -> Dialogue[Report]:
    """Ask for a report, and once more where the reply cannot be used.

    Raises DialogueFailed where the second reply cannot be used either.
    """
    variables = {
        "role": spec.role,
        "rating_criterion": spec.rating_criterion,
        "context": context.text,
        "language": spec.language,
        "about": spec.about,
        **reply_lengths(spec.max_tokens),
    }
    request = ChatRequest(
        prompt="report",
        messages=spec.prompt.fill(variables),
        call=spec.call,
        variables=variables,
        response="json",
        schema=schema_of(ReportDraft),
    )
    draft, _ = yield from usable_reply(
        request, spec.correct, lambda reply: parse_report(reply.text, reply.finish_reason)
    )
    cited: dict[records.Reference, None] = {}
    dropped = 0

    def resolve(text: str) -> str:
        nonlocal dropped
        out, found, unknown = records.resolve_references(text, context.numbering)
        cited.update(dict.fromkeys(found))
        dropped += unknown
        return out.strip()

    def one_line(text: str) -> str:
        """A heading of full_content; without this a line break in it would make text of a part of it."""
        return " ".join(text.split())

    title = one_line(records.strip_references(draft.title))
    summary, rating_explanation = resolve(draft.summary), resolve(draft.rating_explanation)
    findings = tuple((one_line(resolve(one.summary)), resolve(one.explanation)) for one in draft.findings)
    return Report(title, summary, draft.rating, rating_explanation, findings, tuple(cited), dropped)


def parse_report(text: str, finish_reason: str = "stop") -> ReportDraft | ReplyProblem:
    """The report in a reply.

    finish_reason "length": the reply was cut off. What is complete counts; the field or finding in which
    the cut fell does not.
    """
    found = read_reply(text, ReportDraft, finish_reason)
    if isinstance(found, ReportDraft):
        return found.model_copy(update={"findings": found.findings[:MAX_FINDINGS]})
    if finish_reason != "length":
        return found
    return ReplyProblem(TOO_LONG if found.text == NOT_CLOSED else f"{TOO_LONG}; {found.text}")


def full_content(report: Report) -> str:
    """The report as markdown, with references by string id; `records.render_references` makes them
    readable."""
    parts = [f"# {report.title}", report.summary]
    for summary, explanation in report.findings:
        parts += [f"## {summary}", explanation]
    return "\n\n".join(parts) + "\n"
