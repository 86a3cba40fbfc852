"""The dialogue that writes a note on a document: one or two sentences that stand above each of its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.descriptions import whole_sentences
from graphrag_ray.graph.extraction_dialogue import ChunkText, check_not_withheld


@dataclass(frozen=True, slots=True)
class NoteSpec:
    prompt: Prompt
    call: CallParameters
    max_tokens: int  # length of a note, stated in the prompt
    language: str


def note_spec(prompts: Mapping[str, Prompt], settings: Settings) -> NoteSpec:
    max_tokens = settings.input.document_context_tokens
    # Twice the stated length, because models do not count.
    call = settings.call_parameters("context", 2 * max_tokens)
    return NoteSpec(prompts["document_context"], call, max_tokens, settings.output_language)


def document_note(document: ChunkText, spec: NoteSpec) -> Dialogue[str]:
    """Write the note on a document from its header and its beginning.

    Raises:
        DialogueFailed: If the reply is empty or withheld by a content filter.
    """
    header = document.header
    variables = {
        "header": header,
        "text": document.text,
        "language": spec.language,
        **reply_lengths(spec.max_tokens),
    }
    request = ChatRequest("document_context", spec.prompt.fill(variables), spec.call, variables)
    reply: ChatReply = yield request
    check_not_withheld(reply, "document_context")
    note = " ".join(reply.text.split())
    if reply.finish_reason == "length":
        note = whole_sentences(note)
    if not note:
        raise DialogueFailed("document_context: the reply is empty")
    return note
