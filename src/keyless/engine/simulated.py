"""Draw tables from a fitted map, and tell how far the probabilities hold that are stated for them.

A map of few rows and many factors fits its own matches too well, wrong ones included. How much too sure that makes it
cannot be seen in the tables themselves, where the truth is not known. So partners of the left rows are drawn from the
map; the same rounds of matching and fitting follow, beginning with the true partners; and what is stated then is
compared with what is right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyless.arrays import IntArray, NumpyArray
from keyless.engine.forms import Form
from keyless.engine.matches import NOT_REFUTED, matched
from keyless.engine.refine import FIRST_ROUNDS, Matching, Refinement
from keyless.maps.canonical import CanonicalModel
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import Posterior, pair_places
from keyless.progress import check_time

__all__ = ["MOST_SIMULATED", "drawn_partners", "power_on_drawn_tables", "tempered"]

MOST_SIMULATED = 1_500
"""Rows up to which tables are drawn: a map of more rows fits its own matches hardly better than other partners, and a
drawing takes seconds."""

_ROWS, _MOST_DRAWINGS = 1_000, 4
"""Matched rows of all drawn tables together, and the most tables that are drawn: of so many rows, the share that is
right is known to 0.01 or 0.02."""

_POWERS = np.linspace(0.3, 1.0, 15)
"""Powers of the probabilities of a row's answers that are tried."""

_STRENGTHS = (1.0, 0.85, 0.7, 0.55)
"""Numbers by which the map's correlations, as Fisher's z, are multiplied before tables are drawn; one after the other,
until a map fitted to drawn tables is no stronger than the found one. Matching makes correlations look stronger than
they are."""

_LEAST = 1e-4
"""Stated probabilities count as no less than this, and as no more than 1 minus this: nearer to 0 or 1 it does not
matter how sure a wrong statement was."""


def power_on_drawn_tables(
    form: Form, permutation: IntArray, *, every_row: bool, limits: Limits | None = None, seed: int = 0
) -> float:
    """Return the power at which stated probabilities hold on drawn tables, at most 1; see `tempered`.

    In drawn tables matched rows have partners, and all other rows stay as they are. The power is the one under which
    what is stated is likeliest to turn out as it does: right matches right, wrong ones wrong. Of powers about as good
    it is the one nearest to 1.

    Args:
        form: factors and map of a link.
        permutation: the right row of each left row, −1 for none.
        every_row: whether every row was given a partner.
        limits: which pairs may be matched; None: all.
        seed: of the drawings.
    """
    count = int((permutation >= 0).sum())
    if not count or not len(form.matching.fit.whole.correlations):
        return 1.0
    drawing = _Drawing(form, permutation, Limits(form.matching.ratios.shape) if limits is None else limits, seed)
    model = drawing.weakened()
    told = np.zeros(len(_POWERS))
    for number in range(int(np.clip(_ROWS // count, 1, _MOST_DRAWINGS))):
        check_time()
        found = drawing.refitted(model, number)
        matches, chances, _ = matched(found.ratios, every_row, crowded=form.crowded)
        rows = np.flatnonzero(matches >= 0)
        right = matches[rows] == permutation[rows]
        for k, power in enumerate(_POWERS):
            stated = np.clip(tempered(chances, power).answers(matches)[rows], _LEAST, 1 - _LEAST)
            told[k] += float(np.log(np.where(right, stated, 1 - stated)).sum())
    return float(_POWERS[told >= told.max() - NOT_REFUTED].max())


def tempered(chances: Posterior, power: float) -> Posterior:
    """Return probabilities of pairs, those of the answers of each row raised to a power and divided by their sum.

    Args:
        chances: the probabilities; being without partner is one of the answers.
        power: 1 leaves them as they are; less makes them more alike.
    """
    pairs = chances.pairs.copy()
    rows, columns = pair_places(pairs)
    weights, alone = pairs.data**power, chances.alone() ** power
    total = np.bincount(rows, weights, pairs.shape[0]) + np.where(chances.alone() > 0, alone, 0.0)
    pairs.data = weights / np.maximum(total, np.finfo(np.float64).tiny)[rows]
    pairs.data /= np.maximum(1.0, np.bincount(columns, pairs.data, pairs.shape[1]))[columns]
    return Posterior(pairs, float(pairs.sum()), chances.odds)


@dataclass(frozen=True, eq=False)
class _Drawing:
    """Tables that are drawn from the map of a link.

    Attributes:
        form: factors and map of the link.
        permutation: its matches; they are the true partners of drawn tables.
        limits: which pairs may be matched.
        seed: of the drawings.
    """

    form: Form
    permutation: IntArray
    limits: Limits
    seed: int

    def weakened(self) -> CanonicalModel:
        """Return the map with correlations so low that maps fitted to tables drawn from it are as strong as it was.

        All maps are fitted in the same way, beginning with the true partners of drawn tables, or the supposed ones of
        the link.
        """
        found = self.form.matching.fit.whole
        target = self._settled(self.form.right.compact).information
        reached: list[float] = []
        for number, strength in enumerate(_STRENGTHS):
            reached.append(self.refitted(_of_strength(found, strength), number).information)
            if reached[-1] <= target:
                break
        strengths = _STRENGTHS[: len(reached)][::-1]
        return _of_strength(found, float(np.interp(target, np.maximum.accumulate(reached[::-1]), strengths)))

    def refitted(self, model: CanonicalModel, number: int) -> Matching:
        """Return the matching at which drawn rows settle, beginning with their true partners.

        Args:
            model: the map that partners are drawn from.
            number: of the drawing.
        """
        rng = np.random.default_rng([self.seed, number])
        sides = self.form.left.compact, self.form.right.compact
        return self._settled(drawn_partners(model, *sides, self.permutation, rng))

    def _settled(self, right: NumpyArray) -> Matching:
        rows = np.flatnonzero(self.permutation >= 0)
        coupling = np.zeros(self.limits.shape, dtype=np.float32)
        coupling[rows, self.permutation[rows]] = 1.0
        refinement = Refinement(self.form.left.compact, right, limits=self.limits)
        return refinement.run(coupling, rounds=FIRST_ROUNDS, common=float(len(rows)))


def _of_strength(model: CanonicalModel, strength: float) -> CanonicalModel:
    """Return a map with correlations whose Fisher's z is multiplied by a number."""
    return replace(model, correlations=np.tanh(strength * np.arctanh(model.correlations)))


def drawn_partners(
    model: CanonicalModel, left: NumpyArray, right: NumpyArray, partners: IntArray, rng: np.random.Generator
) -> NumpyArray:
    """Return right factors in which some left rows have partners drawn from the model.

    Along each canonical direction a partner stands at the place of its left row, times the correlation, plus noise with
    the tails of the model. Along all other directions it stands where some partner of the link does. Right rows to
    which no left row belongs stay where they are.

    Args:
        model: the map.
        left: factors of the left rows.
        right: factors of the right rows.
        partners: the right row that each left row is to have as its partner, −1 for none.
        rng: draws the partners.
    """
    directions = model.right_directions
    used = right[:, : len(directions)]
    rows = np.flatnonzero(partners >= 0)
    rho = model.correlations
    noise = rng.normal(size=(len(rows), len(rho)))
    if np.isfinite(model.tail):
        noise *= np.sqrt((model.tail - 2) / rng.chisquare(model.tail, size=(len(rows), 1)))
    drawn = used.astype(np.float64)
    drawn[partners[rows]] = used[rng.permutation(partners[rows])]
    basis = np.linalg.qr(directions)[0]
    wanted = rho * model.left(left[rows]) + np.sqrt(1 - rho**2) * noise + model.right_centre @ directions
    own = drawn[partners[rows]]
    drawn[partners[rows]] = own - own @ basis @ basis.T + wanted @ np.linalg.pinv(directions)
    return np.asarray(np.hstack([drawn, right[:, len(directions) :]]), dtype=right.dtype)
