"""The report dialogue: a community's context in, its report out (paper 3.1.5, E.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphrag_ray.base import records
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.about_corpus import about_line
from graphrag_ray.graph.report_context import Context, shown_content
from graphrag_ray.graph.report_reply import REPORT_SCHEMA, ReportDraft, parse_report


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
        schema=REPORT_SCHEMA,
    )
    reply: ChatReply = yield request
    draft = parse_report(reply.text, reply.finish_reason)
    if isinstance(draft, ReplyProblem):
        correction = {"problem": draft.text}
        reply = yield request.followed_by(
            reply, "correct", spec.correct.text(correction), variables={**variables, **correction}
        )
        draft = parse_report(reply.text, reply.finish_reason)
    if isinstance(draft, ReplyProblem):
        raise DialogueFailed(f"report: still not usable after a correction: {draft.text}")
    return _resolved(draft, context)


def full_content(report: Report) -> str:
    """The report as markdown, with references by string id; `records.render_references` makes them
    readable."""
    parts = [f"# {report.title}", report.summary]
    for summary, explanation in report.findings:
        parts += [f"## {summary}", explanation]
    return "\n\n".join(parts) + "\n"


def context_text(report: Report) -> str:
    """The report as other contexts show it: no references, no title line."""
    return shown_content(full_content(report))


def _resolved(draft: ReportDraft, context: Context) -> Report:
    cited: dict[records.Reference, None] = {}
    dropped = 0

    def resolve(text: str) -> str:
        nonlocal dropped
        out, found, unknown = records.resolve_references(text, context.numbering)
        cited.update(dict.fromkeys(found))
        dropped += unknown
        return out.strip()

    title = _one_line(records.strip_references(draft.title))
    summary, rating_explanation = resolve(draft.summary), resolve(draft.rating_explanation)
    findings = tuple((_one_line(resolve(short)), resolve(long)) for short, long in draft.findings)
    return Report(
        title=title,
        summary=summary,
        rating=draft.rating,
        rating_explanation=rating_explanation,
        findings=findings,
        references=tuple(cited),
        dropped_references=dropped,
    )


def _one_line(text: str) -> str:
    """A heading of full_content; without this a line break in it would make text of a part of it."""
    return " ".join(text.split())
