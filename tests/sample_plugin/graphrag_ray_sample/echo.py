"""A provider without a model: it repeats the records of the prompt, and embeds texts by their letters."""

import json
import re
from itertools import pairwise

import numpy as np

from graphrag_ray.base.messages import ChatReply, EmbeddingReply
from graphrag_ray.base.providers import LocalProvider


class Echo(LocalProvider):
    def chat(self, request):
        shown = request.variables
        if request.prompt == "extract":
            return ChatReply(records(shown["text"]))
        if request.prompt == "report":
            finding = {"summary": "Echo", "explanation": shown["context"][:200]}
            report = {"title": "Echo", "summary": "It echoes.", "rating": 5, "rating_explanation": "Always."}
            return ChatReply(json.dumps({**report, "findings": [finding]}))
        return ChatReply(f"Echo: {shown.get('question') or shown.get('descriptions', 'N')}")

    def embed(self, requests):
        return [EmbeddingReply(letters(request.text)) for request in requests]


def records(text):
    names = list(dict.fromkeys(re.findall(r"\b[A-Z]{2,}\b", text)))
    lines = [f'("entity"<|>{name}<|>PERSON<|>{name} is named.)' for name in names]
    lines += [f'("relationship"<|>{a}<|>{b}<|>{a} stands before {b}.<|>1)' for a, b in pairwise(names)]
    return "\n##\n".join(lines) + "\n<|COMPLETE|>"


def letters(text):
    counts = np.bincount([ord(c) % 16 for c in text] or [0], minlength=16).astype("<f4")
    return (counts / max(1.0, float(np.linalg.norm(counts)))).tobytes()


PROVIDER = Echo()
