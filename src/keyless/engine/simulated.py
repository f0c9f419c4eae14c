"""Tables drawn from a fitted map: how far do the probabilities hold that are stated for them?

A map of few rows and many factors fits its own matches too well, and the rows that it matches wrongly with them. How
much surer than right that makes it cannot be seen in the tables themselves, where the truth is not known. So partners
are drawn for the left rows as the map has it; the same rounds of matching and fitting follow, from the true partners
on; and what is stated there is compared with what is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keyless.engine.forms import Form
from keyless.engine.matches import NOT_REFUTED, chances_of_all, matched
from keyless.engine.refine import Refinement
from keyless.maps.canonical import CanonicalModel
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import less_crowding
from keyless.progress import check_time

__all__ = ["MOST_SIMULATED", "drawn_partners", "power_on_drawn_tables"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

MOST_SIMULATED = 1_500
"""Rows up to which tables are drawn: of more rows a map fits its own matches hardly better than others, and a drawing
takes seconds."""

_ROWS, _MOST_DRAWINGS = 1_000, 5
"""Rows of all drawn tables together, and the most drawings: the share right of so many is known to 0.01 or 0.02."""

_ROUNDS = 8
"""Rounds of matching and fitting, as many as candidates of a search are compared by."""

_POWERS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Powers of likelihood ratios that are tried."""

_LEAST = 1e-4
"""Probability below which, and above one less which, it does not matter how sure a wrong statement was."""


def power_on_drawn_tables(form: Form, *, seed: int = 0) -> float:
    """Return the power of the likelihood ratios, at most 1, under which stated probabilities hold on drawn tables.

    Every row of the smaller table has a partner there. Of powers about as good the one nearest to 1 is taken.

    Args:
        form: factors and map of a link in which every row was given a partner.
        seed: of the drawings.
    """
    shape = form.matching.ratios.shape
    smaller = min(shape)
    told = np.zeros(len(_POWERS))
    for number in range(int(np.clip(_ROWS // smaller, 1, _MOST_DRAWINGS))):
        rng = np.random.default_rng([seed, number])
        partners = np.full(shape[0], -1)
        partners[rng.permutation(shape[0])[:smaller]] = rng.permutation(shape[1])[:smaller]
        right = drawn_partners(form.matching.fit.whole, form.left.compact, form.right.compact, partners, rng)
        coupling = np.zeros(shape, dtype=np.float32)
        rows = np.flatnonzero(partners >= 0)
        coupling[rows, partners[rows]] = 1.0
        found = Refinement(form.left.compact, right, limits=Limits(shape)).run(coupling, rounds=_ROUNDS)
        matches = matched(found.ratios, True, crowded=form.crowded)[0]
        ratios = less_crowding(found.ratios) if form.crowded else found.ratios
        for k, power in enumerate(_POWERS):
            check_time()
            stated = chances_of_all(ratios, matches, power=power).answers(matches)[rows]
            stated = np.clip(stated, _LEAST, 1 - _LEAST)
            told[k] += float(np.log(np.where(matches[rows] == partners[rows], stated, 1 - stated)).sum())
    return float(np.array(_POWERS)[told >= told.max() - NOT_REFUTED].max())


def drawn_partners(
    model: CanonicalModel, left: FloatArray, right: FloatArray, partners: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return right factors in which some left rows have partners as the model has it.

    Along the canonical directions a partner stands where its left row does, times the correlation, plus noise with the
    tails of the model. Along all others, and where no left row belongs to it, a row stands where some right row does.

    Args:
        model: the map.
        left: factors of the left rows.
        right: factors of the right rows.
        partners: the right row that each left row is to have as its partner, −1 for none.
        rng: draws them.
    """
    directions = model.right_directions
    used = right[:, : len(directions)]
    rows = np.flatnonzero(partners >= 0)
    rho = model.correlations
    noise = rng.normal(size=(len(rows), len(rho)))
    if np.isfinite(model.tail):
        noise *= np.sqrt((model.tail - 2) / rng.chisquare(model.tail, size=(len(rows), 1)))
    drawn = used[rng.permutation(len(used))].astype(np.float64)
    basis = np.linalg.qr(directions)[0]
    wanted = rho * model.left(left[rows]) + np.sqrt(1 - rho**2) * noise + model.right_centre @ directions
    own = drawn[partners[rows]]
    drawn[partners[rows]] = own - own @ basis @ basis.T + wanted @ np.linalg.pinv(directions)
    return np.asarray(np.hstack([drawn, right[:, len(directions) :]]), dtype=right.dtype)
