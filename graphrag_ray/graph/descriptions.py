"""One description from the many that instances of an entity or relationship have (paper 3.1.3).

What fits one call is summarised in one call; more is reduced as a tree, layer by layer:

    while len(batches := layer(texts, spec, tokens)) > 1:
        texts = [result of describe(kind, name, batch, spec) for batch in batches]   # in order
    result of describe(kind, name, batches[0], spec)
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
from graphrag_ray.graph.stable_batches import stable_batches

_SENTENCE_ENDS = (*".!?…。！？।؟", *"\"'”’)]»」")
_UNIFIED_QUOTES = dict.fromkeys(map(ord, '"“”„‟«»'), None) | dict.fromkeys(map(ord, "‘’"), "'")

MAX_JOINED_TEXTS = 3  # more descriptions are summarised instead of joined, because they repeat each other


@dataclass(frozen=True)
class Tokenizer:
    """Tokenizer functions: `corpus.tokens.count`, and `corpus.tokens.token_ends`, ten times slower."""

    count: Callable[[str], int]
    token_ends: Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class DescribeSpec:
    """Prompt, call parameters and limits."""

    prompt: Prompt
    call: CallParameters
    language: str
    max_output_tokens: int  # length of one summary, stated in the prompt
    batch_tokens: int  # maximum tokens of the descriptions in one call
    concatenate_up_to_tokens: int = (
        0  # up to MAX_JOINED_TEXTS descriptions of at most this many tokens together are joined
    )


def describe_spec(prompts: Mapping[str, Prompt], settings: Settings) -> DescribeSpec:
    options = settings.descriptions
    call = settings.call_parameters("describe", options.max_output_tokens)
    # The offline engine joins in its own way, and costs nothing.
    offline = settings.model(settings.model_name("describe")).provider == "offline"
    return DescribeSpec(
        prompt=prompts["describe"],
        call=call,
        language=settings.output_language,
        max_output_tokens=call.max_output_tokens or options.max_output_tokens,
        batch_tokens=options.batch_tokens,
        concatenate_up_to_tokens=0 if offline else options.concatenate_up_to_tokens,
    )


def distinct_descriptions(descriptions: Sequence[str]) -> list[str]:
    """Drop duplicates and empty descriptions and fold white space; the first of equals stays.

    Descriptions that differ only in quotation marks, the case of the first letter or a final full stop are
    equal.
    """
    first: dict[str, str] = {}
    for text in without_duplicates(descriptions):
        plain = text.translate(_UNIFIED_QUOTES).rstrip(" .。")
        first.setdefault(plain[:1].lower() + plain[1:] or text, text)
    return list(first.values())


def without_duplicates(descriptions: Iterable[str]) -> Iterator[str]:
    """Yield descriptions with folded white space, without exact duplicates and empty ones."""
    seen: set[str] = set()
    for description in descriptions:
        text = " ".join(description.split())
        if text and text not in seen:
            seen.add(text)
            yield text


def describe(
    kind: Literal["entity", "relationship"], name: str, descriptions: Sequence[str], spec: DescribeSpec
) -> Dialogue[str]:
    """Summarise descriptions in one request, or in none if at most one is distinct (`distinct_descriptions`).

    A reply cut off at its limit loses the unfinished sentence.

    Raises:
        DialogueFailed: If the reply is empty or withheld by a content filter.
    """
    texts = distinct_descriptions(descriptions)
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


def plan_layer(descriptions: Sequence[str], spec: DescribeSpec, tokens: Tokenizer) -> list[list[str]]:
    """Return the batches of one layer of the tree, at least one.

    A single batch means that the next call is the last; if it holds one text, no call is needed. A few short
    descriptions are joined, since a call would write nearly the same (the paper summarises them).

    A description longer than half a batch is cut there, at the end of a token. Any two then fit together, so
    every layer has fewer batches than descriptions and the tree ends, whatever a model writes. Batches are
    content-defined: a new description changes few of them.
    """
    half = max(1, spec.batch_tokens // 2)
    texts, counts = [], []
    for description in distinct_descriptions(descriptions):
        n = tokens.count(description)
        texts.append(description[: tokens.token_ends(description)[half - 1]] if n > half else description)
        counts.append(min(n, half))
    if 1 < len(texts) <= MAX_JOINED_TEXTS and sum(counts) <= spec.concatenate_up_to_tokens:
        # The longest first, so that the order of the descriptions does not matter.
        texts.sort(key=lambda text: (-len(text), text))
        return [[" ".join(text if text.endswith(_SENTENCE_ENDS) else f"{text}." for text in texts)]]
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
    ranges = stable_batches(hashes, counts, max(2, spec.batch_tokens))
    return [[texts[i] for i in batch] for batch in ranges] or [[]]


def whole_sentences(text: str) -> str:
    """Drop a final sentence that was cut off, unless it is the only one."""
    ends = [m.end(1) if m[1] else m.end() for m in re.finditer(r"([.!?][\"'”’)\]]*)(?:\s|$)|[。！？]", text)]
    return text[: ends[-1]] if ends else text
