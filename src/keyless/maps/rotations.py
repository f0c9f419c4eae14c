"""First correspondences between two tables whose latents agree up to an unknown rotation and row order.

The inner products of a row's latents with those of all rows of its own table do not change under a rotation, and
sorted they do not depend on the order of rows either. Rows of two tables with similar sorted products are likely the
same entity: that gives a first coupling, the coupling a rotation, and the rotation a better coupling, at falling
temperature. Where that ends in a wrong place, the place is usually right but for a reflected or turned plane, so the
neighbours that differ by one such move are tried as well. The mean log-likelihood ratio of the coupling tells success
from failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from keyless.arrays import BoolArray, FloatArray, IntArray
from keyless.model.factor_model import Information
from keyless.model.latents import Latents
from keyless.pairs.likelihood import approximate_log_ratio, couple, forbid
from keyless.progress import check_time

__all__ = [
    "Alignment",
    "SignatureKind",
    "alignments",
    "anneal",
    "distinct",
    "expected_score",
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
_SAME_SCORE = 1e-3
"""Alignments whose scores differ by less are taken for the same local optimum."""

_WARM_STEPS, _COLD_STEPS = 10, 50
"""Steps of a coupling at each temperature, begun where the one before ended, and begun from nothing."""

_PLANES, _BEAM = 3, 4
"""Directions of worst fit in whose planes a local optimum is turned, and local optima that are turned in a round."""


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
    """Yield first couplings by name, the most reliable first: sums of standardised signature costs, then single ones.

    Args:
        left: latents of the left table.
        right: latents of the right table.
        left_rows: left rows to couple.
        right_rows: right rows to couple.
        allowed: which of these pairs may be; None allows all.
    """

    def cost(weighting: Literal["white", "means"], kind: SignatureKind) -> FloatArray:
        found = signature_cost(
            getattr(left, weighting), getattr(right, weighting), left_rows=left_rows, right_rows=right_rows, kind=kind
        )
        centred: FloatArray = found - found.mean()
        deviation = float(found.std())
        return centred / deviation if deviation > _TINY else np.zeros_like(centred)

    def coupling(total: FloatArray) -> FloatArray:
        score = forbid(total.min() - total, allowed)
        # The temperature is the typical cost of the nearest row.
        return couple(score, temperature=max(float(-np.median(score.max(axis=1))), 1e-3), tolerance=0.01)

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
        allowed: which pairs may be; None allows all.
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
        allowed: which pairs may be; None allows all.
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


def expected_score(left: Information, right: Information) -> float:
    """Return what the score of an alignment should be, by the two models alone, if the right rows are coupled.

    That is the information the rows of both sides share about their latents, which needs no rotation where the
    precisions of one side are about the same in all directions.
    """
    identity = np.eye(left.rank)

    def half_logdet(precision: FloatArray) -> float:
        return 0.5 * float(np.mean(np.linalg.slogdet(identity + precision)[1]))

    together = half_logdet(left.precision.mean(axis=0) + right.precision.mean(axis=0))
    return half_logdet(left.precision) + half_logdet(right.precision) - together


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


def distinct(pool: Sequence[Alignment]) -> list[Alignment]:
    """Return the alignments best first, without repeats of the same local optimum."""
    kept: list[Alignment] = []
    for found in sorted(pool, key=lambda item: -item.score):
        if not kept or kept[-1].score - found.score > _SAME_SCORE:
            kept.append(found)
    return kept


def alignments(
    left: Information,
    right: Information,
    *,
    allowed: BoolArray | None = None,
    given: Sequence[tuple[str, FloatArray]] = (),
    rounds: int = 3,
    farthest: int = 500,
) -> Iterator[Alignment]:
    """Yield alignments of the right table onto the left one, the cheapest and most reliable first.

    First the given couplings; then every signature start, annealed; then, for up to `rounds` rounds, the neighbours
    (see `kicked`) of the `_BEAM` best local optima so far. The caller stops when one is good enough.

    Args:
        left: information of the left rows.
        right: information of the right rows; its latents may be turned against the left's.
        allowed: which pairs may be; None allows all.
        given: named couplings to try first.
        rounds: how many rounds of kicks at most.
        farthest: larger tables are annealed on this many of their rows farthest out.
    """
    search = _Search(Latents.of(left), Latents.of(right), allowed, farthest)
    pool: list[Alignment] = []
    for name, coupling in given:
        for found in search.from_given(coupling, name):
            pool.append(found)
            yield found
    for number, (name, coupling) in enumerate(search.signature_starts()):
        for steps in (60,) if number else (10, 60):
            pool.append(search.annealed(coupling, name, steps=steps))
            yield pool[-1]
    tried: list[float] = []
    for _ in range(rounds):
        pool = distinct(pool)
        fresh = [found for found in pool[:_BEAM] if all(abs(found.score - score) > _SAME_SCORE for score in tried)]
        for found in fresh:
            tried.append(found.score)
            for rotation in kicked(search.left, search.right, found):
                pool.append(search.after_kick(rotation, f"{found.start.removesuffix(' kicked')} kicked"))
                yield pool[-1]


class _Search:
    """Two tables' latents, and those of their rows farthest out, on which the annealing is done."""

    def __init__(self, left: Latents, right: Latents, allowed: BoolArray | None, farthest: int) -> None:
        self.left, self.right, self.allowed = left, right, allowed
        self.left_rows, self.right_rows = left.farthest(farthest), right.farthest(farthest)
        self.whole = len(self.left_rows) == len(left) and len(self.right_rows) == len(right)
        self.small_left, self.small_right = left[self.left_rows], right[self.right_rows]
        self.small_allowed = None if allowed is None else allowed[np.ix_(self.left_rows, self.right_rows)]

    def signature_starts(self) -> Iterator[tuple[str, FloatArray]]:
        return signature_starts(
            self.left,
            self.right,
            left_rows=self.left_rows,
            right_rows=self.right_rows,
            allowed=self.small_allowed,
        )

    def from_given(self, coupling: FloatArray, name: str) -> Iterator[Alignment]:
        """A given coupling as it stands, then annealed."""
        rotation = procrustes(self.left.white, self.right.white, coupling)
        yield settle(self.left, self.right, rotation, allowed=self.allowed, start=name)
        yield self.after_kick(rotation, f"{name} annealed")

    def annealed(self, coupling: FloatArray, start: str, *, steps: int) -> Alignment:
        rotation = anneal(
            self.small_left.white, self.small_right.white, coupling, allowed=self.small_allowed, steps=steps, warm=True
        )
        return self._settled(rotation, start)

    def after_kick(self, rotation: FloatArray, start: str) -> Alignment:
        """Anneal again from a rotation, not so warm that it is forgotten."""
        left, right = self.small_left.white, self.small_right.white
        products = forbid(2.0 * left @ (right @ rotation).T, self.small_allowed)
        coupling = couple(products, temperature=3.0, max_iter=50)
        turned = anneal(
            left, right, coupling, allowed=self.small_allowed, warmest=3.0, steps=30, damped=False, warm=True
        )
        return self._settled(turned, start)

    def _settled(self, rotation: FloatArray, start: str) -> Alignment:
        found = settle(self.small_left, self.small_right, rotation, allowed=self.small_allowed, start=start)
        if self.whole:
            return found
        return settle(self.left, self.right, found.rotation, allowed=self.allowed, start=start, temperatures=(1.0,))
