"""First couplings of two tables, from what neither the order of rows nor a rotation of factors changes.

A row's signature is how it stands to the rows of its own table: its inner products, distances and angles with them,
sorted, and how near its nearest rows are. Rows of two tables with similar signatures are coupled. Alternating between
couplings and rotations of the factors, at falling temperature, makes such a coupling sharper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keyless.model.factors import Factors
from keyless.progress import check_time

__all__ = ["SIGNATURE_KINDS", "SPACES", "annealed", "coupled_by_map", "first_couplings", "signature_cost", "signatures"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

SIGNATURE_KINDS = ("inner", "distance", "cosine", "nearest", "neighbours")

SPACES = ((1.0, 5), (0.5, 8), (1.0, 12), (0.5, 3), (0.0, 5), (1.5, 8), (0.5, 5), (1.0, 8), (0.5, 12), (0.0, 12))
"""(weight, rank) of the spaces in which rows are compared: the `rank` strongest factors times strength**weight."""

_QUANTILES = 64
"""Numbers that a sorted relation to all rows is described by."""

_SPREAD = 0.1
"""Share of the other table's rows over which a first coupling spreads each row."""

_TEMPERATURES = 4.0, 0.5, 12
"""Warmest and coldest temperature of annealing, times half the root of the dimension, and number of steps."""

_TEMPERATURE_OF_MAPS = 0.5
"""Temperature at which rows are coupled by a given map: that of partners whose factors correlate by 0.78, since
ρ / (1 − ρ²) is 2 there."""

_FORBIDDEN = np.float32(-1e6)
_TINY = np.float32(1e-30)


def signatures(points: FloatArray, rows: IntArray | None = None) -> dict[str, FloatArray]:
    """Return fingerprints of rows that no rotation of the space and no order of the rows changes.

    `"inner"`, `"distance"` and `"cosine"` are quantiles of a row's relations to all rows; `"nearest"` are logarithms of
    the distances to its nearest rows; `"neighbours"` is the mean profile of its nearest rows.

    Args:
        points: rows × dimensions.
        rows: the rows to describe; None: all.
    """
    rows = np.arange(len(points)) if rows is None else rows
    count = len(points)
    lengths = np.sqrt(np.maximum((points**2).sum(axis=1), 1e-12))
    check_time()
    inner = points[rows] @ points.T
    distances = _distances(points[rows], points)
    distances[np.arange(len(rows)), rows] = 0.0
    cosine = _quantiles(np.sort(inner / (lengths[rows][:, None] * lengths), axis=1))
    check_time()
    order = np.argsort(distances, axis=1, kind="stable")
    ordered = np.take_along_axis(distances, order, axis=1)
    # As many numbers whatever the count of rows, so that tables of different sizes can be compared.
    near = np.minimum(np.geomspace(1, max(2, count // 4), 12).round().astype(int), count - 1)
    nearest = np.log(ordered[:, near] + 1e-6 * ordered.mean() + 1e-30)
    profile = np.column_stack([lengths[rows], nearest, cosine[:, ::8]])
    profile = (profile - profile.mean(axis=0)) / (profile.std(axis=0) + 1e-9)
    if len(rows) < count:
        # Only the rows described have a profile: the nearest among those.
        order = np.argsort(distances[:, rows], axis=1, kind="stable")
    around = [profile[order[:, min(1, len(rows) - 1) : k + 1]].mean(axis=1) for k in (3, 8, 20)]
    return {
        "inner": _quantiles(np.sort(inner, axis=1)),
        "distance": _quantiles(ordered),
        "cosine": cosine,
        "nearest": nearest,
        "neighbours": np.hstack(around),
    }


def signature_cost(
    left: FloatArray,
    right: FloatArray,
    *,
    rows: tuple[IntArray | None, IntArray | None] = (None, None),
    kinds: Sequence[str] = SIGNATURE_KINDS,
) -> FloatArray:
    """Return the sum over kinds of distances between signatures, each kind with mean 0 and variance 1.

    Args:
        left: points of the left table.
        right: points of the right table, in as many dimensions.
        rows: the left and the right rows to compare; None: all.
        kinds: of signature.
    """
    first, second = signatures(left, rows[0]), signatures(right, rows[1])
    total = np.zeros((len(first["inner"]), len(second["inner"])), dtype=np.float32)
    for kind in kinds:
        check_time()
        total += _standard(_distances(first[kind], second[kind]))
    return total


def first_couplings(
    left: Factors,
    right: Factors,
    *,
    rows: tuple[IntArray | None, IntArray | None] = (None, None),
    spaces: Sequence[tuple[float, int]] = SPACES,
    allowed: BoolArray | None = None,
) -> Iterator[tuple[str, FloatArray]]:
    """Yield named couplings: for each space from signatures by annealing, and by Gromov–Wasserstein.

    Signatures alone led to the map of a real pair of tables three times of five where these led to it four times.

    Args:
        left: factors of the left table.
        right: factors of the right table.
        rows: the left and the right rows to couple; None: all.
        spaces: (weight, rank) of each space.
        allowed: which of these pairs may be coupled; None: all.
    """
    seen = set()
    for weight, wanted in spaces:
        rank = min(wanted, left.rank, right.rank)
        if (weight, rank) in seen:
            continue
        seen.add((weight, rank))
        x, y = (factors.weighted(rank=rank, weight=weight).astype(np.float32) for factors in (left, right))
        coupling = _sharpened(signature_cost(x, y, rows=rows), allowed)
        x, y = (points if chosen is None else points[chosen] for points, chosen in zip((x, y), rows, strict=True))
        name = f"weight {weight:g}, rank {rank}"
        yield f"rotation, {name}", annealed(x, y, coupling, allowed=allowed)
        yield f"gromov-wasserstein, {name}", annealed(x, y, coupling, allowed=allowed, rotate=False)


def annealed(
    left: FloatArray,
    right: FloatArray,
    coupling: FloatArray,
    *,
    allowed: BoolArray | None = None,
    rotate: bool = True,
) -> FloatArray:
    """Anneal argmin ⟨P, ‖x_i − Q y_j‖²⟩ + ε · Σ P log P over couplings P and rotations Q, ε falling; return P.

    Args:
        left: rows × dimensions, x.
        right: rows × dimensions, y.
        coupling: where to start.
        allowed: which pairs may be coupled; None: all.
        rotate: with False the cross-covariance itself takes the place of its rotation (Gromov–Wasserstein on Gram
            matrices, by mirror descent).
    """
    warmest, coldest, steps = _TEMPERATURES
    for epsilon in np.geomspace(warmest, coldest, steps) * np.sqrt(left.shape[1]) / 2:
        onto, values, turned = np.linalg.svd(left.T @ (coupling @ right), full_matrices=False)
        if not rotate:
            onto = onto * (values / max(float(values.mean()), 1e-12))
        coupling = _coupled((left @ (onto @ turned)) @ right.T / np.float32(epsilon), allowed, scalings=8)
    return coupling


def coupled_by_map(
    left: FloatArray, right: FloatArray, cross: FloatArray, *, allowed: BoolArray | None = None
) -> FloatArray:
    """Return the coupling that a map of leading factors gives.

    Args:
        left: factors of the left rows, in single precision.
        right: likewise of the right rows.
        cross: the map, left × right leading factors.
        allowed: which pairs may be coupled; None: all.
    """
    first, second = cross.shape
    kernel = left[:, :first] @ cross.astype(left.dtype) @ right[:, :second].T
    return _coupled(kernel / np.float32(_TEMPERATURE_OF_MAPS), allowed, scalings=8)


def _sharpened(cost: FloatArray, allowed: BoolArray | None) -> FloatArray:
    """Return the coupling at the temperature where a row spreads over a share of the other table's rows."""
    closeness = -_standard(cost)
    temperature = np.float32(1.0)
    for _ in range(8):
        coupling = _coupled(closeness / temperature, allowed, scalings=15)
        share = coupling.sum(axis=1, keepdims=True)
        row = coupling / np.maximum(share, _TINY)
        if np.exp(-float(np.mean(np.sum(row * np.log(row + _TINY), axis=1)))) <= _SPREAD * cost.shape[1]:
            break
        temperature *= np.float32(0.65)
    return coupling


def _coupled(kernel: FloatArray, allowed: BoolArray | None, *, scalings: int) -> FloatArray:
    """Approach argmax ⟨P, kernel⟩ − Σ P log P, every row of the smaller side of weight 1, in place of the kernel.

    A few scalings in single precision, without checks: couplings on the way need be neither exact nor safe.
    """
    check_time()
    if allowed is not None:
        np.copyto(kernel, _FORBIDDEN, where=~allowed)
    kernel -= kernel.max(axis=1, keepdims=True)
    kernel -= kernel.max(axis=0, keepdims=True)
    np.exp(kernel, out=kernel)
    if allowed is not None:
        kernel *= allowed
    count, other = kernel.shape
    row_mass, column_mass = np.float32(min(1.0, other / count)), np.float32(min(1.0, count / other))
    columns = np.ones(other, dtype=np.float32)
    for _ in range(scalings):
        rows = row_mass / np.maximum(kernel @ columns, _TINY)
        columns = column_mass / np.maximum(rows @ kernel, _TINY)
    kernel *= rows[:, None]
    kernel *= columns
    return kernel


def _distances(first: FloatArray, second: FloatArray) -> FloatArray:
    squared = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1)[None, :] - 2 * first @ second.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def _quantiles(ordered: FloatArray) -> FloatArray:
    """Return the sorted numbers of each row at evenly spaced places, as many whatever their count."""
    position = np.linspace(0, ordered.shape[1] - 1, _QUANTILES)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, ordered.shape[1] - 1)
    part = (position - low).astype(ordered.dtype)
    return np.asarray(ordered[:, low] + part * (ordered[:, high] - ordered[:, low]))


def _standard(cost: FloatArray) -> FloatArray:
    return np.asarray((cost - cost.mean()) / (cost.std() + cost.dtype.type(1e-12)))
