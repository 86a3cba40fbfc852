"""Prune what looks like a name or a relationship only by chance, by corpus-wide statistics.

For graphs extracted without a model, where every pair of names in a sentence is a candidate; optional for
others. (The paper prunes nothing.) It runs at the merge, so that a reply depends on its chunk alone.
"""

from __future__ import annotations

import numpy as np

from graphrag_ray.graph.integer_arrays import Bools, Floats, Ints, run_starts

_REPEATED = 3  # a relationship stated by this many text units is no accident of one passage

# Roughly, in a chunk of 600 tokens. Relationships are found within a sentence, so chance must explain that
# two names share a sentence, not a chunk. Text units are counted: a name's number of text units approximates
# its number of sentences from below.
_SENTENCES_PER_UNIT = 20


def log_likelihood(n_ab: Ints, n_a: Ints, n_b: Ints, n_units: int) -> Floats:
    """[E] signed log-likelihood ratio (G², Dunning 1993) of the association of two entities.

    Positive if they meet more often than by chance, negative if more rarely, 0 if an end occurs everywhere;
    3.84 is p = .05 for one degree of freedom. Relationships are rarer than joint occurrences, so chance is,
    if anything, overestimated.

    `n_ab`, `n_a` and `n_b` [E] count the text units that state the relationship and that hold each end,
    `n_units` those of the corpus.
    """
    together = np.asarray(n_ab, dtype=np.float64)
    a, b = (np.maximum(np.asarray(n, dtype=np.float64), together) for n in (n_a, n_b))
    total = np.maximum(float(n_units), a + b - together)
    g2 = np.zeros_like(together)
    for observed, row, column in (
        (together, a, b),
        (a - together, a, total - b),
        (b - together, total - a, b),
        (total - a - b + together, total - a, total - b),
    ):
        with np.errstate(divide="ignore", invalid="ignore"):
            term = observed * np.log(observed * total / (row * column))
        g2 += np.where(observed > 0, term, 0.0)
    return np.where(together * total >= a * b, 2.0, -2.0) * np.maximum(g2, 0.0)


def strongest(source: Ints, target: Ints, n_ab: Ints, association: Floats, n_nodes: int) -> Bools:
    """[E] True for the strongest relationship of each node.

    That is the one most text units state, ties by association, then by the smaller neighbour.
    """
    node, neighbour = np.concatenate([source, target]), np.concatenate([target, source])
    edge = np.tile(np.arange(len(source)), 2)
    order = np.lexsort((neighbour, -association[edge], -n_ab[edge], node))
    keep = np.zeros(len(source), dtype=np.bool_)
    keep[edge[order[run_starts(node[order])]]] = True
    return keep


def keep_relationships(
    source: Ints,
    target: Ints,
    n_ab: Ints,
    frequency: Ints,
    n_units: int,
    min_log_likelihood: float,
) -> Bools:
    """[E] True for relationships with evidence.

    A relationship stays if its association is positive and its log-likelihood ratio at least
    `min_log_likelihood`, if several text units state it, or if it is the strongest of one of its ends. The
    ratio alone would cut off whatever occurs nearly everywhere, such as the host of a podcast: meeting it is
    never a surprise.

    Text units are counted per relationship (`n_ab` [E]), per node (`frequency` [N]) and in the corpus
    (`n_units`).
    """
    association = log_likelihood(n_ab, frequency[source], frequency[target], n_units * _SENTENCES_PER_UNIT)
    significant = association >= max(min_log_likelihood, np.finfo(np.float64).tiny)
    return significant | (n_ab >= _REPEATED) | strongest(source, target, n_ab, association, len(frequency))


def keep_entities(frequency: Ints, n_typed: Ints, degree: Ints) -> Bools:
    """[N] True for names with evidence: in two text units (`frequency`), typed, or in a kept relationship.

    `degree` counts the relationships left by `keep_relationships`, so none of these loses an end.
    """
    return (frequency >= 2) | (n_typed > 0) | (degree > 0)
