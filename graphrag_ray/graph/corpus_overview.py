"""Request a short overview of the corpus, once, before the first report is written.

Models need it to rate reports and to judge the importance of parts of the corpus. It is written from a sample
of document titles and the most connected entities. It never changes afterwards, because another text would
change the request for every report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings, normalize_description
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.base.wording import shorten
from graphrag_ray.graph.report_context import Count, sanitize

MAX_TITLES = 60
MAX_ENTITIES = 40
TITLES_TOKENS = 1_000
ENTITIES_TOKENS = 2_000
MAX_REPLY_TOKENS = 200
NONE = "(none)"
_MAX_TITLE_CHARACTERS = 120
_MAX_DESCRIPTION_CHARACTERS = 240


@dataclass(frozen=True)
class AboutSpec:
    prompt: Prompt
    call: CallParameters
    language: str


def about_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AboutSpec:
    """Use the model and call parameters of reports."""
    return AboutSpec(
        prompts["about"], settings.call_parameters("report", MAX_REPLY_TOKENS), settings.output_language
    )


def overview_line(settings: Settings, prompt: Prompt) -> str:
    """Return the text for `{about}` in a prompt, or "" without an overview or without the placeholder."""
    text = sanitize(settings.corpus.description or "") if "about" in prompt.placeholders else ""
    return f"What the corpus is about: {text}" if text else ""


def needs_overview(settings: Settings, prompts: Mapping[str, Prompt]) -> bool:
    """Return whether the overview is missing and the report prompt uses it."""
    return settings.corpus.description is None and "about" in prompts["report"].placeholders


def request_overview(titles: str, entities: str, spec: AboutSpec) -> Dialogue[str]:
    """Request the overview from titles and entities, one per line.

    Raises:
        DialogueFailed: If the reply is empty or withheld by a content filter.
    """
    variables = {
        "titles": titles or NONE,
        "entities": entities or NONE,
        "language": spec.language,
        **reply_lengths(MAX_REPLY_TOKENS, "any"),
    }
    reply: ChatReply = yield ChatRequest("about", spec.prompt.fill(variables), spec.call, variables)
    if reply.finish_reason == "content_filter":
        raise DialogueFailed("about: the endpoint's content filter withheld the reply")
    if not (text := normalize_description(reply.text)):
        raise DialogueFailed("about: the reply is empty")
    return text


def evenly_spaced(n: int, limit: int = MAX_TITLES) -> list[int]:
    """Return at most `limit` evenly spaced positions among `n`, starting with the first."""
    return [i * n // limit for i in range(limit)] if n > limit else list(range(n))


def title_lines(titles: Sequence[str], count: Count) -> str:
    """List distinct titles, one per line. Every second one is dropped until they fit TITLES_TOKENS."""
    lines = list(dict.fromkeys(f"- {_one_line(t, _MAX_TITLE_CHARACTERS)}" for t in titles if t.strip()))
    while len(lines) > 1 and count("\n".join(lines)) > TITLES_TOKENS:
        lines = lines[::2]
    return "\n".join(lines)


def entity_lines(entities: Sequence[tuple[str, str]], count: Count) -> str:
    """List (name, description) pairs, one per line, as many as fit ENTITIES_TOKENS."""
    lines: list[str] = []
    left = ENTITIES_TOKENS
    for name, description in entities[:MAX_ENTITIES]:
        short_name = _one_line(name, _MAX_TITLE_CHARACTERS)
        line = f"- {short_name}: {_one_line(description, _MAX_DESCRIPTION_CHARACTERS)}"
        left -= count(line + "\n")
        if left < 0:
            break
        lines.append(line)
    return "\n".join(lines)


def _one_line(text: str, max_characters: int) -> str:
    return shorten(" ".join(sanitize(text[: 4 * max_characters]).split()), max_characters)
