"""Encoding word by word does not change any vector."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.offline import static_embeddings
from graphrag_ray.offline.static_embeddings import embed_many

PIECES = (
    "the",
    "Mara",
    "(Venn,",
    "s",
    "\n",
    " ",
    "  ",
    "\u2581",
    "<s>",
    "</s>",
    "<unk>",
    "é",
    "日本",
    "😀",
    "x" * 40,
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join))
def test_tokens_equal_those_of_the_tokenizer(text):
    whole = static_embeddings._tokenizer().encode(text, add_special_tokens=False).ids
    assert static_embeddings._ids(text).tolist() == whole


def test_vectors_have_norm_1_and_empty_text_has_zeros():
    some, none = (np.frombuffer(v, dtype="<f4") for v in embed_many(["Mara Venn is mayor.", ""]))
    assert abs(float(some @ some) - 1) < 1e-5
    assert not none.any()
