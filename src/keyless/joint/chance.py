"""What a wrong matching can reach: the yardstick for what a right one scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyless.joint.clusters import Cluster, Collection, refine, stack
from keyless.joint.held_out import held_out_log_ratios, held_out_score
from keyless.model.factor_model import fit, initial_model
from keyless.pairs.constraints import Constraints
from keyless.progress import Callback, Deadline, is_late

__all__ = ["chance_scores"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


def chance_scores(
    tables: Sequence[tuple[FloatArray, BoolArray]],
    *,
    rank: int,
    may_be_alone: bool,
    comparisons: int,
    seed: int,
    constraints: Constraints | None = None,
    deadline: Deadline | None = None,
    callback: Callback | None = None,
) -> list[list[float]]:
    """Return, per table but the first, the scores that refinement reaches where there is nothing to find.

    Scores are nats per row that could be matched, so that a few lucky rows among many count for little.

    In every repeat each column of all tables but the first gets its rows permuted on its own, missing entries with
    them, so that distributions stay and dependence goes; then a joint model is fitted and all tables re-matched until
    nothing moves, as for the real tables, and scored by models that have not seen the rows in question.

    Args:
        tables: standard scores (0 where missing) and masks.
        rank: of the model to begin with.
        may_be_alone: whether rows may have no partner.
        comparisons: how many times.
        seed: of all random numbers.
        constraints: which rows may, must or must not be the same entity.
        deadline: after which no further repeat begins.
        callback: called after every repeat, with stage `"chance"` and the mean score.
    """
    rng = np.random.default_rng([seed, 29])
    scores: list[list[float]] = [[] for _ in tables[1:]]
    smallest = min(len(values) for values, _ in tables)
    for repeat in range(1, comparisons + 1):
        if is_late(deadline):
            break
        destroyed = [tables[0], *(_without_dependence(values, mask, rng) for values, mask in tables[1:])]
        collection = Collection(tuple(destroyed), constraints)
        # Rows beyond the smallest table's become entities of their own when tables are matched anew.
        rows = tuple(rng.permutation(len(values))[:smallest] for values, _ in destroyed)
        stacked = stack(destroyed, rows)
        model, _ = fit(*stacked, initial_model(*stacked, rank), max_iter=30)
        cluster = Cluster(tuple(range(len(destroyed))), rows, model)
        cluster = refine(collection, cluster, may_be_alone=may_be_alone)
        ratios = held_out_log_ratios(destroyed, cluster.rows, rank=cluster.model.rank + 2)
        for place, unseen in enumerate(ratios, start=1):
            matched = (cluster.rows[0] >= 0) & (cluster.rows[place] >= 0)
            scores[place - 1].append(held_out_score(unseen, cluster.rows[0][matched], cluster.rows[place][matched]))
        if callback is not None:
            callback("chance", repeat, comparisons, float(np.mean([reached[-1] for reached in scores])))
    return scores


def _without_dependence(values: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    order = np.argsort(rng.random(values.shape), axis=0)
    return np.take_along_axis(values, order, axis=0), np.take_along_axis(mask, order, axis=0)
