"""Pruning by corpus-wide statistics: what only looks like a name or a relationship by chance.

For graphs extracted without a model, where every pair of names in a sentence is a candidate; optional
for others. The paper prunes nothing. Statistics of the whole corpus act here, at the merge, and not in
the extraction, so that a reply depends on its chunk alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

REPEATED = 3
"""A relationship that so many text units state is no accident of one passage."""


SENTENCES_PER_UNIT = 20
"""Roughly, in a chunk of 600 tokens. Relationships are found within a sentence, so what chance must
explain is that two names share a sentence, not that they share a chunk. Text units are what is counted:
a name's number of text units stands for its number of sentences, which it does not exceed."""


def log_likelihood(n_ab: Ints, n_a: Ints, n_b: Ints, n_units: int) -> Floats:
    """Dunning's log-likelihood ratio (G², 1993) of two entities' association, signed.

    n_ab [E]: text units that state the relationship; n_a, n_b [E]: that hold each end; n_units: of the corpus

    Positive where they meet more often than chance would have it, negative where more rarely; 0 where an end
    occurs everywhere. 3.84 is p = .05 for one degree of freedom. Relationships are rarer than joint
    occurrences, so chance is, if anything, overestimated.
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


def strongest(source: Ints, target: Ints, n_ab: Ints, association: Floats, n_nodes: int) -> Mask:
    """[E] True for the one strongest relationship of each node: of its relationships that which most
    text units state, ties by association, then by the smaller neighbour."""
    n_edges = len(source)
    node = np.concatenate([source, target])
    neighbour = np.concatenate([target, source])
    edge = np.tile(np.arange(n_edges), 2)
    order = np.lexsort((neighbour, -association[edge], -n_ab[edge], node))
    node = node[order]
    best = np.ones(len(node), dtype=np.bool_)
    best[1:] = node[1:] != node[:-1]
    keep = np.zeros(n_edges, dtype=np.bool_)
    keep[edge[order[best]]] = True
    return keep


def keep_relationships(
    source: Ints,
    target: Ints,
    n_ab: Ints,
    frequency: Ints,
    n_units: int,
    min_log_likelihood: float,
    repeated: int = REPEATED,
) -> Mask:
    """[E] True for relationships with evidence.

    source, target [E] and frequency [N]: nodes and their numbers of text units; n_ab [E]: text units that
    state the relationship; n_units: of the corpus. A relationship stays for any of three reasons: its
    association is positive and its log-likelihood ratio at least `min_log_likelihood`; `repeated` text units
    or more state it; or it is the strongest of one of its ends. The ratio alone would cut off whatever occurs
    nearly everywhere (the host of a podcast): meeting it is never a surprise.
    """
    sentences = n_units * SENTENCES_PER_UNIT
    association = log_likelihood(n_ab, frequency[source], frequency[target], sentences)
    significant = association >= max(min_log_likelihood, np.finfo(np.float64).tiny)
    return significant | (n_ab >= repeated) | strongest(source, target, n_ab, association, len(frequency))


def keep_entities(frequency: Ints, n_typed: Ints, degree: Ints, min_units: int = 2) -> Mask:
    """[N] True for names with evidence of being names: in `min_units` text units or more, or given a
    type by at least one instance, or in a relationship that was kept.

    frequency [N] text units; n_typed [N] instances with a type; degree [N] relationships left by
    `keep_relationships`. What this drops has no relationship, so no relationship loses an end.
    """
    return (frequency >= min_units) | (n_typed > 0) | (degree > 0)
