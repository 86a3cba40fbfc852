"""What was retrieved for a question against what was to be retrieved.

Documents are ids in the order of their ranks. Several chunks of one document may be among them: a document
counts once, at its first place, and k counts documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from graphrag_ray.evaluate.judging.answer_metrics import contains, normalised, words

KS = (1, 2, 5, 8, 10, 20)


def recall_at(ranked: Iterable[str], gold: Collection[str], k: int) -> float:
    """The share of the gold documents that are among the first k. Raises ValueError without a gold document,
    and for a k below 1."""
    return len(_found(ranked, gold, k)) / len(set(gold))


def all_within(ranked: Iterable[str], gold: Collection[str], k: int) -> float:
    """1.0 where all gold documents are among the first k, 0.0 elsewhere. Raises ValueError as `recall_at`."""
    return float(len(_found(ranked, gold, k)) == len(set(gold)))


def precision_at(ranked: Iterable[str], gold: Collection[str], k: int) -> float:
    """The share of gold documents among the first k; where fewer were retrieved, among all of them; 0.0 where
    none was. Raises ValueError as `recall_at`."""
    first = _first(ranked, k)
    return len(_found(first, gold, k)) / len(first) if first else 0.0


def token_overlap(texts: Iterable[str], gold: Iterable[str]) -> tuple[float, float]:
    """Token precision and recall of retrieved texts, as TREX has them.

    Tokens are those of `answer_metrics.words`: lower case, split at what is not alphanumeric. All texts
    together are one multiset, all gold texts another: a passage that is retrieved twice lowers precision. A
    share of no tokens is 0.0.
    """
    retrieved, wanted = _tokens(texts), _tokens(gold)
    common = (retrieved & wanted).total()
    return common / max(retrieved.total(), 1), common / max(wanted.total(), 1)


def answer_in_context(texts: Iterable[str], gold: Sequence[str]) -> float:
    """1.0 where one of the texts contains one of the answers, as `answer_metrics.accuracy` compares them; 0.0
    elsewhere. An answer of which nothing is left after normalising is in no text."""
    answers = [answer for answer in map(normalised, gold) if answer]
    return float(any(contains(said, answer) for said in map(normalised, texts) for answer in answers))


def retrieval_scores(
    ranked: Sequence[str] = (),
    gold: Collection[str] = (),
    texts: Sequence[str] = (),
    gold_texts: Sequence[str] = (),
    answers: Sequence[str] = (),
    ks: Sequence[int] = KS,
) -> dict[str, float]:
    """Whatever can be measured, by name, each from 0 to 1.

    ranked, gold    documents: recall@k, all_within@k and precision@k for each of `ks`
    texts           retrieved ones: with `gold_texts` token_precision and token_recall, with `answers`
                    answer_in_context

    Of what has no gold to compare with there are no scores. Raises ValueError for a k below 1.
    """
    scores = {}
    if gold:
        measures = {"recall": recall_at, "all_within": all_within, "precision": precision_at}
        scores = {f"{name}@{k}": measure(ranked, gold, k) for name, measure in measures.items() for k in ks}
    if gold_texts:
        scores["token_precision"], scores["token_recall"] = token_overlap(texts, gold_texts)
    if answers:
        scores["answer_in_context"] = answer_in_context(texts, answers)
    return scores


def _first(ranked: Iterable[str], k: int) -> list[str]:
    if k < 1:
        raise ValueError(f"k is {k}; it is at least 1")
    return list(dict.fromkeys(ranked))[:k]


def _found(ranked: Iterable[str], gold: Collection[str], k: int) -> set[str]:
    if not gold:
        raise ValueError("there is no gold document")
    return set(gold).intersection(_first(ranked, k))


def _tokens(texts: Iterable[str]) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for text in texts:
        tokens.update(words(text))
    return tokens
