"""How far an entry that was filled may be off.

The fit is read as a model: with V the factors of the columns, a row has factors z ~ N(0, noise²/λ · I) and entries
V·z + noise. Given the observed entries Ω of the row, entry k has the variance

    noise_k² · (1 + leverage_k),    leverage_k = v_kᵀ(V_ΩᵀV_Ω + λI)⁻¹v_k,

noise of the entry itself and what is not known of z. Offsets and V count as known. The noise of a column comes from
what the fit leaves of its observed entries, each divided by 1 − leverage, since the fit has seen it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from keyless.arrays import Array, batches

__all__ = ["fitted_noise", "leverages", "standard_errors"]

_CELLS_AT_A_TIME = 2**20
"""Numbers of rank × rank matrices that are held at a time."""

_LEAST_FREE = 0.05
"""An entry whose leverage is above 1 minus this is fitted by itself alone, and says no more about the noise."""


def leverages(model: Any, seen: Array) -> Iterator[tuple[slice, Array]]:
    """Yield, for some rows at a time, the leverage of each column.

    Args:
        model: a fitted `SoftImpute`.
        seen: rows × columns, True where observed.
    """
    right = (model.column_factors_ / model.scale_[:, None]).astype(np.float64)
    penalty = np.full(model.rank_, model.penalty_)
    if model.offsets in ("rows", "both"):
        right, penalty = np.column_stack([right, np.ones(len(right))]), np.append(penalty, 0.0)
    width = right.shape[1]
    if not width:
        yield slice(0, len(seen)), np.zeros(seen.shape)
        return
    outer = (right[:, :, None] * right[:, None, :]).reshape(len(right), -1)
    for part in batches(len(seen), _CELLS_AT_A_TIME // max(width**2, 1)):
        system = (seen[part].astype(np.float64) @ outer).reshape(-1, width, width) + np.diag(penalty)
        # A row of which nothing is known has no level of its own, either.
        inverse = np.linalg.pinv(system, hermitian=True)
        yield part, np.einsum("nab,ka,kb->nk", inverse, right, right, optimize=True)


def fitted_noise(model: Any, given: Array) -> Array:
    """Return the noise of each column, as a standard deviation in its unit.

    Args:
        model: a fitted `SoftImpute`.
        given: the table it was fitted to, NaN where missing.
    """
    seen = ~np.isnan(given)
    fit = model.row_factors_ @ model.column_factors_.T + model.row_offsets_[:, None] + model.column_offsets_
    squares = np.where(seen, np.where(seen, given, 0.0) - fit, 0.0).astype(np.float64) ** 2
    total = np.zeros(given.shape[1])
    for part, leverage in leverages(model, seen):
        total += (squares[part] / np.maximum(1 - leverage, _LEAST_FREE)).sum(axis=0)
    # Each column has spent one entry on each of its factors, and one on its offset.
    free = np.maximum(seen.sum(axis=0) - model.rank_ - 1, 1)
    return np.sqrt(total / free)


def standard_errors(model: Any, given: Array) -> Array:
    """Return the standard error of each entry that is filled; 0 where it is observed.

    Args:
        model: a fitted `SoftImpute`.
        given: a table, NaN where missing.
    """
    seen = ~np.isnan(given)
    errors = np.zeros(given.shape, dtype=given.dtype)
    for part, leverage in leverages(model, seen):
        errors[part] = np.where(seen[part], 0.0, model.noise_ * np.sqrt(1 + leverage))
    return errors
