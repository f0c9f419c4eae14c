"""First couplings of two tables, from what no order of rows and no rotation of factors changes.

A row's signature is how it stands to all rows of its own table: its inner products, distances or angles with them,
sorted. Rows of two tables with alike signatures are coupled; annealing between couplings and rotations sharpens that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keyless.model.factors import Factors

__all__ = [
    "SIGNATURE_KINDS",
    "SPACES",
    "annealed_procrustes",
    "first_couplings",
    "signature_cost",
    "signatures",
]

FloatArray = np.ndarray[Any, np.dtype[Any]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

SIGNATURE_KINDS = ("inner", "distance", "cosine", "nearest", "neighbours")
SPACES = ((1.0, 5), (0.5, 8), (1.0, 12), (0.5, 3), (0.0, 5), (1.5, 8), (0.5, 5), (1.0, 8), (0.5, 12), (0.0, 12))
"""(weight, rank) of the spaces in which rows are compared: the `rank` strongest factors times strength**weight."""

_FORBIDDEN = -1e6
"""Stands for minus infinity in a log kernel; its exponential is 0."""


def signatures(points: FloatArray, *, size: int = 64) -> dict[str, FloatArray]:
    """Return rows' fingerprints that no rotation of the space and no order of the rows changes.

    `"inner"`, `"distance"` and `"cosine"` are quantiles of a row's relations to all rows; `"nearest"` are logarithms of
    distances to its nearest rows; `"neighbours"` is the mean profile of its nearest rows.

    Args:
        points: rows × dimensions.
        size: how many quantiles are kept.
    """
    n_rows = len(points)
    inner = points @ points.T
    norms = np.sqrt(np.maximum(np.diag(inner), 1e-12))
    distances = _distances(points, points)
    np.fill_diagonal(distances, 0.0)
    nearest = np.argsort(distances, axis=1, kind="stable")
    ordered = np.take_along_axis(distances, nearest, axis=1)
    cosine = _quantiles(np.sort(inner / (norms[:, None] * norms[None, :]), axis=1), size)
    near = np.unique(np.geomspace(1, max(2, n_rows // 4), 12).round().astype(int))
    near = near[near < n_rows]
    nearest_distances = np.log(ordered[:, near] + 1e-6 * ordered.mean() + 1e-30)
    profile = np.column_stack([norms, nearest_distances, cosine[:, ::8]])
    profile = (profile - profile.mean(axis=0)) / (profile.std(axis=0) + 1e-9)
    around = [profile[nearest[:, 1 : k + 1]].mean(axis=1) for k in (3, 8, 20) if k < n_rows]
    return {
        "inner": _quantiles(np.sort(inner, axis=1), size),
        "distance": _quantiles(ordered, size),
        "cosine": cosine,
        "nearest": nearest_distances,
        "neighbours": np.hstack(around or [profile]),
    }


def signature_cost(reference: FloatArray, table: FloatArray, *, kinds: Sequence[str] = SIGNATURE_KINDS) -> FloatArray:
    """Return the sum over kinds of distances between signatures, each kind with mean 0 and variance 1."""
    first, second = signatures(reference), signatures(table)
    total = np.zeros((len(reference), len(table)), dtype=reference.dtype)
    for kind in kinds:
        total += _standard(_distances(first[kind], second[kind]))
    return total


def annealed_procrustes(
    reference: FloatArray,
    table: FloatArray,
    coupling: FloatArray,
    *,
    allowed: BoolArray | None = None,
    rotate: bool = True,
    steps: int = 12,
) -> FloatArray:
    """Anneal argmin ⟨P, ‖x_i − Q y_j‖²⟩ + ε · Σ P log P over couplings P and rotations Q, ε falling; return P.

    Args:
        reference: n × dimensions, x.
        table: n × dimensions, y.
        coupling: where to start.
        allowed: which pairs may be coupled; None: all.
        rotate: with False the cross-covariance itself takes the place of its rotation (Gromov–Wasserstein on Gram
            matrices, by mirror descent).
        steps: how many values ε takes.
    """
    dimension = reference.shape[1]
    for epsilon in np.geomspace(4, 0.5, steps) * np.sqrt(dimension) / 2:
        left, values, right = np.linalg.svd(reference.T @ (coupling @ table), full_matrices=False)
        if not rotate:
            left = left * (values / max(float(values.mean()), 1e-12))
        kernel = (reference @ (left @ right)) @ table.T
        coupling = _coupled(kernel / reference.dtype.type(epsilon), allowed, iterations=8)
    return coupling


def first_couplings(
    reference: Factors,
    table: Factors,
    *,
    spaces: Sequence[tuple[float, int]] = SPACES,
    allowed: BoolArray | None = None,
) -> Iterator[tuple[str, FloatArray]]:
    """Yield named couplings: for each space from signatures, from those by annealing, and by Gromov–Wasserstein."""
    seen = set()
    for weight, wanted in spaces:
        rank = min(wanted, reference.rank, table.rank)
        if (weight, rank) in seen:
            continue
        seen.add((weight, rank))
        x, y = (factors.weighted(rank=rank, weight=weight).astype(np.float32) for factors in (reference, table))
        coupling = _sharpened(signature_cost(x, y), allowed)
        name = f"weight {weight:g}, rank {rank}"
        yield f"signatures, {name}", coupling
        yield f"procrustes, {name}", annealed_procrustes(x, y, coupling, allowed=allowed)
        yield f"gromov-wasserstein, {name}", annealed_procrustes(x, y, coupling, allowed=allowed, rotate=False)


def _sharpened(cost: FloatArray, allowed: BoolArray | None, *, spread: float = 0.1) -> FloatArray:
    """Return the coupling at the temperature where a row spreads over a share `spread` of all rows."""
    closeness = -_standard(cost)
    temperature = 1.0
    for _ in range(8):
        coupling = _coupled(closeness / closeness.dtype.type(temperature), allowed, iterations=15)
        entropy = -float(np.mean(np.sum(coupling * np.log(coupling + 1e-30), axis=1)))
        if np.exp(entropy) <= spread * len(cost):
            break
        temperature *= 0.65
    return coupling


def _coupled(kernel: FloatArray, allowed: BoolArray | None, *, iterations: int, tolerance: float = 1e-2) -> FloatArray:
    """Approach argmax ⟨P, kernel⟩ − Σ P log P over unit row and column sums, in place of the kernel.

    A few scalings in single precision, without checks: couplings on the way need be neither exact nor safe.
    """
    if allowed is not None:
        np.copyto(kernel, _FORBIDDEN, where=~allowed)
    kernel -= kernel.max(axis=1, keepdims=True)
    kernel -= kernel.max(axis=0, keepdims=True)
    np.exp(kernel, out=kernel)
    if allowed is not None:
        kernel *= allowed
    tiny = kernel.dtype.type(1e-30)
    columns = np.ones(kernel.shape[1], dtype=kernel.dtype)
    rows = 1.0 / np.maximum(kernel @ columns, tiny)
    columns = 1.0 / np.maximum(rows @ kernel, tiny)
    for k in range(iterations):
        sums = kernel @ columns
        if k % 5 == 4 and np.sqrt(np.mean((rows * sums - 1.0) ** 2)) <= tolerance:
            break
        rows = 1.0 / np.maximum(sums, tiny)
        columns = 1.0 / np.maximum(rows @ kernel, tiny)
    kernel *= rows[:, None]
    kernel *= columns[None, :]
    return kernel


def _distances(first: FloatArray, second: FloatArray) -> FloatArray:
    squared = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1)[None, :] - 2 * first @ second.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def _quantiles(ordered: FloatArray, size: int) -> FloatArray:
    at = np.linspace(0, ordered.shape[1] - 1, min(size, ordered.shape[1])).round().astype(int)
    return ordered[:, at]


def _standard(cost: FloatArray) -> FloatArray:
    return np.asarray((cost - cost.mean()) / (cost.std() + cost.dtype.type(1e-12)))
