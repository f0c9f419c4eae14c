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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.model.factors import Factors
from keyless.progress import check_time

__all__ = ["best_maps", "distinct_maps", "moment_maps", "moments"]

_CORRELATION = 0.5
"""r, the correlation that moments of partners are taken to have: 0.4 to 0.7 find most maps of simulated tables."""

_STARTS, _LENGTHS, _HALVED_AT = 64, np.geomspace(0.6, 0.1, 50), (12, 25)
"""Random maps that are improved; lengths of the steps, as parts of the length of a rotation; and steps at which the
worse half of the maps is given up. Between normal tables with 6 common factors one start in ten finds the map; without
the second part of the value (r = 0) it is one in a hundred."""

_TURNS, _TURNED, _TURNED_INTO, _DIRECTIONS_TURNED = 10, 12, 4, 3
"""How often the best maps are turned and improved again, how many of them, how many maps each is turned into, and in
how many directions. For 63 pairs of tables with three factors of their own beside six common ones, a map within 37° of
the right one was found for 10 pairs from 96 random maps, for 23 from 300, and for 30 from 64 with ten turns, in less
time than from the 300 (pairs of benchmarks/bench_verdict.py with other seeds than it reports)."""

_LENGTHS_TURNED, _HALVED_TURNED_AT = np.geomspace(0.3, 0.1, 14), (5,)
"""The steps of maps that were turned: they begin near a good map, so with shorter ones."""

_FIRST_SIZE = 0.7
"""Correlations that random maps begin with."""

_FARTHEST = 1.7
"""Rows farther from the mean than this many times an average row count as standing at this distance: otherwise a few
rows would decide the fourth moments alone."""

_LARGEST, _SMALLEST = 10, 3
"""The most and the fewest factors of a table that are used: the work grows with the sixth power of their number."""

_LEADING = 6, 8
"""Numbers of leading factors that are tried, besides the number of factors that stand out of the noise."""

_DISTINCT = 0.9
"""Cosine between two maps above which they count as one."""

_MAPS = 8
"""Most maps that are proposed for each number of factors, the best first."""


class FactorMoments(NamedTuple):
    """Third and fourth moments of factors, less those of normal ones, divided by their standard errors.

    A moment does not depend on the order of its factors, so a pair of factors stands for both orders; see `_Pairs`.
    Sums over pairs equal sums over the factors in all orders.

    Attributes:
        third: factors × pairs of factors.
        fourth: pairs × pairs of factors.
    """

    third: NumpyArray
    fourth: NumpyArray


def moment_maps(left: Factors, right: Factors) -> Iterator[list[tuple[str, NumpyArray]]]:
    """Yield named maps of several numbers of leading factors, small ones first: those that stand out, and `_LEADING`.

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
    for first, second in sorted(sizes, key=np.prod):
        found = best_maps(moments(left.scores[:, :first]), moments(right.scores[:, :second]))
        yield [
            (f"moments, {first} × {second} factors, map {number}", each) for number, each in enumerate(found, start=1)
        ]


def moments(factors: NumpyArray) -> FactorMoments:
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
    fold = _pairs(size).fold
    return FactorMoments(
        (third @ fold * np.sqrt(rows / 6)).astype(np.float32),
        (fold.T @ fourth @ fold * np.sqrt(rows / 24)).astype(np.float32),
    )


def best_maps(left: FactorMoments, right: FactorMoments) -> list[NumpyArray]:
    """Return distinct maps of the highest values that are reached from random maps, the best first.

    The best maps are turned in some directions and improved again, several times over: a map that is right in some
    directions is a better beginning than a random one.

    Args:
        left: moments of the left table.
        right: moments of the right table.

    Returns:
        Matrices of left × right factors whose singular values are at most 1.
    """
    shape = len(left.third), len(right.third)
    # Always the same random maps: the answer depends on the tables alone.
    rng = np.random.default_rng(0)
    drawn = _FIRST_SIZE * _turned(rng.standard_normal((_STARTS, *shape)))
    maps, values = _improved(drawn, left, right, lengths=_LENGTHS, halved_at=_HALVED_AT)
    for _ in range(_TURNS):
        best = distinct_maps(maps, values, _TURNED)
        drawn = np.repeat(maps[best], _TURNED_INTO, axis=0)
        # Turned on the side of more factors: turns on the other side never reach directions that the map does not use.
        turns = _turns(rng, len(drawn), max(shape))
        turned = turns @ drawn if shape[0] > shape[1] else drawn @ turns
        improved = _improved(turned, left, right, lengths=_LENGTHS_TURNED, halved_at=_HALVED_TURNED_AT)
        maps, values = (np.concatenate([old[best], new]) for old, new in zip((maps, values), improved, strict=True))
    return list(maps[distinct_maps(maps, values, _MAPS)])


def _improved(
    maps: NumpyArray, left: FactorMoments, right: FactorMoments, *, lengths: NumpyArray, halved_at: Sequence[int]
) -> tuple[NumpyArray, NumpyArray]:
    """Return the better ones of some maps after steps that raise their values, and these values.

    Args:
        maps: number × left × right factors.
        left: moments of the left table.
        right: moments of the right table.
        lengths: of the steps, as parts of the length of a rotation.
        halved_at: steps at which the worse half of the maps is given up.
    """
    maps = maps.astype(np.float32)
    for step, length in enumerate(lengths):
        check_time()
        values, slopes = _value(maps, left, right)
        if step in halved_at:
            better = np.argsort(-values, kind="stable")[: len(maps) // 2]
            maps, slopes = maps[better], slopes[better]
        size = np.sqrt(np.sum(slopes**2, axis=(1, 2), keepdims=True))
        slopes *= length * np.sqrt(min(maps.shape[1:])) / np.maximum(size, np.finfo(np.float32).tiny)
        forth, strengths, back = np.linalg.svd(maps + slopes, full_matrices=False)
        maps = (forth * np.minimum(strengths, 1.0)[:, None, :]) @ back
    return maps, _value(maps, left, right)[0]


def distinct_maps(maps: NumpyArray, values: NumpyArray, most: int) -> list[int]:
    """Return the numbers of the best maps that are not alike, the best first.

    Args:
        maps: number × left × right factors.
        values: of each; the higher, the better.
        most: how many maps are returned, at most.
    """
    found: list[int] = []
    lengths = np.sqrt(np.sum(maps**2, axis=(1, 2)))
    for number in np.argsort(-values, kind="stable"):
        alike = np.sum(maps[found] * maps[number], axis=(1, 2)) >= _DISTINCT * lengths[found] * lengths[number]
        if lengths[number] > 0 and not alike.any():
            found.append(int(number))
        if len(found) == most:
            break
    return found


def _turns(rng: np.random.Generator, count: int, size: int) -> NumpyArray:
    """Return orthogonal matrices that turn, and may mirror, some random directions and leave all others as they are."""
    some = min(_DIRECTIONS_TURNED, size)
    planes = np.linalg.qr(rng.standard_normal((count, size, some)))[0]
    inside = np.linalg.qr(rng.standard_normal((count, some, some)))[0] - np.eye(some)
    return np.asarray(np.eye(size) + planes @ inside @ planes.mT)


def _value(maps: NumpyArray, left: FactorMoments, right: FactorMoments) -> tuple[NumpyArray, NumpyArray]:
    """Return the value of each map, and how it changes with each of its entries."""
    ours, theirs = _pairs(maps.shape[1]), _pairs(maps.shape[2])
    ones, others = maps[:, ours.first], maps[:, ours.second]
    # What a map makes of pairs of factors: pairs of the left table × pairs of the right one.
    outer = (ones * ours.weights[:, None])[:, :, :, None] * others[:, :, None, :]
    twice = outer.reshape(len(maps), len(ours.first), -1) @ theirs.fold
    back, twice_back = maps.transpose(0, 2, 1), twice.transpose(0, 2, 1)
    r, half = _CORRELATION, _CORRELATION / 2
    seen, seen_back = left.third @ twice, right.third @ twice_back
    on_right, on_left = back @ seen, maps @ seen_back
    values = _products(on_right, right.third - half * on_right) - half * _products(on_left, on_left)
    # A third moment has the map in it three times. Moments are symmetric, so all three have the same slope.
    slopes = 3 * (seen @ (right.third - r * on_right).transpose(0, 2, 1) - r * on_left @ seen_back.transpose(0, 2, 1))
    seen, seen_back = left.fourth @ twice, twice @ right.fourth
    on_right, on_left = twice_back @ seen, seen_back @ twice_back
    values += _products(on_right, right.fourth - half * on_right) - half * _products(on_left, on_left)
    of_pairs = (seen @ (right.fourth - r * on_right) - r * on_left @ seen_back) @ theirs.fold.T
    of_pairs = (of_pairs * ours.weights[:, None]).reshape(outer.shape)
    for own, other in ((ours.first, others), (ours.second, ones)):
        along = np.einsum("npef,npf->npe", of_pairs, other)
        slopes += 2 * (own == np.arange(maps.shape[1])[:, None]).astype(np.float32) @ along
    return values, slopes


def _products(one: NumpyArray, other: NumpyArray) -> NumpyArray:
    """Return the sum of the products of entries, for each of several matrices."""
    return np.asarray(np.einsum("nij,nij->n", one, other))


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of factors, whichever comes first.

    Attributes:
        first: factor that comes first in each pair.
        second: the other one, which may be the same.
        weights: 1 for a factor with itself, √2 for two factors, which stand for both of their orders.
        fold: factors² × pairs, from products of factors in both orders to pairs; its columns are orthonormal.
    """

    first: IntArray
    second: IntArray
    weights: NumpyArray
    fold: NumpyArray


@cache
def _pairs(size: int) -> _Pairs:
    first, second = np.triu_indices(size)
    weights = np.where(first == second, 1.0, np.sqrt(2.0)).astype(np.float32)
    fold = np.zeros((size, size, len(first)), dtype=np.float32)
    number = np.arange(len(first))
    fold[first, second, number] = fold[second, first, number] = 1 / weights
    return _Pairs(first, second, weights, fold.reshape(size**2, -1))


def _turned(matrices: NumpyArray) -> NumpyArray:
    """Return the nearest rotations."""
    forth, _, back = np.linalg.svd(matrices, full_matrices=False)
    return np.asarray(forth @ back)
