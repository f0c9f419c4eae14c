"""Are two rows the same entity? Log-likelihood ratios for all pairs of rows, and the couplings they imply.

Under a factor model a row carries the information G (precision) and h (shift) about its latents. With

    log Z(G, h) = −½ log det(I+G) + ½ hᵀ(I+G)⁻¹h

the log-likelihood ratio of "rows i and j are the same entity" against "they are two entities" is

    log Z(G_i+G_j, h_i+h_j) − log Z(G_i, h_i) − log Z(G_j, h_j),

which weighs sparse and full rows rightly.
"""

from __future__ import annotations

import numpy as np

from keyless.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    array_like,
    exp_in_place,
    namespace,
    on_device,
    to_numpy,
)
from keyless.cluster import device_for
from keyless.model.factor_model import Information
from keyless.progress import check_time

__all__ = [
    "FORBIDDEN",
    "approximate_log_ratio",
    "best_candidates",
    "couple",
    "exact_log_ratio",
    "expected_log_ratio",
    "forbid",
    "log_z",
    "pair_log_ratio",
]


FORBIDDEN = -1e6
"""The log-ratio of a pair that must not be: worse than any real one, yet finite, so that sums stay finite."""

_WORTH_A_CARD = 2**18
"""Pairs from which on a graphics card couples as quickly as the processor, sending the pairs there and back included
(benchmarks/bench_gpu.py --cases steps)."""

_STEPS_UNSEEN = 5
"""Steps of a coupling between two checks of how far its sums are off: a check costs as much as half a step."""

_LARGEST, _SMALLEST = 1e60, 1e-290
"""Scaling of a column above which the kernel is computed anew, and the least sum that is divided by to get a
scaling."""


def log_z(info: Information) -> Array:
    """Return −½ log det(I+G) + ½ hᵀ(I+G)⁻¹h for each row, in the library of the information."""
    xp = namespace(info.shift)
    factor = xp.linalg.cholesky(info.precision + array_like(np.eye(info.rank), info.shift))
    half = xp.linalg.solve(factor, info.shift[..., None])[..., 0]
    logdet = xp.log(xp.linalg.diagonal(factor)).sum(axis=-1)
    return 0.5 * (half**2).sum(axis=-1) - logdet


def pair_log_ratio(
    left: Information,
    right: Information,
    *,
    allowed: BoolArray | None = None,
    exact_pairs: int = 40_000,
    candidates: int = 20,
) -> FloatArray:
    """Return the log-likelihood ratio that left row i and right row j are the same entity, for all pairs.

    Args:
        left: information of the left rows.
        right: information of the right rows, about the same latents.
        allowed: which pairs may be matched; the others are set to `FORBIDDEN`.
        exact_pairs: up to so many pairs all ratios are exact.
        candidates: with more pairs, the ratios of so many best pairs of each row and of each column (by
            `approximate_log_ratio`) are exact. The others are approximate, but never above the exact ones of their row.
    """
    if len(left) * len(right) <= exact_pairs:
        rows, columns = (index.ravel() for index in np.indices((len(left), len(right))))
        return forbid(exact_log_ratio(left, right, rows, columns).reshape(len(left), len(right)), allowed)
    rough = forbid(approximate_log_ratio(left, right), allowed)
    if _same_precision(left) and _same_precision(right):
        return rough
    rows, columns = best_candidates(rough, candidates)
    if allowed is not None:
        kept = allowed[rows, columns]
        rows, columns = rows[kept], columns[kept]
    exact = exact_log_ratio(left, right, rows, columns)
    highest = np.full(len(left), np.inf)
    np.minimum.at(highest, rows, exact)
    np.minimum(rough, highest[:, None], out=rough)
    rough[rows, columns] = exact
    return rough


def exact_log_ratio(
    left: Information, right: Information, rows: IntArray, columns: IntArray, *, chunk: int = 5_000
) -> Array:
    """Return the log-likelihood ratio of the listed pairs (left row, right row) only, in the library of both.

    Args:
        left: information of the left rows.
        right: information of the right rows, about the same latents.
        rows: left row of each pair.
        columns: right row of each pair.
        chunk: how many pairs are held in memory at a time.
    """
    ratio = -(log_z(left)[rows] + log_z(right)[columns])
    for start in range(0, len(rows), chunk):
        check_time()
        part = slice(start, start + chunk)
        ratio[part] += log_z(left[rows[part]] + right[columns[part]])
    return ratio


def approximate_log_ratio(left: Information, right: Information) -> FloatArray:
    """Return the log-likelihood ratio of all pairs, nearly, at the cost of two matrix products.

    It is the mean of two approximations. In each of them the precisions of one side are exact, and those of the other
    are replaced by their average, while its latent means are kept. The result is exact if all rows of each table have
    entries in the same columns.
    """
    forward = _one_sided(left, right)
    if _same_precision(left) and _same_precision(right):
        return forward
    forward += _one_sided(right, left).T
    forward *= 0.5
    return forward


def expected_log_ratio(left: Information, right: Information) -> FloatArray:
    """Return what the model expects the log-likelihood ratio of left row i and right row i to be if they are the same.

    That is the information the two rows share: ½ log det(I+G_i) + ½ log det(I+G_j) − ½ log det(I+G_i+G_j).
    """

    def half_logdet(precision: FloatArray) -> FloatArray:
        return np.asarray(0.5 * np.linalg.slogdet(np.eye(left.rank) + precision)[1], dtype=np.float64)

    return half_logdet(left.precision) + half_logdet(right.precision) - half_logdet(left.precision + right.precision)


def best_candidates(log_ratio: FloatArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the pairs (rows, columns) among the `count` largest of their row or of their column, each once."""
    rows, columns = log_ratio.shape
    by_row = np.argpartition(log_ratio, columns - min(count, columns), axis=1)[:, columns - min(count, columns) :]
    by_column = np.argpartition(log_ratio, rows - min(count, rows), axis=0)[rows - min(count, rows) :]
    flat = np.unique(
        np.concatenate(
            [
                (np.arange(rows)[:, None] * columns + by_row).ravel(),
                (by_column * columns + np.arange(columns)[None, :]).ravel(),
            ]
        )
    )
    return flat // columns, flat % columns


def forbid(log_ratio: FloatArray, allowed: BoolArray | None) -> FloatArray:
    """Return the log-ratios with `FORBIDDEN` wherever a pair is not allowed; None allows all."""
    return log_ratio if allowed is None else np.where(allowed, log_ratio, FORBIDDEN)


def couple(
    log_ratio: FloatArray,
    *,
    temperature: float = 1.0,
    max_iter: int = 100,
    tolerance: float = 0.02,
    potentials: FloatArray | None = None,
) -> FloatArray:
    """Return argmax_P ⟨P, log_ratio⟩ + temperature·entropy(P), every row of the smaller side given a partner.

    Rows of the smaller side sum to 1, those of the larger side to the ratio of the sizes. This is what
    `keyless.transport.sinkhorn` solves, for searches that call it thousands of times on finite numbers of their own.

    Args:
        log_ratio: of each pair.
        temperature: the weight of the entropy.
        max_iter: stop after so many steps.
        tolerance: stop when the sums of rows are off by no more, as a root mean square.
        potentials: of the columns; the steps begin with them, and the final potentials are written into this array.

    Example:
        >>> import numpy as np
        >>> couple(np.array([[9.0, 0.0], [0.0, 9.0]])).round(3)
        array([[1., 0.],
               [0., 1.]])
    """
    check_time()
    rows, columns = log_ratio.shape
    of_row, of_column = min(1.0, columns / rows), min(1.0, rows / columns)
    potentials = np.zeros(columns) if potentials is None else potentials
    device = device_for(log_ratio.size, least=_WORTH_A_CARD)
    given: Array = log_ratio if device is None else on_device(log_ratio, device)
    xp = namespace(given)
    shift, column_scale = (array_like(part, given, dtype=xp.float64) for part in (potentials, np.ones(columns)))
    smallest = array_like([_SMALLEST], column_scale)
    done = 0
    while True:
        kernel = given + shift
        kernel -= xp.max(kernel, axis=1, keepdims=True)
        kernel /= temperature
        kernel = exp_in_place(kernel)
        moved = np.inf
        while done < max_iter and moved > tolerance:
            for _ in range(min(_STEPS_UNSEEN, max_iter - done)):
                row_scale = of_row / xp.maximum(kernel @ column_scale, smallest)
                column_scale = of_column / xp.maximum(row_scale @ kernel, smallest)
                done += 1
            sums = row_scale * (kernel @ column_scale)
            moved = float(xp.mean((sums - of_row) ** 2)) ** 0.5
            if float(xp.max(column_scale)) > _LARGEST:
                break
        shift = shift + temperature * xp.log(column_scale)
        if done >= max_iter or moved <= tolerance:
            break
        # Entries that were too small to matter in the kernel may matter by now.
        column_scale[:] = 1.0
    potentials[:] = to_numpy(shift)
    kernel *= row_scale[:, None]
    kernel *= column_scale
    return to_numpy(kernel)


def _same_precision(info: Information) -> bool:
    return bool(np.allclose(info.precision, info.precision[:1], rtol=1e-9, atol=0.0))


def _one_sided(own: Information, other: Information) -> FloatArray:
    """Return the log-ratio of all pairs with the other side's precisions replaced by their average.

    With A = (I + G_i + G)⁻¹ and the other row's shift h_j, what depends on both rows is (A h_i)·h_j + ½ h_jᵀ A h_j: one
    product of vectors that hold h_j and its squares.
    """
    check_time()
    identity = np.eye(own.rank)
    average = other.precision.mean(axis=0)
    means = np.linalg.solve(other.precision + identity, other.shift[..., None])[..., 0]
    shift = means @ (average + identity)
    inverse = np.linalg.inv(own.precision + average + identity)
    _, logdet = np.linalg.slogdet(inverse)
    drift = np.einsum("nab,nb->na", inverse, own.shift)
    constant = 0.5 * logdet + 0.5 * (drift * own.shift).sum(axis=1) - log_z(own)
    first, second = np.triu_indices(own.rank)
    weight = np.where(first == second, 0.5, 1.0)
    own_features = np.concatenate([drift, inverse[:, first, second] * weight], axis=1)
    other_features = np.concatenate([shift, shift[:, first] * shift[:, second]], axis=1)
    alone = log_z(Information(np.broadcast_to(average, other.precision.shape), shift))
    return np.asarray(own_features @ other_features.T + constant[:, None] - alone[None, :], dtype=np.float64)
