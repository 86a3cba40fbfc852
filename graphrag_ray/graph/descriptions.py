"""Summarise the descriptions of all instances of an entity or relationship into one (paper 3.1.3).

Descriptions that do not fit in a single call are reduced as a tree, layer by layer:

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

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.stable_batches import stable_batches

_SENTENCE_ENDS = (*".!?…。！？।؟", *"\"'”’)]»」")
_DATE = re.compile(r"\[\d{4}(?:-\d\d){0,2}\] ")
_QUOTES_TO_UNIFY = dict.fromkeys(map(ord, '"“”„‟«»'), None) | dict.fromkeys(map(ord, "‘’"), "'")

MAX_JOINED_TEXTS = 3  # more descriptions are summarised rather than joined, because they repeat each other


@dataclass(frozen=True)
class Tokenizer:
    """The functions `count_tokens` and the ten times slower `token_ends` of `corpus.tokens`."""

    count: Callable[[str], int]
    token_ends: Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class DescribeSpec:
    prompt: Prompt
    call: CallParameters
    language: str
    max_output_tokens: int  # length of one summary, stated in the prompt
    batch_tokens: int  # maximum tokens of the descriptions in one call
    concatenate_up_to_tokens: int = 0  # maximum total tokens of descriptions that are joined without a call


def describe_spec(prompts: Mapping[str, Prompt], settings: Settings) -> DescribeSpec:
    options = settings.descriptions
    call = settings.call_parameters("describe", options.max_output_tokens)
    # Never join before the offline engine, which costs nothing and joins descriptions itself.
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
    """Drop duplicate and empty descriptions and collapse whitespace.

    The first of several equal descriptions is retained. Quotation marks, the case of the first letter and a
    final full stop are ignored.
    """
    first: dict[str, str] = {}
    for text in without_duplicates(descriptions):
        plain = text.translate(_QUOTES_TO_UNIFY).rstrip(" .。")
        first.setdefault(plain[:1].lower() + plain[1:] or text, text)
    return list(first.values())


def with_dates(descriptions: pa.ChunkedArray, dates: pa.ChunkedArray) -> pa.ChunkedArray:
    """Put the dates of documents, where known, in brackets before descriptions: `[2014-10-23] …`."""
    is_dated = pc.and_(dates.is_valid(), pc.fill_null(pc.not_equal(descriptions, ""), False))
    dated = pc.binary_join_element_wise("[", dates, "] ", descriptions, "")
    return pc.if_else(is_dated, dated, descriptions)


def without_date(description: str) -> str:
    """Remove the date of the document from a description."""
    match = _DATE.match(description)
    return description[match.end() :] if match else description


def without_duplicates(descriptions: Iterable[str]) -> Iterator[str]:
    """Yield descriptions with collapsed whitespace, without exact duplicates and empty ones."""
    seen: set[str] = set()
    for description in descriptions:
        text = " ".join(description.split())
        if text and text not in seen:
            seen.add(text)
            yield text


def describe(
    kind: Literal["entity", "relationship"], name: str, descriptions: Sequence[str], spec: DescribeSpec
) -> Dialogue[str]:
    """Summarise descriptions in one request, or without any if at most one is distinct.

    If the reply was cut off, its unfinished sentence is dropped.

    Raises:
        DialogueFailed: If the reply is empty or withheld by a content filter.
    """
    texts = distinct_descriptions(descriptions)
    if len(texts) < 2:
        return without_date(texts[0]) if texts else ""
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

    A single batch means that the next call is the last one. If it has one text, no call is needed. A few
    short descriptions are joined, because a call would return nearly the same text (the paper summarises
    them).

    Dated descriptions are in the order of their dates, so that the model sees how things changed.

    A description is truncated to half a batch, at the end of a token. Any two then fit together, so every
    layer has fewer batches than descriptions and the tree ends, whatever the model writes. Batches are
    content-defined, so a new description changes few of them.
    """
    half = max(1, spec.batch_tokens // 2)
    texts, counts = [], []
    for description in sorted(distinct_descriptions(descriptions), key=_date_of):
        n = tokens.count(description)
        texts.append(description[: tokens.token_ends(description)[half - 1]] if n > half else description)
        counts.append(min(n, half))
    if 1 < len(texts) <= MAX_JOINED_TEXTS and sum(counts) <= spec.concatenate_up_to_tokens:
        # Sort, so that the order of the descriptions does not matter.
        texts.sort(key=lambda text: (_date_of(text), -len(text), text))
        texts = list(without_duplicates(map(without_date, texts)))
        return [[" ".join(text if text.endswith(_SENTENCE_ENDS) else f"{text}." for text in texts)]]
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
    ranges = stable_batches(hashes, counts, max(2, spec.batch_tokens))
    return [[texts[i] for i in batch] for batch in ranges] or [[]]


def _date_of(description: str) -> str:
    match = _DATE.match(description)
    return match[0] if match else ""


def whole_sentences(text: str) -> str:
    """Drop an incomplete final sentence, unless it is the only one."""
    ends = [m.end(1) if m[1] else m.end() for m in re.finditer(r"([.!?][\"'”’)\]]*)(?:\s|$)|[。！？]", text)]
    return text[: ends[-1]] if ends else text
