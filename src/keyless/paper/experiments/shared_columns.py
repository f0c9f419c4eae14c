"""Evidence from columns that two tables share: same entity, same entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from keyless.arrays import BoolArray, FloatArray
from keyless.errors import InputError

__all__ = ["shared_log_ratio"]


def shared_log_ratio(
    first: tuple[FloatArray, BoolArray],
    second: tuple[FloatArray, BoolArray],
    *,
    agreement: float = 0.99,
    missingness: bool = True,
) -> FloatArray:
    """Return for all pairs of rows log P(shared entries | same entity) / P(shared entries | two entities).

    Columns hold few different values (grades, categories, ratings). The same entity has the same entry in both tables
    with probability `agreement`; two entities agree as often as the values are common in that column. With
    `missingness`, an entry of the same entity is observed in both tables or in neither, with the same probability.

    Args:
        first: values and mask, rows × shared columns.
        second: values and mask of the other table, with the same columns in the same order.
        agreement: how sure entries of the same entity agree, below 1.
        missingness: let which entries are observed count.

    Example:
        >>> import numpy as np
        >>> table, seen = np.array([[1.0, 5.0], [2.0, 3.0]]), np.ones((2, 2), dtype=bool)
        >>> shared_log_ratio((table, seen), (table[::-1], seen)).argmax(axis=1).tolist()
        [1, 0]
    """
    (left, seen_left), (right, seen_right) = first, second
    if left.shape[1] != right.shape[1]:
        raise InputError(f"second: must have the columns of first, {left.shape[1]}; found {right.shape[1]}.")
    if not 0 < agreement < 1:
        raise InputError(f"agreement: must lie between 0 and 1; found {agreement!r}.")
    observed_left, observed_right = seen_left.astype(np.float64), seen_right.astype(np.float64)
    found = np.zeros((len(left), len(right)))
    if missingness:
        share = np.concatenate([observed_left, observed_right]).mean(axis=0)
        share = np.clip(share, 1e-3, 1 - 1e-3)
        also = np.clip(share * (1 - agreement) / (1 - share), 1e-9, 1 - 1e-9)  # observed there, though not here
        both, one = np.log(agreement / share), np.log((1 - agreement) / (1 - share))
        other, neither = np.log(also / share), np.log((1 - also) / (1 - share))
        # Four products in one: entries of the second table enter linearly.
        found += (observed_left * (both - one) + (1 - observed_left) * (other - neither)) @ observed_right.T
        found += (observed_left * one + (1 - observed_left) * neither).sum(axis=1)[:, None]
    pooled, pooled_seen = np.concatenate([left, right]), np.concatenate([seen_left, seen_right])
    count = np.maximum(pooled_seen.sum(axis=0), 1)
    for value in np.unique(pooled[pooled_seen]):
        common = np.clip(((pooled == value) & pooled_seen).sum(axis=0) / count, 0.01, 0.99)
        has_left = ((left == value) & seen_left).astype(np.float64)
        has_right: Any = ((right == value) & seen_right).astype(np.float64)
        same, differs = np.log(agreement / common), np.log((1 - agreement) / (1 - common))
        found += (has_left * (same - differs)) @ has_right.T + (has_left * differs) @ observed_right.T
    return found
