"""Soft-Impute at one penalty, on arrays of any library: min ½‖P_Ω(X − M)‖² + λ‖M‖_*.

The experiments use it. `keyless.SoftImpute` is the same with offsets, scales, and a penalty that is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import (
    Array,
    array_like,
    as_matrix,
    check_count,
    check_positive,
    is_array,
    is_sparse,
    namespace,
    random_generator,
    safe_unit,
)
from keyless.completion.observed import ObservedTable, checked_places, entries, observed_entries, stored
from keyless.completion.sweeps import FactorLayout, head_start, solve
from keyless.completion.units import penalty_in_unit
from keyless.errors import InputError, Status

__all__ = ["Completion", "soft_impute"]

_LARGEST = float(np.finfo(np.float64).max)
"""What is returned is at most so large."""


@dataclass(frozen=True, eq=False)
class Completion:
    """The low-rank estimate `left @ right.T` of a table with missing entries.

    Attributes:
        left: rows × rank, solved for `right` exactly.
        right: columns × rank, orthogonal columns; once settled each one's squared length is a singular value.
        singular_values: those of the estimate, largest first.
        objective: after each sweep, ½‖P_Ω(X − left·rightᵀ)‖² + λ/2(‖left‖² + ‖right‖²). It never rises, and its limit
            is the minimum of ½‖P_Ω(X − M)‖² + λ‖M‖_*.
        status: how the iteration ended.
    """

    left: Array
    right: Array
    singular_values: Array
    objective: tuple[float, ...]
    status: Status

    def __repr__(self) -> str:
        rows, columns = self.left.shape[0], self.right.shape[0]
        return f"Completion: {rows:,} × {columns:,} of rank {self.rank}, {self.status}"

    @property
    def rank(self) -> int:
        """Rank of the estimate."""
        return int(self.singular_values.shape[0])

    @property
    def nuclear_norm(self) -> float:
        """Nuclear norm of the estimate."""
        return float(namespace(self.singular_values).sum(self.singular_values))

    def estimate(self) -> Array:
        """Form the estimate."""
        return self.left @ self.right.T

    def estimate_at(self, rows: Any, columns: Any) -> Array:
        """Return single entries of the estimate, without forming it.

        Args:
            rows: row numbers.
            columns: column numbers; broadcast against `rows`.
        """
        xp = namespace(self.left)
        rows, columns = checked_places(rows, columns, (self.left.shape[0], self.right.shape[0]))
        return xp.reshape(entries(self.left, self.right, rows.ravel(), columns.ravel()), rows.shape)


def soft_impute(
    values: Any,
    mask: Array | None,
    penalty: float,
    *,
    start: Array | None = None,
    rank: int | None = None,
    max_iter: int = 200,
    tolerance: float = 1e-7,
) -> Completion:
    """Return argmin_M ½‖P_Ω(values − M)‖² + penalty·‖M‖_*, in factors.

    Args:
        values: rows × columns, an array of any library; entries outside the mask are not looked at. Or a scipy sparse
            matrix whose stored entries are the observed ones, stored zeros too; nothing dense is then formed.
        mask: True where observed, of the same shape; None for a sparse matrix.
        penalty: λ, above zero.
        start: columns × any number, a first right factor, such as the `right` of an earlier result.
        rank: the largest rank allowed; with None the convex problem is solved, with a limit it no longer is one.
        max_iter: the most sweeps.
        tolerance: settled when a sweep lowers the objective by less than this fraction and no direction is missing.

    Example:
        >>> import numpy as np
        >>> soft_impute(np.ones((3, 2)), np.ones((3, 2), dtype=bool), 0.1).rank
        1
    """
    given, table = _read_values(values, mask)
    unit = safe_unit(table.largest)
    table = table.in_unit(unit)
    xp = namespace(given)
    rows, columns = table.shape
    limit = check_count(min(rows, columns) if rank is None else rank, name="rank", maximum=min(rows, columns))
    penalty = penalty_in_unit(check_positive(penalty, name="penalty"), unit)
    right = xp.zeros((columns, 0), dtype=xp.float64, device=given.device)
    layout = FactorLayout(0)
    if start is None:
        layout, right = head_start(table, layout, right, penalty, limit=limit, generator=random_generator(0))
    else:
        start = xp.astype(as_matrix(start, name="start"), xp.float64)
        if start.shape[0] != columns:
            raise InputError(f"start: must have one row per column, {columns}; found {start.shape[0]}.")
        start = start / unit**0.5
        basis, scale, _ = xp.linalg.svd(start, full_matrices=False)
        found_rank = min(limit, int(xp.count_nonzero(scale > 1e-6 * scale[0])))
        layout, right = FactorLayout(found_rank), basis[:, :found_rank] * scale[:found_rank]
    found = solve(
        table,
        layout,
        right,
        penalty,
        limit=limit,
        max_iter=check_count(max_iter, name="max_iter"),
        tolerance=check_positive(tolerance, name="tolerance"),
    )
    left, right, singular = (
        xp.astype(_in_caller_unit(part, factor), given.dtype)
        for part, factor in ((found.left, unit**0.5), (found.right, unit**0.5), (found.singular_values, unit))
    )
    return Completion(
        left, right, singular, tuple(_in_caller_unit(_in_caller_unit(found.history, unit), unit)), found.status
    )


def _in_caller_unit(numbers: Any, unit: float) -> Any:
    """Return numbers in the caller's unit; those beyond the range of numbers are the largest there are."""
    if unit == 1:
        return numbers
    if not is_array(numbers):
        return [float(number) for number in _in_caller_unit(np.asarray(numbers), unit)]
    with np.errstate(over="ignore"):
        return namespace(numbers).clip(numbers * unit, -_LARGEST, _LARGEST)


def _read_values(values: Any, mask: Array | None) -> tuple[Array, ObservedTable]:
    """Check the arguments of `soft_impute`; return an array of the caller's library and dtype, and the entries."""
    if is_sparse(values):
        if mask is not None:
            raise InputError("mask: must be None for a sparse matrix, whose stored entries are the observed ones.")
        if values.dtype.kind not in "biuf" or 0 in values.shape:
            raise InputError(
                f"values: must be a table of numbers with at least one row and one column; found a sparse matrix of "
                f"{values.dtype}, shape {values.shape}."
            )
        rows = sparse.csr_array(values)
        if rows.dtype not in (np.float32, np.float64):
            rows = rows.astype(np.float64)
        return rows.data, stored(rows, name="values")[1]
    if mask is None:
        raise InputError("mask: must be given unless values is a sparse matrix; found None.")
    given = as_matrix(values, name="values", allow_missing=True, allow_infinite=True)
    xp = namespace(given)
    mask = array_like(mask, given, dtype=xp.bool)
    if mask.shape != given.shape:
        raise InputError(f"mask: must have the shape of values, {given.shape}; found {mask.shape}.")
    filled = as_matrix(xp.where(mask, given, xp.zeros_like(given)), name="values")
    return given, observed_entries(xp.astype(filled, xp.float64), mask)
