"""Reading a report out of a model's reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from graphrag_ray.base.json_replies import NOT_CLOSED, JsonReply, ReplyProblem, read_reply, schema_of

MAX_FINDINGS = 10
"""The paper asks for 5–10 (E.2), our prompt for some 3 to 7; 1–10 are taken: another call would cost more
than the missing ones."""
TOO_LONG = "it was cut off before its end, write less and close the JSON object"


class FindingReply(JsonReply):
    summary: str
    explanation: str


class ReportReply(JsonReply):
    title: str
    summary: str
    rating: float = Field(le=10)
    rating_explanation: str
    findings: list[FindingReply] = Field(min_length=1)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "rating_explanation": ("rating.*expl.*", "explanation")
    }


REPORT_SCHEMA: Mapping[str, Any] = schema_of(ReportReply)


@dataclass(frozen=True, slots=True)
class ReportDraft:
    """A report as the model wrote it, with references by local number."""

    title: str
    summary: str
    rating: float
    rating_explanation: str
    findings: tuple[tuple[str, str], ...]


def parse_report(text: str, finish_reason: str = "stop") -> ReportDraft | ReplyProblem:
    """The report in a reply.

    finish_reason "length": the reply was cut off. What is complete counts; the field or finding in which
    the cut fell does not.
    """
    found = read_reply(text, ReportReply, finish_reason)
    if isinstance(found, ReplyProblem):
        if finish_reason != "length":
            return found
        return ReplyProblem(TOO_LONG if found.text == NOT_CLOSED else f"{TOO_LONG}; {found.text}")
    findings = tuple((one.summary, one.explanation) for one in found.findings[:MAX_FINDINGS])
    return ReportDraft(found.title, found.summary, found.rating, found.rating_explanation, findings)
