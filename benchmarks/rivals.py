"""Two plain transcriptions of one outer step of Algorithm 2, to be correct and to be beaten.

`loop_step` follows the printed formulas row by row; `vectorised_step` is what one writes first in numpy: whole-matrix
log-domain Sinkhorn and a full SVD. Both take the soft operator with the printed weight λ, refill the reference and
run a given number of Sinkhorn iterations from cold potentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def _soft_minimum(values: Matrix, epsilon: float) -> float:
    """min_ε of the supplement."""
    lowest = values.min()
    return float(lowest - epsilon * np.log(np.exp(-(values - lowest) / epsilon).sum()))


def _low_rank(matrix: Matrix, weight: float) -> Matrix:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * np.maximum(values - weight, 0)) @ right


def _refill(estimate: Matrix, values: Matrix, mask: Any) -> Matrix:
    return np.where(mask, values, estimate)


def loop_step(
    parts: Sequence[Matrix],
    values: Sequence[Matrix],
    masks: Sequence[Any],
    *,
    epsilon: float,
    penalty: float,
    step_size: float,
    inner_iterations: int,
) -> Matrix:
    """One step by explicit loops over rows; the first table is the reference."""
    moved = [_refill(parts[0], values[0], masks[0])]
    for part, value, mask in zip(parts[1:], values[1:], masks[1:], strict=True):
        rows = part.shape[0]
        cost = np.empty((rows, rows))
        for i in range(rows):
            for j in range(rows):
                difference = (part[i] - value[j])[mask[j]]
                cost[i, j] = difference @ difference
        alpha, beta = np.ones(rows), np.ones(rows)
        for _ in range(inner_iterations):
            for i in range(rows):
                alpha[i] += _soft_minimum(cost[i] - alpha[i] - beta, epsilon)
            for j in range(rows):
                beta[j] += _soft_minimum(cost[:, j] - alpha - beta[j], epsilon)
        coupling = np.empty((rows, rows))
        for i in range(rows):
            coupling[i] = np.exp((alpha[i] + beta - cost[i]) / epsilon)
        gradient = np.zeros_like(part)
        for i in range(rows):
            for j in range(rows):
                gradient[i] += 2 * coupling[i, j] * mask[j] * (part[i] - value[j])
        moved.append(part - step_size * gradient)
    return _low_rank(np.hstack(moved), penalty)


def vectorised_step(
    parts: Sequence[Matrix],
    values: Sequence[Matrix],
    masks: Sequence[Any],
    *,
    epsilon: float,
    penalty: float,
    step_size: float,
    inner_iterations: int,
) -> Matrix:
    """One step in whole-matrix numpy, Sinkhorn in the log domain."""
    moved = [_refill(parts[0], values[0], masks[0])]
    for part, value, mask in zip(parts[1:], values[1:], masks[1:], strict=True):
        rows = part.shape[0]
        seen = mask.astype(float)
        cost = part**2 @ seen.T - 2 * part @ (seen * value).T + (seen * value**2).sum(axis=1)
        alpha, beta = np.ones(rows), np.ones(rows)
        for _ in range(inner_iterations):
            exponent = cost - alpha[:, None] - beta
            lowest = exponent.min(axis=1)
            alpha = alpha + lowest - epsilon * np.log(np.exp((lowest[:, None] - exponent) / epsilon).sum(axis=1))
            exponent = cost - alpha[:, None] - beta
            lowest = exponent.min(axis=0)
            beta = beta + lowest - epsilon * np.log(np.exp((lowest - exponent) / epsilon).sum(axis=0))
        coupling = np.exp((alpha[:, None] + beta - cost) / epsilon)
        gradient = 2 * (part * (coupling @ seen) - coupling @ (seen * value))
        moved.append(part - step_size * gradient)
    return _low_rank(np.hstack(moved), penalty)
