"""Pruning names over the whole corpus, and embeddings."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
from linear_time import too_slow

from graphrag_ray.base.ids import entity_id
from graphrag_ray.offline import embed_many
from graphrag_ray.offline.prune_names import lower_case_counts, weak_names


def weak(rows):
    rows = sorted(((entity_id(title), title, text) for title, text in rows), key=lambda r: r[0])
    columns = dict(zip(("entity_id", "title", "description"), zip(*rows, strict=True), strict=True))
    gone = set(weak_names(pa.table(columns), lower_case_counts(columns["description"])).to_pylist())
    return {title for _, title, _ in rows if entity_id(title) in gone}


def test_word_mostly_in_lower_case_is_not_a_name():
    rows = [
        ("BREAKTHROUGH", "Breakthrough of the year, said one."),
        ("ADA BRIGG", "Ada Brigg had a breakthrough."),
        ("DENHOLM", "Another breakthrough came in Denholm."),
    ]
    assert weak(rows) == {"BREAKTHROUGH"}


def test_sentence_openers_are_counted_in_linear_time():
    def looked_at(text: str) -> None:
        weak([("FOO", text), ("BAR", "A foo.")])

    assert weak([("FOO", ". Foo" * 9), ("BAR", "A foo and a Bar.")]) == {"FOO"}
    assert not too_slow(looked_at, ". Foo".__mul__, 2_000)


def test_word_capitalised_in_mid_sentence_is_kept():
    rows = [
        ("PATIENCE", "They sailed on Patience."),
        ("PATIENCE", "We built Patience."),
        ("ADA", "Ada had patience."),
    ]
    assert weak(rows) == set()


def test_name_that_is_never_in_lower_case_is_kept():
    assert weak([("RIHANNA", "Rihanna sings."), ("ADA", "Nobody else does, said Ada.")]) == set()


def test_names_of_several_words_and_missing_descriptions_are_kept():
    assert weak([("SILICON VALLEY", "it is a silicon valley"), ("ORLA", None)]) == set()


def test_embeddings_are_unit_vectors_of_256_floats():
    same, other, empty = (
        np.frombuffer(v, "<f4") for v in embed_many(["tidal energy", "a loaf of bread", ""])
    )
    near = np.frombuffer(embed_many(["energy from tides"])[0], "<f4")
    assert same.shape == (256,)
    assert np.isclose(np.linalg.norm(same), 1, atol=1e-5)
    assert same @ near > same @ other
    assert not empty.any()
    assert embed_many([]) == []


def test_embeddings_equal_those_of_wordllama():
    """Uses a separate process, because importing the package configures logging."""
    script = """
from pathlib import Path
import numpy, wordllama
from graphrag_ray.offline import embed_many
texts = ["tidal energy", "A loaf of bread, and some more.", "水は命です", "x" * 3000, "😀 hé"]
model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
ours = numpy.frombuffer(b"".join(embed_many(texts)), "<f4").reshape(len(texts), -1)
assert numpy.allclose(ours, model.embed(texts, norm=True), atol=1e-5)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
