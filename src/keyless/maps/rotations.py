"""First correspondences between two tables whose latents agree up to an unknown rotation and row order.

The inner products of a row's latents with those of all rows of its own table do not change under a rotation, and
sorted they do not depend on the order of rows either. Rows of two tables with similar sorted products are likely the
same entity: that gives a first coupling, the coupling a rotation, and the rotation a better coupling, at falling
temperature. A wrong result of this is often right but for one reflected direction or one turned plane, so the rotations
that differ by one such move can be tried as well. The mean log-likelihood ratio of the coupling tells success from
failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from keyless.arrays import BoolArray, FloatArray, IntArray
from keyless.model.factor_model import Information
from keyless.model.latents import Latents
from keyless.pairs.likelihood import approximate_log_ratio, couple, forbid
from keyless.progress import check_time

__all__ = [
    "TEMPERATURES",
    "Alignment",
    "SignatureKind",
    "alignments",
    "anneal",
    "best_alignment",
    "coupled_by_cost",
    "kicked",
    "paired_rotation",
    "procrustes",
    "settle",
    "signature_cost",
    "signature_starts",
    "signatures",
]

SignatureKind = Literal["product", "distance", "cosine"]

_TINY = 1e-12
_WARM_STEPS, _COLD_STEPS = 10, 50
"""Steps of a coupling at each temperature: if it begins where the one before ended, and if it begins from nothing."""

TEMPERATURES = 10
"""Temperatures at which a coupling is annealed; with six times as many no more rotations are found."""

_SAME_SCORE = 1e-3
"""Alignments whose scores differ by less are taken for the same local optimum."""

_PLANES, _KICKED_FROM = 3, 3.0
"""A local optimum is turned in the planes between this many directions of worst fit, and then annealed from this
temperature."""

_TRIED = 4
"""Starts that are tried, of eight. What none of these finds, all eight hardly ever find."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """One correspondence between the rows of two tables.

    Attributes:
        rotation: turns the right table's latents onto the left's: `right @ rotation ≈ left`.
        coupling: soft correspondence at temperature 1.
        log_ratio: log-likelihood ratio of each pair under that rotation.
        score: mean log-ratio of the coupling, per row.
        start: name of the start it was reached from.
    """

    rotation: FloatArray
    coupling: FloatArray
    log_ratio: FloatArray
    score: float
    start: str


def signatures(factors: FloatArray, rows: IntArray, *, kind: SignatureKind = "product", size: int = 128) -> FloatArray:
    """Return quantiles of each chosen row's relation to all rows of its table.

    They do not depend on a rotation of the factors, on the order of rows, or on how many rows there are.

    Args:
        factors: the table's latents.
        rows: rows to describe.
        kind: inner products, distances or cosines.
        size: number of quantiles.
    """
    check_time()
    relation = factors[rows] @ factors.T
    norm = np.maximum(np.sqrt((factors**2).sum(axis=1)), _TINY)
    if kind == "cosine":
        relation /= norm[rows][:, None] * norm[None, :]
    elif kind == "distance":
        relation = np.sqrt(np.maximum(norm[rows][:, None] ** 2 + norm[None, :] ** 2 - 2 * relation, 0.0))
    relation.sort(axis=1)
    count = relation.shape[1]
    position = np.clip((np.arange(size) + 0.5) / size * count - 0.5, 0, count - 1)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    return np.asarray(relation[:, low] + (position - low) * (relation[:, high] - relation[:, low]), dtype=np.float64)


def signature_cost(
    left: FloatArray,
    right: FloatArray,
    *,
    left_rows: IntArray | None = None,
    right_rows: IntArray | None = None,
    kind: SignatureKind = "product",
) -> FloatArray:
    """Return the mean squared distance between signatures of the chosen rows (all unless given), over all pairs."""
    first = signatures(left, np.arange(len(left)) if left_rows is None else left_rows, kind=kind)
    second = signatures(right, np.arange(len(right)) if right_rows is None else right_rows, kind=kind)
    square = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    return np.asarray((square - 2 * first @ second.T) / first.shape[1], dtype=np.float64)


def signature_starts(
    left: Latents, right: Latents, *, left_rows: IntArray, right_rows: IntArray, allowed: BoolArray | None = None
) -> Iterator[tuple[str, FloatArray]]:
    """Yield named first couplings, the most reliable first, from standardised signature costs and from sums of them.

    Args:
        left: latents of the left table.
        right: latents of the right table.
        left_rows: left rows to couple.
        right_rows: right rows to couple.
        allowed: which of these pairs may be matched; None: all.
    """

    def cost(weighting: Literal["white", "means"], kind: SignatureKind) -> FloatArray:
        found = signature_cost(
            getattr(left, weighting), getattr(right, weighting), left_rows=left_rows, right_rows=right_rows, kind=kind
        )
        centred: FloatArray = found - found.mean()
        deviation = float(found.std())
        return centred / deviation if deviation > _TINY else np.zeros_like(centred)

    def coupling(total: FloatArray) -> FloatArray:
        return coupled_by_cost(total, allowed)

    kinds: tuple[SignatureKind, ...] = ("product", "distance", "cosine")
    white = {kind: cost("white", kind) for kind in kinds}
    white_sum = white["product"] + white["distance"] + white["cosine"]
    yield "white", coupling(white_sum)
    yield "white product", coupling(white["product"])
    means = {kind: cost("means", kind) for kind in kinds}
    means_sum = means["product"] + means["distance"] + means["cosine"]
    yield "all", coupling(white_sum + means_sum)
    yield "means product", coupling(means["product"])
    yield "means", coupling(means_sum)
    yield "white distance", coupling(white["distance"])
    yield "means distance", coupling(means["distance"])
    yield "white cosine", coupling(white["cosine"])


def coupled_by_cost(cost: FloatArray, allowed: BoolArray | None = None) -> FloatArray:
    """Return a coupling of rows by costs; its temperature is the median cost of a row's nearest row."""
    score = forbid(cost.min() - cost, allowed)
    return couple(score, temperature=max(float(-np.median(score.max(axis=1))), 1e-3), tolerance=0.01)


def procrustes(left: FloatArray, right: FloatArray, coupling: FloatArray) -> FloatArray:
    """Return the rotation R that minimises Σ coupling_ij ‖left_i − right_j R‖²."""
    return paired_rotation(coupling.T @ left, right)


def paired_rotation(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the rotation R that minimises Σ ‖left_i − right_i R‖²: `procrustes` of rows in the same order."""
    first, _, second = np.linalg.svd(right.T @ left)
    return np.asarray(first @ second, dtype=np.float64)


def anneal(
    left: FloatArray,
    right: FloatArray,
    coupling: FloatArray,
    *,
    allowed: BoolArray | None = None,
    warmest: float = 4.0,
    coldest: float = 0.1,
    steps: int = 60,
    damped: bool = True,
    warm: bool = False,
) -> FloatArray:
    """Return the rotation reached by alternating couplings and rotations at falling temperature.

    Args:
        left: whitened left latents.
        right: whitened right latents.
        coupling: where to start.
        allowed: which pairs may be matched; None: all.
        warmest: first temperature.
        coldest: last temperature.
        steps: number of temperatures.
        damped: directions in which the coupling agrees less count less in the next one (Gromov–Wasserstein on inner
            products); the rotation returned is orthogonal all the same.
        warm: each coupling begins where the one before ended, which takes half the time and finds as many rotations,
            though not always the same ones.
    """
    potentials = np.zeros(len(right)) if warm else None
    each = _WARM_STEPS if warm else _COLD_STEPS
    for temperature in np.geomspace(warmest, coldest, steps):
        first, strength, second = np.linalg.svd(left.T @ (coupling @ right))
        strength = strength / max(float(strength.max(initial=0.0)), _TINY) if damped else np.ones_like(strength)
        products = 2.0 * (left @ (first * strength) @ second) @ right.T
        products = forbid(products, allowed)
        coupling = couple(products, temperature=float(temperature), max_iter=each, potentials=potentials)
    return procrustes(left, right, coupling)


def settle(
    left: Latents,
    right: Latents,
    rotation: FloatArray,
    *,
    allowed: BoolArray | None = None,
    start: str = "",
    temperatures: Sequence[float] = (2.0, 1.0, 1.0, 1.0),
) -> Alignment:
    """Alternate coupling by log-likelihood ratio and rotation, at the given temperatures, from a first rotation.

    Args:
        left: latents of the left table.
        right: latents of the right table.
        rotation: where to start.
        allowed: which pairs may be matched; None: all.
        start: what to call the result.
        temperatures: one per step; the last should be 1, at which the coupling holds probabilities.
    """
    for temperature in temperatures:
        used = rotation
        log_ratio = forbid(approximate_log_ratio(left.info, right.info.rotated(used)), allowed)
        coupling = couple(log_ratio, temperature=temperature)
        rotation = procrustes(left.white, right.white, coupling)
    score = float((coupling * log_ratio).sum() / max(float(coupling.sum()), _TINY))
    return Alignment(used, coupling, log_ratio, score, start)


def kicked(left: Latents, right: Latents, found: Alignment) -> list[FloatArray]:
    """Return rotations next to a local optimum: reflected along, or turned by 90° within, directions of worst fit.

    Args:
        left: latents of the left table.
        right: latents of the right table.
        found: the local optimum.
    """
    first, second = left.white, right.white @ found.rotation
    cross = first.T @ (found.coupling @ second)
    _, vectors = np.linalg.eigh(first.T @ first + second.T @ second - cross - cross.T)
    worst = vectors[:, ::-1].T
    identity = np.eye(len(cross))
    moves = [identity - 2 * np.outer(axis, axis) for axis in worst]
    for a, one in enumerate(worst[:_PLANES]):
        for other in worst[a + 1 : _PLANES]:
            flat = identity - np.outer(one, one) - np.outer(other, other)
            turn = np.outer(one, other) - np.outer(other, one)
            moves += [flat + turn, flat - turn]
    return [found.rotation @ move for move in moves]


def alignments(
    left: Latents, right: Latents, *, allowed: BoolArray | None = None, farthest: int = 500
) -> Iterator[Alignment]:
    """Yield alignments of the right table onto the left one, the cheapest and most reliable first.

    Args:
        left: latents of the left rows.
        right: latents of the right rows, which may be turned against the left's.
        allowed: which pairs may be matched; None: all.
        farthest: larger tables are annealed on this many of their rows farthest out.
    """
    rows, columns = left.farthest(farthest), right.farthest(farthest)
    one, other = left[rows], right[columns]
    among = None if allowed is None else allowed[np.ix_(rows, columns)]
    for name, coupling in signature_starts(left, right, left_rows=rows, right_rows=columns, allowed=among):
        rotation = anneal(one.white, other.white, coupling, allowed=among, steps=TEMPERATURES, warm=True)
        found = settle(one, other, rotation, allowed=among, start=name)
        if len(rows) == len(left) and len(columns) == len(right):
            yield found
        else:
            yield settle(left, right, found.rotation, allowed=allowed, start=name, temperatures=(1.0,))


def best_alignment(
    left: Information, right: Information, *, allowed: BoolArray | None = None, kicks: int = 0
) -> Alignment:
    """Return the alignment of highest score: of some starts, and then of the neighbours of the best one.

    Args:
        left: information of the left rows.
        right: information of the right rows; its latents may be turned against the left's.
        allowed: which pairs may be matched; None: all.
        kicks: how often all neighbours of the best are tried, at the most; see `kicked`.
    """
    one, other = Latents.of(left), Latents.of(right)
    best = max(islice(alignments(one, other, allowed=allowed), _TRIED), key=lambda found: found.score)
    for _ in range(kicks):
        near = [_after_kick(one, other, rotation, best.start, allowed) for rotation in kicked(one, other, best)]
        better = max(near, key=lambda found: found.score)
        if better.score <= best.score + _SAME_SCORE:
            break
        best = better
    return best


def _after_kick(
    left: Latents, right: Latents, rotation: FloatArray, start: str, allowed: BoolArray | None
) -> Alignment:
    """Anneal again from a rotation, at temperatures too low to forget it."""
    products = forbid(2.0 * left.white @ (right.white @ rotation).T, allowed)
    coupling = couple(products, temperature=_KICKED_FROM, max_iter=_COLD_STEPS)
    turned = anneal(
        left.white, right.white, coupling, allowed=allowed, warmest=_KICKED_FROM, steps=30, damped=False, warm=True
    )
    return settle(left, right, turned, allowed=allowed, start=f"{start.removesuffix(' kicked')} kicked")
