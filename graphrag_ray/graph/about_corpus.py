"""What the corpus is about, in a sentence or two: asked once, before the first report.

Whoever rates a report, or weighs one part of the corpus against the rest, has to know the whole. It is
written from a sample of the documents' titles and from the entities that are linked most, and stays as it is:
another text would be another request for every report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings, as_about
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.base.wording import shortened
from graphrag_ray.graph.report_context import Count, clean

MAX_TITLES = 60
MAX_ENTITIES = 40
TITLES_TOKENS = 1_000
ENTITIES_TOKENS = 2_000
MAX_TITLE = 120
"""Characters of a title."""
MAX_DESCRIPTION = 240
"""Characters of a description."""
MAX_REPLY_TOKENS = 200
NONE = "(none)"


@dataclass(frozen=True)
class AboutSpec:
    """How it is asked."""

    prompt: Prompt
    call: CallParameters
    language: str
    max_tokens: int


def about_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AboutSpec:
    """By the model that writes reports, and as that is called."""
    call = settings.call("report", MAX_REPLY_TOKENS)
    return AboutSpec(prompts["about"], call, settings.output_language, MAX_REPLY_TOKENS)


def about_line(settings: Settings, prompt: Prompt) -> str:
    """What `{about}` stands for in a prompt; "" where nothing is known, or the prompt does not have it."""
    text = clean(settings.corpus.about or "") if "about" in prompt.placeholders else ""
    return f"What the corpus is about: {text}" if text else ""


def is_to_be_told(settings: Settings, prompts: Mapping[str, Prompt]) -> bool:
    """Whether a run has to ask. An index whose own prompt of reports does not speak of it, as those of former
    versions do not, has no use for it."""
    return settings.corpus.about is None and "about" in prompts["report"].placeholders


def about(titles: str, entities: str, spec: AboutSpec) -> Dialogue[str]:
    """titles, entities: one a line. Raises DialogueFailed where the reply holds no text."""
    variables = {
        "titles": titles or NONE,
        "entities": entities or NONE,
        "language": spec.language,
        **reply_lengths(spec.max_tokens),
    }
    reply: ChatReply = yield ChatRequest("about", spec.prompt.fill(variables), spec.call, variables)
    if reply.finish_reason == "content_filter":
        raise DialogueFailed("about: the model's content filter refused it")
    if not (text := as_about(reply.text)):
        raise DialogueFailed("about: the reply is empty")
    return text


def spread(n: int, most: int = MAX_TITLES) -> list[int]:
    """At most so many of n places, evenly from the first on."""
    return [at * n // most for at in range(most)] if n > most else list(range(n))


def title_lines(titles: Sequence[str], count: Count) -> str:
    """Distinct titles, one a line; every second where they are too long together."""
    shown = list(dict.fromkeys(f"- {_short(t, MAX_TITLE)}" for t in titles if t.strip()))
    while len(shown) > 1 and count("\n".join(shown)) > TITLES_TOKENS:
        shown = shown[::2]
    return "\n".join(shown)


def entity_lines(named: Sequence[tuple[str, str]], count: Count) -> str:
    """named: name and description, the most linked first; as many as there is room for."""
    shown: list[str] = []
    room = ENTITIES_TOKENS
    for name, description in named[:MAX_ENTITIES]:
        line = f"- {_short(name, MAX_TITLE)}: {_short(description, MAX_DESCRIPTION)}"
        room -= count(line + "\n")
        if room < 0:
            break
        shown.append(line)
    return "\n".join(shown)


def _short(text: str, most: int) -> str:
    return shortened(" ".join(clean(text[: 4 * most]).split()), most)
