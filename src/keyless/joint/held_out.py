"""How well rows are told apart by models that never saw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyless.joint.clusters import Cluster, Collection, rest_and_own, stack
from keyless.likelihood.pairs import pair_log_ratio
from keyless.model.factor_model import fit, information, initial_model, posterior

__all__ = ["held_out_log_ratios", "held_out_score"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_MANY_ROWS = 400
"""From so many rows on two folds are enough, and half the entities fit a model well."""


def held_out_log_ratios(
    tables: Sequence[tuple[FloatArray, BoolArray]], rows: Sequence[IntArray], *, rank: int, max_iter: int = 60
) -> list[FloatArray]:
    """Return the log-likelihood ratios of all pairs, each entity's by a model fitted without it.

    Entities are split into folds; the model of a fold comes from the others alone. A matching that owes its score to
    the model having been fitted to it does not keep that score here.

    Args:
        tables: standard scores (0 where missing) and masks, the reference first.
        rows: per table, the row of every entity, −1 where it has none.
        rank: how many factors the models begin with.
        max_iter: steps of fitting each model.

    Returns:
        Per table but the first, reference rows × its rows; −∞ in the row of a reference row that no entity has.
    """
    collection = Collection(tuple(tables))
    members = tuple(range(len(tables)))
    values, mask = stack(tables, rows)
    if len(values) < 2:
        # Nothing is left to fit a model to, so nothing is known.
        return [np.zeros((len(tables[0][0]), len(table))) for table, _ in tables[1:]]
    fold_of = _folds(values, mask, rank)
    found = [np.full((len(tables[0][0]), len(table)), -np.inf) for table, _ in tables[1:]]
    for fold in range(fold_of.max() + 1):
        seen, unseen = np.flatnonzero(fold_of != fold), np.flatnonzero((fold_of == fold) & (rows[0] >= 0))
        model, _ = fit(values[seen], mask[seen], initial_model(values[seen], mask[seen], rank), max_iter=max_iter)
        cluster = Cluster(members, tuple(index[unseen] for index in rows), model)
        for place in members[1:]:
            found[place - 1][rows[0][unseen]] = pair_log_ratio(*rest_and_own(collection, cluster, place))
    return found


def held_out_score(log_ratios: FloatArray, rows: IntArray, columns: IntArray) -> float:
    """Return the information of the listed matches, in nats per row that could be matched.

    A match counts for no less than −log n, as much as it takes to be sure that it is wrong: a single row beyond all
    that the other folds have seen, such as the only one of its kind, must not decide.

    Args:
        log_ratios: held out, see `held_out_log_ratios`.
        rows: reference row of each match.
        columns: table row of each match.
    """
    smaller = min(log_ratios.shape)
    floored = np.maximum(log_ratios[rows, columns], -np.log(max(smaller, 2)))
    return float(floored.sum() / smaller)


def _folds(values: FloatArray, mask: BoolArray, rank: int) -> IntArray:
    """Deal entities to folds in an order of their own, so that the one they came in cannot matter."""
    count = min(len(values), 5 if len(values) < _MANY_ROWS else 2)
    first = posterior(information(initial_model(values, mask, min(rank, 3)), values, mask))[0][:, 0]
    fold_of = np.empty(len(values), dtype=np.int64)
    fold_of[np.argsort(np.abs(first), kind="stable")] = np.arange(len(values)) % count
    return fold_of
