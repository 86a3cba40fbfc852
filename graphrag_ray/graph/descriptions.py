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
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.distinct_sentences import comparison_key, distinct_sentences
from graphrag_ray.graph.stable_batches import stable_batches

_SENTENCE_ENDS = (*".!?…。！？।؟", *"\"'”’)]»」")
_DATE = re.compile(r"\[\d{4}(?:-\d\d){0,2}\] ")

MAX_GROWTH = 3  # the description of a hub may be this many times as long as that of other names
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
    rules: int | None = None  # Settings.later_rules
    hub_output_tokens: int | None = None  # maximum length of a summary of many descriptions

    def output_tokens(self, n_sources: int) -> int:
        """Return the length of a summary of `n_sources` descriptions.

        From 8 on, each doubling adds half of `max_output_tokens`, up to MAX_GROWTH times as much from 64 on.
        There are few steps, because the next one repeats the call.
        """
        if self.hub_output_tokens is None:
            return self.max_output_tokens
        halves = min(max(2, n_sources.bit_length() - 1), 2 * MAX_GROWTH)
        return max(self.max_output_tokens, min(self.max_output_tokens * halves // 2, self.hub_output_tokens))


def describe_spec(prompts: Mapping[str, Prompt], settings: Settings) -> DescribeSpec:
    options = settings.descriptions
    call = settings.call_parameters("describe", options.max_output_tokens)
    # Never join before the offline engine, which costs nothing and joins descriptions itself.
    offline = settings.model(settings.model_name("describe")).provider == "offline"
    rules = settings.later_rules("describe")
    longest = settings.call_parameters("describe", MAX_GROWTH * options.max_output_tokens).max_output_tokens
    return DescribeSpec(
        prompt=prompts["describe"],
        call=call,
        language=settings.output_language,
        max_output_tokens=call.max_output_tokens or options.max_output_tokens,
        batch_tokens=options.batch_tokens,
        concatenate_up_to_tokens=0 if offline else options.concatenate_up_to_tokens,
        rules=rules,
        hub_output_tokens=longest if rules else None,
    )


def distinct_descriptions(descriptions: Sequence[str], rules: int | None = None) -> list[str]:
    """Drop duplicate and empty descriptions, with later `rules` also repeated sentences. Collapse whitespace.

    Dated descriptions are in the order of their dates, so that a model sees how things changed. The first of
    several equal ones (`comparison_key`) is retained.
    """
    first: dict[str, str] = {}
    for text in without_duplicates(descriptions):
        first.setdefault(comparison_key(text), text)
    if not rules:
        return list(first.values())
    dated = sorted(first.values(), key=_date_of)
    texts = distinct_sentences(map(without_date, dated))
    return [_date_of(before) + text for before, text in zip(dated, texts, strict=True) if text]


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
    kind: Literal["entity", "relationship"],
    name: str,
    descriptions: Sequence[str],
    spec: DescribeSpec,
    n_sources: int = 0,
) -> Dialogue[str]:
    """Summarise descriptions in one request, or without any if at most one is distinct.

    If the reply was cut off, its unfinished sentence is dropped. `n_sources` is the number of descriptions
    that these summarise, if they are summaries.

    Raises:
        DialogueFailed: If the reply is empty or withheld by a content filter.
    """
    texts = distinct_descriptions(descriptions, spec.rules)
    if len(texts) < 2:
        return without_date(texts[0]) if texts else ""
    max_tokens = spec.output_tokens(max(n_sources, len(texts)))
    variables = {
        "kind": kind,
        "name": name,
        "descriptions": "\n".join(texts),
        "language": spec.language,
        **reply_lengths(max_tokens, "prose" if spec.rules else "any"),
    }
    call = replace(spec.call, max_output_tokens=max_tokens) if spec.rules else spec.call
    reply: ChatReply = yield ChatRequest("describe", spec.prompt.fill(variables), call, variables)
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

    A description is truncated to half a batch, at the end of a token. Any two then fit together, so every
    layer has fewer batches than descriptions and the tree ends, whatever the model writes. Batches are
    content-defined, so a new description changes few of them.
    """
    half = max(1, spec.batch_tokens // 2)
    texts, counts = [], []
    for description in distinct_descriptions(descriptions, spec.rules):
        n = tokens.count(description)
        texts.append(description[: tokens.token_ends(description)[half - 1]] if n > half else description)
        counts.append(min(n, half))
    if 1 < len(texts) <= MAX_JOINED_TEXTS and sum(counts) <= spec.concatenate_up_to_tokens:
        # Sort, so that the order of the descriptions does not matter.
        texts.sort(key=lambda text: (_date_of(text), -len(text), text))
        texts = list(without_duplicates(map(without_date, texts)))
        return [[" ".join(map(end_sentence, texts))]]
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
    ranges = stable_batches(hashes, counts, max(2, spec.batch_tokens))
    return [[texts[i] for i in batch] for batch in ranges] or [[]]


def _date_of(description: str) -> str:
    match = _DATE.match(description)
    return match[0] if match else ""


def end_sentence(text: str) -> str:
    return text if text.endswith(_SENTENCE_ENDS) else f"{text}."


def whole_sentences(text: str) -> str:
    """Drop an incomplete final sentence, unless it is the only one."""
    ends = [m.end(1) if m[1] else m.end() for m in re.finditer(r"([.!?][\"'”’)\]]*)(?:\s|$)|[。！？]", text)]
    return text[: ends[-1]] if ends else text
