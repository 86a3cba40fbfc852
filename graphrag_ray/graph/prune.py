"""Prune accidental names and relationships by corpus-wide statistics.

This is meant for graphs extracted without a model, where every pair of names in a sentence is a candidate.
(The paper does not prune.) It runs at the merge, so that extraction depends only on the chunk.
"""

from __future__ import annotations

import numpy as np

from graphrag_ray.graph.integer_arrays import Bools, Floats, Ints, run_starts

_MIN_REPEATS = 3  # a relationship stated by this many text units is not an accident

# Approximate number of sentences in a chunk of 600 tokens. Relationships are extracted from sentences, so the
# null model is that two names share a sentence by chance. The number of text units with a name serves as a
# lower bound of its number of sentences.
_SENTENCES_PER_UNIT = 20


def log_likelihood(n_ab: Ints, n_a: Ints, n_b: Ints, n_units: int) -> Floats:
    """[E] signed log-likelihood ratio (G², Dunning 1993) of the association of two entities.

    Positive if they co-occur more often than by chance, negative if less often, 0 if an end occurs
    everywhere. 3.84 corresponds to p = 0.05 for one degree of freedom. The measure is conservative, because
    relationships are rarer than co-occurrences.

    `n_ab`, `n_a` and `n_b` [E] are the numbers of text units with the relationship and with each end, and
    `n_units` is the number in the corpus.
    """
    n_both = np.asarray(n_ab, dtype=np.float64)
    a, b = (np.maximum(np.asarray(n, dtype=np.float64), n_both) for n in (n_a, n_b))
    total = np.maximum(float(n_units), a + b - n_both)
    g2 = np.zeros_like(n_both)
    for observed, row, column in (
        (n_both, a, b),
        (a - n_both, a, total - b),
        (b - n_both, total - a, b),
        (total - a - b + n_both, total - a, total - b),
    ):
        with np.errstate(divide="ignore", invalid="ignore"):
            term = observed * np.log(observed * total / (row * column))
        g2 += np.where(observed > 0, term, 0.0)
    return np.where(n_both * total >= a * b, 2.0, -2.0) * np.maximum(g2, 0.0)


def strongest_relationships(source: Ints, target: Ints, n_ab: Ints, association: Floats) -> Bools:
    """[E] mask with the strongest relationship of each node.

    It is the one stated by most text units. Ties: by association, then by the smaller neighbour.
    """
    node, neighbour = np.concatenate([source, target]), np.concatenate([target, source])
    edge = np.tile(np.arange(len(source)), 2)
    order = np.lexsort((neighbour, -association[edge], -n_ab[edge], node))
    is_strongest = np.zeros(len(source), dtype=np.bool_)
    is_strongest[edge[order[run_starts(node[order])]]] = True
    return is_strongest


def relationships_to_retain(
    source: Ints,
    target: Ints,
    n_ab: Ints,
    frequency: Ints,
    n_units: int,
    min_log_likelihood: float,
) -> Bools:
    """[E] mask of the relationships to retain.

    A relationship is retained if its association is positive and its log-likelihood ratio is at least
    `min_log_likelihood`, if several text units state it, or if it is the strongest of one of its ends. The
    ratio alone would isolate entities that occur nearly everywhere, such as the host of a podcast, because
    co-occurring with them is never significant.

    `n_ab` [E], `frequency` [N] and `n_units` are the numbers of text units with each relationship, with each
    node and in the corpus.
    """
    association = log_likelihood(n_ab, frequency[source], frequency[target], n_units * _SENTENCES_PER_UNIT)
    significant = association >= max(min_log_likelihood, np.finfo(np.float64).tiny)
    return significant | (n_ab >= _MIN_REPEATS) | strongest_relationships(source, target, n_ab, association)


def entities_to_retain(frequency: Ints, n_typed: Ints, degree: Ints) -> Bools:
    """[N] mask of the names to retain: in several text units (`frequency`), typed, or in a relationship.

    `degree` counts the relationships retained by `relationships_to_retain`, so none of them loses an end.
    """
    return (frequency >= 2) | (n_typed > 0) | (degree > 0)
