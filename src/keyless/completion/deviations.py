"""How far an entry that was filled may be off.

The fit is read as a model: with V the factors of the columns, a row has factors z ~ N(0, noise²/λ · I) and entries
V·z + noise. Given the observed entries Ω of the row, entry k has the variance

    noise_k² · (1 + leverage_k),    leverage_k = v_kᵀ(V_ΩᵀV_Ω + λI)⁻¹v_k,

noise of the entry itself and what is not known of z. Offsets and V count as known. The noise of a column comes from
what the fit leaves of its observed entries, each divided by 1 − leverage, since the fit has seen it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from keyless.arrays import Array, batches

__all__ = ["fitted_noise", "leverages"]

_CELLS_AT_A_TIME = 2**20
"""Numbers of rank × rank matrices that are held at a time."""

_LEAST_FREE = 0.05
"""An entry whose leverage is above 1 minus this is fitted by itself alone, and says no more about the noise."""


def leverages(right: Array, penalties: Array, seen: Array) -> Iterator[tuple[slice, Array]]:
    """Yield, for some rows at a time, the leverage of each column.

    Args:
        right: columns × width, V.
        penalties: of each of its columns; 0 for the offset of a row.
        seen: rows × columns, True where observed.
    """
    width = right.shape[1]
    if not width:
        yield slice(0, len(seen)), np.zeros(seen.shape)
        return
    outer = (right[:, :, None] * right[:, None, :]).reshape(len(right), -1)
    for part in batches(len(seen), _CELLS_AT_A_TIME // max(width**2, 1)):
        system = (seen[part].astype(np.float64) @ outer).reshape(-1, width, width) + np.diag(penalties)
        # A row of which nothing is known has no level of its own, either.
        inverse = np.linalg.pinv(system, hermitian=True)
        yield part, np.einsum("nab,ka,kb->nk", inverse, right, right, optimize=True)


def fitted_noise(residual: Array, seen: Array, leverage: Iterable[tuple[slice, Array]], *, rank: int) -> Array:
    """Return the noise of each column, as a standard deviation in the unit of the residual.

    Args:
        residual: rows × columns, what the fit leaves of the observed entries; 0 where missing.
        seen: rows × columns, True where observed.
        leverage: of the rows, as `leverages` yields it.
        rank: of the fit.
    """
    total = np.zeros(seen.shape[1])
    for part, known in leverage:
        total += (residual[part] ** 2 / np.maximum(1 - known, _LEAST_FREE)).sum(axis=0)
    # Each column has spent one entry on each of its factors, and one on its offset.
    free = np.maximum(seen.sum(axis=0) - rank - 1, 1)
    return np.sqrt(total / free)
