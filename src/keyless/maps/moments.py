"""Maps between two tables from the third and fourth moments of their factors: no row is compared with another.

If two tables are about the same entities, their moments are those of the same sample, turned by the map. That holds for
normal factors, too: their moments vanish in the population, but not in a sample, and the same sample leaves the same
remainder in both tables. With h₃ and h₄ the moments of whitened factors less what normal factors have, and S the
cross-covariance of the factors of both tables, the value of a map is

    Σ_k [ ⟨h_k(left), S^⊗k h_k(right)⟩ − r/2 (‖S^⊗k⊤ h_k(left)‖² + ‖S^⊗k h_k(right)‖²) ].

The second part is what the log-likelihood ratio of two correlated normal numbers subtracts. It keeps directions that
one table has for itself out of the map. The work does not depend on the number of rows once the moments are known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keyless.arrays import FloatArray, SingleArray
from keyless.model.factors import Factors
from keyless.progress import check_time

__all__ = ["MOST_MAPS", "best_maps", "moment_maps", "moments"]

_CORRELATION = 0.5
"""r, the correlation that moments of partners are taken to have: 0.4 to 0.7 find most maps of drawn tables."""

_STARTS, _STEPS = 96, 50
"""Random maps that are improved, and steps of each. Of normal tables with 6 common factors every tenth start finds the
map, without the second part of the value (r = 0) every hundredth."""

_LONGEST_STEP, _SHORTEST_STEP = 0.6, 0.1
"""Length of the first and of the last step, as part of the length of a rotation."""

_HALVED_AT = 12, 25
"""Steps after which the worse half of the maps is given up."""

_FIRST_SIZE = 0.7
"""Correlations that random maps begin with."""

_FARTHEST = 1.7
"""Distance from the mean, times that of an average row, beyond which rows count as this far: a few rows would decide
the fourth moments alone."""

_LARGEST, _SMALLEST = 10, 3
"""The most and the fewest factors of a table that are used: the work grows with the sixth power of their number."""

_LEADING = 6, 8
"""Leading factors that are tried besides those that stand out of the noise."""

_DISTINCT = 0.9
"""Cosine between two maps above which they count as one."""

_MAPS = 8
"""Maps that are proposed for each number of factors, the best first."""

MOST_MAPS = _MAPS * (1 + len(_LEADING))
"""Maps that are proposed at the most."""

Moments = tuple[SingleArray, SingleArray]
"""Third moments as factors × factors², fourth moments as factors² × factors², both divided by their standard error."""


def moment_maps(left: Factors, right: Factors) -> Iterator[tuple[str, FloatArray]]:
    """Yield named maps, left × right leading factors: first of the factors that stand out, then of more of them.

    Args:
        left: factors of all rows of the left table.
        right: factors of all rows of the right table.
    """
    sizes = dict.fromkeys(
        tuple(max(min(wanted, _LARGEST, side.rank), min(_SMALLEST, side.rank)) for wanted, side in each)
        for each in (
            ((left.signal_rank, left), (right.signal_rank, right)),
            *(((count, left), (count, right)) for count in _LEADING),
        )
    )
    for first, second in sizes:
        found = best_maps(moments(left.scores[:, :first]), moments(right.scores[:, :second]))
        for number, each in enumerate(found, start=1):
            yield f"moments, {first} × {second} factors, map {number}", each


def moments(factors: FloatArray) -> Moments:
    """Return the third and fourth moments of whitened factors, less those of normal ones, in standard errors.

    Args:
        factors: rows × factors, whitened.
    """
    rows, size = factors.shape
    length = np.sqrt(np.sum(factors**2, axis=1, keepdims=True))
    shrunk = factors * np.minimum(1.0, _FARTHEST * np.sqrt(size) / np.maximum(length, np.finfo(np.float64).tiny))
    basis, _, turned = np.linalg.svd(shrunk - shrunk.mean(axis=0), full_matrices=False)
    white = (basis @ turned * np.sqrt(rows)).astype(np.float32)
    products = (white[:, :, None] * white[:, None, :]).reshape(rows, size**2)
    third, fourth = white.T @ products / rows, products.T @ products / rows
    one = np.eye(size, dtype=np.float32)
    outer = np.multiply.outer(one, one)
    normal = outer + outer.transpose(0, 2, 1, 3) + outer.transpose(0, 3, 2, 1)
    fourth -= normal.reshape(fourth.shape)
    return (third * np.sqrt(rows / 6)).astype(np.float32), (fourth * np.sqrt(rows / 24)).astype(np.float32)


def best_maps(left: Moments, right: Moments) -> list[FloatArray]:
    """Return distinct maps of the highest values that random maps reach, the best first.

    A map is a matrix of left × right factors whose singular values are at most 1.

    Args:
        left: moments of the left table.
        right: moments of the right table.
    """
    shape = len(left[0]), len(right[0])
    # Always the same random maps: the answer depends on the tables alone.
    drawn = np.random.default_rng(0).standard_normal((_STARTS, *shape))
    maps = (_FIRST_SIZE * _turned(drawn)).astype(np.float32)
    for step, length in enumerate(np.geomspace(_LONGEST_STEP, _SHORTEST_STEP, _STEPS)):
        check_time()
        values, slopes = _value(maps, left, right)
        if step in _HALVED_AT:
            better = np.argsort(-values, kind="stable")[: len(maps) // 2]
            maps, slopes = maps[better], slopes[better]
        size = np.sqrt(np.sum(slopes**2, axis=(1, 2), keepdims=True))
        slopes *= np.float32(length * np.sqrt(min(shape))) / np.maximum(size, np.finfo(np.float32).tiny)
        forth, strengths, back = np.linalg.svd(maps + slopes, full_matrices=False)
        maps = (forth * np.minimum(strengths, 1.0)[:, None, :]) @ back
    values, _ = _value(maps, left, right)
    found: list[FloatArray] = []
    for number in np.argsort(-values, kind="stable"):
        length = np.linalg.norm(maps[number])
        if length > 0 and all(np.sum(maps[number] * one) < _DISTINCT * length * np.linalg.norm(one) for one in found):
            found.append(maps[number])
        if len(found) == _MAPS:
            break
    return found


def _value(maps: SingleArray, left: Moments, right: Moments) -> tuple[SingleArray, SingleArray]:
    """Return the value of each map, and how it changes with each of its entries."""
    back = maps.transpose(0, 2, 1)
    values, slopes = _agreement(maps, left, right)
    on_left, slopes_left = _agreement(maps @ back, left, left)
    on_right, slopes_right = _agreement(back @ maps, right, right)
    correlation = np.float32(_CORRELATION)
    return (
        np.asarray(values - correlation / 2 * (on_left + on_right)),
        np.asarray(slopes - correlation * (slopes_left @ maps + maps @ slopes_right)),
    )


def _agreement(maps: SingleArray, left: Moments, right: Moments) -> tuple[SingleArray, SingleArray]:
    """Return Σ_k ⟨h_k(left), S^⊗k h_k(right)⟩ for each map S, and its derivative."""
    count, first, second = maps.shape
    twice = (maps[:, :, None, :, None] * maps[:, None, :, None, :]).reshape(count, first**2, second**2)
    third = left[0] @ twice @ right[0].T
    paired = (left[1] @ twice @ right[1]).reshape(count, first, first, second, second)
    paired = paired.transpose(0, 1, 3, 2, 4).reshape(count, first * second, first * second)
    fourth = (paired @ maps.reshape(count, first * second, 1)).reshape(maps.shape)
    return np.asarray(np.sum((third + fourth) * maps, axis=(1, 2))), np.asarray(3 * third + 4 * fourth)


def _turned(matrices: FloatArray) -> FloatArray:
    """Return the nearest rotations."""
    forth, _, back = np.linalg.svd(matrices, full_matrices=False)
    return np.asarray(forth @ back)
