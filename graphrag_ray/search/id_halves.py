"""Ids as pairs of numbers: 32 hex digits are two halves of 64 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphrag_ray.base.ids import ID_LENGTH
from graphrag_ray.search.mapped_arrays import Keys


def halves(ids: Sequence[str]) -> tuple[Keys, Keys]:
    """The first and the second half of each. Raises ValueError for what is no id."""
    if any(len(id_) != ID_LENGTH for id_ in ids):
        raise ValueError(f"an id has {ID_LENGTH} hex digits")
    both = np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).astype("<u8")
    if len(both) != len(ids):  # white space is passed over
        raise ValueError(f"an id has {ID_LENGTH} hex digits")
    return both[:, 0].copy(), both[:, 1].copy()


def known(ids: Sequence[str]) -> list[str]:
    """The different ones that are ids."""
    return [i for i in dict.fromkeys(ids) if len(i) == ID_LENGTH and not i.strip("0123456789abcdef")]


def ids_of(high: Keys, low: Keys) -> list[str]:
    both = np.stack([high, low], axis=1).astype(">u8").tobytes().hex()
    return [both[at : at + ID_LENGTH] for at in range(0, len(both), ID_LENGTH)]
