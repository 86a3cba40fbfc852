"""One description from the many that instances of an entity or relationship bear (paper 3.1.3).

What fits one call is summarised in one; more is reduced as a tree, layer by layer:

    texts = descriptions
    while len(parts := layer(texts, spec, tokens)) > 1:
        texts = [result of describe(kind, name, part, spec) for part in parts]   # in order
    result of describe(kind, name, parts[0], spec)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.batches import stable_batches

_ENDS = (*".!?…。！？।؟", *"\"'”’)]»」")
_MARKS = dict.fromkeys(map(ord, '"“”„‟«»'), None) | dict.fromkeys(map(ord, "‘’"), "'")

JOINED_TEXTS = 3
"""So many descriptions at most are put one after the other instead of summarised: more repeat themselves."""


@dataclass(frozen=True)
class TokensOf:
    """count: a text -> how many tokens it has (`corpus.tokens.count`); ends: a text -> the character offset
    at which each of them ends (`corpus.tokens.offsets`, ten times slower)."""

    count: Callable[[str], int]
    ends: Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class DescribeSpec:
    """max_output_tokens: of one summary, told to the model; batch_tokens: of the descriptions in a call;
    joined_tokens: a few that together have at
    most so many are put one after the other."""

    prompt: Prompt
    call: CallParameters
    language: str
    max_output_tokens: int
    batch_tokens: int
    joined_tokens: int = 0


def describe_spec(prompts: Mapping[str, Prompt], settings: Settings) -> DescribeSpec:
    call = settings.call("describe", settings.descriptions.max_output_tokens)
    free = settings.model(settings.model_name("describe")).provider == "offline"
    return DescribeSpec(
        prompt=prompts["describe"],
        call=call,
        language=settings.output_language,
        max_output_tokens=call.max_output_tokens or settings.descriptions.max_output_tokens,
        batch_tokens=settings.descriptions.batch_tokens,
        # The offline engine joins in its own way, and costs nothing.
        joined_tokens=0 if free else settings.descriptions.joined_tokens,
    )


def distinct(descriptions: Sequence[str]) -> list[str]:
    """Each description once, at its first place, white space folded, without empty ones. Those that differ
    only by quotation marks, the case of the first letter and a full stop at the end are one, as the first
    of them is written."""
    first: dict[str, str] = {}
    for text in each_once(descriptions):
        plain = text.translate(_MARKS).rstrip(" .。")
        first.setdefault(plain[:1].lower() + plain[1:] or text, text)
    return list(first.values())


def each_once(descriptions: Iterable[str]) -> Iterator[str]:
    """Each description once, one after the other, white space folded, without empty ones."""
    seen: set[str] = set()
    for description in descriptions:
        text = " ".join(description.split())
        if text and text not in seen:
            seen.add(text)
            yield text


def describe(
    kind: Literal["entity", "relationship"], name: str, descriptions: Sequence[str], spec: DescribeSpec
) -> Dialogue[str]:
    """Yields one ChatRequest "describe", or none where at most one description is distinct (`distinct`).

    variables["descriptions"] holds one description a line. A reply cut off at its limit loses the
    unfinished sentence. Raises DialogueFailed for an empty reply and for a content filter.
    """
    texts = distinct(descriptions)
    if len(texts) < 2:
        return texts[0] if texts else ""
    variables = {
        "kind": kind,
        "name": name,
        "descriptions": "\n".join(texts),
        "language": spec.language,
        **reply_lengths(spec.max_output_tokens),
    }
    reply: ChatReply = yield ChatRequest("describe", spec.prompt.fill(variables), spec.call, variables)
    if reply.finish_reason == "content_filter":
        raise DialogueFailed(f"describe {kind} {name}: the endpoint's content filter withheld the reply")
    text = " ".join(reply.text.split())
    if reply.finish_reason == "length":
        text = whole_sentences(text)
    if not text:
        raise DialogueFailed(f"describe {kind} {name}: the reply is empty")
    return text


def layer(descriptions: Sequence[str], spec: DescribeSpec, tokens: TokensOf) -> list[list[str]]:
    """The batches of one layer of the tree, at least one; one means that the next call is the last, and one
    of one text that there is no call.

    A few short descriptions are one text, one after the other: a call would write nearly the same. (The paper
    has a model summarise them.) A description longer than half a batch is cut there, at the end of a token.
    Any two then fit together, so that a layer always has fewer batches than descriptions and the tree ends,
    whatever a model writes.
    """
    half = max(1, spec.batch_tokens // 2)
    texts, counts = [], []
    for description in distinct(descriptions):
        n = tokens.count(description)
        texts.append(description[: tokens.ends(description)[half - 1]] if n > half else description)
        counts.append(min(n, half))
    if 1 < len(texts) <= JOINED_TEXTS and sum(counts) <= spec.joined_tokens:
        return [[joined(texts)]]
    return batches(texts, counts, max(2, spec.batch_tokens)) or [[]]


def joined(descriptions: Sequence[str]) -> str:
    """One after the other, the longest first in whichever order they come, each ended by a full stop where
    nothing else ends it."""
    fullest = sorted(descriptions, key=lambda d: (-len(d), d))
    return " ".join(d if d.endswith(_ENDS) else f"{d}." for d in fullest)


def batches(descriptions: Sequence[str], n_tokens: Sequence[int], batch_tokens: int) -> list[list[str]]:
    """Consecutive descriptions, at most `batch_tokens` together; a new one changes few batches."""
    hashes = [hashlib.sha256(d.encode("utf-8", "surrogatepass")).hexdigest() for d in descriptions]
    return [[descriptions[i] for i in r] for r in stable_batches(hashes, n_tokens, batch_tokens)]


def whole_sentences(text: str) -> str:
    """Without the sentence that was cut off, unless it is the only one."""
    ends = [m.end(1) if m[1] else m.end() for m in re.finditer(r"([.!?][\"'”’)\]]*)(?:\s|$)|[。！？]", text)]
    return text[: ends[-1]] if ends else text
