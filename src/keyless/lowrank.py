"""Low-rank matrices: nuclear norm, its prox, the two hard operators, and leading singular triplets.

Three operators that are often confused are kept apart by name: `prox_nuclear` shrinks singular values,
`threshold_singular_values` keeps the large ones unshrunk, `project_rank` keeps a given number of them. All run on
numpy, torch and any other array-API library; dtype and device in are dtype and device out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from keyless.arrays import (
    Array,
    RandomState,
    array_like,
    as_float,
    as_matrix,
    check_count,
    check_nonnegative,
    check_positive,
    eigenpairs_above,
    namespace,
    random_generator,
)
from keyless.errors import CONVERGED, InputError, Status

__all__ = [
    "SVD",
    "SparsePlusLowRank",
    "leading_svd",
    "nuclear_norm",
    "project_rank",
    "prox_nuclear",
    "threshold_singular_values",
    "truncated_svd",
]

_SMALL_SIDE = 20
"""Up to this size of the shorter side a full SVD costs nothing worth saving."""

_SMALL_ENTRIES = 40_000
"""Up to this many entries `truncated_svd` decomposes the matrix exactly."""

_OVERSAMPLING = 5
"""Extra vectors in the block of the power iteration; they only speed it up."""


@dataclass(frozen=True, eq=False)
class SVD:
    """A matrix in factors: `left * singular_values @ right.T`, both factors with orthonormal columns.

    Attributes:
        left: rows × rank.
        singular_values: rank values, largest first.
        right: columns × rank.
        status: how the iteration that found them ended; `converged` for exact decompositions.
    """

    left: Array
    singular_values: Array
    right: Array
    status: Status = CONVERGED

    @property
    def rank(self) -> int:
        """Number of singular triplets held."""
        return int(self.singular_values.shape[0])

    @property
    def nuclear_norm(self) -> float:
        """Sum of the singular values held."""
        return float(namespace(self.singular_values).sum(self.singular_values))

    def shrunk(self, weight: float) -> SVD:
        """Subtract `weight` from every singular value and drop those that do not stay above zero."""
        xp = namespace(self.singular_values)
        kept = int(xp.count_nonzero(self.singular_values > weight))
        return replace(
            self,
            left=self.left[:, :kept],
            singular_values=self.singular_values[:kept] - weight,
            right=self.right[:, :kept],
        )

    def dense(self) -> Array:
        """Form the matrix."""
        return (self.left * self.singular_values) @ self.right.T


@dataclass(frozen=True, eq=False)
class SparsePlusLowRank:
    """The matrix `sparse + left @ right.T`, never formed.

    Attributes:
        sparse: a scipy sparse array or matrix, rows × columns.
        left: rows × rank.
        right: columns × rank.
    """

    sparse: Any
    left: Array
    right: Array

    def __post_init__(self) -> None:
        wanted = (self.left.shape[0], self.right.shape[0])
        if not _is_sparse(self.sparse):
            raise InputError(f"sparse: must be a scipy sparse matrix; found {type(self.sparse).__name__}.")
        if self.sparse.shape != wanted or self.left.shape[1:] != self.right.shape[1:]:
            raise InputError(
                f"left and right: must be rows × rank and columns × rank of the sparse part {self.sparse.shape}; "
                f"found {self.left.shape} and {self.right.shape}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.sparse.shape
        return rows, columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a product with this matrix."""
        return np.result_type(self.sparse.dtype, self.left.dtype, self.right.dtype)

    @property
    def T(self) -> SparsePlusLowRank:  # noqa: N802
        """The transposed matrix; shares all memory."""
        return SparsePlusLowRank(self.sparse.T, self.right, self.left)

    def __matmul__(self, block: Array) -> Array:
        return self.sparse @ block + self.left @ (self.right.T @ block)

    def toarray(self) -> Array:
        """Form the matrix."""
        return self.sparse.toarray() + self.left @ self.right.T


Operator: TypeAlias = Any
"""A dense array, a scipy sparse matrix or a `SparsePlusLowRank`: it has `shape`, `dtype`, `T` and `@`."""


def nuclear_norm(matrix: Array) -> float:
    """Return ‖matrix‖_*, the sum of its singular values.

    Args:
        matrix: a 2-D array of any library.

    Example:
        >>> import numpy as np
        >>> nuclear_norm(np.diag([3.0, 4.0]))
        7.0
    """
    matrix = as_matrix(matrix, name="matrix")
    xp = namespace(matrix)
    return float(xp.sum(xp.linalg.svdvals(matrix)))


def prox_nuclear(matrix: Array, weight: float) -> Array:
    """Return argmin_X ½‖X − matrix‖² + weight·‖X‖_*: singular values shrunk by `weight`, never below zero.

    Args:
        matrix: a 2-D array of any library.
        weight: zero or positive.

    Example:
        >>> import numpy as np
        >>> prox_nuclear(np.diag([3.0, 1.0]), 2.0)
        array([[1., 0.],
               [0., 0.]])
    """
    return leading_svd(matrix, above=weight).shrunk(float(weight)).dense()


def threshold_singular_values(matrix: Array, threshold: float) -> Array:
    """Return argmin_X ½‖X − matrix‖² + ½·threshold²·rank(X): singular values above `threshold` kept, unshrunk.

    Args:
        matrix: a 2-D array of any library.
        threshold: zero or positive; a singular value equal to it is dropped.

    Example:
        >>> import numpy as np
        >>> threshold_singular_values(np.diag([3.0, 1.0]), 2.0)
        array([[3., 0.],
               [0., 0.]])
    """
    return leading_svd(matrix, above=threshold).dense()


def project_rank(matrix: Array, rank: int) -> Array:
    """Return argmin_X ‖X − matrix‖² over matrices of at most this `rank`.

    Args:
        matrix: a 2-D array of any library.
        rank: how many singular values to keep, from 1 to the shorter side.

    Example:
        >>> import numpy as np
        >>> project_rank(np.diag([3.0, 1.0]), 1)
        array([[3., 0.],
               [0., 0.]])
    """
    return leading_svd(matrix, rank=rank).dense()


def leading_svd(matrix: Array, *, above: float = 0.0, rank: int | None = None) -> SVD:
    """Return the singular triplets above a threshold, at most `rank` of them, accurate as from a full SVD.

    This is what the operators of this module share. A solver that also needs the nuclear norm of the result calls it
    once: `factors = leading_svd(matrix, above=weight).shrunk(weight)`, then `factors.dense()`, `factors.nuclear_norm`.

    Args:
        matrix: a 2-D array of any library.
        above: zero or positive; only singular values larger than this are returned.
        rank: the most triplets to return; None for all above the threshold.
    """
    matrix = as_matrix(matrix, name="matrix")
    above = check_nonnegative(above, name="threshold")
    limit = min(matrix.shape)
    if rank is not None:
        limit = check_count(rank, name="rank", maximum=limit)
    found = _gram_svd(matrix, above, limit) if min(matrix.shape) > _SMALL_SIDE else None
    if found is None:
        left, values, right = namespace(matrix).linalg.svd(matrix, full_matrices=False)
        found = SVD(left, values, right.T)
    return _cut(found, above, limit)


def _cut(found: SVD, above: float, limit: int) -> SVD:
    xp = namespace(found.singular_values)
    kept = min(limit, int(xp.count_nonzero(found.singular_values > above)))
    if kept == found.rank:
        return found
    return replace(
        found,
        left=found.left[:, :kept],
        singular_values=found.singular_values[:kept],
        right=found.right[:, :kept],
    )


def _gram_svd(matrix: Array, above: float, limit: int) -> SVD | None:
    """Decompose by the eigenvectors of the Gram matrix, or return None where that would lose accuracy.

    An eigenvalue of the Gram matrix carries an error of about ε·σ_max², ε being the unit roundoff. Soft and hard
    thresholding and projection are functions of the Gram matrix whose slope is at most 1/(2σ²) at the smallest
    singular value σ in use, so the result, relative to σ_max, is off by about ε·(σ_max/σ)²/2. With
    σ ≥ ε^(1/8)·σ_max that is at most ε^(3/4)/2: about 1e-12 for float64 and 3e-6 for float32.
    """
    if matrix.shape[0] < matrix.shape[1]:
        found = _gram_svd(matrix.T, above, limit)
        return None if found is None else replace(found, left=found.right, right=found.left)
    xp = namespace(matrix)
    precision = xp.finfo(matrix.dtype)
    largest = max(float(xp.max(matrix)), -float(xp.min(matrix)))
    lowest, highest = float(precision.smallest_normal) / float(precision.eps) ** 2, float(precision.max)
    if not lowest < largest * largest < highest / (matrix.shape[0] * matrix.shape[1]):
        return None  # the squares would overflow or underflow
    squares, vectors = eigenpairs_above(matrix.T @ matrix, above**2, most=limit)
    trusted = (float(squares[0]) if squares.shape[0] else above**2) * float(precision.eps) ** 0.25
    used = min(limit, int(xp.count_nonzero(squares > above**2)))
    in_doubt = used < limit and above**2 < trusted  # singular values near the threshold are not told apart
    if in_doubt or (used > 0 and float(squares[used - 1]) < trusted):
        return None
    values, right = xp.sqrt(squares[:used]), vectors[:, :used]
    return SVD((matrix @ right) / values, values, right)


def truncated_svd(
    operator: Operator,
    rank: int,
    *,
    start: Array | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 200,
    random_state: RandomState = 0,
) -> SVD:
    """Return the best rank-`rank` factors, argmin ‖left·diag(singular_values)·rightᵀ − operator‖².

    Small matrices are decomposed exactly. Larger ones by block power iteration with a Rayleigh–Ritz step, which only
    multiplies by the operator and its transpose, `rank + 5` vectors at a time.

    Args:
        operator: a dense array of any library, a scipy sparse matrix or a `SparsePlusLowRank`; the last two are never
            made dense unless small.
        rank: number of triplets, from 1 to the shorter side.
        start: columns × any number; a guess of the right subspace, such as the `right` of an earlier call.
        tolerance: stop when ‖operator·right − left·diag(singular_values)‖ per column is below this times the largest
            singular value; the error of the singular values is then of the order of its square.
        max_iter: the most power steps; `status` says when they did not suffice.
        random_state: seed of the random part of the first block; the result is a function of the arguments.

    Example:
        >>> import numpy as np
        >>> truncated_svd(np.diag([3.0, 2.0, 1.0]), 2).singular_values
        array([3., 2.])
    """
    operator = _as_operator(operator)
    shortest = min(operator.shape)
    rank = check_count(rank, name="rank", maximum=shortest)
    tolerance = check_positive(tolerance, name="tolerance")
    max_iter = check_count(max_iter, name="max_iter")
    if operator.shape[0] * operator.shape[1] <= _SMALL_ENTRIES:
        dense = operator if _is_dense(operator) else operator.toarray()
        left, values, right = namespace(dense).linalg.svd(dense, full_matrices=False)
        return SVD(left[:, :rank], values[:rank], right.T[:, :rank])
    block = _first_block(operator, min(rank + _OVERSAMPLING, shortest), start, random_state)
    return _power_iteration(operator, block, rank, tolerance, max_iter)


def _is_sparse(operator: Operator) -> bool:
    return bool(sparse.issparse(operator))


def _is_dense(operator: Operator) -> bool:
    return not (_is_sparse(operator) or isinstance(operator, SparsePlusLowRank))


def _as_operator(operator: Operator) -> Operator:
    if _is_dense(operator):
        return as_matrix(operator, name="operator")
    parts = (operator,) if _is_sparse(operator) else (operator.sparse, operator.left, operator.right)
    for part in parts:
        numbers = as_float(part.data if _is_sparse(part) else part, name="operator")
        if not bool(np.all(np.isfinite(numbers))):
            raise InputError("operator: must hold finite numbers only; found NaN or an infinity. Drop those entries.")
    if 0 in operator.shape:
        raise InputError(f"operator: must have at least one row and one column; found shape {operator.shape}.")
    if _is_sparse(operator) and operator.dtype.kind != "f":
        return operator.astype(np.float64)
    return operator


def _first_block(operator: Operator, width: int, start: Array | None, random_state: RandomState) -> Array:
    columns = operator.shape[1]
    like = operator if _is_dense(operator) else np.empty(0, dtype=operator.dtype)
    xp = namespace(like)
    fresh = width
    known = None
    if start is not None:
        known = as_matrix(start, name="start")
        if known.shape[0] != columns:
            raise InputError(f"start: must have one row per column of the operator, {columns}; found {known.shape[0]}.")
        known = known[:, :width]
        fresh = width - known.shape[1]
    block = array_like(random_generator(random_state).standard_normal((columns, fresh)), like)
    if known is not None:
        block = xp.concat([xp.astype(known, like.dtype, copy=False), block], axis=1)
    return xp.linalg.qr(block)[0]


def _power_iteration(operator: Operator, right: Array, rank: int, tolerance: float, max_iter: int) -> SVD:
    xp = namespace(right)
    transposed = operator.T
    largest, previous = 0.0, None
    status = Status("max_iter", "The singular vectors have not settled. Raise max_iter or tolerance.")
    for _ in range(max_iter):
        image = operator @ right
        if previous is not None:
            residual = image[:, :rank] - previous
            worst = float(xp.max(xp.linalg.vector_norm(residual, axis=0)))
            if worst <= tolerance * largest:
                status = CONVERGED
                break
        # Rayleigh–Ritz: operator ≈ basis · (basisᵀ·operator), the small factor decomposed by a second QR.
        basis, _ = xp.linalg.qr(image)
        right, triangle = xp.linalg.qr(transposed @ basis)
        turn, values, rotation = xp.linalg.svd(triangle.T, full_matrices=False)
        left, right = basis @ turn, right @ rotation.T
        largest, previous = float(values[0]), left[:, :rank] * values[:rank]
    return SVD(left[:, :rank], values[:rank], right[:, :rank], status)
